"""The share of unrelated pairs, and the upper end of its interval, against loops and on simulated authors."""

from __future__ import annotations

import numpy as np
import pytest

from indexer.vectors.background import Background, author_groups
from query import Atlas
from query.contract.results import plain

Z = 1.959964


def simulated(rng, authors, each, effect, numbers=24):
    centres = rng.normal(size=(authors, numbers)) * effect
    vectors = np.repeat(centres, each, axis=0) + rng.normal(size=(authors * each, numbers))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors, np.repeat(np.arange(authors), each)


def unrelated_pairs(vectors, authors):
    left, right = np.nonzero(np.triu(authors[:, None] != authors[None, :], 1))
    return (vectors @ vectors.T)[left, right], left, right


def test_upper_ends_by_leaving_authors_out():
    rng = np.random.default_rng(0)
    vectors, authors = simulated(rng, 7, 5, 1.0)
    similarities, left, right = unrelated_pairs(vectors, authors)
    groups = author_groups([f"author{one}" for one in authors])
    assert len(set(zip(groups.tolist(), authors.tolist(), strict=True))) == 7  # few authors: a group each
    found = Background.of(similarities, (groups[left], groups[right]))
    expected = []
    for level in found.similarities:
        as_similar = similarities >= level - 1e-6
        share = as_similar.mean()
        without = [as_similar[(authors[left] != one) & (authors[right] != one)].mean() for one in range(7)]
        variance = 6 / 7 * np.square(np.array(without) - np.mean(without)).sum()
        number = min(max(share * (1 - share) / variance, 1.0), len(similarities)) if variance > 0 else len(similarities)
        # Wilson: p with (share - p)² = z² p (1 - p) / n
        a, b, c = 1 + Z**2 / number, -(2 * share + Z**2 / number), share**2
        expected.append(min((-b + np.sqrt(max(b * b - 4 * a * c, 0))) / (2 * a), 1.0))
    # The end of a larger share is no lower.
    assert found.highest == pytest.approx(np.maximum.accumulate(expected), abs=2e-3)


@pytest.mark.parametrize(("authors", "each", "effect"), [(8, 6, 0.0), (8, 6, 1.5), (6, 20, 1.0), (40, 2, 1.0)])
def test_the_interval_covers(authors, each, effect):
    rng = np.random.default_rng(1)
    vectors, _ = simulated(rng, 1200, 1, effect)
    many = (vectors @ vectors.T)[np.triu_indices(1200, 1)]
    shares = np.array([0.1, 0.02, 0.005])
    levels = np.quantile(many, 1 - shares)
    covered = np.zeros(3)
    for _ in range(60):
        drawn, names = simulated(rng, authors, each, effect)
        similarities, left, right = unrelated_pairs(drawn, names)
        groups = author_groups([str(one) for one in names])
        found = Background.of(similarities, (groups[left], groups[right]))
        high = np.interp(-levels, -found.similarities, found.highest, left=found.highest[0], right=1.0)
        covered += high >= shares
    assert (covered / 60 >= 0.88).all()


def test_few_authors_have_no_interval():
    rng = np.random.default_rng(2)
    vectors, authors = simulated(rng, 4, 10, 0.0)
    similarities, left, right = unrelated_pairs(vectors, authors)
    groups = author_groups([str(one) for one in authors])
    assert Background.of(similarities, (groups[left], groups[right])).highest is None
    assert Background.of(similarities[:100]) is None


def test_many_authors_share_groups_of_like_size():
    names = [f"a{number}" for number in range(200) for _ in range(1 + number % 3)]
    sizes = np.bincount(author_groups(names))
    assert len(sizes) == 30
    assert sizes.max() - sizes.min() <= 6


def test_a_search_says_how_many_are_expected(made):
    with Atlas(made) as atlas:
        found = atlas.similar("ann/glue-0", 5)
        for one in found:
            if one.background is not None:
                assert one.expected_by_chance == pytest.approx(one.background * 8)
        among = atlas.similar("ann/glue-0", 5, other_authors=True)
        for one in among:
            if one.background is not None:
                assert one.expected_by_chance == pytest.approx(one.background * 6)
        assert "expected_by_chance" in plain(found[0])
