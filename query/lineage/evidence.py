"""What the parts of two or more models say of one another. Numbers only: nothing here decides anything.

All arrays are float32 parts of block matrices, by the names of their deltas; the asked model is ``m``, another ``p``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from indexer.records.parts import ModelParts

Floats = NDArray[np.float64]

# The largest distance of two neighbouring numbers of each dtype, relative to them.
SPACING = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}


@dataclass(frozen=True)
class Single:
    """The asked model against one parent with coefficient 1; D = W_m − W_p.

    ``left``: ‖D‖² / ‖δ_m‖², rounding taken off. ``cosine``: of D with δ_p; near 0 where m was continued from p.
    ``reverse``: of −D with δ_m; near 0 where p was continued from m. ``spread``: of the coefficient of δ_m on δ_p over
    the matrices. ``equal``: share of the matrices that p changed and m has unchanged from p.
    """

    left: float
    cosine: float
    reverse: float
    spread: float
    equal: float


def energy(parts: Mapping[str, NDArray[np.float32]]) -> float:
    """Σ ‖·‖² over the matrices."""
    return sum(float(np.vdot(one, one)) for one in parts.values())


def rounding(parts: ModelParts) -> float:
    """The expected energy of the error that storing ``parts`` in its precision made: the numbers are ε·|w| apart."""
    spacing = SPACING[parts.precision]
    # Uniform in ±half a spacing; the spacing is constant between powers of two, 0.54 of ε²w² on average.
    return 0.54 / 12 * spacing**2 * energy(parts.weights)


def single(m: ModelParts, p: ModelParts) -> Single:
    """One parent with coefficient 1."""
    left = along = back = p_square = m_square = 0.0
    coefficients, changed, equal = [], 0, 0
    for name, delta in m.deltas.items():
        parent = p.deltas[name]
        difference = m.weights[name] - p.weights[name]
        own = float(np.vdot(parent, parent))
        left += float(np.vdot(difference, difference))
        along += float(np.vdot(difference, parent))
        back -= float(np.vdot(difference, delta))
        p_square += own
        m_square += float(np.vdot(delta, delta))
        if own:
            changed += 1
            equal += not difference.any()
            coefficients.append(float(np.vdot(delta, parent)) / own)
    noise = rounding(m) + rounding(p) if m.precision != p.precision else 0.0
    return Single(
        left=max(left - noise, 0.0) / m_square if m_square else 0.0,
        cosine=along / np.sqrt(left * p_square) if left and p_square else 0.0,
        reverse=back / np.sqrt(left * m_square) if left and m_square else 0.0,
        spread=float(np.std(coefficients)) if coefficients else 0.0,
        equal=equal / changed if changed else 0.0,
    )


@dataclass(frozen=True)
class Combination:
    """The asked model as a sum of others' changes: least squares, each matrix by itself.

    ``weights``: (matrices, parents). ``left``: share of ‖δ_m‖² that is not explained. ``off``: how far a SLERP's base
    is from what its two weights say; 0 for others.
    """

    members: tuple[int, ...]
    weights: Floats
    left: float
    off: float = 0.0

    @property
    def mean(self) -> Floats:
        """Each parent's weight, averaged over the matrices."""
        found: Floats = self.weights.mean(axis=0)
        return found

    @property
    def spread(self) -> float:
        """The largest standard deviation of a weight over the matrices: near 0 for one recipe for all."""
        return float(self.weights.std(axis=0).max())


