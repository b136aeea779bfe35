"""Each measurement on weights against a known answer, computed another way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from indexer.records.parts import ModelParts
from query.questions.lineage.evidence import (
    Combinations,
    SparseMerges,
    as_stored,
    equal_share,
    parent_fit,
    quantisation_of,
    ranks_of,
    residual,
    rounding,
    share_on_levels,
)
from query.questions.lineage.siblings import _ALIKE, _DIFFERENT, _UNCLEAR, _compare, shared_updates, step_kept
from studies.lineage.merging import dare, int8, nf4, slerp, ties

NAMES = ("0.query", "1.value", "2.feedforward1")
SHAPES = ((128, 128), (128, 128), (192, 128))


def matrices(seed, size=1.0):
    random = np.random.default_rng(seed)
    return {
        name: (size * random.standard_normal(shape)).astype(np.float32)
        for name, shape in zip(NAMES, SHAPES, strict=True)
    }


BASE = matrices(0)


def parts(deltas, precision="float32", tokens=None):
    weights = {name: as_stored(BASE[name] + deltas[name], precision) for name in NAMES}
    base = {name: as_stored(BASE[name], precision) for name in NAMES}
    return ModelParts(
        weights=weights,
        deltas={name: weights[name] - base[name] for name in NAMES},
        precision=precision,
        bytes_read=0,
        is_adapter=False,
        tokens=tokens,
    )


def added(*terms):
    return {name: sum(np.float32(weight) * delta[name] for weight, delta in terms) for name in NAMES}


A, B, C = (matrices(seed, 0.05) for seed in (1, 2, 3))


def in_common():
    """A few directions, in which all runs on one data set move."""
    random = np.random.default_rng(5)
    return {
        name: (random.standard_normal((shape[0], 4)) @ random.standard_normal((4, shape[1])) * 0.2).astype(np.float32)
        for name, shape in zip(NAMES, SHAPES, strict=True)
    }


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float32"])
def test_storing_rounds_as_torch_does(precision):
    values = np.concatenate([np.random.default_rng(0).standard_normal(10_000), [0.0, 1e-40, 65504.0, -1.0]])
    values = values.astype(np.float32)
    dtype = getattr(torch, precision)
    np.testing.assert_array_equal(as_stored(values, precision), torch.from_numpy(values).to(dtype).float().numpy())


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_the_expected_rounding_error_is_the_measured_one(precision):
    stored = parts(A, precision)
    exact = parts(A)
    measured = sum(float(((stored.weights[name] - exact.weights[name]) ** 2).sum()) for name in NAMES)
    assert rounding(stored) == pytest.approx(measured, rel=0.1)


def test_a_child_leaves_its_own_training_and_a_sibling_does_not_look_like_a_parent():
    child, parent, sibling = parts(added((1, A), (0.6, B))), parts(A), parts(added((1, C)))
    fit = parent_fit(child, parent)
    assert fit.residual == pytest.approx(0.36 / 1.36, rel=0.05)
    assert abs(fit.cosine) < 0.05
    assert fit.reverse < -0.4
    assert parent_fit(child, sibling).residual > 1.5


def test_sums_are_those_of_least_squares():
    m, others = parts(added((0.3, A), (0.7, B), (0.1, C))), [parts(A), parts(B)]
    combination = Combinations(m, others, BASE).by_matrix((0, 1))
    expected, residual_square, total = [], 0.0, 0.0
    for name in NAMES:
        y = (m.weights[name] - BASE[name]).ravel().astype(np.float64)
        x = np.stack([(other.weights[name] - BASE[name]).ravel() for other in others], axis=1).astype(np.float64)
        w, *_ = np.linalg.lstsq(x, y, rcond=None)
        expected.append(w)
        residual_square, total = residual_square + float(((y - x @ w) ** 2).sum()), total + float((y**2).sum())
    np.testing.assert_allclose(combination.weights, expected, atol=1e-6)
    assert combination.residual == pytest.approx(residual_square / total, abs=1e-9)


def test_matrices_that_a_model_did_not_change_explain_nothing():
    """A LoRA of query matrices leaves the others as they are. Its weight there was a rounding error divided by 0."""
    for seed in range(20):
        deltas = [added((1, matrices(10 * seed + number, 0.05)), (0.1, in_common())) for number in range(1, 7)]
        for untouched in deltas[::2]:
            untouched["1.value"] = np.zeros_like(untouched["1.value"])
        m, others = parts(added(*((0.3, delta) for delta in deltas))), [parts(delta) for delta in deltas]
        weights = Combinations(m, others, BASE).by_matrix(range(6)).weights
        np.testing.assert_allclose(weights[1], [0, 0.3] * 3, atol=1e-3)
        residuals = residual(m, others, BASE)
        assert all(np.abs(matrix).max() < 1e-3 for matrix in residuals.values())


def test_a_child_keeps_the_change_of_its_parent_in_every_matrix_and_a_run_on_the_same_data_does_not():
    shared = in_common()
    parent = parts(added((1, shared), (1, A)))
    trained_long = parts(added((1, shared), (1, A), (2, B)))
    run = parts(added((1.1, shared), (1, C)))
    coefficient, spread = step_kept(trained_long, parent)
    assert coefficient == pytest.approx(1, abs=0.1)
    assert spread < 0.1
    assert step_kept(run, parent)[0] < 0.2
    assert parent_fit(trained_long, parent).residual > parent_fit(run, parent).residual  # the run is the closer one
    torn = parts({name: added((1, shared), (1.9 if index else 0.1, A))[name] for index, name in enumerate(NAMES)})
    assert step_kept(torn, parent)[1] > 0.3


def test_a_spherical_merge_is_exact_only_as_one():
    how = {"weights": [0.4]}
    wide = [matrices(seed, 0.3) for seed in (5, 6)]
    weights = {
        name: slerp(
            name, torch.from_numpy(BASE[name]), [torch.from_numpy(BASE[name] + d[name]) for d in wide], how, 0.5
        )
        for name in NAMES
    }
    m = parts({name: weights[name].numpy() - BASE[name] for name in NAMES})
    sums = Combinations(m, [parts(delta) for delta in wide], BASE)
    assert sums.by_matrix((0, 1)).residual > 1e-5
    exact = sums.by_matrix((0, 1), spherical=True)
    assert exact.residual < 1e-9
    assert exact.base_error < 1e-3
    assert exact.weights.sum(axis=1).min() > 1.0005


@pytest.mark.parametrize(
    ("method", "how"),
    [(ties, {"weights": [0.7, 0.5], "density": 0.4}), (dare, {"weights": [0.6, 0.8], "density": 0.5, "seed": 1})],
)
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_sparse_merge_holds_a_multiple_of_its_parents_and_of_no_other_model(method, how, precision):
    sources = [A, B]
    deltas = {
        name: method(
            name, torch.zeros(A[name].shape), [torch.from_numpy(parent[name]) for parent in sources], how, 0.5
        ).numpy()
        for name in NAMES
    }
    m = parts(deltas, precision)
    entries = SparseMerges(m, BASE)
    for parent in sources:
        share, contrast, _ = entries.fixed_multiple(parts(parent), ~entries.unchanged)
        assert share > 0.1
        assert contrast > 6
    assert entries.fixed_multiple(parts(C), ~entries.unchanged)[0] < 0.02
    zeros = np.mean(np.concatenate([deltas[name].ravel() == 0 for name in NAMES]))
    assert entries.unchanged.mean() == pytest.approx(zeros, abs=0.02)


def test_trained_weights_hold_no_fixed_multiple():
    child = SparseMerges(parts(added((1, A), (0.5, B))), BASE)
    assert child.fixed_multiple(parts(A), ~child.unchanged)[0] < 0.02


@pytest.mark.parametrize(("form", "coarse"), [("int8", int8), ("4bit", nf4)])
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("stored", ["out x in", "in x out"])
def test_a_quantised_copy_lies_on_levels_that_its_source_rounds_to(form, coarse, precision, stored):
    source, sibling = parts(A), parts(added((1, A), (0.4, B)))

    def quantised(weight):
        turned = weight if stored == "out x in" else weight.T
        levels = coarse(torch.from_numpy(np.ascontiguousarray(turned))).numpy()
        return levels if stored == "out x in" else levels.T

    m = parts({name: quantised(source.weights[name]) - BASE[name] for name in NAMES}, precision)
    m = ModelParts(
        weights={name: as_stored(np.ascontiguousarray(quantised(source.weights[name])), precision) for name in NAMES},
        deltas=m.deltas, precision=precision, bytes_read=0, is_adapter=False,
    )  # fmt: skip
    grid = quantisation_of(m)
    assert grid is not None
    assert grid == (form, 1 if stored == "out x in" else 0)
    assert share_on_levels(m, source.weights, grid) > 0.998
    assert share_on_levels(m, sibling.weights, grid) < 0.99
    assert share_on_levels(m, BASE, grid) < 0.99
    assert quantisation_of(source) is None
    assert quantisation_of(parts(A, "bfloat16")) is None


def test_ranks_are_the_true_ones():
    random = np.random.default_rng(4)
    differences = {
        name: (random.standard_normal((shape[0], rank)) @ random.standard_normal((rank, shape[1]))).astype(np.float32)
        for name, shape, rank in zip(NAMES, SHAPES, (4, 0, 12), strict=True)
    }
    assert [rank for rank, _ in ranks_of(differences.values(), 1e-12)] == [4, 12]
    noise = 1e-3
    noisy = {
        name: difference + noise * random.standard_normal(difference.shape).astype(np.float32)
        for name, difference in differences.items()
    }
    assert [rank for rank, _ in ranks_of(noisy.values(), noise**2)] == [4, 12]
    assert min(drop for _, drop in ranks_of(noisy.values(), noise**2)) > 10


TOKENS = np.random.default_rng(9).standard_normal((100, 32)).astype(np.float32)


def trained(start, rows, seed, decay=1.0):
    tokens = start * np.float32(decay)
    tokens[rows] += 1e-3 * np.random.default_rng(seed).standard_normal((len(rows), 32)).astype(np.float32)
    return tokens


def test_embeddings_of_tokens_that_training_never_met_are_inherited():
    base = parts(A, tokens=TOKENS)
    grandparent = trained(TOKENS, range(0, 30), 1)
    parent = trained(grandparent, range(20, 50), 2, decay=0.999)
    child = trained(parent, range(40, 60), 3)
    sibling = trained(grandparent, range(45, 70), 4)
    models = {
        name: parts(A, tokens=tokens)
        for name, tokens in {"parent": parent, "child": child, "sibling": sibling, "grand": grandparent}.items()
    }
    updates = shared_updates(models["child"], models["parent"], base)
    assert (updates.shared, updates.only_m, updates.only_p, updates.both) == (40, 10, 0, 10)
    back = shared_updates(models["parent"], models["child"], base)
    assert (back.shared, back.only_m, back.only_p) == (40, 0, 10)
    cousins = shared_updates(models["child"], models["sibling"], base)
    assert cousins.only_p == 10
    assert cousins.shared == 20
    grand = shared_updates(models["child"], models["grand"], base)
    assert (grand.only_p, grand.shared) == (0, 20)


def test_embeddings_stored_in_fewer_bits_are_distinguished_or_ignored():
    base = parts(A, tokens=TOKENS)
    parent = trained(TOKENS, range(0, 50), 1)
    parent[:50] += np.float32(0.2)
    child = parts(A, "bfloat16", tokens=as_stored(trained(parent, range(40, 60), 2), "bfloat16"))
    updates = shared_updates(child, parts(A, tokens=parent), base)
    assert updates.shared >= 40
    assert updates.only_p == 0


def test_without_embeddings_there_are_no_shared_updates():
    assert shared_updates(parts(A), parts(B), parts(C)) is None
    assert shared_updates(parts(A, tokens=TOKENS), parts(B, tokens=TOKENS[:, :16]), parts(C, tokens=TOKENS)) is None


def test_equal_share_counts_entries():
    m, other = parts(A), parts(A)
    assert equal_share(m, other) == 1.0
    other.weights["0.query"][0, :64] += 1
    total = sum(rows * columns for rows, columns in SHAPES)
    assert equal_share(m, other) == pytest.approx(1 - 64 / total)


def test_rows_of_embeddings_are_compared_up_to_a_factor():
    """Against the distance in double precision; rows at distances on either side of both limits, 1e-5 and 4e-5."""
    rng = np.random.default_rng(4)
    second = rng.standard_normal((400, 96)).astype(np.float32)
    perpendicular = rng.standard_normal(second.shape)
    perpendicular -= (
        (perpendicular * second).sum(axis=1, keepdims=True) / np.square(second).sum(axis=1, keepdims=True) * second
    )
    perpendicular *= np.linalg.norm(second, axis=1, keepdims=True) / np.linalg.norm(
        perpendicular, axis=1, keepdims=True
    )
    far = 10 ** rng.uniform(-6, -3, (400, 1))
    first = (rng.uniform(0.5, 2, (400, 1)) * (second + far * perpendicular)).astype(np.float32)
    first[0] = second[1] = second[2] = first[2] = 0  # no multiple of anything; a multiple of no row; equal rows
    a, b = first.astype(np.float64), second.astype(np.float64)
    factor = (a * b).sum(axis=1) / np.maximum(np.square(b).sum(axis=1), 1e-300)
    distance = np.linalg.norm(a - factor[:, None] * b, axis=1) / np.maximum(np.linalg.norm(a, axis=1), 1e-300)
    expected = np.select([distance <= 1e-5, distance <= 4e-5], [_ALIKE, _UNCLEAR], _DIFFERENT)
    assert min(np.bincount(expected)) > 40
    assert np.array_equal(_compare(parts(A, tokens=first), parts(A, tokens=second)), expected)
    assert expected[:3].tolist() == [_ALIKE, _DIFFERENT, _ALIKE]
