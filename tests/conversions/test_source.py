"""The source of a conversion: proved, consistent, another one than it claims, tampered with, or unknown."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import BaseMatrices, store_base
from indexer.deltas.conversions.rows import ConversionRows
from indexer.deltas.conversions.source import Candidate, find_source, opened_once
from indexer.errors import Skipped
from indexer.records.conversion import CONSISTENT, DIFFERS, EXACTLY, UNKNOWN
from indexer.sources.registry import ModelRef
from studies.conversions import families, writers

BASE = "org/base"
CONFIG = families.config_of("llama", layers=2)
WEIGHTS = families.base_weights(CONFIG)
TUNED = {f"org/tuned-{seed}": families.fine_tune(WEIGHTS, 0.01, seed) for seed in range(4)}
SOURCE = "org/tuned-2"
needs_bitsandbytes = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
needs_ggml = pytest.mark.skipif(find_spec("libggml") is None, reason="libggml-python is not installed")
needs_mlx = pytest.mark.skipif(find_spec("mlx") is None, reason="mlx is not installed")


def reference(path):
    return ModelRef(str(path), folder=path)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The base as an atlas keeps it, and the folders of its fine-tunes."""
    folder = tmp_path_factory.mktemp("family")
    saved = families.save(folder / "base", CONFIG, WEIGHTS)
    with closing(open_checkpoint(reference(saved))) as checkpoint:
        base = store_base(checkpoint, BASE, "c" * 40, folder / f"{BASE.replace('/', '--')}@{'c' * 40}.safetensors")
    return base.path, {name: families.save(folder / name, CONFIG, weights) for name, weights in TUNED.items()}


def candidates(folders):
    def of(name, folder):
        return Candidate(name, partial(opened_once, partial(open_checkpoint, reference(folder))))

    return [of(name, folder) for name, folder in folders.items()]


def source_of(stored, path, without=(), **options):
    base, folders = stored
    with closing(open_checkpoint(reference(path))) as checkpoint, closing(BaseMatrices(base, resident=False)) as base:
        among = candidates({name: folder for name, folder in folders.items() if name not in without})
        return find_source(ConversionRows(checkpoint, base), BASE, among, **options)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q6_K", "Q5_0", "Q4_K", "Q4_0", "IQ4_XS", "Q3_K"])
def test_a_gguf_is_proved_to_be_of_its_source(stored, tmp_path, kind):
    found = source_of(stored, writers.write_gguf(tmp_path / "m.gguf", CONFIG, TUNED[SOURCE], kind))
    assert (found.source, found.verdict, found.format, found.types) == (SOURCE, EXACTLY, "GGUF", kind)
    assert (found.rows_equal, found.codes_equal, found.differing) == (found.rows, 1.0, ())
    assert found.residual < 1
    assert found.log_odds > 3
    base = source_of(stored, writers.write_gguf(tmp_path / "base.gguf", CONFIG, WEIGHTS, kind))
    assert (base.source, base.verdict) == (BASE, EXACTLY)


def test_types_of_one_file_differ(stored, tmp_path):
    kinds = {"": "Q4_K", "ffn_down": "Q6_K", "token_embd": "Q6_K"}
    found = source_of(stored, writers.write_gguf(tmp_path / "m.gguf", CONFIG, TUNED[SOURCE], kinds))
    assert (found.source, found.verdict, found.types) == (SOURCE, EXACTLY, "Q4_K, Q6_K")


def test_a_file_by_way_of_float16_is_proved_too(stored, tmp_path):
    halves = {name: tensor.astype(np.float16).astype(np.float32) for name, tensor in TUNED[SOURCE].items()}
    found = source_of(stored, writers.write_gguf(tmp_path / "m.gguf", CONFIG, halves, "Q8_0"))
    assert (found.source, found.verdict) == (SOURCE, EXACTLY)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K"])
def test_without_its_source_it_is_of_the_base_and_of_none_that_is_known(stored, tmp_path, kind):
    path = writers.write_gguf(tmp_path / "m.gguf", CONFIG, TUNED[SOURCE], kind)
    found = source_of(stored, path, without=[SOURCE])
    assert (found.base, found.source, found.verdict) == (BASE, None, UNKNOWN)
    alone = source_of(stored, path, without=TUNED)
    assert (alone.base, alone.source, alone.verdict) == (BASE, None, UNKNOWN)


