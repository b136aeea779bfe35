"""Adapters by hand: spellings, scales, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from indexer.errors import Skipped
from tests.adapters.written import read, write_adapter


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
        assert torch.equal(module.parts["lora_A"], a)
        assert torch.equal(module.parts["lora_B"], b)
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
        assert module.parts["lora_A"].shape == (4, 6)
        assert module.parts["lora_B"].shape == (5, 4)
        assert module.parts["lora_A"].mean() == module.parts["lora_B"].mean() == float(path)


@pytest.mark.parametrize(
    ("config", "reason", "word"),
    [
        ({"use_dora": True}, "malformed", "lora_magnitude_vector"),
        ({"layer_replication": [[0, 4], [2, 5]]}, "adapter_unsupported", "layer_replication"),
        ({"target_parameters": ["0.q.weight"]}, "adapter_unsupported", "target_parameters"),
        ({"target_parameters": "experts"}, "malformed", "target_parameters"),
        ({"use_qalora": True}, "adapter_unsupported", "QA-LoRA"),
        ({"use_bdlora": {"x": 1}}, "adapter_unsupported", "use_bdlora"),
        ({"kasa_config": {"x": 1}}, "adapter_unsupported", "KaSA"),
        ({"monteclora_config": {"x": 1}}, "adapter_unsupported", "MonteCLoRA"),
        ({"arrow_config": {"x": 1}}, "adapter_unsupported", "arrow_config"),
        ({"alora_invocation_tokens": [1, 2]}, "adapter_unsupported", "activated LoRA"),
        ({"peft_type": "IA3"}, "malformed", "no IA3 factors"),
        ({"peft_type": "ADALORA"}, "malformed", "lora_E"),
        ({"peft_type": "PROMPT_TUNING"}, "adapter_unsupported", "it trains a prompt and changes no weights"),
        ({"peft_type": "XLORA"}, "adapter_unsupported", "several adapters by input"),
        ({"peft_type": "SHIRA"}, "adapter_unsupported", "SHIRA"),
        ({"peft_type": None}, "malformed", "peft_type"),
        ({"peft_type": ["LORA"]}, "adapter_unsupported", "peft_type"),
        ({"peft_type": "\x1b[31m" + "x" * 5000}, "adapter_unsupported", "peft_type"),
        ({"init_lora_weights": "pissa_niter_16"}, "adapter_unsupported", "random approximation"),
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
        ({"rank_pattern": {"(a+": 4}}, "malformed", "not a valid pattern"),
        ({"rank_pattern": {"((a{1000}){1000}){1000}": 4}}, "adapter_unsupported", "rank_pattern"),
        ({"rank_pattern": {"(?:" * 60 + "a|b" + ")+" * 60: 4}}, "adapter_unsupported", "rank_pattern"),
        ({"rank_pattern": {r"(a)\1": 4}}, "adapter_unsupported", "rank_pattern"),
        ({"rank_pattern": {"(?!x).*q{1}": 3}}, "malformed", "the config says 3"),
        ({"alpha_pattern": {"(.*)*" * 100: 4}}, "adapter_unsupported", "alpha_pattern"),
        ({"alpha_pattern": {f"{i}.*": 4 for i in range(500)}}, "adapter_unsupported", "500"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, config: dict[str, Any], reason: str, word: str) -> None:
    skip = refusal(write_adapter(tmp_path, **config))
    assert skip.reason == reason
    assert word in skip.detail
    assert len(skip.detail) < 400


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
        ({"alpha_pattern": {r"h\.\d{1,2}\.q": 1}}, 0.25),
        ({"alpha_pattern": {"(?!.*k$).*": 1}}, 0.25),
        ({"alpha_pattern": {".*(?<=k)": 1}}, 2.0),
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
    from peft import LoraConfig

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
        ({"q.lora_A.weight": (4, 6), "q.lora_B.weight": (5, 3)}, "malformed", "not a pair"),
        ({"q.lora_A.weight": (24,), "q.lora_B.weight": (5, 4)}, "malformed", "not a pair"),
        ({"q.lora_A.weight": (4, 6, 3, 3), "q.lora_B.weight": (5, 4, 1, 1)}, "adapter_unsupported", "convolutions"),
        ({"q.lora_A.weight": (0, 6), "q.lora_B.weight": (5, 0)}, "malformed", "not a pair"),
        ({"q.lora_A.weight": (4, 0), "q.lora_B.weight": (5, 4)}, "malformed", "not a pair"),
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
            {"q.lora_A.weight": (4, 6), "q.lora_B.weight": (5, 4), "q.lora_magnitude_vector.weight": (6,)},
            "malformed",
            "lora_magnitude_vector is (6,)",
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
