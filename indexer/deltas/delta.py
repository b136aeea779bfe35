"""Deltas: the change of each block matrix by fine-tuning, W_fine-tuned − W_base.

A full checkpoint gives dense deltas, an adapter mostly gives factors (``indexer.deltas.adapter_deltas``). They are
streamed in the order of the file, with one matrix in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.architectures.layout import Layout, Matrix, compare
from indexer.checkpoints.checkpoint import Checkpoint
from indexer.checkpoints.quantised import refuse_coarse
from indexer.deltas.base import BaseMatrices, locate_matrices
from indexer.deltas.nf4 import on_grid
from indexer.deltas.rounding import Grid, RoundingChoice
from indexer.deltas.signs import MatrixSigns, matrix_signs, sign_lines
from indexer.errors import Skipped
from indexer.names import DeltaKey
from indexer.records.conversion import CONVERSION
from indexer.records.row_plan import lines_of, lines_to_read, stripes_of
from indexer.records.weight_sample import Positions, sampled_positions
from indexer.untrusted import shown

# The inner loop over a matrix works on pieces of this size.
_PIECE_BYTES = 512 << 10


@dataclass(frozen=True)
class DenseDelta:
    """δW of one block matrix.

    ``matrix``: δW (out, in) float32; ``norm``: its Frobenius norm; ``inner``: ⟨W_base, δW⟩; ``weight``: W itself,
    float32, if requested. ``lines``: how many rows of δW were read (input coordinates, if the base stores it
    transposed), None for all. ``indexer.records.row_plan`` chooses them, and ``matrix``, ``norm`` and ``inner`` are
    those of these rows. ``sample`` (n,) float32: some entries of W (``indexer.records.weight_sample``); ``moved``: how
    many of them changed. ``signs``: see ``indexer.deltas.signs``, if requested.
    """

    key: DeltaKey
    matrix: torch.Tensor
    norm: float
    inner: float
    sample: torch.Tensor
    moved: int
    weight: torch.Tensor | None = None
    lines: int | None = None
    signs: MatrixSigns | None = None


@dataclass(frozen=True)
class LoraDelta:
    """δW = scale · b @ a, with ``a`` (k, in) and ``b`` (out, k) float32; never multiplied out."""

    key: DeltaKey
    a: torch.Tensor
    b: torch.Tensor
    scale: float


def dense_deltas(
    checkpoint: Checkpoint,
    layout: Layout,
    base: BaseMatrices,
    ahead_bytes: int = 0,
    *,
    with_weights: bool = False,
    with_signs: bool = False,
    roundings: RoundingChoice | None = None,
) -> Iterator[DenseDelta]:
    """Stream the deltas of a full checkpoint. ``roundings`` is updated with every matrix.

    Raises Skipped("not_finite") naming the first tensor that holds NaN or infinities.
    """
    roundings = roundings or RoundingChoice()
    for name, tensor in checkpoint.stream(layout.tensors, ahead_bytes, layout.leading_rows):
        for matrix in layout.by_tensor[name]:
            weight = matrix.extract(tensor)
            is_transposed = base.layout.by_key[matrix.key].transposed
            positions = sampled_positions(matrix.key, matrix.shape, len(layout.matrices), is_transposed)
            reference = base.matrix(matrix.key)
            if name in checkpoint.quantised:
                rows = torch.from_numpy(matrix.stored_lines(np.arange(matrix.lines)))
                reference = checkpoint.rounded_like(name, reference, rows)
            grid = None if name in checkpoint.quantised else _grid_of(base, matrix.key, None)
            signed = sign_lines(matrix, tensor.element_size()) if with_signs else None
            yield _dense_delta(matrix, weight, reference, roundings, positions, base, with_weights, grid, signed)


# The change of a sample, relative to the base's rows, up to which rounding may exceed it, by the narrowest dtype that
# holds the checkpoint. Two values are rounded, each with a variance of u²/12 for a unit u in the last place. With
# |w| = f·2^e and log f uniform over an octave, the mean of u² is 0.54 · 2^(−2m) · w² for m stored bits. The bound is
# twice the variance of that noise.
_DROWNED_BELOW = {"bfloat16": (0.54 / 3) ** 0.5 * 2.0**-7, "float16": (0.54 / 3) ** 0.5 * 2.0**-10}


def sampled_deltas(
    checkpoint: Checkpoint,
    layout: Layout,
    base: BaseMatrices,
    connections: int = 1,
    roundings: RoundingChoice | None = None,
    other_stripes: Mapping[str, Sequence[range]] | None = None,
    with_signs: bool = False,
) -> tuple[list[DenseDelta], dict[str, torch.Tensor]]:
    """Some rows of the deltas of a full checkpoint, as ``indexer.records.row_plan`` chooses them; small matrices whole.

    If the rounding of a model exceeds its change, more rows are read. ``other_stripes``: rows of other tensors to read
    by the same requests; they are returned by the name of their tensor. Raises as ``dense_deltas``.
    """
    other_rows: dict[str, torch.Tensor] = {}
    roundings = roundings or RoundingChoice()
    deltas: dict[DeltaKey, DenseDelta] = {}
    for more in (False, True):
        # The rows of every tensor that are needed for one of its matrices, and that have not been read yet.
        counts: dict[DeltaKey, int] = {}
        lines_by_tensor: dict[str, tuple[Lines, ...]] = {}
        stripes: dict[str, Sequence[range]] = {}
        for name, matrices in layout.by_tensor.items():
            item_bytes = checkpoint.tensors[name].dtype.itemsize
            counts_of_tensor = tuple(
                lines_to_read(matrix.shape, matrix.transposed, item_bytes, more=more)
                if matrix.transposed == base.layout.by_key[matrix.key].transposed
                else matrix.lines  # other models have other rows
                for matrix in matrices
            )
            counts_read = tuple(deltas[matrix.key].lines or matrix.lines if more else 0 for matrix in matrices)
            counts.update(zip((matrix.key for matrix in matrices), counts_of_tensor, strict=True))
            tensor_stripes, lines_of_matrices = _rows_to_read(matrices, counts_of_tensor, counts_read)
            if tensor_stripes:
                stripes[name], lines_by_tensor[name] = tensor_stripes, lines_of_matrices
        change = weights = 0.0
        for name, tensor in checkpoint.stripes(stripes if more else {**stripes, **(other_stripes or {})}, connections):
            if name not in lines_by_tensor:
                other_rows[name] = tensor
                continue
            for matrix, lines, positions in lines_by_tensor[name]:
                block = matrix.extract_lines(tensor if positions is None else tensor[positions])
                is_transposed = base.layout.by_key[matrix.key].transposed
                is_alike = matrix.transposed == is_transposed
                reference = base.lines(matrix.key, lines) if is_alike else base.matrix(matrix.key)
                if name in checkpoint.quantised:
                    reference = checkpoint.rounded_like(name, reference, torch.from_numpy(matrix.stored_lines(lines)))
                rows, columns = sampled_positions(matrix.key, matrix.shape, len(layout.matrices), is_transposed)
                if more:
                    rows, columns = rows[:0], columns[:0]
                elif matrix.transposed:
                    columns = np.searchsorted(lines, columns)
                else:
                    rows = np.searchsorted(lines, rows)
                grid = None if name in checkpoint.quantised else _grid_of(base, matrix.key, lines)
                signed = None
                if with_signs and not more:
                    signed = np.searchsorted(lines, sign_lines(matrix, tensor.element_size()))
                delta = _dense_delta(matrix, block, reference, roundings, (rows, columns), base, False, grid, signed)
                change += delta.norm**2
                if roundings.widest in _DROWNED_BELOW:  # needed only then: a checkpoint never becomes narrower
                    weights += float(reference.float().square().sum())
                if more:
                    earlier = deltas[matrix.key]
                    # In ascending order of the rows, as ``lines_of`` returns all of them.
                    earlier_lines = lines_of(matrix.lines, earlier.lines or matrix.lines)
                    order = torch.from_numpy(np.argsort(np.concatenate((earlier_lines, lines))))
                    side = int(matrix.transposed)
                    delta = replace(
                        earlier,
                        matrix=torch.cat((earlier.matrix, delta.matrix), dim=side).index_select(side, order),
                        norm=math.hypot(earlier.norm, delta.norm),
                        inner=earlier.inner + delta.inner,
                    )
                lines_read = None if counts[matrix.key] == matrix.lines else counts[matrix.key]
                deltas[matrix.key] = replace(delta, lines=lines_read)
        is_drowned = 0 < change < _DROWNED_BELOW.get(roundings.widest, 0.0) ** 2 * weights
        if not is_drowned or all(delta.lines is None for delta in deltas.values()):
            break
    return list(deltas.values()), other_rows


# A matrix, which of its lines are read, and their positions among the rows that are read of its tensor (None: all).
Lines = tuple[Matrix, NDArray[np.int64], NDArray[np.int64] | None]


# All models of a base need the same rows. Do not write to these arrays.
@lru_cache(maxsize=2048)
def _rows_to_read(
    matrices: tuple[Matrix, ...], counts: tuple[int, ...], counts_read: tuple[int, ...]
) -> tuple[tuple[range, ...], tuple[Lines, ...]]:
    """Which rows of a tensor to read to get ``counts`` lines of each matrix, and which lines they contain.

    The ``counts_read`` lines of each matrix that were read before are left out.
    """
    lines: dict[Matrix, NDArray[np.int64]] = {}
    for matrix, count, count_read in zip(matrices, counts, counts_read, strict=True):
        matrix_lines = lines_of(matrix.lines, count)
        matrix_lines = np.setdiff1d(matrix_lines, lines_of(matrix.lines, count_read)) if count_read else matrix_lines
        if len(matrix_lines):
            lines[matrix] = matrix_lines
    if not lines:
        return (), ()
    stored = np.unique(np.concatenate([matrix.stored_lines(matrix_lines) for matrix, matrix_lines in lines.items()]))
    positions = {
        matrix: np.searchsorted(stored, matrix.stored_lines(matrix_lines)) for matrix, matrix_lines in lines.items()
    }
    return tuple(stripes_of(stored)), tuple(
        (matrix, matrix_lines, None if np.array_equal(positions[matrix], np.arange(len(stored))) else positions[matrix])
        for matrix, matrix_lines in lines.items()
    )


def layout_against(checkpoint: Checkpoint, base: BaseMatrices) -> Layout:
    """Locate the block matrices of a full checkpoint and check them against the base's, by the header alone.

    Experts that the base lacks, because they are quantised in it, are left out. Raises Skipped: another architecture,
    missing matrices, another depth, another shape, quantised matrices that the base has as numbers, or "conversion".
    """
    if checkpoint.conversion:
        raise Skipped(
            CONVERSION,
            f"it is a conversion ({checkpoint.conversion}, {checkpoint.dtype}), of which no vector is made: its source "
            "is the model to compare",
        )
    config = checkpoint.config or dict(base.config)
    model_type = str(config.get("model_type") or base.config.get("model_type"))
    layout = locate_matrices(checkpoint, {**config, "model_type": model_type})
    base_matrices = base.layout.by_key
    comparable = (
        matrix
        for matrix in layout.matrices
        if matrix.key in base_matrices or not matrix.key.family.startswith("expert_")
    )
    layout = replace(layout, matrices=tuple(comparable))
    if layout.architecture != base.layout.architecture:
        raise Skipped(
            "shape_mismatch",
            f"its architecture is {layout.architecture} ({model_type}), the base's is {base.layout.architecture}",
        )
    try:
        compare(base.layout, layout)
    except Skipped as problem:
        if config.get("quantised") and problem.reason == "missing_matrices":
            raise Skipped(
                "quantized", f"it is quantised; without its quantised matrices, {problem.detail}"
            ) from problem
        raise
    if checkpoint.quantised:
        refuse_coarse({name: checkpoint.quantised[name] for name in layout.tensors if name in checkpoint.quantised})
        if any(matrix.transposed for matrix in layout.matrices):
            raise Skipped("quantized", "its matrices are quantised and stored transposed, which is not supported")
    return layout


def _grid_of(base: BaseMatrices, key: DeltaKey, lines: NDArray[np.int64] | None) -> Grid | None:
    """A function that rounds a matrix of the base to 4 bits; None if the atlas does not keep all of it."""
    if base.is_sampled:
        return None
    return lambda first, kind: on_grid(base, key, lines, first=first, double=kind == "nf4 double")


def _dense_delta(
    matrix: Matrix,
    weight: torch.Tensor,
    base: torch.Tensor,
    roundings: RoundingChoice,
    sampled: tuple[Positions, Positions],
    base_matrices: BaseMatrices,
    with_weights: bool,
    grid: Grid | None,
    signed: NDArray[np.int64] | None,
) -> DenseDelta:
    """The delta of one matrix. It overwrites ``weight`` in memory if that is float32.

    ``signed``: the lines among those of ``weight`` on which signs are measured; None for none.
    """
    if tuple(weight.shape) != tuple(base.shape):
        raise Skipped(
            "shape_mismatch", f"{shown(matrix.tensor)} is {tuple(weight.shape)}, the base's is {tuple(base.shape)}"
        )
    reference = roundings.reference(weight, base, grid)
    positions = (torch.from_numpy(sampled[0]), torch.from_numpy(sampled[1]))
    sample = weight[positions].to(torch.float32)
    signs = None
    if signed is not None and weight.isfinite().all():
        chosen, side = torch.from_numpy(signed), int(matrix.transposed)
        signs = matrix_signs(
            matrix, weight.index_select(side, chosen), reference.index_select(side, chosen), base_matrices
        )
    delta = weight.to(torch.float32)
    weights = delta.clone() if with_weights else None
    square = inner = 0.0
    # In place and by pieces that fit the processor's cache: half the time of three passes.
    rows = max(1, _PIECE_BYTES // (delta.element_size() * delta.shape[1]))
    for start in range(0, delta.shape[0], rows):
        reference_rows = reference[start : start + rows]
        piece = delta[start : start + rows].sub_(reference_rows).flatten()
        square += float(torch.dot(piece, piece))
        inner += float(torch.dot(reference_rows.flatten(), piece))
    norm = math.sqrt(square) if math.isfinite(square) else square
    if not (math.isfinite(norm) and math.isfinite(inner)):
        raise Skipped("not_finite", f"the tensor {shown(matrix.tensor)} holds NaN or infinite values")
    moved = int(delta[positions].count_nonzero())
    return DenseDelta(matrix.key, delta, norm, inner, sample, moved, weights, signs=signs)
