"""Measurements on the weights of two or more models; the rules decide by them.

All arrays are float32 parts of block matrices, by the names of their deltas. ``m`` is the asked model, ``p`` another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from indexer.records.parts import ModelParts

Floats = NDArray[np.float64]
Weights = Mapping[str, NDArray[np.float32]]

# The largest relative distance between neighbouring numbers of each dtype.
SPACING = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}


# ---- two models ----


def energy(matrices: Weights) -> float:
    """Σ ‖·‖² over the matrices."""
    return sum(float(np.vdot(matrix, matrix)) for matrix in matrices.values())


def cosine_with(weights: Weights, base: Weights) -> float:
    """The cosine of weights with the base's over all matrices; 0 if one of them is zero."""
    inner = sum(float(np.vdot(weight, base[name])) for name, weight in weights.items())
    size = math.sqrt(energy(weights) * energy({name: base[name] for name in weights}))
    return inner / size if size else 0.0


def rounding(parts: ModelParts) -> float:
    """The expected energy of the error of storing ``parts`` in its precision: numbers are ε·|w| apart."""
    spacing = SPACING[parts.precision]
    # Uniform in ±half a spacing; the spacing is constant between powers of two, 0.54 of ε²w² on average.
    return 0.54 / 12 * spacing**2 * energy(parts.weights)


@dataclass(frozen=True)
class ParentFit:
    """The asked model against one parent with coefficient 1; D = W_m − W_p.

    Attributes:
        residual: ‖D‖² / ‖δ_m‖², less rounding.
        cosine: of D with δ_p; near 0 if m was continued from p.
        reverse: of −D with δ_m; near 0 if p was continued from m.
        equal: share of the matrices changed by p that are equal in m.
    """

    residual: float
    cosine: float
    reverse: float
    equal: float

    @property
    def is_upright(self) -> bool:
        """Whether m was continued from p rather than p from m, by these cosines."""
        return abs(self.cosine) < abs(self.reverse)


def parent_fit(m: ModelParts, p: ModelParts) -> ParentFit:
    """See :class:`ParentFit`."""
    difference_square = along = reverse = p_square = m_square = 0.0
    changed = equal = 0
    for name, delta in m.deltas.items():
        parent = p.deltas[name]
        difference = m.weights[name] - p.weights[name]
        square = float(np.vdot(parent, parent))
        difference_square += float(np.vdot(difference, difference))
        along += float(np.vdot(difference, parent))
        reverse -= float(np.vdot(difference, delta))
        p_square += square
        m_square += float(np.vdot(delta, delta))
        if square:
            changed += 1
            equal += not difference.any()
    noise = rounding(m) + rounding(p) if m.precision != p.precision else 0.0
    return ParentFit(
        residual=max(difference_square - noise, 0.0) / m_square if m_square else 0.0,
        cosine=along / np.sqrt(difference_square * p_square) if difference_square and p_square else 0.0,
        reverse=reverse / np.sqrt(difference_square * m_square) if difference_square and m_square else 0.0,
        equal=equal / changed if changed else 0.0,
    )


def equal_share(m: ModelParts, p: ModelParts) -> float:
    """The share of entries that are equal when p is stored in m's precision."""
    equal = total = 0
    for name, weight in m.weights.items():
        equal += int(np.count_nonzero(as_stored(p.weights[name], m.precision) == weight))
        total += weight.size
    return equal / total if total else 0.0


def as_stored(values: NDArray[np.float32], precision: str) -> NDArray[np.float32]:
    """Float32 values after a round trip through a narrower dtype (to nearest, ties to even)."""
    if precision == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    if precision == "bfloat16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        return (rounded & np.uint32(0xFFFF0000)).view(np.float32)
    return values


# ---- sums of several models' changes ----


@dataclass(frozen=True)
class Combination:
    """The asked model as a weighted sum of others' changes.

    Attributes:
        members: numbers of the other models.
        weights: (matrices, members).
        residual: share of ‖δ_m‖² that is not explained.
        base_error: for SLERP, the distance of the base's weight from the value that the other two imply; else 0.
    """

    members: tuple[int, ...]
    weights: Floats
    residual: float
    base_error: float = 0.0

    @property
    def mean(self) -> Floats:
        """Each member's weight, averaged over the matrices."""
        return self.weights.mean(axis=0)

    @property
    def spread(self) -> float:
        """The largest standard deviation of a weight over the matrices: near 0 for one recipe for all matrices."""
        return float(self.weights.std(axis=0).max())


