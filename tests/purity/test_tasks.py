"""Agreement by task: what a task is, and whether models of one task are closer than their data make them."""

from __future__ import annotations

import itertools
import json
from functools import partialmethod

import numpy as np
import pytest
from click.testing import CliRunner

from query import Atlas
from query.faces.cli import main
from query.models.population import head_of
from query.questions.clusters.agreement import compared_across
from tests.atlas_builder import Model, write_atlas
from tests.purity.loops import Models, candidates_of, mean, naive

pytestmark = pytest.mark.slow

HEADS = (("RobertaForSequenceClassification", 4), ("RobertaForTokenClassification", 4))
DATASETS, AUTHORS = 4, 6


@pytest.mark.parametrize(
    ("head", "pipeline_tag", "task"),
    [
        (("BertForSequenceClassification", 3, ["b", "C-x", "a"], None), None, "SequenceClassification: a, b, cx"),
        (("XForSequenceClassification", 3, ["A", "b", "cx"], None), "fill-mask", "SequenceClassification: a, b, cx"),
        (("BertForSequenceClassification", None, None, None), None, "SequenceClassification, 2 labels"),
        (("BertForTokenClassification", 2, ["LABEL_0", "LABEL_1"], None), None, "TokenClassification, 2 labels"),
        (
            ("BertForSequenceClassification", 1, None, "regression"),
            None,
            "SequenceClassification regression, 1 labels",
        ),
        (("RobertaForMaskedLM", None, None, None), None, "fill-mask"),
        (("GPT2LMHeadModel", None, None, None), "text-generation", "text-generation"),
        (("OddForSomething", None, None, None), None, "Something"),
        ((None, None, None, None), "fill-mask", "fill-mask"),  # an adapter
        ((None, None, None, None), "text-classification", None),  # its labels are not known
        ((None, None, None, None), None, None),
    ],
)
def test_what_a_task_is(head, pipeline_tag, task):
    assert head_of(*head).task(pipeline_tag) == task


def test_long_label_sets_differ():
    tasks = [head_of("BForTokenClassification", 40, [f"kind{n + one}" for n in range(40)], None) for one in (0, 1)]
    one, other = (task.task(None) for task in tasks)
    assert one != other
    assert max(len(one), len(other)) < 80


def models(by_task: float, seed: int = 0) -> list[Model]:
    """Models around one direction for each data set and (``by_task``) another for each task; each author has all."""
    rng = np.random.default_rng(seed)
    of_data, of_task = rng.normal(size=(DATASETS, 40)), rng.normal(size=(2, 40))
    return [
        Model(
            f"a{author}/d{data}-t{task}", of_data[data] + by_task * of_task[task] + 0.4 * rng.normal(size=40),
            (f"d{data}",), head=HEADS[task],
        )
        for data, task, author in itertools.product(range(DATASETS), range(2), range(AUTHORS))
    ]  # fmt: skip


@pytest.mark.parametrize("by_task", [0.0, 1.0])
def test_tasks_beyond_the_data(tmp_path, by_task):
    written = models(by_task)
    with Atlas(write_atlas(tmp_path, written)) as atlas:
        found = atlas.purity(by="task", draws=200)
        clusters = atlas.clusters(by="task", draws=200, method="kmeans", count=2 * DATASETS)
    # The same by loops, with tasks in place of data sets.
    tasks = [f"{one.head[0]}".removeprefix("RobertaFor") + ", 4 labels" for one in written]
    as_told = Models(np.array([one.vector for one in written]), tasks, [one.owner for one in written])
    for score, cross in ((found, False), (found.cross_author, True)):
        rows = naive(candidates_of(as_told), cross=cross)
        assert score.purity == pytest.approx(float(mean(row[3] for row in rows)))
        assert score.chance == pytest.approx(float(mean(row[4] for row in rows)))
        (within,) = score.within
        assert (within.within, within.strata, within.movable) == ("dataset", DATASETS, len(written))
        assert (within.p_value < 0.01) == bool(by_task)
    row = next(row for row in clusters.agreement if row.among == "within_dataset")
    assert (row.p_value < 0.01) == bool(by_task)
    assert {row.labels for row in clusters.agreement} == {"datasets", "authors", "clusters", "tasks"}


def test_where_tasks_go_with_the_data_nothing_is_said(tmp_path):
    written = [one for one in models(1.0) if int(one.datasets[0][1]) % 2 == HEADS.index(one.head)]
    with Atlas(write_atlas(tmp_path, written)) as atlas:
        found = atlas.purity(by="task")
        clusters = atlas.clusters(by="task", draws=50, method="kmeans", count=DATASETS)
    assert found.p_value < 0.05
    assert found.within[0].chance is None
    assert "Within dataset no label can be exchanged" in found.headline
    assert next(row.value for row in clusters.agreement if row.among == "within_dataset") is None


def test_pairs_within_datasets_against_loops():
    rng = np.random.default_rng(4)
    clusters, tasks, data = (rng.integers(low, 3, 24) for low in (-1, 0, 0))
    names, groups = [f"t{one}" for one in tasks], [f"d{one}" for one in data]
    row, ways = compared_across(
        "tasks", "within_dataset", clusters, names, groups, 20, rng, [str(n) for n in range(24)]
    )
    alone = [one if one >= 0 else -1 - place for place, one in enumerate(clusters)]
    pairs = [(i, j) for i, j in itertools.combinations(range(24), 2) if data[i] == data[j]]
    together = [alone[i] == alone[j] for i, j in pairs]
    alike = [tasks[i] == tasks[j] for i, j in pairs]
    both = sum(a and b for a, b in zip(together, alike, strict=True))
    by_chance = sum(together) * sum(alike) / len(pairs)
    assert row.value == pytest.approx((both - by_chance) / ((sum(together) + sum(alike)) / 2 - by_chance))
    assert ways > 1e6


def test_what_is_printed(tmp_path, monkeypatch):
    for name in ("purity", "clusters"):  # their numbers are not what is asked here
        monkeypatch.setattr(Atlas, name, partialmethod(getattr(Atlas, name), draws=50))
    written = [*models(1.0), Model("a9/adapter", np.ones(40), ("d0",), relation="adapter")]
    folder = write_atlas(tmp_path, written)

    def asked(*words):
        ran = CliRunner().invoke(main, [*words, "--atlas", str(folder)])
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    as_json = json.loads(asked("purity", "--by", "task", "--json"))
    assert {"by", "by_task", "purity_by_task_mean", "tasks", "within"} <= set(as_json)
    assert not [key for key in (*as_json, *as_json["cross_author"]) if "dataset" in key]
    assert as_json["tasks"] == 2
    assert {row["task"] for row in as_json["by_task"]} == {
        "SequenceClassification, 4 labels", "TokenClassification, 4 labels"
    }  # fmt: skip
    assert as_json["candidates"] == len(written) - 1  # the adapter's task is not known
    assert "have the task that it has" in asked("purity", "--by", "task")
    assert asked("purity", "--by", "task", "--format", "csv").splitlines()[1].startswith("all,")
    found = json.loads(asked("clusters", "--by", "task", "--json"))
    assert sum(row["models"] for row in found["tasks"]) == len(written) - 1
    assert "Clusters and tasks agree" in asked("clusters", "--by", "task")
    assert "task" in asked("clusters", "--by", "task", "--format", "csv").splitlines()[0]
