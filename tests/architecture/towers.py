"""Models whose language model or stacks have a config of their own, nested in the model's."""

from __future__ import annotations

from tests.architecture.places import GATED, LLAMA, PROJ, Live, crossed, single_stack, stack

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
# A tower for texts beside one for images; a language model beside one.
PAIR = Live(
    {
        name: stack(f"{name}_model.encoder.layers.*", f"{PROJ} self_attn.out_proj", "mlp.fc1 mlp.fc2")
        for name in ("text", "vision")
    }
)
PAIR_TEXT = SMALL | {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
WRITES = Live({"": {family: f"text_model.{path}" for family, path in LLAMA.stacks[""].items()}})


def stages(layer: str, attention: str, feedforward: str) -> dict[str, dict[str, str]]:
    """Four stages; ``attention``: a path with {} for the letters q, k, v and o, or nothing."""
    paths_by_stage: dict[str, dict[str, str]] = {}
    for number in range(4):
        paths = dict(zip(("feedforward1", "feedforward2"), feedforward.split(), strict=True))
        if attention:
            paths |= {
                family: attention.format(letter)
                for family, letter in zip(("query", "key", "value", "output"), "qkvo", strict=True)
            }
        paths_by_stage[f"stage{number + 1}"] = {
            family: f"{layer.format(number)}.{path}" for family, path in paths.items()
        }
    return paths_by_stage


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
    "aya_vision": LANGUAGE.but(
        text_config=TEXT | {"model_type": "cohere2"}, vision_config=TOWER | {"model_type": "siglip_vision_model"}
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
    "clip": PAIR.but(text_config=PAIR_TEXT, vision_config=TOWER),
    "siglip": PAIR.but(text_config=PAIR_TEXT, vision_config=TOWER),
    "siglip2": PAIR.but(text_config=PAIR_TEXT, vision_config=TOWER | {"num_patches": 4}),
    "smolvlm": WRITES.but(text_config=TEXT | {"model_type": "llama"}, vision_config=TOWER),
    "idefics3": WRITES.but(text_config=TEXT | {"model_type": "llama"}, vision_config=TOWER),
    "qwen3_vl": LANGUAGE.but(
        text_config=QWEN_TEXT,
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "out_hidden_size": 24,
            "num_heads": 2,
            "intermediate_size": 32,
            "deepstack_visual_indexes": [0],
        },
    ),
    "dinov3_vit": single_stack(
        "layer.*",
        "attention.q_proj attention.k_proj attention.v_proj attention.o_proj",
        "mlp.up_proj mlp.down_proj",
        **TOWER,
    ),
    "swin": Live(
        stages("encoder.layers.{}.blocks.*", "attention.{}_proj", "mlp.fc1 mlp.fc2"),
        {"embed_dim": 8, "depths": [1, 2, 1, 1], "num_heads": [1, 2, 2, 4], "image_size": 64, "window_size": 2},
    ),
    "segformer": Live(
        stages("stages.{}.blocks.*", "attention.{}_proj", "mlp.fc1 mlp.fc2"),
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 2, 1, 1], "num_attention_heads": [1, 2, 2, 4]},
    ),
    "convnext": Live(
        stages("encoder.stages.{}.layers.*", "", "pwconv1 pwconv2"),
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 2, 1, 1]},
    ),
}