class Combinations:
    """Least-squares explanations of the asked model by some of the others, from inner products alone.

    δ = W − W_base is taken against the ``base`` as it is, not as rounded, so that rounding of the parents cancels.
    """

    def __init__(self, m: ModelParts, parents: Sequence[ModelParts], base: Weights) -> None:
        self._count = len(parents)
        self._gram = np.zeros((len(m.deltas), self._count + 2, self._count + 2))
        for row, name in enumerate(m.deltas):
            changes = [(parts.weights[name] - base[name]).ravel() for parts in (m, *parents)]
            stacked = np.stack([*changes, base[name].ravel()]).astype(np.float64)
            self._gram[row] = stacked @ stacked.T
        self._total = float(self._gram[:, 0, 0].sum())

    @classmethod
    def of_products(cls, grams: Floats) -> Combinations:
        """From inner products (matrices, 1 + others, 1 + others) of the asked model, which is first, and the others."""
        sums = cls.__new__(cls)
        sums._count = grams.shape[1] - 1
        sums._gram = np.pad(grams, ((0, 0), (0, 1), (0, 1)))  # there is no base for spherical sums
        sums._total = float(grams[:, 0, 0].sum())
        return sums

    def by_matrix(self, members: Sequence[int], *, spherical: bool = False) -> Combination:
        """The best sum of these members (numbered from 0), each matrix with its own weights.

        ``spherical``: a sum of the members' weights rather than of their changes. SLERP gives a · W_p + b · W_q with
        a + b ≠ 1, so the sum contains a + b − 1 times the base in addition to the two changes.
        """
        rows = [member + 1 for member in members] + ([self._count + 1] if spherical else [])
        weights, unexplained_by_matrix = _least_squares(self._gram, rows)
        unexplained = float(unexplained_by_matrix.sum())
        error = float(np.abs(weights[:, :-1].sum(axis=1) - 1 - weights[:, -1]).max()) if spherical else 0.0
        of_members = weights[:, :-1] if spherical else weights
        return Combination(tuple(members), of_members, unexplained / self._total if self._total else 0.0, error)

    def one_recipe(self, members: Sequence[int]) -> Combination:
        """The best sum with the same weights in all matrices. Only this identifies weights that parents share."""
        weights, unexplained = _least_squares(self._gram.sum(axis=0, keepdims=True), [member + 1 for member in members])
        tiled = np.tile(weights, (len(self._gram), 1))
        return Combination(tuple(members), tiled, float(unexplained[0]) / self._total if self._total else 0.0)

    def all_up_to(self, size: int) -> list[Combination]:
        """All choices of up to ``size`` members: with one recipe, by matrix, and for pairs by SLERP."""
        sums = []
        for count in range(1, min(size, self._count) + 1):
            for members in combinations(range(self._count), count):
                sums += [self.one_recipe(members), self.by_matrix(members)]
                sums += [self.by_matrix(members, spherical=True)] if count == 2 else []
        return sums


def _least_squares(grams: Floats, rows: Sequence[int]) -> tuple[Floats, Floats]:
    """For each matrix of inner products, the weights of ``rows`` that explain row 0 best, and the unexplained energy.

    ``grams``: (matrices, models, models). Returns the weights (matrices, rows) and the energies (matrices,).
    """
    inner, right = grams[:, rows][:, :, rows], grams[:, rows, 0]
    norms = np.sqrt(np.einsum("kii->ki", inner))
    scale = np.where(norms > 0, norms, 1)  # a matrix that a model did not change has no norm, and gets no weight
    inverse = np.linalg.pinv(inner / (scale[:, :, None] * scale[:, None, :]), rcond=1e-12)
    w = np.einsum("kij,kj->ki", inverse, right / scale) / scale
    explained = 2 * np.einsum("ki,ki->k", w, right) - np.einsum("ki,kij,kj->k", w, inner, w)
    return w, np.maximum(grams[:, 0, 0] - explained, 0.0)


