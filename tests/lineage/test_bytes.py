"""How much is read: counted on a model of roberta-base's size, whose files are mostly holes in the disk."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from indexer.deltas.parts import MATRICES, Parts
from indexer.errors import AtlasError, ModelError
from indexer.records.identity import RECORD_VERSION
from indexer.sources.registry import ModelRef
from indexer.vectors.published import PublishedBase
from query.questions.lineage.thresholds import Thresholds

WIDTH, INNER, LAYERS, WORDS = 768, 3072, 12, 50_265
CONFIG = {"model_type": "roberta", "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 12,
          "intermediate_size": INNER, "vocab_size": WORDS, "architectures": ["RobertaModel"]}  # fmt: skip
BLOCK = {
    "attention.self.query": (WIDTH, WIDTH), "attention.self.key": (WIDTH, WIDTH), "attention.self.value": (WIDTH, WIDTH),
    "attention.output.dense": (WIDTH, WIDTH), "intermediate.dense": (INNER, WIDTH), "output.dense": (WIDTH, INNER),
}  # fmt: skip
FAMILIES = ("query", "key", "value", "output", "feedforward1", "feedforward2")


def write_sparse(path, tensors, metadata=None):
    """A safetensors file of float32 zeros that takes no room."""
    header, offset = ({"__metadata__": metadata} if metadata else {}), 0
    for name, shape in tensors.items():
        size = 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)


@pytest.fixture
def large(tmp_path):
    """A base as an atlas keeps it, and a folder with a model of it; both zeros except for known entries."""
    names = {f"encoder.layer.{layer}.{part}.weight": shape for layer in range(LAYERS) for part, shape in BLOCK.items()}
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    write_sparse(model / "model.safetensors", {"embeddings.word_embeddings.weight": (WORDS, WIDTH), **names})
    keys = [f"{layer}.{family}" for layer in range(LAYERS) for family in FAMILIES]
    shapes = dict(zip(keys, names.values(), strict=True))
    metadata = {"base": "org/large", "commit": "c", "file_hashes": [None], "config": CONFIG,
            "shapes": {name: list(shape) for name, shape in names.items()}, "norms": dict.fromkeys(keys, 0.0),
            "version": RECORD_VERSION, "vocabulary": 0, "component": "", "is_sampled": False, "words": []}  # fmt: skip
    write_sparse(tmp_path / "base.safetensors", shapes, {"base": json.dumps(metadata)})
    return PublishedBase("org/large", "c", tmp_path / "base.safetensors", 8), model


def test_the_asked_model_all_candidates_and_the_base_fit_into_30_mb(large, monkeypatch):
    base, model = large
    thresholds = Thresholds()
    parts = Parts(base)
    model_parts = parts.read(ModelRef.parse(str(model)), None, "finetune")
    monkeypatch.setattr(parts, "_published", SimpleNamespace(base=str(model), commit=None))
    monkeypatch.setattr(ModelRef, "of_atlas", staticmethod(ModelRef.parse))  # a folder stands for the base's repository
    embeddings = parts.read_base()
    assert thresholds.max_bytes == 30_000_000
    assert model_parts.bytes_read * (1 + thresholds.max_models) + embeddings.bytes_read <= thresholds.max_bytes
    assert embeddings.tokens.shape == model_parts.tokens.shape
    assert model_parts.tokens is not None
    assert model_parts.tokens.shape[0] >= 200
    assert sum(delta.size for delta in model_parts.deltas.values()) > 500_000


def test_parts_are_of_every_family_and_of_all_depths(large):
    base, _ = large
    extents = Parts(base).extents
    assert len(extents) == MATRICES
    assert {key.family for key in extents} == set(FAMILIES)
    layers = sorted(key.layer for key in extents)
    assert layers[0] == 0
    assert layers[-1] == LAYERS - 1
    assert max(np.diff(layers)) <= 2


def test_where_few_matrices_changed_those_are_read(large):
    base, _ = large
    chosen = Parts(base, {"3.query", "3.value", "7.query"})
    assert set(chosen.names) == {"3.query", "3.value", "7.query"}


def test_what_is_read_is_what_is_stored(large):
    base, model = large
    parts = Parts(base)
    (key, extent), *_ = parts.extents.items()
    planted = np.random.default_rng(0).standard_normal((extent.rows, extent.columns)).astype(np.float32)
    path = model / "model.safetensors"
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        part = dict(zip(FAMILIES, BLOCK, strict=True))[key.family]
        file.seek(8 + length + header[f"encoder.layer.{key.layer}.{part}.weight"]["data_offsets"][0])
        file.write(planted.tobytes())
    model_parts = parts.read(ModelRef.parse(str(model)), None, "finetune")
    np.testing.assert_array_equal(model_parts.deltas[str(key)], planted)
    assert not any(delta.any() for name, delta in model_parts.deltas.items() if name != str(key))


@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_parts_of_pickled_files_are_those_of_safetensors(tmp_path, form):
    import torch
    from safetensors.torch import save_file

    from indexer.checkpoints.checkpoint import open_checkpoint

    torch.manual_seed(0)
    tensors = {"a.weight": torch.randn(40, 8), "b.weight": torch.randn(16, 24)}
    for name in ("pickled", "safe"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"model_type": "bert"}')
    torch.save(tensors, tmp_path / "pickled" / "pytorch_model.bin", _use_new_zipfile_serialization=form == "zip")
    save_file(tensors, tmp_path / "safe" / "model.safetensors", metadata={"format": "pt"})
    rows_of = {"a.weight": range(3, 17), "b.weight": range(2)}
    for name in ("pickled", "safe"):
        tensors_read = dict(open_checkpoint(ModelRef.parse(str(tmp_path / name))).rows(rows_of))
        for tensor, rows in rows_of.items():
            assert torch.equal(tensors_read[tensor], tensors[tensor][rows.start : rows.stop])


def test_rows_that_are_not_there_or_do_not_lie_together_are_refused(tmp_path):
    import torch

    from indexer.checkpoints.checkpoint import open_checkpoint

    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    torch.save({"a": torch.randn(40, 8), "t": torch.randn(8, 40).T}, tmp_path / "pytorch_model.bin")
    checkpoint = open_checkpoint(ModelRef.parse(str(tmp_path)))
    for name, rows in (("a", range(30, 41)), ("t", range(4)), ("none", range(1))):
        with pytest.raises(ModelError):
            list(checkpoint.rows({name: rows}))


def test_a_candidate_with_a_padded_header_or_configuration_is_refused_for_little(large, monkeypatch):
    """One of roberta-base's shape takes 3 MB; with headers of 16 MB two of them would be all that may be read."""
    base, model = large
    path = model / "model.safetensors"
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    shapes = {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    write_sparse(path, shapes, {"padding": " " * (12 << 20)})
    parts = Parts(base)
    assert parts.read(ModelRef.parse(str(model)), None, "finetune").bytes_read > 12 << 20
    with pytest.raises(ModelError, match="has a header of"):
        parts.read(ModelRef.parse(str(model)), None, "finetune", most_small=1 << 20)
    write_sparse(path, shapes)
    assert parts.read(ModelRef.parse(str(model)), None, "finetune", most_small=1 << 20).bytes_read < 4_000_000
    (model / "config.json").write_text(json.dumps(CONFIG | {"padding": " " * (2 << 20)}))
    with pytest.raises(ModelError, match="is longer than the"):
        parts.read(ModelRef.parse(str(model)), None, "finetune", most_small=1 << 20)


def test_a_base_without_its_matrices_is_reported_as_missing(large, tmp_path):
    base, _ = large
    base.file.unlink()
    with pytest.raises(AtlasError, match="are not in this atlas"):
        Parts(base)


def test_weights_that_are_not_finite_are_refused(large):
    base, model = large
    parts = Parts(base)
    path = model / "model.safetensors"
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        file.seek(8 + length + header["encoder.layer.0.attention.self.query.weight"]["data_offsets"][0])
        file.write(np.float32("nan").tobytes())
    with pytest.raises(ModelError, match="NaN"):
        parts.read(ModelRef.parse(str(model)), None, "finetune")
