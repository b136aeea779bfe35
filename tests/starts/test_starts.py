"""The start of adapters that PEFT makes, from their weights alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, RobertaConfig, RobertaModel

from indexer.deltas.starts.seed_table import Draws, SeedTable, usual_seeds
from indexer.deltas.starts.start import LoraModule, Start, draws_of, find_start, solve_start

WIDTH = 128
SIZES = {"vocab_size": 100, "num_hidden_layers": 3, "num_attention_heads": 4}
BASES = {
    "roberta": lambda: RobertaModel(RobertaConfig(**SIZES, hidden_size=WIDTH, intermediate_size=2 * WIDTH)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=100, n_layer=3, n_head=4, n_embd=WIDTH)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, hidden_size=WIDTH, intermediate_size=2 * WIDTH)),
}
TARGETS = {
    "roberta": ["query", "value", "output.dense"],
    "gpt2": ["c_attn", "c_proj"],
    "llama": ["q_proj", "v_proj", "down_proj"],
}


@pytest.fixture(scope="module")
def table() -> SeedTable:
    return SeedTable([Draws(42, 1 << 19), Draws(3407, 1 << 18), Draws(7, 1 << 17)])


def peft_adapter(base: str, seed: int, rank: int = 8, drawn: int = 0, **options) -> tuple[list[LoraModule], dict, dict]:
    """Modules in the order of their names, A and A₀ by path; ``drawn`` numbers come before the factors."""
    model = BASES[base]()
    torch.manual_seed(seed)
    torch.rand(drawn)
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=TARGETS[base], fan_in_fan_out=base == "gpt2", **options)
    adapted = get_peft_model(model, config)
    modules, factors = [], {}
    for name, part in adapted.named_modules():
        if hasattr(part, "lora_A") and "default" in part.lora_A:
            a, b = part.lora_A["default"].weight.detach(), part.lora_B["default"].weight
            modules.append(LoraModule(name, *a.shape, len(b)))
            factors[name] = a.numpy()
    modules.sort(
        key=lambda module: (int("".join(filter(str.isdigit, module.path.split(".lora")[0])) or 0), module.path)
    )
    return modules, factors, {name: a.copy() for name, a in factors.items()}


def moved(factors: dict, by: float, seed: int = 1) -> dict:
    """A with a movement of some directions, ``by`` as large as A."""
    rng = np.random.default_rng(seed)
    moved_factors = {}
    for name, a in factors.items():
        step = rng.normal(size=(len(a), 2)) @ (rng.normal(size=(2, a.shape[1])) * rng.gamma(0.5, size=a.shape[1]))
        moved_factors[name] = (a + by * np.linalg.norm(a) / np.linalg.norm(step) * step).astype(np.float32)
    return moved_factors


def check(start: Start | None, modules: list[LoraModule], initial: dict, seed: int) -> None:
    assert start is not None
    assert start.seed == seed
    assert set(start.offsets) == {module.path for module in modules}
    for module, drawn in draws_of(start, modules):
        np.testing.assert_allclose(drawn, initial[module.path], atol=1e-6)


def prefix(start: Start, modules: list[LoraModule]) -> int:
    first = min(modules, key=lambda module: start.offsets[module.path])
    return start.offset - start.scheme.words_before(first)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    ("rank", "options"),
    [(8, {}), (1, {}), (64, {}), (8, {"use_rslora": True}), (8, {"use_dora": True}), (8, {"init_lora_weights": "gaussian"})],
    ids=["rank 8", "rank 1", "rank 64", "rsLoRA", "DoRA", "gaussian"],
)  # fmt: skip
def test_starts_that_peft_draws_are_found_though_training_moved_them(table, base, rank, options):
    modules, factors, initial = peft_adapter(base, 42, rank, 1538, **options)
    distribution = "normal" if "init_lora_weights" in options else "uniform"
    by = 0.3 if rank > 1 and distribution == "uniform" else 0.1
    trained = moved(factors, by)
    start = find_start(modules, trained.__getitem__, table, distribution)
    check(start, modules, initial, 42)
    assert prefix(start, modules) == 1538
    assert start.distance == pytest.approx(by, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_files_in_half_precision_have_their_start(table, dtype):
    modules, factors, initial = peft_adapter("llama", 3407)
    rounded = {name: torch.from_numpy(a).to(dtype).float().numpy() for name, a in moved(factors, 0.3).items()}
    check(find_start(modules, rounded.__getitem__, table), modules, initial, 3407)


def test_an_adapter_that_was_continued_has_the_start_of_the_first(table):
    modules, factors, initial = peft_adapter("gpt2", 7)
    check(find_start(modules, moved(moved(factors, 0.3), 0.3, 2).__getitem__, table), modules, initial, 7)


def by_old_versions(seed: int, modules: list[LoraModule]) -> dict:
    """As PEFT before 0.6: each module's weights and biases twice, A and B as ordinary layers, and A again."""
    torch.manual_seed(seed)
    factors = {}
    for module in modules:
        for _ in range(2):
            torch.rand(module.outputs * module.inputs + module.outputs)
        torch.rand(module.numbers + module.outputs * module.rank)
        a = torch.empty(module.rank, module.inputs)
        torch.nn.init.kaiming_uniform_(a, a=5**0.5)
        factors[module.path] = a.numpy()
    return factors


