"""Where the models of a base lie, and in which clusters: found in a process of its own, and remembered.

Finding it takes seconds to minutes, in libraries that let no other thread run; the page is served meanwhile. It is
kept in the user's cache under a hash of all that it depends on, so that it is found once.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.errors import WRONG_KINDS
from indexer.storage.checksums import user_cache
from indexer.version import __version__

if TYPE_CHECKING:
    from query.reader import AtlasReader

KEPT = 20  # files in the cache


@dataclass(frozen=True)
class Placed:
    """Entry i of every column is one model that is on the map, by its id; ``clusters`` is None for an outlier.

    ``axes``: what x and y are, where they are something. ``notes``: what a person should know.
    """

    ids: tuple[int, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    clusters: tuple[str | None, ...]
    subtitle: str
    axes: tuple[str, str] | None
    notes: tuple[str, ...]

    def rows(self) -> Iterator[tuple[int, float, float, str | None]]:
        """Id, x, y and cluster of each."""
        return zip(self.ids, self.x, self.y, self.clusters, strict=True)

    def to_json(self) -> bytes:
        """For ``of``."""
        return json.dumps(asdict(self), allow_nan=False).encode()

    @classmethod
    def of(cls, payload: bytes) -> Placed:
        """Raises one of WRONG_KINDS where it is not as ``to_json`` writes it."""
        told = json.loads(payload)
        ids, x, y = tuple(map(int, told["ids"])), tuple(map(float, told["x"])), tuple(map(float, told["y"]))
        clusters = tuple(None if one is None else str(one) for one in told["clusters"])
        if not (len(ids) == len(x) == len(y) == len(clusters) and all(map(math.isfinite, (*x, *y)))):
            raise ValueError("columns of different lengths, or a place that is none")
        axes = told["axes"] and (str(told["axes"][0]), str(told["axes"][1]))
        return cls(ids, x, y, clusters, str(told["subtitle"]), axes, tuple(map(str, told["notes"])))


def places_key(atlas: AtlasReader, base: str, method: str | None) -> str:
    """A hash of what the places depend on: the vectors' files, which models count and what they name, the method."""
    files = atlas.rows("SELECT faiss_files FROM indexes WHERE base = ? AND representation = 'input'", [base])
    removed = atlas.rows("SELECT segment, model_id FROM internal.removed_vectors WHERE base = ? ORDER BY ALL", [base])
    (models,) = atlas.rows(
        "SELECT md5(string_agg(concat_ws(' ', model_id, is_copy, is_unrelated, duplicate_of, datasets), ';' "
        "ORDER BY model_id)) AS digest FROM models WHERE base = ?",
        [base],
    )
    told = json.dumps([__version__, base, method, files, removed, models])
    return hashlib.sha256(told.encode()).hexdigest()


def start_child(root: Path, *words: str) -> subprocess.Popen[bytes]:
    """``query.browse.child`` at work on the atlas in ``root``, which writes its answer to stdout."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "query.browse.child", str(root), *words],
        start_new_session=True,  # Ctrl-C in a terminal is for this process, which ends that one
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


class Placing:
    """The places of one base, being found. ``state``: working, ready or failed; then ``why`` says why."""

    def __init__(self, atlas: AtlasReader, base: str, method: str | None) -> None:
        self.state, self.why = "working", ""
        self.found: Placed | None = None
        self._key = places_key(atlas, base, method)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        if (found := _remembered(self._key)) is not None:
            self.found, self.state = found, "ready"
            return
        self._process = start_child(atlas.folder.root, "place", base, *([method] if method else []))
        threading.Thread(target=self._wait, args=(self._process,), daemon=True).start()

    def stop(self) -> None:
        """Nobody needs it any more."""
        self._is_stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        payload, _ = process.communicate()
        if self._is_stopped:
            return
        try:
            told = json.loads(payload)
            if "error" in told:
                self.why = str(told["error"])
            else:
                self.found = Placed.of(payload)
        except WRONG_KINDS:
            self.why = "The models could not be placed."
        if self.found is not None:
            _remember(self._key, payload)
        self.state = "ready" if self.found is not None else "failed"


def _folder() -> Path:
    return user_cache() / "places"


def _remembered(key: str) -> Placed | None:
    try:
        return Placed.of((_folder() / f"{key}.json").read_bytes())
    except (OSError, RuntimeError, *WRONG_KINDS):
        return None


def _remember(key: str, payload: bytes) -> None:
    """Best effort: without a place to write, the next command places the models again."""
    with suppress(OSError, RuntimeError):
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = folder / f"{key}.part"
        part.write_bytes(payload)
        part.replace(folder / f"{key}.json")
        files: list[Any] = sorted(folder.glob("*.json"), key=lambda file: -file.stat().st_mtime)
        for old in files[KEPT:]:
            old.unlink()
