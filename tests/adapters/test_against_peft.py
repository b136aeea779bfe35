"""LoRA factors against what PEFT merges."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from indexer.checkpoints.adapter import AdapterModule, adapter_plan, read_modules, whole_weights
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.errors import Skipped
from indexer.sources.registry import ModelRef
from scripts.loopback_hub import LoopbackHub
from tests.adapters.written import read
from tests.hubs import set_endpoint

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel

# PEFT warns of what is tested here: odd starts, biases of factors.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def lora_config(**settings: Any) -> LoraConfig:
    """PEFT takes seconds to load: collecting the tests must not wait for it."""
    from peft import LoraConfig

    return LoraConfig(**settings)


def with_adapter(model: torch.nn.Module, config: LoraConfig, **more: Any) -> PeftModel:
    from peft import get_peft_model

    return get_peft_model(copy.deepcopy(model), config, **more)


def roberta() -> torch.nn.Module:
    config = transformers.RobertaConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, vocab_size=60
    )
    return transformers.RobertaForSequenceClassification(config)


def gpt2() -> torch.nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=24, n_layer=2, n_head=2, vocab_size=60, n_positions=16)
    )


def llama() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=40,
        vocab_size=60,
    )
    return transformers.LlamaForCausalLM(config)


def trained(model: torch.nn.Module, config: LoraConfig) -> PeftModel:
    """An adapter whose factors are not zero."""
    adapted = with_adapter(model, config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return adapted


def check_against_merging(model: torch.nn.Module, config: LoraConfig, folder: Path) -> dict[str, AdapterModule]:
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
        assert (module.parts["lora_B"].shape[0], module.parts["lora_A"].shape[1]) == tuple(delta.shape)
        torch.testing.assert_close(
            module.scale * (module.parts["lora_B"] @ module.parts["lora_A"]), delta, rtol=1e-3, atol=1e-5
        )
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
    assert check_against_merging(build(), lora_config(**settings_), tmp_path)


def test_the_pickled_form(tmp_path: Path) -> None:
    torch.manual_seed(0)
    adapted = trained(llama(), lora_config(r=4, target_modules=["q_proj", "up_proj"]))
    adapted.save_pretrained(tmp_path, safe_serialization=False)
    state = torch.load(tmp_path / "adapter_model.bin", weights_only=True)
    (tmp_path / "adapter_model.safetensors").unlink(missing_ok=True)
    modules = read(tmp_path)
    assert len(modules) == 4
    for path, module in modules.items():
        assert torch.equal(module.parts["lora_A"], state[f"base_model.model.{path}.lora_A.weight"])
        assert torch.equal(module.parts["lora_B"], state[f"base_model.model.{path}.lora_B.weight"])


def test_inits_that_move_the_base_are_known_to(tmp_path: Path) -> None:
    """The tables of initialisations against what PEFT does with the base's weights."""
    torch.manual_seed(0)
    base = llama()
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    for start in (True, False, "gaussian", "orthogonal", "mica", "eva", "pissa", "pissa_niter_2", "olora"):
        more: dict[str, Any] = {}
        if start == "eva":
            more = {"low_cpu_mem_usage": False}
        config = lora_config(r=4, target_modules=["q_proj"], init_lora_weights=start)
        adapted = with_adapter(base, config, **more)
        after = adapted.get_base_model().state_dict()
        moved = any(
            not torch.equal(before[name.replace(".base_layer", "")], tensor)
            for name, tensor in after.items()
            if "lora_" not in name
        )
        folder = tmp_path / str(start)
        adapted.save_pretrained(folder)
        checkpoint = open_checkpoint(ModelRef("x", folder=folder), relation="adapter")
        if start == "pissa_niter_2":
            assert moved
            with pytest.raises(Skipped, match="random approximation"):
                read(folder)
        else:
            assert (adapter_plan(checkpoint).start is not None) == moved
        assert moved == (str(start).startswith(("pissa", "olora")))


def test_tensors_that_are_saved_whole_are_listed(tmp_path: Path) -> None:
    config = lora_config(
        r=2, target_modules=["query"], modules_to_save=["classifier", "intermediate.dense"], bias="lora_only"
    )
    trained(roberta(), config).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(ModelRef("x", folder=tmp_path), relation="adapter")
    whole_names = whole_weights(checkpoint)
    assert "classifier.dense.weight" in whole_names
    assert "roberta.encoder.layer.1.intermediate.dense.weight" in whole_names
    assert not any("lora" in name or "modules_to_save" in name for name in whole_names)
    assert set(read(tmp_path)) == {f"roberta.encoder.layer.{i}.attention.self.query" for i in (0, 1)}
    factors = adapter_plan(checkpoint).tensors
    assert sorted(factors) == sorted(name for name in checkpoint.tensors if ".lora_" in name)
    assert not set(factors) & set(whole_names)


def test_embedding_factors_and_biases_are_passed_over(tmp_path: Path) -> None:
    config = lora_config(r=2, target_modules=["q_proj", "embed_tokens"], lora_bias=False)
    trained(llama(), config).save_pretrained(tmp_path, save_embedding_layers=False)
    assert any("lora_embedding_A" in name for name in load_file(tmp_path / "adapter_model.safetensors"))
    assert set(read(tmp_path)) == {f"model.layers.{i}.self_attn.q_proj" for i in (0, 1)}
    config = lora_config(r=2, target_modules=["query"], lora_bias=True)
    trained(roberta(), config).save_pretrained(tmp_path / "bias")
    assert any(name.endswith("lora_B.bias") for name in load_file(tmp_path / "bias/adapter_model.safetensors"))
    assert len(read(tmp_path / "bias")) == 2


def test_only_the_factors_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Response bodies <= 1.02 x factors + 64 KiB a file, though the file also holds a whole embedding."""
    config = transformers.LlamaConfig(
        hidden_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=512,
        vocab_size=8000,
    )
    lora = lora_config(r=16, target_modules="all-linear", modules_to_save=["embed_tokens"])
    trained(transformers.LlamaForCausalLM(config), lora).save_pretrained(tmp_path / "me" / "lora")
    with LoopbackHub(tmp_path) as hub:
        set_endpoint(monkeypatch, hub.endpoint)
        checkpoint = open_checkpoint(ModelRef("me/lora"), relation="adapter")
        factors = sum(
            module.parts["lora_A"].nbytes + module.parts["lora_B"].nbytes
            for module in read_modules(checkpoint)
            if "embed" not in module.path
        )
        sent = hub.body_bytes("me/lora", "adapter_model.safetensors")
        assert checkpoint.files[0].size > 8_000_000
        assert sent <= 1.02 * factors + 65_536
        assert len([request for request in hub.requests if request.role == "cdn"]) <= 4
