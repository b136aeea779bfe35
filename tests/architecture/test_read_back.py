"""Deltas added to live transformers models must be read back from the saved files, family by family."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import product
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from indexer.checkpoints.architectures.architecture import Layout, compare, known_model_types, load_architecture
from indexer.checkpoints.architectures.pattern import Settings
from indexer.errors import Skipped
from indexer.names import FAMILIES, STACKS, DeltaKey
from tests.architecture.live_models import EVERY, HEADS
from tests.architecture.planting import build, config_of, plant


def saved(model: nn.Module, folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


def located(tensors: dict[str, torch.Tensor], config: dict[str, object]) -> Layout:
    architecture = load_architecture(str(config["model_type"]))
    return architecture.locate({name: tuple(tensor.shape) for name, tensor in tensors.items()}, config)


def found_deltas(base: dict, tuned: dict, base_layout: Layout, layout: Layout) -> dict[DeltaKey, torch.Tensor]:
    ours = {matrix.key: matrix for matrix in layout.matrices}
    return {
        matrix.key: ours[matrix.key].extract(tuned[ours[matrix.key].tensor]) - matrix.extract(base[matrix.tensor])
        for matrix in base_layout.matrices
    }


def check(name: str, head: str, folder: Path, model: nn.Module | None = None) -> Layout:
    """Plant in one model, if need be built first, and read back; returns the tuned checkpoint's layout."""
    model = build(name, head) if model is None else model
    base, config = saved(model, folder / "base")
    planted = plant(model, name)
    tuned, tuned_config = saved(model, folder / "tuned")
    base_layout, layout = located(base, config), located(tuned, tuned_config)
    compare(base_layout, layout)
    deltas = found_deltas(base, tuned, base_layout, layout)
    assert deltas.keys() == planted.keys()
    for key, delta in planted.items():
        torch.testing.assert_close(deltas[key], delta, rtol=0, atol=1e-5, msg=f"{name} {head} {key}")
        assert {matrix.shape for matrix in layout.matrices if matrix.key == key} == {tuple(delta.shape)}
    assert list(layout.matrices) == sorted(layout.matrices, key=lambda matrix: matrix.key.sort_key)
    assert sorted(layout.tensors) == sorted({matrix.tensor for matrix in layout.matrices})
    return layout


def heads_of(name: str, order: Sequence[str] = HEADS) -> Iterator[tuple[str, nn.Module]]:
    """The heads that transformers has for this type, in this order, each with its model."""
    made_for = type(config_of(name))
    for head in order:
        if head == "CausalLM" and len(EVERY[name].stacks) == 2:
            continue  # wraps the decoder alone, under a base_model of another shape
        if made_for not in getattr(transformers, f"AutoModelFor{head}")._model_mapping:
            continue  # building it would say the same, after loading every type
        try:
            model = build(name, head)
        except (ValueError, AttributeError):
            continue
        yield head, model


@pytest.mark.parametrize("name", EVERY)
def test_planted_deltas_are_read_back_from_the_bare_model(name: str, tmp_path: Path) -> None:
    check(name, "", tmp_path)


@pytest.mark.parametrize("name", ["roberta", "deberta-v2", "gpt2", "llama", "t5", "vit"])
def test_planted_deltas_are_read_back_from_a_model_with_a_head(name: str, tmp_path: Path) -> None:
    head, model = next(heads_of(name))
    check(name, head, tmp_path, model)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_planted_deltas_are_read_back_under_its_first_and_last_head(name: str, tmp_path: Path) -> None:
    """One for labels and one for words, where there are both: all others have the prefix of one of them."""
    first = next(heads_of(name), None)
    if first is None:
        pytest.skip("transformers has no head for it")
    for head, model in dict([first, next(heads_of(name, HEADS[::-1]))]).items():
        check(name, head, tmp_path / head, model)


@pytest.mark.study
@pytest.mark.parametrize("name", EVERY)
def test_planted_deltas_are_read_back_under_every_head(name: str, tmp_path: Path) -> None:
    for head, model in heads_of(name):
        check(name, head, tmp_path / head, model)


def test_data_files_are_part_of_the_package_and_share_no_model_type() -> None:
    folder = resources.files("indexer.checkpoints") / "architectures"
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".toml")]
    named = [name for file in files for name in tomllib.loads(file.read_text())["model_types"]]
    assert sorted(named) == list(known_model_types())


