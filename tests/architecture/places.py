"""Where the block matrices of tiny models live in memory: by the names of *modules*, not of tensors in files."""

from __future__ import annotations

from dataclasses import dataclass, field


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


def single_stack(layer: str, attention: str, feedforward: str, **config: object) -> Live:
    return Live({"": stack(layer, attention, feedforward)}, config)


def fused(path: str, output: str) -> str:
    return f"{path} {path} {path} {output}"


PROJ = "self_attn.q_proj self_attn.k_proj self_attn.v_proj"
GATED = "mlp.gate_proj mlp.up_proj mlp.down_proj"

BERT = single_stack(
    "encoder.layer.*",
    "attention.self.query attention.self.key attention.self.value attention.output.dense",
    "intermediate.dense output.dense",
)
LLAMA = single_stack("layers.*", f"{PROJ} self_attn.o_proj", GATED)
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


VIT = single_stack(
    "layers.*",
    "attention.q_proj attention.k_proj attention.v_proj attention.o_proj",
    "mlp.fc1 mlp.fc2",
)
OLD_VIT = single_stack(
    "encoder.layer.*",
    "attention.attention.query attention.attention.key attention.attention.value attention.output.dense",
    "intermediate.dense output.dense",
)
DINOV2 = single_stack(
    "encoder.layer.*",
    "attention.q_proj attention.k_proj attention.v_proj attention.o_proj",
    "mlp.fc1 mlp.fc2",
    mlp_ratio=2,
)
GATED_DINOV2 = single_stack(
    "encoder.layer.*",
    "attention.q_proj attention.k_proj attention.v_proj attention.o_proj",
    GATED,
    mlp_ratio=2,
    use_swiglu_ffn=True,
)
SPEECH = {
    "conv_dim": (24, 24), "conv_stride": (2, 2), "conv_kernel": (3, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
WAV2VEC2 = single_stack(
    "encoder.layers.*",
    "attention.q_proj attention.k_proj attention.v_proj attention.out_proj",
    "feed_forward.intermediate_dense feed_forward.output_dense",
    **SPEECH,
)
CLIP = single_stack("encoder.layers.*", f"{PROJ} self_attn.out_proj", "mlp.fc1 mlp.fc2")
QKV_MLP = "mlp.dense_h_to_4h mlp.dense_4h_to_h"
FALCON = single_stack("h.*", fused("self_attention.query_key_value", "self_attention.dense"), QKV_MLP)
BIGCODE = single_stack("h.*", fused("attn.c_attn", "attn.c_proj"), "mlp.c_fc mlp.c_proj")
XLM = single_stack("attentions.*", "q_lin k_lin v_lin out_lin", "/ffns.*.lin1 /ffns.*.lin2")