def residual(m: ModelParts, parents: Sequence[ModelParts], base: Weights) -> dict[str, NDArray[np.float32]]:
    """The residual of δ_m after the best sum of the others' changes; every matrix has its own weights."""
    best = Combinations(m, parents, base).by_matrix(range(len(parents)))
    residuals = {}
    for row, (name, delta) in enumerate(m.deltas.items()):
        unexplained = delta.copy()
        for weight, parent in zip(best.weights[row], parents, strict=True):
            unexplained -= np.float32(weight) * parent.deltas[name]
        residuals[name] = unexplained
    return residuals


def ranks_of(
    differences: Iterable[NDArray[np.float32]], noise: float, max_rank: float = np.inf
) -> list[tuple[int, float]]:
    """The rank of every matrix that is not zero, and the energy of its last singular value over that of the next.

    ``noise``: the energy per number up to which a matrix counts as zero. Empty if a matrix has a higher rank than
    ``max_rank``; the matrices after it are not decomposed.
    """
    ranks = []
    for difference in differences:
        square = float(np.vdot(difference, difference))
        if square <= 4 * noise * difference.size:
            continue
        values = np.linalg.svd(difference, compute_uv=False).astype(np.float64) ** 2
        allowed_energy = max(4 * noise * difference.size, 1e-7 * square)
        tail_energies = np.cumsum(values[::-1])[::-1]
        rank = int(np.count_nonzero(tail_energies > allowed_energy))
        if rank > max_rank:
            return []
        drop = values[rank - 1] / max(values[rank], 1e-300) if 0 < rank < len(values) else 1.0
        ranks.append((rank, float(drop)))
    return ranks


# ---- sparse merges (TIES, DARE) ----

# Ratios this close to each other, relatively, count as equal.
_RATIO_WIDTH = 2e-3
_MIN_RATIOS = 200


class SparseMerges:
    """The asked model entry by entry. A sparse merge (TIES, DARE) has many entries of a parent, times one number.

    Training, in contrast, changes every entry by a different factor.
    """

    def __init__(self, m: ModelParts, base: Weights) -> None:
        self._names, self._base, self._spacing = list(m.deltas), base, SPACING[m.precision]
        self._change = self._changes_of(m)
        self._size = np.concatenate([np.abs(m.weights[name]).ravel() for name in self._names])
        # Entries that are the base's, or would be once the base is stored in this precision.
        self.unchanged: NDArray[np.bool_] = np.abs(self._change) <= self._spacing * self._size * 0.51

    def _changes_of(self, parts: ModelParts) -> NDArray[np.float32]:
        return np.concatenate([(parts.weights[name] - self._base[name]).ravel() for name in self._names])

    def masked(self, deltas: Weights, mask: NDArray[np.bool_]) -> dict[str, NDArray[np.float32]]:
        """The deltas with zeros outside the mask ``mask``."""
        masked, start = {}, 0
        for name in self._names:
            size = deltas[name].size
            masked[name] = deltas[name] * mask[start : start + size].reshape(deltas[name].shape)
            start += size
        return masked

    def fixed_multiple(self, p: ModelParts, among: NDArray[np.bool_]) -> tuple[float, float, NDArray[np.bool_]]:
        """The commonest ratio of m's entries to p's, in the mask ``among`` and where rounding leaves the ratio precise.

        Returns the share of comparable entries with this ratio, how much denser it is than the ratios around it, and a
        mask of these entries.
        """
        changes_p = self._changes_of(p)
        blur = self._spacing * self._size
        sharp = (
            among & (np.abs(changes_p) > blur / _RATIO_WIDTH) & (np.abs(changes_p) > 0.2 * np.median(np.abs(changes_p)))
        )
        no_multiple = 0.0, 0.0, np.zeros(len(among), dtype=bool)
        if sharp.sum() < _MIN_RATIOS:
            return no_multiple
        ratios = np.full(len(among), np.nan)
        np.divide(self._change, changes_p, out=ratios, where=sharp)
        logs = np.sort(np.log(ratios[(ratios > 0.02) & (ratios < 8)]))
        if len(logs) < _MIN_RATIOS:
            return no_multiple
        counts = np.searchsorted(logs, logs + _RATIO_WIDTH) - np.arange(len(logs))
        best = int(counts.argmax())
        middle = float(np.median(logs[best : best + counts[best]]))
        nearby_count = np.searchsorted(logs, middle + 10 * _RATIO_WIDTH) - np.searchsorted(
            logs, middle - 10 * _RATIO_WIDTH
        )
        background = max((nearby_count - counts[best]) / 19, 1.0)
        multiple = float(np.exp(middle))
        explained = among & (np.abs(self._change - multiple * changes_p) <= 2 * blur + _RATIO_WIDTH * np.abs(changes_p))
        return float(counts[best] / sharp.sum()), float(counts[best] / background), explained


