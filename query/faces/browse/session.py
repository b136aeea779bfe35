"""The generation of the atlas that the page shows, and the data computed from it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.errors import AtlasError
from query.faces.browse.layout import Layout, LayoutJob, first_layout, start_process
from query.faces.browse.model import model_page
from query.models.generations import Generations
from query.models.population import leading_datasets
from query.models.sampled import COPY, LIKE_THE_BASE, SAMPLE, UNTRAINED_ADAPTER
from query.questions.map.coloring import grouped, scaled
from query.questions.map.neighbours import near_points, read_neighbours, read_parents
from query.questions.map.page import coloring_data, facet, number, page_text, payload
from query.questions.sql import SqlResult, Started, asked_condition, run_sql

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

MOST_ROWS = 1_000
MOST_SECONDS = 20.0
_END_SECONDS = 3.0  # how long ``stop`` waits for a thread that reads the atlas
NEIGHBOURS = 10  # per model; the page of a model has more

# The mean rank is given only if every delta's is known: the unknown ones would be the large ones.
_MODELS = """
SELECT models.model_id, model, author, relation, models.datasets, licence, pipeline_tag, head_class, downloads, likes,
    epoch(created) AS created, relative_norm, measured.rank, measured.energy,
    "read", is_copy AND copy_evidence IS DISTINCT FROM 'sample'
        AND coalesce(copy_evidence, '') NOT IN ('untrained', 'unmeasurable') AS is_copy,
    is_copy AND copy_evidence IN ('untrained', 'unmeasurable') AS is_untrained,
    is_copy AND copy_evidence IS NOT DISTINCT FROM 'sample' AS is_like_base,
    is_unrelated, is_partly_frozen, duplicate_of IS NOT NULL AS is_repeat, deleted_at_hub,
    predicted.dataset AS predicted, predicted.probability AS probability
