"""A profile in a sentence: what is gone, from where on, and against what."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

LEAST_RATIO = 1.2
ERRORS = 2.0  # a difference counts from so many of its standard errors on
KEPT = 0.95
Rows = Sequence[dict[str, Any]]


def sentence(rows: Rows, against: Rows, name: str) -> str:
    """Of a model's layers against those of ``name`` ("its base"); the strongest things first."""
    same = [row["layer"] for row in itertools.takewhile(lambda row: row.get("drift") == 0, rows)]
    if same and len(same) == len(rows):
        return "every layer gives exactly what its base gives."
    told = [f"up to layer {same[-1]} it gives exactly what its base gives"] if same else []
    told += [*_tokens(rows, against, name), *_noise(rows, against, name), *_broader(rows, against, name)]
    return ("; ".join(told) or f"no layer tells it from {name}") + "."


def _tokens(rows: Rows, against: Rows, name: str) -> list[str]:
    """What can be read off, and what descent finds."""
    told = []
    readable = [row["readable"] for row in rows]
    if all(value is not None for value in readable):
        lost = _from_layer(rows, against, "readable", lambda mine, theirs: mine < theirs)
        if min(readable) >= KEPT:
            told.append("keeps its input to the end: every layer can be read off")
        elif lost is not None:
            layer, mine, theirs = lost
            told.append(f"from layer {layer} on less can be read off ({mine:.0%} at the last; {name} {theirs:.0%})")
        else:
            told.append(f"{readable[-1]:.0%} of the tokens can be read off its last layer")
    lost = _from_layer(rows, against, "recovered", lambda mine, theirs: mine < theirs - 0.05)
    if lost is not None:
        layer, mine, theirs = lost
        told.append(f"from layer {layer} on descent finds fewer tokens ({mine:.0%} at the last; {name} {theirs:.0%})")
    return told


def _noise(rows: Rows, against: Rows, name: str) -> list[str]:
    for word, is_otherwise in (
        ("less", lambda mine, theirs: mine * LEAST_RATIO < theirs),
        ("more", lambda mine, theirs: mine > theirs * LEAST_RATIO),
    ):
        found = _from_layer(rows, against, "tolerance", is_otherwise)
        if found is not None:
            layer, mine, theirs = found
            ratio = max(mine, theirs) / max(min(mine, theirs), 1e-9)
            return [f"from layer {layer} on it takes up to {ratio:.1f}× {word} noise to lose a token than in {name}"]
    return []


def _broader(rows: Rows, against: Rows, name: str) -> list[str]:
    for word, is_otherwise in (
        ("more broadly", lambda mine, theirs: mine > theirs * LEAST_RATIO),
        ("more narrowly", lambda mine, theirs: mine * LEAST_RATIO < theirs),
    ):
        found = _from_layer(rows, against, "reach", is_otherwise)
        if found is not None:
            layer, mine, theirs = found
            return [f"from layer {layer} on it looks {word} ({mine:.1f} positions at the last; {name} {theirs:.1f})"]
    return []


def _from_layer(rows: Rows, against: Rows, measure: str, is_otherwise: Any) -> tuple[int, float, float] | None:
    """The first layer from which on all differ, by more than chance, and both values at the last layer."""
    theirs = {row["layer"]: row for row in against}
    first = None
    last = (0.0, 0.0)
    for row in rows:
        other = theirs.get(row["layer"])
        if other is None or row[measure] is None or other[measure] is None:
            return None
        error = ((row[f"{measure}_error"] or 0) ** 2 + (other[f"{measure}_error"] or 0) ** 2) ** 0.5
        differs = is_otherwise(row[measure], other[measure]) and abs(row[measure] - other[measure]) > ERRORS * error
        first = (first if first is not None else row["layer"]) if differs else None
        last = (row[measure], other[measure])
    return None if first is None else (first, *last)
