"""z-scores and p-values: chance is uniform, what is planted is found, and a model without evidence has none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest

from query.models.texts import Texts
from query.questions.ask.evidence import reference_sets
from query.questions.ask.scoring import Null, null_of, standing_out, tail
from query.questions.ask.scoring import score as score_against


def score(kinds):
    """From the raw scores of the reference and of the asked sets, and the weight, of each kind."""
    null, raw, weights = zip(*kinds, strict=True)
    return score_against(Null.of_arrays(null_of(null, weights).arrays()), raw)


def scores(random, sets: int, models: int) -> np.ndarray:
    """Raw scores by chance: models have their own means and spreads, sets of texts their own spreads."""
    means, spreads = random.normal(0, 0.3, models), random.uniform(0.02, 0.3, models)
    return means + spreads * random.normal(size=(sets, models)) * random.uniform(0.5, 2, (sets, 1))


@pytest.mark.parametrize("models", [6, 40])
def test_the_p_values_of_chance_are_uniform(models):
    random = np.random.default_rng(0)
    p_values = []
    for _ in range(40):
        raw_scores = [scores(random, 40, models) for _ in range(2)]
        kinds = [
            (kind_scores[:34], kind_scores[34:], weight)
            for kind_scores, weight in zip(raw_scores, (0.7, 0.3), strict=True)
        ]
        p_values.append(score(kinds).p.ravel())
    p = np.concatenate(p_values)
    assert kstest(p, "uniform").statistic < 0.05
    assert 0.03 < (p < 0.05).mean() < 0.07


def test_planted_models_have_the_smallest_p():
    random = np.random.default_rng(1)
    vocabulary, vectors = scores(random, 35, 50), scores(random, 35, 50)
    vocabulary[34, :5] += 2
    vectors[34, :5] += 2
    scored = score([(vocabulary[:34], vocabulary[34:], 0.7), (vectors[:34], vectors[34:], 0.3)])
    assert set(np.argsort(scored.p[0], kind="stable")[:5]) == set(range(5))
    assert standing_out(scored.p[0], 0.2) in range(5, 8)


def test_models_without_one_kind_of_evidence_are_compared_by_the_other():
    random = np.random.default_rng(2)
    vocabulary, vectors = scores(random, 60, 30), scores(random, 60, 30)
    vocabulary[:, 20:] = np.nan
    vectors[:, 29] = vocabulary[:, 29] = np.nan
    scored = score([(vocabulary[:34], vocabulary[34:], 0.7), (vectors[:34], vectors[34:], 0.3)])
    assert np.isnan(scored.p[:, 29]).all()
    assert not np.isnan(scored.p[:, :29]).any()
    assert 0.02 < (scored.p[:, 20:29] < 0.05).mean() < 0.1


def test_standard_scores_are_those_of_loops():
    random = np.random.default_rng(3)
    null, raw = scores(random, 12, 7), scores(random, 2, 7)

    def among(others, row):
        z = (row - others.mean(axis=0)) / others.std(axis=0, ddof=1)
        lower = np.median(z) - np.quantile(z, 0.1587)
        return (z - 7 / 12 * np.median(z)) / np.sqrt((7 * lower**2 + 5) / 12)

    left_out = np.array([among(np.delete(null, row, axis=0), null[row]) for row in range(12)])
    reference = null_of([null], [1.0])
    assert reference.patterns[0][2] == pytest.approx(np.sort(left_out / left_out.std(), axis=None))
    expected = np.array([among(null, row) for row in raw]) / left_out.std()
    scored = score_against(reference, [raw])
    assert scored.z == pytest.approx(expected)
    higher = (left_out.ravel() / left_out.std() >= expected[..., None]).sum(axis=2)
    assert scored.p == pytest.approx((1 + higher) / (1 + 84))
    assert tail(np.arange(9.0), np.array([8.5, 8.0, -1.0])) == pytest.approx([0.1, 0.2, 1.0])


def test_false_discoveries():
    assert standing_out(np.array([0.001, 0.02, 0.9, np.nan]), 0.05) == 2
    assert standing_out(np.array([0.2, 0.5]), 0.05) == 0
    assert standing_out(np.array([]), 0.05) == 0


def test_the_reference_texts_are_of_many_kinds():
    sets = reference_sets()
    texts = [text for texts_of_set in sets.values() for text in texts_of_set]
    assert len(sets) >= 30
    assert len(texts) == len(set(texts)) >= 300
    assert all(len(texts_of_set) >= 8 for texts_of_set in sets.values())
    own_sets = reference_sets(Texts("mine", tuple(map(str, range(30))), 30))
    assert [len(texts_of_set) for texts_of_set in own_sets.values()] == [12, 12, 6]
