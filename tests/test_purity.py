"""Purity against a double loop written from the design, against all permutations, and at its edges."""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import sys
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from query.purity import purity


@dataclass
class Models:
    """A population as the atlas hands it over; columns that a test does not care for get plain values."""

    vectors: np.ndarray
    datasets: list
    authors: list | None = None
    ids: list | None = None
    is_copy: list | None = None
    is_unrelated: list | None = None
    group: list | None = None
    representative: list | None = None
    models: list | None = None
    base: str = "roberta-base"
    representation: str = field(default="input")

    def __post_init__(self):
        n = len(self.datasets)
        vectors = np.asarray(self.vectors, dtype=np.float64).reshape(n, -1 if n else 3)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        self.vectors = (vectors / np.where(norms == 0, 1, norms)).astype(np.float32)
        self.datasets = [frozenset({d} if isinstance(d, str) else d) for d in self.datasets]
        self.ids = self.ids if self.ids is not None else list(range(1, n + 1))
        self.authors = self.authors or [f"author{i}" for i in range(n)]
        self.models = self.models or [f"{a}/model{i}" for a, i in zip(self.authors, self.ids, strict=True)]
        self.is_copy = self.is_copy or [False] * n
        self.is_unrelated = self.is_unrelated or [False] * n
        self.group = self.group or [None] * n
        self.representative = self.representative or [True] * n


# ---- the design, word by word, in loops ----


def candidates_of(m: Models):
    """(id, vector, author, datasets), one per duplicate group, the group's datasets united."""
    usable = [i for i in range(len(m.ids)) if not m.is_copy[i] and not m.is_unrelated[i]]
    found = []
    for i in usable:
        datasets = set(m.datasets[i])
        if m.group[i] is not None:
            if not m.representative[i]:
                continue
            for j in usable:
                if m.group[j] == m.group[i]:
                    datasets |= m.datasets[j]
        if datasets:
            found.append((m.ids[i], m.vectors[i], m.authors[i], frozenset(datasets)))
    return found


def similarity(a, b):
    """The exact inner product to nine places: equal where it is equal in theory."""
    return round(math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True)), 9)


def naive(found, k=None, cross=False, only=None):
    """Per scored model: (id, author, neighbours, purity, chance), exact fractions."""
    rows = []
    for f in found:
        if only is not None and only not in f[3]:
            continue
        pool = [g for g in found if g[0] != f[0] and not (cross and g[2] == f[2])]
        labels = {only} if only is not None else f[3]
        matching = [g for g in pool if g[3] & labels]
        if not matching:
            continue
        nearest = sorted(pool, key=lambda g: (-similarity(f[1], g[1]), g[0]))
        nearest = nearest[: len(matching) if k is None else k]
        hits = sum(1 for g in nearest if g[3] & labels)
        rows.append((f[0], f[2], len(nearest), Fraction(hits, len(nearest)), Fraction(len(matching), len(pool))))
    return rows


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None


def same(got, expected):
    if expected is None:
        assert got is None
    else:
        assert got == pytest.approx(float(expected), abs=1e-12)


def check_against_naive(m: Models, k=None):
    result = purity(m, k=k, draws=3)
    found = candidates_of(m)
    for score, cross in ((result, False), (result.cross_author, True)):
        rows = naive(found, k, cross)
        assert score.models == len(rows)
        assert score.candidates == len(found)
        same(score.purity, mean(r[3] for r in rows))
        same(score.chance, mean(r[4] for r in rows))
        names = sorted({d for f in found for d in f[3]})
        each = {d: naive(found, k, cross, only=d) for d in names}
        each = {d: rows for d, rows in each.items() if rows}
        assert {r.dataset for r in score.by_dataset} == set(each)
        assert score.datasets == len(each)
        for row in score.by_dataset:
            assert row.models == len(each[row.dataset])
            same(row.purity, mean(r[3] for r in each[row.dataset]))
            same(row.chance, mean(r[4] for r in each[row.dataset]))
        same(score.purity_by_dataset_mean, mean(mean(r[3] for r in rows) for rows in each.values()))
        if not rows:
            assert score.note
            assert (score.ci_low, score.ci_high, score.p_value) == (None, None, None)
        names_of = dict(zip(m.ids, m.models, strict=True))
        assert [r.model for r in score.by_model] == [names_of[r[0]] for r in sorted(rows)]
        for got, expected in zip(score.by_model, sorted(rows), strict=True):
            assert got.neighbours == expected[2]
            same(got.purity, expected[3])
            same(got.chance, expected[4])
    return result


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
def test_like_a_double_loop(m, k):
    check_against_naive(m, k)


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
    """Blocks of three rows give what one block gives."""
    import query.trials.nearest

    rng = np.random.default_rng(5)
    m = Models(rng.standard_normal((41, 6)), rng.choice(list("abc"), 41).tolist())
    whole = purity(m, draws=5)
    monkeypatch.setattr(query.trials.nearest, "_BLOCK", 3 * 41)
    assert purity(m, draws=5) == whole


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
    """Around zero too, where the noise of a sum is large beside the sum itself."""
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


