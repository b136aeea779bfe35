"""Converted files of planted models, by the tools that people use or, where these need a GPU, by definition."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from indexer.checkpoints.gguf_file import ggml_library, quantise

Weights = Mapping[str, NDArray[np.float32]]
# Order of codes of AWQ in a number of 32 bits.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# Levels of NF4 (arXiv 2305.14314, appendix E).
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_PLAIN = {"F32": np.float32, "F16": np.float16}


def write_gguf(
    path: Path,
    config: Mapping[str, Any],
    weights: Weights,
    kinds: str | Mapping[str, str],
    *,
    importance: bool = False,
    facts: Mapping[str, str | int] | None = None,
    shard_tensors: int = 0,
) -> Path:
    """A GGUF file as llama.cpp's converter and quantiser make it, by gguf's own writer.

    ``importance``: matrices are quantised with an importance matrix, which is drawn here; it needs ggml's library.
    ``kinds``: the type of matrices, or of each by a part of its name in the file ("" for the others). Tensors of one
    dimension are F32. ``facts``: what the header says besides. ``shard_tensors``: how many tensors each shard of
    the file has; 0 for one file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    architecture, layers = str(config["model_type"]), int(config["num_hidden_layers"])
    writer = gguf.GGUFWriter(str(path), architecture, split_max_tensors=shard_tensors)
    for key, value in (facts or {}).items():
        writer.add_string(key, value) if isinstance(value, str) else writer.add_uint32(key, value)
    writer.add_block_count(layers)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_token_list([f"token {number}" for number in range(config["vocab_size"])])
    known = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(known, layers)
    for name, tensor in weights.items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if architecture == "llama" and "attn_" in stored and stored.endswith(("_q.weight", "_k.weight")):
            key = "num_attention_heads" if stored.endswith("_q.weight") else "num_key_value_heads"
            tensor = _permuted(tensor, int(config[key]))
        kind = "F32" if tensor.ndim == 1 else _kind_of(stored, kinds)
        number = gguf.GGMLQuantizationType[kind]
        if kind in _PLAIN:
            writer.add_tensor(stored, tensor.astype(_PLAIN[kind]))
        else:
            rows = np.ascontiguousarray(tensor)
            codes = _by_importance(rows, number) if importance else quantise(rows, int(number))
            assert codes is not None, f"no quantiser of {kind}"
            writer.add_tensor(stored, codes, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _by_importance(weight: NDArray[np.float32], number: gguf.GGMLQuantizationType) -> NDArray[np.uint8]:
    """As ``quantise``, with weights of the inputs as unequal as mean squares of activations are."""
    library, pointer = ggml_library(), ctypes.POINTER(ctypes.c_float)
    assert library is not None, "libggml-python is not installed"
    inputs = np.exp(np.random.default_rng(0).normal(0, 1.5, weight.shape[1])).astype(np.float32)
    block, size = gguf.GGML_QUANT_SIZES[number]
    codes = np.zeros((len(weight), weight.shape[1] // block * size), np.uint8)
    library.ggml_quantize_chunk(
        int(number), weight.ctypes.data_as(pointer), codes.ctypes.data, 0, *weight.shape, inputs.ctypes.data_as(pointer)
    )
    return codes


def _kind_of(name: str, kinds: str | Mapping[str, str]) -> str:
    if isinstance(kinds, str):
        return kinds
    return next((kind for part, kind in kinds.items() if part and part in name), kinds[""])


def _permuted(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows in the order of a rotation of neighbours, from one of halves of a head."""
    halves = weight.reshape(heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def _pack(codes: NDArray[np.int64], bits: int) -> NDArray[np.int32]:
    """(rows, n) codes → (rows, n · bits / 32) numbers, consecutive from the lowest bit on."""
    digits = np.unpackbits(codes.astype(np.uint8)[:, :, None], axis=2, count=bits, bitorder="little")
    return np.packbits(digits.reshape(len(codes), -1), axis=1, bitorder="little").view(np.int32)


def _save(
    folder: Path, config: Mapping[str, Any], settings: Mapping[str, Any], tensors: dict[str, torch.Tensor]
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    return folder


def write_gptq(
    folder: Path, config: Mapping[str, Any], weights: Weights, bits: int = 4, group: int = 128, *, order: bool = False
) -> Path:
    """GPTQ's format by definition, each number rounded by itself. ``order``: groups by another order of the inputs."""
    tensors: dict[str, torch.Tensor] = {}
    rng = np.random.default_rng(0)
    for name, tensor in weights.items():
        if "proj" not in name or tensor.ndim != 2:
            tensors[name] = torch.from_numpy(tensor).to(torch.float16)
            continue
        module, inner = name.removesuffix(".weight"), tensor.shape[1]
        index = np.arange(inner) // group
        index = rng.permutation(index) if order else index
        scales, zeros = _grid(tensor, index, bits)
        codes = np.clip(np.rint(tensor / scales[:, index] + zeros[:, index]), 0, 2**bits - 1).astype(np.int64)
        tensors[f"{module}.qweight"] = torch.from_numpy(np.ascontiguousarray(_pack(codes, bits).T))
        tensors[f"{module}.qzeros"] = torch.from_numpy(_pack((zeros - 1).T.astype(np.int64), bits))
        tensors[f"{module}.scales"] = torch.from_numpy(scales.T.copy()).to(torch.float16)
        tensors[f"{module}.g_idx"] = torch.from_numpy(index.astype(np.int32))
    settings = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": order, "sym": False}
    return _save(folder, config, {"quantization_config": settings}, tensors)


def _grid(weight: NDArray[np.float32], index: NDArray[np.int64], bits: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scales and zeros (out, groups); zeros from 1 on, as GPTQ stores one less."""
    groups = int(index.max()) + 1
    low = np.stack([np.minimum(weight[:, index == number].min(1), 0) for number in range(groups)], 1)
    high = np.stack([np.maximum(weight[:, index == number].max(1), 0) for number in range(groups)], 1)
    scales = ((high - low) / (2**bits - 1)).astype(np.float16).astype(np.float32)
    return scales, np.clip(np.rint(-low / scales), 1, 2**bits - 1)


def write_awq(folder: Path, config: Mapping[str, Any], weights: Weights, group: int = 64, seed: int = 0) -> Path:
    """AWQ's format (GEMM) by definition: inputs are scaled, and what comes before them is divided by the scales.

    The scales of AWQ depend on activations; here they are drawn.
    """
    rng, tensors = np.random.default_rng(seed), {}
    scaled = {name: tensor.copy() for name, tensor in weights.items()}
    for layer in range(int(config["num_hidden_layers"])):
        prefix = f"model.layers.{layer}."
        for norm, modules in (
            ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
        ):
            factors = np.exp(rng.normal(0, 0.3, scaled[f"{prefix}{norm}.weight"].shape)).astype(np.float32)
            scaled[f"{prefix}{norm}.weight"] /= factors
            for module in modules:
                scaled[f"{prefix}{module}.weight"] *= factors
        factors = np.exp(rng.normal(0, 0.3, scaled[f"{prefix}mlp.down_proj.weight"].shape[1])).astype(np.float32)
        scaled[f"{prefix}mlp.up_proj.weight"] /= factors[:, None]
        scaled[f"{prefix}mlp.down_proj.weight"] *= factors
    for name, tensor in scaled.items():
        if "proj" not in name or tensor.ndim != 2:
            tensors[name] = torch.from_numpy(tensor).to(torch.float16)
            continue
        module, index = name.removesuffix(".weight"), np.arange(tensor.shape[1]) // group
        scales, zeros = _grid(tensor, index, 4)
        codes = np.clip(np.rint(tensor / scales[:, index] + zeros[:, index]), 0, 15).astype(np.int64)
        for part, values in (("qweight", codes.T), ("qzeros", zeros.T.astype(np.int64))):
            ordered = values.reshape(len(values), -1, 8)[:, :, list(_AWQ_ORDER)].reshape(len(values), -1)
            tensors[f"{module}.{part}"] = torch.from_numpy(_pack(ordered, 4))
        tensors[f"{module}.scales"] = torch.from_numpy(scales.T.copy()).to(torch.float16)
    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return _save(folder, config, {"quantization_config": settings}, tensors)


def write_bitsandbytes(folder: Path, config: Mapping[str, Any], weights: Weights, kind: str, *, double: bool) -> Path:
    """Bitsandbytes' own functions: ``kind`` nf4, fp4 or int8."""
    from bitsandbytes import functional

    tensors: dict[str, torch.Tensor] = {}
    for name, array in weights.items():
        tensor = torch.from_numpy(array).to(torch.bfloat16)
        if "proj" not in name or array.ndim != 2:
            tensors[name] = tensor
        elif kind == "int8":
            codes, rows, _ = functional.int8_vectorwise_quant(tensor.to(torch.float16))
            tensors[name], tensors[name.removesuffix("weight") + "SCB"] = codes, rows
        else:
            codes, state = functional.quantize_4bit(tensor, quant_type=kind, compress_statistics=double)
            tensors[name] = codes
            tensors |= {f"{name}.{part}": value for part, value in state.as_dict(packed=True).items()}
    settings = {"quant_method": "bitsandbytes", "load_in_8bit": kind == "int8", "load_in_4bit": kind != "int8"}
    return _save(folder, config, {"quantization_config": settings}, tensors)


def write_nf4(folder: Path, config: Mapping[str, Any], weights: Weights, block: int = 64) -> Path:
    """The format of bitsandbytes by definition: NF4 without double quantisation."""
    levels = torch.tensor(_NF4)
    tensors: dict[str, torch.Tensor] = {}
    for name, array in weights.items():
        tensor = torch.from_numpy(array).to(torch.bfloat16)
        tensors[name] = tensor
        if "proj" not in name or array.ndim != 2:
            continue
        blocks = tensor.float().reshape(-1, block)
        largest = blocks.abs().amax(1)
        codes = ((blocks / largest[:, None]).reshape(-1, 1) - levels).abs().argmin(1).to(torch.uint8)
        state = {"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": list(array.shape)}
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        tensors[name] = (codes[0::2] << 4 | codes[1::2])[:, None]
        tensors |= {f"{name}.absmax": largest, f"{name}.quant_map": levels.clone()}
        tensors[f"{name}.quant_state.bitsandbytes__nf4"] = text
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    return _save(folder, config, {"quantization_config": settings}, tensors)


def write_mlx(folder: Path, config: Mapping[str, Any], weights: Weights, bits: int, group: int = 64) -> Path:
    """MLX's own ``quantize``."""
    import mlx.core as mx

    tensors: dict[str, torch.Tensor] = {}
    for name, array in weights.items():
        if "proj" not in name or array.ndim != 2:
            tensors[name] = torch.from_numpy(array).to(torch.bfloat16)
            continue
        parts = mx.quantize(mx.array(array).astype(mx.bfloat16), group_size=group, bits=bits)
        for ending, part in zip(("weight", "scales", "biases"), parts, strict=True):
            is_codes = ending == "weight"
            values = torch.from_numpy(np.array(part if is_codes else part.astype(mx.float32)))
            tensors[f"{name.removesuffix('weight')}{ending}"] = values if is_codes else values.to(torch.bfloat16)
    return _save(folder, config, {"quantization": {"group_size": group, "bits": bits}}, tensors)


def write_onnx(
    path: Path, config: Mapping[str, Any], weights: Weights, *, external: bool = False, dtype: Any = np.float32
) -> Path:
    """An ONNX graph as exporters write it: products of matrices with names of their own, stored (in, out)."""
    import onnx
    from onnx import helper, numpy_helper

    path.parent.mkdir(parents=True, exist_ok=True)
    nodes, initialisers = [], []
    for number, (name, tensor) in enumerate(weights.items()):
        if "proj" in name and tensor.ndim == 2:
            factor, module = f"onnx::MatMul_{number}", name.removesuffix(".weight").replace(".", "/")
            initialisers.append(numpy_helper.from_array(np.ascontiguousarray(tensor.T.astype(dtype)), factor))
            nodes.append(helper.make_node("MatMul", ["input", factor], [f"out{number}"], f"/{module}/MatMul"))
        else:
            initialisers.append(numpy_helper.from_array(tensor.astype(dtype), name))
    inputs = [helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, [None, config["hidden_size"]])]
    outputs = [helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, None)]
    model = helper.make_model(helper.make_graph(nodes, "graph", inputs, outputs, initialisers))
    onnx.save(model, path, save_as_external_data=external, location=f"{path.name}_data", size_threshold=0)
    (path.parent / "config.json").write_text(json.dumps(config))
    return path
