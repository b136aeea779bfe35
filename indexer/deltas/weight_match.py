"""Tells whether some rows of a model's matrices come from a base, also if its weights were rearranged since.

Fine-tuning moves rows little. Other changes leave the function of a network as it is, or nearly, and every row
elsewhere: neurons, heads or the residual stream permuted, the residual stream rotated (QuaRot, arXiv 2404.00456),
scales moved from one matrix into the next (SmoothQuant, arXiv 2211.10438). Each has a statistic of its own that it does
not change. Its value for rows of the same layer is compared with its values for the *other* layers of the same two
models, which are the null of just this pair: whatever two unrelated models of one shape have in common (outlying
columns, the scale of rows) is in both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
Statistic = Literal["rows", "columns", "angles", "matched rows", "sorted rows"]

# A statistic speaks for a base from this share on of the way from its null to its value for the base itself. Unrelated
# models of one shape reach .03; what is left of a base after noise as large as its weights is .6 and more.
LEAST_EFFECT = 0.2
_TINY = 1e-12
# Sorted rows whose nearest neighbour is so many times nearer than the second (squared distances) are recognised.
_CLEARLY_NEARER = 3.0
# With this effect of the first statistics the others need not be computed.
_BEYOND_DOUBT = 0.95


@dataclass(frozen=True)
class LayerRows:
    """One matrix (out, in) of one layer: ``rows`` (k, in) of it, at ``places`` (k,) among its rows."""

    layer: int
    family: str
    rows: Rows
    places: NDArray[np.int64]


@dataclass(frozen=True)
class WeightMatch:
    """How a model's rows match those of a base.

    Attributes:
        effects: for each statistic its mean over matrices, on a scale where 0 is the mean of other layers and 1 the
            value of the base itself.
        statistic: the first in the order of ``MEANINGS`` that speaks for the base; None if none does.
        nearest_layers: for each layer of the model that was read, the base's layer that is nearest by that statistic.
    """

    effects: Mapping[str, float]
    statistic: Statistic | None
    nearest_layers: Mapping[int, int]

    @property
    def is_match(self) -> bool:
        """Whether the model descends from the base."""
        return self.statistic is not None

    @property
    def strength(self) -> float:
        """The largest effect: about 0 for an unrelated model, 1 for a copy."""
        return max(self.effects.values())

    @property
    def meaning(self) -> str:
        """What was done to the base's weights besides training, in words."""
        return MEANINGS[self.statistic] if self.statistic else "not derived from it"

    @property
    def moved_layers(self) -> Mapping[int, int]:
        """The layers whose nearest layer of the base is another one: copied, dropped or reordered since."""
        return {layer: nearest for layer, nearest in self.nearest_layers.items() if layer != nearest}


def _cosines(first: Rows, second: Rows) -> NDArray[np.float64]:
    """The cosine of each row with the row at its place."""
    return np.asarray(np.sum(_unit(first) * _unit(second), axis=-1))


def _of_rows(rows: Rows, same: Rows, base: Rows) -> float:
    return float(np.mean(_cosines(_centred(rows), _centred(same))))


def _of_columns(rows: Rows, same: Rows, base: Rows) -> float:
    """Scales of columns do not matter."""
    return float(np.mean(_cosines(_centred(rows).T, _centred(same).T)))


def _of_angles(rows: Rows, same: Rows, base: Rows) -> float:
    """The correlation of the angles between rows: no rotation or permutation of their columns changes them."""
    above = np.triu_indices(len(rows), 1)
    first, second = (unit @ unit.T for unit in (_unit(_centred(_unit(rows))), _unit(_centred(_unit(same)))))
    return _correlation(first[above], second[above])


def _of_matched_rows(rows: Rows, same: Rows, base: Rows) -> float:
    """The largest cosine of each row with any row of the base: rows may be permuted."""
    return float(np.mean(np.max(_unit(_centred(rows)) @ _unit(_centred(base)).T, axis=1)))


def _of_sorted_rows(rows: Rows, same: Rows, base: Rows) -> float:
    """The share of rows whose sorted values are those of one row of the base: rows and columns may be permuted."""
    first, second = (np.sort(np.abs(_unit(values)), axis=1) for values in (rows, base))
    squares = np.sum(first**2, axis=1)[:, None] + np.sum(second**2, axis=1)[None] - 2.0 * (first @ second.T)
    nearest, next_nearest = np.partition(squares, 1, axis=1)[:, :2].T
    return float(np.mean(next_nearest > _CLEARLY_NEARER * np.maximum(nearest, _TINY)))


