"""The rival's rule and the scores against small cases calculated by hand, and the whole study (slow)."""

from __future__ import annotations

import re
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from scripts.family.plan import load_plan
from studies.lineage import forest
from studies.lineage.merging import linear, nf4, slerp, task_arithmetic, ties
from studies.lineage.plan import SHAPES, plan_forest
from studies.lineage.study import Answer, Truth, judged, parents, reliability, rival_answers, score, study

DATA = ("a", "b", "c")


def node(name, group, *above, kind="continued", hidden=False, **how):
    return {"name": name, "group": group, "parents": list(above), "kind": kind, "hidden": hidden, "how": how}


def test_a_full_forest_has_mothers_shape():
    nodes = plan_forest(SHAPES["full"], DATA, seed=1)
    count = {group: sum(node.group == group for node in nodes) for group in ("root", "child", "grandchild")}
    assert count == {"root": 5, "child": 20, "grandchild": 80}
    by_name = {node.name: node for node in nodes}
    assert len(by_name) == len(nodes)
    for node in nodes:
        assert all(by_name[parent].created < node.created for parent in node.parents)
    assert plan_forest(SHAPES["full"], DATA, seed=1) == nodes
    assert plan_forest(SHAPES["full"], DATA, seed=2) != nodes
    merges = [node for node in nodes if node.kind == "merge"]
    assert {len(node.parents) for node in merges} == {2, 3, 4}


def test_docstrings_and_comments_do_not_change_the_fingerprint_of_a_forest(tmp_path, monkeypatch):
    """So that a forest is not trained again because of them."""
    for name in ("plan.py", "merging.py", "optimisers.py", "images.py", "forest.py"):
        shutil.copy(Path(forest.__file__).parent / name, tmp_path)
    monkeypatch.setattr(forest, "__file__", str(tmp_path / "forest.py"))
    before = forest.fingerprint("bert", "small", 1)
    merging = tmp_path / "merging.py"
    text = merging.read_text()
    merging.write_text(re.sub(r'"""(?=\w)', '"""In other words: ', text) + "# A comment.\n")
    assert forest.fingerprint("bert", "small", 1) == before
    merging.write_text(text + "SCALE = 2\n")
    assert forest.fingerprint("bert", "small", 1) != before
    assert forest.fingerprint("bert", "small", 2) != before


def test_the_rival_finds_a_chain_given_root_and_dates():
    random = np.random.default_rng(0)
    base = random.standard_normal((2, 16, 16)).astype(np.float32)
    first = base + 0.1 * random.standard_normal(base.shape).astype(np.float32)
    second = first + 0.1 * random.standard_normal(base.shape).astype(np.float32)
    weights = {"base": base, "first": first, "second": second}
    begun = datetime(2024, 1, 1)
    created = {"first": begun, "second": begun + timedelta(days=3)}
    assert parents(weights, "base", created) == {"base": None, "first": "base", "second": "first"}
    free = parents(weights, "base")
    assert list(free.values()).count(None) == 1


def test_a_forest_of_sweeps_has_five_rates_two_seeds_and_models_made_from_its_runs():
    nodes = plan_forest(SHAPES["sweeps"], DATA, seed=1)
    sweep = [node for node in nodes if node.group == "sweep"][:10]
    assert len({node.how["learning_rate"] for node in sweep}) == 5
    assert len({node.seed for node in sweep}) == 2
    assert len({(node.dataset, node.created.date(), node.how["steps"]) for node in sweep}) == 1
    by_name = {node.name: node for node in nodes}
    resumed = [node for node in nodes if node.group == "resumed"]
    for node in resumed:
        (parent,) = (by_name[name] for name in node.parents)
        assert parent.group == "sweep"
        assert parent.dataset == node.dataset
        assert timedelta(0) < node.created - parent.created < timedelta(days=1)
    assert {by_name[node.parents[0]].seed == node.seed for node in resumed} == {True, False}


def test_the_demos_family_is_a_forest_with_a_sweep():
    truth = Truth.of_family(load_plan("full"))
    sweep = [name for name in truth.of(["sweep"]) if name.startswith("gridsweep/")]
    assert len(sweep) == 7
    assert not any(truth.parents(name) for name in sweep)
    (child,) = truth.of(["child"])
    assert truth.parents(child) == {"papercut-ai/papercut-tiny-roberta-line-kinds"}
    assert truth.one("nightly-builds/lines-reupload-tiny-roberta") in truth.parents(child)


def test_reliability_counts_the_steps_of_each_class_and_those_that_are_right():
    truth = Truth([node("r", "root", kind="tuned"), node("c", "child", "r"), node("s", "sweep", kind="tuned")])
    answers = [
        {"model": name, "base": "b", "rows": [{"parent": parent, "probability": probability}]}
        for name, parent, probability in (
            ("r", "b", 0.97),
            ("c", "r", 0.99),
            ("s", "c", 0.3),
            ("c", "s", 0.2),
            ("r", None, 0.96),
        )
    ]
    low, high = reliability(judged(answers, truth))
    assert (low["from"], low["to"], low["steps"], low["right"]) == (0.1, 0.5, 2, 0)
    assert low["mean"] == pytest.approx(0.25)
    assert (high["from"], high["steps"], high["right"]) == (0.95, 3, 1)


