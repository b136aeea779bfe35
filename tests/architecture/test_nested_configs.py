"""Types with code of their own: located by the config of the language model inside, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.checkpoints.architectures.nested import by_nested_config
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import locate_matrices, store_base
from indexer.errors import Skipped
from indexer.sources.registry import ModelRef

LLAMA = {
    "self_attn.q_proj": (8, 8), "self_attn.k_proj": (8, 8), "self_attn.v_proj": (8, 8), "self_attn.o_proj": (8, 8),
    "mlp.gate_proj": (12, 8), "mlp.up_proj": (12, 8), "mlp.down_proj": (8, 12),
}  # fmt: skip
BERT = {
    "attention.self.query": (8, 8), "attention.self.key": (8, 8), "attention.self.value": (8, 8),
    "attention.output.dense": (8, 8), "intermediate.dense": (12, 8), "output.dense": (8, 12),
}  # fmt: skip


def llama(prefix: str, layers: int = 2) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}layers.{n}.{name}.weight": shape for n in range(layers) for name, shape in LLAMA.items()}


def bert(prefix: str, layers: int = 2) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}encoder.layer.{n}.{name}.weight": shape for n in range(layers) for name, shape in BERT.items()}


QWEN = {"model_type": "qwen2", "num_hidden_layers": 2}
TOWER = {"model_type": "siglip_vision_model", "num_hidden_layers": 2}
ROBERTA = {"model_type": "roberta", "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("config", "shapes", "chosen"),
    [
        ({"text_config": QWEN, "vision_config": TOWER}, llama("language_model.model."), "qwen2"),
        ({"language_config": QWEN}, llama("language.model."), "qwen2"),
        ({"thinker_config": {"model_type": "odd", "text_config": QWEN}}, llama("thinker.model."), "qwen2"),
        ({"a": QWEN, "b": dict(QWEN)}, llama("model."), "qwen2"),  # the same matrices
        ({"llm": {"model_type": "qwen2"}}, llama("x."), "qwen2"),  # no number of layers is said
        ({"llm_config": QWEN, "retriever": ROBERTA}, llama("llm.") | bert("retriever."), None),  # two could be meant
        ({"llm_config": QWEN, "retriever": ROBERTA}, llama("llm."), "qwen2"),
        ({"text_config": QWEN}, llama("model.", 3), None),  # more layers than it says
        ({"text_config": QWEN}, dict(list(llama("model.").items())[:-1]), None),  # an incomplete layer
        ({"text_config": {"model_type": "unheard of"}}, llama("model."), None),
        ({"vision_config": ROBERTA}, bert(""), None),
        ({"text_config": [QWEN], "x": {"model_type": ["qwen2"]}, "y": 3}, llama("model."), None),
        ({}, llama("model."), None),
    ],
)
def test_the_only_language_model_inside_is_meant(
    config: dict[str, Any], shapes: dict[str, tuple[int, ...]], chosen: str | None
) -> None:
    outer = {"model_type": "locateanything", "num_hidden_layers": 99} | config
    located_config = by_nested_config(outer, shapes)
    assert located_config["model_type"] == (chosen or "locateanything")
    if chosen is None:
        assert located_config == outer
    else:
        assert load_architecture(chosen).locate(shapes, located_config).depth == {"": 2}
    known = {**outer, "model_type": "llama"}
    assert by_nested_config(known, shapes) == known


def test_a_base_of_an_unknown_type_and_its_fine_tune(tmp_path: Path) -> None:
    tensors = {name: torch.randn(shape) for name, shape in llama("language.model.").items()}
    save_file(tensors | {"vision.blocks.0.attn.weight": torch.ones(3, 3)}, tmp_path / "model.safetensors")
    config = {"model_type": "deepseek_vl_v9", "language_config": QWEN, "vision_config": {"model_type": "vision"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(ModelRef("a/b", folder=tmp_path))
    base = store_base(checkpoint, "a/b", "c" * 40, tmp_path / "stored")
    assert len(base.layout.matrices) == 14
    assert locate_matrices(checkpoint, checkpoint.config) == base.layout
    (tmp_path / "config.json").write_text(json.dumps(config | {"language_config": {"model_type": "odd"}}))
    with pytest.raises(Skipped, match="'deepseek_vl_v9' has no architecture file"):
        locate_matrices(
            *(lambda checkpoint: (checkpoint, checkpoint.config))(open_checkpoint(ModelRef("a/b", folder=tmp_path)))
        )


@pytest.mark.parametrize(
    ("model_type", "names", "families"),
    [
        ("exaone", "attn.attention.{q_proj,k_proj,v_proj,out_proj} mlp.{c_fc_0,c_fc_1,c_proj}",
         "query key value output gate feedforward1 feedforward2"),
        ("gpt_neo", "attn.attention.{q_proj,k_proj,v_proj,out_proj} mlp.{c_fc,c_proj}",
         "query key value output feedforward1 feedforward2"),
        ("jais", "mlp.{c_fc,c_fc2,c_proj}", "feedforward1 gate feedforward2"),
    ],
)  # fmt: skip
def test_names_of_types_with_their_own_code(model_type: str, names: str, families: str) -> None:
    """EXAONE 3 and Jais, as their modelling files name them (transformer.h.N.…)."""
    tensors = []
    for group in names.split():
        before, _, inside = group.partition("{")
        tensors += [f"transformer.h.0.{before}{name}.weight" for name in inside.rstrip("}").split(",")]
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(tensors, (8, 8))
    if model_type == "jais":
        shapes |= {"transformer.h.0.attn.c_attn.weight": (8, 24), "transformer.h.0.attn.c_proj.weight": (8, 8)}
    layout = load_architecture(model_type).locate(shapes, {})
    assert [layout.by_tensor[name][0].key.family for name in tensors] == families.split()
