"""Names, prefixes and fused matrices as other people write them: located, or refused with a reason."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from indexer.checkpoints.architectures.architecture import Architecture, compare, load_architecture
from indexer.errors import Skipped
from indexer.names import DeltaKey
from tests.architecture.shapes import bert_shapes, gpt2_layout, gpt2_shapes, refused


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


def test_errors_name_both_depths_and_both_shapes() -> None:
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


def test_tensors_of_a_vision_tower_are_not_in_the_language_model() -> None:
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
    assert architecture.locate_modules([path], layout) == {}


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


def test_layouts_cross_processes() -> None:
    layout = gpt2_layout()
    assert layout.tensors
    assert pickle.loads(pickle.dumps(layout)) == layout
