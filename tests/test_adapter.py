"""LoRA adapters against PEFT itself: merged weights minus the base, for every setting; and hostile ones."""

from __future__ import annotations

import copy
import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils.other import get_pattern_key
from safetensors.torch import load_file, save_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from indexer.adapters.adapter import LoraModule, read_lora, whole_weights
from indexer.adapters.name_pattern import NamePatterns
from indexer.errors import Skipped
from indexer.weights import open_checkpoint
from indexer.words import ModelRef
from scripts.loopback_hub import LoopbackHub


def roberta() -> torch.nn.Module:
    config = RobertaConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, vocab_size=60
    )
    return RobertaForSequenceClassification(config)


def gpt2() -> torch.nn.Module:
    return GPT2LMHeadModel(GPT2Config(n_embd=24, n_layer=2, n_head=2, vocab_size=60, n_positions=16))


def llama() -> torch.nn.Module:
    config = LlamaConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=40,
        vocab_size=60,
    )
    return LlamaForCausalLM(config)


def trained(model: torch.nn.Module, config: LoraConfig) -> PeftModel:
    """An adapter whose factors are not zero."""
    adapted = get_peft_model(copy.deepcopy(model), config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return adapted


def read(folder: Path, **options: Any) -> dict[str, LoraModule]:
    checkpoint = open_checkpoint(ModelRef(str(folder), folder=folder), relation="adapter", **options)
    assert checkpoint.kind == "adapter"
    return {module.path: module for module in read_lora(checkpoint)}


def check_against_merging(model: torch.nn.Module, config: LoraConfig, folder: Path) -> dict[str, LoraModule]:
    """s * B @ A of every module against what PEFT's own merge adds to the base, in (out, in)."""
    adapted = trained(model, config)
    adapted.save_pretrained(folder)
    modules = read(folder)
    merged = adapted.merge_and_unload().state_dict()
    base = model.state_dict()
    changed = {
        name.removesuffix(".weight")
        for name in base
        if name in merged and not torch.equal(base[name], merged[name]) and name.endswith(".weight")
    }
    assert changed == set(modules)
    for path, module in modules.items():
        delta = merged[f"{path}.weight"] - base[f"{path}.weight"]
        if type(model.get_submodule(path)).__name__ == "Conv1D":
            delta = delta.t()
        assert (module.b.shape[0], module.a.shape[1]) == tuple(delta.shape)
        torch.testing.assert_close(module.scale * (module.b @ module.a), delta, rtol=1e-3, atol=1e-5)
    return modules


@pytest.mark.parametrize(
    ("build", "settings_"),
    [
        (roberta, {"r": 4, "lora_alpha": 16, "target_modules": ["query", "value"]}),
        (roberta, {"r": 4, "lora_alpha": 16, "target_modules": "all-linear", "task_type": "SEQ_CLS"}),
        (roberta, {"r": 4, "lora_alpha": 6, "use_rslora": True, "target_modules": ["query", "dense"]}),
        (
            roberta,
            {
                "r": 4,
                "lora_alpha": 8,
                "target_modules": ["query", "key", "value"],
                "rank_pattern": {"query": 2, r"layer\.1\..*\.key": 6, "^roberta.*value": 3},
                "alpha_pattern": {"layer.0.attention.self.query": 5, "(key|value)": 20},
            },
        ),
        (
            roberta,
            {
                "r": 8,
                "lora_alpha": 16,
                "use_rslora": True,
                "target_modules": ["query", "key"],
                "rank_pattern": {"key": 2},
                "alpha_pattern": {"key": 3},
            },
        ),
        (
            gpt2,
            {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
        ),
        (llama, {"r": 4, "lora_alpha": 7, "target_modules": ["q_proj", "k_proj", "v_proj", "down_proj"]}),
        (llama, {"r": 4, "target_modules": ["q_proj"], "init_lora_weights": "gaussian"}),
        (llama, {"r": 4, "target_modules": ["q_proj"], "init_lora_weights": False}),
        (llama, {"r": 4, "target_modules": ["q_proj"], "init_lora_weights": "orthogonal"}),
        (llama, {"r": 4, "target_modules": ["q_proj"], "init_lora_weights": "mica"}),
        (llama, {"r": 4, "target_modules": ["o_proj"], "layers_to_transform": [1]}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "-".join(value),
)
def test_against_peft(tmp_path: Path, build: Callable, settings_: dict[str, Any]) -> None:
    torch.manual_seed(0)
    assert check_against_merging(build(), LoraConfig(**settings_), tmp_path)


def test_the_pickled_form(tmp_path: Path) -> None:
    torch.manual_seed(0)
    adapted = trained(llama(), LoraConfig(r=4, target_modules=["q_proj", "up_proj"]))
    adapted.save_pretrained(tmp_path, safe_serialization=False)
    state = torch.load(tmp_path / "adapter_model.bin", weights_only=True)
    (tmp_path / "adapter_model.safetensors").unlink(missing_ok=True)
    modules = read(tmp_path)
    assert len(modules) == 4
    for path, module in modules.items():
        assert torch.equal(module.a, state[f"base_model.model.{path}.lora_A.weight"])
        assert torch.equal(module.b, state[f"base_model.model.{path}.lora_B.weight"])


def test_inits_that_are_taken_leave_the_base_alone_and_others_move_it(tmp_path: Path) -> None:
    """The table of initialisations against what PEFT does with the base's weights."""
    torch.manual_seed(0)
    base = llama()
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    for start in (True, False, "gaussian", "orthogonal", "mica", "eva", "pissa", "pissa_niter_2", "olora"):
        more: dict[str, Any] = {}
        if start == "eva":
            more = {"low_cpu_mem_usage": False}
        config = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=start)
        adapted = get_peft_model(copy.deepcopy(base), config, **more)
        after = adapted.get_base_model().state_dict()
        moved = any(
            not torch.equal(before[name.replace(".base_layer", "")], tensor)
            for name, tensor in after.items()
            if "lora_" not in name
        )
        folder = tmp_path / str(start)
        adapted.save_pretrained(folder)
        if moved:
            with pytest.raises(Skipped) as skip:
                read(folder)
            assert skip.value.reason == "adapter_unsupported"
            assert str(start) in skip.value.detail
        else:
            assert read(folder)
        assert moved == (str(start).startswith(("pissa", "olora")))


def test_dora_is_refused_by_name(tmp_path: Path) -> None:
    trained(llama(), LoraConfig(r=2, target_modules=["q_proj"], use_dora=True)).save_pretrained(tmp_path)
    with pytest.raises(Skipped) as skip:
        read(tmp_path)
    assert skip.value.reason == "adapter_unsupported"
    assert "DoRA" in skip.value.detail
    # And where the config keeps silent about it.
    change_config(tmp_path, use_dora=False)
    with pytest.raises(Skipped, match="DoRA"):
        read(tmp_path)


def test_what_is_saved_whole_is_told(tmp_path: Path) -> None:
    config = LoraConfig(
        r=2, target_modules=["query"], modules_to_save=["classifier", "intermediate.dense"], bias="lora_only"
    )
    trained(roberta(), config).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(ModelRef("x", folder=tmp_path), relation="adapter")
    found = whole_weights(checkpoint)
    assert "classifier.dense.weight" in found
    assert "roberta.encoder.layer.1.intermediate.dense.weight" in found
    assert not any("lora" in name or "modules_to_save" in name for name in found)
    assert set(read(tmp_path)) == {f"roberta.encoder.layer.{i}.attention.self.query" for i in (0, 1)}


def test_embedding_factors_and_biases_are_passed_over(tmp_path: Path) -> None:
    config = LoraConfig(r=2, target_modules=["q_proj", "embed_tokens"], lora_bias=False)
    trained(llama(), config).save_pretrained(tmp_path, save_embedding_layers=False)
    assert any("lora_embedding_A" in name for name in load_file(tmp_path / "adapter_model.safetensors"))
    assert set(read(tmp_path)) == {f"model.layers.{i}.self_attn.q_proj" for i in (0, 1)}
    config = LoraConfig(r=2, target_modules=["query"], lora_bias=True)
    trained(roberta(), config).save_pretrained(tmp_path / "bias")
    assert any(name.endswith("lora_B.bias") for name in load_file(tmp_path / "bias/adapter_model.safetensors"))
    assert len(read(tmp_path / "bias")) == 2


def test_only_the_factors_travel(tmp_path: Path) -> None:
    """Response bodies <= 1.02 x factors + 64 KiB a file, though the file also holds a whole embedding."""
    config = LlamaConfig(
        hidden_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=512,
        vocab_size=8000,
    )
    lora = LoraConfig(r=16, target_modules="all-linear", modules_to_save=["embed_tokens"])
    trained(LlamaForCausalLM(config), lora).save_pretrained(tmp_path / "me" / "lora")
    with LoopbackHub(tmp_path) as hub:
        checkpoint = open_checkpoint(ModelRef("me/lora"), relation="adapter", endpoint=hub.endpoint)
        factors = sum(
            module.a.nbytes + module.b.nbytes for module in read_lora(checkpoint) if "embed" not in module.path
        )
        sent = hub.body_bytes("me/lora", "adapter_model.safetensors")
        assert checkpoint.files[0].size > 8_000_000
        assert sent <= 1.02 * factors + 65_536
        assert len([request for request in hub.requests if request.role == "cdn"]) <= 4


def write_adapter(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if tensors is None:
        tensors = {
            "base_model.model.h.0.q.lora_A.weight": torch.ones(4, 6),
            "base_model.model.h.0.q.lora_B.weight": torch.ones(5, 4),
        }
    save_file(tensors, folder / "adapter_model.safetensors")
    change_config(folder, **({"peft_type": "LORA", "r": 4, "lora_alpha": 8} | config))
    return folder


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**found, **changes}))


def refusal(folder: Path) -> Skipped:
    with pytest.raises(Skipped) as skip:
        read(folder)
    assert skip.value.detail.isprintable()
    return skip.value


def test_spellings_of_keys(tmp_path: Path) -> None:
    a, b = torch.randn(4, 6), torch.randn(5, 4)
    for number, (prefix, suffix) in enumerate(
        [("base_model.model.", ".weight"), ("base_model.model.", ".default.weight"), ("", ".weight")]
    ):
        folder = write_adapter(
            tmp_path / str(number), {f"{prefix}h.0.q.lora_A{suffix}": a, f"{prefix}h.0.q.lora_B{suffix}": b}
        )
        module = read(folder)["h.0.q"]
        assert torch.equal(module.a, a)
        assert torch.equal(module.b, b)
        assert module.scale == 2.0


@pytest.mark.parametrize("order", ["AB", "BA"])
def test_pairs_are_found_in_any_order(tmp_path: Path, order: str) -> None:
    """All of one side first, then all of the other."""
    tensors = {}
    for side in order:
        for module in range(5):
            shape = (4, 6) if side == "A" else (5, 4)
            tensors[f"base_model.model.{module}.lora_{side}.weight"] = torch.full(shape, float(module))
    write_adapter(tmp_path, {"x.lora_A.weight": torch.ones(4, 1), "x.lora_B.weight": torch.ones(1, 4)})
    (tmp_path / "adapter_model.safetensors").unlink()
    torch.save(tensors, tmp_path / "adapter_model.bin")
    modules = read(tmp_path)
    assert len(modules) == 5
    for path, module in modules.items():
        assert module.a.shape == (4, 6)
        assert module.b.shape == (5, 4)
        assert module.a.mean() == module.b.mean() == float(path)


@pytest.mark.parametrize(
    ("config", "reason", "word"),
    [
        ({"use_dora": True}, "adapter_unsupported", "DoRA"),
        ({"layer_replication": [[0, 4], [2, 5]]}, "adapter_unsupported", "layer_replication"),
        ({"target_parameters": ["experts.gate"]}, "adapter_unsupported", "target_parameters"),
        ({"use_qalora": True}, "adapter_unsupported", "QA-LoRA"),
        ({"use_bdlora": {"x": 1}}, "adapter_unsupported", "use_bdlora"),
        ({"kasa_config": {"x": 1}}, "adapter_unsupported", "KaSA"),
        ({"monteclora_config": {"x": 1}}, "adapter_unsupported", "MonteCLoRA"),
        ({"arrow_config": {"x": 1}}, "adapter_unsupported", "arrow_config"),
        ({"alora_invocation_tokens": [1, 2]}, "adapter_unsupported", "activated LoRA"),
        ({"peft_type": "IA3"}, "adapter_unsupported", "IA3"),
        ({"peft_type": "ADALORA"}, "adapter_unsupported", "ADALORA"),
        ({"peft_type": None}, "malformed", "peft_type"),
        ({"peft_type": ["LORA"]}, "adapter_unsupported", "peft_type"),
        ({"peft_type": "\x1b[31m" + "x" * 5000}, "adapter_unsupported", "peft_type"),
        ({"init_lora_weights": "pissa"}, "adapter_unsupported", "pissa"),
        ({"init_lora_weights": "pissa_niter_16"}, "adapter_unsupported", "pissa_niter_16"),
        ({"init_lora_weights": "olora"}, "adapter_unsupported", "olora"),
        ({"init_lora_weights": "OLoRA"}, "adapter_unsupported", "OLoRA"),
        ({"init_lora_weights": "corda"}, "adapter_unsupported", "corda"),
        ({"init_lora_weights": "loftq"}, "adapter_unsupported", "loftq"),
        ({"init_lora_weights": "lora_ga"}, "adapter_unsupported", "lora_ga"),
        ({"init_lora_weights": "tomorrow"}, "adapter_unsupported", "tomorrow"),
        ({"init_lora_weights": 1}, "adapter_unsupported", "1"),
        ({"init_lora_weights": {}}, "adapter_unsupported", "init_lora_weights"),
        ({"r": 0}, "malformed", "r in"),
        ({"r": -4}, "malformed", "r in"),
        ({"r": True}, "malformed", "True"),
        ({"r": 4.0}, "malformed", "4.0"),
        ({"r": "4"}, "malformed", "r in"),
        ({"r": None}, "malformed", "r in"),
        ({"r": 10**30}, "malformed", "r in"),
        ({"r": 8}, "malformed", "rank 4, the config says 8"),
        ({"lora_alpha": float("nan")}, "malformed", "lora_alpha"),
        ({"lora_alpha": float("inf")}, "malformed", "lora_alpha"),
        ({"lora_alpha": 10**400}, "malformed", "lora_alpha"),
        ({"lora_alpha": True}, "malformed", "lora_alpha"),
        ({"lora_alpha": None}, "malformed", "lora_alpha"),
        ({"lora_alpha": [8]}, "malformed", "lora_alpha"),
        ({"use_rslora": "yes"}, "malformed", "use_rslora"),
        ({"rank_pattern": ["q"]}, "malformed", "rank_pattern"),
        ({"alpha_pattern": "q"}, "malformed", "alpha_pattern"),
        ({"rank_pattern": {"q": 3}}, "malformed", "the config says 3"),
        ({"rank_pattern": {"q": True}}, "malformed", "rank_pattern"),
        ({"alpha_pattern": {"q": "5"}}, "malformed", "alpha_pattern"),
        ({"alpha_pattern": {"q": float("nan")}}, "malformed", "alpha_pattern"),
        ({"rank_pattern": {"(a+": 4}}, "malformed", "no pattern"),
        ({"rank_pattern": {"((a{1000}){1000}){1000}": 4}}, "adapter_unsupported", "rank_pattern"),
        ({"rank_pattern": {"(?:" * 60 + "a|b" + ")+" * 60: 4}}, "adapter_unsupported", "rank_pattern"),
        ({"rank_pattern": {"(a)(?=b)": 4}}, "adapter_unsupported", "rank_pattern"),
        ({"alpha_pattern": {"(.*)*" * 100: 4}}, "adapter_unsupported", "alpha_pattern"),
        ({"alpha_pattern": {f"{i}.*": 4 for i in range(500)}}, "adapter_unsupported", "500"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, config: dict[str, Any], reason: str, word: str) -> None:
    started = time.monotonic()
    skip = refusal(write_adapter(tmp_path, **config))
    assert skip.reason == reason
    assert word in skip.detail
    assert len(skip.detail) < 400
    assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 2.0),
        ({"lora_alpha": 0}, 0.0),
        ({"lora_alpha": 2.5}, 0.625),
        ({"lora_alpha": -8}, -2.0),
        ({"use_rslora": True}, 4.0),
        ({"use_rslora": None}, 2.0),
        ({"rank_pattern": None, "alpha_pattern": None}, 2.0),
        ({"r": 9, "rank_pattern": {"h.0.q": 4}}, 2.0),
        ({"alpha_pattern": {"q": 1}}, 0.25),
        ({"alpha_pattern": {"0.q": 1}}, 0.25),
        ({"alpha_pattern": {"h.0.q": 1}}, 0.25),
        ({"alpha_pattern": {".q": 1}}, 2.0),
        ({"alpha_pattern": {"h.0": 1}}, 2.0),
        ({"alpha_pattern": {"x": 1, "^h.*q": 3, "q": 5}}, 0.75),
        ({"use_dora": False, "layer_replication": None, "target_parameters": [], "loftq_config": {}}, 2.0),
        ({"init_lora_weights": "Gaussian"}, 2.0),
        ({"init_lora_weights": "eva", "eva_config": {"rho": 2.0}}, 2.0),
        ({"something_new": {"a": 1}}, 2.0),
    ],
)
def test_scales(tmp_path: Path, config: dict[str, Any], scale: float) -> None:
    assert read(write_adapter(tmp_path, **config))["h.0.q"].scale == scale


