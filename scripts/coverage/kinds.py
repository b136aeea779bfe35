"""The kinds of uploads: what share of the Hub each is, how many of a sample of 72, and how to make one.

Shares and counts are of the fine-tunes and adapters that were uploaded in autumn 2026: 72 uploads with a readable
``base_model`` tag in six half-hours of September and October. A row without a count is part of the stock, not of the
sample. To add a kind, add a row.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from scripts.coverage.making import describe, files, full, lora, model_of, planted
from scripts.coverage.stores import fp8_blocks, in_folder, mlx, sharded


@dataclass(frozen=True)
class Kind:
    """``make(root, base, upload)`` writes both and returns the norm of the planted δW, 0 where there is none.

    ``sample``: of 72. ``is_trained``: False for mere conversions; ``is_noisy``: stored in
    codes of few bits. ``options``: of `index build`.
    """

    name: str
    share: str
    sample: int
    make: Callable[[Path, str, str], float]
    is_trained: bool = True
    is_noisy: bool = False
    options: dict[str, Any] = field(default_factory=dict)


SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 64,
    "max_position_embeddings": 32,
}  # fmt: skip
TEXT = SMALL | {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TOWER = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
LLAMA = r"layers\.\d+\.(self_attn|mlp)\.\w+_proj"
BERT = r"encoder\.layer\.\d+\..*(query|key|value|dense)\.weight"
QWEN3_VL = {
    "text_config": TEXT | ROPE,
    "vision_config": {
        "depth": 2, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2, "intermediate_size": 32,
        "deepstack_visual_indexes": [0],
    },
}  # fmt: skip
FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
Q = ["q_proj", "v_proj"]


def llama(**how: Any) -> Callable[..., float]:
    return full("llama", TEXT, LLAMA, "CausalLM", **how)


def _base(root: Path, identifier: str) -> None:
    model_of("llama", TEXT, "CausalLM").save_pretrained(root / identifier)


def robot(policy: str, reads: str, acts: str) -> Callable[..., float]:
    """LeRobot's names: the expert that acts, below ``acts``, beside the language model that it reads with, ``reads``."""

    def make(root: Path, base: str, upload: str) -> float:
        body = model_of("llama", TEXT).state_dict()
        tensors = {f"{reads}{name}": tensor for name, tensor in body.items()}
        tensors |= {f"{acts}{name}": tensor[:32].clone() for name, tensor in body.items()}
        tensors["model.state_proj.weight"] = torch.zeros(64, 6)
        tuned, norm = planted(tensors, re.escape(acts) + LLAMA)
        for identifier, held in ((base, tensors), (upload, tuned)):
            (root / identifier).mkdir(parents=True)
            copies = {name: tensor.contiguous().clone() for name, tensor in held.items()}
            save_file(copies, root / identifier / "model.safetensors")
            config = {"type": policy, "input_features": {}, "output_features": {}}
            (root / identifier / "config.json").write_text(json.dumps(config))
        describe(root, base)
        card = {"datasets": ["lerobot/pusht"]}
        describe(root, upload, base, tags=["lerobot", "robotics", "dataset:lerobot/pusht"], card_data=card)
        return norm

    return make


def _flux(root: Path, base: str, upload: str) -> float:
    """A FLUX transformer by diffusers' names, and a LoRA as diffusers saves it; rank and α are those of the factors."""
    torch.manual_seed(0)
    single = [f"single_transformer_blocks.{layer}.attn.to_{letter}" for layer in range(2) for letter in "qkv"]
    double = [
        f"transformer_blocks.0.{name}"
        for name in (
            "attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "attn.add_q_proj", "attn.add_k_proj",
            "attn.add_v_proj", "attn.to_add_out", "ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj",
            "ff_context.net.2",
        )
    ]  # fmt: skip
    shapes = dict.fromkeys((*single, *double), (64, 64))
    shapes |= {f"single_transformer_blocks.{layer}.proj_mlp": (128, 64) for layer in range(2)}
    shapes |= {f"single_transformer_blocks.{layer}.proj_out": (64, 192) for layer in range(2)}
    folder = root / base / "transformer"
    folder.mkdir(parents=True)
    weights = {f"{name}.weight": 0.1 * torch.randn(shape) for name, shape in shapes.items()}
    save_file(weights, folder / "diffusion_pytorch_model.safetensors")
    (folder / "config.json").write_text(json.dumps({"_class_name": "FluxTransformer2DModel", "num_layers": 1}))
    (root / base / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    describe(root, base, library_name="diffusers")
    factors, square = {}, 0.0
    for name in single:
        a, b = 0.05 * torch.randn(4, 64), 0.05 * torch.randn(64, 4)
        factors |= {f"transformer.{name}.lora_A.weight": a, f"transformer.{name}.lora_B.weight": b}
        square += float((b @ a).double().square().sum())
    (root / upload).mkdir(parents=True)
    save_file(factors, root / upload / "pytorch_lora_weights.safetensors")
    describe(root, upload, base, relation="adapter", library_name="diffusers", tags=["diffusers", "lora"])
    return square**0.5


def _mlx_adapter(root: Path, base: str, upload: str) -> float:
    """As mlx-lm: ``lora_a`` (in, r), ``lora_b`` (r, out), and the scale itself in the config."""
    _base(root, base)
    describe(root, base)
    torch.manual_seed(1)
    factors, square = {}, 0.0
    for layer in range(2):
        a, b = 0.05 * torch.randn(64, 4), 0.05 * torch.randn(4, 64)
        module = f"model.layers.{layer}.self_attn.q_proj"
        factors |= {f"{module}.lora_a": a, f"{module}.lora_b": b}
        square += float((20.0 * (a @ b)).double().square().sum())
    (root / upload).mkdir(parents=True)
    save_file(factors, root / upload / "adapters.safetensors")
    config = {
        "model": base, "fine_tune_type": "lora", "num_layers": 2,
        "lora_parameters": {"rank": 4, "scale": 20.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]},
    }  # fmt: skip
    (root / upload / "adapter_config.json").write_text(json.dumps(config))
    describe(root, upload, base, relation="adapter", library_name="mlx")
    return square**0.5