_STATISTICS: Mapping[Statistic, Callable[[Rows, Rows, Rows], float]] = {
    "rows": _of_rows,
    "columns": _of_columns,
    "matched rows": _of_matched_rows,
    "angles": _of_angles,
    "sorted rows": _of_sorted_rows,
}
# What each statistic speaks for, the simplest first. The first is chosen that explains this share of what the largest
# effect does: if only the attention's rows stayed where they were, "rows" has an effect too, but a smaller one.
MEANINGS: Mapping[Statistic, str] = {
    "rows": "its weights, changed no more than training does",
    "columns": "its weights with other scales",
    "matched rows": "its weights with neurons or heads in another order",
    "sorted rows": "its weights in another order of rows and columns",
    "angles": "its weights in another basis of the residual stream",
}
_SHARES: Mapping[Statistic, float] = {
    "rows": 0.86, "columns": 0.9, "matched rows": 0.6, "sorted rows": 0.9, "angles": 0.6,
}  # fmt: skip


def match_weights(model: Sequence[LayerRows], base: Mapping[tuple[int, str], Rows]) -> WeightMatch:
    """Compare rows of a model with a base.

    Args:
        model: some rows of several matrices; of each family the same layers.
        base: the base's whole matrices (out, in) by layer and family, at least those of ``model``.

    Raises ValueError if there is nothing to compare, or a shape differs.
    """
    layers = sorted({one.layer for one in model})
    families = sorted({one.family for one in model})
    if not model or any((one.layer, one.family) not in base for one in model):
        raise ValueError("a matrix of the model is none of the base's")
    effects: dict[Statistic, float] = {}
    tables: dict[Statistic, NDArray[np.float64]] = {}
    for name in _STATISTICS:
        tables[name], own = _table(name, model, base, layers, families)
        # Layers may have been moved: then the best of each counts, against what the second best reaches.
        effects[name] = max(_effect(tables[name], own), _effect_of_best(tables[name], own))
        if effects[name] >= _BEYOND_DOUBT:
            break
    largest = max(effects.values())
    chosen = next((name for name in MEANINGS if effects.get(name, 0.0) >= _SHARES[name] * largest), None)
    chosen = chosen if largest >= LEAST_EFFECT else None
    nearest: dict[int, int] = {}
    if chosen is not None:
        nearest = {
            layer: layers[int(np.nanargmax(tables[chosen][row, : len(layers)]))] for row, layer in enumerate(layers)
        }
    return WeightMatch(effects, chosen, nearest)


def _table(
    name: Statistic,
    model: Sequence[LayerRows],
    base: Mapping[tuple[int, str], Rows],
    layers: Sequence[int],
    families: Sequence[str],
) -> tuple[NDArray[np.float64], float]:
    """A statistic for each layer of the model (rows) with each of the base (columns), and for the base with itself."""
    statistic = _STATISTICS[name]
    # One layer has no other: what its rows are with their columns in a random order stands for that.
    table = np.full((len(layers), max(2, len(layers)), len(families)), np.nan)
    order = np.random.default_rng(0)
    itself = []
    for one in model:
        row, number = layers.index(one.layer), families.index(one.family)
        whole = base[one.layer, one.family]
        if whole.shape[1] != one.rows.shape[1] or len(one.places) != len(one.rows) or one.places.max() >= len(whole):
            raise ValueError(f"{one.family} of layer {one.layer} has the shape {whole.shape} in the base")
        itself.append(statistic(whole[one.places], whole[one.places], whole))
        if len(layers) == 1 and name != "sorted rows":
            mixed = one.rows[:, order.permutation(one.rows.shape[1])]
            table[row, 1, number] = statistic(mixed, whole[one.places], whole)
        for column, other in enumerate(layers):
            theirs = base.get((other, one.family))
            if theirs is not None and theirs.shape == whole.shape:
                table[row, column, number] = statistic(one.rows, theirs[one.places], theirs)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a layer may have no family of another's
        return np.nanmean(table, axis=2), float(np.mean(itself))


def _effect(table: NDArray[np.float64], own: float) -> float:
    """The mean of layers with themselves on the scale from other layers (0) to the base with itself (1)."""
    others = table[~np.eye(*table.shape, dtype=bool)]
    null = float(np.nanmedian(others)) if np.isfinite(others).any() else 0.0
    return float((np.nanmean(np.diag(table)) - null) / max(own - null, _TINY))


def _effect_of_best(table: NDArray[np.float64], own: float) -> float:
    """As ``_effect``, of each layer with the layer that is most like it; 0 if that is not clearly one layer."""
    if len(table) < 3:
        return 0.0
    if not np.isfinite(table).all():
        return 0.0
    ordered = np.sort(table, axis=1)
    null = float(np.median(table))
    return float((np.mean(ordered[:, -1]) - np.mean(ordered[:, -2])) / max(own - null, _TINY))


def _centred(rows: Rows) -> Rows:
    """Without the mean row, which layers of unrelated networks may have in common."""
    return np.asarray(rows - rows.mean(axis=0))


def _unit(rows: Rows) -> Rows:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), _TINY))


def _correlation(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    first, second = first - first.mean(), second - second.mean()
    return float(first @ second / max(float(np.linalg.norm(first) * np.linalg.norm(second)), _TINY))
