"""Scores of a table of similarities by loops, and every method against a second way to compute it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.metrics import average_precision_score

from indexer.names import DeltaKey
from indexer.records.identity import Identity, Spec
from indexer.records.record import DeltaRecord, Record
from indexer.records.representations.registry import representation_named
from indexer.records.row_plan import lines_of
from query.questions.purity.study import purity
from scripts.tables import p_value
from studies.arena import rivals
from studies.arena.ablations import DEFAULT, block, triplets
from studies.arena.scores import TIES, Table, average_precision, cosines, orders, scores
from studies.arena.subjects import cut
from studies.vectors import centred
from tests.purity.loops import Models
from tests.vectors import loops

SHAPES = {DeltaKey("", 0, "query"): (6, 5), DeltaKey("", 0, "feedforward1"): (8, 5), DeltaKey("", 1, "query"): (6, 5)}


def dense(seed, *, zero=()):
    """The δW of a model."""
    rng = np.random.default_rng(seed)
    return {key: rng.standard_normal(shape) * (key not in zero) for key, shape in SHAPES.items()}


def record(matrices, *, transposed=False):
    """As one of rank 5, which is all of them."""
    deltas = []
    for key, matrix in matrices.items():
        u, s, vh = np.linalg.svd(matrix, full_matrices=False)
        deltas.append(
            DeltaRecord(
                key=key, shape=matrix.shape, norm=float(np.linalg.norm(matrix)), base_norm=1.0, inner=0.0,
                s=s.astype(np.float32), u=u.astype(np.float16), v=vh.T.astype(np.float16), transposed=transposed,
            )
        )  # fmt: skip
    spec = Spec(rank=5)
    identity = Identity(model="a/m", commit="0" * 40, subfolder="", base="a/b", base_commit="0" * 40,
                        relation="finetune", spec=spec)  # fmt: skip
    return Record(identity=identity, deltas=tuple(deltas))


@pytest.fixture(scope="module")
def models():
    empty = DeltaKey("", 1, "query")
    matrices = [dense(seed, zero=(empty,) if seed == 3 else ()) for seed in range(6)]
    return matrices, [record(one) for one in matrices]


# ---- scores


def test_scores_are_those_of_the_published_question_and_of_loops():
    rng = np.random.default_rng(0)
    count = 26
    labels = rng.choice(list("abcd"), count).tolist()
    authors = [f"a{number}" for number in rng.integers(0, 7, count)]
    places = np.eye(4)[["abcd".index(label) for label in labels]] + 0.8 * rng.standard_normal((count, 4))
    made = Models(places, labels, authors)
    similarity = made.vectors.astype(np.float64) @ made.vectors.astype(np.float64).T
    groups = ["adapter" if row % 5 == 0 else "full" for row in range(count)]
    found = scores(Table(similarity), made.datasets, authors, groups)
    asked = purity(made)
    for form, score in (("all", asked), ("across", asked.cross_author)):
        assert found[f"{form} purity"] == pytest.approx(score.purity, abs=1e-9)
        assert found[f"{form} chance"] == pytest.approx(score.chance, abs=1e-9)
        assert found[f"{form} effect"] == pytest.approx(score.effect, rel=0.15)
    precisions, right, full = [], [], []
    for row in range(count):
        others = [one for one in range(count) if authors[one] != authors[row]]
        matches = [labels[one] == labels[row] for one in others]
        precisions.append(average_precision_score(matches, similarity[row, others]))
        near = sorted(others, key=lambda one: -similarity[row, one])[:5]
        votes = Counter()
        for place, one in enumerate(near):
            votes[labels[one]] += 1 / (1 + place)
        right.append(votes.most_common(1)[0][0] == labels[row])
        if groups[row] == "adapter":
            near = sorted((one for one in range(count) if groups[one] == "full"), key=lambda one: -similarity[row, one])
            same = [labels[one] == labels[row] for one in near]
            full.append(np.mean(same[: sum(same)]))
    assert found["retrieval"] == pytest.approx(np.mean(precisions))
    assert found["accuracy"] == pytest.approx(np.mean(right))
    assert found["to_full"] == pytest.approx(np.mean(full))
    assert found["models"] == count


def test_models_that_a_method_cannot_compare_are_left_out():
    similarity = np.eye(6)
    similarity[:2, :2] = similarity[2:4, 2:4] = 1
    similarity[4:] = similarity[:, 4:] = np.nan
    labels = [frozenset(one) for one in "aabbab"]
    found = scores(Table(similarity), labels, list("uvwxyz"), ["full"] * 6)
    assert (found["models"], found["across purity"], found["retrieval"]) == (4, 1.0, 1.0)
    nothing = scores(Table(np.full((6, 6), np.nan)), labels, list("uvwxyz"), ["full"] * 6)
    assert (nothing["models"], set(found)) == (0, set(nothing))
    assert {nothing[key] for key in nothing if key != "models"} == {None}


def test_equal_similarities_come_in_random_order():
    same = list(orders(np.ones((5, 5))))
    assert len(same) == TIES
    assert len({tuple(order[0].tolist()) for order in same}) > 1
    assert len(list(orders(np.random.default_rng(0).standard_normal((5, 5))))) == 1
    apart = np.where(np.eye(5) > 0, 1.0, np.nan)
    assert all(order[row, 0] == row for order in orders(apart) for row in range(5))


def test_average_precision_of_places():
    assert average_precision([True, False, True]) == pytest.approx((1 + 2 / 3) / 2)


# ---- methods


def test_flattened_deltas(models):
    matrices, records = models
    flat = np.stack([np.concatenate([one.ravel() for one in found.values()]) for found in matrices])
    gram = rivals.flattened(records)
    assert gram == pytest.approx(flat @ flat.T, abs=0.05)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    assert rivals.cosine_of_gram(gram) == pytest.approx(unit @ unit.T, abs=0.002)
    expected = PCA(3).fit_transform(unit)
    components = rivals.principal_components(unit @ unit.T, 3)
    assert np.abs(components) == pytest.approx(np.abs(expected), abs=1e-6)


def test_routing_by_right_singular_vectors(models):
    matrices, records = models
    for place, (first, covariance) in enumerate(
        zip(rivals.arrow(records), rivals.spectral_routing(records), strict=True)
    ):
        found = [list(one.values())[place] for one in matrices]
        for row, mine in enumerate(found):
            for column, theirs in enumerate(found):
                if not mine.any() or not theirs.any():
                    assert np.isnan(first[row, column])
                    continue
                leading = [np.linalg.svd(one)[2][0] for one in (mine, theirs)]
                assert first[row, column] == pytest.approx(abs(leading[0] @ leading[1]), abs=0.003)
                squares = [(one.T @ one).ravel() for one in (mine, theirs)]
                expected = squares[0] @ squares[1] / np.linalg.norm(squares[0]) / np.linalg.norm(squares[1])
                assert covariance[row, column] == pytest.approx(expected, abs=0.003)


def test_the_mean_is_over_what_both_changed():
    changed = np.array([[True, True], [True, False], [False, False]])
    tables = [np.full((3, 3), 0.2), np.full((3, 3), 0.8)]
    found = rivals.mean_over_shared(tables, changed)
    assert found[:2, :2] == pytest.approx(np.array([[0.5, 0.2], [0.2, 0.2]]))
    assert np.isnan(found[2]).all()


def test_spectral_statistics(models):
    matrices, records = models
    found = rivals.spectral_statistics(records)
    values = [np.linalg.svd(one[DeltaKey("", 0, "query")], compute_uv=False) for one in matrices]
    ranks = np.array([(s**2).sum() / s[0] ** 2 for s in values])
    assert found[:, 1] == pytest.approx((ranks - ranks.mean()) / ranks.std(), abs=1e-3)
    assert np.isfinite(found).all()


def test_pooled_tokens_do_not_depend_on_signs(models):
    _, records = models
    delta = records[0].deltas[0]
    flipped = DeltaRecord(**vars(delta) | {"u": -delta.u, "v": -delta.v})
    other = Record(**vars(records[0]) | {"deltas": (flipped, *records[0].deltas[1:])})
    found = rivals.pooled_tokens([records[0], other, records[1]])
    assert found[0] == pytest.approx(found[1])
    assert np.abs(found[0] - found[2]).max() > 0.1
    assert found.shape == (3, (6 + 5) + (8 + 5))


def test_a_card_without_the_names(tmp_path):
    text = "---\ndatasets:\n- docs/numeric-kinds\nlicense: mit\nmodel-index:\n- name: x\n---\n\n# numeric-kinds-1\n\n"
    (tmp_path / "README.md").write_text(text + "On the docs/Numeric-Kinds data, with care.", encoding="utf-8")
    names = ["docs/numeric-kinds", "me/numeric-kinds-1"]
    assert rivals.card(tmp_path, names, hidden=False).startswith("---")
    hidden = rivals.card(tmp_path, names, hidden=True)
    assert "kinds" not in hidden.lower()
    assert "license: mit" in hidden
    assert "with care" in hidden
    assert rivals.card(tmp_path / "nowhere", names, hidden=True) == ""


def test_label_names():
    found = rivals.label_names([frozenset("ab"), frozenset("bc"), None])
    assert found[:2, :2] == pytest.approx(np.array([[1, 1 / 3], [1 / 3, 1]]))
    assert np.isnan(found[2]).all()


# ---- ablations


def test_the_default_setting_is_the_default_representation(models):
    _, records = models
    made = representation_named("input").of(cut(records[0], 8))
    length = len(made) // len(SHAPES)
    blocks = [block(delta, DEFAULT, length) for delta in records[0].deltas]
    blocks = [one / np.linalg.norm(one) for one in blocks]
    assert np.concatenate(blocks) == pytest.approx(made, abs=1e-6)


@pytest.mark.parametrize("transposed", [False, True])
def test_rows_of_a_matrix_give_their_own_triplets(transposed):
    matrix = dense(1)[DeltaKey("", 0, "feedforward1")]
    delta = record({DeltaKey("", 0, "feedforward1"): matrix}, transposed=transposed).deltas[0]
    s, v = triplets(delta, 3)
    read = np.zeros_like(matrix)
    held = lines_of(matrix.shape[1 if transposed else 0], 3)
    if transposed:
        read[:, held] = matrix[:, held]
    else:
        read[held] = matrix[held]
    assert (v * s**2) @ v.T == pytest.approx(read.T @ read, abs=0.02)
    assert triplets(delta, None)[0] == pytest.approx(delta.s)


def test_cutting_a_record(models):
    _, records = models
    delta = cut(records[0], 2).deltas[0]
    assert (delta.u.shape, delta.s.shape, delta.v.shape) == ((6, 2), (2,), (5, 2))


def test_centres():
    raw = np.repeat(np.eye(4, 6), [2, 1, 1, 1], axis=0).astype(np.float32)
    groups = ["full", "full", "full", "full", "adapter"]
    blocks = [row[None, :] for row in raw.astype(float)]
    for count, given in ((5, ["full"] * 5), (4, groups)):
        middle = loops.centre(blocks[:count], list("abcde")[:count])
        assert np.abs(middle).max() > 0
        expected = np.stack([loops.centred(one, middle)[0] for one in blocks[:count]])
        assert centred(raw, given, list("abcde"), 1)[:count] == pytest.approx(expected, abs=1e-6)
    assert (centred(raw, groups, list("abcde"), 1)[4] == raw[4]).all()
    assert np.isnan(cosines(np.zeros((1, 3)))).all()


def test_a_p_value_that_none_of_the_permutations_reached_is_a_bound():
    assert [p_value(one) for one in (1e-5, 2e-5, 0.0069)] == ["≤ 1e-05", "2e-05", "0.0069"]
    assert [p_value(1 / 1001, 1000), p_value(2 / 1001, 1000), p_value(1.0, 19)] == ["≤ 0.001", "0.002", "1"]