CONFIG = {"model_type": "llama"}


def _on_a_child(relation: str, make: Callable[..., float]) -> Callable[..., float]:
    """The same upload, which claims a child of the base that has the base's own weights."""

    def made(root: Path, base: str, upload: str) -> float:
        child = f"{base.replace('base/', 'mirrors/')}-copy"
        norm = make(root, child, upload)
        shutil.copytree(root / child, root / base)
        describe(root, base)
        describe(root, child, base, relation=relation)
        return norm

    return made


def _with_dashes(root: Path, base: str, upload: str) -> float:
    norm = llama()(root, base, upload)
    describe(root, upload, base.replace("/", "--"))
    return norm


KINDS = (
    Kind("full, a known type: bert", "25–30 %", 3, full("bert", SMALL, BERT, "SequenceClassification")),
    Kind("full, a known type: llama", "", 8, llama()),
    Kind(
        "full, a known type: t5",
        "",
        1,
        full(
            "t5",
            {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64},
            r"block\.\d+\..*\.(q|k|v|o|wi|wo)\.weight",
            "Seq2SeqLM",
        ),
    ),
    Kind(
        "full, a known type: qwen2_5_vl",
        "2–4 %",
        2,
        full(
            "qwen2_5_vl",
            {
                "text_config": TEXT | ROPE,
                "vision_config": {
                    "depth": 2,
                    "hidden_size": 32,
                    "out_hidden_size": 64,
                    "num_heads": 2,
                    "intermediate_size": 32,
                },
            },
            r"(model|language_model)\.layers\.\d+\.(self_attn|mlp)",
        ),
    ),
    Kind("PEFT LoRA", "≈ 40 %", 8, lora("llama", TEXT, Q, "CausalLM")),
    Kind(
        "PEFT LoRA of a model for images and text",
        "",
        0,
        lora(
            "smolvlm",
            {
                "text_config": TEXT | {"model_type": "llama"},
                "vision_config": TOWER,
            },
            r".*text_model.*\.(q_proj|v_proj)",
            "ImageTextToText",
        ),
    ),  # type: ignore[arg-type]
    Kind("DoRA", "≤ 1.6 %", 0, lora("llama", TEXT, Q, "CausalLM", use_dora=True)),
    Kind(
        "mixture of experts: qwen3_moe",
        "1–2 %",
        0,
        full(
            "qwen3_moe",
            TEXT
            | {
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "decoder_sparse_step": 1,
            },
            r"layers\.\d+\.self_attn\.\w_proj",
            "CausalLM",
        ),
    ),
    Kind(
        "mixture of experts: gpt_oss",
        "",
        0,
        full(
            "gpt_oss",
            TEXT | {"num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": ["full_attention"] * 2},
            r"layers\.\d+\.self_attn\.\w_proj\.weight",
            "CausalLM",
        ),
    ),
    Kind(
        "irregular layers: qwen3_5_text",
        "14–15 %",
        10,
        full(
            "qwen3_5_text",
            TEXT
            | {
                "num_hidden_layers": 4,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 16,
                "linear_value_head_dim": 16,
            },
            r"layers\.\d+\.mlp\.\w+_proj",
            "CausalLM",
        ),
    ),
    Kind(
        "irregular layers: gemma4_text",
        "",
        1,
        full(
            "gemma4_text",
            TEXT
            | {
                "num_hidden_layers": 6,
                "hidden_size_per_layer_input": 0,
                "vocab_size_per_layer_input": 64,
            },
            r"layers\.\d+\.mlp\.\w+_proj",
            "CausalLM",
        ),
    ),
    Kind(
        "names that lacked a line: qwen3_vl",
        "1–2 %",
        0,
        full("qwen3_vl", QWEN3_VL, r"language_model\.layers\.\d+\.(self_attn|mlp)"),
    ),
    Kind(
        "names that lacked a line: smolvlm",
        "",
        0,
        full(
            "smolvlm",
            {
                "text_config": TEXT | {"model_type": "llama"},
                "vision_config": TOWER,
            },
            r"text_model\.layers\.\d+\.(self_attn|mlp)",
        ),
    ),
    Kind(
        "names that lacked a line: qwen3_asr",
        "",
        1,
        full(
            "qwen3_asr",
            {
                "text_config": TEXT,
                "audio_config": {
                    "d_model": 32,
                    "encoder_layers": 2,
                    "encoder_attention_heads": 4,
                    "encoder_ffn_dim": 32,
                    "output_dim": 64,
                    "downsample_hidden_size": 8,
                    "num_mel_bins": 16,
                },
            },
            r"language_model\.layers\.\d+\.(self_attn|mlp)",
        ),
    ),
    Kind(
        "CLIP, both towers",
        "",
        0,
        full(
            "clip",
            {"text_config": SMALL, "vision_config": TOWER},
            r"encoder\.layers\.\d+\.(self_attn|mlp)\.\w+\.weight",
        ),
    ),
    Kind(
        "Swin, in stages",
        "",
        0,
        full(
            "swin",
            {
                "embed_dim": 16,
                "depths": [1, 2, 1, 1],
                "num_heads": [1, 2, 2, 4],
                "image_size": 64,
                "window_size": 2,
            },
            r"blocks\.\d+\..*(query|key|value|dense)\.weight",
            "ImageClassification",
        ),
    ),
    Kind("LoRA of FLUX by diffusers", "10–13 %", 5, _flux),
    Kind(
        "robot policies: smolvla",
        "11 % of the sample",
        5,
        robot("smolvla", "model.vlm_with_expert.vlm.model.text_model.", "model.vlm_with_expert.lm_expert."),
    ),
    Kind(
        "robot policies: pi0",
        "",
        1,
        robot(
            "pi0",
            "model.paligemma_with_expert.paligemma.model.language_model.",
            "model.paligemma_with_expert.gemma_expert.model.",
        ),
    ),
    Kind("robot policies: act, which has no base", "", 2, robot("act", "model.encoder.", "model.decoder.")),
    Kind("fp8, on a base in float", "1 of 72", 1, llama(store=fp8_blocks, settings=FP8), is_noisy=True),
    Kind("fp8, on a base in fp8", "", 0, llama(store=fp8_blocks, settings=FP8, base_too=True), is_noisy=True),
    Kind(
        "bitsandbytes, 4 bits",
        "1–2 %",
        0,
        files(
            _base,
            {
                "config.json": CONFIG | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
                "model.safetensors": b"\x02\x00\x00\x00\x00\x00\x00\x00{}",
            },
        ),
        is_trained=False,
    ),
    Kind("pickles in shards", "10 % of old stock", 0, llama(store=sharded)),
    Kind("MLX, not quantised", "", 0, llama()),
    Kind(
        "MLX, 8 bits",
        "small, growing",
        0,
        llama(store=mlx(8), settings={"quantization": {"bits": 8, "group_size": 32}}),
        is_noisy=True,
    ),
    Kind(
        "MLX, 4 bits",
        "",
        6,
        llama(store=mlx(4), settings={"quantization": {"bits": 4, "group_size": 32}}),
        is_trained=False,
    ),
    Kind("MLX adapter", "", 0, _mlx_adapter),
    Kind("GGUF only", "conversions: 18 of 72", 4, files(_base, {"model-Q4_K_M.gguf": b"GGUF"}), is_trained=False),
    Kind("ONNX only", "", 4, files(_base, {"config.json": CONFIG, "onnx/model.onnx": b"x"}), is_trained=False),
    Kind("Core ML only", "", 2, files(_base, {"model.mlpackage/Data/weights.bin": b"x"}), is_trained=False),
    Kind(
        "ctranslate2 only",
        "",
        2,
        files(_base, {"config.json": {}, "model.bin": b"x", "vocabulary.json": []}),
        is_trained=False,
    ),
    Kind("SentenceTransformer, in 0_Transformer", "1–2 %", 0, llama(store=in_folder("0_Transformer"))),
    Kind("weights in step-N", "17 % of a tree, with none at all", 0, llama(store=in_folder("step-200"))),
    Kind("weights two folders down", "", 0, llama(store=in_folder("run/checkpoint-200"))),
    Kind("no weights at all", "a third of uploads", 0, files(_base, {"README.md": b"soon"}), is_trained=False),
    Kind("full, on a fine-tune of the base", "67 % of a tree", 3, _on_a_child("finetune", llama())),
    Kind("PEFT LoRA on a 4-bit copy of the base", "", 2, _on_a_child("quantized", lora("llama", TEXT, Q, "CausalLM"))),
    Kind("full, a base id spelt owner--name", "", 1, _with_dashes),
)
