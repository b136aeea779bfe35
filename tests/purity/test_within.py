"""Labels exchanged within strata: habits that go with the data explain purity, or do not."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from indexer.errors import BadArgument
from query import Atlas
from query.questions.purity.study import habits_with_labels, purity
from query.shared.statistics.authors import AuthorRuns
from tests.purity.loops import Models, candidates_of, clusters, mean, naive

HEADS, EACH = ("three labels", "one number"), 8


def population(by: str, seed: int = 0) -> Models:
    """Two heads, two data sets for each; vectors lie together by ``by``: head or data."""
    rng = np.random.default_rng(seed)
    rows = [(head, data) for head in range(2) for data in range(2) for _ in range(EACH)]
    centres = np.eye(4)[[2 * head + (data if by == "data" else 0) for head, data in rows]]
    vectors = centres + 0.35 * rng.normal(size=(len(rows), 4))
    authors = [f"author{number % 5}" for number in range(len(rows))]
    return Models(vectors, [f"set {head}{data}" for head, data in rows], authors=authors)


HEAD_OF = [HEADS[head] for head in range(2) for _ in range(2 * EACH)]


@pytest.mark.parametrize("by", ["head", "data"])
def test_habits_that_go_with_the_data(by):
    found = purity(population(by), draws=400, within={"head": HEAD_OF})
    assert found.p_value < 0.01  # in either case, if labels are exchanged freely
    for score in (found, found.cross_author):
        (one,) = score.within
        assert (one.within, one.strata, one.movable) == ("head", 2, 4 * EACH)
        assert one.chance > 1.5 * score.chance
        assert (one.p_value < 0.01) == (by == "data")
    assert "If only sweeps of the same head exchange labels, chance is" in found.headline
    assert found.to_dict()["within"][0]["within"] == "head"
    assert [row["among"] for row in found.table()["neighbours"]][2:] == [
        "all, labels exchanged within head", "by other authors, labels exchanged within head"
    ]  # fmt: skip


def test_nothing_else_changes():
    plain, asked = (purity(population("head"), draws=50, within=given) for given in ({}, {"head": HEAD_OF}))
    assert plain.to_dict() == {name: value for name, value in plain.to_dict().items() if name != "within"}
    assert (plain.purity, plain.p_value, plain.chance) == (asked.purity, asked.p_value, asked.chance)
    assert "within" not in plain.to_dict()


def test_chance_against_every_permutation():
    """Six models in two strata: the mean over all permutations within strata, by loops."""
    rng = np.random.default_rng(3)
    m = Models(rng.normal(size=(6, 3)), ["a", "a", "b", "b", "c", "a"])
    strata = [0, 0, 0, 1, 1, 1]
    every = []
    for first in itertools.permutations(range(3)):
        for second in itertools.permutations(range(3, 6)):
            labels = [m.datasets[place] for place in (*first, *second)]
            moved = Models(m.vectors, labels)
            every.append(mean(row[3] for row in naive(candidates_of(moved))))
    observed = mean(row[3] for row in naive(candidates_of(m)))
    (one,) = purity(m, draws=3000, within={"group": strata}).within
    assert one.chance == pytest.approx(float(mean(every)), abs=0.05)
    exact = sum(value >= observed for value in every) / len(every)
    assert one.p_value == pytest.approx(exact, abs=0.04)


def test_one_data_set_a_stratum():
    found = purity(population("data"), within={"set": [next(iter(one)) for one in population("data").datasets]})
    assert found.within[0].chance is found.within[0].p_value is None
    assert "no label can be exchanged" in found.headline


def test_a_habit_that_goes_with_the_labels_is_noted():
    rng = np.random.default_rng(0)
    labels = [[name] for name in "abcd" for _ in range(6)] + [["alone"]]
    models = Models(rng.standard_normal((25, 4)), labels)
    own = [*("wxyz"[row // 6] for row in range(24)), "w"]
    apart = [f"{value}{row}" if row % 8 == 0 else value for row, value in enumerate(own)]
    habits = {"own": own, "apart": apart, "random": rng.permutation(own).tolist(), "one": [1] * 25, "each": range(25)}
    notes = habits_with_labels(models, habits)
    assert [note.split(":")[0] for note in notes] == [
        "Labels and own are confounded",
        "Labels and apart are confounded",
    ]
    assert "only 0 of 24 models share the own with a model of another label (24 expected)" in notes[0]
    assert habits_with_labels(Models(np.zeros((0, 3)), []), {"own": []}) == ()
    found = purity(clusters(2, list("xyz"), list("abc")))
    assert "But a habit" not in found.headline
    noted = replace(found, on_habits=tuple(notes))
    assert "But a habit is confounded with the labels" in noted.headline
    assert set(notes) <= set(noted.notes)


def test_permutations_stay_within_strata():
    rng = np.random.default_rng(1)
    authors = rng.integers(0, 6, 60)
    labels, strata = rng.integers(0, 5, 60).tolist(), rng.integers(0, 3, 60)
    runs = AuthorRuns(authors, labels, strata)
    carried = np.array(runs.labels)
    seen = [runs.permuted(carried, rng) for _ in range(200)]
    for moved in seen:
        for stratum in range(3):
            mine = runs.stratum == stratum
            assert Counter(moved[mine].tolist()) == Counter(carried[mine].tolist())
    assert len({tuple(moved) for moved in seen}) <= runs.ways
    can = {int(run) for run in np.flatnonzero((np.array(seen) != carried).any(axis=0))}
    assert can <= set(runs.of_model[runs.movable(carried)].tolist())


def test_in_an_atlas(made):
    with Atlas(made) as atlas:
        names = ["author", "head", "language", "length", "norm", "seed"]
        found = atlas.purity(within=[*names, "head"], draws=50)
        assert [one.within for one in found.within] == names
        assert found.within[1].strata == 1  # all have one head, so this is the free permutation
        with pytest.raises(BadArgument, match="Labels cannot be exchanged within 'weather'"):
            atlas.purity(within=["weather"])
