"""Image models and LoRAs of them, written to their formats' definitions with tiny shapes.

Names of tensors and config.json: diffusers 0.42, models/transformers/transformer_flux.py and
models/unets/unet_2d_condition.py. Of a LoRA: loaders/lora_pipeline.py (save_lora_weights), loaders/peft.py
(``lora_adapter_metadata``) and, for kohya's, sd-scripts networks/lora_flux.py and networks/lora.py, whose names
diffusers reads in loaders/lora_conversion_utils.py.

Checked by hand against diffusers 0.42.1: files that ``save_lora_weights`` wrote for a FluxTransformer2DModel and a
UNet2DConditionModel have these names, and δW as read here is what its ``fuse_lora`` added (relative difference 5e-8);
kohya's spellings for FLUX (at its real width), for SD XL's original names and for diffusers' names are read as its
converters convert them (no difference), and so are the names that these converters make.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.tiny_hub import describe

# Wide enough that a sample of a matrix is less than half of it.
WIDTH = 320
DEPTH = {"transformer_blocks": 2, "single_transformer_blocks": 2}
# The classes of diffusers whose weights are read, and names of a tensor and of its matrices: tiny models of each were
# saved by diffusers 0.42.1 and located by hand.
OF_DIFFUSERS = {
    "FluxTransformer2DModel": ("single_transformer_blocks.0.proj_mlp", ["single.0.feedforward1"]),
    "ChromaTransformer2DModel": ("transformer_blocks.0.attn.add_k_proj", ["text.0.key"]),
    "HunyuanVideoTransformer3DModel": ("transformer_blocks.0.ff_context.net.2", ["text.0.feedforward2"]),
    "Flux2Transformer2DModel": (
        "single_transformer_blocks.0.attn.to_qkv_mlp_proj",
        ["single.0.query", "single.0.key", "single.0.value", "single.0.gate", "single.0.feedforward1"],
    ),
    "UNet2DConditionModel": (
        "mid_block.attentions.0.transformer_blocks.0.ff.net.0.proj", ["mid.0.feedforward1", "mid.0.gate"],
    ),
    "QwenImageTransformer2DModel": ("transformer_blocks.0.txt_mlp.net.0.proj", ["text.0.feedforward1"]),
    "WanTransformer3DModel": ("blocks.0.attn2.to_k", ["0.cross_key"]),
    "LTXVideoTransformer3DModel": ("transformer_blocks.0.ff.net.2", ["0.feedforward2"]),
    "Krea2Transformer2DModel": ("transformer_blocks.0.ff.up", ["0.feedforward1"]),
    "ZImageTransformer2DModel": ("layers.0.feed_forward.w3", ["0.feedforward1"]),
}  # fmt: skip
Shapes = dict[str, tuple[int, int]]
Tensors = dict[str, torch.Tensor]


def flux_shapes() -> Shapes:
    """The block matrices of a FLUX transformer, (out, in)."""
    found: Shapes = {}
    for layer in range(DEPTH["transformer_blocks"]):
        block = f"transformer_blocks.{layer}"
        for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"):
            found[f"{block}.attn.{name}"] = (WIDTH, WIDTH)
        for name in ("ff", "ff_context"):
            found[f"{block}.{name}.net.0.proj"] = (4 * WIDTH, WIDTH)
            found[f"{block}.{name}.net.2"] = (WIDTH, 4 * WIDTH)
    for layer in range(DEPTH["single_transformer_blocks"]):
        block = f"single_transformer_blocks.{layer}"
        for name in ("to_q", "to_k", "to_v"):
            found[f"{block}.attn.{name}"] = (WIDTH, WIDTH)
        found[f"{block}.proj_mlp"] = (4 * WIDTH, WIDTH)
        found[f"{block}.proj_out"] = (WIDTH, 5 * WIDTH)
    return found


def unet_shapes(width: int = 16, text: int = 12) -> Shapes:
    """Those of a U-Net with one, two and no transformer blocks on the way down, as in SD XL; ff.net.0 has a gate."""
    found: Shapes = {}
    places = [(f"down_blocks.{block}.attentions.{one}", block) for block in (1, 2) for one in (0, 1)]
    places += [("mid_block.attentions.0", 2)]
    places += [(f"up_blocks.{block}.attentions.{one}", 2 - block) for block in (0, 1) for one in (0, 1, 2)]
    for place, depth in places:
        for layer in range(depth):
            block = f"{place}.transformer_blocks.{layer}"
            for attention, inner in (("attn1", width), ("attn2", text)):
                found |= {f"{block}.{attention}.to_q": (width, width), f"{block}.{attention}.to_k": (width, inner)}
                found |= {f"{block}.{attention}.to_v": (width, inner), f"{block}.{attention}.to_out.0": (width, width)}
            found |= {f"{block}.ff.net.0.proj": (8 * width, width), f"{block}.ff.net.2": (width, 4 * width)}
    return found


def random_tensors(shapes: Shapes, seed: int, scale: float = 0.05) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {f"{name}.weight": scale * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def save_pipeline(folder: Path, weights: Tensors, component: str, class_name: str) -> Path:
    """A repository of diffusers with one component."""
    (folder / component).mkdir(parents=True)
    (folder / "model_index.json").write_text(
        json.dumps({"_class_name": "Pipeline", component: ["diffusers", class_name]})
    )
    (folder / component / "config.json").write_text(json.dumps({"_class_name": class_name, "num_layers": 2}))
    others = {"x_embedder.weight": torch.ones(4, 4), "norm_out.linear.weight": torch.ones(4, 4)}
    save_file(weights | others, folder / component / "diffusion_pytorch_model.safetensors")
    return folder


def factors(shapes: Shapes, seed: int, rank: int = 4) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """A (r, in) and B (out, r) of modules."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (0.1 * torch.randn(rank, inner, generator=generator), 0.1 * torch.randn(out, rank, generator=generator))
        for name, (out, inner) in shapes.items()
    }


