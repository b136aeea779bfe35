"""All indexed models of a base as columns: what the page draws, filters, sorts and colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from indexer.names import is_hub_id
from query.browse.places import Placed
from query.figures import THEMES
from query.map.coloring import LEGEND, grouped, scaled
from query.map.columns import coloring_data, facet, facet_of_many, number, shown
from query.map.nearest import read_nearest
from query.map.parents import read_parents
from query.population import leading_datasets

if TYPE_CHECKING:
    from query.reader import AtlasReader

NEIGHBOURS = 10  # of each model that travel with all; the page of a model has more

# A rank is told where every delta's is known: the unknown ones would be the large ones.
_MODELS = """
SELECT models.model_id, model, author, relation, models.datasets, licence, pipeline_tag, head_class, downloads, likes,
    epoch(created) AS created, relative_norm, measured.rank, measured.energy,
    is_copy, is_unrelated, is_partly_frozen, duplicate_of IS NOT NULL AS is_repeat,
    deleted_at_hub, told.dataset AS likely
FROM models
LEFT JOIN (
    SELECT model_id, avg(energy) FILTER (norm > 0) AS energy,
        CASE WHEN bool_and(rank_50 IS NOT NULL OR norm = 0) THEN avg(rank_50) FILTER (norm > 0) END AS rank
    FROM deltas GROUP BY model_id
) AS measured USING (model_id)
LEFT JOIN (SELECT model_id, dataset FROM predictions WHERE rank = 1) AS told USING (model_id)
WHERE base = ? ORDER BY models.model_id
"""

# Columns of numbers, and what they are called on the page.
_NUMBERS = {
    "downloads": "downloads",
    "likes": "likes",
    "created": "created",
    "norm": "relative norm",
    "rank": "mean rank",
    "energy": "energy kept",
}
_ODDITIES = {
    "is_copy": "copy of the base",
    "is_unrelated": "unrelated to the base",
    "is_repeat": "repeats an earlier upload",
    "is_partly_frozen": "partly frozen",
    "deleted_at_hub": "left the Hub",
}


def read_columns(atlas: AtlasReader, base: str, placed: Placed | None) -> dict[str, Any]:
    """What the scripts read, see ``packed``; every list has an entry for each model, in order of id.

    ``placed``: where models lie, None before that is known. A model without a place has NaN.
    """
    cursor = atlas.connection.execute(_MODELS, [base])
    names = [column[0] for column in cursor.description]
    rows = cursor.fetchall()
    columns = dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))
    ids = [int(one) for one in columns["model_id"]]
    row_of = {identity: row for row, identity in enumerate(ids)}
    x, y, clusters = _places(placed, row_of)
    facets = _facets(columns, clusters if placed else None)
    return {
        "base": base,
        "ids": np.array(ids, dtype=np.int32),
        "models": [shown(model) for model in columns["model"]],
        "onHub": np.array([is_hub_id(model) for model in columns["model"]], dtype=np.int32),
        "x": x,
        "y": y,
        "facets": [_packed_facet(one) for one in facets],
        "numbers": [_packed_number(columns, name, label) for name, label in _NUMBERS.items()],
        **_near(atlas, base, row_of),
        "parents": _parents(atlas, base, ids, row_of),
        "colorings": _colorings(columns, clusters if placed else None, np.column_stack([x, y])),
        "hub": atlas.crawl_of(base).endpoint,
        "legend": LEGEND,
        "themes": {name: asdict(theme) for name, theme in THEMES.items()},
        "axes": list(placed.axes) if placed and placed.axes else None,
        "notes": list(placed.notes) if placed else [],
    }


def _places(
    placed: Placed | None, row_of: Mapping[int, int]
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[str | None]]:
    x, y = np.full(len(row_of), np.nan), np.full(len(row_of), np.nan)
    clusters: list[str | None] = [None] * len(row_of)
    for identity, one, other, cluster in placed.rows() if placed else ():
        if (row := row_of.get(identity)) is not None:
            x[row], y[row], clusters[row] = one, other, cluster
    return x, y, clusters


def _facets(columns: Mapping[str, Sequence[Any]], clusters: list[str | None] | None) -> list[dict[str, Any]]:
    odd = [
        [words for name, words in _ODDITIES.items() if columns[name][row]] for row in range(len(columns["model_id"]))
    ]
    later = {"follows": True}  # its filter stands below the histograms
    aside = {"hidden": True}  # it is no column of the table, and told only where it is known
    found = [
        facet_of_many("dataset", columns["datasets"], "no dataset named") | {"opens": True},
        facet("relation", columns["relation"]) | {"opens": True},
        facet("author", columns["author"]) | later,
        facet("licence", [one or None for one in columns["licence"]], "none named") | later,
        facet("predicted", columns["likely"], "not predicted") | later,
        facet("task", columns["pipeline_tag"], "not known") | later | aside,
        facet("head", columns["head_class"], "not known") | later | aside,
        facet_of_many("oddity", odd, "nothing odd") | later | aside,
    ]
    if clusters is not None and any(clusters):
        found.insert(2, facet("cluster", clusters, "in no cluster") | later)
    return [one for one in found if one["names"] or one["name"] in ("dataset", "author", "relation")]


def _packed_facet(one: dict[str, Any]) -> dict[str, Any]:
    if not one["many"]:
        return one | {"codes": np.array(one["codes"], dtype=np.int32)}
    counts = np.array([len(codes) for codes in one["codes"]], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
    return one | {
        "codes": np.array([code for codes in one["codes"] for code in codes], dtype=np.int32),
        "starts": starts,
    }


def _packed_number(columns: Mapping[str, Sequence[Any]], name: str, label: str) -> dict[str, Any]:
    values = columns["relative_norm" if name == "norm" else name]
    told = number(scaled(name, values, is_time=name == "created"))
    return told | {"label": label, "values": _floats(told["values"])}


def _colorings(
    columns: Mapping[str, Sequence[Any]], clusters: list[str | None] | None, places: NDArray[np.float64]
) -> list[dict[str, Any]]:
    groups = {
        "dataset": leading_datasets([frozenset(names) for names in columns["datasets"]]),
        "cluster": clusters or [],
        "author": columns["author"],
        "relation": columns["relation"],
        "licence": [one or None for one in columns["licence"]],
        "predicted": columns["likely"],
    }
    found = [
        coloring_data(grouped(name, values), places)
        for name, values in groups.items()
        if name == "dataset" or any(values)
    ]
    for one in found:
        one["codes"] = np.array(one["codes"], dtype=np.int32)
    numbers = [
        {"kind": "number", "column": name, "none": "not known"}
        for name in _NUMBERS
        if any(value is not None for value in columns["relative_norm" if name == "norm" else name])
    ]
    return found + numbers


def _near(atlas: AtlasReader, base: str, row_of: Mapping[int, int]) -> dict[str, Any]:
    """The nearest of every model: rows, similarities and backgrounds, those of model i from ``nearStarts[i]`` on."""
    near = read_nearest(atlas, base, "input")
    highest = max(row_of, default=0)
    rows = np.full(highest + 1, -1, dtype=np.int64)
    rows[list(row_of)] = list(row_of.values())
    both = (near.models <= highest) & (near.neighbours <= highest)
    mine = np.where(both, rows[np.minimum(near.models, highest)], -1)
    theirs = np.where(both, rows[np.minimum(near.neighbours, highest)], -1)
    order = np.arange(len(mine)) - np.searchsorted(near.models, near.models, side="left")  # 0 for the nearest
    kept = (mine >= 0) & (theirs >= 0) & (order < NEIGHBOURS)
    starts = np.concatenate([[0], np.cumsum(np.bincount(mine[kept], minlength=len(row_of)))])
    return {
        "nearStarts": starts.astype(np.uint32),
        "near": theirs[kept].astype(np.int32),
        "similarities": near.similarities[kept].astype(np.float32),
        "shares": near.coded[kept].astype(np.float32),
    }


def _parents(
    atlas: AtlasReader, base: str, ids: Sequence[int], row_of: Mapping[int, int]
) -> list[list[list[Any]]] | None:
    """As on the map's page: [row, or -1 for one that is not indexed, name, how] for each parent."""
    found = read_parents(atlas, base)
    if not found:
        return None
    return [
        [
            [-1 if one.model_id is None else row_of.get(one.model_id, -1), shown(one.model or base), one.words]
            for one in found.get(identity, ())
        ]
        for identity in ids
    ]


def _floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
