"""Purity against the design's definition in plain loops, and against closed cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.vectors.table import VectorTable
from query.questions.purity.labels import LabelledOrder
from query.questions.purity.study import purity
from query.shared.statistics.neighbours import leave_out, neighbour_order
from tests.purity.loops import Models, check_against_naive, clusters


@st.composite
def populations(draw):
    n = draw(st.integers(0, 14))
    # Few distinct directions: many equal similarities, and equal vectors.
    vectors = [draw(st.tuples(*[st.integers(-1, 1)] * 3).filter(any)) for _ in range(n)]
    group = [draw(st.sampled_from([None, None, 1, 2])) for _ in range(n)]
    order = draw(st.permutations(range(n)))
    first = {}
    for i in order:
        first.setdefault(group[i], i)
    flags = [draw(st.booleans()) and draw(st.booleans()) and group[i] is None for i in range(n)]
    return Models(
        vectors=np.array(vectors, dtype=float).reshape(n, 3),
        datasets=[draw(st.frozensets(st.sampled_from("abcd"), max_size=3)) for _ in range(n)],
        authors=[draw(st.sampled_from(["x", "y", "z", ""])) for _ in range(n)],
        ids=draw(st.permutations([3 * i + 1 for i in range(n)])),
        is_copy=[f and draw(st.booleans()) for f in flags],
        is_unrelated=flags,
        group=group,
        representative=[group[i] is None or first[group[i]] == i for i in range(n)],
    )


@settings(max_examples=250, deadline=None)
@given(populations(), st.sampled_from([None, None, 1, 2, 5, 40]))
@pytest.mark.slow
def test_like_a_double_loop(m, k):
    check_against_naive(m, k)


@pytest.mark.slow
@pytest.mark.parametrize("k", [None, 7, 150])
@pytest.mark.parametrize("most_labels", [1, 3])
def test_like_a_double_loop_on_larger_populations(k, most_labels):
    """Both ways of counting (one label each or several, from the head of the list and from its tail)."""
    rng = np.random.default_rng(most_labels)
    n = 130
    weights = np.array([60, 20, 10, 5, 3, 2]) / 100
    datasets = [
        set(rng.choice(list("abcdef"), size=rng.integers(1, most_labels + 1), replace=False, p=weights))
        for _ in range(n)
    ]
    centres = rng.standard_normal((6, 12))
    vectors = [centres["abcdef".index(min(d))] + 1.5 * rng.standard_normal(12) for d in datasets]
    authors = [f"a{min(int(rng.exponential(4)), 15)}" for _ in range(n)]
    check_against_naive(Models(vectors, datasets, authors, ids=rng.permutation(n).tolist()), k)


def test_large_kinds_with_several_labels():
    """The third way of counting: one look-up a neighbour, a turn for every kind."""
    rng = np.random.default_rng(4)
    datasets = [{"a", "b"}] * 100 + [{"a"}] * 40 + [{"c"}] * 100
    authors = [f"a{i % 40}" for i in range(240)]
    check_against_naive(Models(rng.standard_normal((240, 4)), datasets, authors))


def test_blocks_do_not_show(monkeypatch):
    """Blocks of three rows, and panels of eight, give what one gives; with blocks of vectors that are zero too."""
    import query.questions.purity.study
    import query.shared.statistics.neighbours

    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((41, 6))
    vectors[:9, :2] = 0
    authors = [f"a{row % 7}" for row in range(41)]
    m = Models(vectors, rng.choice(list("abc"), 41).tolist(), authors, blocks=3)
    whole = purity(m, draws=5)
    monkeypatch.setattr(query.shared.statistics.neighbours, "_BLOCK", 3 * 41)
    monkeypatch.setattr(query.shared.statistics.neighbours, "_PANEL", 8 * 6)
    monkeypatch.setattr(query.questions.purity.study, "_BLOCK", 50)
    assert purity(m, draws=5) == whole
    check_against_naive(Models(vectors, m.datasets, authors), None)


@pytest.mark.parametrize("signal", [0.0, 0.4, 3.0])
@pytest.mark.parametrize("most_labels", [1, 2])
def test_a_draw_that_cannot_reach_is_given_up_rightly(signal, most_labels):
    """Whether a permutation reaches a value is what counting all neighbours says, whatever the value."""
    rng = np.random.default_rng(most_labels)
    datasets = [frozenset(rng.choice(list("abcd"), most_labels, replace=False)) for _ in range(90)]
    places = rng.standard_normal((4, 8))
    vectors = np.array([signal * places["abcd".index(min(d))] for d in datasets]) + rng.standard_normal((90, 8))
    groups = np.arange(90) // 3
    order = neighbour_order(VectorTable(vectors.astype(np.float32)))
    leave_out(order, groups)
    trial = LabelledOrder(order, groups, datasets, None)
    for _ in range(20):
        kinds = trial.sweeps.permuted(trial.sweep_kinds, rng)
        _, _, found, chance = trial.evaluate(kinds)
        reached = float((found - chance).mean())
        for least in (reached, reached + 1e-6, reached - 1e-6, -1.0, 0.0, 0.3):
            assert trial.reaches(kinds, least) == (reached >= least)


def test_equal_vectors_tie_by_id_whatever_their_place():
    """Sums in another order must not decide between equal vectors: the lower id comes first, always."""
    rng = np.random.default_rng(6)
    d = 4103  # long, and no multiple of anything
    one, other = rng.standard_normal((2, d))
    n = 200
    query = one + other
    vectors = [query] + [one] * n
    ids = [0, *(rng.permutation(n) + 1).tolist()]
    # The model with id 0 is on "a"; so are the five lowest of the other ids: all matches come first.
    datasets = ["a"] + ["a" if i <= 5 else "b" for i in ids[1:]]
    result = purity(Models(vectors, datasets, ids=ids), draws=1)
    assert result.by_model[0].purity == 1.0
    # And the five highest: no match comes first.
    datasets = ["a"] + ["a" if i > n - 5 else "b" for i in ids[1:]]
    assert purity(Models(vectors, datasets, ids=ids), draws=1).by_model[0].purity == 0.0


def test_equal_in_theory_is_equal():
    """Around zero too, where the noise of a sum is large compared with the sum."""
    rng = np.random.default_rng(7)
    d = 512
    one, other = rng.standard_normal((2, d))
    # Each of these is the same sum as the next, term by term, in an order of its own; about half are negative.
    shuffles = [rng.permutation(d) for _ in range(40)]
    query = np.concatenate([np.sign(one), -np.sign(one)]) / math.sqrt(2 * d)
    half = np.abs(other) / np.linalg.norm(other) / math.sqrt(2)
    vectors = [query] + [np.concatenate([half[s], half[s]]) * 1.0 for s in shuffles]
    vectors = np.array(vectors)
    assert len({float(v.astype(np.float32) @ query.astype(np.float32)) for v in vectors[1:]}) > 1
    ids = [0, *(rng.permutation(40) + 1).tolist()]
    datasets = ["a"] + ["a" if i <= 5 else "b" for i in ids[1:]]
    assert purity(Models(vectors, datasets, ids=ids), draws=1).by_model[0].purity == 1.0


# ---- the seed's definition, and closed cases ----


def test_the_seed_definition():
    """One dataset each: k models on the dataset, the k - 1 closest, the share of them on it."""
    rng = np.random.default_rng(0)
    labels = rng.choice(["mnli", "sst2", "squad"], 40).tolist()
    vectors = rng.standard_normal((40, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    shares = []
    for f in range(40):
        k = labels.count(labels[f])
        closest = np.argsort(np.linalg.norm(vectors - vectors[f], axis=1))[1:k]
        shares.append(np.mean([labels[j] == labels[f] for j in closest]))
    assert purity(Models(vectors, labels), draws=1).purity == pytest.approx(np.mean(shares), abs=1e-12)


def test_perfect_clusters():
    result = purity(clusters(2, ["x", "y", "z"], ["a", "b", "c", "d"]))
    assert result.purity == result.cross_author.purity == result.purity_by_dataset_mean == 1.0
    assert (result.ci_low, result.ci_high) == (None, None)  # three authors
    assert purity(clusters(2, list("vwxyz"), ["a", "b", "c", "d"]), draws=1).ci_low < 1.0 == result.purity
    assert result.chance == pytest.approx(5 / 23)
    assert result.cross_author.chance == pytest.approx(4 / 16)
    # Purity is 1 whenever all three authors have one order of the four labels.
    for score in (result, result.cross_author):
        assert (score.is_exact, score.p_value) == (True, 24 / 24**3)
    assert (result.models, result.candidates, result.datasets) == (24, 24, 4)
    assert [row.models for row in result.by_dataset] == [6, 6, 6, 6]


@pytest.mark.slow
def test_one_authors_sweep_shows_in_purity_and_in_no_p():
    """Each author has a place of their own and one dataset: purity sees the author, and neither p does."""
    plain, cross, above = [], [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        places = rng.standard_normal((12, 8))
        vectors, datasets, authors = [], [], []
        for author in range(12):
            for _ in range(int(rng.integers(1, 6))):
                vectors.append(places[author] + 0.05 * rng.standard_normal(8))
                datasets.append("abc"[author % 3])
                authors.append(f"a{author}")
        result = purity(Models(vectors, datasets, authors), draws=99, seed=seed)
        plain.append(result.p_value)
        cross.append(result.cross_author.p_value)
        above.append(result.purity - result.chance)
    assert np.mean(above) > 0.1
    for found in (plain, cross):
        assert 0.35 < np.mean(found) < 0.65
        assert np.mean(np.array(found) <= 0.1) <= 0.22


@pytest.mark.slow
def test_sweeps_of_one_author_are_not_independent():
    """Several datasets to an author, each sweep in a place of its own: still nothing across authors."""
    cross = []
    for seed in range(60):
        rng = np.random.default_rng(1000 + seed)
        vectors, datasets, authors = [], [], []
        for author in range(5):
            for dataset in rng.choice(list("abcde"), 3, replace=False):
                place = rng.standard_normal(8)
                for _ in range(int(rng.integers(2, 6))):
                    vectors.append(place + 0.05 * rng.standard_normal(8))
                    datasets.append(str(dataset))
                    authors.append(f"a{author}")
        cross.append(purity(Models(vectors, datasets, authors), draws=99, seed=seed).cross_author.p_value)
    assert 0.35 < np.mean(cross) < 0.65
    assert np.mean(np.array(cross) <= 0.1) <= 0.22


@pytest.mark.slow
def test_labels_without_meaning_give_chance_and_uniform_p():
    found = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        labels = rng.choice(list("abc"), 18, p=[0.5, 0.3, 0.2]).tolist()
        m = Models(rng.standard_normal((18, 6)), labels)
        found.append(purity(m, draws=49, seed=seed))
    assert np.mean([r.purity - r.chance for r in found]) == pytest.approx(0, abs=0.02)
    p = np.array([r.p_value for r in found])
    assert 0.42 < p.mean() < 0.58
    for share in (0.1, 0.25, 0.5, 0.75):
        assert np.mean(p <= share) == pytest.approx(share, abs=0.1)


def test_groups_within_groups_are_left_out_one_after_the_other():
    """Family trees of different sizes, then the authors who have whole trees."""
    vectors = np.random.default_rng(7).standard_normal((11, 4)).astype(np.float32)
    order = neighbour_order(VectorTable(vectors))
    whole = order.tolist()
    trees, authors = np.array([0, 0, 1, 2, 3, 3, 3, 3, 4, 5, 5]), np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 3])
    for groups in (trees, authors):
        leave_out(order, groups)
        for row, expected in enumerate(whole):
            others = [other for other in expected if groups[other] != groups[row]]
            assert order[row].tolist() == others + [11] * (11 - len(others))
    models = Models(vectors, list("ababababbab"), [f"a{author}" for author in authors])
    assert purity(models, trees=trees, draws=9).cross_author.models == 11