def test_data_files_name_families_stacks_and_counts_that_exist() -> None:
    for model_type in known_model_types():
        architecture = load_architecture(model_type)
        assert model_type in architecture.model_types
        names = [stack.name for stack in architecture.stacks]
        assert names == [""] or (len(set(names)) == len(names) and set(names) < set(STACKS[1:]))
        for stack in architecture.stacks:
            for part in stack.parts:
                for values in product((False, True), repeat=len(architecture.switches)):
                    switches = dict(zip(architecture.switches, values, strict=True))
                    settings = Settings(switches, architecture.counts, architecture.switches)
                    assert {name: settings.switch(name) for name in switches} == switches
                    assert any(variant.when.items() <= switches.items() for variant in part)
                for variant in part:
                    families = [family for pattern in variant.patterns for family in pattern.families if family]
                    assert len(families) == len(set(families))
                    assert set(families) <= set(FAMILIES)
                    assert set(variant.when) <= set(architecture.switches)
            for pattern in stack.patterns:
                assert any(piece.startswith("{") for piece in pattern.path)
                names = [name for name in (*pattern.shares, pattern.groups) if isinstance(name, str)]
                assert {factor for name in names for factor in name.split("*")} <= set(architecture.counts)
                assert len(pattern.shares) == len(pattern.families)


# --- LoRA, by peft

