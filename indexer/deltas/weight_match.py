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
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
Statistic = Literal["rows", "columns", "angles", "matched rows", "sorted rows"]

# A statistic is evidence for a base from this share on of the way from its null to its value for the base itself.
# Unrelated models of one shape reach .03; a base after noise as large as its weights reaches .6 and more.
LEAST_EFFECT = 0.2
_TINY = 1e-12
# Sorted rows whose nearest neighbour is so many times nearer than the second (squared distances) are recognised.
_CLEARLY_NEARER = 3.0
# With this effect of the first statistics the others need not be computed.
_BEYOND_DOUBT = 0.95
# With fewer layers to choose from, the best of them means nothing.
_FEWEST_LAYERS = 3


@dataclass(frozen=True)
class LayerRows:
    """One matrix (out, in) of one layer: ``rows`` (k, in) of it, at ``places`` (k,) among its rows.

    ``reads``: whether its columns are coordinates of the residual stream, so that another basis of that leaves the
    angles between its rows as they are.
    """

    layer: int
    family: str
    rows: Rows
    places: NDArray[np.int64]
    reads: bool = True


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


def _of_rows(rows: Rows, base_rows: Rows) -> float:
    return float(np.mean(_cosines(_centred(rows), _centred(base_rows))))


def _of_columns(rows: Rows, base_rows: Rows) -> float:
    """Scales of columns do not matter."""
    return float(np.mean(_cosines(_centred(rows).T, _centred(base_rows).T)))


def _of_angles(rows: Rows, base_rows: Rows) -> float:
    """The correlation of the angles between rows: no rotation or permutation of their columns changes them."""
    above = np.triu_indices(len(rows), 1)
    first, second = (unit @ unit.T for unit in (_unit(_centred(_unit(rows))), _unit(_centred(_unit(base_rows)))))
    return _correlation(first[above], second[above])


def _of_matched_rows(rows: Rows, base: Rows) -> float:
    """The largest cosine of each row with any row of the base: rows may be permuted."""
    return float(np.mean(np.max(_unit(_centred(rows)) @ base.T, axis=1)))


def _of_sorted_rows(rows: Rows, base: Rows) -> float:
    """The share of rows whose sorted values are those of one row of the base: rows and columns may be permuted."""
    first = _sorted(rows)
    squares = np.sum(first**2, axis=1)[:, None] + np.sum(base**2, axis=1)[None] - 2.0 * (first @ base.T)
    nearest, next_nearest = np.partition(squares, 1, axis=1)[:, :2].T
    return float(np.mean(next_nearest > _CLEARLY_NEARER * np.maximum(nearest, _TINY)))


def _sorted(rows: Rows) -> Rows:
    return np.sort(np.abs(_unit(rows)), axis=1)


def _of_whole(rows: Rows) -> Rows:
    return _unit(_centred(rows))


_STATISTICS: Mapping[Statistic, Callable[[Rows, Rows], float]] = {
    "rows": _of_rows,
    "columns": _of_columns,
    "matched rows": _of_matched_rows,
    "sorted rows": _of_sorted_rows,
    "angles": _of_angles,
}
# Those that look for rows of a model among all of a matrix, and what they are compared with.
_OF_WHOLE: Mapping[Statistic, Callable[[Rows], Rows]] = {"matched rows": _of_whole, "sorted rows": _sorted}
# The meaning of each statistic, the simplest first. The first whose effect reaches this share of the largest effect is
# chosen: if only the attention's rows stayed where they were, "rows" has an effect too, but a smaller one.
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


class BaseWeights(Protocol):
    """The matrices of a base (out, in), read as they are needed."""

    def layers(self, family: str) -> Sequence[int]:
        """The layers that have such a matrix, ascending."""

    def rows(self, layer: int, family: str, places: NDArray[np.int64]) -> Rows | None:
        """Its rows at ``places``; None if it has other shapes than that of the model."""

    def whole(self, layer: int, family: str, *, is_sorted: bool = False) -> Rows | None:
        """All of it; None if that would take too long, also to sort. What is left out is not compared."""


class Arrays(dict[tuple[int, str], Rows]):
    """A base in memory, by layer and family."""

    def layers(self, family: str) -> Sequence[int]:
        """See ``BaseWeights``."""
        return sorted(layer for layer, name in self if name == family)

    def rows(self, layer: int, family: str, places: NDArray[np.int64]) -> Rows | None:
        """See ``BaseWeights``."""
        return self[layer, family][places] if places.max(initial=0) < len(self[layer, family]) else None

    def whole(self, layer: int, family: str, *, is_sorted: bool = False) -> Rows | None:
        """See ``BaseWeights``."""
        return self[layer, family]


def match_weights(model: Sequence[LayerRows], base: BaseWeights) -> WeightMatch:
    """Compare rows of a model with a base.

    Args:
        model: some rows of several matrices; of each family the same layers.
        base: its matrices, of these families at least.

    Raises ValueError if there is nothing to compare.
    """
    layers = sorted({layer_rows.layer for layer_rows in model})
    families = sorted({layer_rows.family for layer_rows in model})
    shared = sorted({layer for family in families for layer in base.layers(family)})
    if not model or not shared:
        raise ValueError("the base has none of the model's matrices")
    # First with the same layers: that settles nearly all. Then with all, among which others may have been moved.
    same_layers = [layer for layer in layers if layer in shared]
    tables: dict[Statistic, _Table] = {}
    comparison = _Comparison(model, base, layers, families)
    if len(same_layers) == len(layers):
        tables["rows"] = comparison.table("rows", same_layers)
    if "rows" not in tables or tables["rows"].effect < _BEYOND_DOUBT:
        for name in _STATISTICS:
            tables[name] = comparison.table(name, (same_layers or shared) if name in _OF_WHOLE else shared)
            if tables[name].effect >= _BEYOND_DOUBT:
                break
    effects = {name: table.effect for name, table in tables.items()}
    largest = max(effects.values())
    statistic = next((name for name in MEANINGS if effects.get(name, 0.0) >= _SHARES[name] * largest), None)
    statistic = statistic if largest >= LEAST_EFFECT else None
    return WeightMatch(
        {str(name): effect for name, effect in effects.items()},
        statistic,
        tables[statistic].nearest if statistic is not None else {},
    )


