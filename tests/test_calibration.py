"""Calibration: probabilities against frequencies in a known world, fits against other solvers, scores against loops."""

from __future__ import annotations

import itertools
import json
import math
import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from indexer.errors import AtlasError
from query.predict import predict_subject
from query.prediction import learning
from query.prediction.answers import EVIDENCE, NONE_OF_THESE, none_share, uncalibrated
from query.prediction.calibration import evaluate_documents
from query.prediction.evidence import Witnesses
from query.prediction.head_evidence import Head
from query.prediction.learning import Learnt, learn, lessons
from query.prediction.out_of_author import deal, try_all
from query.prediction.scoring import calibration_error, intervals, judge, judge_chance, reliability, score, wilson
from query.prediction.subject import Subject
from tests.planted_documents import CLASSIFIER, World, documents, joined, undocumented

WORLDS = {
    "clear": World.of(noise=0.6),
    "blurred": World.of(noise=1.0),
    "rarely new": World.of(noise=1.0, novel=0.03),
}


# ---- probabilities and frequencies ----


@cache
def fresh_draws(name, seed, is_fitted=True):
    """Learn from 200 authors; predict models of 200 others, one of each sweep, so that they are independent."""
    world = WORLDS[name]
    seen = world.draw(200, "a", seed=100 + seed)
    fresh = replace(world, longest_sweep=1).draw(200, "b", seed=200 + seed)
    witnesses = Witnesses.of(joined(seen, undocumented(fresh)), 10)
    learnt = learn(witnesses, [])
    if not is_fitted:
        learnt = Learnt({kind: uncalibrated(kind, learnt.none) for kind in EVIDENCE}, learnt.none, False)
    names = list(witnesses.voices.answers)
    truth = np.zeros((len(fresh.models), len(names) + 1))
    for row, (dataset,) in enumerate(fresh.datasets):
        truth[row, names.index(dataset) if dataset in names else -1] = 1
    places = np.arange(len(seen.models), len(witnesses.rows))
    return learnt.probabilities(witnesses.evidence(places)), truth


def best_answers(probabilities, truth):
    """(probability, whether it came true) of each model's best answer."""
    rows, top = np.arange(len(truth)), probabilities.argmax(axis=1)
    return np.stack([probabilities[rows, top], truth[rows, top]])


def deviation(chance, happened):
    """How far what happened is from what was to be expected, in standard errors.

    The binomial variance counts twice: what was learnt came from as many sweeps as are now predicted.
    """
    return float((happened - chance).sum() / math.sqrt(2 * (chance * (1 - chance)).sum()))


def largest_deviation(chance, happened):
    """The largest of those of the tenths of probability in which at least 30 models are."""
    tenths = np.minimum((chance * 10).astype(int), 9)
    insides = [tenths == tenth for tenth in range(10) if (tenths == tenth).sum() >= 30]
    return max(abs(deviation(chance[inside], happened[inside])) for inside in insides)


SEEDS = (0, 1, 2, 3)


@pytest.mark.parametrize("kind", EVIDENCE)
@pytest.mark.parametrize("name", list(WORLDS))
def test_probabilities_match_frequencies_on_fresh_draws(name, kind):
    draws = [fresh_draws(name, seed) for seed in SEEDS]
    chance, right = np.concatenate([best_answers(found[kind], truth) for found, truth in draws], axis=1)
    assert abs(deviation(chance, right)) < 3.3
    assert largest_deviation(chance, right) < 3.9  # of up to ten


@pytest.mark.parametrize("kind", EVIDENCE)
@pytest.mark.parametrize("name", list(WORLDS))
def test_none_of_these_is_as_frequent_as_it_is_probable(name, kind):
    draws = [fresh_draws(name, seed) for seed in SEEDS]
    nothing, true = np.concatenate([(found[kind][:, -1], truth[:, -1]) for found, truth in draws], axis=1)
    assert abs(deviation(nothing, true)) < 3.3


@pytest.mark.parametrize("kind", EVIDENCE)
def test_without_the_fit_neither_holds(kind):
    draws = [fresh_draws("blurred", seed, is_fitted=False) for seed in SEEDS]
    chance, right = np.concatenate([best_answers(found[kind], truth) for found, truth in draws], axis=1)
    assert largest_deviation(chance, right) > 5


