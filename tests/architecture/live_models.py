"""Tiny models of every architecture: their sizes, and where their block matrices are."""

from __future__ import annotations

from tests.architecture.places import (
    BART,
    BERT,
    BIGCODE,
    CLIP,
    DINOV2,
    FALCON,
    GATED_DINOV2,
    LLAMA,
    OLD_VIT,
    PROJ,
    QKV_MLP,
    VIT,
    WAV2VEC2,
    XLM,
    bart_with,
    fused,
    single_stack,
    t5,
)
from tests.architecture.towers import NESTED

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

WANTED = {
    "bert": BERT,
    "roberta": BERT,
    "xlm-roberta": BERT,
    "camembert": BERT,
    "electra": BERT,
    "distilbert": single_stack(
        "transformer.layer.*",
        "attention.q_lin attention.k_lin attention.v_lin attention.out_lin",
        "ffn.lin1 ffn.lin2",
    ),
    "albert": single_stack(
        "encoder.albert_layer_groups.*.albert_layers.*",
        "attention.query attention.key attention.value attention.dense",
        "ffn ffn_output",
        num_hidden_groups=2,
        inner_group_num=2,
    ),
    "mpnet": single_stack(
        "encoder.layer.*",
        "attention.attn.q attention.attn.k attention.attn.v attention.attn.o",
        "intermediate.dense output.dense",
    ),
    "deberta-v2": single_stack(
        "encoder.layer.*",
        "attention.self.query_proj attention.self.key_proj attention.self.value_proj attention.output.dense",
        "intermediate.dense output.dense",
    ),
    "deberta": single_stack(
        "encoder.layer.*",
        fused("attention.self.in_proj", "attention.output.dense"),
        "intermediate.dense output.dense",
    ),
    "modernbert": single_stack("layers.*", fused("attn.Wqkv", "attn.Wo"), "mlp.Wi mlp.Wi mlp.Wo"),
    "gpt2": BIGCODE,
    "gpt_neo": single_stack(
        "h.*",
        "attn.attention.q_proj attn.attention.k_proj attn.attention.v_proj attn.attention.out_proj",
        "mlp.c_fc mlp.c_proj",
        **NEO,
    ),
    "gpt_neox": single_stack("layers.*", fused("attention.query_key_value", "attention.dense"), QKV_MLP),
    "bloom": FALCON,
    "falcon": FALCON.but(num_kv_heads=2, new_decoder_architecture=True),
    "falcon multi-query": FALCON.but(multi_query=True, new_decoder_architecture=False, ffn_hidden_size=40),
    "falcon rw": FALCON.but(multi_query=False, new_decoder_architecture=False, alibi=True),
    "opt": single_stack("decoder.layers.*", f"{PROJ} self_attn.out_proj", "fc1 fc2"),
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "gemma": LLAMA,
    "phi3": single_stack(
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
    "codegen": single_stack("h.*", fused("attn.qkv_proj", "attn.out_proj"), "mlp.fc_in mlp.fc_out", n_embd=32),
    "ctrl": single_stack(
        "h.*",
        "multi_head_attention.Wq multi_head_attention.Wk multi_head_attention.Wv multi_head_attention.dense",
        "ffn.0 ffn.2",
    ),
    "gpt_bigcode": BIGCODE,
    "gpt_bigcode per head": BIGCODE.but(multi_query=False),
    "gptj": single_stack("h.*", "attn.q_proj attn.k_proj attn.v_proj attn.out_proj", "mlp.fc_in mlp.fc_out"),
    "gpt_neox_japanese": single_stack("layers.*", fused("attention.query_key_value", "attention.dense"), QKV_MLP),
    "persimmon": single_stack(
        "layers.*", fused("self_attn.query_key_value", "self_attn.dense"), QKV_MLP, hidden_size=32
    ),
    "mpt": single_stack("blocks.*", fused("attn.Wqkv", "attn.out_proj"), "ffn.up_proj ffn.down_proj"),
    "modernbert-decoder": single_stack(
        "layers.*", "attn.q_proj attn.k_proj attn.v_proj attn.Wo", "mlp.Wi mlp.Wi mlp.Wo"
    ),
    "nomic_bert": LLAMA,
    "openai-gpt": BIGCODE,
    "xlm": XLM,
    "flaubert": XLM,
    "xglm": single_stack("layers.*", f"{PROJ} self_attn.out_proj", "fc1 fc2", attention_heads=4, num_layers=3),
    "biogpt": single_stack("layers.*", f"{PROJ} self_attn.out_proj", "fc1 fc2"),
    **dict.fromkeys(
        ["nemotron", "apertus", "arcee"],
        single_stack("layers.*", f"{PROJ} self_attn.o_proj", "mlp.up_proj mlp.down_proj"),
    ),
    "starcoder2": single_stack("layers.*", f"{PROJ} self_attn.o_proj", "mlp.c_fc mlp.c_proj"),
    "phi": single_stack("layers.*", f"{PROJ} self_attn.dense", "mlp.fc1 mlp.fc2"),
    **dict.fromkeys(
        ["glm", "glm4"],
        single_stack("layers.*", f"{PROJ} self_attn.o_proj", "mlp.gate_up_proj mlp.gate_up_proj mlp.down_proj"),
    ),
}

EVERY = WANTED | NEIGHBOURS | NESTED
HEADS = (
    "SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM", "CausalLM", "Seq2SeqLM",
    "MultipleChoice", "PreTraining", "ImageClassification", "AudioClassification", "CTC", "ImageTextToText",
)  # fmt: skip