def test_defaults_are_those_of_peft(tmp_path: Path) -> None:
    defaults = LoraConfig()
    factors = {"q.lora_A.weight": torch.ones(defaults.r, 3), "q.lora_B.weight": torch.ones(3, defaults.r)}
    write_adapter(tmp_path, factors)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert read(tmp_path)["q"].scale == defaults.lora_alpha / defaults.r


@pytest.mark.parametrize(
    ("tensors", "reason", "word"),
    [
        ({"q.lora_A.weight": (4, 6)}, "malformed", "lora_A"),
        ({"q.lora_B.weight": (6, 4)}, "malformed", "lora_B"),
        ({"q.lora_A.weight": (4, 6), "q.lora_B.weight": (5, 3)}, "malformed", "no pair"),
        ({"q.lora_A.weight": (24,), "q.lora_B.weight": (5, 4)}, "malformed", "no pair"),
        ({"q.lora_A.weight": (4, 6, 3, 3), "q.lora_B.weight": (5, 4, 1, 1)}, "malformed", "no pair"),
        ({"q.lora_A.weight": (0, 6), "q.lora_B.weight": (5, 0)}, "malformed", "no pair"),
        ({"q.lora_A.weight": (4, 0), "q.lora_B.weight": (5, 4)}, "malformed", "no pair"),
        ({"classifier.weight": (2, 2)}, "malformed", "no LoRA factors"),
        (
            {"q.lora_A.weight": (4, 6), "q.lora_A.default.weight": (4, 6), "q.lora_B.weight": (5, 4)},
            "malformed",
            "twice",
        ),
        (
            {
                "q.lora_A.weight": (4, 6),
                "base_model.model.q.lora_A.weight": (4, 6),
                "q.lora_B.weight": (5, 4),
            },
            "malformed",
            "twice",
        ),
        (
            {"q.lora_A.weight": (4, 6), "q.lora_B.weight": (5, 4), "q.lora_magnitude_vector.weight": (5,)},
            "adapter_unsupported",
            "DoRA",
        ),
        (
            {"q.lora_A.weight": (4, 6), "q.lora_B.weight": (5, 4), "q.lora_E": (4, 1)},
            "adapter_unsupported",
            "lora_E",
        ),
        ({"\x1b[31mq.lora_A.weight": (4, 6)}, "malformed", "lora_A"),
    ],
)
def test_factors_that_are_refused(tmp_path: Path, tensors: dict[str, tuple[int, ...]], reason: str, word: str) -> None:
    folder = write_adapter(tmp_path, {name: torch.ones(shape) for name, shape in tensors.items()})
    skip = refusal(folder)
    assert skip.reason == reason
    assert word in skip.detail


