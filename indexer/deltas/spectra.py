"""Full spectra for the study of ranks: all singular values of every δW, of every W, and of every fused matrix.

Only `index build --spectra` computes them. The parts of a fused matrix are kept until the last of them is read; other
matrices are processed one at a time. The order of a fused tensor's rows does not matter, because singular values do not
depend on it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.deltas.base import BaseMatrices
from indexer.deltas.delta import DenseDelta, LoraDelta
from indexer.deltas.svd import lora_svd, spectrum
from indexer.errors import Skipped
from indexer.names import DeltaKey
from indexer.records.record import FusedMatrixRecord

Values = NDArray[np.float32]
Delta = DenseDelta | LoraDelta
Keys = tuple[DeltaKey, ...]


class Spectra:
    """The spectra of one model: call ``singular_values`` for every delta once, then ``fused_matrices``."""

    def __init__(self, base: BaseMatrices, device: str) -> None:
        self._base = base
        self._device = device
        self._fused_keys = {key: keys for keys in base.layout.fused_matrices for key in keys}
        self._waiting: dict[Keys, dict[DeltaKey, Delta]] = {}
        self._fused_records: dict[Keys, FusedMatrixRecord] = {}

    def singular_values(self, delta: Delta) -> tuple[Values | None, Values]:
        """Singular values of δW (None if it is zero) and of W, each (min(out, in),), descending.

        Raises Skipped("not_finite") if an adapter's weights overflow.
        """
        keys = self._fused_keys.get(delta.key)
        if keys is not None:
            parts = self._waiting.setdefault(keys, {})
            parts[delta.key] = delta
            if len(parts) == len(keys):
                self._fused_records[keys] = self._fused(keys, self._waiting.pop(keys))
        weight = self._weight(delta.key, delta)
        return self._changes([delta], (weight.shape[0], weight.shape[1])), self._values(weight)

    def fused_matrices(self) -> tuple[FusedMatrixRecord, ...]:
        """The fused matrices, in the base's order; parts that an adapter does not change are the base's."""
        fused_matrices = self._base.layout.fused_matrices
        return tuple(
            self._fused_records.get(keys) or self._fused(keys, self._waiting.pop(keys, {})) for keys in fused_matrices
        )

    def _fused(self, keys: Keys, parts: dict[DeltaKey, Delta]) -> FusedMatrixRecord:
        shapes = [matrix.shape for matrix in self._base.layout.matrices if matrix.key in keys]
        shape = (sum(rows for rows, _ in shapes), shapes[0][1])
        if not parts:
            return FusedMatrixRecord(keys, shape, None, self._base.spectrum(keys))
        weights = self._values(torch.cat([self._weight(key, parts.get(key)) for key in keys]))
        # In the order of the keys, not of the file, so that values agree to the last bit.
        changes = self._changes([parts[key] for key in keys if key in parts], shape)
        return FusedMatrixRecord(keys, shape, changes, weights)

    def _weight(self, key: DeltaKey, delta: Delta | None) -> torch.Tensor:
        """W (out, in), float32."""
        if isinstance(delta, DenseDelta):
            if delta.weight is None:
                raise ValueError("the delta was read without its weights")
            return delta.weight
        weight = self._base.matrix(key).to(torch.float32)
        if delta is None:
            return weight
        weight = torch.addmm(weight, delta.b, delta.a, alpha=delta.scale)
        if not bool(torch.isfinite(weight).all()):
            raise Skipped("not_finite", f"the weights of {key} overflow with the adapter's delta")
        return weight

    def _changes(self, deltas: list[Delta], shape: tuple[int, int]) -> Values | None:
        """Singular values of δW (of ``shape``) from the deltas of its parts; parts without a delta are zero."""
        dense = [delta for delta in deltas if isinstance(delta, DenseDelta)]
        if dense:
            return self._values(torch.cat([delta.matrix for delta in dense])) if any(d.norm for d in dense) else None
        factors = [delta for delta in deltas if isinstance(delta, LoraDelta)]
        if not factors:
            return None
        # Stacked, the parts are diag(b_1, b_2, …) · (s_1 a_1; s_2 a_2; …).
        a = torch.cat([delta.a.double() * delta.scale for delta in factors]).to(self._device)
        b = torch.block_diag(*[delta.b.double() for delta in factors]).to(self._device)
        rank = min(*shape, len(a))
        values = np.zeros(min(shape), dtype=np.float32)
        values[:rank] = lora_svd(a, b, 1.0, rank).s.cpu().numpy()
        return values if values.any() else None

    def _values(self, matrix: torch.Tensor) -> Values:
        values: Values = spectrum(matrix.to(self._device)).cpu().numpy()
        return values