LORA = {
    "gpt2": ("CausalLM", ["c_attn", "c_proj", "c_fc"]),
    "roberta": ("SequenceClassification", ["query", "value", "dense"]),
    "llama": ("CausalLM", ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    "t5": ("Seq2SeqLM", ["q", "k", "v", "o", "wi", "wo"]),
    "t5 v1.1": ("Seq2SeqLM", ["q", "v", "wi_0", "wi_1", "wo"]),
    "gpt_neox": ("CausalLM", ["query_key_value", "dense", "dense_h_to_4h"]),
    "bloom": ("CausalLM", ["query_key_value"]),
    "falcon": ("CausalLM", ["query_key_value"]),
    "phi3": ("CausalLM", ["qkv_proj", "gate_up_proj"]),
    "deberta": ("SequenceClassification", ["in_proj"]),
    "modernbert": ("MaskedLM", ["Wqkv", "Wi", "Wo"]),
    "codegen": ("CausalLM", ["qkv_proj"]),
    "albert": ("SequenceClassification", ["query", "ffn"]),
    "bart": ("Seq2SeqLM", ["q_proj", "v_proj", "fc1"]),
    "vit": ("ImageClassification", ["q_proj", "v_proj", "fc1", "fc2"]),
    "nomic_bert": ("MaskedLM", ["q_proj", "v_proj", "up_proj", "gate_proj"]),
    "dinov2 giant": ("ImageClassification", ["q_proj", "gate_proj", "up_proj"]),
    "xlm": ("SequenceClassification", ["q_lin", "lin1"]),
}


def adapter(name: str, folder: Path) -> tuple[nn.Module, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """A peft model with random factors, and the factors as its saved adapter holds them, by module path."""
    peft = pytest.importorskip("peft")
    head, targets = LORA[name]
    fan_in_fan_out = name == "gpt2"
    settings = peft.LoraConfig(
        r=3,
        lora_alpha=6,
        target_modules=targets,
        fan_in_fan_out=fan_in_fan_out,
        init_lora_weights=False,
    )
    model = peft.get_peft_model(build(name, head), settings)
    model.save_pretrained(folder)
    stored = load_file(folder / "adapter_model.safetensors")
    paths = {
        key.removeprefix("base_model.model.").removesuffix(".lora_A.weight") for key in stored if ".lora_A." in key
    }
    return model, {
        path: tuple(stored[f"base_model.model.{path}.{factor}.weight"] for factor in ("lora_A", "lora_B"))
        for path in paths
    }


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", LORA)
def test_lora_factors_make_the_difference_of_the_merged_weights(name: str, tmp_path: Path) -> None:
    base, config = saved(build(name), tmp_path / "base")  # bare: the adapter's prefix is another
    base_layout = located(base, config)
    model, factors = adapter(name, tmp_path / "adapter")
    head_base, head_config = saved(build(name, LORA[name][0]), tmp_path / "head")
    merged, _ = saved(model.merge_and_unload(), tmp_path / "merged")
    differences = found_deltas(head_base, merged, located(head_base, head_config), located(merged, head_config))

    located_modules = load_architecture(str(config["model_type"])).locate_modules(list(factors), base_layout)
    deltas: dict[DeltaKey, torch.Tensor] = {}
    for path, matrices in located_modules.items():
        for matrix in matrices:
            a, b = matrix.extract_lora(*factors[path])
            assert matrix.key not in deltas
            deltas[matrix.key] = 2.0 * (b @ a)
            assert deltas[matrix.key].shape == matrix.shape
    assert set(located_modules) <= set(factors)
    assert deltas
    for key, difference in differences.items():
        if key in deltas:
            torch.testing.assert_close(deltas[key], difference, rtol=0, atol=1e-5, msg=str(key))
        else:
            assert float(difference.abs().max()) == 0, f"{key} was changed and not found"


def test_lora_modules_are_found_whatever_the_prefix_and_spelling(tmp_path: Path) -> None:
    base, config = saved(build("vit"), tmp_path)
    layout, architecture = located(base, config), load_architecture("vit")
    for path in (
        "vit.encoder.layer.1.attention.attention.query",
        "encoder.layer.1.attention.attention.query",
        "layers.1.attention.q_proj",
        "model.vit.layers.1.attention.q_proj",
    ):
        located_modules = architecture.locate_modules([path, "classifier"], layout)
        assert list(located_modules) == [path]
        assert [matrix.key for matrix in located_modules[path]] == [DeltaKey("", 1, "query")]


def test_lora_modules_that_the_base_lacks_are_refused(tmp_path: Path) -> None:
    base, config = saved(build("t5"), tmp_path / "t5")
    t5_layout, t5_file = located(base, config), load_architecture("t5")
    cases = {
        "encoder.block.3.layer.0.SelfAttention.q": ("layer_mismatch", "3 encoder layers"),
        "decoder.block.2.layer.1.EncDecAttention.q": ("layer_mismatch", "2 decoder layers"),
        f"decoder.block.{10**30}.layer.1.EncDecAttention.q": ("layer_mismatch", "2 decoder layers"),
        "encoder.block.0.layer.1.DenseReluDense.wi_0": ("missing_matrices", "gate"),
    }
    for path, (reason, sentence) in cases.items():
        with pytest.raises(Skipped, match=sentence) as error:
            t5_file.locate_modules([path], t5_layout)
        assert error.value.reason == reason
    twice = [
        "student.encoder.block.0.layer.0.SelfAttention.q",
        "teacher.encoder.block.0.layer.0.SelfAttention.q",
    ]
    with pytest.raises(Skipped, match="student") as error:
        t5_file.locate_modules(twice, t5_layout)
    assert error.value.reason == "malformed"
    known_first = t5_file.locate_modules([*twice, "encoder.block.0.layer.0.SelfAttention.q"], t5_layout)
    assert list(known_first) == ["encoder.block.0.layer.0.SelfAttention.q"]
    for ignored in (
        [
            "lm_head",
            "shared",
            "encoder.block.٠.layer.0.SelfAttention.q",
            "encoder.block.01.layer.0.SelfAttention.q",
            "",
        ],
        [],
    ):
        assert t5_file.locate_modules(ignored, t5_layout) == {}


def test_a_module_that_fuses_what_the_base_stores_apart_is_divided_by_the_base(tmp_path: Path) -> None:
    base, config = saved(build("modernbert-decoder"), tmp_path)
    layout = located(base, config)
    parts = load_architecture("modernbert").locate_modules(["layers.0.attn.Wqkv"], layout)["layers.0.attn.Wqkv"]
    assert [matrix.key.family for matrix in parts] == ["query", "key", "value"]
    sizes = [matrix.shape[0] for matrix in parts]
    b = torch.randn(sum(sizes), 2)
    for matrix, rows in zip(parts, b.split(sizes), strict=True):
        assert torch.equal(matrix.extract_lora(torch.randn(2, matrix.shape[1]), b)[1], rows)
    with pytest.raises(Skipped):
        parts[0].extract_lora(torch.randn(2, parts[0].shape[1]), b[:-1])


# --- the base against another model


def test_errors_name_the_depths_of_both_stacks(tmp_path: Path) -> None:
    base, config = saved(build("bart"), tmp_path / "base")
    model = build("bart")
    model.decoder.layers = model.decoder.layers[:1]
    short, _ = saved(model, tmp_path / "short")
    with pytest.raises(Skipped) as error:
        compare(located(base, config), located(short, config))
    assert error.value.reason == "layer_mismatch"
    for sentence in ("3 encoder layers", "1 decoder layers", "2 decoder layers"):
        assert sentence in error.value.detail


def test_a_gate_on_one_side_only_is_reported(tmp_path: Path) -> None:
    plain, gated = (located(*saved(build(name), tmp_path / name)) for name in ("t5", "t5 v1.1"))
    for base, layout, sentence in (
        (plain, gated, "it has the matrix"),
        (gated, plain, "the base has the matrix"),
    ):
        with pytest.raises(Skipped, match=sentence) as error:
            compare(base, layout)
        assert error.value.reason == "missing_matrices"
