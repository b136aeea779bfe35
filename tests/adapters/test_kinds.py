"""δW of every kind of adapter, trained and saved by PEFT, against what PEFT's own merge adds to the base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from indexer.checkpoints.adapter import adapter_plan
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.adapter_deltas import WeightDelta, deltas_on, dense
from indexer.deltas.base import BaseMatrices, store_base
from indexer.errors import Skipped
from indexer.names import DeltaKey
from indexer.sources.registry import ModelRef
from tests.adapters.test_against_peft import gpt2, llama, roberta
from tests.adapters.written import write_adapter

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
    optimiser = torch.optim.AdamW([value for value in adapted.parameters() if value.requires_grad], lr=2e-2)
    for _ in range(steps):
        tokens = torch.randint(5, 50, (4, 8))
        out = adapted(input_ids=tokens).logits.float()
        (out - torch.linspace(-1, 1, out.shape[-1])).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()


def changes(folder: Path, base: BaseMatrices, **options: Any) -> tuple[dict[DeltaKey, torch.Tensor], set[DeltaKey]]:
    """δW of every matrix that the adapter changes, and the keys of those that are not factors."""
    checkpoint = open_checkpoint(ModelRef("a/b", folder=folder), relation="adapter")
    deltas, functions = {}, set()
    for delta in deltas_on(checkpoint, base, **options):
        assert delta.key not in deltas
        if isinstance(delta, WeightDelta):
            functions.add(delta.key)
            deltas[delta.key] = dense(delta, base.matrix(delta.key)).matrix
        else:
            deltas[delta.key] = delta.scale * (delta.b @ delta.a)
    return deltas, functions


def merged_changes(adapted: Any, before: dict[str, torch.Tensor], base: BaseMatrices) -> dict[DeltaKey, torch.Tensor]:
    """What PEFT's merge adds to each block matrix of the base."""
    after = adapted.merge_and_unload().state_dict()
    deltas = {}
    for matrix in base.layout.matrices:
        (name,) = [name for name in before if name.endswith(matrix.tensor)]
        deltas[matrix.key] = matrix.extract(after[name].double() - before[name].double())
    return deltas


def check(folder: Path, base: BaseMatrices, expected: dict[DeltaKey, torch.Tensor], tolerance: float) -> set[DeltaKey]:
    deltas, functions = changes(folder, base)
    assert deltas
    assert {key for key, change in expected.items() if change.norm() > 0} <= set(deltas)
    for key, change in expected.items():
        delta = deltas.get(key, torch.zeros(change.shape))
        assert (delta - change).norm() <= tolerance * max(change.norm(), 1e-9), key
    return functions


