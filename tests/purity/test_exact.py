"""p-values by exact counts and effects: against all orders of the labels, by loops, and a distribution known in advance."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from indexer.vectors.table import VectorTable
from query.questions.purity.labels import LabelledOrder, OwnPlaces
from query.questions.purity.study import purity
from query.shared.statistics.authors import AuthorRuns
from query.shared.statistics.neighbours import codes_of, leave_out, neighbour_order
from tests.purity.loops import Models, candidates_of, clusters, mean, naive


def two_clusters(each, authors=None):
    """Two data sets that lie apart, so that only the labels as they are, and exchanged, reach purity 1."""
    made = clusters(each, ["x"], ["a", "b"], noise=0.02)
    return Models(made.vectors, made.datasets, authors)


def excess(models, labels):
    rows = naive(candidates_of(Models(models.vectors, labels, models.authors)))
    return mean(row[3] - row[4] for row in rows)


@pytest.mark.parametrize("each", [2, 3, 5, 8])
def test_two_of_all_ways_to_choose_half_reach_a_perfect_score(each):
    found = purity(two_clusters(each))
    ways = math.comb(2 * each, each)
    assert (found.permutations, found.reached, found.is_exact) == (ways, 2, True)
    assert found.p_value == 2 / ways


def test_exact_p_and_effect_are_those_of_all_orders_of_the_labels():
    rng = np.random.default_rng(3)
    labels = ["a", "a", "b", "b", {"b", "c"}, "c"]
    models = Models(rng.standard_normal((6, 3)), labels)
    values = [float(excess(models, order)) for order in itertools.permutations(labels)]
    observed = float(excess(models, labels))
    found = purity(models)
    assert found.is_exact
    assert found.p_value == pytest.approx(np.mean(np.array(values) >= observed - 1e-9), abs=1e-12)
    assert found.effect == pytest.approx((observed - np.mean(values)) / np.std(values), abs=1e-6)
    assert 0.01 < found.p_value < 0.99


def test_a_small_p_of_random_permutations_is_near_the_exact_one(monkeypatch):
    """Seven of each: 2 of 3,432 arrangements reach 1."""
    models = two_clusters(7)
    exact = purity(models)
    assert (exact.is_exact, exact.p_value) == (True, 2 / 3432)
    monkeypatch.setattr(AuthorRuns, "outcomes", lambda *_: 1 << 60)
    drawn = purity(models)
    assert drawn.permutations > 1000
    assert (drawn.is_exact, drawn.reached >= 10) == (False, True)
    assert drawn.p_value == (1 + drawn.reached) / (1 + drawn.permutations)
    error = math.sqrt(2 / 3432 / drawn.permutations)
    assert drawn.p_value == pytest.approx(exact.p_value, abs=4 * error)
    assert drawn.effect == pytest.approx(exact.effect, rel=0.05)
    assert purity(models, draws=500).permutations == 500


def test_a_p_that_no_permutation_reaches_is_printed_as_a_bound():
    found = purity(two_clusters(12), draws=3000)
    assert (found.reached, found.p_value) == (0, 1 / 3001)
    assert found.table()["neighbours"][0]["p"] == "< 0.0003"


def test_more_are_drawn_only_while_hardly_any_reaches_it():
    rng = np.random.default_rng(5)
    chance = purity(Models(rng.standard_normal((40, 4)), rng.choice(list("abc"), 40).tolist()))
    assert (chance.permutations, chance.is_exact) == (1000, False)
    assert chance.p_value == (1 + chance.reached) / 1001
    assert abs(chance.effect) < 3.5


def test_every_arrangement_comes_once():
    """Against all that random permutations, which keep the rules, ever reach."""
    rng = np.random.default_rng(1)
    for _ in range(6):
        authors = rng.integers(0, 4, 7)
        runs = AuthorRuns(authors, rng.integers(0, 3, 7).tolist(), rng.integers(0, 2, 7))
        carried = np.array(runs.labels)
        every = [tuple(one.tolist()) for one in runs.every(carried)]
        drawn = Counter(map(tuple, runs.permuted(carried, rng, 4000).tolist()))
        assert len(every) == len(set(every)) == runs.outcomes(carried)
        assert set(every) == set(drawn)
        assert runs.ways % len(every) == 0
        # Each is as probable as any other.
        assert max(drawn.values()) < 4000 / len(every) + 6 * math.sqrt(4000 / len(every))


@pytest.mark.parametrize("k", [None, 2])
@pytest.mark.parametrize("several", [False, True])
def test_many_at_once_are_as_one_by_one(k, several):
    rng = np.random.default_rng(2)
    count = 24
    labels = [frozenset(rng.choice(list("abcd"), 1 + several * int(rng.integers(2))).tolist()) for _ in range(count)]
    authors = codes_of(rng.integers(0, 6, count).tolist())
    order = neighbour_order(VectorTable(rng.standard_normal((count, 5)).astype(np.float32)))
    leave_out(order, authors)
    trial = LabelledOrder(order, authors, labels, k)
    kinds = trial.sweeps.permuted(trial.sweep_kinds, rng, 30)
    one_by_one = [trial.excess(row) for row in kinds]
    assert trial.excesses(kinds) == pytest.approx(one_by_one, abs=1e-12)
    assert len(set(one_by_one)) > 5


def test_own_models_count_neither_for_nor_against():
    """The statistic of the plain p by loops, and p from all moves of the authors' labels."""
    rng = np.random.default_rng(4)
    sweeps = [("p", "a", 3), ("q", "b", 2), ("r", "a", 1), ("s", "a", 2), ("s", "b", 3), ("t", "b", 1), ("t", "a", 1)]
    rows = [(author, label, sweep) for sweep, (author, label, size) in enumerate(sweeps) for _ in range(size)]
    authors = [row[0] for row in rows]
    models = Models(rng.standard_normal((len(rows), 3)), [row[1] for row in rows], authors)
    likeness = models.vectors @ models.vectors.T

    def statistic(labels):
        values = []
        for one in range(len(rows)):
            near = sorted(
                (other for other in range(len(rows)) if other != one), key=lambda other: -likeness[one, other]
            )
            matches = [other for other in near if labels[other] == labels[one]]
            if matches:
                others = [other for other in near[: len(matches)] if authors[other] != authors[one]]
                theirs = [labels[other] == labels[one] for other in near if authors[other] != authors[one]]
                hits = sum(labels[other] == labels[one] for other in others)
                values.append((hits - len(others) * np.mean(theirs)) / len(matches))
        return np.mean(values)

    at_least, values = [], []
    for single in itertools.permutations("aba"):
        for own in itertools.product(itertools.permutations("ab"), repeat=2):
            of_sweep = [*single, *own[0], *own[1]]
            values.append(statistic([of_sweep[row[2]] for row in rows]))
    observed = statistic([row[1] for row in rows])
    at_least = np.array(values) >= observed - 1e-9
    found = purity(models)
    assert found.is_exact
    assert found.p_value == pytest.approx(at_least.mean(), abs=1e-12)
    assert found.effect == pytest.approx((observed - np.mean(values)) / np.std(values), abs=1e-6)
    assert 0.05 < found.p_value < 0.95


