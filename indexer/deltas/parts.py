"""Parts of a model's block matrices for questions of lineage: the leading rows of a few of them, read by range.

Small parts of a few matrices show which model was made from which: eight parts of 256 KiB, of different families and
depths, are 2 MB of a roberta-base whose block matrices take 340 MB. Some rows of the token embeddings are read as well:
training does not change the rows of words that do not occur in its data, so these rows show which trainings two models
have in common. Nothing is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property

import torch

from indexer.checkpoints.adapter import adapter_plan
from indexer.checkpoints.architectures.layout import Matrix
from indexer.checkpoints.checkpoint import Checkpoint, open_checkpoint
from indexer.checkpoints.stored_tensor import dtype_name
from indexer.deltas.adapter_deltas import deltas_on, dense
from indexer.deltas.base import published_matrices
from indexer.deltas.delta import LoraDelta, layout_against
from indexer.deltas.rounding import narrowest_dtype
from indexer.deltas.single import Described
from indexer.errors import ModelError, Skipped
from indexer.names import STACKS, DeltaKey
from indexer.network.hub_errors import model_errors
from indexer.network.rows import commit_of, listed_filenames
from indexer.network.session import install_session
from indexer.records.parts import Extent, Floats, LoraFactors, ModelParts
from indexer.sources.claims import untyped_relation
from indexer.sources.registry import ModelRef
from indexer.vectors.published import PublishedBase

MATRICES = 8
_PART_BYTES = 256 << 10
_TOKEN_BYTES = 768 << 10
# Rows are read from this share of the vocabulary on: the first words occur in every text, the last in few.
_TOKENS_FROM = 1 / 3
# A part has at least this many rows, so that the rank of a LoRA shows in it.
LEAST_ROWS = 32


class Parts:
    """The parts of block matrices that are read from every model of a base, and the base's own parts.

    ``changed``: names of the deltas that the model in question changed; other matrices carry no evidence. Raises
    AtlasError if the base's matrices are not in the atlas.
    """

    def __init__(self, base: PublishedBase, changed: Collection[str] | None = None) -> None:
        self._base = published_matrices(base)
        self._published = base
        self._leading: dict[str, int] = {}
        self.extents: dict[DeltaKey, Extent] = {}
        layout = self._base.layout
        for tensor in _spread(list(layout.by_tensor.items()), changed):
            matrices = layout.by_tensor[tensor]
            rows = _leading_rows(matrices[0], self._base.item_bytes)
            rows = self._leading[tensor] = min(rows, self._base.leading_rows(matrices[0].key))
            for matrix in matrices:
                width = matrix.stored_rows if matrix.transposed else matrix.shape[1]
                shape = _cut(matrix, torch.empty((rows, width), device="meta")).shape
                extent = Extent(shape[0], shape[1], matrix.transposed)
                if extent.rows and extent.columns:
                    self.extents[matrix.key] = extent

    @cached_property
    def base_weights(self) -> dict[DeltaKey, torch.Tensor]:
        """The base's parts in its own dtype, from the atlas."""
        with closing(self._base) as base:
            return {key: base.leading(key, extent.rows, extent.columns).clone() for key, extent in self.extents.items()}

    @property
    def names(self) -> list[str]:
        """The deltas' names, in the order of the base's layout."""
        return [str(key) for key in sorted(self.extents, key=lambda key: key.sort_key)]

    def read_base(self) -> ModelParts:
        """Only the base's embeddings, from the Hub: its matrices are in the atlas. Raises ModelError."""
        reference = replace(ModelRef.of_atlas(self._published.base), subfolder=self._base.component)
        with _opened(reference, self._published.commit, "finetune", None, None) as checkpoint:
            tokens = _tokens(checkpoint)
            narrow = torch.float32 if tokens is None else narrowest_dtype(torch.from_numpy(tokens))
            return ModelParts({}, {}, dtype_name(narrow), checkpoint.bytes_read, is_adapter=False, tokens=tokens)

    def read_described(self, described: Described) -> ModelParts:
        """The parts of a described model. Raises ModelError."""
        reference, row = described.reference, described.row
        return self.read(reference, commit_of(row), untyped_relation(row), listed_filenames(row))

    def read(
        self,
        reference: ModelRef,
        commit: str | None,
        relation: str,
        filenames: Sequence[str] | None = None,
        most_small: int | None = None,
    ) -> ModelParts:
        """The parts of one model, from its folder, the cache or the Hub.

        Known ``filenames`` save a request. ``most_small``: the most bytes that a configuration or header may have.
        Raises ModelError if the model cannot be read or does not have the base's shape.
        """
        component = self._base.component
        if component and relation != "adapter":
            if filenames is None or any(name.startswith(f"{component}/") for name in filenames):
                reference = replace(reference, subfolder=component)
        try:
            with _opened(reference, commit, relation, filenames, most_small) as checkpoint:
                return self._parts_of(checkpoint)
        except ModelError as error:
            if filenames is None or not (isinstance(error, Skipped) or error.reason == "not_found"):
                raise
        # The atlas names other files, for example if the weights are in a pull request of the Hub's converter.
        with _opened(reference, commit, relation, None, most_small) as checkpoint:
            return self._parts_of(checkpoint)

    def _parts_of(self, checkpoint: Checkpoint) -> ModelParts:
        is_adapter = checkpoint.kind == "adapter"
        weights: dict[str, Floats] = {}
        deltas: dict[str, Floats] = {}
        factors: dict[str, LoraFactors] = {}
        widest = None
        parts = self._adapter_deltas(checkpoint, factors) if is_adapter else self._stored_weights(checkpoint)
        for key, part in parts:
            base = self.base_weights[key]
            if is_adapter:
                weight, delta = base.float() + part, part
            else:
                narrow = narrowest_dtype(part)
                if widest is None or torch.finfo(narrow).eps < torch.finfo(widest).eps:
                    widest = narrow
                weight, delta = part.float(), part.float() - base.to(narrow).to(part.dtype).float()
            if not torch.isfinite(delta).all():
                raise Skipped("not_finite", f"its matrix {key} holds NaN or infinite values")
            weights[str(key)], deltas[str(key)] = weight.numpy(), delta.numpy()
        tokens = None if is_adapter else _tokens(checkpoint)
        precision = dtype_name(widest or torch.float32)
        return ModelParts(
            weights, deltas, precision, checkpoint.bytes_read, is_adapter=is_adapter, tokens=tokens,
            own=deltas if is_adapter else {}, factors=factors,
        )  # fmt: skip

    def _stored_weights(self, checkpoint: Checkpoint) -> Iterator[tuple[DeltaKey, torch.Tensor]]:
        """The parts of a full checkpoint; of a tensor that it stores in another way than the base, all rows."""
        layout = layout_against(checkpoint, self._base)
        of_base = self._base.layout.by_key
        rows_by_name: dict[str, range] = {}
        for matrix in layout.matrices:
            if matrix.key in self.extents:
                base_matrix, name = of_base[matrix.key], matrix.tensor
                is_stored_alike = (base_matrix.transposed, base_matrix.rows) == (matrix.transposed, matrix.rows)
                all_rows = matrix.leading or checkpoint.tensors[name].shape[0]
                rows = self._leading[base_matrix.tensor] if is_stored_alike else all_rows
                rows_by_name[name] = range(max(len(rows_by_name.get(name, ())), rows))
        for name, tensor in checkpoint.rows(rows_by_name):
            for matrix in layout.by_tensor[name]:
                if (extent := self.extents.get(matrix.key)) is not None:
                    yield matrix.key, _cut(matrix, tensor)[: extent.rows, : extent.columns]

    def _adapter_deltas(
        self, checkpoint: Checkpoint, factors: dict[str, LoraFactors]
    ) -> Iterator[tuple[DeltaKey, torch.Tensor]]:
        """The parts of an adapter's deltas; zeros for matrices that it does not change.

        ``factors`` receives the factors of a LoRA. A change that depends on W is computed from the base's W.
        """
        parts = {key: torch.zeros(extent.rows, extent.columns) for key, extent in self.extents.items()}
        plan = adapter_plan(checkpoint)
        is_lora = plan.peft_type == "LORA" and plan.start is None
        for delta in deltas_on(checkpoint, self._base, only=self.extents):
            if (extent := self.extents.get(delta.key)) is None:
                continue
            if isinstance(delta, LoraDelta):
                parts[delta.key] = delta.scale * (delta.b[: extent.rows] @ delta.a[:, : extent.columns])
                if is_lora:
                    narrow = narrowest_dtype(torch.cat((delta.a.flatten(), delta.b.flatten())))
                    a, b = (part.clone().numpy() for part in (delta.a, delta.b))
                    factors[str(delta.key)] = LoraFactors(a, b, float(delta.scale), dtype_name(narrow))
            else:
                changed = dense(delta, self._base.matrix(delta.key)).matrix
                parts[delta.key] = changed[: extent.rows, : extent.columns].clone()
        yield from parts.items()


