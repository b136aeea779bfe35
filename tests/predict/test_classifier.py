"""Probabilities are frequencies, and no author has a part in the fit that predicts that author."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from query.models.population import Head
from query.questions.predict.classifier import NONE_OF_THESE, fit, training_rows, uncalibrated
from query.questions.predict.evaluation import evaluate_models
from query.questions.predict.predict import predict_target
from query.questions.predict.scoring import mean_scores, score_models
from query.questions.predict.training_set import TrainingSet
from query.shared.statistics.authors import units_of
from tests.predict.simulated import (
    CLASSIFIER,
    SIMULATIONS,
    WAYS,
    Simulation,
    joined,
    labelled_models,
    target,
    unlabelled,
)

pytestmark = pytest.mark.slow


@cache
def learnt(name, seed):
    """Of 200 authors, what is fitted; and the models of 200 others, one of each sweep, so that they are independent."""
    simulation = SIMULATIONS[name]
    seen = simulation.draw(200, "a", seed=100 + seed)
    fresh = replace(simulation, longest_sweep=1).draw(200, "b", seed=200 + seed)
    training = TrainingSet(joined(seen, unlabelled(fresh)), 10)
    names = list(training.sweeps.answers)
    truth = np.zeros((len(fresh.models), len(names) + 1))
    for row, (dataset,) in enumerate(fresh.datasets):
        truth[row, names.index(dataset) if dataset in names else -1] = 1
    places = np.arange(len(seen.models), len(training.rows))
    return fit(training, []), training.features(places), truth


@cache
def fresh_draws(name, seed, is_fitted=True):
    """The probabilities of each answer for the models of the 200 others, and what is true."""
    fitted, features, truth = learnt(name, seed)
    return (fitted if is_fitted else uncalibrated(fitted.none)).probabilities(features), truth


def best_answers(probabilities, truth):
    """(probability, whether it came true) of each model's best answer."""
    rows, top = np.arange(len(truth)), probabilities.argmax(axis=1)
    return np.stack([probabilities[rows, top], truth[rows, top]])


def deviation(chance, happened):
    """How far what happened is from what was to be expected, in standard errors.

    The binomial variance counts twice: what was fitted came from as many sweeps as are now predicted.
    """
    return float((happened - chance).sum() / math.sqrt(2 * (chance * (1 - chance)).sum()))


def largest_deviation(chance, happened):
    """The largest of those of the tenths of probability in which at least 30 models are."""
    tenths = np.minimum((chance * 10).astype(int), 9)
    insides = [tenths == tenth for tenth in range(10) if (tenths == tenth).sum() >= 30]
    return max(abs(deviation(chance[inside], happened[inside])) for inside in insides)


SEEDS = (0, 1, 2, 3)


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("name", list(SIMULATIONS))
def test_probabilities_match_frequencies_on_fresh_draws(name, kind):
    draws = [fresh_draws(name, seed) for seed in SEEDS]
    chance, right = np.concatenate([best_answers(found[kind], truth) for found, truth in draws], axis=1)
    assert abs(deviation(chance, right)) < 3.3
    assert largest_deviation(chance, right) < 3.9  # of up to ten


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("name", list(SIMULATIONS))
def test_none_of_these_is_as_frequent_as_it_is_probable(name, kind):
    draws = [fresh_draws(name, seed) for seed in SEEDS]
    nothing, true = np.concatenate([(found[kind][:, -1], truth[:, -1]) for found, truth in draws], axis=1)
    assert abs(deviation(nothing, true)) < 3.3


@pytest.mark.parametrize("kind", WAYS)
def test_without_the_fit_neither_holds(kind):
    draws = [fresh_draws("blurred", seed, is_fitted=False) for seed in SEEDS]
    chance, right = np.concatenate([best_answers(found[kind], truth) for found, truth in draws], axis=1)
    assert largest_deviation(chance, right) > 5