def test_what_is_reported_is_what_fresh_draws_show():
    """Leave-one-author-out on 200 authors says of the next 200 what then comes true."""
    found, truth = fresh_draws("blurred", 1)
    reported = {one.evidence: one for one in evaluate_documents(WORLDS["blurred"].draw(200, "a", seed=101)).scores}
    for kind in EVIDENCE:
        seen = score(kind, judge(found[kind], truth), np.ones(len(truth)))
        assert reported[kind].accuracy == pytest.approx(seen.accuracy, abs=0.05)
        assert reported[kind].brier == pytest.approx(seen.brier, abs=0.05)
        assert reported[kind].calibration_error < 0.06


def test_both_kinds_of_evidence_are_better_than_either_and_all_beat_the_baselines():
    result = evaluate_documents(WORLDS["blurred"].draw(120, "a", seed=3))
    loss = {one.evidence: one.log_loss for one in result.scores}
    assert loss["together"] < min(loss["vectors"], loss["head"])
    assert max(loss["vectors"], loss["head"]) < min(loss["majority"], loss["chance"])


def test_a_model_of_an_unseen_dataset_gets_none_of_these():
    world = World.of(noise=0.5, named=1.0, headless=0.0, novel=0.1)
    found = world.draw(150, "a", seed=4)
    rng = np.random.default_rng(9)
    for number in range(5):
        vector = rng.normal(size=24)
        head = Head(CLASSIFIER, 3, frozenset({f"new{number} x", f"new{number} y", "z"}))
        facts = {"model_id": None, "declared": (), "repeats": (), "notes": ()}
        unseen = Subject(
            "zoe/m", "base", "zoe", vector=(vector / np.linalg.norm(vector)).astype(np.float32), head=head, **facts
        )
        best = predict_subject(unseen, found, k=10).answers[0]
        assert best.dataset == NONE_OF_THESE
        assert best.probability > 0.8
        assert best.vectors > 3 * 0.1  # the share of new datasets
    result = evaluate_documents(found)
    together = next(one for one in result.none_of_these if one.evidence == "together")
    assert together.share == pytest.approx(0.1, abs=0.06)
    assert together.probability == pytest.approx(together.share, abs=0.03)
    assert together.hidden_accuracy > 0.9
    assert together.hidden_probability > 0.8


def test_shuffled_labels_leave_nothing_but_chance():
    found = WORLDS["clear"].draw(150, "a", seed=5)
    rng = np.random.default_rng(6)
    shuffled = [found.datasets[row] for row in rng.permutation(len(found.models))]
    honest = {one.evidence: one for one in evaluate_documents(found).scores}
    result = {one.evidence: one for one in evaluate_documents(replace(found, datasets=shuffled)).scores}
    for kind in EVIDENCE:
        assert result[kind].accuracy < result["majority"].accuracy + 0.04
        assert result[kind].accuracy < honest[kind].accuracy - 0.2
        assert abs(result[kind].brier - result["majority"].brier) < 0.05
        assert result[kind].log_loss == pytest.approx(result["majority"].log_loss, abs=0.15)


# ---- who learns from whom ----


def test_nothing_of_an_author_has_a_part_in_judging_that_author():
    """An author's labels are changed: the predictions for this author stay what they were."""
    found = WORLDS["blurred"].draw(25, "a", seed=7)
    author = max(set(found.authors), key=found.authors.count)
    mine = [row for row, name in enumerate(found.authors) if name == author]
    common = sorted({name for names in found.datasets for name in names if name in ("d0", "d1", "d2", "d3")})
    altered = list(found.datasets)
    for row in mine:
        altered[row] = frozenset({common[(row + 1) % len(common)]})
    authors = len(set(found.authors))
    before = evaluate_documents(found, folds=authors).outcomes
    after = evaluate_documents(replace(found, datasets=altered), folds=authors).outcomes
    for row in mine:
        assert after[row].answer == before[row].answer
        assert after[row].probability == pytest.approx(before[row].probability, abs=1e-6)
        assert after[row].none == pytest.approx(before[row].none, abs=1e-6)
    others = [row for row in range(len(altered)) if row not in mine]
    assert any(after[row].probability != before[row].probability for row in others)


