"""Tiny models whose layers are not alike, and models with experts: their sizes, and what each module's rows are.

Written from the forward passes of transformers 5.23 (``models/*/modeling_*.py``), by hand and by other means than the
data files: ``PARTS`` takes apart the parameters of modules in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import transformers
from torch import Tensor, nn

SIZES = {
    "vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 40, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "num_experts": 3, "num_local_experts": 3, "n_routed_experts": 3, "moe_num_experts": 3,
    "moe_intermediate_size": 14, "num_experts_per_tok": 2, "moe_k": 2, "shared_expert_intermediate_size": 16,
    "n_shared_experts": 1, "moe_num_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 5,
    "mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 12, "mamba_expand": 2, "mamba_n_groups": 1,
    "q_lora_rank": 16, "kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 8,
}  # fmt: skip

Parts = Callable[[nn.Module], dict[str, Tensor]]


@dataclass(frozen=True)
class Mixed:
    """``parts``: by the ending of a module's path in memory, its matrices by family, as views (out, in)."""

    parts: dict[str, Parts]
    config: dict[str, object] = field(default_factory=dict)
    layers: str = "model.layers"

    def but(self, parts: dict[str, Parts] | None = None, layers: str = "", **config: object) -> Mixed:
        return Mixed(self.parts | (parts or {}), self.config | config, layers or self.layers)


def unfused(family: str) -> Parts:
    return lambda module: {family: module.weight}


def rows(**sizes: int) -> Parts:
    """Rows one after the other; those named ``left_out`` belong to no family."""

    def parts_of_module(module: nn.Module) -> dict[str, Tensor]:
        assert sum(sizes.values()) == len(module.weight)
        parts = dict(zip(sizes, module.weight.split(list(sizes.values())), strict=True))
        parts.pop("left_out", None)
        return parts

    return parts_of_module


def halves(first: str, second: str) -> Parts:
    return lambda module: dict(zip((first, second), module.weight.chunk(2), strict=True))


def by_head(heads: int, **sizes: int) -> Parts:
    """In each head its rows of each family, one family after the other."""

    def parts_of_module(module: nn.Module) -> dict[str, Tensor]:
        heads_first = module.weight.unflatten(0, (heads, sum(sizes.values())))
        return dict(zip(sizes, heads_first.split(list(sizes.values()), dim=1), strict=True))

    return parts_of_module


def modules(prefix: str, names: str, families: str) -> dict[str, Parts]:
    return {f"{prefix}.{name}": unfused(family) for name, family in zip(names.split(), families.split(), strict=True)}


ATTENTION = modules("self_attn", "q_proj k_proj v_proj o_proj", "query key value output")
GATED = "gate feedforward1 feedforward2"
DENSE = modules("mlp", "gate_proj up_proj down_proj", GATED)


def experts(module: nn.Module) -> dict[str, Tensor]:
    """Transformers keeps all experts in two parameters, (E, 2·ff, hidden) with gate first, and (E, hidden, ff)."""
    gate, up = module.gate_up_proj[0].chunk(2)
    return {"expert_gate": gate, "expert_feedforward1": up, "expert_feedforward2": module.down_proj[0]}


def transposed_experts(module: nn.Module) -> dict[str, Tensor]:
    """Llama 4: (E, hidden, 2·ff), (E, ff, hidden)."""
    gate, up = module.gate_up_proj[0].chunk(2, dim=1)
    return {"expert_gate": gate.T, "expert_feedforward1": up.T, "expert_feedforward2": module.down_proj[0].T}


def alternating_experts(module: nn.Module) -> dict[str, Tensor]:
    """gpt-oss: ``gate, up = gate_up[..., ::2], gate_up[..., 1::2]``."""
    both = module.gate_up_proj[0].T
    return {"expert_gate": both[::2], "expert_feedforward1": both[1::2], "expert_feedforward2": module.down_proj[0].T}


def ungated_experts(module: nn.Module) -> dict[str, Tensor]:
    return {"expert_feedforward1": module.up_proj[0], "expert_feedforward2": module.down_proj[0]}


def shared(name: str) -> dict[str, Parts]:
    return modules(f"mlp.{name}", "gate_proj up_proj down_proj", GATED) | {"mlp.experts": experts}