def test_what_is_reported_is_what_fresh_draws_show():
    """Leave-one-author-out on 200 authors says of the next 200 what then comes true."""
    found, truth = fresh_draws("blurred", 1)
    reported = {one.evidence: one for one in evaluate_models(SIMULATIONS["blurred"].draw(200, "a", seed=101)).scores}
    for kind in WAYS:
        seen = mean_scores(kind, score_models(found[kind], truth), np.ones(len(truth)))
        assert reported[kind].accuracy == pytest.approx(seen.accuracy, abs=0.05)
        assert reported[kind].brier == pytest.approx(seen.brier, abs=0.05)
        assert reported[kind].calibration_error < 0.06


def test_both_kinds_of_evidence_are_better_than_either_and_all_beat_the_baselines():
    result = evaluate_models(SIMULATIONS["blurred"].draw(120, "a", seed=3))
    loss = {one.evidence: one.log_loss for one in result.scores}
    assert loss["together"] < min(loss["vectors"], loss["head"])
    assert max(loss["vectors"], loss["head"]) < min(loss["majority"], loss["chance"])


def test_a_model_of_an_unseen_dataset_is_predicted_as_none_of_these():
    simulation = Simulation.of(noise=0.5, named=1.0, headless=0.0, novel=0.1)
    found = simulation.draw(150, "a", seed=4)
    rng = np.random.default_rng(9)
    by_vectors = []
    for number in range(10):
        vector = rng.normal(size=24)
        head = Head(CLASSIFIER, 3, frozenset({f"new{number} x", f"new{number} y", "z"}))
        unseen = target(vector, head, author="zoe")
        best = predict_target(unseen, found, k=10).answers[0]
        assert best.dataset == NONE_OF_THESE
        assert best.probability > 0.8
        by_vectors.append(best.vectors)
    assert np.mean(by_vectors) > 5 * 0.1  # the share of new datasets; some vectors lie near a known one by chance
    result = evaluate_models(found)
    together = next(one for one in result.none_of_these if one.evidence == "together")
    assert together.share == pytest.approx(0.1, abs=0.06)
    assert together.probability == pytest.approx(together.share, abs=0.03)
    assert together.hidden_accuracy > 0.9
    assert together.hidden_probability > 0.8


def test_shuffled_labels_leave_nothing_but_chance():
    found = SIMULATIONS["clear"].draw(150, "a", seed=5)
    rng = np.random.default_rng(6)
    shuffled = [found.datasets[row] for row in rng.permutation(len(found.models))]
    honest = {one.evidence: one for one in evaluate_models(found).scores}
    result = {one.evidence: one for one in evaluate_models(replace(found, datasets=shuffled)).scores}
    for kind in WAYS:
        assert result[kind].accuracy < result["majority"].accuracy + 0.04
        assert result[kind].accuracy < honest[kind].accuracy - 0.2
        assert abs(result[kind].brier - result["majority"].brier) < 0.05
        assert result[kind].log_loss == pytest.approx(result["majority"].log_loss, abs=0.15)


# ---- who has a part in a fit ----


def test_nothing_of_an_author_has_a_part_in_predicting_that_author():
    """An author's labels are changed: the predictions for this author stay what they were."""
    found = SIMULATIONS["blurred"].draw(25, "a", seed=7)
    author = max(set(found.authors), key=found.authors.count)
    mine = [row for row, name in enumerate(found.authors) if name == author]
    common = sorted({name for names in found.datasets for name in names if name in ("d0", "d1", "d2", "d3")})
    altered = list(found.datasets)
    for row in mine:
        altered[row] = frozenset({common[(row + 1) % len(common)]})
    authors = len(set(found.authors))
    before = evaluate_models(found, folds=authors).outcomes
    after = evaluate_models(replace(found, datasets=altered), folds=authors).outcomes
    for row in mine:
        assert after[row].answer == before[row].answer
        assert after[row].probability == pytest.approx(before[row].probability, abs=1e-6)
        assert after[row].none == pytest.approx(before[row].none, abs=1e-6)
    others = [row for row in range(len(altered)) if row not in mine]
    assert any(after[row].probability != before[row].probability for row in others)