def clusters(per_author, authors, datasets, noise=0.01, seed=0, dim=16):
    """Every author tunes ``per_author`` models on every dataset; vectors lie by dataset."""
    rng = np.random.default_rng(seed)
    centres = np.eye(dim)[: len(datasets)]
    rows = [(d, a) for d in range(len(datasets)) for a in authors for _ in range(per_author)]
    vectors = [centres[d] + noise * rng.standard_normal(dim) for d, _ in rows]
    return Models(vectors, [datasets[d] for d, _ in rows], [a for _, a in rows])


def test_perfect_clusters():
    result = purity(clusters(2, ["x", "y", "z"], ["a", "b", "c", "d"]))
    assert result.purity == result.cross_author.purity == result.purity_by_dataset_mean == 1.0
    assert (result.ci_low, result.ci_high) == (1.0, 1.0)
    assert result.chance == pytest.approx(5 / 23)
    assert result.cross_author.chance == pytest.approx(4 / 16)
    assert result.p_value == 1 / 1001
    assert result.cross_author.p_value < 0.02  # a few of 1,001 draws deal every author the same order again
    assert (result.models, result.candidates, result.datasets) == (24, 24, 4)
    assert [row.models for row in result.by_dataset] == [6, 6, 6, 6]


def test_one_authors_sweep_shows_in_purity_and_not_across_authors():
    """Each author has a place of their own and one dataset: purity sees the author, cross-author does not."""
    plain, cross = [], []
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
    assert np.median(plain) <= 0.05
    assert 0.35 < np.mean(cross) < 0.65
    assert np.mean(np.array(cross) <= 0.1) <= 0.22


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


# ---- p values and intervals ----


def excess(found, cross):
    rows = naive(found, None, cross)
    return mean(r[3] for r in rows) - mean(r[4] for r in rows)


def test_p_is_that_of_all_permutations():
    """Seven models: all 5,040 orders of the labels can be tried."""
    rng = np.random.default_rng(3)
    labels = ["a", "a", "a", "b", "b", {"b", "c"}, "c"]
    m = Models(rng.standard_normal((7, 3)), labels)
    found = candidates_of(m)
    observed = excess(found, False)
    at_least = [
        excess([(f[0], f[1], f[2], found[j][3]) for f, j in zip(found, order, strict=True)], False) >= observed
        for order in itertools.permutations(range(7))
    ]
    p = np.mean(at_least)
    assert 0.05 < p < 0.95
    assert purity(m, draws=2000).p_value == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 2000))


def test_cross_author_p_is_that_of_all_moves_of_whole_authors():
    """Five authors, of which two with two sweeps: 3! · (2! · 2!²) moves can all be tried."""
    rng = np.random.default_rng(8)
    sweeps = [
        ("p", "a", 3),
        ("q", "a", 1),
        ("r", "b", 2),
        ("s", "a", 2),
        ("s", "b", 1),
        ("t", "b", 1),
        ("t", "c", 2),
    ]
    rows = [(author, label, sweep) for sweep, (author, label, size) in enumerate(sweeps) for _ in range(size)]
    m = Models(rng.standard_normal((len(rows), 4)), [r[1] for r in rows], [r[0] for r in rows])
    found = candidates_of(m)
    observed = excess(found, True)
    at_least = []
    for single in itertools.permutations("aab"):
        for lists in itertools.permutations(["ab", "bc"]):
            for first in itertools.permutations(lists[0]):
                for second in itertools.permutations(lists[1]):
                    labels = [*single, *first, *second]
                    moved = [(*f[:3], frozenset({labels[r[2]]})) for f, r in zip(found, rows, strict=True)]
                    at_least.append(excess(moved, True) >= observed)
    assert len(at_least) == 48
    p = np.mean(at_least)
    assert 0.05 < p < 0.95
    got = purity(m, draws=2000).cross_author.p_value
    assert got == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 2000))


