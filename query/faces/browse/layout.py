"""The layout of a base's map, computed in a process that can be killed, and cached; and answers, computed likewise.

They take seconds to minutes, in libraries that block all other threads, and the page is served meanwhile. A layout is
kept in the user's cache under a hash of everything that it depends on.

As a script, ``ROOT layout BASE [METHOD]`` prints a layout, ``ROOT predict ID`` and ``ROOT trace ID`` the answers of
these commands, and ``ROOT ask BASE`` that of `query ask` for the text on stdin, as one JSON object.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from indexer.child_processes import end_with_parent, start_child
from indexer.console.advice import for_command_line
from indexer.console.messages import say
from indexer.errors import WRONG_KINDS, AtlasError, ModelError, install
from indexer.storage.checksums import user_cache
from indexer.storage.own_files import read_own, write_own
from indexer.version import __version__
from query.faces.browse.model import error_in_words, harmless
from query.models.generations import Generations
from query.models.reader import AtlasReader
from query.questions.map.coloring import ColorGroups, coloring
from query.questions.map.model_map import (
    MOST_CLUSTERED,
    axis_labels,
    models_to_place,
    place_models,
    projection_in_words,
)
from query.questions.map.projection import usual_method

KEPT = 20  # files in the cache
_MOST_LAYOUT = 256 << 20  # bytes of a file
MOST_AT_ONCE = 2000  # models that are placed by PCA while their layout is computed
_LIKELY_MODELS = 20  # models that are shown for a text


@dataclass(frozen=True)
class Layout:
    """Entry i of every column is one model on the map, by its id; ``clusters`` is None for an outlier.

    ``axes``: the labels of x and y, if they have a meaning.
    """

    ids: tuple[int, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    clusters: tuple[str | None, ...]
    subtitle: str
    axes: tuple[str, str] | None
    notes: tuple[str, ...]

    def to_json(self) -> bytes:
        """The layout as JSON."""
        return json.dumps(asdict(self), allow_nan=False).encode()

    @classmethod
    def from_json(cls, payload: bytes) -> Layout:
        """Read the output of ``to_json``; raises one of WRONG_KINDS for anything else."""
        fields = json.loads(payload)
        ids, x, y = tuple(map(int, fields["ids"])), tuple(map(float, fields["x"])), tuple(map(float, fields["y"]))
        clusters = tuple(None if cluster is None else str(cluster) for cluster in fields["clusters"])
        if not (len(ids) == len(x) == len(y) == len(clusters) and all(map(math.isfinite, (*x, *y)))):
            raise ValueError("columns of different lengths, or an invalid position")
        axes = fields["axes"] and (str(fields["axes"][0]), str(fields["axes"][1]))
        return cls(ids, x, y, clusters, str(fields["subtitle"]), axes, tuple(map(str, fields["notes"])))


def _compute_layout(atlas: AtlasReader, base: str, method: str | None = None) -> Layout:
    """Place the distinct models of ``base``, and find clusters if there are not too many models."""
    notes: tuple[str, ...] = ()
    population = models_to_place(atlas, base)
    method = method or usual_method(len(population.ids))
    if method == "umap" and find_spec("umap") is None:
        method, notes = "pca", (f"The map is a PCA, because umap-learn is not installed. {install('studies')}",)
    projection, more_notes = place_models(atlas, population, method)
    clusters: list[str | None] = [None] * len(population.ids)
    if len(population.ids) <= MOST_CLUSTERED:
        colors = coloring(atlas, population, "cluster")
        clusters = (
            [colors.name_of(row) for row in range(len(clusters))] if isinstance(colors, ColorGroups) else clusters
        )
    return Layout(
        ids=tuple(map(int, population.ids)),
        x=tuple(map(float, projection.positions[:, 0])),
        y=tuple(map(float, projection.positions[:, 1])),
        clusters=tuple(clusters),
        subtitle=projection_in_words(projection.method, "input", population.left_out),
        axes=axis_labels(projection.method, projection.explained_variance),
        notes=(*notes, *more_notes),
    )


def first_layout(atlas: AtlasReader, base: str) -> Layout | None:
    """The models by PCA, in a second, until the layout of the usual method is computed.

    None if there are more than MOST_AT_ONCE models, or if none can be placed.
    """
    with suppress(AtlasError):
        population = models_to_place(atlas, base)
        if len(population.ids) <= MOST_AT_ONCE:
            projection, notes = place_models(atlas, population, "pca")
            return Layout(
                ids=tuple(map(int, population.ids)),
                x=tuple(map(float, projection.positions[:, 0])),
                y=tuple(map(float, projection.positions[:, 1])),
                clusters=(None,) * len(population.ids),
                subtitle=projection_in_words(projection.method, "input", population.left_out),
                axes=axis_labels(projection.method, projection.explained_variance),
                notes=notes,
            )
    return None


def _cache_key(atlas: AtlasReader, base: str, method: str | None) -> str:
    """A hash of the inputs of a layout: the file of vectors, the models with their flags and datasets, the method."""
    files = atlas.rows("SELECT faiss_file FROM indexes WHERE base = ? AND representation = 'input'", [base])
    (models,) = atlas.rows(
        "SELECT md5(string_agg(concat_ws(' ', model_id, is_copy, is_unrelated, duplicate_of, datasets), ';' "
        "ORDER BY model_id)) AS digest FROM models WHERE base = ?",
        [base],
    )
    depends_on = json.dumps([__version__, base, method, files, models])
    return hashlib.sha256(depends_on.encode()).hexdigest()


class LayoutJob:
    """The layout of one base, read from the cache or computed.

    Attributes:
        state: working, ready or failed.
        why: the reason for a failure.
        layout: the layout when the state is ready.
    """

    def __init__(self, atlas: AtlasReader, base: str, method: str | None) -> None:
        self.state, self.why = "working", ""
        self.layout: Layout | None = None
        self._key = _cache_key(atlas, base, method)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        with suppress(OSError, RuntimeError, *WRONG_KINDS):
            self.layout, self.state = Layout.from_json(read_own(_cache_file(self._key), _MOST_LAYOUT, say)), "ready"
            return
        self._process = start_process(atlas.folder.root, "layout", base, *([method] if method else []))
        threading.Thread(target=self._wait, args=(self._process,), daemon=True).start()

    def stop(self) -> None:
        """End the process, because the layout is no longer needed."""
        self._is_stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        answer, _ = process.communicate()
        if self._is_stopped:
            return
        try:
            fields = json.loads(answer)
            if "error" in fields:
                self.why = str(fields["error"])
            else:
                self.layout = Layout.from_json(answer)
        except WRONG_KINDS:
            self.why = "The models could not be placed."
        if self.layout is not None:
            with suppress(OSError, RuntimeError):  # if the cache is not writable, the next command computes it again
                file = _cache_file(self._key)
                write_own(file, answer)
                _remove_old(file, KEPT - 1)
        self.state = "ready" if self.layout is not None else "failed"


def _remove_old(written: Path, count: int) -> None:
    """Keep the ``count`` newest files beside the file that was just written. Raises OSError."""
    now = time.time()
    # A file from the future was written before the clock was set back. Without this line it would stay for ever.
    dates = {path: path.lstat().st_mtime for path in written.parent.glob("*.json") if path != written}
    for path in sorted(dates, key=lambda path: -dates[path] if dates[path] <= now else 0)[count:]:
        path.unlink()


def _cache_file(key: str) -> Path:
    return user_cache() / "layouts" / f"{key}.json"


# ---- the process


def start_process(root: Path, *arguments: str, takes_text: bool = False) -> subprocess.Popen[bytes]:
    """Start this module as a script on the atlas in ``root``; it writes its answer to stdout.

    ``takes_text``: it reads text from stdin, and its messages of progress are not shown.
    """
    return start_child(
        [sys.executable, "-P", "-m", "query.faces.browse.layout", str(root), *arguments],
        stdin=subprocess.PIPE if takes_text else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if takes_text else None,
    )


def _answered(atlas: AtlasReader, question: str, subject: str) -> dict[str, Any]:
    """The answer to a question about a model, by its id, or about text on stdin, for a base."""
    if question == "predict":
        from query.questions.predict.predict import predict_indexed

        prediction = predict_indexed(atlas, int(subject))
        return {"headline": prediction.headline, "predictions": prediction.to_rows(), "notes": list(prediction.notes)}
    if question == "trace":
        from query.models.lookup import indexed_model
        from query.questions.trace.trace import trace

        model = indexed_model(atlas, int(subject))
        tracing = trace(atlas, model.name, model.base)
        return tracing.to_dict() | {
            "headline": tracing.headline,
            "notes": [for_command_line(note) for note in tracing.notes],
        }
    from query.questions.ask.ask import ask

    likely = ask(atlas, sys.stdin.buffer.read().decode(errors="replace").splitlines(), _LIKELY_MODELS, base=subject)
    return likely.to_dict() | {"headline": likely.headline}


def main() -> int:
    """Answer the question in ``sys.argv``."""
    end_with_parent()
    root, question, *words = sys.argv[1:]
    try:
        generations = Generations(root)
        if question == "layout":
            answer = generations.asked(_compute_layout, *words).to_json()
        else:
            answer_data = generations.asked(_answered, question, *words)
            answer = json.dumps(harmless(answer_data), allow_nan=False).encode()
    except (AtlasError, ModelError, OSError) as error:
        answer = json.dumps({"error": error_in_words(error)}).encode()
    sys.stdout.buffer.write(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
