"""Each kind of evidence against a planted answer, computed here another way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from indexer.records.parts import ModelParts
from query.lineage.entries import Entries
from query.lineage.evidence import (
    Combinations,
    as_stored,
    equal_share,
    ranks_of,
    rounding,
    single,
)
from query.lineage.grids import grid_of, level_share
from query.lineage.kinship import kinship
from scripts.lineage.merging import dare, int8, nf4, slerp, ties

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


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float32"])
def test_storing_rounds_as_torch_does(precision):
    values = np.concatenate([np.random.default_rng(0).standard_normal(10_000), [0.0, 1e-40, 65504.0, -1.0]])
    values = values.astype(np.float32)
    dtype = getattr(torch, precision)
    np.testing.assert_array_equal(as_stored(values, precision), torch.from_numpy(values).to(dtype).float().numpy())


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_rounding_is_expected_as_large_as_it_is(precision):
    stored = parts(A, precision)
    exact = parts(A)
    measured = sum(float(((stored.weights[name] - exact.weights[name]) ** 2).sum()) for name in NAMES)
    assert rounding(stored) == pytest.approx(measured, rel=0.1)


def test_a_child_leaves_its_own_training_and_a_sister_does_not_look_like_a_parent():
    child, parent, sister = parts(added((1, A), (0.6, B))), parts(A), parts(added((1, C)))
    seen = single(child, parent)
    assert seen.left == pytest.approx(0.36 / 1.36, rel=0.05)
    assert abs(seen.cosine) < 0.05
    assert seen.reverse < -0.4
    assert single(child, sister).left > 1.5


def test_sums_are_those_of_least_squares():
    m, others = parts(added((0.3, A), (0.7, B), (0.1, C))), [parts(A), parts(B)]
    found = Combinations(m, others, BASE).of((0, 1))
    expected, left, total = [], 0.0, 0.0
    for name in NAMES:
        y = (m.weights[name] - BASE[name]).ravel().astype(np.float64)
        x = np.stack([(one.weights[name] - BASE[name]).ravel() for one in others], axis=1).astype(np.float64)
        w, *_ = np.linalg.lstsq(x, y, rcond=None)
        expected.append(w)
        left, total = left + float(((y - x @ w) ** 2).sum()), total + float((y**2).sum())
    np.testing.assert_allclose(found.weights, expected, atol=1e-6)
    assert found.left == pytest.approx(left / total, abs=1e-9)


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
    sums = Combinations(m, [parts(one) for one in wide], BASE)
    assert sums.of((0, 1)).left > 1e-5
    exact = sums.of((0, 1), spherical=True)
    assert exact.left < 1e-9
    assert exact.off < 1e-3
    assert exact.weights.sum(axis=1).min() > 1.0005


@pytest.mark.parametrize(
    ("method", "how"),
    [(ties, {"weights": [0.7, 0.5], "density": 0.4}), (dare, {"weights": [0.6, 0.8], "density": 0.5, "seed": 1})],
)
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_merge_that_drops_entries_holds_those_of_its_parents_and_of_nobody_else(method, how, precision):
    both = [A, B]
    deltas = {
        name: method(name, torch.zeros(A[name].shape), [torch.from_numpy(one[name]) for one in both], how, 0.5).numpy()
        for name in NAMES
    }
    m = parts(deltas, precision)
    entries = Entries(m, BASE)
    left = ~entries.nothing
    for parent in both:
        atom = entries.atom(parts(parent), left)
        assert atom.share > 0.1
        assert atom.contrast > 6
    stranger = entries.atom(parts(C), left)
    assert stranger.share < 0.02
    zeros = np.mean(np.concatenate([deltas[name].ravel() == 0 for name in NAMES]))
    assert entries.nothing.mean() == pytest.approx(zeros, abs=0.02)


def test_trained_weights_hold_nobodys_entries():
    child = Entries(parts(added((1, A), (0.5, B))), BASE)
    assert child.atom(parts(A), ~child.nothing).share < 0.02


@pytest.mark.parametrize(("form", "coarse"), [("int8", int8), ("4bit", nf4)])
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("stored", ["out x in", "in x out"])
def test_a_quantised_copy_stands_on_levels_that_its_source_rounds_to(form, coarse, precision, stored):
    source, sister = parts(A), parts(added((1, A), (0.4, B)))

    def quantised(weight):
        turned = weight if stored == "out x in" else weight.T
        found = coarse(torch.from_numpy(np.ascontiguousarray(turned))).numpy()
        return found if stored == "out x in" else found.T

    m = parts({name: quantised(source.weights[name]) - BASE[name] for name in NAMES}, precision)
    m = ModelParts(
        weights={name: as_stored(np.ascontiguousarray(quantised(source.weights[name])), precision) for name in NAMES},
        deltas=m.deltas, precision=precision, bytes_read=0, is_adapter=False,
    )  # fmt: skip
    grid = grid_of(m)
    assert grid is not None
    assert (grid.form, grid.axis) == (form, 1 if stored == "out x in" else 0)
    assert level_share(m, source.weights, grid) > 0.998
    assert level_share(m, sister.weights, grid) < 0.99
    assert level_share(m, BASE, grid) < 0.99
    assert grid_of(source) is None
    assert grid_of(parts(A, "bfloat16")) is None


def test_ranks_are_those_that_were_planted():
    random = np.random.default_rng(4)
    differences = {
        name: (random.standard_normal((shape[0], rank)) @ random.standard_normal((rank, shape[1]))).astype(np.float32)
        for name, shape, rank in zip(NAMES, SHAPES, (4, 0, 12), strict=True)
    }
    assert [one.rank for one in ranks_of(differences.values(), 1e-12)] == [4, 12]
    noise = 1e-3
    noisy = {
        name: one + noise * random.standard_normal(one.shape).astype(np.float32) for name, one in differences.items()
    }
    assert [one.rank for one in ranks_of(noisy.values(), noise**2)] == [4, 12]
    assert min(one.drop for one in ranks_of(noisy.values(), noise**2)) > 10


TOKENS = np.random.default_rng(9).standard_normal((100, 32)).astype(np.float32)


def trained(start, rows, seed, decay=1.0):
    tokens = start * np.float32(decay)
    tokens[rows] += 1e-3 * np.random.default_rng(seed).standard_normal((len(rows), 32)).astype(np.float32)
    return tokens


def test_embeddings_that_training_never_met_are_inherited():
    base = parts(A, tokens=TOKENS)
    grandparent = trained(TOKENS, range(0, 30), 1)
    parent = trained(grandparent, range(20, 50), 2, decay=0.999)
    child = trained(parent, range(40, 60), 3)
    sister = trained(grandparent, range(45, 70), 4)
    models = {
        name: parts(A, tokens=tokens)
        for name, tokens in {"parent": parent, "child": child, "sister": sister, "grand": grandparent}.items()
    }
    kin = kinship(models["child"], models["parent"], base)
    assert (kin.shared, kin.only_m, kin.only_p, kin.both) == (40, 10, 0, 10)
    back = kinship(models["parent"], models["child"], base)
    assert (back.shared, back.only_m, back.only_p) == (40, 0, 10)
    cousins = kinship(models["child"], models["sister"], base)
    assert cousins.only_p == 10
    assert cousins.shared == 20
    grand = kinship(models["child"], models["grand"], base)
    assert (grand.only_p, grand.shared) == (0, 20)


def test_embeddings_stored_in_fewer_bits_are_told_apart_or_left_aside():
    base = parts(A, tokens=TOKENS)
    parent = trained(TOKENS, range(0, 50), 1)
    parent[:50] += np.float32(0.2)
    child = parts(A, "bfloat16", tokens=as_stored(trained(parent, range(40, 60), 2), "bfloat16"))
    kin = kinship(child, parts(A, tokens=parent), base)
    assert kin.shared >= 40
    assert kin.only_p == 0


def test_without_embeddings_there_is_no_kinship():
    assert kinship(parts(A), parts(B), parts(C)) is None
    assert kinship(parts(A, tokens=TOKENS), parts(B, tokens=TOKENS[:, :16]), parts(C, tokens=TOKENS)) is None


def test_equal_share_counts_entries():
    m, other = parts(A), parts(A)
    assert equal_share(m, other) == 1.0
    other.weights["0.query"][0, :64] += 1
    total = sum(rows * columns for rows, columns in SHAPES)
    assert equal_share(m, other) == pytest.approx(1 - 64 / total)
