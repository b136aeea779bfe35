"""δW of every kind of adapter, trained and saved by PEFT, against what PEFT's own merge adds to the base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from indexer.deltas.adapter_deltas import WeightDelta, deltas_on, dense
from indexer.deltas.base import BaseMatrices, store_base
from indexer.names import DeltaKey, ModelRef
from indexer.weights.adapter import adapter_plan
from indexer.weights.checkpoint import open_checkpoint
from tests.adapters.test_against_peft import gpt2, llama, roberta

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

BUILDERS = {"roberta": roberta, "llama": llama, "gpt2": gpt2}
ATTENTION = {"roberta": ["query", "value"], "llama": ["q_proj", "k_proj", "down_proj"], "gpt2": ["c_attn", "c_fc"]}


def stored(model: Any, folder: Path) -> BaseMatrices:
    """The base as an atlas stores it."""
    body = model.base_model if hasattr(model, "base_model") else model
    body.save_pretrained(folder / "base")
    checkpoint = open_checkpoint(ModelRef("org/base", folder=folder / "base"))
    return store_base(checkpoint, "org/base", "c" * 40, folder / "base.safetensors")


def train(adapted: Any, steps: int = 3) -> None:
    torch.manual_seed(1)
    optimiser = torch.optim.AdamW([one for one in adapted.parameters() if one.requires_grad], lr=2e-2)
    for _ in range(steps):
        tokens = torch.randint(5, 50, (4, 8))
        out = adapted(input_ids=tokens).logits.float()
        (out - torch.linspace(-1, 1, out.shape[-1])).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()


def changes(folder: Path, base: BaseMatrices, **options: Any) -> tuple[dict[DeltaKey, torch.Tensor], set[DeltaKey]]:
    """δW of every matrix that the adapter changes, and the keys of those that are not factors."""
    checkpoint = open_checkpoint(ModelRef("a/b", folder=folder), relation="adapter")
    found, functions = {}, set()
    for delta in deltas_on(checkpoint, base, **options):
        assert delta.key not in found
        if isinstance(delta, WeightDelta):
            functions.add(delta.key)
            found[delta.key] = dense(delta, base.matrix(delta.key)).matrix
        else:
            found[delta.key] = delta.scale * (delta.b @ delta.a)
    return found, functions


def merged_changes(adapted: Any, before: dict[str, torch.Tensor], base: BaseMatrices) -> dict[DeltaKey, torch.Tensor]:
    """What PEFT's merge adds to each block matrix of the base."""
    after = adapted.merge_and_unload().state_dict()
    found = {}
    for matrix in base.layout.matrices:
        (name,) = [one for one in before if one.endswith(matrix.tensor)]
        found[matrix.key] = matrix.extract(after[name].double() - before[name].double())
    return found


def check(folder: Path, base: BaseMatrices, expected: dict[DeltaKey, torch.Tensor], tolerance: float) -> set[DeltaKey]:
    found, functions = changes(folder, base)
    assert found
    assert {key for key, change in expected.items() if change.norm() > 0} <= set(found)
    for key, change in expected.items():
        got = found.get(key, torch.zeros(change.shape))
        assert (got - change).norm() <= tolerance * max(change.norm(), 1e-9), key
    return functions


def peft_config(kind: str, architecture: str, settings: dict[str, Any]) -> Any:
    import peft

    made = getattr(peft, f"{kind}Config")
    targets = {"target_modules": ATTENTION[architecture]}
    if architecture == "gpt2" and kind not in ("LoHa", "LoKr", "HRA"):
        settings = {"fan_in_fan_out": True} | settings
    return made(**(targets | settings))


