"""The data of the page: all indexed models of a base, with what they are filtered, sorted and coloured by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from query.browse.layout import Layout
from query.map.coloring import grouped, scaled
from query.map.neighbours import near_points, read_neighbours, read_parents
from query.map.page import coloring_data, facet, facet_of_many, number, payload
from query.population import leading_datasets

if TYPE_CHECKING:
    from query.reader import AtlasReader

NEIGHBOURS = 10  # per model; the page of a model has more

# The mean rank is given only if every delta's is known: the unknown ones would be the large ones.
_MODELS = """
SELECT models.model_id, model, author, relation, models.datasets, licence, pipeline_tag, head_class, downloads, likes,
    epoch(created) AS created, relative_norm, measured.rank, measured.energy,
    is_copy, is_unrelated, is_partly_frozen, duplicate_of IS NOT NULL AS is_repeat, deleted_at_hub,
    predicted.dataset AS predicted
FROM models
LEFT JOIN (
    SELECT model_id, avg(energy) FILTER (norm > 0) AS energy,
        CASE WHEN bool_and(rank_50 IS NOT NULL OR norm = 0) THEN avg(rank_50) FILTER (norm > 0) END AS rank
    FROM deltas GROUP BY model_id
) AS measured USING (model_id)
LEFT JOIN (SELECT model_id, dataset FROM predictions WHERE rank = 1) AS predicted USING (model_id)
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
    "is_copy": "copy of the base",
    "is_unrelated": "unrelated to the base",
    "is_repeat": "repeats an earlier upload",
    "is_partly_frozen": "partly frozen",
    "deleted_at_hub": "left the Hub",
}

Columns = Mapping[str, Sequence[Any]]


def read_payload(atlas: AtlasReader, base: str, layout: Layout | None) -> dict[str, Any]:
    """See :func:`query.map.page.payload`; models are in order of id. ``layout``: None before it is known."""
    cursor = atlas.connection.execute(_MODELS, [base])
    names = [column[0] for column in cursor.description]
    rows = cursor.fetchall()
    columns: Columns = dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))
    ids = [int(one) for one in columns["model_id"]]
    row_of = {identity: row for row, identity in enumerate(ids)}
    places = np.full((len(ids), 2), np.nan)
    clusters: list[str | None] = [None] * len(ids)
    if layout is not None:
        for identity, x, y, cluster in zip(layout.ids, layout.x, layout.y, layout.clusters, strict=True):
            if (row := row_of.get(identity)) is not None:
                places[row], clusters[row] = (x, y), cluster
    return payload(
        ids=ids,
        names=columns["model"],
        base=base,
        places=places,
        facets=_facets(columns, clusters),
        numbers=[
            number(scaled(name, columns[column], is_time=name == "created")) | {"label": label}
            for name, (column, label) in _NUMBERS.items()
        ],
        colorings=_colorings(columns, clusters, places),
        near=near_points(read_neighbours(atlas, base, "input"), np.array(ids, dtype=np.int64), NEIGHBOURS),
        parents=read_parents(atlas, base),
        hub=atlas.crawl_of(base).endpoint,
        axes=layout.axes if layout else None,
        notes=layout.notes if layout else (),
    ) | {"base": base, "ids": ids}


def _facets(columns: Columns, clusters: list[str | None]) -> list[dict[str, Any]]:
    odd = [
        [words for name, words in _ODDITIES.items() if columns[name][row]] for row in range(len(columns["model_id"]))
    ]
    later = {"follows": True}  # its filter is below the histograms
    hidden = {"hidden": True}  # it is not a column of the table, and shown only if it is known
    found = [
        facet_of_many("dataset", columns["datasets"], "no dataset named") | {"opens": True},
        facet("relation", columns["relation"]) | {"opens": True},
        *([facet("cluster", clusters, "in no cluster") | later] if any(clusters) else []),
        facet("author", columns["author"]) | later,
        facet("licence", [one or None for one in columns["licence"]], "none named") | later,
        facet("predicted", columns["predicted"], "not predicted") | later,
        facet("task", columns["pipeline_tag"], "not known") | later | hidden,
        facet("head", columns["head_class"], "not known") | later | hidden,
        facet_of_many("oddity", odd, "nothing odd") | later | hidden,
    ]
    return [one for one in found if one["names"] or one["name"] in ("dataset", "author", "relation")]


def _colorings(columns: Columns, clusters: list[str | None], places: NDArray[np.float64]) -> list[dict[str, Any]]:
    groups = {
        "dataset": leading_datasets([frozenset(names) for names in columns["datasets"]]),
        "cluster": clusters,
        "author": columns["author"],
        "relation": columns["relation"],
        "licence": [one or None for one in columns["licence"]],
        "predicted": columns["predicted"],
    }
    found = [
        coloring_data(grouped(name, values), places)
        for name, values in groups.items()
        if name == "dataset" or any(values)
    ]
    # The scripts take the scale and the values from "numbers".
    numbers = [
        {"kind": "number", "column": name, "none": "not known"}
        for name, (column, _) in _NUMBERS.items()
        if any(value is not None for value in columns[column])
    ]
    return found + numbers