def test_authors_are_dealt_whole_and_evenly():
    authors = np.array([0] * 50 + [1] * 30 + [2] * 30 + [3] * 10 + [4] * 10 + [5])
    groups = deal(authors, 3)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(authors)))
    assert sorted(len(group) for group in groups) == [40, 41, 50]
    for one, other in itertools.combinations(groups, 2):
        assert not set(authors[one]) & set(authors[other])
    assert len(deal(authors, 10)) == 6


def test_lessons_take_turns_among_voices():
    voice = np.array([0, 0, 0, 1, 2, 2, -1, 3])
    withheld = np.array([False] * 7 + [True])
    assert lessons(voice, withheld).tolist() == [0, 1, 2, 3, 4, 5]
    assert lessons(voice, withheld, most=3).tolist() == [0, 3, 4]
    assert lessons(voice, withheld, most=5).tolist() == [0, 1, 3, 4, 5]


def test_a_sweep_weighs_as_one_model():
    """The same models, one author's run repeated forty times: the fit hardly moves, and the scores stay."""
    found = WORLDS["blurred"].draw(60, "a", seed=8)
    last = len(found.models) - 1
    again = replace(
        found,
        vectors=np.concatenate([found.vectors, np.repeat(found.vectors[last:], 40, axis=0)]),
        models=found.models + [f"again/{number}" for number in range(40)],
        authors=found.authors + found.authors[last:] * 40,
        datasets=found.datasets + found.datasets[last:] * 40,
        heads=found.heads + found.heads[last:] * 40,
    )
    once, often = learn(Witnesses.of(found, 10), []), learn(Witnesses.of(again, 10), [])
    for kind in EVIDENCE:
        np.testing.assert_allclose(often.calibrations[kind].weights, once.calibrations[kind].weights, atol=0.06)
    assert often.none == pytest.approx(once.none)
    first, second = evaluate_documents(found), evaluate_documents(again)
    assert second.models == first.models + 40
    assert second.sweeps == first.sweeps
    assert second.scores[0].accuracy == pytest.approx(first.scores[0].accuracy, abs=0.02)


def test_without_a_head_vectors_decide_and_a_head_says_what_is_true_on_the_whole():
    found = WORLDS["blurred"].draw(60, "a", seed=16)
    witnesses = Witnesses.of(found, 10)
    learnt = learn(witnesses, [])
    evidence = witnesses.evidence(np.arange(len(found.models)))
    headless = np.array([head.kind is None for head in found.heads])
    chances = learnt.probabilities(evidence)
    np.testing.assert_array_equal(chances["together"][headless], chances["vectors"][headless])
    assert (chances["together"][~headless] != chances["vectors"][~headless]).any(axis=1).all()
    np.testing.assert_allclose(chances["head"][headless, -1], learnt.none)
    assert chances["head"][~headless, -1].std() > 0.05


# ---- fits, against other solvers ----


@pytest.fixture(scope="module")
def fitted():
    found = WORLDS["blurred"].draw(40, "a", seed=9)
    witnesses = Witnesses.of(found, 10)
    everyone = np.arange(len(found.models))
    importance = 1 / np.bincount(witnesses.voices.of_model)[witnesses.voices.of_model]
    shown, hidden = witnesses.evidence(everyone), witnesses.evidence(everyone, is_hidden=True)
    return learn(witnesses, []), shown, hidden, importance


def terms_of(evidence, kind):
    both = [evidence.log_votes, evidence.share, evidence.log_common]
    return {"together": [*both, evidence.head], "vectors": both, "head": [evidence.log_common, evidence.head]}[kind]


@pytest.mark.parametrize("kind", EVIDENCE)
def test_weights_maximise_the_penalised_likelihood(fitted, kind):
    learnt, shown, _, importance = fitted
    counted = importance if kind == "vectors" else importance * shown.has_head
    usual = {"together": [1.5, 0, 0, 1], "vectors": [1.5, 0, 0], "head": [1, 1]}[kind]

    def loss(weights):
        total = 0.5 * sum((one - other) ** 2 for one, other in zip(weights, usual, strict=True))
        for row in range(len(counted)):
            columns = np.flatnonzero(shown.present[row])
            scores = sum(w * term[row, columns] for w, term in zip(weights, terms_of(shown, kind), strict=True))
            logs = scores - np.log(np.exp(scores).sum())
            total -= counted[row] * (shown.truth[row, columns] * logs).sum()
        return total

    best = minimize(loss, usual, method="BFGS", options={"gtol": 1e-6})
    np.testing.assert_allclose(learnt.calibrations[kind].weights, best.x, atol=1e-3)