def test_another_base_is_refused(stored, tmp_path):
    other = families.base_weights(CONFIG, seed=9)
    with pytest.raises(Skipped, match="not like the base"):
        source_of(stored, writers.write_gguf(tmp_path / "m.gguf", CONFIG, other, "Q8_0"))


@pytest.mark.parametrize("tensor", ["model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight",
                                    "model.layers.0.input_layernorm.weight"])  # fmt: skip
def test_a_tensor_that_was_changed_is_named(stored, tmp_path, tensor):
    changed = dict(TUNED[SOURCE])
    changed[tensor] = changed[tensor] * np.float32(1.01)
    found = source_of(stored, writers.write_gguf(tmp_path / "m.gguf", CONFIG, changed, "Q4_0"))
    assert (found.source, found.verdict, len(found.differing)) == (SOURCE, DIFFERS, 1)
    assert found.differing[0] in (tensor, "token_embd.weight", "blk.0.attn_norm.weight")


def test_a_file_that_claims_another_source(stored, tmp_path):
    path = writers.write_gguf(tmp_path / "m.gguf", CONFIG, TUNED[SOURCE], "Q4_0")
    found = source_of(stored, path, claimed=["org/tuned-1"])
    assert (found.source, found.verdict, found.differing) == (SOURCE, DIFFERS, ())
    assert "not of org/tuned-1" in found.headline
    assert source_of(stored, path, claimed=[BASE]).verdict == DIFFERS
    assert source_of(stored, path, claimed=[SOURCE, BASE]).verdict == EXACTLY
    assert source_of(stored, path, claimed=["elsewhere/unknown"]).verdict == EXACTLY


@pytest.mark.parametrize("form", ["gptq", "awq"])
def test_formats_of_calibration_are_consistent_with_their_source(stored, tmp_path, form):
    write = {"gptq": partial(writers.write_gptq, order=True), "awq": writers.write_awq}[form]
    found = source_of(stored, write(tmp_path / form, CONFIG, TUNED[SOURCE]))
    assert (found.source, found.verdict, found.format) == (SOURCE, CONSISTENT, form.upper())
    assert found.log_odds > 6
    assert (found.rows_equal, found.codes_equal) == (None, None)
    missing = source_of(stored, write(tmp_path / form, CONFIG, TUNED[SOURCE]), without=[SOURCE])
    assert (missing.source, missing.verdict) == (None, UNKNOWN)


@needs_ggml
@pytest.mark.parametrize("kind", ["Q4_K", "Q4_0", "Q5_K", "Q3_K", "IQ3_XXS"])
def test_a_file_by_an_importance_matrix_is_consistent_with_its_source(stored, tmp_path, kind):
    path = writers.write_gguf(tmp_path / "m.gguf", CONFIG, TUNED[SOURCE], kind, importance=True)
    found = source_of(stored, path)
    assert (found.source, found.verdict, found.also) == (SOURCE, CONSISTENT, ())
    assert 0 < found.codes_equal < 1
    missing = source_of(stored, path, without=[SOURCE])
    assert (missing.source, missing.verdict) == (None, UNKNOWN)


@needs_bitsandbytes
@pytest.mark.parametrize(("kind", "double"), [("nf4", True), ("fp4", False), ("int8", False)])
def test_bitsandbytes_is_proved(stored, tmp_path, kind, double):
    path = writers.write_bitsandbytes(tmp_path / "bnb", CONFIG, TUNED[SOURCE], kind, double=double)
    found = source_of(stored, path)
    assert (found.source, found.verdict) == (SOURCE, EXACTLY)


@needs_mlx
@pytest.mark.parametrize("bits", [3, 4, 6])
def test_mlx_is_proved(stored, tmp_path, bits):
    found = source_of(stored, writers.write_mlx(tmp_path / "mlx", CONFIG, TUNED[SOURCE], bits))
    assert (found.source, found.verdict) == (SOURCE, EXACTLY)


def test_onnx_is_proved(stored, tmp_path):
    pytest.importorskip("onnx")
    path = writers.write_onnx(tmp_path / "onnx" / "model.onnx", CONFIG, TUNED[SOURCE], external=True)
    found = source_of(stored, path.parent)
    assert (found.source, found.verdict) == (SOURCE, EXACTLY)