def peft_config(kind: str, architecture: str, settings: dict[str, Any]) -> Any:
    import peft

    config_class = getattr(peft, f"{kind}Config")
    targets = {"target_modules": ATTENTION[architecture]}
    if architecture == "gpt2" and kind not in ("LoHa", "LoKr", "HRA"):
        settings = {"fan_in_fan_out": True} | settings
    return config_class(**(targets | settings))


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
    if "feedforward_modules" in settings:
        inputs = [name for name in settings["feedforward_modules"] if name in ATTENTION[architecture]]
        settings = settings | {"feedforward_modules": inputs}
    base = stored(model, tmp_path)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    adapted = get_peft_model(model, peft_config(kind, architecture, settings))
    train(adapted)
    adapted.save_pretrained(tmp_path / "adapter")
    functions = check(tmp_path / "adapter", base, merged_changes(adapted, before, base), 1e-3)
    if name not in ("LoHa", "LoKr"):  # which are factors up to half of the full rank
        assert bool(functions) == (name in ("DoRA", "OFT", "BOFT", "HRA", "IA3", "FourierFT"))
    checkpoint = open_checkpoint(ModelRef("a/b", folder=tmp_path / "adapter"), relation="adapter")
    assert adapter_plan(checkpoint).kind == name


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Lora", {"r": 4, "use_dora": True}),
        ("Lora", {"r": 4, "init_lora_weights": "pissa"}),
        ("LoKr", {"r": 2}),
        ("OFT", {"oft_block_size": 4}),
        ("IA3", {"feedforward_modules": ["down_proj"]}),
        ("Vera", {"r": 8}),
    ],
)
def test_in_bfloat16(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    """Base and adapter in bfloat16; PEFT loads both into float32 and merges there, which rounds nothing."""
    from peft import PeftModel, get_peft_model

    torch.manual_seed(0)
    model = llama().to(torch.bfloat16)
    base = stored(model, tmp_path)
    wide = llama().float()
    wide.load_state_dict(model.state_dict())
    adapted = get_peft_model(model, peft_config(kind, "llama", settings), autocast_adapter_dtype=False)
    train(adapted)
    adapted.save_pretrained(tmp_path / "adapter")
    saved = load_file(tmp_path / "adapter/adapter_model.safetensors")
    assert {tensor.dtype for name, tensor in saved.items() if ".layers." in name} == {torch.bfloat16}
    before = {key: tensor.clone() for key, tensor in wide.state_dict().items()}
    again = PeftModel.from_pretrained(wide, tmp_path / "adapter")
    check(tmp_path / "adapter", base, merged_changes(again, before, base), 2e-3)


def test_butterflies_of_several_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PEFT needs a CUDA kernel for them, which puts blocks on a diagonal; here torch does."""
    import peft.tuners.boft.layer as boft
    from peft import get_peft_model

    class Kernel:
        @staticmethod
        def forward(blocks: torch.Tensor) -> list[torch.Tensor]:
            return [torch.stack([torch.block_diag(*group) for group in blocks])]

    monkeypatch.setattr(boft, "get_fbd_cuda", lambda: Kernel)
    torch.manual_seed(0)
    model = llama()
    base = stored(model, tmp_path)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    config = peft_config("BOFT", "llama", {
        "boft_block_size": 2, "boft_n_butterfly_factor": 3, "target_modules": ["q_proj", "k_proj", "down_proj"],
    })  # fmt: skip
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "boft_R" in name:
                assert len(parameter) == 3
                parameter.normal_(0, 0.3)
            elif "boft_s" in name:
                parameter.normal_(1, 0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        check(tmp_path / "adapter", base, merged_changes(adapted, before, base), 1e-3)


def test_oft_of_peft_0_17_ends_its_series_otherwise(tmp_path: Path) -> None:
    """tuners/oft/layer.py of PEFT 0.17.1, _cayley_batch: I + 2(Q + Q² + Q³ + Q⁴); config.json has no version there."""
    torch.manual_seed(0)
    base = stored(llama(), tmp_path)
    values = 0.2 * torch.randn(6, 6)
    write_adapter(
        tmp_path / "adapter", {"base_model.model.model.layers.1.self_attn.q_proj.oft_R.weight": values},
        peft_type="OFT", oft_block_size=4, r=0, use_cayley_neumann=True,
    )  # fmt: skip
    rotation = torch.zeros(24, 24)
    for block, vector in enumerate(values):
        skew = torch.zeros(4, 4)
        skew[tuple(torch.triu_indices(4, 4, 1))] = vector
        skew = skew - skew.T
        series = torch.eye(4) + 2 * sum(torch.linalg.matrix_power(skew, power) for power in range(1, 5))
        rotation[4 * block : 4 * block + 4, 4 * block : 4 * block + 4] = series
    key = DeltaKey("", 1, "query")
    weight = base.matrix(key)
    deltas, _ = changes(tmp_path / "adapter", base)
    torch.testing.assert_close(deltas[key], (rotation @ weight.T).T - weight, rtol=1e-4, atol=1e-6)


def test_modules_to_save_are_whole_changes(tmp_path: Path) -> None:
    from peft import get_peft_model

    torch.manual_seed(0)
    model = roberta()
    base = stored(model, tmp_path)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    config = peft_config("Lora", "roberta", {"r": 2, "modules_to_save": ["intermediate.dense", "classifier"]})
    adapted = get_peft_model(model, config)
    train(adapted)
    adapted.save_pretrained(tmp_path / "adapter")
    functions = check(tmp_path / "adapter", base, merged_changes(adapted, before, base), 1e-3)
    assert functions == {DeltaKey("", layer, "feedforward1") for layer in (0, 1)}


def test_of_bare_parameters_the_rest_is_read(tmp_path: Path) -> None:
    """Experts by target_parameters, as PEFT saves them; the factors of attention beside them are read."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    sizes: dict[str, Any] = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 intermediate_size=16, num_local_experts=3, vocab_size=60)  # fmt: skip
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes))
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    config = LoraConfig(r=2, target_modules=["q_proj"], target_parameters=parameters, lora_dropout=0.0)
    adapted = get_peft_model(model, config)
    train(adapted)
    adapted.save_pretrained(tmp_path / "adapter")
    checkpoint = open_checkpoint(ModelRef("a/b", folder=tmp_path / "adapter"), relation="adapter")
    plan = adapter_plan(checkpoint)
    assert set(plan.modules) == {f"model.layers.{layer}.self_attn.q_proj" for layer in (0, 1)}
    assert plan.passed_over == ("factors of bare parameters (target_parameters): 4",)
    config = LoraConfig(r=2, target_modules=[], target_parameters=parameters, lora_dropout=0.0)
    get_peft_model(transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes)), config).save_pretrained(
        tmp_path / "experts"
    )
    with pytest.raises(Skipped, match="only factors of bare parameters"):
        adapter_plan(open_checkpoint(ModelRef("a/b", folder=tmp_path / "experts"), relation="adapter"))


def test_what_needs_the_weights_below_is_refused_on_other_weights(tmp_path: Path) -> None:
    from peft import get_peft_model

    torch.manual_seed(0)
    model = llama()
    base = stored(model, tmp_path)
    get_peft_model(model, peft_config("Lora", "llama", {"r": 2, "init_lora_weights": "pissa"})).save_pretrained(
        tmp_path / "adapter"
    )
    with pytest.raises(Skipped, match="not the base's"):
        changes(tmp_path / "adapter", base, on_base=False)
