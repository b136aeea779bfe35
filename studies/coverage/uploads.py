"""Sizes of the tiny models, and makers of those uploads that neither transformers nor PEFT save."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from studies.coverage.making import Changes, Tensors, describe, full, model_of, planted

Maker = Callable[[Path, str, str], Changes]

SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 64,
    "max_position_embeddings": 32,
}  # fmt: skip
TEXT = SMALL | {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TOWER = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip
EAR = {
    "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 32, "num_mel_bins": 16,
    "max_source_positions": 16,
}  # fmt: skip
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
LLAMA = r"layers\.\d+\.(self_attn|mlp)\.\w+_proj"
BERT = r"encoder\.layer\.\d+\..*(query|key|value|dense)\.weight"
CONFIG = {"model_type": "llama"}
FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


def llama(**how: Any) -> Maker:
    """A fine-tune of all weights of a small Llama; see ``making.written``."""
    return full("llama", TEXT, LLAMA, "CausalLM", **how)


def llama_base(root: Path, identifier: str) -> None:
    """The base alone."""
    model_of("llama", TEXT, "CausalLM").save_pretrained(root / identifier)


def converted(write: str, *words: Any, file: str = "") -> Maker:
    """The base in another format, by a function of ``studies.conversions.writers``; ``file``: for those of one file."""

    def make(root: Path, base: str, upload: str) -> Changes:
        from studies.conversions import writers

        model = model_of("llama", TEXT, "CausalLM")
        model.save_pretrained(root / base)
        describe(root, base)
        weights = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
        getattr(writers, write)(root / upload / file, TEXT | CONFIG, weights, *words)
        describe(root, upload, base)
        return []

    return make


def robot(policy: str, reads: str, acts: str) -> Maker:
    """LeRobot's names: the action expert under ``acts``, and the language model that it reads with under ``reads``."""

    def make(root: Path, base: str, upload: str) -> Changes:
        body = model_of("llama", TEXT).state_dict()
        tensors = {f"{reads}{name}": tensor for name, tensor in body.items()}
        tensors |= {f"{acts}{name}": tensor[:32].clone() for name, tensor in body.items()}
        tensors["model.state_proj.weight"] = torch.zeros(64, 6)
        tuned, changes = planted(tensors, re.escape(acts) + LLAMA)
        for identifier, held in ((base, tensors), (upload, tuned)):
            (root / identifier).mkdir(parents=True)
            copies = {name: tensor.contiguous().clone() for name, tensor in held.items()}
            save_file(copies, root / identifier / "model.safetensors")
            config = {"type": policy, "input_features": {}, "output_features": {}}
            (root / identifier / "config.json").write_text(json.dumps(config))
        describe(root, base)
        card = {"datasets": ["lerobot/pusht"]}
        describe(root, upload, base, tags=["lerobot", "robotics", "dataset:lerobot/pusht"], card_data=card)
        return changes

    return make


def _flux_base(root: Path, base: str) -> None:
    """A FLUX transformer by diffusers' names."""
    torch.manual_seed(0)
    double = [
        f"transformer_blocks.0.{name}"
        for name in (
            "attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "attn.add_q_proj", "attn.add_k_proj",
            "attn.add_v_proj", "attn.to_add_out", "ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj",
            "ff_context.net.2",
        )
    ]  # fmt: skip
    single = [f"single_transformer_blocks.{layer}.attn.to_{letter}" for layer in range(2) for letter in "qkv"]
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


def _image_lora(root: Path, base: str, upload: str, factors: Tensors, file: str) -> None:
    (root / upload).mkdir(parents=True)
    save_file(factors, root / upload / file)
    describe(root, upload, base, relation="adapter", library_name="diffusers", tags=["diffusers", "lora"])


