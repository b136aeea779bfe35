"""The kinds of uploads: what share of the Hub each is, how many of a sample of 72, and how to make one.

Shares and counts are of the fine-tunes and adapters that were uploaded in autumn 2026: 72 uploads with a readable
``base_model`` tag in six half-hours of September and October. A row without a count is part of the stock, not of the
sample. To add a kind, add a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from studies.coverage.making import adapter, files, fp8_blocks, full, in_folder, lora, mlx, sharded
from studies.coverage.uploads import (
    BERT,
    CONFIG,
    EAR,
    FP8,
    LLAMA,
    ROPE,
    SMALL,
    TEXT,
    TOWER,
    Maker,
    converted,
    flux_by_diffusers,
    flux_by_kohya,
    gated,
    llama,
    llama_base,
    mlx_adapter,
    on_a_child,
    reads_text_from_images,
    robot,
    with_dashes,
)


@dataclass(frozen=True)
class Kind:
    """``make(root, base, upload)`` writes both and returns the planted δW of each matrix, none where there is none.

    ``sample``: of 72. ``before``: what became of it at commit 5644cf2, "indexed" or the reason. ``is_trained``: False
    for mere conversions; ``is_noisy``: stored in codes of few bits. ``options``: of `index build`.
    """

    name: str
    share: str
    sample: int
    before: str
    make: Maker
    is_trained: bool = True
    is_noisy: bool = False
    options: dict[str, Any] = field(default_factory=dict)


INDEXED, UNKNOWN, METHOD = "indexed", "unknown_architecture", "adapter_unsupported"
Q = ["q_proj", "v_proj"]
ATTENTION, MLP = r"self_attn\.[qkvo]_proj", r"mlp\.\w+_proj"
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 32,
}  # fmt: skip
LINEAR = {
    "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
    "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
}  # fmt: skip
SSM = {"mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_expand": 2, "mamba_n_groups": 1}
QWEN_VL_EYE = {"depth": 2, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2, "intermediate_size": 32}
WAV2VEC2 = {
    "conv_dim": (24, 24), "conv_stride": (2, 2), "conv_kernel": (3, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
GLOBAL = ["sliding_attention", "sliding_attention", "full_attention"] * 2


def by_peft(name: str, **settings: Any) -> Maker:
    """An adapter of PEFT's config class ``name`` on a small Llama."""

    def made() -> Any:
        import peft

        return getattr(peft, name)(**settings)

    return adapter("llama", TEXT, "CausalLM", made, merges=name != "PromptTuningConfig")


def layers(*names: str) -> str:
    """Matrices of layers, whose weights are changed."""
    return rf"layers\.\d+\.({'|'.join(names)})\.weight"


def in_codes(method: str) -> Maker:
    """An upload whose config.json says that another package quantised it."""
    config = CONFIG | {"quantization_config": {"quant_method": method, "bits": 4, "load_in_4bit": True}}
    return files(llama_base, {"config.json": config, "model.safetensors": b"\x02\x00\x00\x00\x00\x00\x00\x00{}"})


def only(name: str, content: Any = b"x", config: Any = CONFIG) -> Maker:
    """An upload of one file and its config.json."""
    return files(llama_base, {"config.json": config, name: content})


def text(model_type: str, where: str, **config: Any) -> Maker:
    """All weights of a small language model."""
    return full(model_type, TEXT | config, where, "CausalLM")


_smolvlm = {"text_config": TEXT | {"model_type": "llama"}, "vision_config": TOWER}
_t5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64}
_swin = {"embed_dim": 16, "depths": [1, 2, 1, 1], "num_heads": [1, 2, 2, 4], "image_size": 64, "window_size": 2}
_asr = {"output_dim": 64, "downsample_hidden_size": 8}
_quantised = {"quantization": {"bits": 8, "group_size": 32}}, {"quantization": {"bits": 4, "group_size": 32}}

