"""What ``python -m studies.adapters`` trains, and how it counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from indexer.vectors.table import VectorTable
from scripts.family.plan import Adapter, Run
from studies.adapters.study import against_chance, load_study, triples

ADAPTER = Adapter(8, 16, ("query",))
RUNS = [Run("a/b", dataset=data, seed=seed, adapter=ADAPTER) for data in ("x", "y", "z") for seed in (1, 2)]


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "bert"])
def test_every_row_has_every_data_set_with_every_seed_by_many_accounts(architecture):
    study = load_study(architecture)
    runs = study.runs
    assert len(runs) == len(study.plan.runs)
    for row in set(study.shared.values()):
        of_row = [runs[model] for model, row_of_model in study.shared.items() if row_of_model == row]
        assert Counter((run.dataset, run.seed) for run in of_row).most_common(1)[0][1] == 1
        assert len({run.dataset for run in of_row}) >= 3
        assert len({run.seed for run in of_row}) == 2
        assert {run.adapter.start for run in of_row} == {run.seed for run in of_row}
    for kind in ("seed", "dataset"):
        for value in {getattr(runs[model], kind) for model in study.shared}:
            accounts = {runs[model].author for model in study.shared if getattr(runs[model], kind) == value}
            assert len(accounts) > 2


def test_an_architecture_without_rows_is_named():
    with pytest.raises(ValueError, match="t5"):
        load_study("t5")


def vectors_by(key) -> np.ndarray:
    """One block each; models with the same key are the same."""
    names = sorted({key(run) for run in RUNS})
    return np.eye(len(names), dtype=np.float32)[[names.index(key(run)) for run in RUNS]]


def test_triples_separate_data_from_seeds():
    by_data = triples(VectorTable(vectors_by(lambda run: run.dataset), 1), RUNS, [True] * 6)
    assert by_data[:4] == [1, 0, 0, 1]
    by_seed = triples(VectorTable(vectors_by(lambda run: run.seed), 1), RUNS, [True] * 6)
    assert by_seed[:4] == [0, 1, 0, 0]


def test_triples_of_learnt_leave_out_adapters_that_learnt_nothing():
    """The vectors of z depend on the seed, the others on the data; z learnt nothing."""
    vectors = vectors_by(lambda run: str(run.seed) if run.dataset == "z" else run.dataset)
    *_, right, of_learnt = triples(VectorTable(vectors, 1), RUNS, [run.dataset != "z" for run in RUNS])
    assert right < 1
    assert of_learnt == 1
    assert np.isnan(triples(VectorTable(vectors, 1), RUNS, [False] * 6)[-1])


def test_the_mean_of_a_seed_makes_triples_right_though_the_data_say_nothing():
    members = [[index for index, run in enumerate(RUNS) if run.seed == seed] for seed in (1, 2)]
    shares = []
    for draw in range(40):
        noise = np.random.default_rng(draw).normal(size=(6, 400)).astype(np.float32)
        for indices in members:
            noise[indices] -= noise[indices].mean(axis=0)
        noise /= np.linalg.norm(noise, axis=1, keepdims=True)
        assert triples(VectorTable(noise, 1), RUNS, [True] * 6)[3] == 1
        shares.append(against_chance(VectorTable(noise, 1), RUNS))
    by_data, without_data = np.mean(shares, axis=0)
    assert by_data == pytest.approx(0.5, abs=0.15)
    assert without_data == 1
    assert against_chance(VectorTable(vectors_by(lambda run: run.dataset), 1), RUNS) == (1, 0)
    assert against_chance(VectorTable(vectors_by(lambda run: str(run.seed)), 1), RUNS)[0] == 0
