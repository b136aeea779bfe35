"""A sweep of seeds: its random numbers, what it finds, and what the command does with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import indexer
from indexer.builds import starts
from indexer.deltas.starts import sweep as sweeps
from indexer.deltas.starts.search import FurtherSearch
from indexer.deltas.starts.seed_table import usual_seeds
from indexer.deltas.starts.start import find_start
from indexer.deltas.starts.sweep import FirstFactors, sweep
from indexer.errors import AtlasError, BadArgument
from tests.adapters.test_started_together import add
from tests.starts.test_starts import moved, peft_adapter
from tests.tiny_hub import BASE, indexed

SEED = 3_987_654_321  # not a usual one; as int32 it is negative
SEEDS = range(SEED - 700, SEED + 700)


@pytest.mark.parametrize("seed", [0, 42, 1 << 31, (1 << 32) - 1])
def test_numbers_are_those_of_the_generator(seed):
    state, numbers = sweeps._seeded(torch.tensor([7, seed]).to(torch.int32)), []
    for _ in range(4):
        state = sweeps._twisted(state)
        numbers.append(sweeps._numbers(state)[:, 1])
    words = np.random.RandomState(seed).randint(0, 1 << 32, size=4 * 624, dtype=np.uint32)
    torch.manual_seed(seed)
    expected = 2 * torch.rand(4 * 624) - 1
    np.testing.assert_array_equal(torch.cat(numbers), expected)
    np.testing.assert_array_equal(expected.numpy(), (words & 0xFFFFFF).astype(np.float32) * np.float32(2**-23) - 1)


@pytest.mark.parametrize(
    ("base", "rank", "drawn", "options"),
    [
        ("gpt2", 8, 0, {}),
        ("gpt2", 8, 2 * 128, {}),
        ("llama", 16, 2, {}),
        ("roberta", 4, 4 * 128 + 2, {}),
        ("gpt2", 8, 6, {}),
        ("llama", 8, 0, {"init_lora_weights": "gaussian"}),
        ("gpt2", 8, 1000, {}),
    ],
    ids=[
        "at once",
        "after a head",
        "after an int64",
        "after a head of two",
        "not a usual place",
        "gaussian",
        "nor this",
    ],
)
def test_adapters_that_were_moved_far_are_found_at_usual_places(base, rank, drawn, options):
    distribution = "normal" if options else "uniform"
    modules, factors, _ = peft_adapter(base, SEED, rank, drawn, **options)
    modules.sort(key=lambda module: list(factors).index(module.path))  # as in the network
    other_adapter = peft_adapter("gpt2", 5, rank)
    factors, far = moved(factors, 0.9), moved(other_adapter[1], 0.9)
    first_factors = FirstFactors()
    assert first_factors(modules, factors.__getitem__, distribution) is None
    assert first_factors(other_adapter[0], far.__getitem__, "uniform") is None
    seeds = sweep(first_factors.noted, "cpu", SEEDS)
    assert seeds == ([] if drawn in (6, 1000) else [SEED])
    if seeds:
        start = FurtherSearch((), 0, tuple(seeds))(modules, factors.__getitem__, distribution)
        assert start is not None
        assert (start.seed, len(start.offsets)) == (SEED, len(modules))
        assert find_start(modules, factors.__getitem__, usual_seeds(), distribution) is None


def test_random_factors_have_no_seed():
    rng, noted = np.random.default_rng(0), FirstFactors()
    modules, factors, _ = peft_adapter("gpt2", 1)
    for _ in range(20):
        drawn = {path: rng.uniform(-1, 1, a.shape).astype(np.float32) / np.sqrt(128) for path, a in factors.items()}
        noted(modules, drawn.__getitem__, "uniform")
    seen: list[float] = []
    assert sweep(noted.noted, "cpu", range(3000), on_progress=seen.append) == []
    assert seen == sorted(seen)
    assert seen[-1] == 1


def test_constant_and_distant_factors_are_left_out():
    modules, factors, _ = peft_adapter("gpt2", 1)
    noted = FirstFactors()
    noted(modules, {path: np.zeros_like(a) for path, a in factors.items()}.__getitem__, "uniform")
    assert noted.noted == []
    assert sweep([], "cpu", range(10)) == []


@pytest.mark.slow
def test_the_command_finds_what_a_sweep_does(tiny_store, tmp_path, monkeypatch):
    with indexed(tiny_store(1, tmp_path / "store")) as shell:
        add(tmp_path, "mine/adapter", SEED, 0)
        folder, atlas = tmp_path / "mine" / "adapter", shell.folder / "atlas"
        assert shell("index", "add", str(folder), "--base", BASE).code == 0
        monkeypatch.setattr(starts, "_check_sweep", lambda device: None)
        monkeypatch.setattr(sweeps, "sweep", lambda factors, device, on_progress: sweep(factors, "cpu", SEEDS))
        monkeypatch.setattr("indexer.deltas.starts.linear.solve", lambda known: None)
        said: list[str] = []
        report = indexer.find_starts(
            str(folder), atlas=atlas, device="a GPU", draws=10_000, progress=lambda event: said.append(event.message)
        )
        assert [start["seed"] for start in report.starts] == [SEED]
        assert any("for 1 adapter on a GPU" in text for text in said)
        assert not indexer.verify(atlas, strict=True)


def test_a_processor_and_what_is_not_there_are_refused(tmp_path):
    with pytest.raises(BadArgument, match="takes days"):
        indexer.find_starts(base=BASE, atlas=tmp_path, device="cpu")
    with pytest.raises(AtlasError, match=r"'cuda:99' cannot be used here.*Leave it out"):
        indexer.find_starts(base=BASE, atlas=tmp_path, device="cuda:99")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_the_kernel_of_a_gpu_makes_the_same_numbers():
    from indexer.deltas.starts.kernel import Generator

    first = (1 << 32) - 100  # the seeds after it begin at 0 again
    generator = Generator(torch.device("cuda"), [0, 2], 1, torch.float32)
    for block, numbers in generator(first):
        for number in (0, 31, 99, 100, generator.at_once - 1):
            source = np.random.RandomState((first + number) & 0xFFFFFFFF)
            words = source.randint(0, 1 << 32, size=3 * 624, dtype=np.uint32)[block * 624 : (block + 1) * 624]
            expected = (words & 0xFFFFFF).astype(np.float32) * np.float32(2**-23) - 1
            np.testing.assert_array_equal(numbers[:, number].cpu(), expected)
