"""Encoders and decoders of other models put together, by transformers; and models that bring their own code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from indexer.checkpoints.architectures.architecture import compare, load_architecture
from indexer.names import DeltaKey
from tests.architecture.test_mixed import located, matrices

TEXT = {
    "vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 32, "type_vocab_size": 1,
}  # fmt: skip
IMAGE = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip
SWIN = {"embed_dim": 8, "depths": [1, 2, 1, 1], "num_heads": [1, 2, 2, 4], "image_size": 64, "window_size": 2}
BART = {
    "vocab_size": 40, "d_model": 24, "decoder_layers": 2, "encoder_layers": 2, "decoder_attention_heads": 4,
    "encoder_attention_heads": 4, "decoder_ffn_dim": 40, "encoder_ffn_dim": 40, "max_position_embeddings": 32,
}  # fmt: skip
TROCR = {name: size for name, size in BART.items() if "encoder" not in name} | {"cross_attention_hidden_size": 24}
SPEECH = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40, "conv_dim": (24, 24),
    "conv_stride": (2, 2), "conv_kernel": (3, 3), "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "vocab_size": 40,
}  # fmt: skip
GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 40}

# Modules in memory → families; * stands for the layer.
VIT_PARTS = {
    f"encoder.layers.*.attention.{letter}_proj": family
    for letter, family in zip("qkvo", ("query", "key", "value", "output"), strict=True)
} | {"encoder.layers.*.mlp.fc1": "feedforward1", "encoder.layers.*.mlp.fc2": "feedforward2"}
WAV2VEC2_PARTS = {
    f"encoder.encoder.layers.*.{name}": family
    for name, family in {
        "attention.q_proj": "query", "attention.k_proj": "key", "attention.v_proj": "value",
        "attention.out_proj": "output", "feed_forward.intermediate_dense": "feedforward1",
        "feed_forward.output_dense": "feedforward2",
    }.items()
}  # fmt: skip
BART_PARTS = {
    f"decoder.model.decoder.layers.*.{part}.{name}": prefix + family
    for part, prefix in (("self_attn", ""), ("encoder_attn", "cross_"))
    for name, family in {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}.items()
} | {f"decoder.model.decoder.layers.*.fc{number}": f"feedforward{number}" for number in (1, 2)}
SWIN_PARTS = {
    f"encoder.encoder.layers.{number}.blocks.*.{name}": (f"stage{number + 1}", family)
    for number in range(4)
    for name, family in {
        "attention.self.query": "query", "attention.self.key": "key", "attention.self.value": "value",
        "attention.output.dense": "output", "intermediate.dense": "feedforward1", "output.dense": "feedforward2",
    }.items()
}  # fmt: skip


def bert_parts(name: str, crossed: bool) -> dict[str, Any]:
    """``name``: the path of the body that has an ``encoder``."""
    attention = {"self.query": "query", "self.key": "key", "self.value": "value", "output.dense": "output"}
    layer = f"{name}.encoder.layer.*"
    parts = {f"{layer}.attention.{path}": family for path, family in attention.items()}
    if crossed:
        parts |= {f"{layer}.crossattention.{path}": f"cross_{family}" for path, family in attention.items()}
    return parts | {f"{layer}.intermediate.dense": "feedforward1", f"{layer}.output.dense": "feedforward2"}


H = "decoder.transformer.h.*"
GPT2_PARTS = {
    f"{H}.attn.c_attn": ("query", "key", "value"), f"{H}.attn.c_proj": "output",
    f"{H}.crossattention.q_attn": "cross_query", f"{H}.crossattention.c_attn": ("cross_key", "cross_value"),
    f"{H}.crossattention.c_proj": "cross_output", f"{H}.mlp.c_fc": "feedforward1", f"{H}.mlp.c_proj": "feedforward2",
}  # fmt: skip

# The class, type and config of encoder and decoder, and their parts.
PAIRS: dict[str, tuple[str, tuple[str, dict], tuple[str, dict], dict, dict]] = {
    "TrOCR": ("VisionEncoderDecoder", ("vit", IMAGE), ("trocr", TROCR), VIT_PARTS, BART_PARTS),
    "TrOCR, small": ("VisionEncoderDecoder", ("deit", IMAGE), ("trocr", TROCR), VIT_PARTS, BART_PARTS),
    "Donut": ("VisionEncoderDecoder", ("donut-swin", SWIN), ("mbart", BART), SWIN_PARTS, BART_PARTS),
    "captions": ("VisionEncoderDecoder", ("vit", IMAGE), ("gpt2", GPT2), VIT_PARTS, GPT2_PARTS),
    "BERT2BERT": ("EncoderDecoder", ("bert", TEXT), ("bert", TEXT), bert_parts("encoder", False),
                  bert_parts("decoder.bert", True)),
    "RoBERTa": ("EncoderDecoder", ("roberta", TEXT), ("roberta", TEXT), bert_parts("encoder", False),
                bert_parts("decoder.roberta", True)),
    "speech": ("SpeechEncoderDecoder", ("wav2vec2", SPEECH), ("mbart", BART), WAV2VEC2_PARTS, BART_PARTS),
}  # fmt: skip


def pair(name: str) -> torch.nn.Module:
    kind, (encoder, sizes), (decoder, other_sizes), _, _ = PAIRS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config").from_encoder_decoder_configs(
        transformers.AutoConfig.for_model(encoder, **sizes), transformers.AutoConfig.for_model(decoder, **other_sizes)
    )
    return getattr(transformers, f"{kind}Model")(config=config).float()


def planted(model: torch.nn.Module, parts: dict[str, Any], stack: str) -> dict[DeltaKey, Tensor]:
    """Change every matrix of ``parts``; what was added, (out, in)."""
    deltas: dict[DeltaKey, Tensor] = {}
    for number, (path, families_of_path) in enumerate(parts.items()):
        stack_of_path, families_of_path = (
            (families_of_path[0], families_of_path[1])
            if isinstance(families_of_path, tuple) and families_of_path[0].startswith("stage")
            else (stack, families_of_path)
        )
        families = families_of_path if isinstance(families_of_path, tuple) else (families_of_path,)
        pattern = re.compile(re.escape(path).replace(r"\*", r"(\d+)"))
        hits = [(pattern.fullmatch(name), module) for name, module in model.named_modules()]
        layers = {int(match[1]): module for match, module in hits if match}
        assert layers, path
        for layer, module in layers.items():
            weight = module.weight.T if type(module).__name__ == "Conv1D" else module.weight
            delta = torch.randn(weight.shape, generator=torch.Generator().manual_seed(100 * number + layer))
            with torch.no_grad():
                weight += delta
            for family, rows in zip(families, delta.chunk(len(families)), strict=True):
                deltas[DeltaKey(stack_of_path, layer, family)] = rows
    return deltas


@pytest.mark.parametrize("name", PAIRS)
def test_both_halves_are_read_back(name: str, tmp_path: Path) -> None:
    model, saved = pair(name), []
    for folder in ("base", "tuned"):
        if folder == "tuned":
            added = planted(model, PAIRS[name][3], "encoder") | planted(model, PAIRS[name][4], "decoder")
        model.save_pretrained(tmp_path / folder)
        tensors = load_file(tmp_path / folder / "model.safetensors")
        saved.append((tensors, json.loads((tmp_path / folder / "config.json").read_text())))
    layouts = [located(tensors, config) for tensors, config in saved]
    compare(*layouts)
    first, second = (matrices(tensors, layout) for (tensors, _), layout in zip(saved, layouts, strict=True))
    assert first.keys() == added.keys()
    for key, delta in added.items():
        torch.testing.assert_close(second[key] - first[key], delta, rtol=0, atol=1e-5, msg=str(key))
    # Adapters name the modules in memory.
    paths = [path for path, module in model.named_modules() if getattr(getattr(module, "weight", None), "ndim", 0) == 2]
    modules = load_architecture(saved[0][1]["model_type"]).locate_modules(paths, layouts[0])
    assert {matrix.key for module_matrices in modules.values() for matrix in module_matrices} == added.keys()


# --- models that bring their own code: files written to its definitions

WIDTH, HEADS, SIZE, FORWARD = 12, 4, 3, 20


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape)


def attention(kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    return drawn(HEADS * SIZE, WIDTH), drawn(kv_heads * SIZE, WIDTH), drawn(kv_heads * SIZE, WIDTH)


def one_after_the_other(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.cat([query, key, value])


def by_key(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """InternLM 2: (key heads, queries of each + 2, size of a head, width), a key's queries, then it, then its value."""
    heads = len(key) // SIZE
    grouped = [part.reshape(heads, -1, SIZE, WIDTH) for part in (query, key, value)]
    return torch.cat(grouped, dim=1).reshape(-1, WIDTH)


