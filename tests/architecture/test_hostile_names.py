"""Names that no model has: of types, of tensors, of layers, in errors, and a hundred thousand of them."""

from __future__ import annotations

import pytest

from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.errors import Skipped
from tests.architecture.shapes import bert_shapes, refused
from tests.deltas import made
from tests.halves import a_few
from tests.patience import lines_run


def test_unknown_model_types_are_named_harmlessly() -> None:
    for model_type in (
        "rwkv",
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
    with pytest.raises(Skipped, match="rwkv"):
        load_architecture("rwkv")


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
def test_a_layer_needs_a_number(number: str) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    a_few(
        [
            "p{}.encoder.layer.0.attention.self.query.weight",
            "encoder.layer.{}0.attention.self.query.weight",
            "a.b.c.d.e.f.g.h.encoder.layer.{}.output.dense.weight",
            "encoder.layer.0.attention.self.query.weight{}",
            "bert.encoder.layer.0.attention.self.query.{}",
        ],
        1,
    ),
)
def test_a_hundred_thousand_names_take_a_moment(name: str) -> None:
    assert refused({name.format(index): (8, 8) for index in range(100_000)}).reason == "missing_matrices"


def test_long_names_take_a_moment() -> None:
    name = "encoder.layer.0.attention.self.query.weight"
    assert refused({"." * 10**6 + name: (8, 8), "x" * 10**6 + name: (8, 8)}).reason == "missing_matrices"


def test_work_is_linear_in_the_number_of_layers() -> None:
    def located(layers: int) -> None:
        assert load_architecture("bert").locate(bert_shapes(layers), {}).depth == {"": layers}

    located(5000)
    located(1)  # what is kept after the first time does not count
    assert lines_run(lambda: located(1000)) < 2.2 * lines_run(lambda: located(500))


def test_grids_of_layers_do_not_grow() -> None:
    """ALBERT counts groups and layers in groups: two large numbers must not make a large product."""
    name = "encoder.albert_layer_groups.{}.albert_layers.{}.{}.weight"
    parts = ("attention.query", "attention.key", "attention.value", "attention.dense", "ffn", "ffn_output")
    full = {name.format(group, layer, part): (8, 8) for group in range(2) for layer in range(3) for part in parts}
    assert load_architecture("albert").locate(full, {}).depth == {"": 6}
    for group, layer in ((10**8, 0), (0, 10**8), (10**8, 10**8), (1, 3)):
        error = refused(full | {name.format(group, layer, "ffn"): (8, 8)}, model_type="albert")
        assert error.reason == "missing_matrices"


def test_hostile_names_do_not_reach_the_message_raw() -> None:
    prefix = "\x1b]0;evil\x07\n" + "y" * 5000 + "."
    shapes = bert_shapes(2, prefix)
    del shapes[f"{prefix}encoder.layer.1.output.dense.weight"]
    assert refused(shapes).reason == "missing_matrices"
    assert refused(bert_shapes(1, prefix) | bert_shapes(1, "z" + prefix)).reason == "malformed"
    shapes = bert_shapes(2, prefix)
    shapes[f"{prefix}encoder.layer.1.output.dense.weight"] = (0,)
    assert refused(shapes).reason == "malformed"


def test_a_prefix_that_controls_a_terminal_is_escaped(tmp_path):
    base = made.base_of(tmp_path / "base", made.weights())
    hostile = {f"\x1b[2J.{name}": tensor.clone() for name, tensor in made.weights().items()}
    next(iter(hostile.values())).fill_(float("nan"))
    with pytest.raises(Skipped) as refused:
        made.record_of(made.save(tmp_path / "tuned", hostile), base)
    assert refused.value.reason == "not_finite"
    assert refused.value.detail.isprintable()
