"""Some rows of a full checkpoint, and the same rows of a base: what ``weight_match`` compares.

Four layers spread over the depth, 16 rows of four families each: at most MOST_BYTES of a model, whatever its size. The
rows are the first of those that a build samples, so that a base of which only a sample is kept has them too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.checkpoints.architectures.layout import Layout, Matrix
from indexer.checkpoints.checkpoint import Checkpoint
from indexer.checkpoints.stored_tensor import READABLE
from indexer.deltas.identification.bases import ComparedBase
from indexer.deltas.weight_match import LayerRows, Rows, WeightMatch, match_weights
from indexer.errors import Skipped
from indexer.names import CONNECTIONS, FAMILIES, DeltaKey
from indexer.records.row_plan import lines_of, stripes_of
from indexer.untrusted import shown

MOST_LAYERS = 4
MOST_FAMILIES = 4
MOST_ROWS = 16
# Of a model's weights; headers and configurations add up to 2 MB.
MOST_BYTES = 7 << 20
# Read first where a model has them: they read the residual stream, and write into it.
_USUAL = ("query", "output", "feedforward1", "feedforward2")
_WRITING = frozenset(family for family in FAMILIES if family.endswith(("output", "feedforward2")))
# Numbers of whole matrices of one base that are searched for rows in another order, and that are sorted for that.
_MOST_NUMBERS, _MOST_SORTED = 1 << 26, 1 << 24
# Rows with the base's directions were scaled if the lengths of so many changed by another factor (its logarithm).
_SAME_DIRECTIONS, _OTHER_LENGTH, _SHARE_OF_ROWS = 0.5, 0.3, 0.2


@dataclass(frozen=True)
class RowComparison:
    """How the rows of a model are like those of a base.

    ``distance``: the norm of the difference over that of the base's rows, where they stand in the same places; inf if
    none do. ``is_equal``: all numbers are the same, or ``is_rounded``: are the base's, rounded to the model's dtype.
    ``is_rescaled``: rows have the base's directions and other lengths.
    """

    match: WeightMatch
    distance: float
    is_equal: bool
    is_rounded: bool
    is_rescaled: bool
    rows: int
    layers: int
    base_layers: int


@dataclass
class SampledRows:
    """Sampled rows of a full checkpoint: rows of its matrices as one architecture places them.

    ``most_layers``: of how many layers, spread over the depth.
    """

    checkpoint: Checkpoint
    most_layers: int = MOST_LAYERS
    _read: dict[tuple[str, bytes], torch.Tensor] = field(default_factory=dict)

    def compare(self, base: ComparedBase) -> RowComparison:
        """Compare with one base. Raises Skipped with the reason if they have no matrices in common."""
        of_model, of_base, dtype, depths = self._read_like(base)
        if not all(np.isfinite(layer_rows.rows).all() for layer_rows in of_model):
            raise Skipped("not_finite", "its weights hold NaN or infinite values")
        match = match_weights(of_model, of_base)
        return _with_distance(match, of_model, of_base, dtype, *depths)

    def change(self, base: ComparedBase) -> NDArray[np.float32]:
        """What is left of the same rows without the base's, one after another; () if they have other shapes."""
        of_model, of_base, _, _ = self._read_like(base)
        pieces = []
        for layer_rows in of_model:
            layers = of_base.layers(layer_rows.family)
            rows = (
                of_base.rows(layer_rows.layer, layer_rows.family, layer_rows.places)
                if layer_rows.layer in layers
                else None
            )
            if rows is None or rows.shape != layer_rows.rows.shape:
                return np.zeros(0, np.float32)
            pieces.append((layer_rows.rows - rows).ravel())
        return np.concatenate(pieces)

    def _read_like(self, base: ComparedBase) -> tuple[list[LayerRows], _BaseRows, torch.dtype, tuple[int, int]]:
        """Rows of matrices that a base has too, the base, the dtype of the model, and the layers of both."""
        layout = layout_like(self.checkpoint, base)
        stack = _common_stack(base.layout, layout)
        base_matrices = _by_family(base.layout, stack)
        model_matrices = {
            family: {
                layer: matrix for layer, matrix in layers.items() if _is_like(matrix, base_matrices.get(family, {}))
            }
            for family, layers in _by_family(layout, stack).items()
        }
        model_matrices = {family: layers for family, layers in model_matrices.items() if layers}
        if not model_matrices:
            raise Skipped("shape_mismatch", _difference(layout, base.layout))
        order = (*_USUAL, *(family for family in FAMILIES if family not in _USUAL))
        families = [family for family in order if family in model_matrices][:MOST_FAMILIES]
        layers = _spread(sorted({layer for family in families for layer in model_matrices[family]}), self.most_layers)
        matrices = [
            model_matrices[family][layer] for layer in layers for family in families if layer in model_matrices[family]
        ]
        lines = self._lines(matrices)
        of_model = [
            LayerRows(matrix.key.layer, matrix.key.family, _as_rows(matrix, values), lines[matrix.key], _reads(matrix))
            for matrix, values in zip(matrices, self._rows(matrices, lines), strict=True)
        ]
        of_base = _BaseRows(base, base_matrices, families, layers)
        dtype = self.checkpoint.tensors[matrices[0].tensor].dtype
        return of_model, of_base, dtype, (_depth(layout, stack), _depth(base.layout, stack))

    def _lines(self, matrices: Sequence[Matrix]) -> dict[DeltaKey, NDArray[np.int64]]:
        """The rows that are read of each matrix (input coordinates of a transposed one)."""
        widths = [matrix.stored_rows if matrix.transposed else matrix.shape[1] for matrix in matrices]
        size = sum(
            width * self.checkpoint.tensors[matrix.tensor].dtype.itemsize
            for matrix, width in zip(matrices, widths, strict=True)
        )
        most = max(4, min(MOST_ROWS, MOST_BYTES // max(size, 1)))
        return {matrix.key: lines_of(matrix.lines, min(most, matrix.lines)) for matrix in matrices}

    def _rows(self, matrices: Sequence[Matrix], lines: Mapping[DeltaKey, NDArray[np.int64]]) -> list[torch.Tensor]:
        """Rows of the matrices; those that were read for another base are not read again."""
        stored = {matrix.key: matrix.stored_lines(lines[matrix.key]) for matrix in matrices}
        of_tensor: dict[str, list[NDArray[np.int64]]] = {}
        for matrix in matrices:
            of_tensor.setdefault(matrix.tensor, []).append(stored[matrix.key])
        rows_of = {name: np.unique(np.concatenate(row_numbers)) for name, row_numbers in of_tensor.items()}
        missing = {name: rows for name, rows in rows_of.items() if (name, rows.tobytes()) not in self._read}
        if missing:
            stripes = {name: stripes_of(rows) for name, rows in missing.items()}
            for name, tensor in self.checkpoint.stripes(stripes, CONNECTIONS):
                self._read[name, missing[name].tobytes()] = tensor.clone()
        rows_read = []
        for matrix in matrices:
            rows = rows_of[matrix.tensor]
            tensor = self._read[matrix.tensor, rows.tobytes()]
            rows_read.append(matrix.extract_lines(tensor[np.searchsorted(rows, stored[matrix.key])]))
        return rows_read


def layout_like(checkpoint: Checkpoint, base: ComparedBase) -> Layout:
    """The matrices of a model as the base's architecture names them. Raises Skipped."""
    architecture = load_architecture(str(base.config.get("model_type")))
    config = checkpoint.config
    is_alike = config.get("model_type") in architecture.model_types
    shapes = {name: info.shape for name, info in checkpoint.tensors.items() if info.dtype in READABLE}
    try:
        return architecture.locate(shapes, config if is_alike else {**config, **base.config})
    except Skipped as problem:
        if is_alike or "model_type" not in config:
            raise
        reason = (
            f"another architecture, {base.config.get('model_type')}; the model is {shown(config['model_type'], 40)}"
        )
        raise Skipped("shape_mismatch", reason) from problem


class _BaseRows:
    """A stored base as ``weight_match`` reads it: one stack, in which layers are numbered from 0."""

    def __init__(
        self,
        base: ComparedBase,
        matrices: Mapping[str, Mapping[int, Matrix]],
        families: Sequence[str],
        layers: Sequence[int],
    ) -> None:
        self._base, self._matrices = base, matrices
        self._layers = {family: sorted(by_layer) for family, by_layer in matrices.items()}
        # Small families first, as many as may be searched whole: all layers of one, or some of those to be sorted.
        self._searched: set[tuple[int, str, bool]] = set()
        numbers_left, left_sorted = _MOST_NUMBERS, _MOST_SORTED
        for family in sorted(families, key=lambda name: math.prod(_shape(matrices[name]))):
            size = math.prod(_shape(matrices[family]))
            numbers_left -= size * len(layers)
            for layer in layers if numbers_left >= 0 and not base.is_sampled else ():
                left_sorted -= size
                self._searched |= {(layer, family, False)} | ({(layer, family, True)} if left_sorted >= 0 else set())

    def layers(self, family: str) -> Sequence[int]:
        """See ``BaseWeights``."""
        return self._layers.get(family, ())

    def rows(self, layer: int, family: str, places: NDArray[np.int64]) -> Rows | None:
        """See ``BaseWeights``."""
        matrix = self._matrices[family][layer]
        if places.max(initial=0) >= matrix.lines:
            return None
        return _as_rows(matrix, self._base.lines(matrix.key, places))

    def whole(self, layer: int, family: str, *, is_sorted: bool = False) -> Rows | None:
        """See ``BaseWeights``."""
        if (layer, family, is_sorted) not in self._searched:
            return None
        matrix = self._matrices[family][layer]
        return _as_rows(matrix, self._base.matrix(matrix.key))


def _as_rows(matrix: Matrix, values: torch.Tensor) -> Rows:
    """As rows of numbers that lie together in a checkpoint: of a transposed matrix its columns."""
    rows: Rows = (values.mT if matrix.transposed else values).float().numpy()
    return rows


def _reads(matrix: Matrix) -> bool:
    """Whether the columns of ``_as_rows`` are coordinates of the residual stream."""
    return (matrix.key.family not in _WRITING) != matrix.transposed


def _by_family(layout: Layout, stack: str) -> dict[str, dict[int, Matrix]]:
    by_family: dict[str, dict[int, Matrix]] = {}
    for matrix in layout.matrices:
        if matrix.key.stack == stack:
            by_family.setdefault(matrix.key.family, {})[matrix.key.layer] = matrix
    return by_family


def _common_stack(base: Layout, layout: Layout) -> str:
    """The deepest stack that both have. Raises Skipped if there is none."""
    common = set(base.depth) & set(layout.depth)
    if not common:
        raise Skipped("shape_mismatch", _difference(layout, base))
    return max(common, key=lambda stack: (base.depth[stack], stack))


def _depth(layout: Layout, stack: str) -> int:
    return layout.depth.get(stack, 0)


def _shape(layers: Mapping[int, Matrix]) -> tuple[int, int]:
    return next(iter(layers.values())).shape


def _is_like(matrix: Matrix, layers: Mapping[int, Matrix]) -> bool:
    """Whether rows of a matrix have the length of those of the base's family."""
    if not layers:
        return False
    other = next(iter(layers.values()))
    width = matrix.shape[0] if matrix.transposed else matrix.shape[1]
    return matrix.transposed == other.transposed and width == (other.shape[0] if other.transposed else other.shape[1])


def _difference(layout: Layout, base: Layout) -> str:
    """The first family whose shapes differ, in words."""
    base_shapes = {(matrix.key.stack, matrix.key.family): matrix.shape for matrix in base.matrices}
    for matrix in layout.matrices:
        expected = base_shapes.get((matrix.key.stack, matrix.key.family))
        if expected is not None and expected != matrix.shape:
            ours, other = (f"{rows} × {columns}" for rows, columns in (matrix.shape, expected))
            return f"other shapes: its {matrix.key.family} is {ours}, the base's {other}"
    return "other matrices"


def _spread(layers: Sequence[int], count: int) -> list[int]:
    """Up to ``count`` of the layers, from the first to the last."""
    positions = np.linspace(0, len(layers) - 1, min(count, len(layers))).round().astype(int)
    return [layers[position] for position in dict.fromkeys(positions.tolist())]


def _with_distance(
    match: WeightMatch,
    model: Sequence[LayerRows],
    base: _BaseRows,
    dtype: torch.dtype,
    layers: int,
    base_layers: int,
) -> RowComparison:
    squares = size = 0.0
    ratios: list[NDArray[np.float64]] = []
    is_equal = is_rounded = layers == base_layers
    for layer_rows in model:
        layer = match.nearest_layers.get(layer_rows.layer, layer_rows.layer)
        base_rows = (
            base.rows(layer, layer_rows.family, layer_rows.places) if layer in base.layers(layer_rows.family) else None
        )
        if base_rows is None or base_rows.shape != layer_rows.rows.shape:
            is_equal = is_rounded = False
            continue
        lengths = [np.linalg.norm(values.astype(np.float64), axis=1) for values in (layer_rows.rows, base_rows)]
        ratios.append(np.log(np.maximum(lengths[0], 1e-12) / np.maximum(lengths[1], 1e-12)))
        squares += float(np.sum((layer_rows.rows.astype(np.float64) - base_rows) ** 2))
        size += float(np.sum(base_rows.astype(np.float64) ** 2))
        is_equal &= layer == layer_rows.layer and bool(np.array_equal(layer_rows.rows, base_rows))
        if is_rounded and not is_equal:
            rounded = torch.from_numpy(base_rows).to(dtype).float().numpy() if dtype.is_floating_point else None
            is_rounded = (
                layer == layer_rows.layer and rounded is not None and bool(np.array_equal(layer_rows.rows, rounded))
            )
    distance = math.sqrt(squares / size) if size else math.inf
    count = sum(len(layer_rows.rows) for layer_rows in model)
    changes = np.concatenate(ratios) if ratios else np.zeros(1)
    share = float(np.mean(np.abs(changes - np.median(changes)) > _OTHER_LENGTH))
    is_rescaled = match.effects.get("rows", 0.0) > _SAME_DIRECTIONS and share > _SHARE_OF_ROWS
    return RowComparison(
        match, distance, is_equal, is_rounded and not is_equal, is_rescaled, count, layers, base_layers
    )
