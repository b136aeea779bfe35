"""Checkpoints saved by torch, and read both ways."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from indexer.checkpoints.stored_tensor import Buffers, TensorIndex
from indexer.checkpoints.torch_files import read_torch_index
from indexer.errors import Skipped
from indexer.network.byterange import LocalFile

FORMS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def save(value: Any, path: Path, zipped: bool) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


def load(path: Path, index: TensorIndex, file: LocalFile, name: str) -> torch.Tensor:
    stored = index.locate(name)
    run = file.run(stored.start, stored.stop)
    try:
        return stored.load(run, Buffers())
    finally:
        run.close()


def check_against_torch(path: Path, expected: dict[str, torch.Tensor]) -> None:
    """Every tensor as torch.load gives it: values, dtype, shape, stride, and memory that is not shared."""
    file = LocalFile(path)
    index = read_torch_index(file)
    assert set(index.tensors) == set(expected)
    for name, tensor in expected.items():
        info = index.tensors[name]
        assert (info.dtype, info.shape) == (tensor.dtype, tuple(tensor.shape)), name
        assert info.nbytes == tensor.numel() * tensor.itemsize
        loaded = load(path, index, file, name)
        assert loaded.dtype == tensor.dtype
        assert loaded.stride() == tensor.stride()
        assert torch.equal(loaded, tensor), name
        again = load(path, index, file, name)
        assert not tensor.numel() or again.data_ptr() != loaded.data_ptr()


def skipped(path: Path) -> Skipped:
    with pytest.raises(Skipped) as skip:
        read_torch_index(LocalFile(path))
    return skip.value


def zip_with_pickle(path: Path, content: bytes, more: dict[str, bytes] | None = None) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        for name, entry in (more or {}).items():
            archive.writestr(f"archive/{name}", entry)
        archive.writestr("archive/version", "3\n")
    return path