def test_factors_of_an_unreadable_dtype(tmp_path: Path) -> None:
    factors = {
        "q.lora_A.weight": torch.ones(4, 6, dtype=torch.int8),
        "q.lora_B.weight": torch.ones(5, 4, dtype=torch.int8),
    }
    assert refusal(write_adapter(tmp_path, factors)).reason == "unreadable_dtype"


# Patterns.

NAMES = [
    "model.layers.0.self_attn.q_proj",
    "model.layers.10.self_attn.q_proj",
    "model.layers.1.mlp.down_proj",
    "q_proj",
    "xq_proj",
]


@pytest.mark.parametrize(
    "keys",
    [
        ["q_proj"],
        ["layers.0.self_attn.q_proj", "q_proj"],
        ["model.layers.1.mlp.down_proj"],
        [r"layers\.[0-9]\.self_attn.*"],
        [r"layers.\d+.self_attn.q_proj"],
        [r"^model\..*q_proj$"],
        ["(q|down)_proj"],
        ["(?:self_attn|mlp)\\.(q_proj|down_proj)"],
        [".*proj"],
        ["proj"],
        ["_proj"],
        [""],
        ["."],
        [".*"],
        ["q_proj|down_proj"],
        [r"\w+_proj"],
        ["self_attn"],
        ["model", "layers.0", "nothing"],
    ],
)
def test_patterns_match_as_in_peft(keys: list[str]) -> None:
    patterns = {key: number for number, key in enumerate(keys)}
    ours = NamePatterns(patterns, "rank_pattern")
    for name in NAMES:
        assert ours.find(name) == patterns.get(get_pattern_key(patterns.keys(), name)), name