def test_versions_of_peft_that_drew_the_weights_too_are_told(table):
    modules = [LoraModule(f"layers.{number}.{name}", 8, 96, 96) for number in range(3) for name in ("q", "v")]
    initial = by_old_versions(42, modules)
    start = find_start(modules, moved(initial, 0.2).__getitem__, table)
    check(start, modules, initial, 42)
    assert start.scheme.weights == 2


def test_a_module_that_was_not_drawn_like_the_others_is_left_out(table):
    modules, factors, _ = peft_adapter("llama", 42)
    other = modules[4].path
    factors[other] = np.random.default_rng(0).normal(size=factors[other].shape).astype(np.float32)
    start = find_start(modules, factors.__getitem__, table)
    assert start is not None
    assert other not in start.offsets
    assert len(start.offsets) >= len(modules) - 2


def random_adapters(count: int) -> Iterator[tuple[list[LoraModule], dict]]:
    """Factors of random numbers of other generators, of several shapes, some of low rank or with a few large columns."""
    for number in range(count):
        rng = np.random.default_rng(number)
        rank, width = int(rng.choice([1, 4, 8, 16])), int(rng.choice([128, 768]))
        modules = [LoraModule(f"layers.{layer}", rank, width, width) for layer in range(4)]
        kind = number % 3
        factors = {}
        for module in modules:
            a = rng.uniform(-1, 1, (rank, width)) if kind else rng.normal(size=(rank, width))
            if kind == 2:
                a = a + rng.normal(size=(rank, 1)) @ rng.normal(size=(1, width)) * rng.gamma(0.3, size=width) * 5
            factors[module.path] = (a / np.sqrt(width)).astype(np.float32)
        yield modules, factors


@pytest.mark.parametrize(
    "count",
    [pytest.param(20), pytest.param(100, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.study)],
)
@pytest.mark.timeout(14_400)
def test_no_start_is_found_of_numbers_that_were_drawn_otherwise(table, count):
    searched = table if count == 20 else usual_seeds()
    assert [find_start(modules, factors.__getitem__, searched) for modules, factors in random_adapters(count)] == [
        None
    ] * count


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_an_adapter_that_was_moved_little_any_seed_is_found():
    modules = [LoraModule(f"layers.{number}.q", 8, 768, 768) for number in range(12)]
    torch.manual_seed(2_683_367_583)
    torch.rand(1536)
    initial = {}
    for module in modules:
        torch.rand(module.numbers + module.outputs * module.rank)
        a = torch.empty(module.rank, module.inputs)
        torch.nn.init.kaiming_uniform_(a, a=5**0.5)
        initial[module.path] = a.numpy()
    assert find_start(modules, initial.__getitem__, SeedTable([Draws(42, 1 << 18)])) is None
    start = solve_start(modules, moved(initial, 0.05).__getitem__)
    check(start, modules, initial, 2_683_367_583)
    assert prefix(start, modules) == 1536
