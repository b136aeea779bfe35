"""Conversions are read by rows: the values of each format's own tool, and the codes that it makes of the source."""

from __future__ import annotations

from contextlib import closing
from importlib.util import find_spec

import gguf
import numpy as np
import pytest
import torch

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.errors import Skipped
from indexer.sources.registry import ModelRef
from studies.conversions import families, writers

ROWS = [range(3), range(40, 50), range(127, 128)]
NUMBERS = np.concatenate([np.arange(rows.start, rows.stop) for rows in ROWS])
QUERY, KEY, DOWN = (
    f"model.layers.1.{name}.weight" for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj")
)
QWEN, LLAMA = (families.config_of(name, layers=2, width=256, inner=512) for name in ("qwen2", "llama"))
WEIGHTS = families.base_weights(QWEN)
needs_bitsandbytes = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
needs_mlx = pytest.mark.skipif(find_spec("mlx") is None, reason="mlx is not installed")
needs_ggml = pytest.mark.skipif(find_spec("libggml") is None, reason="libggml-python is not installed")
needs_onnx = pytest.mark.skipif(find_spec("onnx") is None, reason="onnx is not installed")


def opened(path):
    folder = path if path.is_dir() or path.suffix == ".gguf" else path.parent
    return closing(open_checkpoint(ModelRef(str(folder), folder=folder)))


def coded(checkpoint, *names):
    return dict(checkpoint.coded(dict.fromkeys(names, ROWS)))


@pytest.mark.parametrize("config", [QWEN, LLAMA], ids=["qwen2", "llama"])
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"])
def test_gguf_is_read_by_rows_in_the_order_of_the_checkpoint(tmp_path, config, kind):
    path = writers.write_gguf(tmp_path / f"model-{kind}.gguf", config, WEIGHTS, kind)
    with opened(path) as checkpoint:
        assert checkpoint.conversion == "GGUF"
        assert checkpoint.config["model_type"] == config["model_type"]
        rows = coded(checkpoint, QUERY, KEY, DOWN)
        whole = dict(checkpoint.stream([KEY]))[KEY]
        for name, read in rows.items():
            source = WEIGHTS[name][NUMBERS]
            distance = np.linalg.norm(read.values().numpy() - source) / np.linalg.norm(source)
            assert distance < 0.12, name
            again = read.quantised(torch.from_numpy(source))
            assert np.array_equal(read.codes(), again.codes), name
            assert torch.equal(read.values(), again.values)
            # Other rows have other codes: this test can fail.
            assert not np.array_equal(read.codes(), read.quantised(torch.from_numpy(source[::-1].copy())).codes)
        assert torch.equal(whole[NUMBERS], rows[KEY].values())
        norm = checkpoint.stored_name("model.layers.0.input_layernorm.weight")
        assert norm == "blk.0.attn_norm.weight"
        assert np.array_equal(dict(checkpoint.stream([norm]))[norm], WEIGHTS["model.layers.0.input_layernorm.weight"])
        # Rows are read by ranges, not the file.
        assert checkpoint.bytes_read < 0.8 * path.stat().st_size


@needs_ggml
@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ3_S", "MXFP4"])
def test_types_that_only_ggml_quantises(tmp_path, kind):
    path = writers.write_gguf(tmp_path / "model.gguf", LLAMA, WEIGHTS, kind)
    with opened(path) as checkpoint:
        read = coded(checkpoint, QUERY)[QUERY]
        number = gguf.GGMLQuantizationType[kind]
        whole = writers.quantise(WEIGHTS[QUERY], int(number))
        assert np.array_equal(read.codes(), whole[NUMBERS])
        assert np.array_equal(read.values().numpy(), gguf.quants.dequantize(whole[NUMBERS], number))
        assert np.array_equal(read.quantised(torch.from_numpy(WEIGHTS[QUERY][NUMBERS])).codes, whole[NUMBERS])


def test_every_type_that_gguf_dequantises_can_be_read():
    from indexer.checkpoints.gguf_file import _type_of

    for kind in gguf.GGMLQuantizationType:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        try:
            gguf.quants.dequantize(np.zeros((1, size), np.uint8), kind)
        except NotImplementedError:
            assert _type_of(int(kind)) is None
            continue
        assert (_type_of(int(kind)).block, _type_of(int(kind)).bytes) == (block, size)
    assert _type_of(4096) is None


