"""The data of the map's page and of `query browse`: one format, read by the same scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.console.messages import clean
from indexer.names import is_hub_id
from query.figures import THEMES
from query.map.coloring import LEGEND, ColorGroups, Coloring, Scale
from query.map.groups import Places, group_discs
from query.map.neighbours import Parent

_DIGITS = 5  # of a position in the plane: more than any screen shows
_LONGEST = 300  # characters of one string


def payload(
    *,
    names: Sequence[str],
    places: Places,
    facets: list[dict[str, Any]],
    numbers: list[dict[str, Any]],
    colorings: list[dict[str, Any]],
    neighbours: list[list[float]],
    backgrounds: list[list[float | None]],
    parents: list[list[list[Any]]] | None,
    hub: str,
    axes: Sequence[str] | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    """JSON-ready; every list has an entry for each model. ``places`` (n, 2) are NaN for a model that is on no map.

    ``neighbours``: for each model [row, cosine, row, cosine, …], the nearest first; ``backgrounds``: for each of them
    the share of pairs of unrelated models that are at least as similar, −n if none of n pairs is, or None.
    """
    is_placed: list[bool] = np.isfinite(places).all(axis=1).tolist()  # type: ignore[assignment]
    return {
        "models": [shown(name) for name in names],
        "onHub": [is_hub_id(name) for name in names],
        "x": [_rounded(x) if there else None for x, there in zip(places[:, 0], is_placed, strict=True)],
        "y": [_rounded(y) if there else None for y, there in zip(places[:, 1], is_placed, strict=True)],
        "facets": facets,
        "numbers": numbers,
        "neighbours": neighbours,
        "backgrounds": None if all(one is None for row in backgrounds for one in row) else backgrounds,
        "parents": parents,
        "hub": hub,
        "colorings": colorings,
        "legend": LEGEND,
        "themes": {name: asdict(theme) for name, theme in THEMES.items()},
        "axes": list(axes) if axes else None,
        "notes": list(notes),
    }


def facet(name: str, values: Sequence[str | None], none: str = "") -> dict[str, Any]:
    """A property to filter by: for each model the index of its value in ``names``, -1 for None."""
    names: dict[str, int] = {}
    codes = [-1 if value is None else names.setdefault(value, len(names)) for value in values]
    return {"name": name, "names": [shown(value) for value in names], "codes": codes, "none": none, "many": False}


def facet_of_many(name: str, values: Sequence[Sequence[str]], none: str) -> dict[str, Any]:
    """The same for a property with several values per model."""
    names: dict[str, int] = {}
    codes = [[names.setdefault(value, len(names)) for value in row] for row in values]
    return {"name": name, "names": [shown(value) for value in names], "codes": codes, "none": none, "many": True}


def number(scale: Scale) -> dict[str, Any]:
    """Numbers to filter by, None where not known."""
    return {
        "name": scale.column,
        "kind": scale.kind,
        "low": scale.low,
        "high": scale.high,
        "values": list(scale.values),
    }


def coloring_data(coloring: Coloring, places: Places) -> dict[str, Any]:
    """A colouring; ``places`` (n, 2) give the discs beside which the names of groups are written."""
    named = {"column": coloring.column, "none": coloring.none}
    if isinstance(coloring, ColorGroups):
        placed = np.isfinite(places).all(axis=1)
        groups = [[shown(group.group), group.models] for group in coloring.groups]
        discs = [
            one and [_rounded(one.x), _rounded(one.y), _rounded(one.radius)]
            for one in group_discs(places[placed], np.asarray(coloring.codes)[placed].tolist(), len(coloring.shown))
        ]
        return {"kind": "groups", "groups": groups, "codes": list(coloring.codes), "discs": discs, **named}
    return {"kind": coloring.kind, "values": list(coloring.values), "low": coloring.low, "high": coloring.high, **named}


def parents_data(
    parents: Mapping[int, Sequence[Parent]], ids: Sequence[int], base: str
) -> list[list[list[Any]]] | None:
    """The parents of each model as [row, or -1 if it is not in ``ids``, name, how]; None without any lineage."""
    if not parents:
        return None
    row_of = {identity: row for row, identity in enumerate(ids)}
    return [
        [
            [-1 if one.model_id is None else row_of.get(one.model_id, -1), shown(one.model or base), one.words]
            for one in parents.get(identity, ())
        ]
        for identity in ids
    ]


def short_share(share: float | None) -> float | None:
    """A background with three significant digits."""
    return None if share is None or np.isnan(share) else float(f"{share:.3g}")


def shown(text: str) -> str:
    """A string from the Hub as a page may show it."""
    return clean(text)[:_LONGEST]


def _rounded(place: float | np.floating[Any] | NDArray[Any]) -> float:
    return float(f"{place:.{_DIGITS}g}")
