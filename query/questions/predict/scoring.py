"""How good probabilities are: accuracy, top three, Brier score, log loss, calibration error, reliability."""

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

# What several fields mean.
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

    A model's truth may be several datasets. Columns: ``answer``, the most probable one, as a column of the
    probabilities, with its probability ``confidence`` and its share of the truth ``right``; ``accuracy`` and ``top3``,
    1 if it, or one of the first three, is true at all; ``brier``, Σ (p - truth)² over all answers, from 0 to 2;
    ``log_loss``, -Σ truth · ln p; ``none``, the probability of "none of these".
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
_PRIOR_MODELS = 2.0  # models that the atlas's own share of unknown data counts as


def accuracy_at(probabilities: Reals, truth: Reals, none: float, share: float) -> Reals:
    """(rows,): whether the best answer is right if the prior of "none of these", the last one, is not ``none``.

    It is ``share`` instead, as if it were known how many of the models were tuned on data that no other author names.
    """
    top = with_prior(probabilities, none, share).argmax(axis=1)
    return (truth[np.arange(len(truth)), top] > 0).astype(np.float64)


def with_prior(probabilities: Reals, none: float | Reals, share: float) -> Reals:
    """(rows, answers + 1) if the prior of "none of these", the last one, is ``share`` and not ``none``.

    Odds are multiplied by the ratio of the prior odds. That is right if models of unknown data, and those of known
    data, look the same whatever their share is (prior shift; Saerens, Latinne & Decaestecker, 2002). Raises ValueError
    if ``none`` is 0 or 1: such probabilities hold no evidence against it.
    """
    if np.any((np.asarray(none) <= 0) | (np.asarray(none) >= 1)):
        raise ValueError("the prior of the probabilities must be between 0 and 1")
    none = np.broadcast_to(np.asarray(none, dtype=np.float64), len(probabilities))
    weights = np.repeat(((1 - share) / (1 - none))[:, None], probabilities.shape[1], axis=1)
    weights[:, -1] = share / none
    moved = probabilities * weights
    total = moved.sum(axis=1, keepdims=True)
    return np.divide(moved, total, out=probabilities.copy(), where=total > 0)


def estimated_share(none: Reals, prior: Reals, weights: Reals | None = None) -> float:
    """The share of models among these whose data set is none of the answers: its mean given the evidence of all.

    ``none`` (n,): the probability of that for each model if the share is its ``prior`` (n,), which is neither 0 nor 1.
    Before the evidence, the share has a beta distribution around the mean prior that counts as much as two models. So
    one model keeps its prior, and so do many about which nothing is known. ``weights`` (n,): how often each model
    counts. Saerens, Latinne & Decaestecker (2002) iterate to the most likely share instead.
    """
    from scipy.special import betainc

    counted = np.ones(len(none)) if weights is None else weights
    middle = float(np.average(prior, weights=counted))
    first, second = _PRIOR_MODELS * middle, _PRIOR_MODELS * (1 - middle)
    # Near 0 and 1 the density may be infinite: each cell of the grid has its mass and its mean.
    edges = np.linspace(0, 1, _GRID + 1)
    mass = np.maximum(np.diff(betainc(first, second, edges)), 1e-300)
    shares = np.clip(middle * np.diff(betainc(first + 1, second, edges)) / mass, edges[:-1], edges[1:])
    # The likelihood ratio of a model does not depend on the prior.
    of_none, of_known = (none / prior)[:, None], ((1 - none) / (1 - prior))[:, None]
    logs = np.log(mass) + counted @ np.log(np.maximum(shares * of_none + (1 - shares) * of_known, 1e-300))
    return float(np.average(shares, weights=np.exp(logs - logs.max())))


def auroc(positive: Reals, negative: Reals, weights: tuple[Reals, Reals]) -> float | None:
    """The probability that a positive scores higher than a negative, ties counted half; None if there are none."""
    totals = weights[0].sum() * weights[1].sum()
    if not totals:
        return None
    scores, place = np.unique(np.round(np.concatenate([positive, negative]), 12), return_inverse=True)
    of_positive = np.bincount(place[: len(positive)], weights=weights[0], minlength=len(scores))
    of_negative = np.bincount(place[len(positive) :], weights=weights[1], minlength=len(scores))
    below = np.cumsum(of_negative) - of_negative / 2
    return float(of_positive @ below / totals)


def chance_scores(present: Booleans, truth: Reals) -> Columns:
    """The expected scores of drawing at random from the answers present and "none of these"."""
    answers = present.sum(axis=1) + 1.0
    right = (truth > 0).sum(axis=1)
    missed = np.ones(len(truth))
    for drawn in range(_TOP):
        missed *= np.maximum(answers - right - drawn, 0) / np.maximum(answers - drawn, 1)
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

    All None if there are fewer than five authors; ``reason`` is then ``too_few_authors``. The intervals take the fitted
    parameters and the votes as given: when whole atlases were simulated, accuracy and Brier score were inside at least
    as often as they should, but the log loss, which depends on a few confident mistakes, mostly .82 to .90 of the time.
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

    ``share``: of all models; ``probability``: the mean of the best answer; ``right``: how often it is true, with a
    95 % interval over authors, None if there are fewer than five.
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
    found = []
    for members in _bins(scores["confidence"]):
        weights, right = importance[members], scores["right"][members]
        low, high = _interval(right, weights, authors[members]) or (None, None)
        found.append(
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
    return tuple(found)


def _bins(confidence: Reals) -> list[Booleans]:
    """Masks of the bins that contain a model, the least probable first; the last one includes 1."""
    place = np.minimum((confidence * BINS).astype(np.intp), BINS - 1)
    return [place == number for number in np.unique(place)]


def intervals(scores: Mapping[str, Columns], importance: Reals, authors: Integers) -> tuple[Interval, ...]:
    """The intervals of all measures; ``importance``: how much each model counts."""
    found = []
    for evidence, one in scores.items():
        of_half = _interval(one["brier"] / 2, importance, authors)
        found.append(
            Interval(
                evidence,
                accuracy=_interval(one["accuracy"], importance, authors),
                top3=_interval(one["top3"], importance, authors),
                brier=(2 * of_half[0], 2 * of_half[1]) if of_half else None,
                log_loss=_interval(one["log_loss"], importance, authors, is_share=False),
                reason=None if of_half else TOO_FEW_AUTHORS,
            )
        )
    return tuple(found)


def _interval(values: Reals, importance: Reals, authors: Integers, is_share: bool = True) -> Ends | None:
    """The interval over authors of the mean of values from 0 to 1, or (else) not negative; None for few authors."""
    codes = codes_of(authors.tolist())
    if codes.max() + 1 < FEWEST_AUTHORS:
        return None
    mean = float(np.average(values, weights=importance))
    if is_share and np.ptp(values) == 0 and 0 < mean < 1:
        return mean, mean  # that of chance, which is not observed
    weights = np.bincount(codes, weights=importance) / importance.sum()
    sums = np.bincount(codes, weights=importance * values) / importance.sum()
    found = uncertainty(weights, independent_changes(weights, sums, mean))
    return found.of_share(mean, importance.sum()) if is_share else found.of_loss(mean)
