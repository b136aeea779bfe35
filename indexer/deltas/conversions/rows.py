"""Some rows of a conversion, and the same rows of its base and of models that may be its source.

Two rows or more of every matrix are read, about 300,000 numbers in all, so that every tensor is compared. GPTQ and AWQ
store a matrix so that it must be read whole; of these a few matrices are read, up to MOST_WHOLE_BYTES.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.architectures.layout import Layout, Matrix
from indexer.checkpoints.checkpoint import Checkpoint, CodedRows
from indexer.checkpoints.quantised_matrix import Codes, Quantised, octets
from indexer.checkpoints.stored_tensor import READABLE, dtype_name
from indexer.deltas.adapter_deltas import deltas_on, dense
from indexer.deltas.base import BaseMatrices
from indexer.deltas.delta import LoraDelta
from indexer.deltas.identification.bases import ComparedBase
from indexer.deltas.identification.rows import layout_like
from indexer.errors import Skipped
from indexer.names import CONNECTIONS, DeltaKey
from indexer.records.record import Record
from indexer.records.row_plan import lines_of, stripes_of
from indexer.untrusted import shown

NUMBERS = 300_000
LEAST_ROWS = 2
MOST_WHOLE_BYTES = 64 << 20
# Rows of a matrix that is read whole: scales of its inputs are fitted to them.
_ROWS_OF_WHOLE = 96
_MOST_OTHER_BYTES = 1 << 20
_OTHER_ROWS = 4

Rows = Mapping[DeltaKey, torch.Tensor]


@dataclass(frozen=True)
class StoredRows:
    """Rows of one tensor of a conversion: how they are stored, and what they stand for, float32 (rows, in)."""

    type: str
    codes: Codes
    values: torch.Tensor
    coded: CodedRows | None
    dtype: torch.dtype

    def quantised(self, values: torch.Tensor) -> Quantised | None:
        """Other numbers as this tensor would hold them; None if its quantiser depends on more than these rows."""
        if self.coded is not None:
            return self.coded.quantised(values)
        rounded = values.to(self.dtype)
        return Quantised(octets(rounded), rounded.float())

    def take(self, rows: NDArray[np.int64]) -> StoredRows:
        """Some of these rows."""
        return StoredRows(self.type, self.codes[rows], self.values[rows], self.coded, self.dtype)


def stored_rows(checkpoint: Checkpoint, rows: Mapping[str, NDArray[np.int64]]) -> Iterator[tuple[str, StoredRows]]:
    """Rows of the tensors of a conversion, by their ascending numbers. Raises Skipped, Failed."""
    stripes = {name: stripes_of(numbers) for name, numbers in rows.items()}
    packed = {name: stripes[name] for name in rows if name in checkpoint.quantised}
    for name, coded in checkpoint.coded(packed, CONNECTIONS):
        values = coded.values().float()
        yield name, StoredRows(coded.matrix.label, coded.codes(), values, coded, values.dtype)
    plain = {name: stripes[name] for name in rows if name not in packed}
    for name, tensor in checkpoint.stripes(plain, CONNECTIONS):
        yield name, StoredRows(dtype_name(tensor.dtype), octets(tensor), tensor.float(), None, tensor.dtype)


class ConversionRows:
    """Rows of the matrices of a conversion that its base has too, in the base's order.

    - ``lines``: the numbers of the rows of each matrix; ``stored``: what the file holds of them.
    - ``base_rows``: the base's own, float32.

    Raises Skipped: ``shape_mismatch`` or ``missing_matrices`` if it has no matrix of the base, ``not_finite``.
    """

    def __init__(self, checkpoint: Checkpoint, base: ComparedBase, numbers: int = NUMBERS) -> None:
        self.checkpoint, self.base = checkpoint, base
        self.layout = layout_like(checkpoint, base)
        of_base = base.layout.by_key
        matrices = [
            matrix
            for matrix in self.layout.matrices
            if matrix.key in of_base and of_base[matrix.key].shape == matrix.shape and not matrix.transposed
        ]
        if not matrices:
            raise Skipped("shape_mismatch", "none of its matrices has the shape of the base's")
        self.lines = self._chosen_lines(matrices, numbers)
        self.stored: dict[DeltaKey, StoredRows] = {}
        rows: dict[str, NDArray[np.int64]] = {}
        by_tensor: dict[str, list[Matrix]] = {}
        for matrix in matrices:
            if matrix.key in self.lines:
                by_tensor.setdefault(matrix.tensor, []).append(matrix)
        for name, some in by_tensor.items():
            rows[name] = np.unique(np.concatenate([matrix.stored_lines(self.lines[matrix.key]) for matrix in some]))
        self.tensors = {matrix.key: matrix.tensor for some in by_tensor.values() for matrix in some}
        for name, read in stored_rows(checkpoint, rows):
            if not torch.isfinite(read.values).all():
                raise Skipped("not_finite", f"its tensor {shown(name)} holds NaN or infinite values")
            for matrix in by_tensor[name]:
                places = np.searchsorted(rows[name], matrix.stored_lines(self.lines[matrix.key]))
                self.stored[matrix.key] = read.take(places)

    def _chosen_lines(self, matrices: Sequence[Matrix], numbers: int) -> dict[DeltaKey, NDArray[np.int64]]:
        """The rows that are read of each matrix; of a base of which a sample is kept only those."""
        quantised = self.checkpoint.quantised
        whole = [
            matrix
            for matrix in matrices
            if matrix.tensor in quantised and quantised[matrix.tensor].stored_rows(np.arange(1)) is None
        ]
        if whole:
            sizes = {matrix.key: math.prod(matrix.shape) * quantised[matrix.tensor].bits // 8 for matrix in whole}
            count = max(1, MOST_WHOLE_BYTES // max(sizes.values()))
            places = np.linspace(0, len(whole) - 1, min(count, len(whole))).round().astype(int)
            return {whole[place].key: self._lines(whole[place], _ROWS_OF_WHOLE) for place in places}
        width = sum(matrix.shape[1] for matrix in matrices)
        count = max(LEAST_ROWS, -(-numbers // width))
        return {matrix.key: self._lines(matrix, count) for matrix in matrices}

    def _lines(self, matrix: Matrix, count: int) -> NDArray[np.int64]:
        of_base = self.base.layout.by_key[matrix.key]
        kept = self.base.leading_rows(matrix.key) * 2 - 1 if self.base.is_sampled else matrix.shape[0]
        return lines_of(matrix.shape[0], min(count, matrix.shape[0], max(kept, 1) if not of_base.transposed else count))

    @cached_property
    def base_rows(self) -> dict[DeltaKey, torch.Tensor]:
        """See the class. Raises Skipped("base_sampled") for a transposed base of which the atlas keeps a sample."""
        rows = {}
        for key, lines in self.lines.items():
            is_transposed = self.base.layout.by_key[key].transposed
            rows[key] = (self.base.matrix(key)[lines] if is_transposed else self.base.lines(key, lines)).float().clone()
        return rows

    @property
    def count(self) -> int:
        """How many rows are compared."""
        return sum(map(len, self.lines.values()))

    @property
    def types(self) -> str:
        """How the matrices are stored, the most frequent type first: ``Q4_K, Q6_K``."""
        sizes: dict[str, int] = {}
        for stored in self.stored.values():
            sizes[stored.type] = sizes.get(stored.type, 0) + 1
        return ", ".join(sorted(sizes, key=lambda name: (-sizes[name], name)))

    @property
    def fingerprint(self) -> str:
        """A digest of all codes that were read: equal for two uploads of one conversion."""
        digest = hashlib.sha256(f"{self.checkpoint.conversion} {self.types}".encode())
        for key in sorted(self.stored, key=lambda key: key.sort_key):
            digest.update(f"{key} {self.lines[key].tolist()}".encode())
            digest.update(np.ascontiguousarray(self.stored[key].codes).data)
        return digest.hexdigest()

    def rows_of(self, checkpoint: Checkpoint) -> dict[DeltaKey, torch.Tensor]:
        """The same rows of another model of the base: of a full one, or of the base with an adapter. Raises Skipped."""
        return self._rows_of_adapter(checkpoint) if checkpoint.kind == "adapter" else self._rows_of_full(checkpoint)

    def _rows_of_full(self, checkpoint: Checkpoint) -> dict[DeltaKey, torch.Tensor]:
        layout: Layout = layout_like(checkpoint, self.base)
        matrices = [layout.by_key[key] for key in self.lines if key in layout.by_key]
        if len(matrices) < len(self.lines) or any(
            matrix.shape != self.base.layout.by_key[matrix.key].shape for matrix in matrices
        ):
            raise Skipped("shape_mismatch", "its matrices do not have the shapes of the base's")
        rows: dict[DeltaKey, torch.Tensor] = {}
        by_tensor: dict[str, list[Matrix]] = {}
        for matrix in matrices:
            by_tensor.setdefault(matrix.tensor, []).append(matrix)
        transposed = [name for name, some in by_tensor.items() if some[0].transposed]
        for name, tensor in checkpoint.stream(transposed):
            for matrix in by_tensor[name]:
                rows[matrix.key] = matrix.extract(tensor)[self.lines[matrix.key]].clone()
        wanted = {
            name: np.unique(np.concatenate([matrix.stored_lines(self.lines[matrix.key]) for matrix in some]))
            for name, some in by_tensor.items()
            if name not in transposed
        }
        stripes = {name: stripes_of(numbers) for name, numbers in wanted.items()}
        for name, tensor in checkpoint.stripes(stripes, CONNECTIONS):
            for matrix in by_tensor[name]:
                places = np.searchsorted(wanted[name], matrix.stored_lines(self.lines[matrix.key]))
                rows[matrix.key] = tensor[places]
        return rows

    def _rows_of_adapter(self, checkpoint: Checkpoint) -> dict[DeltaKey, torch.Tensor]:
        if not isinstance(self.base, BaseMatrices):
            raise Skipped("missing_matrices", "adapters are applied to the stored matrices of a base alone")
        rows = dict(self.base_rows)
        for delta in deltas_on(checkpoint, self.base, only=self.lines):
            lines = self.lines.get(delta.key)
            if lines is None:
                continue
            if isinstance(delta, LoraDelta):
                rows[delta.key] = self.base_rows[delta.key] + delta.scale * (delta.b[lines] @ delta.a)
            else:
                change = dense(delta, self.base.matrix(delta.key)).matrix
                rows[delta.key] = self.base_rows[delta.key] + change[lines]
        return rows

    def estimate(self, record: Record) -> dict[DeltaKey, torch.Tensor] | None:
        """The change of a model on these rows by the triplets of its record; None if it has none of these rows.

        Rows that the record does not hold are zero.
        """
        changes = {}
        for delta in record.deltas:
            lines = self.lines.get(delta.key)
            if lines is None or delta.v is None or delta.transposed:
                continue
            left = delta.u if delta.u is not None else delta.u_rows
            if left is None:
                return None
            kept = np.arange(len(left)) if delta.u is not None else lines_of(delta.shape[0], len(left))
            _, own, places = np.intersect1d(lines, kept, assume_unique=True, return_indices=True)
            if len(own):
                change = np.zeros((len(lines), delta.shape[1]), np.float32)
                change[own] = (left[places].astype(np.float32) * delta.s) @ delta.v.astype(np.float32).T
                changes[delta.key] = torch.from_numpy(change)
        return changes or None


@dataclass(frozen=True)
class OtherTensors:
    """Tensors that are not block matrices: how many were compared, rows of them, and the names of those that differ."""

    compared: int
    rows: int
    differing: tuple[str, ...]


def other_tensors(
    conversion: Checkpoint, source: Checkpoint, matrices: Layout, most_error: float | None = None
) -> OtherTensors:
    """Compare the embeddings, heads and norms of a conversion with those of a full model: some rows of each.

    A norm may be stored with 1 added (Gemma). ``most_error``: rows whose codes are others count as equal up to this
    multiple of the quantiser's own error; None if codes must be equal. Tensors without a quantiser are left out. Raises
    Skipped, Failed.
    """
    compared, rows_compared, differing = 0, 0, []
    for name, info in source.tensors.items():
        stored = conversion.stored_name(name)
        if stored is None or name in matrices.by_tensor or info.dtype not in READABLE or name in source.quantised:
            continue
        own = conversion.tensors[stored]
        if own.shape != info.shape or len(info.shape) not in (1, 2):
            continue
        if len(info.shape) == 1:
            if own.dtype not in READABLE or info.nbytes > _MOST_OTHER_BYTES:
                continue
            values = dict(source.stream([name]))[name].float().clone()
            kept = dict(conversion.stream([stored]))[stored].clone()
            is_equal = any(torch.equal(kept, change.to(kept.dtype)) for change in (values, values + 1))
            rows_compared += 1
        else:
            lines = lines_of(info.shape[0], min(_OTHER_ROWS, info.shape[0]))
            ((_, values),) = source.stripes({name: stripes_of(lines)})
            ((_, rows),) = stored_rows(conversion, {stored: lines})
            again = [rows.quantised(version.float()) for version in rounded_versions(values)]
            if any(version is None for version in again):
                continue
            is_equal = any(version is not None and np.array_equal(version.codes, rows.codes) for version in again)
            if not is_equal and most_error is not None and again[0] is not None:
                error, usual = ((read - values.float()).norm() for read in (rows.values, again[0].values))
                is_equal = bool(error <= most_error * usual)
            rows_compared += len(lines)
        compared += 1
        if not is_equal:
            differing.append(stored)
    return OtherTensors(compared, rows_compared, tuple(differing))


def rounded_versions(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Numbers as a converter may have rounded them before they were quantised: not at all, to 16 bits."""
    return values, values.to(torch.float16), values.to(torch.bfloat16)
