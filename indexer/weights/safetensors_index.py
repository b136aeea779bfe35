"""Reads tensors of safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from indexer.network.byterange import ByteSource, Run
from indexer.weights.safetensors_header import MOST_HEADER, read_header
from indexer.weights.stored_tensor import DTYPES, Buffers, TensorInfo, check_readable, info_of_rows


@dataclass(frozen=True)
class SafetensorsTensor:
    """A tensor in [start, stop) of the file, stored as in memory."""

    info: TensorInfo
    start: int
    stop: int

    def load(self, run: Run, buffers: Buffers) -> torch.Tensor:
        """The tensor, contiguous."""
        return buffers.load_flat(run, self.stop - self.start, self.info.dtype).reshape(self.info.shape)


@dataclass(frozen=True)
class SafetensorsIndex:
    """The tensors by name, and the file's ``metadata``."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    _located: Mapping[str, SafetensorsTensor]
    format: str = "safetensors"

    def locate(self, name: str) -> SafetensorsTensor:
        """The place of ``name``. Raises KeyError."""
        return self._located[name]

    def locate_rows(self, name: str, rows: range) -> SafetensorsTensor:
        """The place of some rows of the matrix ``name``. Raises KeyError, Skipped("shape_mismatch")."""
        tensor = self._located[name]
        info, offset = info_of_rows(tensor.info, rows)
        return SafetensorsTensor(info, tensor.start + offset, tensor.start + offset + info.nbytes)

    def read(self, source: ByteSource, name: str) -> torch.Tensor:
        """Read one tensor. Raises KeyError, Failed, Skipped("unreadable_dtype")."""
        tensor = self._located[name]
        check_readable(tensor.info)
        run = source.run(tensor.start, tensor.stop)
        try:
            return tensor.load(run, Buffers())
        finally:
            run.close()


def read_index(source: ByteSource, most: int = MOST_HEADER) -> SafetensorsIndex:
    """Read and check the header; raises like :func:`indexer.weights.safetensors_header.read_header`."""
    header = read_header(source, most)
    located: dict[str, SafetensorsTensor] = {}
    for name, entry in header.entries.items():
        dtype = DTYPES.get(entry.dtype, torch.uint8)
        info = TensorInfo(entry.name, dtype, entry.shape, entry.nbytes, entry.dtype)
        located[name] = SafetensorsTensor(info, entry.start, entry.stop)
    return SafetensorsIndex(
        tensors=MappingProxyType({name: tensor.info for name, tensor in located.items()}),
        metadata=header.metadata,
        _located=MappingProxyType(located),
    )