CASES = [
    ("DoRA", "Lora", {"r": 4, "lora_alpha": 6, "use_dora": True}, "roberta llama gpt2"),
    (
        "DoRA",
        "Lora",
        {
            "r": 4,
            "lora_alpha": 8,
            "use_dora": True,
            "use_rslora": True,
            "rank_pattern": {"q_proj": 2},
            "alpha_pattern": {"k_proj": 3},
        },
        "llama",
    ),
    ("rsLoRA", "Lora", {"r": 4, "use_rslora": True, "rank_pattern": {"query": 2}}, "roberta"),
    ("PiSSA", "Lora", {"r": 4, "lora_alpha": 6, "init_lora_weights": "pissa"}, "roberta llama gpt2"),
    (
        "PiSSA",
        "Lora",
        {"r": 4, "lora_alpha": 6, "init_lora_weights": "pissa", "use_rslora": True, "rank_pattern": {"q_proj": 3}},
        "llama",
    ),
    ("DoRA", "Lora", {"r": 4, "lora_alpha": 6, "init_lora_weights": "pissa", "use_dora": True}, "llama"),
    ("OLoRA", "Lora", {"r": 4, "lora_alpha": 6, "init_lora_weights": "olora"}, "roberta llama"),
    ("AdaLoRA", "AdaLora", {"init_r": 6, "target_r": 3, "lora_alpha": 8, "total_step": 10}, "roberta llama gpt2"),
    ("LoHa", "LoHa", {"r": 2, "alpha": 3}, "roberta llama"),
    ("LoHa", "LoHa", {"r": 6, "alpha": 9, "rank_pattern": {"q_proj": 4}, "alpha_pattern": {"k_proj": 2}}, "llama"),
    ("LoKr", "LoKr", {"r": 2, "alpha": 3}, "roberta llama"),
    ("LoKr", "LoKr", {"r": 1, "alpha": 3, "decompose_both": True, "decompose_factor": 6}, "roberta"),
    ("LoKr", "LoKr", {"r": 100, "alpha": 3, "rank_pattern": {"q_proj": 50}}, "llama"),
    ("OFT", "OFT", {"oft_block_size": 6}, "roberta llama"),
    ("OFT", "OFT", {"oft_block_size": 4, "use_cayley_neumann": False, "block_share": True}, "llama"),
    ("OFT", "OFT", {"oft_block_size": 4, "num_cayley_neumann_terms": 3}, "roberta"),
    ("OFT", "OFT", {"oft_block_size": 4, "num_cayley_neumann_terms": 4, "coft": True, "eps": 0.1}, "roberta"),
    ("BOFT", "BOFT", {"boft_block_size": 4, "boft_n_butterfly_factor": 1}, "roberta llama"),
    ("HRA", "HRA", {"r": 4}, "roberta llama"),
    ("HRA", "HRA", {"r": 4, "apply_GS": True, "init_weights": False}, "llama"),
    ("IA3", "IA3", {"feedforward_modules": ["down_proj", "c_fc"]}, "roberta llama gpt2"),
    ("VeRA", "Vera", {"r": 8}, "roberta llama gpt2"),
    ("VeRA", "Vera", {"r": 8, "save_projection": False, "projection_prng_key": 7}, "llama"),
    ("FourierFT", "FourierFT", {"n_frequency": 50, "random_loc_seed": 5}, "roberta llama gpt2"),
]


@pytest.mark.parametrize(
    ("name", "kind", "settings", "architecture"),
    [(*case[:3], architecture) for case in CASES for architecture in case[3].split()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_against_peft(tmp_path: Path, name: str, kind: str, settings: dict[str, Any], architecture: str) -> None:
    from peft import get_peft_model

    torch.manual_seed(0)
    model = BUILDERS[architecture]()
    settings = {word: value for word, value in settings.items()}
    if "feedforward_modules" in settings:
        inputs = [one for one in settings["feedforward_modules"] if one in ATTENTION[architecture]]
        settings["feedforward_modules"] = inputs
    base = stored(model, tmp_path)
    before = {one: tensor.clone() for one, tensor in model.state_dict().items()}
    adapted = get_peft_model(model, peft_config(kind, architecture, settings))
    train(adapted)
    adapted.save_pretrained(tmp_path / "adapter")
    functions = check(tmp_path / "adapter", base, merged_changes(adapted, before, base), 1e-3)
    if name not in ("LoHa", "LoKr"):  # which are factors up to half of the full rank
        assert bool(functions) == (name in ("DoRA", "OFT", "BOFT", "HRA", "IA3", "FourierFT"))
    checkpoint = open_checkpoint(ModelRef("a/b", folder=tmp_path / "adapter"), relation="adapter")
    assert adapter_plan(checkpoint).kind == name
