"""Shapes, head counts and switches that no model has."""

from __future__ import annotations

import pytest

from indexer.checkpoints.architectures.architecture import compare, load_architecture
from indexer.errors import Skipped
from tests.architecture.shapes import bert_shapes, refused


@pytest.mark.parametrize(
    "shape",
    [
        (8,),
        (),
        (8, 8, 1),
        (0, 8),
        (8, 0),
        (-8, 8),
        (8.0, 8),
        (True, 8),
        ("8", 8),
        (2**62, 8),
        (1 << 20000, 8),
        [8],
    ],
    ids=lambda shape: str(len(shape)),
)
def test_shapes_that_no_matrix_has_are_refused(shape: tuple) -> None:
    shapes = bert_shapes(3)
    shapes["encoder.layer.2.attention.self.key.weight"] = shape
    error = refused(shapes)
    assert error.reason == "malformed"
    assert "encoder.layer.2.attention.self.key.weight" in error.detail


def neox_shapes(rows: int = 24) -> dict[str, tuple[int, ...]]:
    return {
        "layers.0.attention.query_key_value.weight": (rows, 8),
        "layers.0.attention.dense.weight": (8, rows // 3),
        "layers.0.mlp.dense_h_to_4h.weight": (12, 8),
        "layers.0.mlp.dense_4h_to_h.weight": (8, 12),
    }


@pytest.mark.parametrize(
    "heads",
    [0, -4, "many", "4", 10**12, 1 << 20000, True, False, 4.0, [4], {"n": 4}, float("nan"), None, 5, 3, 16],
    ids=lambda heads: type(heads).__name__,
)
def test_head_counts_that_cannot_be_are_refused(heads: object) -> None:
    error = refused(neox_shapes(), {"num_attention_heads": heads}, "gpt_neox")
    assert error.reason == "malformed"
    assert "heads" in error.detail


def test_head_counts_may_be_absent_where_nothing_is_fused() -> None:
    for config in ({}, {"num_attention_heads": "many"}, {"num_attention_heads": 0}):
        assert load_architecture("bert").locate(bert_shapes(), config).depth == {"": 2}


@pytest.mark.parametrize(
    "config",
    [
        {"num_attention_heads": 4, "num_key_value_heads": 3},  # 4 heads do not share 3
        {"num_attention_heads": 4},  # then as many keys as queries, but 32 rows do not divide by 12
        {
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
        },  # divides, but then queries are 24 and not 16 rows
        {"num_attention_heads": 4, "num_key_value_heads": 0},
        {"num_key_value_heads": 2},
    ],
)
def test_configs_that_contradict_the_tensors_are_refused(config: dict) -> None:
    shapes = {
        "layers.0.self_attn.qkv_proj.weight": (32, 8),
        "layers.0.self_attn.o_proj.weight": (8, 16),
        "layers.0.mlp.gate_up_proj.weight": (24, 8),
        "layers.0.mlp.down_proj.weight": (8, 12),
    }
    assert load_architecture("phi3").locate(shapes, {"num_attention_heads": 4, "num_key_value_heads": 2}).depth == {
        "": 1
    }
    assert refused(shapes, config, "phi3").reason == "malformed"
    odd = shapes | {"layers.0.mlp.gate_up_proj.weight": (25, 8)}
    error = refused(odd, {"num_attention_heads": 4, "num_key_value_heads": 2}, "phi3")
    assert error.reason == "malformed"
    assert "25 rows" in error.detail


def test_another_number_of_heads_than_the_base_is_refused() -> None:
    locate = load_architecture("gpt_neox").locate
    base, other = (locate(neox_shapes(), {"num_attention_heads": heads}) for heads in (4, 2))
    with pytest.raises(Skipped, match=r"2 groups.*in 4") as error:
        compare(base, other)
    assert error.value.reason == "shape_mismatch"


@pytest.mark.parametrize("switch", ["yes", 1, [], "true"])
def test_switches_that_are_no_booleans_are_refused(switch: object) -> None:
    shapes = {
        "h.0.self_attention.query_key_value.weight": (24, 8),
        "h.0.self_attention.dense.weight": (8, 8),
        "h.0.mlp.dense_h_to_4h.weight": (12, 8),
        "h.0.mlp.dense_4h_to_h.weight": (8, 12),
    }
    config = {"num_attention_heads": 4, "multi_query": False}
    assert load_architecture("falcon").locate(shapes, config).depth == {"": 1}
    error = refused(shapes, config | {"multi_query": switch}, "falcon")
    assert error.reason == "malformed"
    assert "multi_query" in error.detail
