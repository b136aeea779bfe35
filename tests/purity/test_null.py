"""p where nothing is true: authors with places of their own, of whom some own their datasets."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, kstest

from query.clusters.agreement import compared_across
from query.purity.study import purity
from tests.purity.loops import Models

RUNS = 100


def nothing(seed, authors=14, care=0.3):
    """Each author has a place; every other one has one dataset, the rest two; every fourth owns one of them."""
    rng = np.random.default_rng(seed)
    vectors, labels, names = [], [], []
    for author in range(authors):
        manner = rng.standard_normal(8)
        choices = [f"d{number}" for number in rng.choice(4, 1 + author % 2, replace=False)]
        if author % 4 == 3:
            choices[-1] = f"own{author}"
        for label in choices:
            place = manner + rng.standard_normal(8)
            for _ in range(int(rng.integers(1, 9 if author % 4 == 3 else 4))):
                vectors.append(place + care * rng.standard_normal(8))
                labels.append(label)
                names.append(f"a{author}")
    return Models(np.array(vectors), labels, names)


def check_uniform(found):
    found = np.array(found)
    for level in (0.05, 0.1, 0.25, 0.5):
        low, high = binom.interval(0.999, len(found), level)
        assert low <= (found <= level).sum() <= high, level
    assert kstest(found, "uniform").pvalue > 0.001


@pytest.mark.study
def test_cross_author_p_is_uniform_with_sweeps_and_owned_datasets():
    check_uniform([purity(nothing(seed), draws=99, seed=seed).cross_author.p_value for seed in range(RUNS)])


def test_plain_p_is_not_where_authors_have_places_of_their_own():
    """That is what it says: the labels are exchanged freely, and one uploader's sweep shows."""
    found = np.array([purity(nothing(seed), draws=39, seed=seed).p_value for seed in range(40)])
    assert (found <= 0.05).mean() > 0.5


@pytest.mark.study
def test_plain_p_is_uniform_where_models_are_independent():
    found = []
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        m = nothing(seed)
        m.vectors = rng.standard_normal(m.vectors.shape).astype(np.float32)
        m.vectors /= np.linalg.norm(m.vectors, axis=1, keepdims=True)
        found.append(purity(m, draws=99, seed=seed).p_value)
    check_uniform(found)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["place", "author"])
def test_clusters_across_authors_p_is_uniform(by):
    """Clusters that follow each author's hand, or each sweep's place, and know nothing of datasets."""
    found = []
    for seed in range(RUNS):
        m = nothing(seed)
        rng = np.random.default_rng(seed)
        datasets = [next(iter(names)) for names in m.datasets]
        units = m.authors if by == "author" else list(zip(m.authors, datasets, strict=True))
        cluster = {unit: int(rng.integers(5)) for unit in dict.fromkeys(units)}
        clusters = np.array([cluster[unit] for unit in units])
        row, _ = compared_across("datasets", "cross_author", clusters, datasets, m.authors, 99, rng)
        found.append(row.p_value)
    check_uniform(found)