@given(
    st.lists(st.text("ab01.*()[]|^$\\d+?_", max_size=8), max_size=3),
    st.text("ab01._", min_size=1, max_size=12),
)
@settings(max_examples=500, deadline=None)
def test_any_pattern_matches_as_in_peft_or_is_refused(keys: list[str], name: str) -> None:
    patterns = {key: number for number, key in enumerate(keys)}
    reason = ""
    try:
        found = NamePatterns(patterns, "rank_pattern").find(name)
    except Skipped as skip:
        reason = skip.reason
    if reason:
        assert reason in ("adapter_unsupported", "malformed")
        return
    plain = [key for key in keys if re.fullmatch(r"[\w.\-]+", key)]
    if any("." in key for key in plain):
        return  # a dot in a plain name is a dot here, any character there
    try:
        expected = patterns.get(get_pattern_key(patterns.keys(), name))
    except re.error:
        return  # PEFT itself cannot read such an adapter
    assert found == expected


def test_matching_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    import indexer.adapters.name_pattern as room

    monkeypatch.setattr(room, "_SECONDS", 0.2)
    started = time.monotonic()
    slow = NamePatterns({r"(a|a)*(a|a)*\d": 4}, "rank_pattern")
    with pytest.raises(Skipped) as skip:
        slow.find("a" * 400)
    assert skip.value.reason == "adapter_unsupported"
    # Many that are quick enough one by one.
    slower = NamePatterns({r"a*a*a*a*a*a*a*a*[01]": 4}, "rank_pattern")
    with pytest.raises(Skipped) as skip:
        list(map(slower.find, ["a" * 400] * 1000))
    assert skip.value.reason == "adapter_unsupported"
    assert time.monotonic() - started < 2


def test_many_plain_patterns_are_quick() -> None:
    """EVA writes one key for every module."""
    patterns = NamePatterns({f"model.layers.{i}.self_attn.q_proj": i for i in range(1000)}, "rank_pattern")
    started = time.monotonic()
    assert all(patterns.find(f"model.layers.{i}.self_attn.q_proj") == i for i in range(1000))
    assert time.monotonic() - started < 2


def test_scale_is_the_papers(tmp_path: Path) -> None:
    module = read(write_adapter(tmp_path, use_rslora=True, lora_alpha=3))["h.0.q"]
    assert math.isclose(module.scale, 3 / math.sqrt(4))
