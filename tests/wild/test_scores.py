"""The figures of the study by loops, and its own ways to compare adapters by dense matrices."""

from __future__ import annotations

import numpy as np
import pytest

from indexer.names import DeltaKey
from indexer.records.record import DeltaRecord
from studies.arena import rivals
from studies.arena.scores import Table, scores
from studies.wild.methods import in_spreads, other_matrices
from studies.wild.scores import scores_of


def population(count=40, noise=0.4, seed=0):
    """Similarities, labels (an eighth has none) and authors; labels are in the similarities, the less the more noise."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 4, count)
    authors = [f"a{number}" for number in rng.integers(0, 12, count)]
    places = np.eye(4)[codes] + noise * rng.standard_normal((count, 4))
    labels = [frozenset() if row % 8 == 0 else frozenset("abcd"[code]) for row, code in enumerate(codes.tolist())]
    return places @ places.T, labels, authors


def test_figures_are_those_of_loops():
    similarity, labels, authors = population()
    similarity[7], similarity[:, 7] = np.nan, np.nan
    found = scores_of(similarity, labels, authors, draws=20)
    there = [row for row in range(40) if row != 7]
    nearest, of_nearest, purity = [], [], []
    for row in there:
        others = [one for one in there if authors[one] != authors[row]]
        if not any(labels[row] & labels[one] for one in others):
            continue
        best = max(others, key=lambda one: similarity[row, one])
        nearest.append(bool(labels[row] & labels[best]))
        of_nearest.append(np.mean([bool(labels[row] & labels[one]) for one in others]))
        documented = sorted((one for one in others if labels[one]), key=lambda one: -similarity[row, one])
        matches = [bool(labels[row] & labels[one]) for one in documented]
        purity.append(np.mean(matches[: sum(matches)]))
    assert found.compared == 39
    assert (found.nearest.models, found.nearest.share) == (len(nearest), pytest.approx(np.mean(nearest)))
    assert found.nearest.chance == pytest.approx(np.mean(of_nearest))
    assert found.purity.share == pytest.approx(np.mean(purity))
    named = [row for row in there if labels[row]]
    table = Table(similarity[np.ix_(named, named)])
    voted = scores(table, [labels[row] for row in named], [authors[row] for row in named], ["full"] * 40, draws=0)
    assert found.vote.share == pytest.approx(voted["accuracy"])
    for figure in (found.nearest, found.purity, found.vote):
        assert figure.low <= figure.share <= figure.high


@pytest.mark.slow
def test_the_null_is_at_chance_and_p_small_only_if_labels_are_in_the_similarities():
    good = scores_of(*population(60), draws=200)
    for figure in (good.nearest, good.purity):
        assert figure.null == pytest.approx(figure.chance, abs=0.08)
        assert figure.p < 0.02
    values = [scores_of(*population(40, noise=50, seed=seed), draws=99).nearest.p for seed in range(12)]
    assert np.mean(np.array(values) <= 0.05) <= 0.25
    assert np.mean(values) > 0.25


def test_nothing_to_score_is_said():
    similarity, labels, authors = population(6)
    for found in (
        scores_of(np.full((6, 6), np.nan), labels, authors),
        scores_of(similarity, [frozenset()] * 6, authors),
        scores_of(similarity, labels, ["one"] * 6),
    ):
        assert found.nearest.share is None
        assert found.vote.share is None
    assert scores_of(similarity, labels, authors, draws=5).nearest.low is None or len(set(authors)) >= 5


# ---- methods


class Made:
    """What the methods read of a record."""

    def __init__(self, seed, ranks):
        rng, deltas = np.random.default_rng(seed), []
        for number, rank in enumerate(ranks):
            matrix = rng.standard_normal((9, rank)) @ rng.standard_normal((rank, 7))
            u, s, vt = np.linalg.svd(matrix, full_matrices=False)
            key = DeltaKey("", number // 2, ("query", "value")[number % 2])
            deltas.append(
                DeltaRecord(key, (9, 7), float(np.linalg.norm(s)), 1.0, 0.0, s[:rank].astype(np.float32),
                            u=u[:, :rank], v=vt[:rank].T)
            )  # fmt: skip
        self.deltas = tuple(deltas)


RECORDS = [Made(seed, ranks) for seed, ranks in enumerate([(2, 2, 1, 1, 2, 2), (1, 2, 2, 1, 1, 1), (1, 1, 1, 1, 1, 3)])]


def dense(record, place, side, power):
    delta = record.deltas[place]
    vectors = getattr(delta, side)
    matrix = (vectors * delta.s**power) @ vectors.T
    return (matrix / np.linalg.norm(matrix)).ravel()


@pytest.mark.parametrize(("side", "power"), [("v", 1), ("u", 1), ("v", 2)])
def test_one_side(side, power):
    for place, found in enumerate(rivals.one_side(RECORDS, side, power)):
        flat = np.stack([dense(record, place, side, power) for record in RECORDS])
        assert found == pytest.approx(flat @ flat.T, abs=1e-5)


@pytest.mark.parametrize("rank", [1, 12])
def test_inner_products_of_low_and_high_ranks(rank):
    rng = np.random.default_rng(0)
    factors = [(rng.standard_normal((9, rank)), rng.standard_normal((7, rank))) for _ in range(4)]
    flat = np.stack([(left @ right.T).ravel() for left, right in factors])
    assert rivals.inner_products(factors) == pytest.approx(flat @ flat.T, rel=1e-4)


def test_other_matrices_are_of_neighbouring_layers_and_of_other_tensors():
    tensors = ["0", "0", "1 a", "1 b", "2 a", "2 b"]  # query and value of layer 0 are one tensor
    found = other_matrices(RECORDS, np.ones((3, 6), bool), tensors)
    pairs = [(2, 3), (4, 5), (0, 2), (0, 3), (1, 2), (1, 3), (2, 4), (2, 5), (3, 4), (3, 5)]
    for row, one in enumerate(RECORDS):
        for column, other in enumerate(RECORDS):
            each = [
                dense(one, left, "v", 1) @ dense(other, right, "v", 1)
                for first, second in pairs
                for left, right in ((first, second), (second, first))
            ]
            assert found[row, column] == pytest.approx(np.mean(each), abs=1e-5)


def test_spreads_are_those_of_pairs_by_different_authors():
    similarity = np.array(
        [[1.0, 0.9, 0.1, np.nan], [0.9, 1.0, 0.2, 0.3], [0.1, 0.2, 1.0, 0.4], [np.nan, 0.3, 0.4, 1.0]]
    )
    found = in_spreads(similarity, ["a", "a", "b", "c"])
    known = np.array([0.1, 0.2, 0.3, 0.4])
    middle, high = np.quantile(np.repeat(known, 2), (0.5, 0.84))
    assert found[0, 1] == pytest.approx((0.9 - middle) / (high - middle))
    assert np.isnan(found[0, 3])
