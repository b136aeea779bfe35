"""What the arena trains for adapters and their seed, where it finds a real model, and what it prints without one."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from indexer.errors import AtlasError
from scripts.family.plan import load_plan
from studies.adapters.study import PATH, load_study
from studies.arena import adapters
from studies.arena import family as pretrained
from studies.arena.family import PRETRAINED, load_real_plan


@pytest.fixture
def folder(tmp_path):
    """A folder with the files of a real model, in name."""
    inner = tmp_path / "model"
    inner.mkdir()
    for name in pretrained.FILES:
        (inner / name).write_text("{}")
    (inner / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return inner


def test_the_rows_cross_other_data_sets_and_seeds_than_those_of_the_choice(folder):
    import tomllib

    chosen_on = tomllib.loads(PATH.read_text())
    for study in (
        load_study(adapters.TINY, adapters.PLANS[adapters.TINY]),
        load_study(adapters.REAL, adapters.PLANS[adapters.REAL], pretrained.pretrained_plan(folder)),
    ):
        runs = [study.runs[model] for model in study.shared]
        assert not {run.dataset for run in runs} & set(chosen_on["datasets"])
        assert not {run.seed for run in runs} & set(chosen_on["seeds"])
        assert {run.adapter.rank for run in runs} == {4, 8, 16, 64}
        assert len({run.adapter.targets for run in runs}) == 2
        crossed = Counter((study.shared[run.model], run.dataset, run.seed) for run in runs)
        assert set(crossed.values()) == {1}
        assert len(crossed) == len(set(study.shared.values())) * 4 * 2
        assert len(study.plan.runs) == len(study.runs)
        assert sum(run.adapter is not None for run in study.plan.runs) >= 36


def test_all_linear_of_a_gated_network_has_the_gate():
    runs = load_study(adapters.TINY, adapters.PLANS[adapters.TINY]).runs.values()
    assert max((run.adapter.targets for run in runs if run.adapter), key=len)[4] == "gate"


def test_a_real_model_is_found_in_a_folder_and_is_the_base(folder, monkeypatch):
    monkeypatch.setenv(PRETRAINED, str(folder.parent))
    assert pretrained.pretrained_folder() == folder
    plan = pretrained.pretrained_plan(folder)
    assert plan.base == pretrained.BASE
    runs = load_study(adapters.REAL, adapters.PLANS[adapters.REAL], plan).plan.runs
    assert all(run.model.partition("/")[2].startswith("all-MiniLM-L6-v2-") for run in runs)
    assert plan.fingerprint != load_plan("full", "bert").fingerprint


def test_full_fine_tunes_of_a_real_model_share_no_habit_with_their_data_set(folder):
    plan = load_real_plan(folder)
    assert plan.base == pretrained.BASE
    assert not any(run.adapter for run in plan.runs)
    by_dataset = {name: [run for run in plan.runs if run.dataset == name] for name in plan.datasets}
    assert len(by_dataset) == 8
    for runs in by_dataset.values():
        assert len({run.author for run in runs}) == len({run.learning_rate for run in runs}) == len(runs) == 3
    assert {run.learning_rate for run in plan.runs} == {1e-5, 2e-5, 3e-5, 5e-5}
    assert len({run.seed for run in plan.runs}) == len(plan.runs)


@pytest.mark.parametrize("change", ["no weights", "another network"])
def test_a_folder_without_the_model_is_named(folder, change, monkeypatch):
    if change == "no weights":
        (folder / "model.safetensors").unlink()
    else:
        (folder / "config.json").write_text('{"model_type": "gpt2"}')
    monkeypatch.setenv(PRETRAINED, str(folder))
    with pytest.raises(AtlasError, match="has no folder with"):
        pretrained.pretrained_folder()


def test_without_a_real_model_its_table_is_skipped_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "PACKAGES", ("no_such_package_of_a_model",))
    monkeypatch.delenv(PRETRAINED, raising=False)
    asked = []
    figures = {"base": "a/b", "adapters": 1, "full": 0, "rows": [], "whole": {}, "starts": {}, "duplicates": 0,
               "children": 0}  # fmt: skip
    monkeypatch.setattr(adapters.studied, "figures_of", lambda study, out: asked.append(study.plan.base) or figures)
    found = adapters.run(tmp_path)
    assert asked == ["atlas-demo/tiny-llama"]
    written = adapters.tables(found)
    assert "### a/b: 1 adapters, 0 full fine-tunes" in written
    assert f"Skipped: {pretrained.SKIPPED}." in written
