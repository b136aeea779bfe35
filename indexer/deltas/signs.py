"""Measures the signs of how a checkpoint's weights were changed, on the rows that a sample of it consists of.

They are the same rows whether a model is read in full or not, so that signs do not depend on that. Shares of energy are
of squared Frobenius norms. Each sign has a closed form where nothing but the one change was made (see
``indexer.records.kinds``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.architectures.layout import Matrix
from indexer.deltas.base import BaseMatrices
from indexer.deltas.rounding import narrowest_dtype
from indexer.names import FAMILIES, DeltaKey
from indexer.records.row_plan import lines_of, lines_to_read
from indexer.records.signs import COLUMNS, NUMBERS

# float16 flushes smaller numbers to zero, so that zeros in their place were not put there.
_CLEARLY_NOT_ZERO = 2.0**-14
_GROUP, _FEWEST_IN_GROUP = 32, 24
# Of 32 numbers that lie anywhere in a range, some two are nearer than this share of it; on a grid of up to 256 steps
# none are, but for equal ones.
_STEP = 1 / 260
# Rows and columns, spread over a matrix, whose numbers are sorted or counted; of a row at most so many.
_MOST_ROWS, _MOST_COLUMNS, _MOST_NUMBERS = 8, 32, 1024
# Rounding W and the base gives twice the variance u²/12; arithmetic in the same dtype before that adds some.
_ROUNDINGS = 3.0
# Matrices less like the base's than this are compared with those of other layers.
_LIKE = 0.8
_TINY = 1e-30
# Families that write into the residual stream.
_WRITING = frozenset(family for family in FAMILIES if family.endswith(("output", "feedforward2")))


@dataclass(frozen=True)
class MatrixSigns:
    """The signs of one matrix.

    ``values`` (len(COLUMNS),): see COLUMNS; ``left`` (out features that were read,): the first left singular vector of
    δW, None for a zero delta.
    """

    values: NDArray[np.float32]
    left: NDArray[np.float32] | None


def matrix_signs(matrix: Matrix, weight: torch.Tensor, reference: torch.Tensor, base: BaseMatrices) -> MatrixSigns:
    """The signs of one matrix of a checkpoint.

    Args:
        matrix: where it lies in the checkpoint.
        weight: the rows of W that are sampled, in the checkpoint's dtype: (n, in), of a transposed matrix (out, n).
        reference: the same rows of the base after the checkpoint's roundings, float32.
        base: the base, for rows of other layers.
    """
    stored = (weight.mT if matrix.transposed else weight).contiguous()
    rows, base_rows = stored.double(), (reference.mT if matrix.transposed else reference).double()
    delta = rows - base_rows
    energy = float(delta.square().sum())
    signs: dict[str, float] = dict.fromkeys(COLUMNS, 0.0)
    size, base_size = float(rows.square().sum()), float(base_rows.square().sum())
    cosine = float((rows * base_rows).sum()) / max(math.sqrt(size * base_size), _TINY)
    signs |= {"cosine": cosine, "change": math.sqrt(energy / max(base_size, _TINY)), "layer": matrix.key.layer}
    is_clear = base_rows.abs() >= _CLEARLY_NOT_ZERO
    signs["zeros"] = float(((rows == 0) & is_clear).sum()) / max(int(is_clear.sum()), 1)
    is_constant, was_constant = ((values == values[:, :1]).all(dim=1) for values in (rows, base_rows))
    signs["constant"] = float((is_constant & ~was_constant).double().mean())
    if not energy:
        return MatrixSigns(_in_order(signs), None)
    # A scale may belong to a row or to a column.
    sides = ((rows, base_rows), (rows.mT, base_rows.mT))
    signs["grid"] = _grid_share(rows) - _grid_share(base_rows)
    signs["distinct"] = min(_distinct(side) / max(_distinct(base_side), _TINY) for side, base_side in sides)
    shape, singular = _shape_of_change(delta, energy, _rounding_energy(stored, rows))
    signs |= shape
    left_singular = singular[int(matrix.transposed)]
    signs |= _rescaling(rows, base_rows, energy)
    signs["sorted"] = _sorted_energy(rows, base_rows)
    if cosine < _LIKE:
        signs |= _nearest_layer(matrix, weight, base)
        signs["matched"] = _matched(matrix, rows, base)
        signs["weight_edge"] = _edges(torch.linalg.eigvalsh(_gram(rows)), rows.shape)[0] if size else 0.0
    return MatrixSigns(_in_order(signs), left_singular.float().numpy())


def sign_lines(matrix: Matrix, item_bytes: int) -> NDArray[np.int64]:
    """The lines of a matrix, all of which were read, on which its signs are measured."""
    return lines_of(matrix.lines, lines_to_read(matrix.shape, matrix.transposed, item_bytes))


def with_agreement(signs: Mapping[DeltaKey, MatrixSigns], keys: Sequence[DeltaKey]) -> NDArray[np.float32]:
    """(K, len(COLUMNS)): the signs of all matrices, with the agreement of their left singular vectors."""
    values = np.stack([signs[key].values for key in keys])
    lefts = {key: left for key in keys if key.family in _WRITING and (left := signs[key].left) is not None}
    for row, key in enumerate(keys):
        if key not in lefts:
            continue
        cosines = [
            _cosine_of_ends(lefts[key], left)
            for other, left in lefts.items()
            if other != key and other.stack == key.stack
        ]
        values[row, NUMBERS["agreement"]] = np.mean(cosines) if cosines else 0.0
    return values


def _in_order(signs: Mapping[str, float]) -> NDArray[np.float32]:
    return np.array([signs[name] for name in COLUMNS], dtype=np.float32)


def _gram(rows: torch.Tensor) -> torch.Tensor:
    return rows @ rows.mT if rows.shape[0] <= rows.shape[1] else rows.mT @ rows


def _rounding_energy(stored: torch.Tensor, rows: torch.Tensor) -> float:
    """The energy of the errors of rounding these numbers to the narrowest dtype that holds them."""
    unit = torch.finfo(narrowest_dtype(stored)).eps
    steps = torch.exp2(torch.floor(torch.log2(rows.abs().clamp_min(2.0**-24)))) * unit
    return _ROUNDINGS * float(steps.square().sum()) / 12


def _edges(eigenvalues: torch.Tensor, shape: Sequence[int]) -> tuple[float, float]:
    """The largest and the median eigenvalue of a Gram matrix, by those of independent numbers of the same energy.

    The largest eigenvalue of such an (n, d) matrix is (√n + √d)² times their variance, nearly (Geman, 1980, "A limit
    theorem for the norm of random matrices"); the median is that of the law of Marchenko and Pastur (1967).
    """
    variance = float(eigenvalues.sum()) / math.prod(shape)
    largest = variance * (math.sqrt(shape[0]) + math.sqrt(shape[1])) ** 2
    short, long = sorted(shape)
    median = variance * long * _median_of_law(short / long)
    return float(eigenvalues[-1]) / largest, float(eigenvalues.median()) / median


def _median_of_law(ratio: float) -> float:
    """The median of the law of Marchenko and Pastur for a ratio of sides up to 1, by its density."""
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
    # With x = middle − half·cos(t) the density is smooth in t.
    angle = (np.arange(2048) + 0.5) * math.pi / 2048
    points = (low + high) / 2 - (high - low) / 2 * np.cos(angle)
    mass = np.cumsum(np.sin(angle) ** 2 / np.maximum(points, _TINY))
    return float(points[np.searchsorted(mass, mass[-1] / 2)])


def _shape_of_change(
    delta: torch.Tensor, energy: float, rounding: float
) -> tuple[dict[str, float], tuple[torch.Tensor, torch.Tensor]]:
    """Signs of the spectrum of δW and of the energies of its rows; its first left and right singular vectors."""
    decomposed = torch.linalg.eigh(_gram(delta))
    eigenvalues, short = decomposed.eigenvalues.clamp_min(0), decomposed.eigenvectors[:, -1]
    is_wide = delta.shape[0] <= delta.shape[1]
    long = torch.nn.functional.normalize(short @ delta if is_wide else delta @ short, dim=0)
    tails = eigenvalues.cumsum(0)  # of the smallest first
    most = len(eigenvalues)
    # The energy of rounding beyond rank k: a share of (1 − k/n)(1 − k/d).
    ranks = most - 1 - np.arange(most)
    rounding_energies = (1 - ranks / delta.shape[0]) * (1 - ranks / delta.shape[1]) * rounding
    is_rounding = tails.numpy() <= np.maximum(rounding_energies, 1e-13 * energy)
    rank = most - int(np.argmin(is_rounding)) if not is_rounding.all() else 0
    largest, median = _edges(eigenvalues, delta.shape)
    energies = delta.square().sum(dim=1)
    spread = float(energies.var(correction=0) / energies.mean().square()) * delta.shape[1] / 2
    signs = {
        "rounding": min(rounding / energy, 1e6),
        "rank": rank,
        "full_rank": most,
        "leading": float(eigenvalues[-1]) / energy,
        "edge": largest,
        "tail": median,
        "row_spread": spread,
    }
    return signs, (short, long) if is_wide else (long, short)


def _rescaling(rows: torch.Tensor, base_rows: torch.Tensor, energy: float) -> dict[str, float]:
    """Shares of the change left without multiples of the base's matrix, of its columns and of its rows."""
    products, squares, energy_of_rows = rows * base_rows, base_rows.square(), float(rows.square().sum())

    def left(dim: int | None) -> float:
        product = products.sum() if dim is None else products.sum(dim=dim)
        square = squares.sum() if dim is None else squares.sum(dim=dim)
        explained = float((product.square() / square.clamp_min(_TINY)).sum())
        return max(energy_of_rows - explained, 0.0) / energy

    return {"scalar": left(None), "columns": left(0), "rows": left(1)}


def _sorted_energy(rows: torch.Tensor, base_rows: torch.Tensor) -> float:
    """The energy of the difference of sorted rows by that of the rows, of some rows that changed."""
    changed = torch.nonzero((rows != base_rows).any(dim=1)).flatten()
    row_numbers = changed[:: -(-len(changed) // _MOST_ROWS)]
    values, base_values = (side[row_numbers].numpy() for side in (rows, base_rows))
    difference = np.sort(values, axis=1) - np.sort(base_values, axis=1)
    return float(np.square(difference).sum() / np.square(values - base_values).sum())


def _grid_share(rows: torch.Tensor) -> float:
    """The share of groups of 32 numbers, along rows or along columns, that lie on a grid; of some rows and columns.

    Groups of many zeros, as pruning leaves, have few other numbers, and no two of these need be near.
    """
    values = rows.float().numpy()
    sides = (values[:: -(-len(values) // _MOST_ROWS)], values.T[:: -(-values.shape[1] // _MOST_COLUMNS)])
    return max((_on_grid(side) for side in sides if side.shape[1] >= _GROUP), default=0.0)


def _on_grid(rows: NDArray[np.float32]) -> float:
    groups = np.sort(rows[:, : rows.shape[1] // _GROUP * _GROUP].reshape(-1, _GROUP), axis=1)
    steps, span = np.diff(groups, axis=1), groups[:, -1] - groups[:, 0]
    smallest = np.where(steps > 0, steps, np.inf).min(axis=1)
    is_full = (groups != 0).sum(axis=1) >= _FEWEST_IN_GROUP
    return float(((smallest > _STEP * span) & is_full).mean())


def _distinct(rows: torch.Tensor) -> float:
    """The number of distinct numbers in a row by that of all its numbers, without zeros; of some rows."""
    values = rows[:: -(-len(rows) // _MOST_ROWS), :_MOST_NUMBERS].float().numpy()
    count = sum(len(np.unique(row[row != 0])) for row in values)
    return count / max(int((values != 0).sum()), 1)


def _nearest_layer(matrix: Matrix, weight: torch.Tensor, base: BaseMatrices) -> dict[str, float]:
    """The layer of the base whose same rows are most like these."""
    count = weight.shape[1] if matrix.transposed else weight.shape[0]
    lines = lines_of(matrix.lines, count)
    rows = weight.float().flatten()
    cosines = {}
    for other in base.layout.matrices:
        is_alike = (other.key.stack, other.key.family) == (matrix.key.stack, matrix.key.family)
        if is_alike and other.shape == matrix.shape and other.transposed == matrix.transposed:
            values = base.lines(other.key, lines).float().flatten()
            product = float(torch.linalg.vector_norm(rows) * torch.linalg.vector_norm(values))
            cosines[other.key.layer] = float(rows @ values) / max(product, _TINY)
    nearest = max(cosines, key=cosines.__getitem__, default=matrix.key.layer)
    return {"layer": nearest, "layer_cosine": cosines.get(nearest, 0.0)}


def _matched(matrix: Matrix, rows: torch.Tensor, base: BaseMatrices) -> float:
    """The mean over rows of the cosine with the base's row that is most like each; 0 if the base keeps only a sample.

    Of the rows that are stored together: of a transposed matrix its columns.
    """
    if base.is_sampled:
        return 0.0
    whole = base.matrix(matrix.key)
    whole = (whole.mT if matrix.transposed else whole).to(torch.float32)
    units = [
        side / torch.linalg.vector_norm(side, dim=1, keepdim=True).clamp_min(_TINY) for side in (rows.float(), whole)
    ]
    return float((units[0] @ units[1].mT).amax(dim=1).mean())


def _cosine_of_ends(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """|cosine| of two left singular vectors on the rows that both have: samples are stripes at both ends."""
    count = min(len(first), len(second))
    if len(first) != len(second):
        first, second = (vector[lines_of(len(vector), count)] for vector in (first, second))
    norms = float(np.linalg.norm(first) * np.linalg.norm(second))
    return abs(float(first @ second)) / max(norms, _TINY)