def test_the_rows_of_heads_are_permuted_as_llama_cpp_does(tmp_path):
    """A rotation of neighbours in the file is one of halves in the checkpoint: the scores of attention are equal."""
    path = writers.write_gguf(tmp_path / "model.gguf", LLAMA, WEIGHTS, "F32")
    reader = gguf.GGUFReader(path)
    stored = {tensor.name: tensor.data for tensor in reader.tensors}
    inputs = np.random.default_rng(0).normal(size=(2, 256))

    def scores(query, key, rotate):
        heads = [(inputs @ weight.T).reshape(2, count, 64) for weight, count in ((query, 4), (key, 2))]
        rotated_query, rotated_key = (rotate(head) for head in heads)
        return np.einsum("hd,hd->h", rotated_query[0, :2], rotated_key[1])

    angles = np.array([1.0, 2.0])[:, None, None] * 0.5 ** np.arange(32)

    def halves(values):
        first, second = values[..., :32], values[..., 32:]
        return np.concatenate((first * np.cos(angles) - second * np.sin(angles),
                               second * np.cos(angles) + first * np.sin(angles)), -1)  # fmt: skip

    def neighbours(values):
        first, second = values[..., 0::2], values[..., 1::2]
        rotated = np.empty_like(values)
        rotated[..., 0::2] = first * np.cos(angles) - second * np.sin(angles)
        rotated[..., 1::2] = second * np.cos(angles) + first * np.sin(angles)
        return rotated

    in_file = scores(stored["blk.1.attn_q.weight"], stored["blk.1.attn_k.weight"], neighbours)
    with opened(path) as checkpoint:
        whole = {name: tensor.numpy() for name, tensor in checkpoint.stream([QUERY, KEY])}
    assert np.allclose(in_file, scores(whole[QUERY], whole[KEY], halves))
    assert np.array_equal(whole[QUERY], WEIGHTS[QUERY])


def test_shards_after_the_first_are_read_with_its_facts(tmp_path):
    """Only the first shard says how many heads there are, and so in which order the rows of queries and keys stand."""
    writers.write_gguf(tmp_path / "model.gguf", LLAMA, WEIGHTS, "F32", shard_tensors=4)
    assert len(list(tmp_path.glob("model-*-of-*.gguf"))) > 3
    with opened(tmp_path) as checkpoint:
        whole = {name: tensor.numpy() for name, tensor in checkpoint.stream([QUERY, KEY, DOWN])}
    assert all(np.array_equal(whole[name], WEIGHTS[name]) for name in (QUERY, KEY, DOWN))
    next(tmp_path.glob("model-00001-*")).unlink()
    with pytest.raises(Skipped, match=r"1 of .* shards are missing, 'model-00001"):
        open_checkpoint(ModelRef(str(tmp_path), folder=tmp_path))


@needs_ggml
@pytest.mark.parametrize(("stated", "kind"), [(15, "GGUF Q4_K_M"), (7, "GGUF Q4_K"), (10**6, "GGUF Q4_K")])
def test_the_kind_is_that_of_the_header_if_the_tensors_agree(tmp_path, stated, kind):
    path = writers.write_gguf(tmp_path / "m.gguf", LLAMA, WEIGHTS, "Q4_K", facts={"general.file_type": stated})
    with opened(path) as checkpoint:
        assert checkpoint.conversion_kind == kind


@pytest.mark.parametrize(("bits", "order"), [(2, False), (3, False), (4, False), (4, True), (8, True)])
def test_gptq(tmp_path, bits, order):
    folder = writers.write_gptq(tmp_path / "gptq", QWEN, WEIGHTS, bits, order=order)
    with opened(folder) as checkpoint:
        assert checkpoint.conversion == "GPTQ"
        for name, read in coded(checkpoint, QUERY, DOWN).items():
            source = WEIGHTS[name][NUMBERS]
            distance = np.linalg.norm(read.values().numpy() - source) / np.linalg.norm(source)
            assert distance < {2: 0.6, 3: 0.3, 4: 0.14, 8: 0.01}[bits]
            assert read.codes().max() == 2**bits - 1
            assert read.quantised(torch.from_numpy(source)) is None


