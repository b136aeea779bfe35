"""Sizes for tiny models of every architecture, and where their block matrices live in memory.

The places are told by the names of *modules*, not of tensors in files.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# --- the models, as they live in memory

SIZES = {
    "vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "head_dim": 8, "embedding_size": 16, "emb_size": 16,
    "rotary_dim": 4, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 64, "n_inner": 40, "n_ctx":
    64, "dff": 40, "dim": 24, "hidden_dim": 40, "n_layers": 3, "n_heads": 4, "emb_dim": 24, "d_model": 24,
    "d_kv": 8, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4, "encoder_layers": 3,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim":
    40, "decoder_ffn_dim": 48, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings":
    64, "max_source_positions": 64, "max_target_positions": 64, "ffn_dim": 40, "word_embed_proj_dim": 24,
    "image_size": 16, "patch_size": 8, "num_mel_bins": 8, "window_size": 8, "projection_dim": 12,
    "entity_vocab_size": 20, "entity_emb_size": 16, "pronunciation_vocab_size": 20, "shape_vocab_size":
    20, "src_vocab_size": 40, "tgt_vocab_size": 40, "xpath_unit_hidden_size": 8,
    "max_xpath_tag_unit_embeddings": 8, "max_xpath_subs_unit_embeddings": 8, "conv_channels": 16,
    "input_feat_per_channel": 8,
}  # fmt: skip
NEO = {"attention_types": [[["global", "local"], 1], [["global"], 1]]}
SPEECH = {
    "conv_dim": (24, 24), "conv_stride": (2, 2), "conv_kernel": (3, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Live:
    """Where modules are: stack → family → path with ``*`` for an index. A fused path comes repeatedly."""

    stacks: dict[str, dict[str, str]]
    config: dict[str, object] = field(default_factory=dict)

    def but(self, **config: object) -> Live:
        return Live(self.stacks, self.config | config)


def stack(layer: str, attention: str, feedforward: str) -> dict[str, str]:
    """``attention``: query key value output. ``feedforward``: feedforward1 feedforward2, or gate first.

    A path that begins with "/" does not lie in ``layer``.
    """
    query, key, value, output = attention.split()
    paths = {"query": query, "key": key, "value": value, "output": output}
    names = feedforward.split()
    paths |= dict(zip(("gate", "feedforward1", "feedforward2")[-len(names) :], names, strict=True))
    return {family: path[1:] if path[0] == "/" else f"{layer}.{path}" for family, path in paths.items()}


def crossed(layer: str, attention: str, stack_: dict[str, str]) -> dict[str, str]:
    names = zip(("query", "key", "value", "output"), attention.split(), strict=True)
    return stack_ | {f"cross_{family}": f"{layer}.{path}" for family, path in names}


def one(layer: str, attention: str, feedforward: str, **config: object) -> Live:
    return Live({"": stack(layer, attention, feedforward)}, config)


def fused(path: str, output: str) -> str:
    return f"{path} {path} {path} {output}"


PROJ = "self_attn.q_proj self_attn.k_proj self_attn.v_proj"
GATED = "mlp.gate_proj mlp.up_proj mlp.down_proj"

BERT = one(
    "encoder.layer.*",
    "attention.self.query attention.self.key attention.self.value attention.output.dense",
    "intermediate.dense output.dense",
)
LLAMA = one("layers.*", f"{PROJ} self_attn.o_proj", GATED)
BART = Live(
    {
        "encoder": stack("encoder.layers.*", f"{PROJ} self_attn.out_proj", "fc1 fc2"),
        "decoder": crossed(
            "decoder.layers.*",
            "encoder_attn.q_proj encoder_attn.k_proj encoder_attn.v_proj encoder_attn.out_proj",
            stack("decoder.layers.*", f"{PROJ} self_attn.out_proj", "fc1 fc2"),
        ),
    }
)


def bart_with(attention: str) -> Live:
    return Live({**BART.stacks, "encoder": stack("encoder.layers.*", attention, "fc1 fc2")})


def t5(attention: str, feedforward: str, **config: object) -> Live:
    def letters(layer: int, name: str) -> str:
        return " ".join(f"layer.{layer}.{name}.{letter}" for letter in "qkvo")

    def forward(layer: int) -> str:
        return " ".join(f"layer.{layer}.DenseReluDense.{name}" for name in feedforward.split())

    decoder = stack("decoder.block.*", letters(0, "SelfAttention"), forward(2))
    return Live(
        {
            "encoder": stack("encoder.block.*", letters(0, attention), forward(1)),
            "decoder": crossed("decoder.block.*", letters(1, "EncDecAttention"), decoder),
        },
        config,
    )


VIT = one(
    "layers.*",
    "attention.q_proj attention.k_proj attention.v_proj attention.o_proj",
    "mlp.fc1 mlp.fc2",
)
OLD_VIT = one(
    "encoder.layer.*",
    "attention.attention.query attention.attention.key attention.attention.value attention.output.dense",
    "intermediate.dense output.dense",
)
DINOV2 = one(
    "encoder.layer.*",
    "attention.q_proj attention.k_proj attention.v_proj attention.o_proj",
    "mlp.fc1 mlp.fc2",
    mlp_ratio=2,
)
GATED_DINOV2 = one(
    "encoder.layer.*",
    "attention.q_proj attention.k_proj attention.v_proj attention.o_proj",
    GATED,
    mlp_ratio=2,
    use_swiglu_ffn=True,
)
WAV2VEC2 = one(
    "encoder.layers.*",
    "attention.q_proj attention.k_proj attention.v_proj attention.out_proj",
    "feed_forward.intermediate_dense feed_forward.output_dense",
    **SPEECH,
)
CLIP = one("encoder.layers.*", f"{PROJ} self_attn.out_proj", "mlp.fc1 mlp.fc2")
QKV_MLP = "mlp.dense_h_to_4h mlp.dense_4h_to_h"
FALCON = one("h.*", fused("self_attention.query_key_value", "self_attention.dense"), QKV_MLP)
BIGCODE = one("h.*", fused("attn.c_attn", "attn.c_proj"), "mlp.c_fc mlp.c_proj")
XLM = one("attentions.*", "q_lin k_lin v_lin out_lin", "/ffns.*.lin1 /ffns.*.lin2")

WANTED = {
    "bert": BERT,
    "roberta": BERT,
    "xlm-roberta": BERT,
    "camembert": BERT,
    "electra": BERT,
    "distilbert": one(
        "transformer.layer.*",
        "attention.q_lin attention.k_lin attention.v_lin attention.out_lin",
        "ffn.lin1 ffn.lin2",
    ),
    "albert": one(
        "encoder.albert_layer_groups.*.albert_layers.*",
        "attention.query attention.key attention.value attention.dense",
        "ffn ffn_output",
        num_hidden_groups=2,
        inner_group_num=2,
    ),
    "mpnet": one(
        "encoder.layer.*",
        "attention.attn.q attention.attn.k attention.attn.v attention.attn.o",
        "intermediate.dense output.dense",
    ),
    "deberta-v2": one(
        "encoder.layer.*",
        "attention.self.query_proj attention.self.key_proj attention.self.value_proj attention.output.dense",
        "intermediate.dense output.dense",
    ),
    "deberta": one(
        "encoder.layer.*",
        fused("attention.self.in_proj", "attention.output.dense"),
        "intermediate.dense output.dense",
    ),
    "modernbert": one("layers.*", fused("attn.Wqkv", "attn.Wo"), "mlp.Wi mlp.Wi mlp.Wo"),
    "gpt2": BIGCODE,
    "gpt_neo": one(
        "h.*",
        "attn.attention.q_proj attn.attention.k_proj attn.attention.v_proj attn.attention.out_proj",
        "mlp.c_fc mlp.c_proj",
        **NEO,
    ),
    "gpt_neox": one("layers.*", fused("attention.query_key_value", "attention.dense"), QKV_MLP),
    "bloom": FALCON,
    "falcon": FALCON.but(num_kv_heads=2, new_decoder_architecture=True),
    "falcon multi-query": FALCON.but(multi_query=True, new_decoder_architecture=False, ffn_hidden_size=40),
    "falcon rw": FALCON.but(multi_query=False, new_decoder_architecture=False, alibi=True),
    "opt": one("decoder.layers.*", f"{PROJ} self_attn.out_proj", "fc1 fc2"),
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "gemma": LLAMA,
    "phi3": one(
        "layers.*",
        fused("self_attn.qkv_proj", "self_attn.o_proj"),
        "mlp.gate_up_proj mlp.gate_up_proj mlp.down_proj",
    ),
    "bart": BART,
    "t5": t5("SelfAttention", "wi wo"),
    "t5 v1.1": t5("SelfAttention", "wi_0 wi_1 wo", feed_forward_proj="gated-gelu"),
    "mt5": t5("SelfAttention", "wi_0 wi_1 wo"),
    "vit": VIT,
}

NEIGHBOURS = {
    **dict.fromkeys(
        [
            "bert-generation",
            "convbert",
            "data2vec-text",
            "ernie",
            "esm",
            "ibert",
            "layoutlm",
            "layoutlmv3",
            "lilt",
            "luke",
            "markuplm",
            "megatron-bert",
            "mra",
            "nystromformer",
            "rembert",
            "roberta-prelayernorm",
            "roc_bert",
            "splinter",
            "xlm-roberta-xl",
            "yoso",
        ],
        BERT,
    ),
    "big_bird": BERT.but(attention_type="original_full"),
    "longformer": BERT.but(attention_window=[8, 8, 8]),
    "xmod": BERT.but(languages=["en_XX"]),
    **dict.fromkeys(
        [
            "bitnet",
            "cohere",
            "cohere2",
            "diffllama",
            "ernie4_5",
            "eurobert",
            "exaone4",
            "gemma2",
            "gemma3_text",
            "granite",
            "helium",
            "hunyuan_v1_dense",
            "ministral",
            "ministral3",
            "olmo",
            "olmo2",
            "olmo3",
            "seed_oss",
            "smollm3",
            "stablelm",
            "vaultgemma",
        ],
        LLAMA,
    ),
    **dict.fromkeys(
        [
            "mbart",
            "blenderbot",
            "blenderbot-small",
            "fsmt",
            "m2m_100",
            "marian",
            "mvp",
            "pegasus",
            "plbart",
            "speech_to_text",
            "whisper",
        ],
        BART,
    ),
    "led": bart_with(
        "self_attn.longformer_self_attn.query self_attn.longformer_self_attn.key "
        "self_attn.longformer_self_attn.value self_attn.output"
    ).but(attention_window=[8, 8, 8]),
    "bigbird_pegasus": bart_with("self_attn.self.query self_attn.self.key self_attn.self.value self_attn.output"),
    "umt5": t5("SelfAttention", "wi_0 wi_1 wo"),
    "longt5": t5("LocalSelfAttention", "wi wo", local_radius=3),
    "longt5 global": t5(
        "TransientGlobalSelfAttention",
        "wi_0 wi_1 wo",
        encoder_attention_type="transient-global",
        feed_forward_proj="gated-gelu",
    ),
    **dict.fromkeys(["audio-spectrogram-transformer", "beit", "vit_mae", "vit_msn"], VIT),
    "deit": VIT.but(architectures=["DeiTForImageClassification"]),  # one of several for its head
    **dict.fromkeys(["data2vec-vision", "videomae"], OLD_VIT),
    "yolos": OLD_VIT.but(image_size=[16, 16]),
    "dinov2": DINOV2,
    "dinov2 giant": GATED_DINOV2,
    "dinov2_with_registers": DINOV2,
    "dinov2_with_registers giant": GATED_DINOV2,
    **dict.fromkeys(["wav2vec2", "data2vec-audio", "hubert", "unispeech", "unispeech-sat", "wavlm"], WAV2VEC2),
    "sew": WAV2VEC2.but(squeeze_factor=2),
    "clip_text_model": CLIP,
    "clip_vision_model": CLIP,
    "siglip_vision_model": CLIP,
    "codegen": one("h.*", fused("attn.qkv_proj", "attn.out_proj"), "mlp.fc_in mlp.fc_out", n_embd=32),
    "ctrl": one(
        "h.*",
        "multi_head_attention.Wq multi_head_attention.Wk multi_head_attention.Wv multi_head_attention.dense",
        "ffn.0 ffn.2",
    ),
    "gpt_bigcode": BIGCODE,
    "gpt_bigcode per head": BIGCODE.but(multi_query=False),
    "gptj": one("h.*", "attn.q_proj attn.k_proj attn.v_proj attn.out_proj", "mlp.fc_in mlp.fc_out"),
    "gpt_neox_japanese": one("layers.*", fused("attention.query_key_value", "attention.dense"), QKV_MLP),
    "persimmon": one("layers.*", fused("self_attn.query_key_value", "self_attn.dense"), QKV_MLP, hidden_size=32),
    "mpt": one("blocks.*", fused("attn.Wqkv", "attn.out_proj"), "ffn.up_proj ffn.down_proj"),
    "modernbert-decoder": one("layers.*", "attn.q_proj attn.k_proj attn.v_proj attn.Wo", "mlp.Wi mlp.Wi mlp.Wo"),
    "nomic_bert": LLAMA,
    "openai-gpt": BIGCODE,
    "xlm": XLM,
    "flaubert": XLM,
    "xglm": one("layers.*", f"{PROJ} self_attn.out_proj", "fc1 fc2", attention_heads=4, num_layers=3),
    "biogpt": one("layers.*", f"{PROJ} self_attn.out_proj", "fc1 fc2"),
    **dict.fromkeys(
        ["nemotron", "apertus", "arcee"],
        one("layers.*", f"{PROJ} self_attn.o_proj", "mlp.up_proj mlp.down_proj"),
    ),
    "starcoder2": one("layers.*", f"{PROJ} self_attn.o_proj", "mlp.c_fc mlp.c_proj"),
    "phi": one("layers.*", f"{PROJ} self_attn.dense", "mlp.fc1 mlp.fc2"),
    **dict.fromkeys(
        ["glm", "glm4"],
        one("layers.*", f"{PROJ} self_attn.o_proj", "mlp.gate_up_proj mlp.gate_up_proj mlp.down_proj"),
    ),
}


SMALL = {"vocab_size": 40, "num_hidden_layers": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = SMALL | {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
TOWER = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 8,
}
LANGUAGE = Live({"": {family: f"language_model.{path}" for family, path in LLAMA.stacks[""].items()}})
QWEN_TEXT = TEXT | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
NESTED = {
    "gemma3": LANGUAGE.but(text_config=TEXT, vision_config=TOWER, mm_tokens_per_image=4),
    "llava": LANGUAGE.but(
        text_config=TEXT | {"model_type": "llama"}, vision_config=TOWER | {"model_type": "clip_vision_model"}
    ),
    "mistral3": LANGUAGE.but(
        text_config=TEXT | {"model_type": "mistral"}, vision_config=TOWER | {"model_type": "pixtral"}
    ),
    "paligemma": LANGUAGE.but(
        text_config=TEXT | {"model_type": "gemma"},
        vision_config=TOWER | {"model_type": "siglip_vision_model"},
    ),
    "qwen2_vl": LANGUAGE.but(
        text_config=QWEN_TEXT,
        vision_config={"depth": 2, "embed_dim": 16, "hidden_size": 24, "num_heads": 2, "mlp_ratio": 2},
    ),
    "qwen2_5_vl": LANGUAGE.but(
        text_config=QWEN_TEXT,
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "out_hidden_size": 24,
            "num_heads": 2,
            "intermediate_size": 32,
        },
    ),
    "t5gemma": Live(
        {
            "encoder": stack("encoder.layers.*", f"{PROJ} self_attn.o_proj", GATED),
            "decoder": crossed(
                "decoder.layers.*",
                "cross_attn.q_proj cross_attn.k_proj cross_attn.v_proj cross_attn.o_proj",
                stack("decoder.layers.*", f"{PROJ} self_attn.o_proj", GATED),
            ),
        },
        {"encoder": TEXT, "decoder": TEXT | {"num_hidden_layers": 2, "intermediate_size": 48}},
    ),
}
EVERY = WANTED | NEIGHBOURS | NESTED
HEADS = (
    "SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM", "CausalLM", "Seq2SeqLM",
    "MultipleChoice", "PreTraining", "ImageClassification", "AudioClassification", "CTC", "ImageTextToText",
)  # fmt: skip
