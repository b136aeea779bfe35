"""The tensors of a checkpoint by name, with its block matrices by their place: what changes are planted in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from indexer.checkpoints.architectures.layout import Layout
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.checkpoints.stored_tensor import READABLE
from indexer.deltas.base import BaseMatrices, locate_matrices, store_base
from indexer.deltas.vectorise import vectorise
from indexer.names import FAMILIES, DeltaKey
from indexer.records.identity import Spec, Unit
from indexer.records.record import Record
from indexer.sources.registry import ModelRef

# Families whose rows write into the residual stream.
WRITING = frozenset(family for family in FAMILIES if family.endswith(("output", "feedforward2")))


@dataclass(frozen=True)
class Weights:
    """A checkpoint in memory.

    Attributes:
        tensors: all that hold numbers, by name, float32.
        layout: its block matrices.
        embedding: the name of the token embedding.
        config: its config.json.
    """

    tensors: dict[str, torch.Tensor]
    layout: Layout
    embedding: str
    config: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Weights:
        """Read a checkpoint. Raises ModelError."""
        with closing(open_checkpoint(ModelRef(str(folder), folder=folder))) as checkpoint:
            layout = locate_matrices(checkpoint, checkpoint.config)
            numbers = [name for name, info in checkpoint.tensors.items() if info.dtype in READABLE]
            tensors = {name: tensor.float().clone() for name, tensor in checkpoint.stream(numbers)}
            return cls(tensors, layout, checkpoint.token_embedding or "", dict(checkpoint.config))

    def copy(self) -> Weights:
        """With tensors of its own."""
        return replace(self, tensors={name: tensor.clone() for name, tensor in self.tensors.items()})

    @property
    def keys(self) -> tuple[DeltaKey, ...]:
        """Of all block matrices."""
        return tuple(matrix.key for matrix in self.layout.matrices)

    @property
    def width(self) -> int:
        """Of the residual stream."""
        return next(matrix.shape[1] for matrix in self.layout.matrices if matrix.key.family == "query")

    def matrix(self, key: DeltaKey) -> torch.Tensor:
        """A copy of one block matrix (out, in)."""
        matrix = self.layout.by_key[key]
        return matrix.extract(self.tensors[matrix.tensor]).clone()

    def put(self, key: DeltaKey, values: torch.Tensor) -> None:
        """Replace one block matrix."""
        matrix = self.layout.by_key[key]
        tensor = self.tensors[matrix.tensor]
        oriented = tensor.mT if matrix.transposed else tensor
        if matrix.rows is None:
            oriented[...] = values
        else:
            blocks = oriented.unflatten(0, (matrix.rows.groups, matrix.rows.size))
            blocks[:, matrix.rows.start : matrix.rows.stop] = values.unflatten(0, (matrix.rows.groups, -1))

    def of_family(self, *families: str) -> Iterator[DeltaKey]:
        """The matrices of these families."""
        return (key for key in self.keys if key.family in families)

    def with_layers(self, order: Sequence[int]) -> Weights:
        """A network whose layers are these of this one's, in this order."""
        names: dict[str, torch.Tensor] = {}
        layers = {matrix.tensor: matrix.key.layer for matrix in self.layout.matrices}
        prefixes = {_prefix(name, layer): layer for name, layer in layers.items()}
        for name, tensor in self.tensors.items():
            prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
            if prefix is None:
                names[name] = tensor
                continue
            layer = prefixes[prefix]
            head = prefix[: prefix.rindex(str(layer))]
            for place, taken in enumerate(order):
                if taken == layer:
                    names[f"{head}{place}.{name[len(prefix) :]}"] = tensor.clone()
        depth = {name: len(order) for name in ("num_hidden_layers", "n_layer", "num_layers") if name in self.config}
        return replace(self, tensors=names, config={**self.config, **depth})

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write the checkpoint in a dtype."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: tensor.to(dtype).contiguous() for name, tensor in self.tensors.items()}, folder / "model.safetensors"
        )
        (folder / "config.json").write_text(json.dumps(self.config))


def _prefix(name: str, layer: int) -> str:
    parts = name.split(".")
    return ".".join(parts[: parts.index(str(layer)) + 1]) + "."


class Reader:
    """Makes records of checkpoints against one base, as a build does from samples of rows."""

    def __init__(self, base: Path, folder: Path) -> None:
        self.name, self._folder = base.name, folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "base.safetensors"
        with closing(open_checkpoint(ModelRef(str(base), folder=base))) as checkpoint:
            store_base(checkpoint, self.name, "c" * 40, path)
        self.base = BaseMatrices(path)

    def record(self, folder: Path, relation: str = "finetune") -> Record:
        """The record of a checkpoint. Raises ModelError."""
        spec = Spec(sample=self.base.shape.is_partial)
        unit = Unit(ModelRef("x/y", folder=folder), "d" * 40, self.name, "c" * 40, relation, spec, representations=())
        return vectorise(unit, self.base)

    def record_of(self, weights: Weights, dtype: torch.dtype = torch.float32) -> Record:
        """The record of weights that are saved in a dtype. Raises ModelError."""
        folder = self._folder / "model"
        weights.save(folder, dtype)
        try:
            return self.record(folder)
        finally:
            shutil.rmtree(folder)
