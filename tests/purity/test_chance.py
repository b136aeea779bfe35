"""p values and intervals; who takes part; the edges."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import t

from query.questions.purity.study import purity
from tests.patience import lines_run
from tests.purity.loops import Models, candidates_of, check_against_naive, clusters, mean, naive


def excess(found, cross):
    rows = naive(found, None, cross)
    return mean(r[3] for r in rows) - mean(r[4] for r in rows)


@pytest.mark.slow
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
    """Five authors, two of them with two sweeps: 3! · (2! · 2!²) moves can all be tried."""
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


def test_interval_is_that_of_authors_taken_away_one_at_a_time():
    """Purity of each population without an author, by loops; the formulas written out with matrices."""
    rng = np.random.default_rng(9)
    vectors, labels, authors = [], [], []
    for author in range(7):
        for _ in range(int(rng.integers(3, 9))):
            labels.append("abcd"[int(rng.integers(4))])
            place = np.eye(6)["abcd".index(labels[-1])] if author % 2 else np.eye(6)[4]
            vectors.append(place + 0.05 * rng.standard_normal(6))
            authors.append(f"a{author}")
    m = Models(vectors, labels, authors)
    result = purity(m, draws=1)
    found = candidates_of(m)
    for score, cross in ((result, False), (result.cross_author, True)):
        rows = naive(found, None, cross)
        whole = float(mean(row[3] for row in rows))
        names = sorted(set(authors))
        weights = np.array([sum(row[1] == name for row in rows) for name in names]) / len(rows)
        without = [naive([f for f in found if f[2] != name], None, cross) for name in names]
        changes = np.array([whole - float(mean(row[3] for row in left)) for left in without])
        room = 1 - 2 * weights + weights @ weights
        variance = ((1 - weights) ** 2 / room * changes**2).sum()
        residuals = np.eye(7) - np.outer(np.ones(7), weights)
        form = residuals.T @ np.diag(weights**2 / room) @ residuals
        quantile = t.ppf(0.975, np.trace(form) ** 2 / np.trace(form @ form))
        count = min(whole * (1 - whole) / variance, len(rows))
        for end in (score.ci_low, score.ci_high):
            assert abs(whole - end) == pytest.approx(quantile * math.sqrt(end * (1 - end) / count), abs=1e-9)
        assert score.ci_low < score.purity < score.ci_high
        assert (score.ci_reason, score.authors, score.interval_note) == (None, 7, "")


def test_fewer_than_five_authors_have_no_interval():
    rng = np.random.default_rng(10)
    for authors in (1, 4, 5):
        names = [f"a{i % authors}" for i in range(40)]
        result = purity(Models(rng.standard_normal((40, 4)), rng.choice(list("ab"), 40).tolist(), names), draws=2)
        as_json = result.to_dict()
        if authors == 5:
            assert as_json["ci_low"] < as_json["purity"] < as_json["ci_high"]
            assert as_json["ci_reason"] is None
            continue
        assert (as_json["ci_low"], as_json["ci_high"], as_json["ci_reason"]) == (None, None, "too_few_authors")
        assert result.interval_note == f"No interval: it needs models of at least 5 authors, and there are {authors}."
    assert purity(Models(np.eye(2), list("ab"))).ci_reason is None  # nothing is scored, which ``note`` says


def test_the_same_question_has_the_same_answer():
    rng = np.random.default_rng(11)
    m = Models(rng.standard_normal((30, 4)), rng.choice(list("abc"), 30).tolist(), [f"a{i % 7}" for i in range(30)])
    assert purity(m, draws=50) == purity(m, draws=50)
    assert purity(m, draws=50, seed=1).p_value != purity(m, draws=50, seed=2).p_value


# ---- who takes part ----


def test_a_group_has_one_voice_with_all_its_datasets_and_its_first_author():
    #      the representative has no dataset of its own; a copy and an unrelated model share everyone's dataset
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


def test_a_small_number_of_permutations_is_reported():
    m = Models(np.eye(4), list("aabb"), list("xyxy"))
    assert purity(m).cross_author.note == "The labels can be permuted in only 4 ways, so p is at least 0.25."
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
        "import sys, query.questions.purity.study; heavy = {'torch', 'duckdb', 'faiss', 'scipy', 'pandas', 'sklearn'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_of_a_thousand_models_each_draw_takes_a_few_steps():
    """However many models and data sets there are: what is done for each is done by NumPy."""
    rng = np.random.default_rng(12)
    weights = 1 / np.arange(1, 51)
    labels = rng.choice(50, 1000, p=weights / weights.sum())
    m = Models(rng.standard_normal((1000, 64)), [f"d{i}" for i in labels], [f"a{i % 150}" for i in range(1000)])
    few, many = (lines_run(lambda draws=draws: purity(m, draws=draws)) for draws in (50, 100))
    assert (many - few) / 50 < 1000  # not one for each model