class Combinations:
    """Every way to explain the asked model by a few of the models read, from their inner products alone.

    ``base``: its weights. δ = W − W_base as the base is, not as rounded: rounding of the parents then falls out.
    """

    def __init__(self, m: ModelParts, others: Sequence[ModelParts], base: Mapping[str, NDArray[np.float32]]) -> None:
        self._names = list(m.deltas)
        self._count = len(others)
        self._gram = np.zeros((len(self._names), self._count + 2, self._count + 2))
        for row, name in enumerate(self._names):
            changes = [(one.weights[name] - base[name]).ravel() for one in (m, *others)]
            stacked = np.stack([*changes, base[name].ravel()]).astype(np.float64)
            self._gram[row] = stacked @ stacked.T
        self._total = float(self._gram[:, 0, 0].sum())

    def of(self, members: Sequence[int], *, spherical: bool = False) -> Combination:
        """The best sum of these others (numbered from 0).

        ``spherical``: of their weights instead of their changes, so that the coefficients need not make 1: what SLERP
        gives is a · W_p + b · W_q with a + b ≠ 1, a + b − 1 times the base beside the two changes.
        """
        rows = [member + 1 for member in members] + ([self._count + 1] if spherical else [])
        weights = np.zeros((len(self._names), len(rows)))
        left = 0.0
        for number, gram in enumerate(self._gram):
            inner, right = gram[np.ix_(rows, rows)], gram[rows, 0]
            scale = np.sqrt(np.maximum(np.diag(inner), 1e-300))
            w = np.linalg.lstsq(inner / np.outer(scale, scale), right / scale, rcond=1e-12)[0] / scale
            weights[number] = w
            left += max(float(gram[0, 0] - 2 * w @ right + w @ inner @ w), 0.0)
        off = float(np.abs(weights[:, :-1].sum(axis=1) - 1 - weights[:, -1]).max()) if spherical else 0.0
        kept = weights[:, :-1] if spherical else weights
        return Combination(tuple(members), kept, left / self._total if self._total else 0.0, off)

    def even(self, members: Sequence[int]) -> Combination:
        """The best sum with one recipe for all matrices: where parents share some, only that tells their weights."""
        rows = [member + 1 for member in members]
        gram = self._gram.sum(axis=0)
        inner, right = gram[np.ix_(rows, rows)], gram[rows, 0]
        scale = np.sqrt(np.maximum(np.diag(inner), 1e-300))
        w = np.linalg.lstsq(inner / np.outer(scale, scale), right / scale, rcond=1e-12)[0] / scale
        left = max(float(gram[0, 0] - 2 * w @ right + w @ inner @ w), 0.0)
        weights = np.tile(w, (len(self._names), 1))
        return Combination(tuple(members), weights, left / self._total if self._total else 0.0)

    def all_of(self, most: int) -> list[Combination]:
        """Every choice of up to ``most`` others: one recipe for all matrices, one for each, and pairs as by SLERP."""
        found = []
        for size in range(1, min(most, self._count) + 1):
            for chosen in combinations(range(self._count), size):
                found += [self.even(chosen), self.of(chosen)]
                found += [self.of(chosen, spherical=True)] if size == 2 else []
        return found


def residual(m: ModelParts, others: Sequence[ModelParts], found: Combination) -> dict[str, NDArray[np.float32]]:
    """What a combination leaves of δ_m, matrix by matrix."""
    left = {}
    for row, (name, delta) in enumerate(m.deltas.items()):
        rest = delta.copy()
        for weight, member in zip(found.weights[row], found.members, strict=True):
            rest -= np.float32(weight) * others[member].deltas[name]
        left[name] = rest
    return left


def equal_share(m: ModelParts, p: ModelParts) -> float:
    """The share of entries that are the same once p is stored in m's precision."""
    same = total = 0
    for name, weight in m.weights.items():
        same += int(np.count_nonzero(as_stored(p.weights[name], m.precision) == weight))
        total += weight.size
    return same / total if total else 0.0


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


@dataclass(frozen=True)
class Rank:
    """The numerical rank of a matrix, and the energy of its last singular value over that of the one behind it."""

    rank: int
    drop: float


def ranks_of(differences: Iterable[NDArray[np.float32]], floor: float, most: float = np.inf) -> list[Rank]:
    """Of every matrix that is not zero; ``floor``: energy a number that counts as nothing.

    None of any once one has a higher rank than ``most``: the others are then not decomposed.
    """
    found = []
    for difference in differences:
        square = float(np.vdot(difference, difference))
        if square <= 4 * floor * difference.size:
            continue
        values = np.linalg.svd(difference, compute_uv=False).astype(np.float64) ** 2
        allowed = max(4 * floor * difference.size, 1e-7 * square)
        behind = np.cumsum(values[::-1])[::-1]
        rank = int(np.count_nonzero(behind > allowed))
        if rank > most:
            return []
        drop = values[rank - 1] / max(values[rank], 1e-300) if 0 < rank < len(values) else 1.0
        found.append(Rank(rank, float(drop)))
    return found
