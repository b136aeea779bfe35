"""Damaged and hostile files end in one reason, whatever a byte of their headers says."""

from __future__ import annotations

import struct
from contextlib import closing

import numpy as np
import pytest

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.errors import ModelError, Skipped
from indexer.sources.registry import ModelRef
from studies.conversions import families, writers

CONFIG = families.config_of("llama", layers=1, width=64, inner=64)
WEIGHTS = families.base_weights(CONFIG)


def read_all(folder):
    """Opens a folder and reads every matrix; returns what was read of how many."""
    with closing(open_checkpoint(ModelRef(str(folder), folder=folder))) as checkpoint:
        rows = {name: [range(min(4, matrix.shape[0]))] for name, matrix in checkpoint.quantised.items()}
        return len([coded.values() for _, coded in checkpoint.coded(rows)])


def gguf_bytes(tmp_path):
    return writers.write_gguf(tmp_path / "made" / "m.gguf", CONFIG, WEIGHTS, "Q8_0").read_bytes()


def onnx_bytes(tmp_path):
    return writers.write_onnx(tmp_path / "made" / "model.onnx", CONFIG, WEIGHTS, external=False).read_bytes()


@pytest.mark.parametrize(("name", "content"), [("m.gguf", gguf_bytes), ("model.onnx", onnx_bytes)])
def test_any_damage_is_a_reason(tmp_path, name, content):
    whole = content(tmp_path)
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    rng = np.random.default_rng(0)
    header = 4000 if name == "m.gguf" else len(whole)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(250):
        damaged = bytearray(whole)
        kind = rng.integers(3)
        if kind == 0:
            del damaged[int(rng.integers(len(whole))) :]
        else:
            at = int(rng.integers(header - 8))
            value = (0, 1, 255, 2**31, 2**63 - 1, 2**64 - 1)[rng.integers(6)]
            damaged[at : at + (1 if kind == 1 else 8)] = struct.pack("<Q", value)[: 1 if kind == 1 else 8]
        (folder / name).write_bytes(damaged)
        try:
            read_all(folder)
            outcomes["read"] += 1
        except ModelError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 0


@pytest.mark.parametrize(
    ("front", "words"),
    [
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**40, 0), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**60), "text"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**62), "longer"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1), "list"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"GG", "begin"),
        (b"", "begin"),
    ],
)
def test_a_header_is_bounded(tmp_path, front, words):
    (tmp_path / "m.gguf").write_bytes(front)
    with pytest.raises(Skipped, match=words):
        read_all(tmp_path)


def test_tensors_do_not_lie_over_each_other(tmp_path):
    name = struct.pack("<Q", 1)
    tensor = struct.pack("<IQIQ", 1, 8, 0, 0)
    header = b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + name + b"a" + tensor + name + b"b" + tensor
    (tmp_path / "m.gguf").write_bytes(header + bytes(200))
    with pytest.raises(Skipped, match="over"):
        read_all(tmp_path)


def test_external_data_stay_beside_the_file(tmp_path):
    path = writers.write_onnx(tmp_path / "model.onnx", CONFIG, WEIGHTS, external=True)
    (tmp_path / "model.onnx").write_bytes(path.read_bytes().replace(b"model.onnx_data", b"../../etc/hosts"))
    with pytest.raises(Skipped, match="not beside it"):
        read_all(tmp_path)


def test_all_shards_are_needed(tmp_path):
    made = writers.write_gguf(tmp_path / "m-00001-of-00002.gguf", CONFIG, WEIGHTS, "Q8_0")
    with pytest.raises(Skipped, match="1 of 2 shards"):
        read_all(made.parent)
