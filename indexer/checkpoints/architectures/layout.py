"""Where the block matrices lie in the tensors of one checkpoint, and how to extract them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexer.errors import Skipped
from indexer.names import DeltaKey
from indexer.untrusted import shown

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Rows of a fused tensor: from ``start`` to ``stop`` in each of ``groups`` blocks of ``size`` rows."""

    groups: int
    size: int
    start: int
    stop: int

    @property
    def total(self) -> int:
        """The number of rows."""
        return self.groups * (self.stop - self.start)

    def take(self, tensor: Tensor) -> Tensor:
        """(groups·size, …) → (total, …): a view where the rows are consecutive, a copy otherwise."""
        blocks = tensor.unflatten(0, (self.groups, self.size))
        return blocks[:, self.start : self.stop].flatten(0, 1)


@dataclass(frozen=True)
class Matrix:
    """One block matrix in one checkpoint.

    - ``tensor``: the full name of the tensor that holds it; ``shape``: its own (out features, in features).
    - ``transposed``: the checkpoint stores it (in × out).
    - ``fused``, ``rows``: if the tensor holds several matrices, the name of all of them ("query_key_value"), and the
      rows of this matrix.
    - ``leading``: if the tensor stacks the matrices of several experts, the number of rows of the first expert, which
      come first if the tensor counts as one matrix.
    """

    key: DeltaKey
    tensor: str
    shape: tuple[int, int]
    transposed: bool = False
    rows: Rows | None = None
    fused: str | None = None
    leading: int | None = None

    def stored_lines(self, lines: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of the stored tensor that hold these rows of the matrix (input coordinates, if ``transposed``)."""
        if self.rows is None or self.transposed:
            return lines
        group, row = np.divmod(lines, self.rows.stop - self.rows.start)
        return group * self.rows.size + self.rows.start + row

    @property
    def lines(self) -> int:
        """How many rows it has; if it is ``transposed``, how many input coordinates."""
        return self.shape[1] if self.transposed else self.shape[0]

    def extract_lines(self, stored: Tensor) -> Tensor:
        """The rows ``stored_lines`` of the stored tensor → these rows of the matrix, (rows, in).

        If it is ``transposed``: (out, coordinates). Raises Skipped("shape_mismatch") for rows of another length.
        """
        width = self.stored_rows if self.transposed else self.shape[1]
        if stored.shape[1] != width:
            rows_read = f"rows of {stored.shape[1]} numbers"
            raise Skipped("shape_mismatch", f"{shown(self.tensor, 200)} holds {rows_read}, its header said {width}")
        if not self.transposed:
            return stored
        return self.rows.take(stored.mT) if self.rows else stored.mT

    @property
    def stored_rows(self) -> int:
        """The out features of the whole tensor."""
        return self.rows.groups * self.rows.size if self.rows else self.shape[0]

    def extract(self, tensor: Tensor) -> Tensor:
        """The stored tensor → this matrix, (out, in), same dtype; a view where possible.

        Raises Skipped("shape_mismatch") if the tensor does not have the shape in its header.
        """
        oriented = tensor.mT if self.transposed and tensor.ndim == 2 else tensor
        if tuple(oriented.shape) != (self.stored_rows, self.shape[1]):
            raise Skipped(
                "shape_mismatch",
                f"{shown(self.tensor, 200)} holds {tuple(oriented.shape)} (out × in), "
                f"its header said {(self.stored_rows, self.shape[1])}",
            )
        return self.rows.take(oriented) if self.rows else oriented

    def extract_lora(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """PEFT's A (r, in) and B (out of the whole module, r) → A and B of this matrix.

        δW = s·B@A is (out, in); s is not applied.
        PEFT's factors do not depend on the checkpoint's orientation, so nothing is transposed here.
        Raises Skipped("shape_mismatch") if the shapes of the factors do not match.
        """
        fits = a.ndim == b.ndim == 2 and b.shape == (self.stored_rows, a.shape[0]) and a.shape[1] == self.shape[1]
        if not fits:
            raise Skipped(
                "shape_mismatch",
                f"LoRA factors {tuple(b.shape)} and {tuple(a.shape)} do not make the "
                f"{self.stored_rows} × {self.shape[1]} of {shown(self.tensor, 200)}",
            )
        return a, (self.rows.take(b) if self.rows else b)


@dataclass(frozen=True)
class Layout:
    """An architecture applied to one checkpoint; ``matrices`` are sorted by ``DeltaKey.sort_key``."""

    architecture: str
    prefix: str
    matrices: tuple[Matrix, ...]

    @cached_property
    def by_tensor(self) -> dict[str, tuple[Matrix, ...]]:
        """The matrices that lie in each tensor."""
        table: dict[str, list[Matrix]] = defaultdict(list)
        for matrix in self.matrices:
            table[matrix.tensor].append(matrix)
        return {name: tuple(matrices) for name, matrices in table.items()}

    @cached_property
    def leading_rows(self) -> dict[str, range]:
        """The rows to read of tensors that stack the matrices of several experts."""
        return {matrix.tensor: range(matrix.leading) for matrix in self.matrices if matrix.leading is not None}

    @cached_property
    def by_key(self) -> dict[DeltaKey, Matrix]:
        """The matrices by their keys."""
        return {matrix.key: matrix for matrix in self.matrices}

    @property
    def tensors(self) -> tuple[str, ...]:
        """The distinct tensors to read."""
        return tuple(self.by_tensor)

    @cached_property
    def fused_matrices(self) -> tuple[tuple[DeltaKey, ...], ...]:
        """For each fused tensor the keys of the matrices that it consists of."""
        groups = (matrices for matrices in self.by_tensor.values() if matrices[0].fused)
        return tuple(tuple(matrix.key for matrix in matrices) for matrices in groups)

    @cached_property
    def depth(self) -> dict[str, int]:
        """The number of layers of each stack."""
        return dict(Counter(stack for stack, _ in {(matrix.key.stack, matrix.key.layer) for matrix in self.matrices}))


def compare(base: Layout, layout: Layout) -> None:
    """Check that a fine-tune has the base's matrices.

    Raises Skipped: ``layer_mismatch`` with both depths, ``shape_mismatch`` with the first matrix that differs and both
    shapes (or both ways to divide a fused tensor), ``missing_matrices`` if one has a family that the other lacks.
    """
    if base.depth != layout.depth:
        raise Skipped("layer_mismatch", f"it has {_depth(layout)}, the base has {_depth(base)}")
    matrices, base_matrices = layout.by_key, base.by_key
    for key in sorted(matrices.keys() ^ base_matrices.keys(), key=lambda key: key.sort_key)[:1]:
        has, lacks = ("the base", "it") if key in base_matrices else ("it", "the base")
        raise Skipped("missing_matrices", f"{has} has the matrix {key}, {lacks} does not")
    for key, base_matrix in base_matrices.items():
        matrix = matrices[key]
        if matrix.shape != base_matrix.shape:
            raise Skipped("shape_mismatch", f"its matrix {key} is {matrix.shape}, the base's is {base_matrix.shape}")
        if matrix.rows and base_matrix.rows and matrix.rows != base_matrix.rows:
            raise Skipped(
                "shape_mismatch",
                f"its config.json cuts the matrix {key} from {matrix.fused} in {matrix.rows.groups} groups, "
                f"the base's in {base_matrix.rows.groups}",
            )


def _depth(layout: Layout) -> str:
    return ", ".join(f"{count} {stack} layers".replace("  ", " ") for stack, count in sorted(layout.depth.items()))