LINEAR = {
    "linear_attn.in_proj_qkv": rows(query=12, key=12, value=20),
    "linear_attn.in_proj_z": unfused("output_gate"),
    "linear_attn.out_proj": unfused("output"),
}
QWEN = Mixed(ATTENTION | {"self_attn.q_proj": by_head(4, query=8, output_gate=8)} | LINEAR | DENSE)
# Mamba-2: gate z, x, B, C and a step for each head.
SSM = {
    "mamba.in_proj": rows(ssm_gate=48, ssm_input=48, ssm_b=8, ssm_c=8, left_out=4),
    "mamba.out_proj": unfused("ssm_output"),
}
FEED = modules("feed_forward", "gate_proj up_proj down_proj", GATED)
TYPES = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
LATENT = {
    "self_attn.q_a_proj": unfused("query_a"),
    "self_attn.q_b_proj": unfused("query"),
    "self_attn.kv_a_proj_with_mqa": unfused("key_value_a"),
    "self_attn.kv_b_proj": by_head(4, key=6, value=8),
    "self_attn.o_proj": unfused("output"),
}
GEMMA = Mixed(ATTENTION | DENSE, {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 40})
GRANITE = {
    "shared_mlp.input_linear": halves("gate", "feedforward1"),
    "shared_mlp.output_linear": unfused("feedforward2"),
    "block_sparse_moe.experts": experts,
}
LFM = {
    **modules("self_attn", "q_proj k_proj v_proj out_proj", "query key value output"),
    **modules("feed_forward", "w1 w3 w2", GATED),
    "conv.in_proj": rows(conv_b=24, conv_c=24, conv_input=24),
    "conv.out_proj": unfused("conv_output"),
}
MIXER = {
    "mixer.in_proj": rows(ssm_gate=48, ssm_input=48, ssm_b=16, ssm_c=16, left_out=4),
    **modules("mixer", "out_proj q_proj k_proj v_proj o_proj", "ssm_output query key value output"),
    **modules("mixer", "up_proj down_proj", "feedforward1 feedforward2"),
    **modules("mixer.shared_experts", "up_proj down_proj", "feedforward1 feedforward2"),
    "mixer.experts": ungated_experts,
}
QWEN_MOE = Mixed(ATTENTION | DENSE | shared("shared_expert"))
DEEPSEEK = Mixed(LATENT | DENSE | shared("shared_experts"))
SHARED_EXPERTS = Mixed(ATTENTION | DENSE | shared("shared_experts"))