def test_authors_are_dealt_whole_and_evenly():
    authors = np.array([0] * 50 + [1] * 30 + [2] * 30 + [3] * 10 + [4] * 10 + [5])
    units = units_of(authors, 3)
    groups = [np.flatnonzero(units == unit) for unit in range(3)]
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(authors)))
    assert sorted(len(group) for group in groups) == [40, 41, 50]
    for one, other in itertools.combinations(groups, 2):
        assert not set(authors[one]) & set(authors[other])
    assert len(set(units_of(authors, 10).tolist())) == 6


def test_training_rows_take_turns_among_sweeps():
    sweep = np.array([0, 0, 0, 1, 2, 2, -1, 3])
    withheld = np.array([False] * 7 + [True])
    assert training_rows(sweep, withheld).tolist() == [0, 1, 2, 3, 4, 5]
    assert training_rows(sweep, withheld, most=3).tolist() == [0, 3, 4]
    assert training_rows(sweep, withheld, most=5).tolist() == [0, 1, 3, 4, 5]


def test_a_sweep_weighs_as_one_model():
    """The same models, one author's run repeated forty times: the fit hardly moves, and the scores stay."""
    found = SIMULATIONS["blurred"].draw(60, "a", seed=8)
    last = len(found.models) - 1
    again = replace(
        found,
        table=found.table.take([*range(last + 1), *[last] * 40]),
        models=found.models + [f"again/{number}" for number in range(40)],
        authors=found.authors + found.authors[last:] * 40,
        datasets=found.datasets + found.datasets[last:] * 40,
        heads=found.heads + found.heads[last:] * 40,
    )
    once, often = fit(TrainingSet(found, 10), []), fit(TrainingSet(again, 10), [])
    for kind in WAYS:
        np.testing.assert_allclose(often.by(WAYS[kind]).weights, once.by(WAYS[kind]).weights, atol=0.06)
    assert often.none == pytest.approx(once.none)
    first, second = evaluate_models(found), evaluate_models(again)
    assert second.models == first.models + 40
    assert second.sweeps == first.sweeps
    assert second.scores[0].accuracy == pytest.approx(first.scores[0].accuracy, abs=0.02)


def test_without_a_head_vectors_decide_and_a_head_says_what_is_true_on_the_whole():
    found = SIMULATIONS["blurred"].draw(60, "a", seed=16)
    training = TrainingSet(found, 10)
    fitted = fit(training, [])
    features = training.features(np.arange(len(found.models)))
    headless = np.array([head.kind is None for head in found.heads])
    chances = fitted.probabilities(features)
    np.testing.assert_array_equal(chances["together"][headless], chances["vectors"][headless])
    assert (chances["together"][~headless] != chances["vectors"][~headless]).any(axis=1).all()
    np.testing.assert_allclose(chances["head"][headless, -1], fitted.none)
    assert chances["head"][~headless, -1].std() > 0.05


@pytest.mark.study
def test_five_thousand_models_are_evaluated():
    rng = np.random.default_rng(15)
    centres = rng.normal(size=(400, 2052)).astype(np.float32)
    number = rng.choice(400, size=5000, p=1 / np.arange(1, 401) / (1 / np.arange(1, 401)).sum())
    vectors = 0.3 * centres[number] + rng.normal(size=(5000, 2052)).astype(np.float32)
    heads = [Head(CLASSIFIER, int(one % 5 + 2), frozenset({f"{one} a", f"{one} b"})) for one in number]
    found = labelled_models(vectors, [f"author{row // 2}" for row in range(5000)], [f"d{one}" for one in number], heads)
    result = evaluate_models(found)
    assert result.scores[0].accuracy > 0.9