@pytest.mark.parametrize("kind", EVIDENCE)
def test_familiarity_is_the_logistic_regression_of_scikit_learn(fitted, kind):
    learnt, shown, hidden, importance = fitted
    calibration = learnt.calibrations[kind]
    counted = importance if kind == "vectors" else importance * shown.has_head

    def signs(evidence):
        scores = sum(w * term for w, term in zip(calibration.weights, terms_of(evidence, kind), strict=True))
        given = np.exp(np.where(evidence.present, scores, -np.inf))
        best = np.clip((given / given.sum(axis=1, keepdims=True)).max(axis=1), 1e-4, 1 - 1e-4)
        fit = np.where(evidence.has_head, np.where(evidence.present, evidence.head, -np.inf).max(axis=1), np.nan)
        of_head = [] if kind == "vectors" else [fit, evidence.recognised]
        return np.stack(
            [*([] if kind == "head" else [evidence.prominence]), *of_head, np.log(best / (1 - best))], axis=1
        )

    known = counted * shown.truth.sum(axis=1)
    weights = np.concatenate([known, counted * known.sum() / counted.sum()])
    both = np.concatenate([signs(shown), signs(hidden)])
    found = calibration.familiarity
    for column in range(both.shape[1]):
        there = ~np.isnan(both[:, column])
        mean = np.average(both[there, column], weights=weights[there])
        assert found.centre[column] == pytest.approx(mean, abs=1e-6)
        variance = np.average((both[there, column] - mean) ** 2, weights=weights[there])
        assert found.spread[column] == pytest.approx(math.sqrt(variance), abs=1e-6)
    scaled = np.nan_to_num((both - found.centre) / found.spread)
    is_seen = np.repeat([1, 0], [len(known), len(known)])
    other = LogisticRegression(C=1.0, tol=1e-10, max_iter=5000).fit(scaled, is_seen, sample_weight=weights)
    np.testing.assert_allclose(found.slopes, other.coef_[0], atol=2e-3)
    assert found.intercept == pytest.approx(other.intercept_[0], abs=2e-3)


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
    judged = judge(probabilities, truth)
    got = score("together", judged, importance)
    for name, total in totals.items():
        assert getattr(got, name) == pytest.approx(total / importance.sum())
    error, bins = 0.0, reliability("together", judged, importance)
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
    assert got.calibration_error == pytest.approx(error) == calibration_error(judged, importance)


def test_chance_is_the_mean_over_all_draws():
    present = np.array([[True, True, False, True], [True, False, False, False]])
    truth = np.array([[0.5, 0, 0, 0.5, 0], [0, 0, 0, 0, 1.0]])
    judged = judge_chance(present, truth)
    for row in range(2):
        answers = [column for column in range(5) if column == 4 or present[row, column]]
        firsts = list(itertools.permutations(answers, min(3, len(answers))))
        assert judged.accuracy[row] == pytest.approx(np.mean([truth[row, drawn[0]] > 0 for drawn in firsts]))
        assert judged.top3[row] == pytest.approx(np.mean([any(truth[row, c] > 0 for c in drawn) for drawn in firsts]))
        alike = np.array([1 / len(answers) if column in answers else 0 for column in range(5)])
        assert judged.brier[row] == pytest.approx(np.square(alike - truth[row]).sum())
        assert judged.log_loss[row] == pytest.approx(-(truth[row] * np.log(np.maximum(alike, 1e-9))).sum())


@pytest.mark.parametrize(("share", "count"), [(0.5, 10), (0.93, 40), (0.2, 7.5)])
def test_wilson_solves_its_equation(share, count):
    for end in wilson(share, count):
        assert abs(share - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / count))
    assert wilson(1.0, 10)[1] == pytest.approx(1.0)
    assert wilson(0.0, 10)[0] == 0.0


