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
    """Whether the weights stand on few levels: 8-bit steps of a row's largest entry, or 16 levels a block of 64.

    All matrices must stand on the same grid, so the first one without any settles it.
    """
    found: Grid | None = None
    for weight in parts.weights.values():
        if weight.any():
            grid = _grid(weight, SPACING[parts.precision])
            if grid is None or found not in (None, grid):
                return None
            found = grid
    return found


def _grid(weight: NDArray[np.float32], spacing: float) -> Grid | None:
    for axis in (1, 0):
        rows = weight if axis == 1 else weight.T
        # A few rows refuse what was never quantised, which is nearly everything, at a small part of the cost.
        few = rows[:: max(len(rows) // FEW_ROWS, 1)]
        if _level_blocks(few) > 0.5 and _level_blocks(rows) > 0.99:
            return Grid("4bit", axis)
        if _step_share(few)[0] > 0.6:
            share, off = _step_share(rows)
            # A part may not hold its row's largest entry: only whole rows can be told.
            if share > 0.9 and off < max(0.02, 8 * spacing):
                return Grid("int8", axis)
    return None


def _level_blocks(rows: NDArray[np.float32]) -> float:
    """The share of blocks that hold no more than 16 different numbers."""
    if rows.shape[1] % BLOCK:
        return 0.0
    blocks = np.sort(rows.reshape(-1, BLOCK), axis=1)
    return float(np.mean(1 + np.count_nonzero(np.diff(blocks, axis=1), axis=1) <= 16))


def _step_share(rows: NDArray[np.float32]) -> tuple[float, float]:
    """The share of entries near a step of 1/127 of the row's largest, and how far off those beside zero are."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    steps = rows / np.where(largest == 0, 1, largest / 127)
    off = np.abs(steps - steps.round())
    moved = off[np.abs(steps) > 0.5]
    return float(np.mean(off < 0.13)), float(np.median(moved)) if moved.size else np.inf


FEW_ROWS = 16
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