def test_awq_is_read_with_its_scales_of_inputs(tmp_path):
    with opened(writers.write_awq(tmp_path / "awq", QWEN, WEIGHTS)) as checkpoint:
        assert checkpoint.conversion == "AWQ"
        values = coded(checkpoint, QUERY)[QUERY].values().numpy()
        norm = "model.layers.1.input_layernorm.weight"
        factors = WEIGHTS[norm] / dict(checkpoint.stream([norm]))[norm].float().numpy()
        source = WEIGHTS[QUERY][NUMBERS]
        assert np.linalg.norm(values / factors - source) / np.linalg.norm(source) < 0.14
        assert np.linalg.norm(values - source) / np.linalg.norm(source) > 0.2


def test_nf4_by_definition(tmp_path):
    with opened(writers.write_nf4(tmp_path / "nf4", QWEN, WEIGHTS)) as checkpoint:
        assert checkpoint.conversion == "bitsandbytes"
        for name, read in coded(checkpoint, QUERY, DOWN).items():
            source = torch.from_numpy(WEIGHTS[name][NUMBERS])
            again = read.quantised(source)
            assert np.array_equal(read.codes(), again.codes)
            assert torch.allclose(read.values(), again.values)
            assert 0.05 < (read.values() - source).norm() / source.norm() < 0.12


@needs_bitsandbytes
@pytest.mark.parametrize(("kind", "double"), [("nf4", False), ("nf4", True), ("fp4", False), ("int8", False)])
def test_bitsandbytes(tmp_path, kind, double):
    folder = writers.write_bitsandbytes(tmp_path / "bnb", QWEN, WEIGHTS, kind, double=double)
    with opened(folder) as checkpoint:
        assert checkpoint.conversion == "bitsandbytes"
        for name, read in coded(checkpoint, QUERY, DOWN).items():
            source = torch.from_numpy(WEIGHTS[name])
            if kind == "int8":
                from bitsandbytes import functional

                codes, scales, _ = functional.int8_vectorwise_quant(source.to(torch.bfloat16).to(torch.float16))
                expected = codes.float() * scales[:, None] / 127
            else:
                from bitsandbytes import functional

                codes, state = functional.quantize_4bit(
                    source.to(torch.bfloat16), quant_type=kind, compress_statistics=double
                )
                expected = functional.dequantize_4bit(codes, state).float()
            assert torch.allclose(read.values(), expected[NUMBERS], rtol=0.01, atol=1e-6)
            again = read.quantised(source[NUMBERS])
            assert np.array_equal(read.codes(), again.codes)
            assert torch.allclose(read.values(), again.values, rtol=0.02, atol=1e-5)
            assert not np.array_equal(read.codes(), read.quantised(source[NUMBERS] * -1).codes)


@needs_mlx
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6])
def test_mlx(tmp_path, bits):
    folder = writers.write_mlx(tmp_path / "mlx", QWEN, WEIGHTS, bits)
    with opened(folder) as checkpoint:
        assert checkpoint.conversion == "MLX"
        for name, read in coded(checkpoint, QUERY, DOWN).items():
            source = torch.from_numpy(WEIGHTS[name][NUMBERS])
            assert np.array_equal(read.codes(), read.quantised(source).codes)
            assert not np.array_equal(read.codes(), read.quantised(source * -1).codes)


@needs_onnx
@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_onnx(tmp_path, external, dtype):
    path = writers.write_onnx(tmp_path / "onnx" / "model.onnx", QWEN, WEIGHTS, external=external, dtype=dtype)
    with opened(path) as checkpoint:
        assert checkpoint.conversion == "ONNX"
        for name, read in coded(checkpoint, QUERY, DOWN).items():
            source = WEIGHTS[name][NUMBERS]
            assert np.array_equal(read.values().numpy(), source.astype(dtype).astype(np.float32))
            assert np.array_equal(read.codes(), read.quantised(torch.from_numpy(source)).codes)