def test_scores_count_exactly_right_answers_and_hidden_parents_as_none():
    truth = Truth(
        [
            node("r", "root", kind="tuned"),
            node("h", "hidden", kind="tuned", hidden=True),
            node("o", "orphan", "h"),
            node("c", "child", "r"),
            node("k", "plain", "c", kind="copy", form="plain"),
            node("m", "linear", "r", "c", kind="merge", weights=[0.25, 0.75]),
        ]
    )
    answers = {
        "r": Answer(frozenset(), {}),
        "o": Answer(frozenset({"r"}), {}),
        "c": Answer(frozenset({"r"}), {}),
        "k": Answer(frozenset({"c"}), {}),
        "m": Answer(frozenset({"r", "c"}), {"r": 0.26, "c": 0.74}, bytes=7_000_000),
    }
    scores = score(answers, truth, truth.of(("root", "orphan", "child", "plain", "linear")))
    assert (scores["models"], scores["right"]) == (5, 0.8)
    assert (scores["precision"], scores["recall"]) == (0.8, 1.0)
    assert scores["worst_weight"] == pytest.approx(0.01)
    assert scores["megabytes"] == 7.0
    answers = rival_answers({"base": None, "r": "base", "c": "r", "k": "c"}, "base", truth)
    assert answers["r"].parents == frozenset()
    assert answers["c"].parents == {"r"}


def test_merges_are_those_that_mergekit_defines():
    import torch

    base = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    first = base + torch.tensor([[1.0, -2.0, 0.1, 0.0]])
    second = base + torch.tensor([[3.0, 1.0, 0.2, -4.0]])
    models = [first, second]
    assert torch.allclose(linear("w", base, models, {"weights": [1.0, 3.0]}, 0), (first + 3 * second) / 4)
    added = task_arithmetic("w", base, models, {"weights": [0.5, 0.25]}, 0)
    assert torch.allclose(added - base, torch.tensor([[1.25, -0.75, 0.1, -1.0]]))
    # Density .5 keeps 1 and −2 of the first, 3 and −4 of the second; where both keep an entry they agree.
    merged = ties("w", base, models, {"weights": [1.0, 1.0], "density": 0.5}, 0)
    assert torch.allclose(merged - base, torch.tensor([[2.0, -2.0, 0.0, -4.0]]))
    right_angle = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])]
    half = slerp("w", torch.zeros(1, 2), right_angle, {"weights": [0.5]}, 0)
    assert torch.allclose(half, torch.full((1, 2), 0.5**0.5))
    assert nf4(torch.randn(4, 64)).unique(dim=1).shape[1] <= 64
    assert all(len(row.unique()) <= 16 for row in nf4(torch.randn(8, 64)))


@pytest.mark.study
@pytest.mark.timeout(7200)
def test_lineage_on_a_family_that_the_thresholds_were_not_set_on(tmp_path):
    """Two hundred models of GPT-2's architecture; twenty minutes."""
    ways = study(tmp_path, "gpt2", "full", seed=22)["ways"]
    answers = ways["with dates"]
    assert answers["continued"]["right"] >= 0.95
    assert answers["no parent to name"]["right"] >= 0.95
    assert answers["linear + task arithmetic"]["right"] >= 0.95
    assert answers["linear + task arithmetic"]["worst_weight"] <= 0.01
    assert answers["TIES"]["precision"] >= 0.9
    assert answers["all"]["right"] >= 0.9
    assert answers["all"]["right"] > ways["MoTHer given root and dates"]["all"]["right"]


@pytest.mark.study
@pytest.mark.timeout(3600)
def test_lineage_on_a_forest_of_adapters_that_the_rules_were_not_set_on(tmp_path):
    """A hundred models, most of them adapters trained and merged by PEFT; ten minutes."""
    answers = study(tmp_path, "bert", "adapters", seed=3)["ways"]["with dates"]
    assert answers["all"]["precision"] >= 0.95
    assert answers["no parent to name"]["right"] >= 0.95
    assert answers["linear"]["right"] == 1.0
    assert answers["linear"]["worst_weight"] <= 0.001
    assert answers["copies, bf16, fp16"]["right"] == 1.0
    assert answers["on a full fine-tune, by its file"]["right"] == 1.0
    assert answers["all"]["right"] >= 0.8


def test_a_forest_of_adapters_has_strangers_of_one_seed_and_the_same_plan_each_time():
    from studies.lineage.adapters import plan_adapters

    nodes = plan_adapters(DATA, seed=1)
    assert nodes == plan_adapters(DATA, seed=1)
    by_name = {node.name: node for node in nodes}
    fresh = [node for node in nodes if node.group == "fresh"]
    assert len({(node.seed, node.dataset) for node in fresh}) == 6
    for node in nodes:
        assert all(by_name[parent].created < node.created for parent in node.parents)
        if node.group == "stranger":
            assert any((node.seed, node.dataset) == (other.seed, other.dataset) for other in fresh)
    assert sum(node.kind not in ("full",) for node in nodes) >= 60