# ---- quantisation ----

_FEW_ROWS = 16
_BLOCK = 64


# The grid of a quantised copy that was saved dense: int8 or 4bit, and the axis it runs along.
Grid = tuple[str, int]


def quantisation_of(parts: ModelParts) -> Grid | None:
    """The grid of the weights: 8-bit steps of a row's largest entry, or 16 levels for each block of 64.

    All matrices must have the same grid, so the first one without a grid decides.
    """
    shared: Grid | None = None
    for weight in parts.weights.values():
        if weight.any():
            grid = _grid_of(weight, SPACING[parts.precision])
            if grid is None or shared not in (None, grid):
                return None
            shared = grid
    return shared


def _grid_of(weight: NDArray[np.float32], spacing: float) -> Grid | None:
    for axis in (1, 0):
        rows = weight if axis == 1 else weight.T
        # Nearly all weights were never quantised; a few rows rule them out at a small part of the cost.
        few_rows = rows[:: max(len(rows) // _FEW_ROWS, 1)]
        if _share_of_level_blocks(few_rows) > 0.5 and _share_of_level_blocks(rows) > 0.99:
            return "4bit", axis
        if _share_on_steps(few_rows)[0] > 0.6:
            share, offset = _share_on_steps(rows)
            # A part may lack the largest entry of its row: only whole rows show the grid.
            if share > 0.9 and offset < max(0.02, 8 * spacing):
                return "int8", axis
    return None


def _share_of_level_blocks(rows: NDArray[np.float32]) -> float:
    """The share of blocks with no more than 16 different numbers."""
    if rows.shape[1] % _BLOCK:
        return 0.0
    blocks = np.sort(rows.reshape(-1, _BLOCK), axis=1)
    return float(np.mean(1 + np.count_nonzero(np.diff(blocks, axis=1), axis=1) <= 16))


def _share_on_steps(rows: NDArray[np.float32]) -> tuple[float, float]:
    """The share of entries near a step of 1/127 of the row's largest, and the median distance of those not at zero."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    steps = rows / np.where(largest == 0, 1, largest / 127)
    offsets = np.abs(steps - steps.round())
    moved = offsets[np.abs(steps) > 0.5]
    return float(np.mean(offsets < 0.13)), float(np.median(moved)) if moved.size else np.inf


def share_on_levels(m: ModelParts, p: Weights, grid: Grid) -> float:
    """The share of m's entries on the level of the grid nearest to p's: 1 where m is p, quantised."""
    form, axis = grid
    equal = total = 0
    for name, weight in m.weights.items():
        rows, rows_p = (weight, p[name]) if axis == 1 else (weight.T, p[name].T)
        total += weight.size
        if form == "int8":
            step = np.abs(rows).max(axis=1, keepdims=True) / 127
            step = np.where(step == 0, 1, step)
            equal += int(np.count_nonzero(np.abs(rows / step - (rows_p / step)) < 0.52))
            continue
        for block, block_p in zip(rows.reshape(-1, _BLOCK), rows_p.reshape(-1, _BLOCK), strict=True):
            levels = np.unique(block)
            upper = np.searchsorted(levels, block_p).clip(1, max(len(levels) - 1, 1))
            low, high = levels[upper - 1], levels[np.minimum(upper, len(levels) - 1)]
            equal += int(np.count_nonzero(np.where(block_p - low <= high - block_p, low, high) == block))
    return equal / total if total else 0.0