KINDS = (
    Kind("full, a known type: bert", "25–30 %", 3, INDEXED, full("bert", SMALL, BERT, "SequenceClassification")),
    Kind("full, a known type: llama", "", 8, INDEXED, llama()),
    Kind("full, a known type: t5", "", 1, INDEXED,
         full("t5", _t5, r"block\.\d+\..*\.(q|k|v|o|wi|wo)\.weight", "Seq2SeqLM")),
    Kind("full, a known type: qwen2_5_vl", "2–4 %", 2, INDEXED,
         full("qwen2_5_vl", {"text_config": TEXT | ROPE, "vision_config": QWEN_VL_EYE},
              r"(model|language_model)\.layers\.\d+\.(self_attn|mlp)")),
    Kind("full, a known type: vit", "2 %", 0, INDEXED,
         full("vit", TOWER, r"layer\.\d+\..*(query|key|value|dense)\.weight", "ImageClassification")),
    Kind("full, a known type: wav2vec2", "2–3 %", 0, INDEXED,
         full("wav2vec2", SMALL | WAV2VEC2, r"layers\.\d+\.(attention|feed_forward)\.\w+\.weight", "CTC")),
    Kind("PEFT LoRA", "≈ 40 %", 8, INDEXED, lora("llama", TEXT, Q, "CausalLM")),
    Kind("PEFT LoRA of a model for images and text", "", 0, UNKNOWN,
         lora("smolvlm", _smolvlm, r".*text_model.*\.(q_proj|v_proj)", "ImageTextToText")),
    Kind("PEFT LoRA with a matrix in modules_to_save", "–", 0, METHOD,
         lora("llama", TEXT, Q, "CausalLM", modules_to_save=["o_proj"])),
    Kind("DoRA", "≤ 1.6 %", 0, METHOD, lora("llama", TEXT, Q, "CausalLM", use_dora=True)),
    Kind("AdaLoRA", "", 0, METHOD,
         by_peft("AdaLoraConfig", init_r=4, target_r=2, total_step=10, target_modules=Q, task_type="CAUSAL_LM")),
    Kind("LoHa", "", 0, METHOD, by_peft("LoHaConfig", r=4, alpha=8, target_modules=Q)),
    Kind("LoKr", "", 0, METHOD, by_peft("LoKrConfig", r=4, alpha=8, target_modules=Q)),
    Kind("OFT", "", 0, METHOD, by_peft("OFTConfig", oft_block_size=8, target_modules=Q)),
    Kind("IA3", "", 0, METHOD,
         by_peft("IA3Config", target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"])),
    Kind("VeRA", "", 0, METHOD, by_peft("VeraConfig", r=4, target_modules=["q_proj"])),
    Kind("prompt tuning", "", 0, METHOD,
         by_peft("PromptTuningConfig", task_type="CAUSAL_LM", num_virtual_tokens=4)),
    Kind("PiSSA", "< 0.5 %", 0, METHOD, lora("llama", TEXT, Q, "CausalLM", init_lora_weights="pissa")),
    Kind("OLoRA", "", 0, METHOD, lora("llama", TEXT, Q, "CausalLM", init_lora_weights="olora")),
    Kind("LoRA with target_parameters", "small", 0, METHOD,
         lora("qwen3_moe", TEXT | EXPERTS, ["q_proj"], "CausalLM", target_parameters=["mlp.experts.gate_up_proj"])),
    Kind("mixture of experts: qwen3_moe", "1–2 %", 0, UNKNOWN,
         text("qwen3_moe", layers(ATTENTION, r"mlp\.experts\.0\.\w+_proj"), **EXPERTS)),
    Kind("mixture of experts: gpt_oss", "", 0, UNKNOWN,
         text("gpt_oss", layers(ATTENTION), num_local_experts=4, num_experts_per_tok=2,
              layer_types=["full_attention"] * 2)),
    Kind("mixture of experts: deepseek_v3", "", 0, UNKNOWN,
         text("deepseek_v3", layers(r"self_attn\.(q_a_proj|q_b_proj|o_proj)", MLP, r"mlp\.experts\.0\.\w+_proj"),
              **LATENT)),
    Kind("irregular layers: qwen3_5_text", "14–15 %", 10, UNKNOWN,
         text("qwen3_5_text", layers(MLP, ATTENTION, r"linear_attn\.(in_proj_qkv|in_proj_z|out_proj)"), **LINEAR)),
    Kind("irregular layers: gemma4_text", "", 1, UNKNOWN,
         text("gemma4_text", layers(MLP, ATTENTION), num_hidden_layers=6, layer_types=GLOBAL,
              hidden_size_per_layer_input=0, vocab_size_per_layer_input=64)),
    Kind("irregular layers: qwen3_next", "", 0, UNKNOWN,
         text("qwen3_next", layers(ATTENTION, r"linear_attn\.(in_proj_qkvz|out_proj)", r"mlp\.shared_expert\.\w+_proj"),
              **LINEAR, **EXPERTS)),
    Kind("irregular layers: lfm2", "", 0, UNKNOWN,
         text("lfm2", layers(r"self_attn\.(q|k|v|out)_proj", r"conv\.(in|out)_proj", r"feed_forward\.w\d"),
              layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False)),
    Kind("irregular layers: gemma3n_text", "", 0, UNKNOWN,
         text("gemma3n_text", layers(MLP, r"self_attn\.[qo]_proj"), num_hidden_layers=6, num_kv_shared_layers=2,
              intermediate_size=96, altup_num_inputs=2, laurel_rank=8, activation_sparsity_pattern=[0.0] * 6,
              layer_types=GLOBAL, vocab_size_per_layer_input=64, hidden_size_per_layer_input=8)),
    Kind("irregular layers: nemotron_h", "", 0, UNKNOWN,
         text("nemotron_h", layers(r"mixer\.([qkvo]|up|down|out)_proj"), num_hidden_layers=3,
              layers_block_type=["mamba", "attention", "mlp"], mamba_num_heads=4, mamba_head_dim=32,
              ssm_state_size=8, n_groups=2)),
    Kind("irregular layers: granitemoehybrid", "", 0, UNKNOWN,
         text("granitemoehybrid", layers(ATTENTION, r"mamba\.out_proj", r"shared_mlp\.output_linear"),
              layer_types=["mamba", "attention"], shared_intermediate_size=32, num_local_experts=4,
              num_experts_per_tok=2, **SSM)),
    Kind("names that lacked a line: qwen3_vl", "1–2 %", 0, UNKNOWN,
         full("qwen3_vl",
              {"text_config": TEXT | ROPE, "vision_config": QWEN_VL_EYE | {"deepstack_visual_indexes": [0]}},
              r"language_model\.layers\.\d+\.(self_attn|mlp)")),
    Kind("names that lacked a line: smolvlm", "", 0, UNKNOWN,
         full("smolvlm", _smolvlm, r"text_model\.layers\.\d+\.(self_attn|mlp)")),
    Kind("names that lacked a line: voxtral", "", 0, UNKNOWN,
         full("voxtral", {"text_config": TEXT | {"model_type": "llama"}, "audio_config": EAR | {"hidden_size": 32}},
              rf"language_model\.(model\.)?{LLAMA}")),
    Kind("names that lacked a line: qwen3_asr", "", 1, UNKNOWN,
         full("qwen3_asr", {"text_config": TEXT, "audio_config": EAR | _asr},
              r"language_model\.layers\.\d+\.(self_attn|mlp)")),
    Kind("CLIP, both towers", "", 0, UNKNOWN,
         full("clip", {"text_config": SMALL, "vision_config": TOWER},
              r"encoder\.layers\.\d+\.(self_attn|mlp)\.\w+\.weight")),
    Kind("Swin, in stages", "", 0, UNKNOWN,
         full("swin", _swin, r"blocks\.\d+\..*(query|key|value|dense)\.weight", "ImageClassification")),
    Kind("TrOCR and other pairs of encoder and decoder", "", 0, UNKNOWN, reads_text_from_images),
    Kind("LoRA of FLUX by diffusers", "10–13 %", 5, "base refused", flux_by_diffusers),
    Kind("LoRA of FLUX by kohya's scripts", "", 0, "base refused", flux_by_kohya),
    Kind("robot policies: smolvla", "11 % of the sample", 5, UNKNOWN,
         robot("smolvla", "model.vlm_with_expert.vlm.model.text_model.", "model.vlm_with_expert.lm_expert.")),
    Kind("robot policies: pi0", "", 1, UNKNOWN,
         robot("pi0", "model.paligemma_with_expert.paligemma.model.language_model.",
               "model.paligemma_with_expert.gemma_expert.model.")),
    Kind("robot policies: act, which has no base", "", 2, UNKNOWN, robot("act", "model.encoder.", "model.decoder.")),
    Kind("fp8, on a base in float", "1 of 72", 1, "quantized", llama(store=fp8_blocks, settings=FP8), is_noisy=True),
    Kind("fp8, on a base in fp8", "", 0, "base refused", llama(store=fp8_blocks, settings=FP8, base_too=True),
         is_noisy=True),
    Kind("bitsandbytes, 4 bits", "1–2 %", 0, "quantized", converted("write_nf4"), is_trained=False),
    Kind("GPTQ", "", 0, "quantized", converted("write_gptq", 4, 32), is_trained=False),
    Kind("AWQ", "", 0, "quantized", converted("write_awq", 32), is_trained=False),
    Kind("other methods in few bits", "", 0, "quantized", in_codes("hqq"), is_trained=False),
    Kind("pickles in shards", "10 % of old stock", 0, INDEXED, llama(store=sharded)),
    Kind("MLX, not quantised", "", 0, INDEXED, llama()),
    Kind("MLX, 8 bits", "small, growing", 0, "quantized", llama(store=mlx(8), settings=_quantised[0]), is_noisy=True),
    Kind("MLX, 4 bits", "", 6, "quantized", llama(store=mlx(4), settings=_quantised[1]), is_trained=False),
    Kind("MLX adapter", "", 0, "malformed", mlx_adapter),
    Kind("GGUF only", "conversions: 18 of 72", 4, "unreadable_format",
         converted("write_gguf", "Q8_0", file="model-Q8_0.gguf"), is_trained=False),
    Kind("ONNX only", "", 4, "unreadable_format", converted("write_onnx", file="onnx/model.onnx"), is_trained=False),
    Kind("Core ML only", "", 2, "unreadable_format", only("model.mlpackage/Data/weights.bin"), is_trained=False),
    Kind("ctranslate2 only", "", 2, "unreadable_format",
         files(llama_base, {"config.json": {}, "model.bin": b"x", "vocabulary.json": []}), is_trained=False),
    Kind("SentenceTransformer, in 0_Transformer", "1–2 %", 0, INDEXED, llama(store=in_folder("0_Transformer"))),
    Kind("weights in step-N", "17 % of a tree, with none at all", 0, "no_weights", llama(store=in_folder("step-200"))),
    Kind("weights two folders down", "", 0, "no_weights", llama(store=in_folder("run/checkpoint-200"))),
    Kind("no weights at all", "a third of uploads", 0, "no_weights", files(llama_base, {"README.md": b"soon"}),
         is_trained=False),
    Kind("gated, without access", "–", 0, "gated", gated, is_trained=False),
    Kind("full, on a fine-tune of the base", "67 % of a tree", 3, "indexed with --descendants",
         on_a_child("finetune", llama())),
    Kind("PEFT LoRA on a fine-tune of the base", "", 0, "not listed",
         on_a_child("finetune", lora("llama", TEXT, Q, "CausalLM"))),
    Kind("PEFT LoRA on a 4-bit copy of the base", "", 2, INDEXED,
         on_a_child("quantized", lora("llama", TEXT, Q, "CausalLM"))),
    Kind("full, a base id spelt owner--name", "", 1, "not listed", with_dashes),
)  # fmt: skip
