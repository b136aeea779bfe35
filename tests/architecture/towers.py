"""Models whose language model or stacks have a config of their own, nested in the model's."""

from __future__ import annotations

from tests.architecture.places import GATED, LLAMA, PROJ, Live, crossed, stack

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