FROM models
LEFT JOIN (
    SELECT model_id, avg(energy) FILTER (norm > 0 AND rows_read IS NULL) AS energy,
        CASE WHEN bool_and(rank_50 IS NOT NULL OR norm = 0) THEN avg(rank_50) FILTER (norm > 0) END AS rank
    FROM deltas GROUP BY model_id
) AS measured USING (model_id)
LEFT JOIN (SELECT model_id, dataset, probability FROM predictions WHERE rank = 1) AS predicted USING (model_id)
WHERE base = ? ORDER BY models.model_id
"""

# Name on the page → (column, label).
_NUMBERS = {
    "downloads": ("downloads", "downloads"),
    "likes": ("likes", "likes"),
    "created": ("created", "created"),
    "norm": ("relative_norm", "relative norm"),
    "rank": ("rank", "mean rank"),
    "energy": ("energy", "energy kept"),
}
_ODDITIES = {
    "is_copy": COPY,
    "is_like_base": LIKE_THE_BASE,
    "is_untrained": UNTRAINED_ADAPTER,
    "is_unrelated": "unrelated to the base",
    "is_repeat": "repeats an earlier upload",
    "is_partly_frozen": "partly frozen",
    "deleted_at_hub": "left its source",
}


class BrowseSession:
    """One generation of the atlas, until ``renew``. ``atlas``: its folder."""

    def __init__(self, atlas: Path, method: str | None) -> None:
        self._generations, self._method = Generations(atlas), method
        self._lock = threading.Lock()  # for the two dictionaries below, so that each entry is computed once
        self._layouts: dict[tuple[AtlasReader, str], LayoutJob] = {}
        self._payloads: dict[tuple[AtlasReader, str, str], bytes] = {}
        self._is_over = False

    def bases(self) -> list[dict[str, Any]]:
        """Every base with models, and how many it has, the largest first."""
        return self._generations.asked(_bases)

    def renew(self) -> None:
        """Switch to the latest generation."""
        with self._lock:
            newest = self._generations.newest
            if not newest.is_outdated:
                return
            self._generations.renew(newest)
            self._payloads.clear()
            for layout in self._layouts.values():
                layout.stop()
            self._layouts.clear()

    def state(self, base: str) -> dict[str, Any]:
        """The generation, whether a newer one is published, and the state of the layout of ``base``."""
        with self._generations.borrowed() as atlas:
            layout = self._layout(atlas, base)
            generation = {"generation": atlas.generation, "isOvertaken": atlas.is_outdated}
        return generation | {"places": layout.state, "why": layout.why}

    def layout(self, base: str) -> LayoutJob:
        """The layout of a base, which is started when it is first needed."""
        with self._generations.borrowed() as atlas:
            return self._layout(atlas, base)

    def _layout(self, atlas: AtlasReader, base: str) -> LayoutJob:
        with self._lock:
            if (atlas, base) not in self._layouts:
                self._layouts[atlas, base] = LayoutJob(atlas, base, self._method)
                if self._is_over:
                    self._layouts[atlas, base].stop()
            return self._layouts[atlas, base]

    def payload(self, base: str) -> bytes:
        """See ``read_payload``; as JSON."""
        with self._generations.borrowed() as atlas:
            layout = self._layout(atlas, base)
            state = layout.state  # it may change at any moment
            finished = layout.layout if state == "ready" else None
            with self._lock:
                key = (atlas, base, state)
                if key not in self._payloads:
                    if state == "working":
                        finished = first_layout(atlas, base)
                    bases = [row["base"] for row in atlas.rows("SELECT DISTINCT base FROM models ORDER BY base")]
                    data = read_payload(atlas, base, finished) | {
                        "bases": [[name, page_text(name)] for name in bases],
                        "generation": atlas.generation,
                        "places": state,
                        "why": page_text(layout.why),
                        "subtitle": page_text(finished.subtitle) if finished else "",
                    }
                    self._payloads[key] = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
                return self._payloads[key]

    def model(self, model_id: int) -> dict[str, Any]:
        """See ``model_page``. Raises AtlasError if there is no such model."""
        return self._generations.asked(model_page, model_id)

    def answered(self, question: str, subject: str, started: Started, text: bytes | None = None) -> dict[str, Any]:
        """The answer of `query predict`, `trace` or `ask`, from a process of its own. Raises AtlasError.

        ``subject``: the id of an indexed model; for `ask` a base, and the ``text``. ``started``: see ``run_sql``.
        """
        process = start_process(self._generations.newest.folder.root, question, subject, takes_text=text is not None)
        started(process)
        output, _ = process.communicate(text)
        try:
            answer: dict[str, Any] = json.loads(output)
        except ValueError as error:
            raise AtlasError("The process ended without an answer.", "Try again.") from error
        if "error" in answer:
            raise AtlasError(answer["error"])
        return answer

    def matching(self, base: str, condition: str, started: Started) -> list[int]:
        """Ids of the models that satisfy an SQL condition, run in the sandbox of ``query sql``. Raises AtlasError."""
        with self._generations.borrowed() as atlas:
            ids = asked_condition(atlas.connection, condition, started=started).model_ids()
            rows_of_base = atlas.rows("SELECT model_id FROM models WHERE base = ?", [base])
        return sorted({row["model_id"] for row in rows_of_base}.intersection(ids))

    def sql(self, statement: str, started: Started) -> SqlResult:
        """The result of a SELECT, run in the sandbox of ``query sql``. Raises AtlasError."""
        with self._generations.borrowed() as atlas:
            return run_sql(atlas.connection, statement, limit=MOST_ROWS, seconds=MOST_SECONDS, started=started)

    def tables(self) -> list[dict[str, Any]]:
        """Every table and view, with its columns and their types."""
        return self._generations.asked(_tables)

    def stop(self) -> None:
        """Stop everything and close the atlas. No request is answered after that."""
        self._is_over = True
        for layout in list(self._layouts.values()):
            layout.stop()
        self._generations.close()
        ends = time.monotonic() + _END_SECONDS
        while self._generations.is_borrowed and time.monotonic() < ends:
            self._generations.interrupt()
            time.sleep(0.05)


def _bases(atlas: AtlasReader) -> list[dict[str, Any]]:
    return atlas.rows("SELECT base, count(*) AS models FROM models GROUP BY base ORDER BY models DESC, base")


def _tables(atlas: AtlasReader) -> list[dict[str, Any]]:
    return atlas.rows(
        "SELECT table_name AS name, list([column_name, data_type] ORDER BY column_index) AS columns "
        "FROM duckdb_columns() WHERE NOT internal AND schema_name = 'main' GROUP BY ALL ORDER BY ALL"
    )


# ---- the data of the page


def read_payload(atlas: AtlasReader, base: str, layout: Layout | None) -> dict[str, Any]:
    """All indexed models of a base in order of id, with the columns for filters, order and colours.

    See :func:`query.questions.map.page.payload`. ``layout``: None before it is computed.
    """
    cursor = atlas.connection.execute(_MODELS, [base])
    names = [column[0] for column in cursor.description]
    rows = cursor.fetchall()
    columns = dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))
    ids = [int(model_id) for model_id in columns["model_id"]]
    row_of = {identity: row for row, identity in enumerate(ids)}
    positions = np.full((len(ids), 2), np.nan)
    clusters: list[str | None] = [None] * len(ids)
    if layout is not None:
        for identity, x, y, cluster in zip(layout.ids, layout.x, layout.y, layout.clusters, strict=True):
            if (row := row_of.get(identity)) is not None:
                positions[row], clusters[row] = (x, y), cluster
    licences = [licence or None for licence in columns["licence"]]
    odd = [[words for name, words in _ODDITIES.items() if columns[name][row]] for row in range(len(ids))]
    below = {"follows": True}  # its filter is below the histograms
    not_a_column = {"hidden": True}  # it is not a column of the table, and shown only if it is known
    facets = [
        facet("dataset", columns["datasets"], "no dataset named", many=True) | {"opens": True},
        facet("relation", columns["relation"]) | {"opens": True},
        *([facet("cluster", clusters, "in no cluster") | below] if any(clusters) else []),
        facet("author", columns["author"]) | below,
        *([facet("read", columns["read"]) | below] if SAMPLE in columns["read"] else []),
        facet("licence", licences, "none named") | below,
        facet("predicted", columns["predicted"], "not predicted") | below,
        facet("task", columns["pipeline_tag"], "not known") | below | not_a_column,
        facet("head", columns["head_class"], "not known") | below | not_a_column,
        facet("oddity", odd, "nothing odd", many=True) | below | not_a_column,
    ]
    groups = {
        "dataset": leading_datasets([frozenset(names) for names in columns["datasets"]]),
        "cluster": clusters,
        "author": columns["author"],
        "relation": columns["relation"],
        "licence": licences,
        "predicted": columns["predicted"],
    }
    if not any(groups["dataset"]) and any(clusters):  # the first colouring is shown at first
        groups = {"cluster": clusters} | groups
    colorings = [
        coloring_data(grouped(name, values), positions)
        for name, values in groups.items()
        if name == "dataset" or any(values)
    ]
    # The scripts take the scale and the values from "numbers".
    colorings += [
        {"kind": "number", "column": name, "none": "not known"}
        for name, (column, _) in _NUMBERS.items()
        if any(value is not None for value in columns[column])
    ]
    return payload(
        ids=ids,
        names=columns["model"],
        base=base,
        positions=positions,
        facets=[item for item in facets if item["names"] or item["name"] in ("dataset", "author", "relation")],
        numbers=[
            number(scaled(name, columns[column], is_time=name == "created")) | {"label": label}
            for name, (column, label) in _NUMBERS.items()
        ],
        colorings=colorings,
        near=near_points(read_neighbours(atlas, base, "input"), np.array(ids, dtype=np.int64), NEIGHBOURS),
        parents=read_parents(atlas, base),
        hub=atlas.crawl_of(base).endpoint,
        axes=layout.axes if layout else None,
        notes=layout.notes if layout else (),
        from_folders=atlas.from_folders(base),
    ) | {"base": base, "ids": ids, "probabilities": columns["probability"]}