MIXED: dict[str, Mixed] = {
    "qwen3_5_text": QWEN,
    "qwen3_5_moe_text": QWEN.but(shared("shared_expert")),
    "qwen3_next": QWEN.but(
        shared("shared_expert")
        | {"linear_attn.in_proj_qkvz": by_head(2, query=6, key=6, value=10, output_gate=10)}
    ),
    "gemma3n_text": GEMMA.but(
        num_hidden_layers=6, num_kv_shared_layers=2, intermediate_size=40, altup_num_inputs=2, laurel_rank=8,
        activation_sparsity_pattern=[0.0] * 6,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    ),
    "gemma4_text": GEMMA.but(
        num_hidden_layers=6, attention_k_eq_v=True, global_head_dim=12, num_global_key_value_heads=1,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    ),
    "gemma4_text shared": GEMMA.but(
        num_hidden_layers=6, num_kv_shared_layers=3, use_double_wide_mlp=True, global_head_dim=12,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    ),
    "gemma4_text experts": GEMMA.but(
        {"experts": experts}, enable_moe_block=True, num_experts=3, top_k_experts=2, global_head_dim=12,
        layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    ),
    "gemma4_unified_text": GEMMA.but(num_hidden_layers=4, global_head_dim=12),
    "lfm2": Mixed(LFM, {"layer_types": ["conv", "conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False}),
    "lfm2_moe": Mixed(
        LFM | {"feed_forward.experts": experts},
        {"layer_types": ["conv", "conv", "full_attention", "conv"], "num_dense_layers": 2},
    ),
    "mllama_text_model": Mixed(
        ATTENTION | DENSE
        | modules("cross_attn", "q_proj k_proj v_proj o_proj", "cross_query cross_key cross_value cross_output"),
        {"cross_attention_layers": [1, 3]},
    ),
    "nemotron_h": Mixed(
        MIXER,
        {"layers_block_type": ["mamba", "attention", "moe", "mlp"], "mamba_num_heads": 4, "mamba_head_dim": 12,
         "ssm_state_size": 8, "n_groups": 2, "moe_shared_expert_intermediate_size": 16},
    ),
    "granitemoehybrid": Mixed(
        ATTENTION | SSM | GRANITE,
        {"layer_types": ["mamba", "attention", "mamba", "attention"], "shared_intermediate_size": 20},
    ),
    "granitemoeshared": Mixed(ATTENTION | GRANITE, {"shared_intermediate_size": 20}),
    "granitemoe": Mixed(ATTENTION | GRANITE),
    "bamba": Mixed(ATTENTION | SSM | FEED, {"attn_layer_indices": [1, 3]}),
    "falcon_h1": Mixed(ATTENTION | SSM | FEED, {"mamba_d_ssm": 48}),
    "jamba": Mixed(
        ATTENTION | FEED
        | {"mamba.in_proj": halves("ssm_input", "ssm_gate"), "mamba.out_proj": unfused("ssm_output"),
           "feed_forward.experts": experts},
        {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
         "mamba_dt_rank": 4, "use_mamba_kernels": False},
    ),
    **dict.fromkeys(
        ["mamba", "falcon_mamba"],
        Mixed(
            {"mixer.in_proj": halves("ssm_input", "ssm_gate"), "mixer.out_proj": unfused("ssm_output")},
            layers="backbone.layers",
        ),
    ),
    "mamba2": Mixed(
        {"mixer.in_proj": MIXER["mixer.in_proj"], "mixer.out_proj": unfused("ssm_output")},
        {"num_heads": 4, "n_groups": 2, "state_size": 8, "expand": 2, "head_dim": 12}, layers="backbone.layers",
    ),
    "zamba2": Mixed(
        {**SSM, **{f"shared_transformer.{path}": part for path, part in ATTENTION.items()},
         "shared_transformer.feed_forward.gate_up_proj": halves("gate", "feedforward1"),
         "shared_transformer.feed_forward.down_proj": unfused("feedforward2")},
        {"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "mamba_ngroups": 1, "mamba_headdim": 12,
         "n_mamba_heads": 4, "hybrid_layer_ids": [1, 3], "num_mem_blocks": 1},
    ),
    "minimax": Mixed(
        ATTENTION
        | {"self_attn.qkv_proj": by_head(4, query=8, key=8, value=8), "self_attn.output_gate": unfused("output_gate"),
           "self_attn.out_proj": unfused("output"), "mlp.experts": experts},
        {"layer_types": TYPES, "block_size": 8},
    ),
    "recurrent_gemma": Mixed(
        modules("temporal_block", "q_proj k_proj v_proj o_proj", "query key value output")
        | modules("temporal_block", "linear_y linear_x linear_out", "ssm_gate ssm_input ssm_output")
        | modules("mlp_block", "gate_proj up_proj down_proj", GATED),
    ),
    "olmo_hybrid": Mixed(
        ATTENTION | DENSE
        | modules("linear_attn", "q_proj k_proj v_proj g_proj o_proj", "query key value output_gate output"),
    ),
    "qwen2_moe": QWEN_MOE,
    "qwen3_moe": QWEN_MOE,
    "qwen3_vl_moe_text": QWEN_MOE.but(layers="layers"),
    "olmoe": QWEN_MOE,
    "flex_olmo": QWEN_MOE,
    **dict.fromkeys(["cohere2_moe", "mellum", "mimo_v2_flash"], QWEN_MOE),
    "glm4v_moe_text": SHARED_EXPERTS.but(layers="layers"),
    **dict.fromkeys(["glm4_moe", "dots1", "ernie4_5_moe", "exaone_moe", "solar_open", "hy_v3"], SHARED_EXPERTS),
    "afmoe": SHARED_EXPERTS.but({"self_attn.gate_proj": unfused("output_gate")}, num_dense_layers=1),
    "hunyuan_v1_moe": QWEN_MOE.but(shared("shared_mlp"), moe_topk=2),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v2 lite": DEEPSEEK.but({"self_attn.q_proj": unfused("query")}, q_lora_rank=None),
    **dict.fromkeys(["deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "axk1", "mistral4"], DEEPSEEK),
    **dict.fromkeys(["youtu", "minicpm3"], Mixed(LATENT | DENSE)),
    **dict.fromkeys(["laguna", "flint", "kolibri1"], QWEN_MOE.but(shared("shared_experts"))),
    **dict.fromkeys(["mixtral", "phimoe", "minimax_m2"], Mixed(ATTENTION | {"mlp.experts": experts})),
    "gpt_oss": Mixed(ATTENTION | {"mlp.experts": alternating_experts}),
    "llama4_text": Mixed(
        ATTENTION
        | modules("feed_forward.shared_expert", "gate_proj up_proj down_proj", GATED)
        | modules("feed_forward", "gate_proj up_proj down_proj", GATED)
        | {"feed_forward.experts": transposed_experts},
        {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 36},
    ),
}  # fmt: skip


EYE = {
    "depth": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 24,
    "num_position_embeddings": 16,
}  # fmt: skip
PICTURE = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "image_size": 16, "patch_size": 8}
# The language models of these have a config of their own: its name in MIXED, and the config of the tower beside it.
TOWERS: dict[str, tuple[str, dict[str, object] | None]] = {
    "qwen3_5": ("qwen3_5_text", EYE),
    "qwen3_5_moe": ("qwen3_5_moe_text", EYE),
    "qwen3_vl_moe": ("qwen3_vl_moe_text", EYE),
    "lfm2_vl": ("lfm2", PICTURE | {"num_attention_heads": 2}),
    "llama4": (
        "llama4_text",
        PICTURE
        | {"num_attention_heads": 2, "vision_output_dim": 24, "projector_input_dim": 24, "projector_output_dim": 24},
    ),
    "mllama": (
        "mllama_text_model",
        PICTURE
        | {"num_global_layers": 1, "attention_heads": 2, "intermediate_layers_indices": [0], "vision_output_dim": 32,
           "supported_aspect_ratios": [[1, 1]], "max_num_tiles": 1},
    ),
    "gemma4": ("gemma4_text shared", None),
    "gemma3n": ("gemma3n_text", None),
}  # fmt: skip


def text_config(name: str) -> dict[str, object]:
    """The sizes of a model of MIXED."""
    known = transformers.AutoConfig.for_model(name.split()[0])
    keys = set(known.to_dict()) - set(known.attribute_map)
    return {key: size for key, size in SIZES.items() if key in keys} | MIXED[name].config


def build_towers(name: str) -> transformers.PreTrainedModel:
    """A tiny model with a vision tower (none for Gemma 4)."""
    text, vision = TOWERS[name]
    parts: dict[str, object] = {"text_config": text_config(text) | {"model_type": text.split()[0]}}
    parts |= {"vision_config": vision} if vision else {"vision_config": None, "audio_config": None}
    torch.manual_seed(0)
    return transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.for_model(name, **parts))


def build(name: str) -> transformers.PreTrainedModel:
    """A tiny model with random weights."""
    model_type, mixed = name.split()[0], MIXED[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **text_config(name))
    if model_type in ("mllama_text_model", "mistral4"):
        model = getattr(transformers, f"{model_type.removesuffix('_text_model').title()}ForCausalLM")(config)
    elif mixed.layers == "layers":
        model = transformers.AutoModel.from_config(config)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config)
    model = model.float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    return model


def parts_of(model: nn.Module, name: str) -> Iterator[tuple[int, str, Tensor]]:
    """(layer, family, matrix) of a model in memory; matrices are views."""
    mixed = MIXED[name]
    seen: set[int] = set()  # what several layers share belongs to the first
    for path, module in model.get_submodule(mixed.layers).named_modules():
        layer, _, inside = path.partition(".")
        ending = inside if inside in mixed.parts else inside.partition(".")[2]
        if ending in mixed.parts and (address := next(module.parameters()).data_ptr()) not in seen:
            seen.add(address)
            for family, matrix in mixed.parts[ending](module).items():
                yield int(layer), family, matrix
