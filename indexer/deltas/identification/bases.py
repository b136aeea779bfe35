"""Bases to compare models with: the interface for comparisons, and a base whose checkpoint is read where it lies."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.architectures.layout import Layout
from indexer.checkpoints.checkpoint import Checkpoint
from indexer.deltas.base import locate_matrices
from indexer.names import CONNECTIONS, DeltaKey
from indexer.records.row_plan import stripes_of

# Bytes of one base's matrices that stay in memory.
_MOST_KEPT = 64 << 20


class ComparedBase(Protocol):
    """The block matrices of a base, and some rows of them."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Its config.json."""
        ...

    @property
    def layout(self) -> Layout:
        """Its block matrices."""
        ...

    @property
    def is_sampled(self) -> bool:
        """Whether only some rows of each matrix are here."""
        ...

    def matrix(self, key: DeltaKey) -> torch.Tensor:
        """One matrix, (out, in). Do not write to it."""
        ...

    def lines(self, key: DeltaKey, lines: NDArray[np.int64]) -> torch.Tensor:
        """Some rows of a matrix; of one that checkpoints store transposed, some input coordinates (out, n)."""
        ...

    def leading_rows(self, key: DeltaKey) -> int:
        """How many of the first rows of a matrix are here."""
        ...

    def close(self) -> None:
        """Close files and release memory."""
        ...


class OpenedBase:
    """A base that is read from its own files, of which nothing is stored; see :class:`ComparedBase`.

    Rows and small matrices stay in memory, because many models are compared with the same ones. Raises Skipped if the
    checkpoint cannot be a base, and ModelError where it cannot be read.
    """

    is_sampled = False

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._layout = locate_matrices(checkpoint, checkpoint.config)
        self._matrices: OrderedDict[DeltaKey, torch.Tensor] = OrderedDict()
        self._lines: dict[tuple[DeltaKey, bytes], torch.Tensor] = {}

    @property
    def config(self) -> Mapping[str, Any]:
        """Its config.json."""
        return self.checkpoint.config

    @property
    def layout(self) -> Layout:
        """Its block matrices."""
        return self._layout

    def matrix(self, key: DeltaKey) -> torch.Tensor:
        """One matrix, (out, in)."""
        weight = self._matrices.get(key)
        if weight is not None:
            self._matrices.move_to_end(key)
            return weight
        matrix_in_file = self.layout.by_key[key]
        rows = {name: span for name, span in self.layout.leading_rows.items() if name == matrix_in_file.tensor}
        ((_, tensor),) = self.checkpoint.stream([matrix_in_file.tensor], rows=rows)
        weight = matrix_in_file.extract(tensor).clone()
        self._matrices[key] = weight
        while len(self._matrices) > 1 and sum(cached.nbytes for cached in self._matrices.values()) > _MOST_KEPT:
            self._matrices.popitem(last=False)
        return weight

    def lines(self, key: DeltaKey, lines: NDArray[np.int64]) -> torch.Tensor:
        """Some rows of a matrix."""
        block = self._lines.get((key, lines.tobytes()))
        if block is None:
            matrix = self.layout.by_key[key]
            stored = matrix.stored_lines(lines)
            rows = np.unique(stored)
            ((_, tensor),) = self.checkpoint.stripes({matrix.tensor: stripes_of(rows)}, CONNECTIONS)
            block = matrix.extract_lines(tensor[np.searchsorted(rows, stored)]).clone()
            self._lines[key, lines.tobytes()] = block
        return block

    def leading_rows(self, key: DeltaKey) -> int:
        """All of them."""
        return self.layout.by_key[key].shape[0]

    def close(self) -> None:
        """Close the files and release the memory."""
        self._matrices.clear()
        self._lines.clear()
        self.checkpoint.close()