def test_intervals_draw_whole_authors(guesses):
    probabilities, truth, importance = guesses
    judged = judge(probabilities, truth)
    authors = np.arange(200) // 20
    (got,) = intervals({"together": judged}, importance, authors)
    rng = np.random.default_rng(99)
    means = []
    for _ in range(4000):
        rows = np.concatenate([np.flatnonzero(authors == author) for author in rng.integers(0, 10, size=10)])
        means.append(np.average(judged.brier[rows], weights=importance[rows]))
    assert got.brier == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])), abs=0.02)
    alone = intervals({"together": judged}, importance, np.arange(200))[0]
    assert alone.brier != got.brier


# ---- what is told ----


def test_an_evaluation_is_told_in_every_form(tmp_path):
    found = WORLDS["clear"].draw(30, "a", seed=11)
    result = evaluate_documents(found, base="base", representation="input")
    told = json.loads(json.dumps(result.to_dict()))
    assert (told["models"], told["authors"]) == (len(found.models), 30)
    assert told["datasets"] == len({name for names in found.datasets for name in names})
    assert told["with_head"] == sum(head.kind is not None for head in found.heads)
    assert [row["evidence"] for row in told["scores"]] == [*EVIDENCE, "majority", "chance"]
    assert all(row["accuracy"][0] <= row["accuracy"][1] for row in told["intervals"])
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
    assert evaluate_documents(found, base="base", representation="input") == result


def test_points_and_bars_of_the_figure_are_the_bins():
    result = evaluate_documents(WORLDS["blurred"].draw(40, "a", seed=12))
    for panel, kind in zip(result.figure().axes, ("vectors", "head", "together"), strict=True):
        bins = [one for one in result.reliability if one.evidence == kind]
        points = [tuple(place) for one in panel.collections for place in one.get_offsets().tolist()]
        assert points == [pytest.approx((one.probability, one.right)) for one in bins]
        assert [bar.get_height() for bar in panel.patches] == pytest.approx([one.share for one in bins])
        assert all(
            bar.get_x() < one.probability < bar.get_x() + 0.1 for bar, one in zip(panel.patches, bins, strict=True)
        )


def test_too_few_to_calibrate_or_to_judge(monkeypatch):
    with pytest.raises(AtlasError, match="nothing to judge"):
        evaluate_documents(documents(np.zeros((0, 3)), [], []))
    with pytest.raises(AtlasError, match="one author"):
        evaluate_documents(documents(np.eye(3), ["ann"] * 3, ["x", "y", "x"]))
    two = evaluate_documents(documents(np.eye(2), ["ann", "bob"], ["x", "y"]))
    assert not two.calibrated
    assert any("not calibrated" in note for note in two.notes)
    assert next(one for one in two.none_of_these if one.evidence == "vectors").share == 1
    with pytest.raises(ValueError, match="k must"):
        evaluate_documents(documents(np.eye(2), ["ann", "bob"], ["x", "y"]), k=0)
    found = WORLDS["clear"].draw(12, "a", seed=13)
    assert evaluate_documents(found).calibrated
    monkeypatch.setattr(learning, "ENOUGH_MODELS", 10_000)
    assert not evaluate_documents(found).calibrated


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
    found = documents(vectors, authors, datasets)
    trial = try_all(Witnesses.of(found, 10), 10)
    pairs = np.array([len(found.datasets[row]) == 2 for row in trial.rows])
    judged = trial.judged["vectors"]
    assert judged.accuracy.mean() == 1
    assert judged.right[pairs] == pytest.approx(0.5)
    assert judged.confidence[pairs].mean() == pytest.approx(0.5, abs=0.03)
    assert judged.confidence[~pairs].mean() > 0.9


@pytest.mark.slow
def test_five_thousand_models_take_well_under_a_minute_of_one_core():
    rng = np.random.default_rng(15)
    centres = rng.normal(size=(400, 2052)).astype(np.float32)
    number = rng.choice(400, size=5000, p=1 / np.arange(1, 401) / (1 / np.arange(1, 401)).sum())
    vectors = 0.3 * centres[number] + rng.normal(size=(5000, 2052)).astype(np.float32)
    heads = [Head(CLASSIFIER, int(one % 5 + 2), frozenset({f"{one} a", f"{one} b"})) for one in number]
    found = documents(vectors, [f"author{row // 2}" for row in range(5000)], [f"d{one}" for one in number], heads)
    started = time.process_time()
    result = evaluate_documents(found)
    assert time.process_time() - started < 40
    assert result.scores[0].accuracy > 0.9
