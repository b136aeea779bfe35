"""How good probabilities are: accuracy, top three, Brier score, log loss, calibration error, reliability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from query.predict.evidence import Reals
from query.statistics.neighbours import Booleans, Integers, codes_of

DRAWS = 1000
BINS = 10  # of probability, equally wide
_TOP = 3


@dataclass(frozen=True)
class Judged:
    """How one way of predicting did on each of n models; entry i of every column is the same model.

    ``answer``: the most probable one, as a column of the probabilities. ``confidence``: its probability. ``right``:
    its share of the truth. ``accuracy`` and ``top3``: 1 where it, or one of the first three, is true at all.
    ``brier``: Σ (p - truth)² over all answers, from 0 to 2. ``log_loss``: -Σ truth · ln p. ``none``: the
    probability of "none of these".
    """

    answer: Integers
    confidence: Reals
    right: Reals
    accuracy: Reals
    top3: Reals
    brier: Reals
    log_loss: Reals
    none: Reals


MEASURES = ("accuracy", "top3", "brier", "log_loss")


def judge(probabilities: Reals, truth: Reals) -> Judged:
    """Compare (rows, answers + 1) probabilities with the truth, whose rows sum to 1 too; ties go to the first."""
    rows = np.arange(len(truth))
    ranked = np.argsort(-probabilities, axis=1, kind="stable")[:, :_TOP]
    top = ranked[:, 0]
    return Judged(
        answer=top,
        confidence=probabilities[rows, top],
        right=truth[rows, top],
        accuracy=(truth[rows, top] > 0).astype(np.float64),
        top3=(np.take_along_axis(truth, ranked, axis=1) > 0).max(axis=1).astype(np.float64),
        brier=np.square(probabilities - truth).sum(axis=1),
        log_loss=-(truth * np.log(np.maximum(probabilities, 1e-12))).sum(axis=1),
        none=probabilities[:, -1],
    )


def judge_chance(present: Booleans, truth: Reals) -> Judged:
    """What drawing blindly among the answers present, and "none of these", comes to in the long run."""
    open_to_draw = np.concatenate([present, np.ones((len(present), 1), dtype=bool)], axis=1)
    answers = open_to_draw.sum(axis=1).astype(np.float64)
    right = (truth > 0).sum(axis=1)
    missed = np.ones(len(truth))
    for drawn in range(_TOP):
        missed *= np.maximum(answers - right - drawn, 0) / np.maximum(answers - drawn, 1)
    return Judged(
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
class Score:
    """Means over models, a sweep counted as one. ``calibration_error``: mean |confidence - right| over the bins."""

    evidence: str
    accuracy: float
    top3: float
    brier: float
    log_loss: float
    calibration_error: float | None


@dataclass(frozen=True)
class Interval:
    """95 % intervals (low, high) of a score, authors drawn again with replacement."""

    evidence: str
    accuracy: tuple[float, float]
    top3: tuple[float, float]
    brier: tuple[float, float]
    log_loss: tuple[float, float]


@dataclass(frozen=True)
class Bin:
    """Models whose best answer is about equally probable: to a tenth.

    ``share``: of all models; ``probability``: the mean of the best answer; ``right``: how often it is true, with
    a 95 % interval (Wilson, 1927).
    """

    evidence: str
    models: int
    share: float
    probability: float
    right: float
    low: float
    high: float


def score(evidence: str, judged: Judged, importance: Reals) -> Score:
    """The score of one way of predicting; ``importance`` is how much each model counts."""
    means = {name: float(np.average(getattr(judged, name), weights=importance)) for name in MEASURES}
    return Score(evidence, **means, calibration_error=calibration_error(judged, importance))


def calibration_error(judged: Judged, importance: Reals) -> float:
    """Σ over bins of the share of models in it × |mean confidence - mean right| (Naeini et al., 2015)."""
    error = 0.0
    for members in _bins(judged.confidence):
        gap = np.average(judged.confidence[members] - judged.right[members], weights=importance[members])
        error += abs(float(gap)) * float(importance[members].sum())
    return error / float(importance.sum())


def reliability(evidence: str, judged: Judged, importance: Reals) -> tuple[Bin, ...]:
    """The bins of one way of predicting, the least sure first."""
    found = []
    for members in _bins(judged.confidence):
        count = float(importance[members].sum())
        right = float(np.average(judged.right[members], weights=importance[members]))
        probability = float(np.average(judged.confidence[members], weights=importance[members]))
        low, high = wilson(right, count)
        share = count / float(importance.sum())
        found.append(Bin(evidence, int(members.sum()), share, probability, right, low, high))
    return tuple(found)


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share observed on ``count`` models."""
    z = 1.959964
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))


def _bins(confidence: Reals) -> list[Booleans]:
    """Masks of the bins that hold a model, the least sure first; the last one holds 1 too."""
    place = np.minimum((confidence * BINS).astype(np.intp), BINS - 1)
    return [place == number for number in np.unique(place)]


def intervals(
    judged: Mapping[str, Judged], importance: Reals, authors: Integers, seed: int = 0
) -> tuple[Interval, ...]:
    """Percentiles 2.5 and 97.5 of the scores over ``DRAWS`` draws of authors; the same draws for every evidence."""
    codes = codes_of(authors.tolist())
    count = int(codes.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=DRAWS).astype(np.float64)
    total = drawn @ np.bincount(codes, weights=importance)
    found = []
    for evidence, one in judged.items():
        ends: dict[str, Any] = {}
        for name in MEASURES:
            means = drawn @ np.bincount(codes, weights=importance * getattr(one, name)) / total
            low, high = np.percentile(means, [2.5, 97.5])
            ends[name] = (float(low), float(high))
        found.append(Interval(evidence, **ends))
    return tuple(found)
