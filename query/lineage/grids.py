"""What quantisers leave behind in weights that were saved dense again: few levels, and the source rounds to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from query.lineage.evidence import SPACING

if TYPE_CHECKING:
    from indexer.records.parts import ModelParts


@dataclass(frozen=True)
class Grid:
    """Levels that a quantised copy saved dense still stands on: ``form`` is int8 or 4bit, ``axis`` along which."""

    form: str
    axis: int


def grid_of(parts: ModelParts) -> Grid | None:
    """Whether the weights stand on few levels: 8-bit steps of a row's largest entry, or 16 levels a block of 64."""
    found = [_grid(weight, SPACING[parts.precision]) for weight in parts.weights.values() if weight.any()]
    if not found or None in found:
        return None
    return found[0] if all(one == found[0] for one in found) else None


def _grid(weight: NDArray[np.float32], spacing: float) -> Grid | None:
    for axis in (1, 0):
        rows = weight if axis == 1 else weight.T
        if rows.shape[1] % BLOCK == 0:
            blocks = np.sort(rows.reshape(-1, BLOCK), axis=1)
            levels = 1 + np.count_nonzero(np.diff(blocks, axis=1), axis=1)
            if np.mean(levels <= 16) > 0.99:
                return Grid("4bit", axis)
        largest = np.abs(rows).max(axis=1, keepdims=True)
        steps = rows / np.where(largest == 0, 1, largest / 127)
        off = np.abs(steps - steps.round())
        # A part may not hold its row's largest entry: only whole rows can be told.
        if np.median(off[np.abs(steps) > 0.5]) < max(0.02, 8 * spacing) and np.mean(off < 0.13) > 0.9:
            return Grid("int8", axis)
    return None


BLOCK = 64


def level_share(m: ModelParts, p: Mapping[str, NDArray[np.float32]], grid: Grid) -> float:
    """The share of m's entries that stand on the level nearest to p's: 1 where m is p on its grid."""
    same = total = 0
    for name, weight in m.weights.items():
        rows, others = (weight, p[name]) if grid.axis == 1 else (weight.T, p[name].T)
        if grid.form == "int8":
            step = np.abs(rows).max(axis=1, keepdims=True) / 127
            step = np.where(step == 0, 1, step)
            same += int(np.count_nonzero(np.abs(rows / step - (others / step)) < 0.52))
        else:
            for mine, theirs in zip(rows.reshape(-1, BLOCK), others.reshape(-1, BLOCK), strict=True):
                same += int(np.count_nonzero(_nearest(np.unique(mine), theirs) == mine))
        total += weight.size
    return same / total if total else 0.0


def _nearest(levels: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float32]:
    if len(levels) == 1:
        return np.full_like(values, levels[0])
    place = np.searchsorted(levels, values).clip(1, len(levels) - 1)
    low, high = levels[place - 1], levels[place]
    return np.where(values - low <= high - values, low, high)