@dataclass(frozen=True)
class _Table:
    """A statistic for each layer of the model (rows) with each of the base (columns).

    ``null``: values of what is not the same, if the layers alone do not show that; ``own``: of the base with itself.
    """

    layers: Sequence[int]
    columns: Sequence[int]
    values: NDArray[np.float64]
    null: float | None
    own: float

    @property
    def effect(self) -> float:
        """On the scale from what is not the same (0) to the base with itself (1).

        Each layer is compared with itself or, because layers may have been moved, with the layer most like it.
        """
        if not np.isfinite(self.values).any() or self.own <= 0:
            return 0.0
        effects = [self._of_best()]
        is_same = np.equal.outer(np.array(self.layers), np.array(self.columns))
        if is_same.any(axis=1).all():
            off_diagonal = self.values[~is_same]
            off_diagonal = off_diagonal[np.isfinite(off_diagonal)]
            null = self.null if self.null is not None else float(np.median(off_diagonal)) if len(off_diagonal) else 0.0
            effects.append((float(np.nanmean(self.values[is_same])) - null) / max(self.own - null, _TINY))
        return max(effects)

    def _of_best(self) -> float:
        """Of each layer with the layer that is most like it; 0 if that is not clearly one layer."""
        if len(self.columns) < _FEWEST_LAYERS or not np.isfinite(self.values).all():
            return 0.0
        ordered = np.sort(self.values, axis=1)
        null = float(np.median(self.values))
        return float((np.mean(ordered[:, -1]) - np.mean(ordered[:, -2])) / max(self.own - null, _TINY))

    @property
    def nearest(self) -> dict[int, int]:
        """For each layer of the model the base's that is most like it."""
        return {
            layer: self.columns[int(np.nanargmax(values))]
            for layer, values in zip(self.layers, self.values, strict=True)
            if np.isfinite(values).any()
        }


class _Comparison:
    """Statistics of one model and one base; what is computed of a matrix of the base is kept."""

    def __init__(
        self, model: Sequence[LayerRows], base: BaseWeights, layers: Sequence[int], families: Sequence[str]
    ) -> None:
        self._model, self._base = model, base
        self._layers, self._families = layers, families
        self._prepared: dict[tuple[Statistic, int, str], Rows | None] = {}

    def table(self, name: Statistic, columns: Sequence[int]) -> _Table:
        """See ``_Table``; NaN where nothing can be compared."""
        statistic = _STATISTICS[name]
        order = np.random.default_rng(0)
        values = np.full((len(self._layers), len(columns), len(self._families)), np.nan)
        itself, mixed = [], []
        reading = [layer_rows for layer_rows in self._model if layer_rows.reads] if name == "angles" else []
        for layer_rows in reading or self._model:
            row, number = self._layers.index(layer_rows.layer), self._families.index(layer_rows.family)
            for column, layer in enumerate(columns):
                if layer not in self._base.layers(layer_rows.family):
                    continue
                base_rows = self._of_base(name, layer, layer_rows)
                if base_rows is None or base_rows.shape[-1] != layer_rows.rows.shape[-1]:
                    continue
                values[row, column, number] = statistic(layer_rows.rows, base_rows)
                if layer != layer_rows.layer and len(columns) > 1:
                    continue
                base_own_rows = self._base.rows(layer, layer_rows.family, layer_rows.places)
                if base_own_rows is not None:
                    itself.append(statistic(base_own_rows, base_rows))
                if len(columns) == 1 and name != "sorted rows":
                    # A single layer has no other layers as null: its rows are compared with each other instead.
                    turned = (
                        layer_rows.rows[:, order.permutation(layer_rows.rows.shape[1])] if name in _OF_WHOLE else None
                    )
                    mixed.append(
                        statistic(np.roll(layer_rows.rows, 1, axis=0) if turned is None else turned, base_rows)
                    )
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a layer may have no family of another's
            means = np.nanmean(values, axis=2)
        null = float(np.mean(mixed)) if mixed else None
        return _Table(self._layers, columns, means, null, float(np.mean(itself)) if itself else 1.0)

    def _of_base(self, name: Statistic, layer: int, layer_rows: LayerRows) -> Rows | None:
        """What the rows of a model are compared with."""
        if name not in _OF_WHOLE:
            return self._base.rows(layer, layer_rows.family, layer_rows.places)
        key = name, layer, layer_rows.family
        if key not in self._prepared:
            whole = self._base.whole(layer, layer_rows.family, is_sorted=name == "sorted rows")
            self._prepared[key] = None if whole is None else _OF_WHOLE[name](whole)
        return self._prepared[key]


def _centred(rows: Rows) -> Rows:
    """Without the mean row, which layers of unrelated networks may have in common."""
    return np.asarray(rows - rows.mean(axis=0))


def _unit(rows: Rows) -> Rows:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), _TINY))


def _correlation(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    first, second = first - first.mean(), second - second.mean()
    return float(first @ second / max(float(np.linalg.norm(first) * np.linalg.norm(second)), _TINY))