def test_interval_is_that_of_resampled_authors():
    """Authors who are good or bad at it as a whole: far wider than models drawn one by one would say."""
    rng = np.random.default_rng(9)
    vectors, labels, authors = [], [], []
    for author in range(10):
        for _ in range(int(rng.integers(5, 20))):
            labels.append("abcd"[int(rng.integers(4))])
            place = np.eye(6)["abcd".index(labels[-1])] if author % 2 else np.eye(6)[4]
            vectors.append(place + 0.05 * rng.standard_normal(6))
            authors.append(f"a{author}")
    result = purity(Models(vectors, labels, authors), draws=4000)
    by_author = {}
    for row in result.by_model:
        by_author.setdefault(row.model.split("/")[0], []).append(row.purity)
    dice = random.Random(1)
    names = sorted(by_author)
    means = sorted(
        np.mean([p for name in dice.choices(names, k=len(names)) for p in by_author[name]]) for _ in range(4000)
    )
    assert result.ci_low == pytest.approx(means[100], abs=0.01)
    assert result.ci_high == pytest.approx(means[3899], abs=0.01)
    assert result.ci_low < result.purity < result.ci_high
    by_model = 2 * 1.96 * np.std([row.purity for row in result.by_model]) / math.sqrt(result.models)
    assert result.ci_high - result.ci_low > 1.5 * by_model


def test_one_author_is_resampled_by_model():
    rng = np.random.default_rng(10)
    m = Models(rng.standard_normal((40, 4)), rng.choice(list("ab"), 40).tolist(), ["only"] * 40)
    result = purity(m, draws=2000)
    spread = np.std([row.purity for row in result.by_model]) / math.sqrt(40)
    assert result.ci_high - result.ci_low == pytest.approx(2 * 1.96 * spread, rel=0.15)
    assert result.cross_author.purity is None
    assert result.cross_author.note == "All models with a known dataset are by one author."


def test_the_same_question_has_the_same_answer():
    rng = np.random.default_rng(11)
    m = Models(rng.standard_normal((30, 4)), rng.choice(list("abc"), 30).tolist(), [f"a{i % 7}" for i in range(30)])
    assert purity(m, draws=50) == purity(m, draws=50)
    assert purity(m, draws=50, seed=1).ci_low != purity(m, draws=50, seed=2).ci_low


# ---- who takes part ----


def test_a_group_has_one_voice_with_all_its_datasets_and_its_first_author():
    #      the representative has no dataset of its own; a copy and a stranger share everyone's dataset
    m = Models(
        vectors=[[1, 0], [1, 0], [0.9, 0.1], [0, 1], [1, 0], [1, 0]],
        datasets=[[], ["a", "b"], ["a"], ["b"], ["a"], ["a"]],
        authors=["x", "y", "y", "x", "z", "z"],
        group=[4, 4, None, None, None, None],
        representative=[True, False, True, True, True, True],
        is_copy=[False] * 4 + [True, False],
        is_unrelated=[False] * 5 + [True],
    )
    result = check_against_naive(m)
    assert result.candidates == 3
    assert [(r.model, r.datasets) for r in result.by_model] == [
        ("x/model1", ("a", "b")),
        ("y/model3", ("a",)),
        ("x/model4", ("b",)),
    ]
    assert result.cross_author.models == 2  # x's other model is x's own


def test_a_group_whose_first_upload_is_flagged_still_has_a_voice():
    m = Models(
        vectors=[[1, 0], [1, 0], [1, 0], [1, 0.1]],
        datasets=["c", "a", "b", "b"],
        group=[1, 1, 1, None],
        representative=[True, False, False, True],
        is_unrelated=[True, False, False, False],
    )
    result = purity(m, draws=1)
    assert [(r.model, r.datasets) for r in result.by_model] == [
        ("author1/model2", ("a", "b")),
        ("author3/model4", ("b",)),
    ]


def test_models_without_a_vector_do_not_take_part():
    m = Models([[1, 0], [0, 0], [0, 1]], ["a", "a", "a"])
    assert purity(m, draws=1).candidates == 2


def test_unscored_models_stay_candidates():
    m = Models([[1, 0], [1, 0.1], [0, 1], [1, 0.05]], ["a", "b", "a", "a"])
    result = purity(m, draws=1)
    assert (result.models, result.candidates, result.datasets) == (3, 4, 1)
    # Of model 1's two nearest, id 4 matches and id 2 (on a dataset of its own) does not.
    assert result.by_model[0].purity == 0.5
    assert result.by_model[0].chance == pytest.approx(2 / 3)