@contextmanager
def _opened(
    reference: ModelRef, commit: str | None, relation: str, filenames: Sequence[str] | None, most_small: int | None
) -> Iterator[Checkpoint]:
    """The checkpoint of a model; unexpected errors are raised as ModelError."""
    install_session()
    torch.set_num_threads(1)
    with model_errors():
        checkpoint = open_checkpoint(
            reference, commit=commit, filenames=filenames, relation=relation, most_small=most_small,
            conversion=lambda: reference.source.conversion(reference),
        )  # fmt: skip
        with closing(checkpoint):
            yield checkpoint


def _tokens(checkpoint: Checkpoint) -> Floats | None:
    """Rows of the token embeddings, chosen by their number alone so that models can be compared."""
    name = checkpoint.token_embedding
    if name is None:
        return None
    info = checkpoint.tensors[name]
    first = int(_TOKENS_FROM * info.shape[0]) // 1000 * 1000  # vocabularies of fine-tunes grow by a few words
    count = min(_TOKEN_BYTES // (4 * max(info.shape[1], 1)), info.shape[0] - first)
    ((_, rows),) = checkpoint.rows({name: range(first, first + count)})
    return rows.float().numpy()


def _spread(tensors: Sequence[tuple[str, tuple[Matrix, ...]]], changed: Collection[str] | None) -> list[str]:
    """MATRICES tensors, spread evenly over the layers, with the families taking turns."""
    usable = [
        (name, matrices)
        for name, matrices in tensors
        if changed is None or any(str(matrix.key) in changed for matrix in matrices)
    ]
    layers = sorted({_layer(matrices[0]) for _, matrices in usable})
    families = list(dict.fromkeys((matrices[0].key.stack, matrices[0].key.family) for _, matrices in usable))
    by_layer: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for name, matrices in usable:
        key = matrices[0].key
        by_layer.setdefault(_layer(matrices[0]), []).append((name, families.index((key.stack, key.family))))
    names: list[str] = []
    for turn in range(min(MATRICES, len(usable))):
        layer = layers[round(turn * (len(layers) - 1) / max(MATRICES - 1, 1))]
        unused = [(name, family) for name, family in by_layer[layer] if name not in names]
        unused = unused or [
            (name, family) for pairs in by_layer.values() for name, family in pairs if name not in names
        ]
        names.append(min(((family - turn) % len(families), name) for name, family in unused)[1])
    return names


def _layer(matrix: Matrix) -> tuple[int, int]:
    """Stack and layer, as numbers in order."""
    return STACKS.index(matrix.key.stack), matrix.key.layer


def _leading_rows(matrix: Matrix, item_bytes: int) -> int:
    """The number of stored rows in a part; whole groups for interleaved matrices."""
    stored = (matrix.shape[1], matrix.stored_rows) if matrix.transposed else (matrix.stored_rows, matrix.shape[1])
    rows = max(LEAST_ROWS, _PART_BYTES // (stored[1] * item_bytes))
    if matrix.rows is not None and not matrix.transposed and matrix.rows.groups > 1:
        rows = max(rows // matrix.rows.size, 1) * matrix.rows.size
    return min(rows, stored[0])


def _cut(matrix: Matrix, leading: torch.Tensor) -> torch.Tensor:
    """The matrix's part of the leading rows of its tensor, (out, in)."""
    if matrix.transposed:
        oriented = leading.mT
        return matrix.rows.take(oriented) if matrix.rows else oriented
    if matrix.rows is None:
        return leading
    if matrix.rows.groups == 1:
        return leading[matrix.rows.start : matrix.rows.stop]
    groups = leading.shape[0] // matrix.rows.size
    blocks = leading[: groups * matrix.rows.size].unflatten(0, (groups, matrix.rows.size))
    return blocks[:, matrix.rows.start : matrix.rows.stop].flatten(0, 1)