@pytest.mark.parametrize("k", [None, 3])
def test_without_own_models_many_at_once_are_as_one_by_one(k):
    rng = np.random.default_rng(3)
    labels = [frozenset(rng.choice(list("abcd"), 1 + int(rng.integers(2))).tolist()) for _ in range(40)]
    owners, kin = codes_of(rng.integers(0, 7, 40).tolist()), np.arange(40)
    order = neighbour_order(VectorTable(rng.standard_normal((40, 5)).astype(np.float32)))
    leave_out(order, kin)
    own = OwnPlaces(order, kin, owners)
    leave_out(order, owners)
    trial = LabelledOrder(order, owners, labels, k, own_places=own)
    kinds = trial.sweeps.permuted(trial.sweep_kinds, rng, 30)
    one_by_one = [trial.excess(row) for row in kinds]
    assert trial.excesses(kinds) == pytest.approx(one_by_one, abs=1e-12)
    assert all(trial.reaches(row, value) and not trial.reaches(row, value + 1e-6)
               for row, value in zip(kinds, one_by_one, strict=True))  # fmt: skip


def test_one_author_shows_nothing_however_pure():
    found = purity(clusters(4, ["solo"], ["a", "b", "c"]))
    assert (found.purity, found.p_value, found.effect) == (1.0, 1.0, None)
    assert found.note.startswith("No dataset has models by two authors")
    assert "remains open" in found.headline
