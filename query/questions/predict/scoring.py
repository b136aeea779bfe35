"""Scores of probabilities: accuracy, top three, Brier score, log loss, calibration error, reliability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from query.contract.columns import MADE_FROM, NO_INTERVAL, VOTING_MODELS
from query.contract.results import Doc, Format
from query.questions.predict.training_set import Reals
from query.shared.statistics.authors import FEWEST_AUTHORS, TOO_FEW_AUTHORS, Ends, independent_changes, uncertainty
from query.shared.statistics.neighbours import Booleans, Integers, codes_of
from query.shared.wording import two_decimals

DECIMALS = Format(two_decimals)

# Meanings that several fields share.
_ACCURACY = Doc("Share of models whose best answer is right, from 0 to 1.")
_TOP3 = Doc("Share of models with a right answer among the first three, from 0 to 1.")
_BRIER = Doc("Squared error of the probabilities, summed over the answers, from 0 (perfect) to 2.")
_LOG_LOSS = Doc("Mean of -ln(probability of the right answer), in nats; 0 is perfect.")

BINS = 10  # of probability, equally wide
MEASURES = ("accuracy", "top3", "brier", "log_loss")
_TOP = 3

# Scores of single models by name, see ``score_models``; entry i of every column is the same model.
Columns = dict[str, NDArray[Any]]


def score_models(probabilities: Reals, truth: Reals) -> Columns:
    """Compare (rows, answers + 1) probabilities with the truth, whose rows sum to 1 too; ties go to the first.

    The truth of a model may be several datasets.

    Columns of the result:
        answer: the most probable answer, as a column of ``probabilities``.
        confidence: its probability.
        right: its share of the truth.
        accuracy: 1 if its share of the truth is not 0, else 0.
        top3: the same for any of the three most probable answers.
        brier: Σ (p - truth)² over all answers, from 0 to 2.
        log_loss: -Σ truth · ln p.
        none: the probability of "none of these".
    """
    rows = np.arange(len(truth))
    ranked = np.argsort(-probabilities, axis=1, kind="stable")[:, :_TOP]
    top = ranked[:, 0]
    return {
        "answer": top,
        "confidence": probabilities[rows, top],
        "right": truth[rows, top],
        "accuracy": (truth[rows, top] > 0).astype(np.float64),
        "top3": (np.take_along_axis(truth, ranked, axis=1) > 0).max(axis=1).astype(np.float64),
        "brier": np.square(probabilities - truth).sum(axis=1),
        "log_loss": -(truth * np.log(np.maximum(probabilities, 1e-12))).sum(axis=1),
        "none": probabilities[:, -1],
    }


UNKNOWN_SHARES = (0.0, 0.25, 0.5, 0.75)
_GRID = 1000  # shares at which the likelihood is computed
_PRIOR_MODELS = 2.0  # the weight, in models, of the atlas's own share of unknown data


def accuracy_at(probabilities: Reals, truth: Reals, none: float, share: float) -> Reals:
    """(rows,): whether the best answer is right if the prior of "none of these" is ``share`` instead of ``none``.

    For an evaluation where the share of models tuned on data that no other author names is known. "None of these" is
    the last column.
    """
    top = with_prior(probabilities, none, share).argmax(axis=1)
    return (truth[np.arange(len(truth)), top] > 0).astype(np.float64)


def with_prior(probabilities: Reals, none: float | Reals, share: float) -> Reals:
    """(rows, answers + 1): the probabilities if the prior of "none of these", the last column, is ``share``.

    ``none``: the prior of ``probabilities``. Odds are multiplied by the ratio of the prior odds. That is right if the
    measurements of models of known data, and those of models of unknown data, do not depend on their shares (prior
    shift; Saerens, Latinne & Decaestecker, 2002). Raises ValueError if ``none`` is 0 or 1: such probabilities have lost
    the evidence.
    """
    if np.any((np.asarray(none) <= 0) | (np.asarray(none) >= 1)):
        raise ValueError("the prior of the probabilities must be between 0 and 1")
    none = np.broadcast_to(np.asarray(none, dtype=np.float64), len(probabilities))
    weights = np.repeat(((1 - share) / (1 - none))[:, None], probabilities.shape[1], axis=1)
    weights[:, -1] = share / none
    weighted = probabilities * weights
    total = weighted.sum(axis=1, keepdims=True)
    return np.divide(weighted, total, out=probabilities.copy(), where=total > 0)


def estimated_share(none: Reals, prior: Reals, weights: Reals | None = None) -> float:
    """The share of models whose dataset is none of the answers: its posterior mean given the evidence of all models.

    The prior of the share is a beta distribution around the mean prior with the weight of two models. So one model
    keeps its prior, and so do many without evidence. Saerens, Latinne & Decaestecker (2002) iterate to the most likely
    share instead.

    Args:
        none: (n,) the probability of "none of these" for each model if the share is its ``prior``.
        prior: (n,) greater than 0 and less than 1.
        weights: (n,) how often each model counts; by default once.
    """
    from scipy.special import betainc

    counted = np.ones(len(none)) if weights is None else weights
    middle = float(np.average(prior, weights=counted))
    alpha, beta = _PRIOR_MODELS * middle, _PRIOR_MODELS * (1 - middle)
    # Near 0 and 1 the density may be infinite: each cell of the grid has its mass and its mean.
    edges = np.linspace(0, 1, _GRID + 1)
    mass = np.maximum(np.diff(betainc(alpha, beta, edges)), 1e-300)
    shares = np.clip(middle * np.diff(betainc(alpha + 1, beta, edges)) / mass, edges[:-1], edges[1:])
    # The likelihood ratio of a model does not depend on the prior.
    of_none, of_known = (none / prior)[:, None], ((1 - none) / (1 - prior))[:, None]
    logs = np.log(mass) + counted @ np.log(np.maximum(shares * of_none + (1 - shares) * of_known, 1e-300))
    return float(np.average(shares, weights=np.exp(logs - logs.max())))


def auroc(positive: Reals, negative: Reals, weights: tuple[Reals, Reals]) -> float | None:
    """The probability that a positive scores higher than a negative, ties counted half; None if either is missing."""
    totals = weights[0].sum() * weights[1].sum()
    if not totals:
        return None
    scores, score_index = np.unique(np.round(np.concatenate([positive, negative]), 12), return_inverse=True)
    of_positive = np.bincount(score_index[: len(positive)], weights=weights[0], minlength=len(scores))
    of_negative = np.bincount(score_index[len(positive) :], weights=weights[1], minlength=len(scores))
    negatives_below = np.cumsum(of_negative) - of_negative / 2
    return float(of_positive @ negatives_below / totals)


def chance_scores(present: Booleans, truth: Reals) -> Columns:
    """The expected scores of a random draw from the answers present and "none of these"."""
    answers = present.sum(axis=1) + 1.0
    right = (truth > 0).sum(axis=1)
    missed = np.ones(len(truth))
    for draw in range(_TOP):
        missed *= np.maximum(answers - right - draw, 0) / np.maximum(answers - draw, 1)
    return {
        "answer": np.full(len(truth), -1, dtype=np.intp),
        "confidence": 1 / answers,
        "right": 1 / answers,
        "accuracy": right / answers,
        "top3": 1 - missed,
        "brier": np.square(truth).sum(axis=1) - 1 / answers,
        "log_loss": np.log(answers),
        "none": 1 / answers,
    }


@dataclass(frozen=True)
class PredictionScore:
    """Means over models, a sweep counted as one. ``calibration_error``: mean |confidence - right| over the bins."""

    evidence: Annotated[str, MADE_FROM]
    accuracy: Annotated[float, _ACCURACY, DECIMALS]
    top3: Annotated[float, _TOP3, DECIMALS]
    brier: Annotated[float, _BRIER, DECIMALS]
    log_loss: Annotated[float, _LOG_LOSS, DECIMALS]
    calibration_error: Annotated[
        float | None,
        Doc("Mean gap between the probability of an answer and how often it is right, from 0 to 1."),
        DECIMALS,
    ]


@dataclass(frozen=True)
class Interval:
    """95 % intervals (low, high) of a score over authors (``query.shared.statistics.authors``).

    All None if there are fewer than five authors; ``reason`` is then ``too_few_authors``. The intervals ignore the
    uncertainty of the fitted parameters and of the votes. In simulations of whole atlases, they contained the accuracy
    and the Brier score at least as often as they should, but the log loss, which depends on a few confident mistakes,
    mostly .82 to .90 of the time.
    """

    evidence: Annotated[str, MADE_FROM]
    accuracy: Annotated[Ends | None, _ACCURACY]
    top3: Annotated[Ends | None, _TOP3]
    brier: Annotated[Ends | None, _BRIER]
    log_loss: Annotated[Ends | None, _LOG_LOSS]
    reason: Annotated[str | None, NO_INTERVAL] = None


@dataclass(frozen=True)
class Bin:
    """Models whose best answer is about equally probable, to a tenth.

    Attributes:
        share: the share of all models.
        probability: the mean probability of the best answer.
        right: how often the best answer is true.
        low, high: the 95 % interval of ``right`` over authors; None if there are fewer than five.
    """

    evidence: Annotated[str, MADE_FROM]
    models: Annotated[int, VOTING_MODELS]
    share: Annotated[float, Doc("Share of all models, from 0 to 1."), DECIMALS]
    probability: Annotated[float, Doc("Mean probability of the best answer."), DECIMALS]
    right: Annotated[float, Doc("How often the best answer is right, from 0 to 1."), DECIMALS]
    low: Annotated[float | None, Doc("Lower end of the 95 % interval of right, over authors."), DECIMALS]
    high: Annotated[float | None, Doc("Upper end of the 95 % interval of right, over authors."), DECIMALS]


def mean_scores(evidence: str, scores: Columns, importance: Reals) -> PredictionScore:
    """The mean scores of one way of predicting; ``importance``: how much each model counts."""
    means = {name: float(np.average(scores[name], weights=importance)) for name in MEASURES}
    return PredictionScore(evidence, **means, calibration_error=calibration_error(scores, importance))


def calibration_error(scores: Columns, importance: Reals) -> float:
    """Σ over bins of the share of models in the bin × |mean confidence - mean right| (Naeini et al., 2015)."""
    error = 0.0
    for members in _bins(scores["confidence"]):
        gap = np.average(scores["confidence"][members] - scores["right"][members], weights=importance[members])
        error += abs(float(gap)) * float(importance[members].sum())
    return error / float(importance.sum())


def reliability(evidence: str, scores: Columns, importance: Reals, authors: Integers) -> tuple[Bin, ...]:
    """The bins of one way of predicting, the least probable first."""
    bins = []
    for members in _bins(scores["confidence"]):
        weights, right = importance[members], scores["right"][members]
        low, high = _interval(right, weights, authors[members]) or (None, None)
        bins.append(
            Bin(
                evidence,
                models=int(members.sum()),
                share=float(weights.sum() / importance.sum()),
                probability=float(np.average(scores["confidence"][members], weights=weights)),
                right=float(np.average(right, weights=weights)),
                low=low,
                high=high,
            )
        )
    return tuple(bins)


def _bins(confidence: Reals) -> list[Booleans]:
    """Masks of the bins that contain a model, the least probable first; the last one includes 1."""
    bin_of = np.minimum((confidence * BINS).astype(np.intp), BINS - 1)
    return [bin_of == number for number in np.unique(bin_of)]


def intervals(scores: Mapping[str, Columns], importance: Reals, authors: Integers) -> tuple[Interval, ...]:
    """The intervals of all measures; ``importance``: how much each model counts."""
    scored_intervals = []
    for evidence, columns in scores.items():
        of_half = _interval(columns["brier"] / 2, importance, authors)
        scored_intervals.append(
            Interval(
                evidence,
                accuracy=_interval(columns["accuracy"], importance, authors),
                top3=_interval(columns["top3"], importance, authors),
                brier=(2 * of_half[0], 2 * of_half[1]) if of_half else None,
                log_loss=_interval(columns["log_loss"], importance, authors, is_share=False),
                reason=None if of_half else TOO_FEW_AUTHORS,
            )
        )
    return tuple(scored_intervals)


def _interval(values: Reals, importance: Reals, authors: Integers, is_share: bool = True) -> Ends | None:
    """The interval over authors of the mean of ``values``; None for few authors.

    ``is_share``: whether the values are from 0 to 1; if not, they are not negative.
    """
    codes = codes_of(authors.tolist())
    if codes.max() + 1 < FEWEST_AUTHORS:
        return None
    mean = float(np.average(values, weights=importance))
    if is_share and np.ptp(values) == 0 and 0 < mean < 1:
        return mean, mean  # chance, which is computed, not observed
    weights = np.bincount(codes, weights=importance) / importance.sum()
    sums = np.bincount(codes, weights=importance * values) / importance.sum()
    estimate = uncertainty(weights, independent_changes(weights, sums, mean))
    return estimate.of_share(mean, importance.sum()) if is_share else estimate.of_loss(mean)
