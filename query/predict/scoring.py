"""How good probabilities are: accuracy, top three, Brier score, log loss, calibration error, reliability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from query.predict.training_set import Reals
from query.statistics.intervals import (
    FEWEST_AUTHORS,
    TOO_FEW_AUTHORS,
    Ends,
    Uncertainty,
    independent_changes,
    uncertainty,
)
from query.statistics.neighbours import Booleans, Integers, codes_of

BINS = 10  # of probability, equally wide
MEASURES = ("accuracy", "top3", "brier", "log_loss")
_TOP = 3


@dataclass(frozen=True)
class ModelScores:
    """The scores of one way of predicting for each of n models; entry i of every column is the same model.

    These are kept per model, as intervals are calculated over authors; a model's truth may be several datasets.

    Attributes:
        answer: the most probable one, as a column of the probabilities.
        confidence: its probability.
        right: its share of the truth.
        accuracy, top3: 1 if it, or one of the first three, is true at all.
        brier: Σ (p - truth)² over all answers, from 0 to 2.
        log_loss: -Σ truth · ln p.
        none: the probability of "none of these".
    """

    answer: Integers
    confidence: Reals
    right: Reals
    accuracy: Reals
    top3: Reals
    brier: Reals
    log_loss: Reals
    none: Reals


def score_models(probabilities: Reals, truth: Reals) -> ModelScores:
    """Compare (rows, answers + 1) probabilities with the truth, whose rows sum to 1 too; ties go to the first."""
    rows = np.arange(len(truth))
    ranked = np.argsort(-probabilities, axis=1, kind="stable")[:, :_TOP]
    top = ranked[:, 0]
    return ModelScores(
        answer=top,
        confidence=probabilities[rows, top],
        right=truth[rows, top],
        accuracy=(truth[rows, top] > 0).astype(np.float64),
        top3=(np.take_along_axis(truth, ranked, axis=1) > 0).max(axis=1).astype(np.float64),
        brier=np.square(probabilities - truth).sum(axis=1),
        log_loss=-(truth * np.log(np.maximum(probabilities, 1e-12))).sum(axis=1),
        none=probabilities[:, -1],
    )


def chance_scores(present: Booleans, truth: Reals) -> ModelScores:
    """The expected scores of drawing at random from the answers present and "none of these"."""
    possible = np.concatenate([present, np.ones((len(present), 1), dtype=bool)], axis=1)
    answers = possible.sum(axis=1).astype(np.float64)
    right = (truth > 0).sum(axis=1)
    missed = np.ones(len(truth))
    for drawn in range(_TOP):
        missed *= np.maximum(answers - right - drawn, 0) / np.maximum(answers - drawn, 1)
    return ModelScores(
        answer=np.full(len(truth), -1, dtype=np.intp),
        confidence=1 / answers,
        right=1 / answers,
        accuracy=right / answers,
        top3=1 - missed,
        brier=np.square(truth).sum(axis=1) - 1 / answers,
        log_loss=np.log(answers),
        none=1 / answers,
    )


@dataclass(frozen=True)
class PredictionScore:
    """Means over models, a sweep counted as one. ``calibration_error``: mean |confidence - right| over the bins."""

    evidence: str
    accuracy: float
    top3: float
    brier: float
    log_loss: float
    calibration_error: float | None


@dataclass(frozen=True)
class Interval:
    """95 % intervals (low, high) of a score over authors (``query.statistics.intervals``).

    All None if there are fewer than five authors; ``reason`` is then ``too_few_authors``. The intervals take the fitted
    parameters and the votes as given: when whole atlases were simulated, accuracy and Brier score were inside at least
    as often as they should, but the log loss, which depends on a few confident mistakes, mostly .82 to .90 of the time.
    """

    evidence: str
    accuracy: Ends | None
    top3: Ends | None
    brier: Ends | None
    log_loss: Ends | None
    reason: str | None = None


@dataclass(frozen=True)
class Bin:
    """Models whose best answer is about equally probable, to a tenth.

    ``share``: of all models; ``probability``: the mean of the best answer; ``right``: how often it is true, with a
    95 % interval over authors, None if there are fewer than five.
    """

    evidence: str
    models: int
    share: float
    probability: float
    right: float
    low: float | None
    high: float | None


def mean_scores(evidence: str, scores: ModelScores, importance: Reals) -> PredictionScore:
    """The mean scores of one way of predicting; ``importance``: how much each model counts."""
    means = {name: float(np.average(getattr(scores, name), weights=importance)) for name in MEASURES}
    return PredictionScore(evidence, **means, calibration_error=calibration_error(scores, importance))


def calibration_error(scores: ModelScores, importance: Reals) -> float:
    """Σ over bins of the share of models in the bin × |mean confidence - mean right| (Naeini et al., 2015)."""
    error = 0.0
    for members in _bins(scores.confidence):
        gap = np.average(scores.confidence[members] - scores.right[members], weights=importance[members])
        error += abs(float(gap)) * float(importance[members].sum())
    return error / float(importance.sum())


def reliability(evidence: str, scores: ModelScores, importance: Reals, authors: Integers) -> tuple[Bin, ...]:
    """The bins of one way of predicting, the least probable first."""
    found = []
    for members in _bins(scores.confidence):
        weights = importance[members]
        right = float(np.average(scores.right[members], weights=weights))
        probability = float(np.average(scores.confidence[members], weights=weights))
        over = _Authors(authors[members], weights)
        low, high = over.share(scores.right[members]) if over.count >= FEWEST_AUTHORS else (None, None)
        share = float(weights.sum() / importance.sum())
        found.append(Bin(evidence, int(members.sum()), share, probability, right, low, high))
    return tuple(found)


def _bins(confidence: Reals) -> list[Booleans]:
    """Masks of the bins that contain a model, the least probable first; the last one includes 1."""
    place = np.minimum((confidence * BINS).astype(np.intp), BINS - 1)
    return [place == number for number in np.unique(place)]


def intervals(scores: Mapping[str, ModelScores], importance: Reals, authors: Integers) -> tuple[Interval, ...]:
    """The intervals of all measures; ``importance``: how much each model counts."""
    over = _Authors(authors, importance)
    if over.count < FEWEST_AUTHORS:
        return tuple(Interval(name, None, None, None, None, TOO_FEW_AUTHORS) for name in scores)
    found = []
    for evidence, one in scores.items():
        low, high = over.share(one.brier / 2)
        found.append(
            Interval(
                evidence,
                accuracy=over.share(one.accuracy),
                top3=over.share(one.top3),
                brier=(2 * low, 2 * high),
                log_loss=over.loss(one.log_loss),
            )
        )
    return tuple(found)


class _Authors:
    """Models grouped by author, each with its importance: intervals of the means of values of the models."""

    def __init__(self, authors: Integers, importance: Reals) -> None:
        self.codes = codes_of(authors.tolist())
        self.count = int(self.codes.max()) + 1
        self.importance = importance
        self.weights = np.bincount(self.codes, weights=importance) / importance.sum()

    def share(self, values: Reals) -> Ends:
        """For values between 0 and 1. A value that is the same for all (that of chance) is not an observation."""
        mean, found = self._uncertainty(values)
        return (mean, mean) if np.ptp(values) == 0 and 0 < mean < 1 else found.of_share(mean, self.importance.sum())

    def loss(self, values: Reals) -> Ends:
        """For values that are not negative."""
        mean, found = self._uncertainty(values)
        return found.of_loss(mean)

    def _uncertainty(self, values: Reals) -> tuple[float, Uncertainty]:
        mean = float(np.average(values, weights=self.importance))
        sums = np.bincount(self.codes, weights=self.importance * values) / self.importance.sum()
        return mean, uncertainty(self.weights, independent_changes(self.weights, sums, mean))