def save_by_diffusers(
    folder: Path, made: dict[str, tuple[torch.Tensor, torch.Tensor]], component: str, alpha: float | None
) -> None:
    """As ``save_lora_weights`` does; older versions wrote no metadata, and then alpha is the rank."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, (a, b) in made.items():
        tensors |= {f"{component}.{name}.lora_A.weight": a, f"{component}.{name}.lora_B.weight": b}
    rank = len(next(iter(made.values()))[0])
    settings = {
        f"{component}.{key}": value for key, value in {"r": rank, "lora_alpha": alpha, "peft_type": "LORA"}.items()
    }
    metadata = {"format": "pt"} | ({} if alpha is None else {"lora_adapter_metadata": json.dumps(settings)})
    save_file(tensors, folder / "pytorch_lora_weights.safetensors", metadata=metadata)


def save_by_kohya(
    folder: Path, made: dict[str, tuple[torch.Tensor, torch.Tensor]], alpha: float | None, names: tuple[str, ...]
) -> None:
    """As sd-scripts: names with underscores, alpha beside the factors; LoRAs of the text encoder in the same file."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    encoder = {"lora_te1_text_model_encoder_layers_0_mlp_fc1": (torch.ones(4, 8), torch.ones(8, 4))}
    for name, (a, b) in (
        {f"lora_unet_{name.replace('.', '_')}": pair for name, pair in made.items()} | encoder
    ).items():
        tensors |= {f"{name}.lora_down.weight": a, f"{name}.lora_up.weight": b}
        if alpha is not None:
            tensors[f"{name}.alpha"] = torch.tensor(alpha)
    for name in names:
        save_file(tensors, folder / name, metadata={"ss_network_dim": "4"})


def claim(store: Path, name: str, base: str, **card: Any) -> None:
    """What the Hub says of a LoRA of an image model."""
    tags = ["diffusers", "text-to-image", "lora", f"base_model:{base}", f"base_model:adapter:{base}"]
    describe(store, name, tags=tags, library_name="diffusers", card_data={"base_model": base, **card})
