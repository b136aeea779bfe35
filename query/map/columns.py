"""Columns of the pages: what models are filtered, coloured and sorted by, as the scripts read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from indexer.console.messages import clean
from query.map.coloring import ColorGroups, Coloring, Scale
from query.map.heaps import Places, heaps

_DIGITS = 5  # of a place in the plane: finer than any screen
_LONGEST = 300  # characters of one string


def facet(name: str, values: Sequence[str | None], none: str = "") -> dict[str, Any]:
    """What models can be filtered by: of each the place of its value in ``names``, -1 where it has none."""
    names: dict[str, int] = {}
    codes = [-1 if value is None else names.setdefault(value, len(names)) for value in values]
    return {"name": name, "names": [shown(value) for value in names], "codes": codes, "none": none, "many": False}


def facet_of_many(name: str, values: Sequence[Sequence[str]], none: str) -> dict[str, Any]:
    """The same where a model can have several values."""
    names: dict[str, int] = {}
    codes = [[names.setdefault(value, len(names)) for value in row] for row in values]
    return {"name": name, "names": [shown(value) for value in names], "codes": codes, "none": none, "many": True}


def number(scale: Scale) -> dict[str, Any]:
    """Numbers that models can be filtered by, null where one is not known."""
    return {
        "name": scale.column,
        "kind": scale.kind,
        "low": scale.low,
        "high": scale.high,
        "values": list(scale.values),
    }


def coloring_data(coloring: Coloring, places: Places) -> dict[str, Any]:
    """What colours the models: ``places`` (n, 2) are where they lie, for the names beside their groups.

    Models whose place is NaN are on no map.
    """
    named = {"column": coloring.column, "none": coloring.none}
    if isinstance(coloring, ColorGroups):
        placed = np.isfinite(places).all(axis=1)
        groups = [[shown(group.group), group.models] for group in coloring.groups]
        found = [
            one and [rounded(one.x), rounded(one.y), rounded(one.radius)]
            for one in heaps(places[placed], np.asarray(coloring.codes)[placed].tolist(), len(coloring.shown))
        ]
        return {"kind": "groups", "groups": groups, "codes": list(coloring.codes), "heaps": found, **named}
    return {"kind": coloring.kind, "values": list(coloring.values), "low": coloring.low, "high": coloring.high, **named}


def shown(text: str) -> str:
    """A string from the Hub as a page may show it."""
    return clean(text)[:_LONGEST]


def rounded(place: float) -> float:
    """A place in the plane."""
    return float(f"{place:.{_DIGITS}g}")