def flux_by_diffusers(root: Path, base: str, upload: str) -> Changes:
    """A LoRA of FLUX as diffusers saves it, without metadata: alpha is the rank."""
    _flux_base(root, base)
    factors, changes = {}, []
    for name in (f"single_transformer_blocks.{layer}.attn.to_{letter}" for layer in range(2) for letter in "qkv"):
        a, b = 0.05 * torch.randn(4, 64), 0.05 * torch.randn(64, 4)
        factors |= {f"transformer.{name}.lora_A.weight": a, f"transformer.{name}.lora_B.weight": b}
        changes.append(b @ a)
    _image_lora(root, base, upload, factors, "pytorch_lora_weights.safetensors")
    return changes


def flux_by_kohya(root: Path, base: str, upload: str) -> Changes:
    """As sd-scripts saves it: query, key, value and MLP of a single block are one module, and alpha is a tensor."""
    _flux_base(root, base)
    factors, changes = {}, []
    for layer in range(2):
        a, b = 0.05 * torch.randn(4, 64), 0.05 * torch.randn(3 * 64 + 128, 4)
        module = f"lora_unet_single_blocks_{layer}_linear1"
        factors |= {
            f"{module}.lora_down.weight": a,
            f"{module}.lora_up.weight": b,
            f"{module}.alpha": torch.tensor(2.0),
        }
        changes += [0.5 * rows @ a for rows in b.split([64, 64, 64, 128])]
    _image_lora(root, base, upload, factors, "my_style.safetensors")
    return changes


def mlx_adapter(root: Path, base: str, upload: str) -> Changes:
    """As mlx-lm: ``lora_a`` (in, r), ``lora_b`` (r, out), and the scale itself in the config."""
    llama_base(root, base)
    describe(root, base)
    torch.manual_seed(1)
    factors, changes = {}, []
    for layer in range(2):
        a, b = 0.05 * torch.randn(64, 4), 0.05 * torch.randn(4, 64)
        module = f"model.layers.{layer}.self_attn.q_proj"
        factors |= {f"{module}.lora_a": a, f"{module}.lora_b": b}
        changes.append(20.0 * (a @ b).T)
    (root / upload).mkdir(parents=True)
    save_file(factors, root / upload / "adapters.safetensors")
    config = {
        "model": base, "fine_tune_type": "lora", "num_layers": 2,
        "lora_parameters": {"rank": 4, "scale": 20.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]},
    }  # fmt: skip
    (root / upload / "adapter_config.json").write_text(json.dumps(config))
    describe(root, upload, base, relation="adapter", library_name="mlx")
    return changes


def reads_text_from_images(root: Path, base: str, upload: str) -> Changes:
    """TrOCR: a ViT and a decoder that transformers puts together."""
    import transformers

    torch.manual_seed(0)
    decoder = {
        "d_model": 32,
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 48,
        "vocab_size": 64,
    }
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**TOWER), transformers.TrOCRConfig(**decoder, cross_attention_hidden_size=32)
    )
    transformers.VisionEncoderDecoderModel(config=config).float().save_pretrained(root / base)
    from safetensors.torch import load_file

    tensors = load_file(root / base / "model.safetensors")
    tuned, changes = planted(tensors, r"layers?\.\d+\..*(query|key|value|dense|_proj|fc\d)\.weight")
    (root / upload).mkdir(parents=True)
    shutil.copy(root / base / "config.json", root / upload)
    save_file(tuned, root / upload / "model.safetensors")
    describe(root, base)
    describe(root, upload, base)
    return changes


def on_a_child(relation: str, make: Maker) -> Maker:
    """The same upload, which claims a child of the base that has the base's own weights."""

    def made(root: Path, base: str, upload: str) -> Changes:
        child = f"{base.replace('base/', 'mirrors/')}-copy"
        changes = make(root, child, upload)
        shutil.copytree(root / child, root / base)
        describe(root, base)
        describe(root, child, base, relation=relation)
        return changes

    return made


def with_dashes(root: Path, base: str, upload: str) -> Changes:
    """A card that spells the base owner--name."""
    changes = llama()(root, base, upload)
    describe(root, upload, base.replace("/", "--"))
    return changes


def gated(root: Path, base: str, upload: str) -> Changes:
    """An upload that this account may not read."""
    llama()(root, base, upload)
    describe(root, upload, base, gated="manual")
    return []
