"""Names, prefixes, shapes and configs as strangers write them: located, or refused with a reason."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pytest
import torch

from indexer.architecture import Architecture, Layout, compare, load_architecture
from indexer.errors import Skipped
from indexer.words import DeltaKey

# --- names and prefixes


def bert_shapes(layers: int = 2, prefix: str = "") -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}embeddings.word_embeddings.weight": (40, 8)}
    for layer in range(layers):
        for family in ("query", "key", "value"):
            shapes[f"{prefix}encoder.layer.{layer}.attention.self.{family}.weight"] = (8, 8)
            shapes[f"{prefix}encoder.layer.{layer}.attention.self.{family}.bias"] = (8,)
        shapes[f"{prefix}encoder.layer.{layer}.attention.output.dense.weight"] = (8, 8)
        shapes[f"{prefix}encoder.layer.{layer}.attention.output.LayerNorm.gamma"] = (8,)
        shapes[f"{prefix}encoder.layer.{layer}.intermediate.dense.weight"] = (12, 8)
        shapes[f"{prefix}encoder.layer.{layer}.output.dense.weight"] = (8, 12)
    return shapes


def gpt2_shapes(prefix: str = "") -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}h.0.attn.c_attn.weight": (8, 24),
        f"{prefix}h.0.attn.bias": (1, 1, 64, 64),
        f"{prefix}h.0.attn.masked_bias": (),
        f"{prefix}h.0.attn.c_proj.weight": (8, 8),
        f"{prefix}h.0.mlp.c_fc.weight": (8, 12),
        f"{prefix}h.0.mlp.c_proj.weight": (12, 8),
        f"{prefix}wte.weight": (40, 8),
    }


def gpt2_layout() -> Layout:
    return load_architecture("gpt2").locate(gpt2_shapes(), {})


def refused(shapes: dict, config: dict | None = None, model_type: str = "bert") -> Skipped:
    started = time.process_time()
    with pytest.raises(Skipped) as error:
        load_architecture(model_type).locate(shapes, config or {})
    assert time.process_time() - started < 5
    assert "\n" not in error.value.detail
    assert error.value.detail.isprintable()
    assert len(error.value.detail) < 1500
    return error.value


@pytest.mark.parametrize(
    "prefix",
    [
        *("", "bert.", "roberta.", "module.", "_orig_mod.", "model.model.", "module.bert.", "0.auto_model."),
        *(".", "x..", "." * 50, "a.b.c.d.", "encoder.", "encoder.layer.7.", "\n\x1b[31m.", "é."),
    ],
)
def test_any_prefix_is_found(prefix: str) -> None:
    layout = load_architecture("bert").locate(bert_shapes(2, prefix), {})
    assert layout.prefix == prefix
    assert len(layout.matrices) == 12
    assert layout.matrices[0].tensor == f"{prefix}encoder.layer.0.attention.self.query.weight"
    assert layout.depth == {"": 2}
    compare(load_architecture("roberta").locate(bert_shapes(2), {}), layout)


def test_of_several_models_in_one_file_the_known_prefix_is_meant() -> None:
    locate = load_architecture("bert").locate
    for others in (["teacher."], ["teacher.", "student."], ["", "teacher."], ["module.bert."]):
        shapes = bert_shapes(2, "bert.")
        for other in others:
            shapes = bert_shapes(5, other) | shapes
        layout = locate(shapes, {})
        assert (layout.prefix, layout.depth) == ("bert.", {"": 2})
    # A few stray names are not a model.
    stray = {"ghost.encoder.layer.0.attention.self.query.weight": (8, 8)}
    assert locate(stray | bert_shapes(2, "x."), {}).prefix == "x."


def test_several_models_under_unknown_prefixes_are_refused_by_name() -> None:
    twins = bert_shapes(2, "question_encoder.bert_model.") | bert_shapes(2, "ctx_encoder.bert_model.")
    error = refused(twins)
    assert error.reason == "malformed"
    assert "question_encoder.bert_model." in error.detail
    assert "ctx_encoder.bert_model." in error.detail
    pair = bert_shapes(2, "encoder.") | bert_shapes(2, "decoder.")  # an EncoderDecoderModel of two BERTs
    assert refused(pair).reason == "malformed"


def test_stacks_are_found_alone() -> None:
    """An encoder saved without its decoder has a layout; against the whole base it is a layer mismatch."""
    name = "encoder.block.{}.layer.{}.{}.weight"
    shapes = {name.format(0, 0, f"SelfAttention.{letter}"): (8, 8) for letter in "qkvo"}
    shapes |= {
        name.format(0, 1, "DenseReluDense.wi"): (12, 8),
        name.format(0, 1, "DenseReluDense.wo"): (8, 12),
    }
    layout = load_architecture("t5").locate(shapes, {})
    assert layout.depth == {"encoder": 1}


def test_depths_and_shapes_that_differ_are_told_with_both() -> None:
    locate = load_architecture("bert").locate
    base = locate(bert_shapes(3), {})
    with pytest.raises(Skipped, match=r"2 layers.*3 layers") as error:
        compare(base, locate(bert_shapes(2), {}))
    assert error.value.reason == "layer_mismatch"
    other = bert_shapes(3)
    other["encoder.layer.1.attention.output.dense.weight"] = (8, 9)
    with pytest.raises(Skipped, match=r"1\.output is \(8, 9\), the base's is \(8, 8\)") as error:
        compare(base, locate(other, {}))
    assert error.value.reason == "shape_mismatch"


def test_the_whole_of_a_fused_matrix_is_named() -> None:
    by_key = {matrix.key.family: matrix for matrix in gpt2_layout().matrices}
    assert {family: matrix.fused for family, matrix in by_key.items()} == {
        "query": "query_key_value", "key": "query_key_value", "value": "query_key_value",
        "output": None, "feedforward1": None, "feedforward2": None,
    }  # fmt: skip
    assert all(matrix.transposed for matrix in by_key.values())
    assert gpt2_layout().by_tensor["h.0.attn.c_attn.weight"] == tuple(by_key[it] for it in ("query", "key", "value"))


def test_extraction_keeps_the_dtype_and_copies_nothing_it_need_not() -> None:
    for matrix in gpt2_layout().matrices:
        stored = torch.randn(gpt2_shapes()[matrix.tensor]).to(torch.bfloat16)
        part = matrix.extract(stored)
        assert part.dtype == torch.bfloat16
        assert part.shape == matrix.shape
        assert part.untyped_storage().data_ptr() == stored.untyped_storage().data_ptr()
    for wrong in (torch.zeros(24, 8), torch.zeros(24), torch.zeros(8, 24, 1), torch.zeros(0, 0)):
        with pytest.raises(Skipped) as error:
            gpt2_layout().matrices[0].extract(wrong)
        assert error.value.reason == "shape_mismatch"


def test_layouts_cross_processes() -> None:
    layout = gpt2_layout()
    assert layout.tensors
    assert pickle.loads(pickle.dumps(layout)) == layout


# --- hostile


def test_unknown_model_types_are_named_harmlessly() -> None:
    for model_type in (
        "mamba",
        "",
        "../../etc/passwd",
        "bert\n\x1b[31mred",
        "x" * 10**6,
        "BERT",
        "bert ",
        None,
        ["bert"],
        7,
    ):
        with pytest.raises(Skipped) as error:
            load_architecture(model_type)
        assert error.value.reason == "unknown_architecture"
        assert error.value.detail.isprintable()
        assert len(error.value.detail) < 400
    with pytest.raises(Skipped, match="mamba"):
        load_architecture("mamba")


def test_missing_matrices_are_named() -> None:
    shapes = bert_shapes(5, "bert.")
    del shapes["bert.encoder.layer.3.attention.self.query.weight"]
    error = refused(shapes)
    assert error.reason == "missing_matrices"
    assert "bert.encoder.layer.3.attention.self.query.weight" in error.detail
    for gone in ("encoder.layer.1.", "encoder.layer.0.", ".output.dense.weight"):
        error = refused({name: shape for name, shape in bert_shapes(3).items() if gone not in name})
        assert error.reason == "missing_matrices"
        assert gone in error.detail
    for nothing in (
        {},
        {"model.layers.0.self_attn.q_proj.weight": (8, 8)},
        {"weight": (1,), ".weight": (1,), "": (1,)},
    ):
        error = refused(nothing)
        assert error.reason == "missing_matrices"
        assert "encoder.layer.0.attention.self.query.weight" in error.detail


@pytest.mark.parametrize("number", [str(10**30), "9" * 5000, "99999", "1000000000", "7"])
def test_a_layer_far_beyond_the_others_is_a_gap(number: str) -> None:
    name = f"encoder.layer.{number}.attention.self.query.weight"
    error = refused(bert_shapes(2) | {name: (8, 8)})
    assert error.reason == "missing_matrices"


@pytest.mark.parametrize(
    "number", ["٣", "01", "00", "-1", "+2", " 2", "2 ", "1_0", "²", "2\n", "0x2", "1e1", "", "2.0", "inf"]
)
def test_what_is_no_number_is_no_layer(number: str) -> None:
    odd = {name.replace("layer.0", f"layer.{number}"): shape for name, shape in bert_shapes(1).items()}
    layout = load_architecture("bert").locate(odd | bert_shapes(2), {})
    assert layout.depth == {"": 2}
    if number != "2.0":
        assert (
            refused(
                {name.replace("layer.1", f"layer.{number}"): shape for name, shape in bert_shapes(3).items()}
            ).reason
            == "missing_matrices"
        )


@pytest.mark.parametrize(
    "name",
    [
        "p{}.encoder.layer.0.attention.self.query.weight",
        "encoder.layer.{}0.attention.self.query.weight",
        "a.b.c.d.e.f.g.h.encoder.layer.{}.output.dense.weight",
        "encoder.layer.0.attention.self.query.weight{}",
        "bert.encoder.layer.0.attention.self.query.{}",
    ],
)
def test_a_hundred_thousand_names_take_a_moment(name: str) -> None:
    assert refused({name.format(index): (8, 8) for index in range(100_000)}).reason == "missing_matrices"


def test_long_names_take_a_moment() -> None:
    name = "encoder.layer.0.attention.self.query.weight"
    assert refused({"." * 10**6 + name: (8, 8), "x" * 10**6 + name: (8, 8)}).reason == "missing_matrices"


def test_many_layers_take_a_moment() -> None:
    started = time.process_time()
    assert load_architecture("bert").locate(bert_shapes(5000), {}).depth == {"": 5000}
    assert time.process_time() - started < 5


def test_grids_of_layers_do_not_grow() -> None:
    """ALBERT counts groups and layers in groups: two large numbers must not make a large product."""
    name = "encoder.albert_layer_groups.{}.albert_layers.{}.{}.weight"
    parts = ("attention.query", "attention.key", "attention.value", "attention.dense", "ffn", "ffn_output")
    full = {name.format(group, layer, part): (8, 8) for group in range(2) for layer in range(3) for part in parts}
    assert load_architecture("albert").locate(full, {}).depth == {"": 6}
    for group, layer in ((10**8, 0), (0, 10**8), (10**8, 10**8), (1, 3)):
        error = refused(full | {name.format(group, layer, "ffn"): (8, 8)}, model_type="albert")
        assert error.reason == "missing_matrices"


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


def test_hostile_names_do_not_reach_the_message_raw() -> None:
    prefix = "\x1b]0;evil\x07\n" + "y" * 5000 + "."
    shapes = bert_shapes(2, prefix)
    del shapes[f"{prefix}encoder.layer.1.output.dense.weight"]
    assert refused(shapes).reason == "missing_matrices"
    assert refused(bert_shapes(1, prefix) | bert_shapes(1, "z" + prefix)).reason == "malformed"
    shapes = bert_shapes(2, prefix)
    shapes[f"{prefix}encoder.layer.1.output.dense.weight"] = (0,)
    assert refused(shapes).reason == "malformed"


def test_an_architecture_is_read_from_any_file(tmp_path: Path) -> None:
    """A new architecture is a data file and nothing else."""
    path = tmp_path / "toy.toml"
    path.write_text(
        """
        model_types = ["toy"]
        prefixes = [""]
        [counts]
        heads = ["heads"]
        [[stack]]
        layer = "tower.{layer}"
        [[stack.attention]]
        "qk" = { families = ["query", "key"], shares = ["heads", 1], groups = 1 }
        "v" = "value"
        "o" = "output"
        [[stack.feedforward]]
        "up" = "feedforward1"
        "down" = "feedforward2"
        """
    )
    shapes = {"tower.0.qk.weight": (15, 8), "tower.0.v.weight": (3, 8), "tower.0.o.weight": (8, 12)}
    shapes |= {"tower.0.up.weight": (5, 8), "tower.0.down.weight": (8, 5)}
    layout = Architecture.read(path).locate(shapes, {"heads": 4})
    assert {matrix.key.family: matrix.shape for matrix in layout.matrices} == {
        "query": (12, 8),
        "key": (3, 8),
        "value": (3, 8),
        "output": (8, 12),
        "feedforward1": (5, 8),
        "feedforward2": (8, 5),
    }
    stored = torch.arange(120.0).reshape(15, 8)
    assert torch.equal(layout.matrices[1].extract(stored), stored[12:])


# --- LoRA factors


def test_lora_factors_that_do_not_fit_are_refused() -> None:
    matrix = gpt2_layout().matrices[0]
    assert matrix.key == DeltaKey("", 0, "query")
    for a, b in (
        (torch.zeros(2, 8), torch.zeros(23, 2)),
        (torch.zeros(2, 7), torch.zeros(24, 2)),
        (torch.zeros(3, 8), torch.zeros(24, 2)),
        (torch.zeros(8), torch.zeros(24, 2)),
        (torch.zeros(2, 8, 1), torch.zeros(24, 2)),
    ):
        with pytest.raises(Skipped) as error:
            matrix.extract_lora(a, b)
        assert error.value.reason == "shape_mismatch"
    a, b = matrix.extract_lora(torch.zeros(2, 8), torch.arange(48.0).reshape(24, 2))
    assert a.shape == (2, 8)
    assert torch.equal(b, torch.arange(48.0).reshape(24, 2)[:8])


def test_what_lies_in_a_vision_tower_is_not_the_language_model() -> None:
    parts = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    parts += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    names = {f"{{}}layers.{layer}.{part}": (8, 8) for layer in range(2) for part in parts}
    tower = {name.format("vision_tower.") + ".weight": shape for name, shape in names.items()}
    text = {name.format("text.") + ".weight": shape for name, shape in names.items()}
    architecture = load_architecture("llava")
    layout = architecture.locate(tower | text, {})
    assert layout.prefix == "text."
    assert refused(tower, model_type="llava").reason == "missing_matrices"
    path = "model.vision_tower.encoder.layers.9.self_attn.q_proj"
    assert architecture.locate_modules([path], layout).ignored == (path,)
