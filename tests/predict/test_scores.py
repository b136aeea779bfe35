"""Fits and scores against other solvers and loops, and the forms of an evaluation."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from indexer.errors import AtlasError
from query.questions.predict import classifier
from query.questions.predict.classifier import fit, none_share
from query.questions.predict.evaluation import cross_validate, evaluate_models
from query.questions.predict.scoring import (
    calibration_error,
    chance_scores,
    intervals,
    mean_scores,
    reliability,
    score_models,
)
from query.questions.predict.training_set import TrainingSet
from query.shared.statistics.authors import wilson
from tests.predict.simulated import SIMULATIONS, WAYS, labelled_models


@pytest.fixture(scope="module")
def fitted():
    found = SIMULATIONS["blurred"].draw(40, "a", seed=9)
    training = TrainingSet(found, 10)
    everyone = np.arange(len(found.models))
    importance = 1 / np.bincount(training.sweeps.of_model)[training.sweeps.of_model]
    shown, hidden = training.features(everyone), training.features(everyone, is_hidden=True)
    return fit(training, []), shown, hidden, importance


def terms_of(evidence, kind):
    both = [evidence.vectors.log_votes - evidence.log_common, evidence.vectors.share, evidence.log_common]
    return {"together": [*both, evidence.head], "vectors": both, "head": [evidence.log_common, evidence.head]}[kind]


@pytest.mark.parametrize("kind", WAYS)
def test_weights_maximise_the_penalised_likelihood(fitted, kind):
    fitted, shown, _, importance = fitted
    counted = importance if kind == "vectors" else importance * shown.has_head
    usual = {"together": [1.5, 0, 1.5, 1], "vectors": [1.5, 0, 1.5], "head": [1, 1]}[kind]

    def loss(weights):
        total = 0.5 * sum((one - other) ** 2 for one, other in zip(weights, usual, strict=True))
        for row in range(len(counted)):
            columns = np.flatnonzero(shown.present[row])
            scores = sum(w * term[row, columns] for w, term in zip(weights, terms_of(shown, kind), strict=True))
            logs = scores - np.log(np.exp(scores).sum())
            total -= counted[row] * (shown.truth[row, columns] * logs).sum()
        return total

    best = minimize(loss, usual, method="SLSQP", bounds=[(0, None)] * len(usual), options={"ftol": 1e-12})
    np.testing.assert_allclose(fitted.by(WAYS[kind]).weights, best.x, atol=1e-3)


def middle(values, weights):
    """The value up to which half of the weight lies."""
    pairs = sorted((value, weight) for value, weight in zip(values, weights, strict=True) if not math.isnan(value))
    total = 0.0
    for value, weight in pairs:
        total += weight
        if total >= sum(weight for _, weight in pairs) / 2 - 1e-12:
            return value
    return math.nan


@pytest.mark.parametrize("kind", WAYS)
def test_novelty_is_a_logistic_regression_without_negative_slopes(fitted, kind):
    fitted, shown, hidden, importance = fitted
    counted = importance if kind == "vectors" else importance * shown.has_head

    def signals(evidence):
        scores = sum(w * term for w, term in zip(fitted.by(WAYS[kind]).weights, terms_of(evidence, kind), strict=True))
        given = np.exp(np.where(evidence.present, scores, -np.inf))
        best = np.clip((given / given.sum(axis=1, keepdims=True)).max(axis=1), 1e-4, 1 - 1e-4)
        fit = np.where(evidence.has_head, np.where(evidence.present, evidence.head, -np.inf).max(axis=1), np.nan)
        of_head = [] if kind == "vectors" else [fit, evidence.recognised]
        return np.stack(
            [
                *([] if kind == "head" else [evidence.nearness, evidence.vectors.prominence]),
                *of_head,
                np.log(best / (1 - best)),
            ],
            axis=1,
        )

    known = counted * shown.truth.sum(axis=1)
    weights = np.concatenate([known, counted * known.sum() / counted.sum()])
    both = np.concatenate([signals(shown), signals(hidden)])
    found = fitted.by(WAYS[kind]).novelty
    for column in range(both.shape[1]):
        ends = [
            middle(part[:, column], heavy)
            for part, heavy in ((both[len(known) :], counted), (both[: len(known)], known))
        ]
        if ends[0] < ends[1]:
            assert [found.low[column], found.high[column]] == pytest.approx(ends)
            both[:, column] = np.clip(both[:, column], *ends)
        there = ~np.isnan(both[:, column])
        mean = np.average(both[there, column], weights=weights[there])
        assert found.centre[column] == pytest.approx(mean, abs=1e-6)
        variance = np.average((both[there, column] - mean) ** 2, weights=weights[there])
        assert found.spread[column] == pytest.approx(math.sqrt(variance), abs=1e-6)
    scaled = np.nan_to_num((both - found.centre) / found.spread)
    is_seen = np.repeat([1, 0], [len(known), len(known)])
    free = LogisticRegression(C=1.0, tol=1e-10, max_iter=5000).fit(scaled, is_seen, sample_weight=weights)

    def loss(parameters):
        odds = parameters[0] + scaled @ parameters[1:]
        return weights @ (np.logaddexp(0, odds) - is_seen * odds) + 0.5 * np.square(parameters[1:]).sum()

    start = [free.intercept_[0], *np.maximum(free.coef_[0], 0)]
    bounds = [(None, None)] + [(0, None)] * scaled.shape[1]
    best = minimize(loss, start, method="SLSQP", bounds=bounds, options={"ftol": 1e-13, "maxiter": 500}).x
    if (free.coef_[0] > 0).all():
        np.testing.assert_allclose(best, [free.intercept_[0], *free.coef_[0]], atol=2e-3)
    np.testing.assert_allclose([found.intercept, *found.slopes], best, atol=2e-3)


def test_the_share_of_none_follows_the_rule_of_succession():
    assert none_share(np.array([1.0, 1.0, 0.0]), np.array([1.0, 0.5, 0.5])) == pytest.approx(1.5 / 4)
    assert none_share(np.zeros(0), np.zeros(0)) == 0.5


# ---- scores, against loops ----


@pytest.fixture(scope="module")
def guesses():
    rng = np.random.default_rng(10)
    probabilities = rng.dirichlet(np.full(5, 0.4), size=200)
    truth = np.zeros((200, 5))
    for row in range(200):
        if row % 10:
            truth[row, rng.choice(5, p=probabilities[row])] = 1
        else:
            truth[row, rng.choice(5, size=2, replace=False)] = 0.5
    return probabilities, truth, rng.uniform(0.1, 1, size=200)


def test_scores_are_those_of_a_loop(guesses):
    probabilities, truth, importance = guesses
    totals = dict.fromkeys(("accuracy", "top3", "brier", "log_loss"), 0.0)
    for chances, true, counted in zip(probabilities.tolist(), truth.tolist(), importance.tolist(), strict=True):
        ranked = sorted(range(5), key=lambda column: -chances[column])
        totals["accuracy"] += counted * (true[ranked[0]] > 0)
        totals["top3"] += counted * any(true[column] > 0 for column in ranked[:3])
        totals["brier"] += counted * sum((p - t) ** 2 for p, t in zip(chances, true, strict=True))
        totals["log_loss"] -= counted * sum(t * math.log(p) for p, t in zip(chances, true, strict=True) if t)
    scores = score_models(probabilities, truth)
    got = mean_scores("together", scores, importance)
    for name, total in totals.items():
        assert getattr(got, name) == pytest.approx(total / importance.sum())
    error, bins = 0.0, reliability("together", scores, importance, np.arange(200) % 40)
    for number in range(10):
        inside = [row for row in range(200) if min(int(max(probabilities[row]) * 10), 9) == number]
        if inside:
            counted = [importance[row] for row in inside]
            said = np.average([max(probabilities[row]) for row in inside], weights=counted)
            right = np.average([truth[row, probabilities[row].argmax()] for row in inside], weights=counted)
            error += sum(counted) / importance.sum() * abs(said - right)
            (one,) = [one for one in bins if one.probability == pytest.approx(said)]
            assert (one.models, one.right) == (len(inside), pytest.approx(right))
            assert one.share == pytest.approx(sum(counted) / importance.sum())
    assert got.calibration_error == pytest.approx(error) == calibration_error(scores, importance)


def test_chance_is_the_mean_over_all_draws():
    present = np.array([[True, True, False, True], [True, False, False, False]])
    truth = np.array([[0.5, 0, 0, 0.5, 0], [0, 0, 0, 0, 1.0]])
    scores = chance_scores(present, truth)
    for row in range(2):
        answers = [column for column in range(5) if column == 4 or present[row, column]]
        firsts = list(itertools.permutations(answers, min(3, len(answers))))
        assert scores["accuracy"][row] == pytest.approx(np.mean([truth[row, drawn[0]] > 0 for drawn in firsts]))
        assert scores["top3"][row] == pytest.approx(
            np.mean([any(truth[row, c] > 0 for c in drawn) for drawn in firsts])
        )
        alike = np.array([1 / len(answers) if column in answers else 0 for column in range(5)])
        assert scores["brier"][row] == pytest.approx(np.square(alike - truth[row]).sum())
        assert scores["log_loss"][row] == pytest.approx(-(truth[row] * np.log(np.maximum(alike, 1e-9))).sum())


@pytest.mark.parametrize(("share", "count"), [(0.5, 10), (0.93, 40), (0.2, 7.5)])
def test_wilson_solves_its_equation(share, count):
    for end in wilson(share, count):
        assert abs(share - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / count))
    assert wilson(1.0, 10)[1] == pytest.approx(1.0)
    assert wilson(0.0, 10)[0] == 0.0


def test_intervals_are_over_whole_authors(guesses):
    """As wide as whole authors drawn again say, a little wider as ten are few; models alone would say less or more."""
    probabilities, truth, importance = guesses
    scores = score_models(probabilities, truth)
    authors = np.arange(200) // 20
    (got,) = intervals({"together": scores}, importance, authors)
    rng = np.random.default_rng(99)
    means = []
    for _ in range(4000):
        rows = np.concatenate([np.flatnonzero(authors == author) for author in rng.integers(0, 10, size=10)])
        means.append(np.average(scores["log_loss"][rows], weights=importance[rows]))
    low, high = got.log_loss
    assert low < np.average(scores["log_loss"], weights=importance) < high
    assert 1.0 < (high - low) / (2 * 1.96 * np.std(means)) < 1.5
    alone = intervals({"together": scores}, importance, np.arange(200))[0]
    assert alone.log_loss != got.log_loss


def test_fewer_than_five_authors_have_no_interval(guesses):
    probabilities, truth, importance = guesses
    scores = score_models(probabilities, truth)
    (four,) = intervals({"together": scores}, importance, np.arange(200) % 4)
    assert (four.accuracy, four.top3, four.brier, four.log_loss) == (None, None, None, None)
    assert four.reason == "too_few_authors"
    (five,) = intervals({"together": scores}, importance, np.arange(200) % 5)
    assert five.reason is None
    assert five.accuracy[0] < five.accuracy[1]
    bins = reliability("together", scores, importance, np.arange(200) % 4)
    assert all((one.low, one.high) == (None, None) for one in bins)
    result = evaluate_models(SIMULATIONS["clear"].draw(4, "a", seed=2))
    assert "No interval: it needs models of at least 5 authors, and there are 4." in result.notes
    assert json.loads(json.dumps(result.to_dict()))["intervals"][0] == {
        "evidence": "together", "accuracy": None, "top3": None, "brier": None, "log_loss": None,
        "reason": "too_few_authors",
    }  # fmt: skip
    assert result.figure()


# ---- forms ----


@pytest.mark.slow
def test_an_evaluation_in_every_form(tmp_path):
    found = SIMULATIONS["clear"].draw(30, "a", seed=11)
    result = evaluate_models(found, base="base", representation="input")
    plain = json.loads(json.dumps(result.to_dict()))
    assert (plain["models"], plain["authors"]) == (len(found.models), 30)
    assert plain["datasets"] == len({name for names in found.datasets for name in names})
    assert plain["with_head"] == sum(head.kind is not None for head in found.heads)
    assert [row["evidence"] for row in plain["scores"]] == [*WAYS, "majority", "chance"]
    assert all(row["accuracy"][0] <= row["accuracy"][1] for row in plain["intervals"])
    frame = result.to_df()
    assert frame["model"].tolist() == found.models
    weights = frame["weight"] / frame["weight"].sum()
    assert (weights * frame["right"]).sum() == pytest.approx(result.scores[0].accuracy)
    assert (weights * frame["log_loss"]).sum() == pytest.approx(result.scores[0].log_loss)
    pictures = {}
    for theme in ("light", "dark"):
        for suffix in ("png", "svg"):
            result.write(tmp_path / f"{theme}.{suffix}", theme=theme)
            pictures[theme, suffix] = (tmp_path / f"{theme}.{suffix}").read_bytes()
    assert len(set(pictures.values())) == 4
    result.write(tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == pictures["light", "svg"]
    for title in (b"vectors alone", b"head alone", b"together", b"probability of the best answer"):
        assert title in pictures["light", "svg"]
    assert evaluate_models(found, base="base", representation="input") == result


def test_points_and_bars_of_the_figure_are_the_bins():
    result = evaluate_models(SIMULATIONS["blurred"].draw(40, "a", seed=12))
    for panel, kind in zip(result.figure().axes, ("vectors", "head", "together"), strict=True):
        bins = [one for one in result.reliability if one.evidence == kind]
        points = [tuple(place) for one in panel.collections for place in one.get_offsets().tolist()]
        assert points == [pytest.approx((one.probability, one.right)) for one in bins]
        assert [bar.get_height() for bar in panel.patches] == pytest.approx([one.share for one in bins])
        assert all(
            bar.get_x() < one.probability < bar.get_x() + 0.1 for bar, one in zip(panel.patches, bins, strict=True)
        )


def test_too_few_to_calibrate_or_to_score_models(monkeypatch):
    with pytest.raises(AtlasError, match="nothing to evaluate"):
        evaluate_models(labelled_models(np.zeros((0, 3)), [], []))
    with pytest.raises(AtlasError, match="one author"):
        evaluate_models(labelled_models(np.eye(3), ["ann"] * 3, ["x", "y", "x"]))
    two = evaluate_models(labelled_models(np.eye(2), ["ann", "bob"], ["x", "y"]))
    assert not two.calibrated
    assert any("not calibrated" in note for note in two.notes)
    assert next(one for one in two.none_of_these if one.evidence == "vectors").share == 1
    with pytest.raises(ValueError, match="k must"):
        evaluate_models(labelled_models(np.eye(2), ["ann", "bob"], ["x", "y"]), k=0)
    found = SIMULATIONS["clear"].draw(12, "a", seed=13)
    assert evaluate_models(found).calibrated
    monkeypatch.setattr(classifier, "ENOUGH_MODELS", 10_000)
    assert not evaluate_models(found).calibrated


def test_several_datasets_share_the_truth():
    """Half of the models name two datasets: both count as right, and the probability is shared out."""
    rng = np.random.default_rng(14)
    centres = rng.normal(size=(4, 12))
    authors, datasets, vectors = [], [], []
    for author in range(30):
        for number in range(4):
            authors.append(f"author{author}")
            datasets.append({"a", "b"} if number == 0 else {f"d{number}"})
            vectors.append(centres[number] + 0.2 * rng.normal(size=12))
    found = labelled_models(vectors, authors, datasets)
    trial = cross_validate(TrainingSet(found, 10), 10)
    pairs = np.array([len(found.datasets[row]) == 2 for row in trial.rows])
    scores = trial.scores["vectors"]
    assert scores["accuracy"].mean() == 1
    assert scores["right"][pairs] == pytest.approx(0.5)
    assert scores["confidence"][pairs].mean() == pytest.approx(0.5, abs=0.03)
    assert scores["confidence"][~pairs].mean() > 0.9