def by_head(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """ChatGLM-6B: (heads, 3 · size of a head, width)."""
    return torch.cat([part.reshape(HEADS, SIZE, WIDTH) for part in (query, key, value)], dim=1).reshape(-1, WIDTH)


def apart(query: str, key: str, value: str) -> Callable[..., dict[str, Tensor]]:
    return lambda *three: dict(zip((query, key, value), three, strict=True))


QKV = apart("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATED = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")

# model type → (a layer, heads of keys, queries with keys and values, output, gate, up and down, more of config.json);
# gate and up in one matrix have no second name, and without a gate no first.
OWN_CODE: dict[str, tuple[str, int, Any, str, tuple[str, str, str], dict]] = {
    "chatglm": (
        "transformer.encoder.layers.{}", 2, ("self_attention.query_key_value", one_after_the_other),
        "self_attention.dense", ("mlp.dense_h_to_4h", "", "mlp.dense_4h_to_h"),
        {"num_attention_heads": HEADS, "multi_query_attention": True, "multi_query_group_num": 2},
    ),
    "chatglm 1": (
        "transformer.layers.{}", HEADS, ("attention.query_key_value", by_head), "attention.dense",
        ("", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), {"num_attention_heads": HEADS},
    ),
    "baichuan": ("model.layers.{}", HEADS, ("self_attn.W_pack", one_after_the_other), "self_attn.o_proj", GATED, {}),
    "qwen": (
        "transformer.h.{}", HEADS, ("attn.c_attn", one_after_the_other), "attn.c_proj",
        ("mlp.w2", "mlp.w1", "mlp.c_proj"), {},
    ),
    "internlm2": (
        "model.layers.{}", 2, ("attention.wqkv", by_key), "attention.wo",
        ("feed_forward.w1", "feed_forward.w3", "feed_forward.w2"),
        {"num_attention_heads": HEADS, "num_key_value_heads": 2},
    ),
    "internvl_chat": (
        "language_model.model.layers.{}", 2, ("attention.wqkv", by_key), "attention.wo",
        ("feed_forward.w1", "feed_forward.w3", "feed_forward.w2"),
        {"llm_config": {"num_attention_heads": HEADS, "num_key_value_heads": 2}},
    ),
    "internvl_chat qwen": ("language_model.model.layers.{}", 2, QKV, "self_attn.o_proj", GATED, {}),
    "llada": (
        "model.transformer.blocks.{}", HEADS, apart("q_proj", "k_proj", "v_proj"), "attn_out",
        ("ff_proj", "up_proj", "ff_out"), {},
    ),
    "minicpmv": ("llm.model.layers.{}", 2, QKV, "self_attn.o_proj", GATED, {}),
    "llava_qwen": ("model.layers.{}", 2, QKV, "self_attn.o_proj", GATED, {}),
    "phi3_v": (
        "model.layers.{}", 2, ("self_attn.qkv_proj", one_after_the_other), "self_attn.o_proj",
        ("mlp.gate_up_proj", "", "mlp.down_proj"), {"num_attention_heads": HEADS, "num_key_value_heads": 2},
    ),
    "layoutlmv2": (
        "layoutlmv2.encoder.layer.{}", HEADS, ("attention.self.qkv_linear", one_after_the_other),
        "attention.output.dense", ("", "intermediate.dense", "output.dense"), {},
    ),
}  # fmt: skip

# A tower that is passed over, whose layers are named like the language model's.
TOWER = {
    "minicpmv": "vpm.encoder.layers.{}.self_attn.q_proj",
    "llava_qwen": "model.vision_tower.vision_tower.vision_model.encoder.layers.{}.self_attn.q_proj",
    "phi3_v": "model.vision_embed_tokens.img_processor.vision_model.encoder.layers.{}.self_attn.q_proj",
    "internvl_chat": "vision_model.encoder.layers.{}.attn.qkv",
}


@pytest.mark.parametrize("name", OWN_CODE)
def test_models_that_bring_their_own_code_are_taken_apart(name: str) -> None:
    layer_name, kv_heads, stored_attention, output, feedforward, config = OWN_CODE[name]
    torch.manual_seed(0)
    tensors: dict[str, Tensor] = {}
    expected: dict[DeltaKey, Tensor] = {}
    for layer in range(2):
        at = layer_name.format(layer)
        three = attention(kv_heads)
        parts = dict(zip(("query", "key", "value"), three, strict=True)) | {"output": drawn(WIDTH, HEADS * SIZE)}
        tensors[f"{at}.{output}.weight"] = parts["output"]
        if isinstance(stored_attention, tuple):
            tensors[f"{at}.{stored_attention[0]}.weight"] = stored_attention[1](*three)
        else:
            tensors |= {f"{at}.{path}.weight": tensor for path, tensor in stored_attention(*three).items()}
        gate, up, down = feedforward
        parts |= {"feedforward1": drawn(FORWARD, WIDTH), "feedforward2": drawn(WIDTH, FORWARD)}
        tensors[f"{at}.{down}.weight"] = parts["feedforward2"]
        if gate:
            parts["gate"] = drawn(FORWARD, WIDTH)
            both = (
                {gate: parts["gate"], up: parts["feedforward1"]}
                if up
                else {gate: torch.cat([parts["gate"], parts["feedforward1"]])}
            )
        else:
            both = {up: parts["feedforward1"]}
        tensors |= {f"{at}.{path}.weight": tensor for path, tensor in both.items()}
        if name in TOWER:
            tensors[f"{TOWER[name].format(layer)}.weight"] = drawn(5, 5)
        expected |= {DeltaKey("", layer, family): tensor for family, tensor in parts.items()}
    layout = located(tensors, {"model_type": name.split()[0]} | config)
    extracted = matrices(tensors, layout)
    assert extracted.keys() == expected.keys()
    for key, matrix in expected.items():
        assert torch.equal(extracted[key], matrix), key
