"""Scores of an open set against brute force, what is left out of a fold, and the tables."""

from __future__ import annotations

import json

import numpy as np
import pytest

from query.questions.predict.scoring import estimated_share, with_prior
from studies.arena import disjoint, open_set
from studies.arena.__main__ import FIGURES
from studies.arena.family import load_arena_plan


@pytest.fixture(scope="module")
def plan():
    return load_arena_plan()


def test_oscr_is_the_share_of_pairs():
    rng = np.random.default_rng(0)
    known, unknown = rng.integers(0, 6, 40) / 5, rng.integers(0, 5, 25) / 5
    right = rng.random(40) < 0.6
    pairs = right[:, None] * (np.sign(known[:, None] - unknown[None, :]) / 2 + 0.5)
    assert open_set.oscr(known, right, unknown) == pytest.approx(pairs.mean())
    assert open_set.oscr(known, np.zeros(40, bool), unknown) == 0


def test_oscr_is_the_area_under_its_curve():
    rng = np.random.default_rng(1)
    known, unknown, right = rng.random(60), rng.random(50) - 0.3, rng.random(60) < 0.7
    thresholds = np.sort(np.concatenate([known, unknown]))[::-1]
    rate = [float((unknown >= limit).mean()) for limit in thresholds]
    classified = [float((right & (known >= limit)).mean()) for limit in thresholds]
    area = np.sum(np.diff([0, *rate]) * np.array(classified))
    assert open_set.oscr(known, right, unknown) == pytest.approx(area)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9])
def test_the_unknown_share_is_estimated_from_calibrated_probabilities(share):
    rng = np.random.default_rng(3)
    is_none = rng.random(1000) < share
    score = rng.normal(size=1000) + 2 * is_none  # log likelihood ratio: 2·score - 2
    prior = rng.choice([0.02, 0.3], 1000)
    odds = np.exp(2 * score - 2) * prior / (1 - prior)
    found = estimated_share(odds / (1 + odds), prior)
    assert found == pytest.approx(share, abs=0.05)
    # The same from each model twice, half as much.
    both = np.concatenate([odds, odds])
    again = estimated_share(both / (1 + both), np.concatenate([prior, prior]), np.full(2000, 0.5))
    assert again == pytest.approx(found, abs=1e-9)


def test_without_evidence_the_share_stays_as_it_was():
    prior = np.full(50, 0.03)
    assert estimated_share(prior, prior) == pytest.approx(0.03, abs=1e-6)
    assert estimated_share(np.array([0.2]), np.array([0.2])) == pytest.approx(0.2)
    sure = np.where(np.arange(50) < 20, 1 - 1e-9, 1e-9)
    assert estimated_share(sure, prior) == pytest.approx((20 + 2 * 0.03) / 52, abs=1e-3)


def test_the_share_is_that_of_an_integral():
    from scipy.integrate import quad

    none, prior = np.array([0.9, 0.2, 0.6]), np.array([0.4, 0.4, 0.4])

    def posterior(share: float) -> float:
        ratio = none / prior * share + (1 - none) / (1 - prior) * (1 - share)
        return float(np.prod(ratio) * share ** (0.8 - 1) * (1 - share) ** (1.2 - 1))

    mean = quad(lambda share: share * posterior(share), 0, 1)[0] / quad(posterior, 0, 1)[0]
    assert estimated_share(none, prior) == pytest.approx(mean, abs=1e-4)


def test_another_prior_changes_the_odds_alone():
    guess = np.array([[0.6, 0.1, 0.3], [0.0, 0.0, 1.0]])
    moved = with_prior(guess, 0.3, 0.6)
    assert moved[0, 2] / (1 - moved[0, 2]) == pytest.approx((0.3 / 0.7) / (0.3 / 0.7) * (0.6 / 0.4))
    assert moved[0, 0] / moved[0, 1] == pytest.approx(6)
    np.testing.assert_allclose(moved.sum(axis=1), 1)
    np.testing.assert_allclose(with_prior(moved, 0.6, 0.3), guess)
    np.testing.assert_allclose(with_prior(guess, np.array([0.3, 0.5]), 0.0)[:, 2], [0, 1])


def test_every_data_set_is_unknown_once(plan):
    folds = open_set.folds_of(plan.datasets)
    for kind in open_set.KINDS:
        unknown = [name for fold in folds if fold.kind == kind for name in fold.unknown]
        assert sorted(unknown) == sorted(plan.datasets)
    assert all(len(fold.unknown) < len(plan.datasets) / 3 for fold in folds)


def test_habits_do_not_go_with_a_data_set(plan):
    by_dataset: dict[str, list] = {}
    for run in plan.runs:
        by_dataset.setdefault(run.dataset, []).append(run)
    assert len(by_dataset) >= 30
    for runs in by_dataset.values():
        full = [run for run in runs if run.adapter is None]
        assert len({run.author for run in runs}) == len(runs)
        assert len({run.learning_rate for run in full}) == len(full) >= 2
        assert all(run.steps >= 1000 for run in runs)
    assert {run.learning_rate for run in plan.runs if run.adapter is None} == {1e-5, 2e-5, 3e-5, 5e-5}


def test_the_base_reads_none_of_the_packages(plan):
    packages = {package for one in plan.datasets.values() for package in one.packages}
    assert not packages & set(plan.pretraining.packages)
    assert plan.architecture.objective == "masked words"


def test_scores_of_planted_predictions():
    def row(is_known: bool, none: float, right: bool) -> dict:
        best = 0.9 * (1 - none)
        truth = none if not is_known else best if right else 0.0
        by = {"vectors": {"none": none, "best": best, "truth": truth, "right": right and is_known}}
        return {"fold": "1", "kind": "data sets", "is_known": is_known, "prior": 0.2, "by": by}

    rows = [row(True, 0.1, True), row(True, 0.3, False), row(False, 0.2, False), row(False, 0.8, False)]
    (found,) = open_set.scores_of(rows).values()
    assert (found["known"], found["unknown"], found["accuracy"]) == (2, 2, 0.5)
    assert found["auroc"] == pytest.approx(3 / 4)
    assert found["oscr"] == pytest.approx(1 / 2)
    half = found["shares"]["0.5"]["own"]
    assert half["none_log_loss"] == pytest.approx(-np.log([0.9, 0.7, 0.2, 0.8]).mean())
    assert half["none_accuracy"] == 0.75
    assert half["accuracy"] == 0.5
    assert found["shares"]["0.0"]["constants"]["never"] == pytest.approx(-np.log(0.99))


@pytest.mark.parametrize("part", [open_set, disjoint])
def test_tables_are_made_of_the_stored_figures(part):
    name = part.__name__.rpartition(".")[2]
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))[name]
    tables = [part for part in part.tables(figures).split("\n\n") if part.startswith("|")]
    assert len(tables) >= 2
    for table in tables:
        widths = {line.count("|") for line in table.splitlines()}
        assert len(widths) == 1
        assert widths.pop() > 3
        assert "nan" not in table
