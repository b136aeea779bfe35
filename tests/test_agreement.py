"""Agreement against pairs counted in loops, definitions written out, and all permutations."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from query.questions.clusters import methods
from query.questions.clusters.agreement import compared, compared_across, p_value, silhouette_of
from query.questions.clusters.methods import shuffled_silhouettes, silhouettes
from query.shared.statistics.authors import AuthorRuns
from query.shared.statistics.neighbours import codes_of


def rng(seed=0):
    return np.random.default_rng(seed)


def table(rows):
    return {(row.measure, row.among): row for row in rows}


def measured(clusters, names, draws=1, seed=0):
    return table(compared("datasets", np.array(clusters, dtype=np.intp), names, draws, rng(seed)))


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# ---- the definitions, in loops ----


def loop_ari(left, right, allowed=lambda i, j: True):
    """Over the allowed pairs: (A - PQ/N) / ((P + Q)/2 - PQ/N)."""
    pairs = [(i, j) for i, j in itertools.combinations(range(len(left)), 2) if allowed(i, j)]
    together = [left[i] == left[j] for i, j in pairs]
    alike = [right[i] == right[j] for i, j in pairs]
    both = sum(t and a for t, a in zip(together, alike, strict=True))
    by_chance = sum(together) * sum(alike) / len(pairs)
    return (both - by_chance) / ((sum(together) + sum(alike)) / 2 - by_chance)


def entropy(codes):
    return -sum(n / len(codes) * math.log(n / len(codes)) for n in Counter(codes).values())


def information(left, right):
    return entropy(left) + entropy(right) - entropy(list(zip(left, right, strict=True)))


def conditional(of, given_):
    """H(of | given): the entropy left inside the groups of the other, weighted by their size."""
    inside = [[a for a, b in zip(of, given_, strict=True) if b == value] for value in set(given_)]
    return sum(len(group) / len(of) * entropy(group) for group in inside)


def loop_ami(left, right):
    """The expectation is that over all n! permutations."""
    expected = np.mean([information(left, order) for order in itertools.permutations(right)])
    return (information(left, right) - expected) / ((entropy(left) + entropy(right)) / 2 - expected)


def loop_silhouettes(points, groups):
    heights = []
    for i, own in enumerate(groups):
        distances = {}
        for j, other in enumerate(groups):
            if i != j:
                distances.setdefault(other, []).append(1 - math.fsum(points[i] * points[j]))
        if own not in distances:
            heights.append(0.0)
            continue
        a = np.mean(distances[own])
        b = min(np.mean(found) for group, found in distances.items() if group != own)
        heights.append((b - a) / max(a, b) if max(a, b) > 1e-12 else 0.0)
    return heights


def says_something(codes):
    return 1 < len(set(codes)) < len(codes)


# ---- the four measures ----


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 2), st.sampled_from("xyz")), min_size=3, max_size=6))
def test_the_measures_are_their_definitions(pairs):
    clusters, names = [c for c, _ in pairs], [name for _, name in pairs]
    rows = measured(clusters, names)
    for among in ("all", "clustered"):
        kept = [i for i, c in enumerate(clusters) if among == "all" or c >= 0]
        left = [clusters[i] if clusters[i] >= 0 else f"alone {i}" for i in kept]
        right = [names[i] for i in kept]
        assert rows["ari", among].models == len(kept)
        if not (says_something(left) and says_something(right)):
            assert rows["ari", among].value is None
            assert rows["ami", among].value is None
            assert rows["ami", among].chance is None
            continue
        assert rows["ari", among].value == pytest.approx(loop_ari(left, right), abs=1e-12)
        assert rows["ami", among].value == pytest.approx(loop_ami(left, right), abs=1e-9)
        if among == "clustered":
            assert rows["homogeneity", among].value == pytest.approx(1 - conditional(right, left) / entropy(right))
            assert rows["completeness", among].value == pytest.approx(1 - conditional(left, right) / entropy(left))


def test_the_measures_are_those_of_scikit_learn():
    draw = rng(3)
    clusters = draw.integers(-1, 9, size=400)
    names = [None if draw.random() < 0.2 else f"set{(c * (draw.random() < 0.6)) % 7}" for c in clusters]
    rows = measured(clusters, names)
    named = [i for i, name in enumerate(names) if name is not None]
    alone = [clusters[i] if clusters[i] >= 0 else 1000 + i for i in named]
    right = [names[i] for i in named]
    assert rows["ari", "all"].value == pytest.approx(metrics.adjusted_rand_score(right, alone), abs=1e-9)
    assert rows["ami", "all"].value == pytest.approx(metrics.adjusted_mutual_info_score(right, alone), abs=1e-9)
    placed = [i for i in named if clusters[i] >= 0]
    left, right = clusters[placed], [names[i] for i in placed]
    assert rows["ari", "clustered"].value == pytest.approx(metrics.adjusted_rand_score(right, left), abs=1e-9)
    assert rows["ami", "clustered"].value == pytest.approx(metrics.adjusted_mutual_info_score(right, left), abs=1e-9)
    assert rows["homogeneity", "clustered"].value == pytest.approx(metrics.homogeneity_score(right, left), abs=1e-9)
    assert rows["completeness", "clustered"].value == pytest.approx(metrics.completeness_score(right, left), abs=1e-9)
    assert rows["ari", "all"].models == len(named) > rows["ari", "clustered"].models == len(placed)


def test_leaving_models_out_is_not_rewarded():
    """Two perfect triples and six models of the same datasets that were not placed."""
    rows = measured([0, 0, 0, 1, 1, 1] + [-1] * 6, list("aaabbbaaabbb"))
    assert rows["ari", "clustered"].value == pytest.approx(1)
    assert rows["ami", "clustered"].value == pytest.approx(1)
    assert rows["ari", "all"].value == pytest.approx(loop_ari([0, 0, 0, 1, 1, 1, *range(2, 8)], list("aaabbbaaabbb")))
    assert rows["ari", "all"].value < 0.3


def test_chance_and_p_are_those_of_all_permutations():
    clusters, names = [0, 0, 0, 1, 1, 2, -1], list("xxyyzzx")
    exact = np.array([loop_ari([0, 0, 0, 1, 1, 2, 3], order) for order in itertools.permutations(names)])
    draws = 4000
    rows = measured(clusters, names, draws=draws)
    found = rows["ari", "all"]
    assert found.chance == pytest.approx(exact.mean(), abs=4 * exact.std() / math.sqrt(draws))
    true = (exact >= exact[0] - 1e-12).mean()
    assert found.p_value == pytest.approx(true, abs=4 * math.sqrt(true * (1 - true) / draws) + 1 / draws)
    assert found.against == "labels"


@pytest.mark.slow
def test_p_is_uniform_where_labels_mean_nothing():
    values = []
    for seed in range(200):
        draw = rng(seed)
        rows = measured(draw.integers(0, 4, size=40), [f"set{c}" for c in draw.integers(0, 4, size=40)], 99, seed)
        values.append(rows["ami", "all"].p_value)
    assert 0.01 <= np.mean(np.array(values) <= 0.05) <= 0.10
    assert 0.4 < np.mean(values) < 0.6


def test_p_counts_the_observed_order_itself():
    assert p_value(1.0, np.array([0.5, 1.0, 1.5, 0.0])) == 3 / 5
    assert p_value(2.0, np.zeros(999)) == 0.001
    assert p_value(0.3, np.array([0.1 + 0.2])) == 1.0  # the same sum in another order is not smaller


@pytest.mark.parametrize(
    ("clusters", "names"),
    [
        ([], []),
        ([0], ["a"]),
        ([-1, -1, -1], ["a", "a", "b"]),
        ([0, 0, 0], ["a", "a", "b"]),
        ([0, 0, 1], ["a", "a", "a"]),
        ([0, 0, 1], ["a", "b", "c"]),
        ([0, 0, 1], [None, None, None]),
    ],
)
def test_a_side_without_information_gives_no_number(clusters, names):
    for row in compared("datasets", np.array(clusters, dtype=np.intp), names, 5, rng()):
        assert (row.value, row.chance, row.p_value) == (None, None, None)


# ---- across authors ----


def across(clusters, names, groups, draws=1, seed=0):
    clusters = np.array(clusters, dtype=np.intp)
    return compared_across("datasets", "cross_author", clusters, names, groups, draws, rng(seed))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-1, 2), st.sampled_from(["x", "y", None]), st.sampled_from("abc")),
        min_size=2,
        max_size=12,
    )
)
def test_across_counts_only_pairs_of_different_authors(models):
    row, _ = across(*map(list, zip(*models, strict=True)))
    kept = [(c if c >= 0 else f"alone {i}", name, author) for i, (c, name, author) in enumerate(models) if name]
    left, right, authors = zip(*kept, strict=True) if kept else ((), (), ())
    assert row.models == len(kept)

    def differ(i, j):
        return authors[i] != authors[j]

    pairs = [pair for pair in itertools.combinations(range(len(kept)), 2) if differ(*pair)]
    if not any(right[i] == right[j] for i, j in pairs) or not says_something(left) or len(set(right)) == 1:
        assert row.value is None
    elif len({right[i] == right[j] for i, j in pairs}) == 1 == len({left[i] == left[j] for i, j in pairs}):
        assert row.value == 0  # every pair alike, or every pair together: no room to agree
    else:
        assert row.value == pytest.approx(loop_ari(left, right, differ), abs=1e-12)


def test_across_is_the_ari_where_everybody_uploads_once():
    draw = rng(1)
    clusters, names = draw.integers(0, 5, size=60), [f"set{c}" for c in draw.integers(0, 5, size=60)]
    row, _ = across(clusters, names, [f"author{i}" for i in range(60)])
    assert row.value == pytest.approx(metrics.adjusted_rand_score(names, clusters), abs=1e-12)
    assert row.against == "sweeps"


def test_a_sweep_of_one_author_makes_ari_and_not_cross_author():
    """Clusters are uploaders: each tuned a hundred times on a dataset of his own, and once on all the others."""
    authors = [f"author{a}" for a in range(4) for _ in range(103)]
    names = [f"set{a if run < 100 else (a + run) % 4}" for a in range(4) for run in range(103)]
    clusters = [int(author[-1]) for author in authors]
    assert measured(clusters, names, draws=99)["ari", "all"].value > 0.9
    row, _ = across(clusters, names, authors, draws=99)
    assert row.value == 0
    assert row.p_value == 1


def test_across_is_found_where_clusters_follow_the_data():
    authors = [f"author{i % 6}" for i in range(60)]
    names = [f"set{i // 15}" for i in range(60)]
    row, ways = across([i // 15 for i in range(60)], names, authors, draws=199)
    assert row.value == pytest.approx(1)
    assert row.p_value == 1 / 200
    assert ways > 1000


def test_across_chance_is_that_of_all_moves():
    """Three authors, two of them with two sweeps: (2! · 2!²) · 1 moves can all be tried."""
    sweeps = [("ann", "x", 3, 0), ("ann", "y", 1, 1), ("bob", "y", 2, 1), ("bob", "z", 2, 0), ("cyd", "z", 2, 0)]
    authors = [a for a, _, size, _ in sweeps for _ in range(size)]
    names = [n for _, n, size, _ in sweeps for _ in range(size)]
    clusters = [c for _, _, size, c in sweeps for _ in range(size)]
    clusters[1] = 2

    def value(labels):
        dealt = [n for n, (_, _, size, _) in zip(labels, sweeps, strict=True) for _ in range(size)]
        return loop_ari(clusters, dealt, lambda i, j: authors[i] != authors[j])

    exact = [
        value([*first, *second, "z"])
        for lists in itertools.permutations([("x", "y"), ("y", "z")])
        for first in itertools.permutations(lists[0])
        for second in itertools.permutations(lists[1])
    ]
    assert len(exact) == 8
    row, ways = across(clusters, names, authors, draws=4000)
    assert ways == 8
    assert row.value == pytest.approx(value(["x", "y", "y", "z", "z"]))
    assert row.chance == pytest.approx(np.mean(exact), abs=4 * np.std(exact) / math.sqrt(4000))
    true = np.mean(np.array(exact) >= row.value - 1e-12)
    assert row.p_value == pytest.approx(true, abs=4 * math.sqrt(true * (1 - true) / 4000) + 1 / 4000)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("xyz")), min_size=1, max_size=15), st.integers(0, 5))
def test_a_move_keeps_every_list_one_groups(models, seed):
    groups, labels = codes_of([g for g, _ in models]), [label for _, label in models]
    sweeps = AuthorRuns(groups, labels)
    carried = codes_of(labels)[sweeps.first]

    def lists(carried):
        return sorted(tuple(sorted(carried[own])) for own in sweeps.lists)

    assert lists(sweeps.permuted(carried, rng(seed))) == lists(carried)
    assert sweeps.sizes.sum() == len(models)
    for model, sweep in enumerate(sweeps.of_model):
        first = sweeps.first[sweep]
        assert (groups[first], labels[first]) == (groups[model], labels[model])


# ---- silhouettes ----


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=3, max_size=25), st.integers(0, 100))
def test_silhouettes_are_those_of_a_double_loop(groups, seed):
    groups = codes_of(groups)
    if groups.max() == 0:
        return
    points = unit(rng(seed).normal(size=(len(groups), 4)))
    points[::3] = points[0]  # equal vectors, in one group and in several
    assert silhouettes(points, groups) == pytest.approx(loop_silhouettes(points, groups), abs=1e-9)


def test_silhouettes_are_those_of_scikit_learn_whatever_the_block(monkeypatch):
    points, groups = unit(rng().normal(size=(150, 12))), codes_of(rng(1).integers(0, 9, size=150).tolist())
    expected = metrics.silhouette_samples(points, groups, metric="cosine")
    assert silhouettes(points, groups) == pytest.approx(expected, abs=1e-9)
    monkeypatch.setattr(methods, "_BLOCK", 70)
    assert silhouettes(points, groups) == pytest.approx(expected, abs=1e-9)


def test_equal_vectors_have_no_silhouette_whatever_the_rounding():
    points = unit(rng(2).normal(size=(1, 7)) + 1e-7 * rng(3).normal(size=(12, 7)))  # as float32 would have them
    assert silhouettes(points, codes_of(list("aaabbbbccccc"))).tolist() == [0.0] * 12


@pytest.mark.slow
def test_shuffled_silhouettes_are_those_of_all_permutations():
    points, groups = unit(rng(4).normal(size=(7, 3))), codes_of(list("aabbbcc"))
    exact = np.array([np.mean(loop_silhouettes(points, order)) for order in itertools.permutations(groups)])
    found = silhouette_of("datasets", points, list("aabbbcc"), 4000, rng())
    assert found.value == pytest.approx(exact[0])
    assert found.chance == pytest.approx(exact.mean(), abs=4 * exact.std() / math.sqrt(4000))
    true = (exact >= exact[0] - 1e-12).mean()
    assert found.p_value == pytest.approx(true, abs=4 * math.sqrt(true * (1 - true) / 4000) + 1 / 4000)


def test_many_models_are_judged_by_a_sample_against_all(monkeypatch):
    points, groups = unit(rng(5).normal(size=(60, 3))), codes_of(rng(6).integers(0, 3, size=60).tolist())
    monkeypatch.setattr(methods, "_WORK", 60 * 9)
    values = list(shuffled_silhouettes(points, groups, 200, rng(7)))
    scored = np.sort(rng(7).permutation(60)[:9])
    assert values[0] == pytest.approx(np.mean(np.array(loop_silhouettes(points, groups))[scored]))
    monkeypatch.setattr(methods, "_WORK", 10**9)
    everyone = list(shuffled_silhouettes(points, groups, 200, rng(7)))
    assert np.mean(values[1:]) == pytest.approx(np.mean(everyone[1:]), abs=0.05)


def test_a_group_of_one_takes_no_part_in_the_silhouette_of_labels():
    points = unit(rng(8).normal(size=(9, 3)))
    names = ["a", "a", "a", "b", "b", "alone", None, None, "single"]
    found = silhouette_of("datasets", points, names, 3, rng())
    assert found.models == 5
    assert found.value == pytest.approx(np.mean(loop_silhouettes(points[:5], list("aaabb"))))


def test_clusters_were_drawn_around_the_vectors_so_permuting_is_not_a_test_of_them():
    points = unit(rng(9).normal(size=(12, 3)))
    found = silhouette_of("clusters", points, [0] * 6 + [1] * 6, 9, rng())
    assert found.p_value is None
    assert found.chance is not None


@pytest.mark.parametrize("names", [[], [None, None], ["a", "a", "b"], ["a", "a", None], ["a", "b", "c"]])
def test_fewer_than_two_groups_have_no_silhouette(names):
    found = silhouette_of("datasets", unit(rng().normal(size=(len(names), 3))), names, 3, rng())
    assert (found.value, found.chance, found.p_value) == (None, None, None)