# ---- edges ----


def test_nothing_to_measure():
    for m, note in [
        (Models(np.zeros((0, 3)), []), "No model has both a vector and a known dataset."),
        (Models([[1, 0], [0, 1]], [[], []]), "No model has both a vector and a known dataset."),
        (Models([[1, 0]], ["a"]), "Only one model has both a vector and a known dataset."),
        (Models([[1, 0], [0, 1]], ["a", "b"]), "No two models share a dataset."),
    ]:
        result = purity(m)
        assert result.note == note
        assert (result.models, result.datasets, result.purity, result.p_value) == (0, 0, None, None)
        json.dumps(result.to_dict(by_model=True), allow_nan=False)
    assert purity(Models([[1, 0]] * 4, list("aabb"), list("xxyy"))).cross_author.note == (
        "No dataset has models by two authors."
    )


def test_two_models_and_one_dataset():
    result = purity(Models([[1, 0], [0, 1]], ["a", "a"]))
    assert (result.purity, result.chance, result.p_value, result.models) == (1.0, 1.0, 1.0, 2)
    assert "whatever the vectors are" in result.note
    assert result.cross_author.purity == 1.0


def test_few_ways_to_exchange_are_said():
    m = Models(np.eye(4), list("aabb"), list("xyxy"))
    assert purity(m).cross_author.note == "Only 8 ways to exchange the labels: p cannot be below 0.12."
    assert "ways" not in purity(clusters(2, list("xyz"), list("abc"))).note


def test_k_beyond_all_candidates_looks_at_all():
    result = purity(Models(np.eye(4), list("aabb")), k=1000, draws=1)
    assert [row.neighbours for row in result.by_model] == [3] * 4
    assert result.purity == result.chance == pytest.approx(1 / 3)


def test_the_json_keys():
    result = purity(clusters(1, ["x", "y"], ["a", "b"])).to_dict()
    promised = ["base", "representation", "models", "datasets", "purity", "purity_by_dataset_mean", "chance"]
    promised += ["ci_low", "ci_high", "p_value", "cross_author", "by_dataset"]
    assert [key for key in result if key in promised] == promised
    assert set(promised) - {"base", "representation", "cross_author"} <= set(result["cross_author"])
    assert list(result["by_dataset"][0]) == ["dataset", "models", "purity", "chance"]
    assert "by_model" not in result
    rows = purity(clusters(1, ["x", "y"], ["a", "b"])).to_dict(by_model=True)["by_model"]
    assert list(rows[0]) == ["model", "datasets", "neighbours", "purity", "chance"]
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize(
    "change",
    [
        {"ids": [1, 1, 2, 3]},
        {"authors": ["x"]},
        {"vectors": [[1, 0], [np.nan, 0], [0, 1], [1, 1]]},
        {"vectors": [[1, 0], [0, 1], [0, 1], [np.inf, 1]]},
    ],
)
def test_wrong_input_is_refused(change):
    m = Models(np.eye(4)[:, :2] + 0.1, list("aabb"))
    for name, value in change.items():
        setattr(m, name, np.array(value, dtype=np.float32) if name == "vectors" else value)
    with pytest.raises(ValueError, match=r"\w"):
        purity(m, draws=1)


@pytest.mark.parametrize("options", [{"k": 0}, {"k": -1}, {"draws": 0}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match="at least 1"):
        purity(Models(np.eye(2), ["a", "a"]), **options)


def test_hostile_names_are_only_names():
    names = ["\x1b[31m", "__proto__", "", "a" * 100_000, "\ud800"]
    m = Models(np.eye(10), names * 2, authors=[n for n in names for _ in "ab"])
    assert {r.dataset for r in purity(m, draws=2).by_dataset} == set(names)


def test_numpy_is_all_it_imports():
    code = (
        "import sys, query.purity; heavy = {'torch', 'duckdb', 'faiss', 'scipy', 'pandas', 'sklearn'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_thousand_models_take_seconds():
    import time

    rng = np.random.default_rng(12)
    weights = 1 / np.arange(1, 51)
    labels = rng.choice(50, 1000, p=weights / weights.sum())
    m = Models(rng.standard_normal((1000, 64)), [f"d{i}" for i in labels], [f"a{i % 150}" for i in range(1000)])
    start = time.process_time()
    purity(m, draws=200)
    assert time.process_time() - start < 10
