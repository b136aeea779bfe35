"""From features to probabilities: two small logistic models, fitted on models whose datasets are known.

The first model assumes that the dataset is one of the answers: P(d) ∝ exp(Σ weight · term_d), a conditional logit
(McFadden, 1974). Its terms are the log of the lift (a dataset's share of the votes over its share of the sweeps), its
share of the votes, the log of how common it is, and the log likelihood ratio of the head. With the share next to the
lift, a clear majority counts fully, and a dataset without votes is still possible. The frequency is needed because
common datasets get votes just by being common.

The second model gives the probability of "none of these". It is a logistic regression on five signals: how similar the
two nearest sweeps of a dataset are, how far the nearest sweep stands out, how well the head fits its best dataset,
whether its label names have been seen before, and how certain the first model is. It is fitted on every model twice: as
it is, and with its datasets hidden, as if no other author had used them. Its intercept is then moved from this even
mixture to the true share of models whose dataset no other author names (King & Zeng, 2001).

Both models are regularised towards fixed values with the weight of one model, so that little data changes little.

No weight and no slope may be negative. Each model is used for fitting with its own author left out. That makes exactly
the right dataset rarer than it is, and hiding datasets leaves fewer to choose from, which increases certainty.
Unconstrained models would learn from this that being common or having votes is evidence against a dataset, and that
certainty is evidence for "none of these".

A signal is clipped, so that extreme values count no more than usual ones. Some adapters have almost no direction in
common with other models and stand out less than any model whose dataset is hidden: their vector is weak, but their
dataset may be known. The lower limit is the median over models whose datasets are hidden, the upper limit the median
over models as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from query.predict.training_set import Features, Reals, TrainingSet
from query.statistics.neighbours import Booleans, Integers

EVIDENCE = ("together", "vectors", "head")
# If models have vocabulary vectors, "together" uses them too, and these are added.
_WITHOUT_VOCABULARY = "without_vocabulary"
OF_VOCABULARY = ("vocabulary", _WITHOUT_VOCABULARY)
NONE_OF_THESE = "none of these"  # dataset names contain no spaces

# Below these counts of models whose dataset another author names too, and of their authors, usual weights are used.
ENOUGH_MODELS = 20
_ENOUGH_AUTHORS = 3
TOO_FEW = (
    f"The probabilities are not calibrated: that takes {ENOUGH_MODELS} models, by {_ENOUGH_AUTHORS} authors, whose "
    "datasets others name too."
)

# The few parameters do not get more accurate with more models than this.
_MAX_MODELS = 1000

# What the weights of the terms are regularised towards.
_USUAL_WEIGHTS = {"together": (1.5, 0.0, 1.5, 1.0), "vectors": (1.5, 0.0, 1.5), "head": (1.0, 1.0)}
_USUAL_WEIGHTS |= {
    "vocabulary": (1.5, 0.0, 1.5),
    "vectors_and_vocabulary": (*_USUAL_WEIGHTS["vectors"], 1.5, 0.0),
    "all": (*_USUAL_WEIGHTS["together"], 1.5, 0.0),
}
_WITH_VOCABULARY = ("vocabulary", "vectors_and_vocabulary", "all")
_PENALTY = 1.0


@dataclass(frozen=True)
class NoveltyModel:
    """Log-odds that the dataset is one of the answers: intercept + Σ slope · (signal - centre)/spread.

    Signals are clipped to ``low`` and ``high``; a missing signal adds 0.
    """

    low: Reals
    high: Reals
    centre: Reals
    spread: Reals
    slopes: Reals
    intercept: float

    def log_odds(self, signals: Reals) -> Reals:
        """(rows,) from (rows, signals)."""
        return self.intercept + self.standardised(signals) @ self.slopes

    def standardised(self, signals: Reals) -> Reals:
        """Signals in units of their spread from their centre; missing ones are at the centre."""
        return np.nan_to_num((np.clip(signals, self.low, self.high) - self.centre) / self.spread)


@dataclass(frozen=True)
class FittedClassifiers:
    """The parameters of both models for every kind of evidence.

    Attributes:
        weights: of the terms, by kind of evidence.
        novelty: the second model, by kind, for an even mixture; without kinds for which there were no observations.
        none: the share of models whose dataset no other author names.
        is_calibrated: whether there were enough models to fit on.
    """

    weights: Mapping[str, Reals]
    novelty: Mapping[str, NoveltyModel]
    none: float
    is_calibrated: bool

    def probabilities(self, features: Features) -> dict[str, Reals]:
        """By kind of evidence (rows, answers + 1); rows sum to 1, and the last column is "none of these".

        If a kind needs a head and a model has none, that column has its overall share; "together" equals "vectors".
        With vocabulary vectors "together" uses them, for models that have one, and there are two more kinds:
        "vocabulary", and "without_vocabulary", what "together" would be without them.
        """
        found = {}
        met = features.vocabulary
        for kind, weights in self.weights.items():
            if kind in _WITH_VOCABULARY and met is None:
                continue
            given = _given_known(kind, features, weights)
            log_odds = np.full(len(given), np.log((1 - self.none) / self.none))
            if kind in self.novelty:
                fitted = self.novelty[kind].log_odds(_signals(kind, features, given))
                log_odds += np.where(_applies(kind, features), fitted, 0)
            known = np.where(features.present.any(axis=1), 1 / (1 + np.exp(-log_odds)), 0)[:, None]
            found[kind] = np.concatenate([known * given, 1 - known], axis=1)
        found["together"] = np.where(features.has_head[:, None], found["together"], found["vectors"])
        if met is not None:
            found[_WITHOUT_VOCABULARY] = found["together"]
            with_head, without_head = found.pop("all"), found.pop("vectors_and_vocabulary")
            together = np.where(features.has_head[:, None], with_head, without_head)
            found["together"] = np.where(met.is_known[:, None], together, found["together"])
        return found


def fit(training: TrainingSet, withheld: Sequence[int]) -> FittedClassifiers:
    """Fit on the labelled models among ``training.rows``, without those of the authors ``withheld``.

    Models of these authors do not vote either, so that they have no influence at all. A sweep (one author, one set of
    datasets) counts as one model.
    """
    sweeps = training.sweeps
    own = sweeps.of_model[training.rows]
    places = training_rows(own, np.isin(sweeps.authors[training.rows], withheld))
    shown = training.features(places, withheld)
    importance = 1 / np.bincount(own[places], minlength=1)[own[places]]
    comparable = shown.present.any(axis=1)  # a model without other authors to compare with shows nothing
    none = none_share(shown.known[comparable], importance[comparable])
    known = shown.known > 0
    authors = sweeps.authors[training.rows[places[known]]]
    if known.sum() < ENOUGH_MODELS or len(set(authors.tolist())) < _ENOUGH_AUTHORS:
        return uncalibrated(none)
    hidden = training.features(places, withheld, is_hidden=True)  # the same models, with their datasets hidden
    fitted, novelty = {}, {}
    for kind in EVIDENCE if shown.vocabulary is None else (*EVIDENCE, *_WITH_VOCABULARY):
        counted = importance * _applies(kind, shown)
        weights = _fit_weights(_terms(kind, shown), shown, counted, np.array(_USUAL_WEIGHTS[kind]))
        fitted[kind] = weights
        seen, unseen = (_signals(kind, one, _given_known(kind, one, weights)) for one in (shown, hidden))
        if (counted * shown.known).sum():
            # Without the sweeps of its datasets a model may have none left to compare its vocabulary with.
            novelty[kind] = _fit_novelty(seen, unseen, counted * shown.known, counted * _applies(kind, hidden))
    return FittedClassifiers(fitted, novelty, none, is_calibrated=True)


def training_rows(sweep: Integers, is_withheld: Booleans, most: int = _MAX_MODELS) -> Integers:
    """Places of the labelled models to fit on: all, or ``most``.

    First one model of every sweep is taken, then a second one of every sweep, and so on. ``sweep``: the sweep of each
    model, -1 for one without datasets.
    """
    places = np.flatnonzero((sweep >= 0) & ~is_withheld)
    taken: dict[int, int] = {}
    turns = []
    for number in sweep[places].tolist():
        turns.append(taken.get(number, 0))
        taken[number] = turns[-1] + 1
    return np.sort(places[np.argsort(np.array(turns, dtype=np.intp), kind="stable")[:most]])


def uncalibrated(none: float) -> FittedClassifiers:
    """Default weights, and one probability of "none of these" for all models."""
    usual = {kind: np.array(weights) for kind, weights in _USUAL_WEIGHTS.items()}
    return FittedClassifiers(usual, {}, none, is_calibrated=False)


def none_share(known: Reals, importance: Reals) -> float:
    """The share of models whose dataset is none of the answers, by the rule of succession: never 0 or 1."""
    return float((importance @ (1 - known) + 1) / (importance.sum() + 2))


def _applies(kind: str, features: Features) -> Booleans:
    """(rows,): whether a model has all that a kind of evidence needs."""
    applies = np.ones(len(features.has_head), dtype=bool)
    if kind in ("together", "head", "all"):
        applies &= features.has_head
    if kind in _WITH_VOCABULARY and features.vocabulary is not None:
        applies &= features.vocabulary.is_known
    return applies


# ---- the first model: which of the answers ----


def _terms(kind: str, features: Features) -> tuple[Reals, ...]:
    """The terms of the first model, (rows, answers) each."""
    lift = features.log_votes - features.log_common
    terms: dict[str, tuple[Reals, ...]] = {
        "together": (lift, features.share, features.log_common, features.head),
        "vectors": (lift, features.share, features.log_common),
        "head": (features.log_common, features.head),
    }
    if (met := features.vocabulary) is not None:
        # Of a model without such a vector every dataset has the share that is common, whose lift is the same for all.
        voted = (met.log_votes - features.log_common, met.share)
        terms["vocabulary"] = (*voted, features.log_common)
        terms["vectors_and_vocabulary"] = (*terms["vectors"], *voted)
        terms["all"] = (*terms["together"], *voted)
    return terms[kind]


def _given_known(kind: str, features: Features, weights: Reals) -> Reals:
    """(rows, answers): the probability of each answer, given that it is one of them; zeros if there is none."""
    return np.exp(_log_given_known(_terms(kind, features), weights, features.present))


def _log_given_known(terms: Sequence[Reals], weights: Reals, present: Booleans) -> Reals:
    """(rows, answers): ln of the same; -inf for answers that are not present."""
    scores = np.where(present, sum(weight * term for weight, term in zip(weights, terms, strict=True)), -np.inf)
    highest = scores.max(axis=1, keepdims=True, initial=-np.inf)
    shifted = scores - np.where(np.isfinite(highest), highest, 0)
    total = np.exp(shifted).sum(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.where(total > 0, total, 1)))


def _fit_weights(terms: Sequence[Reals], shown: Features, importance: Reals, usual: Reals) -> Reals:
    """The weights, none negative, that maximise the log-likelihood of the conditional logit less the penalty."""
    known = importance * shown.known
    observed = np.array([importance @ np.vecdot(shown.truth, term) for term in terms])

    def loss(weights: Reals) -> tuple[float, Reals]:
        logs = _log_given_known(terms, weights, shown.present)
        likelihood = importance @ np.vecdot(shown.truth, np.where(shown.present, logs, 0))
        given = np.exp(logs)
        expected = np.array([known @ np.vecdot(given, term) for term in terms])
        apart = weights - usual
        return float(_PENALTY / 2 * apart @ apart - likelihood), expected - observed + _PENALTY * apart

    return _minimum(loss, usual, [(0, None)] * len(usual))


# ---- the second model: whether it is one of the answers ----


def _signals(kind: str, features: Features, given: Reals) -> Reals:
    """(rows, signals) that the dataset is one of the answers; NaN if unknown. ``given``: (rows, answers)."""
    fitting = np.where(features.present, features.head, -np.inf).max(axis=1, initial=-np.inf)
    fitting = np.where(features.has_head & np.isfinite(fitting), fitting, np.nan)
    best = np.clip(given.max(axis=1, initial=0), 1e-4, 1 - 1e-4)
    certainty = np.log(best / (1 - best))
    signals: dict[str, tuple[Reals, ...]] = {
        "together": (features.nearness, features.prominence, fitting, features.recognised, certainty),
        "vectors": (features.nearness, features.prominence, certainty),
        "head": (fitting, features.recognised, certainty),
    }
    if (met := features.vocabulary) is not None:
        # Similarities of centred vocabularies have the same scale for all models, so this one is used as it is.
        signals["vocabulary"] = (met.nearest, certainty)
        signals["vectors_and_vocabulary"] = (met.nearest, *signals["vectors"])
        signals["all"] = (met.nearest, *signals["together"])
    return np.stack(signals[kind], axis=1)


def _fit_novelty(seen: Reals, unseen: Reals, known: Reals, importance: Reals) -> NoveltyModel:
    """Logistic regression of ``seen`` (weighted by ``known``) against ``unseen``, with equal total weights.

    No slope is negative.
    """
    from scipy.special import expit

    low, high = _medians(unseen, importance), _medians(seen, known)
    is_ordered = low < high
    low, high = np.where(is_ordered, low, -np.inf), np.where(is_ordered, high, np.inf)
    signals = np.clip(np.concatenate([seen, unseen]), low, high)
    is_seen = np.repeat([1.0, 0.0], [len(seen), len(unseen)])
    counted = np.concatenate([known, importance * known.sum() / importance.sum()])
    weight = np.where(np.isnan(signals), 0, counted[:, None])
    total = np.maximum(weight.sum(axis=0), 1e-12)
    centre = (weight * np.nan_to_num(signals)).sum(axis=0) / total
    spread = np.sqrt((weight * np.nan_to_num(signals - centre) ** 2).sum(axis=0) / total)
    model = NoveltyModel(low, high, centre, np.where(spread > 1e-9, spread, 1), np.zeros(len(centre)), 0.0)
    design = np.concatenate([np.ones((len(signals), 1)), model.standardised(signals)], axis=1)
    penalty = np.array([1e-9] + [_PENALTY] * len(centre))

    def loss(fitted: Reals) -> tuple[float, Reals]:
        odds = design @ fitted
        value = counted @ (np.logaddexp(0, odds) - is_seen * odds) + penalty @ fitted**2 / 2
        return float(value), design.T @ (counted * (expit(odds) - is_seen)) + penalty * fitted

    fitted = _minimum(loss, np.zeros(design.shape[1]), [(None, None)] + [(0, None)] * len(centre))
    return replace(model, slopes=fitted[1:], intercept=float(fitted[0]))


def _medians(signals: Reals, weight: Reals) -> Reals:
    """Weighted medians of the columns, ignoring missing values; NaN for a column without any."""
    found = np.full(signals.shape[1], np.nan)
    for column, values in enumerate(signals.T):
        kept = ~np.isnan(values) & (weight > 0)
        if kept.any():
            found[column] = np.quantile(values[kept], 0.5, weights=weight[kept], method="inverted_cdf")
    return found


def _minimum(
    loss: Callable[[Reals], tuple[float, Reals]], start: Reals, bounds: Sequence[tuple[float | None, float | None]]
) -> Reals:
    """The minimum of a convex function, given with its gradient, within bounds."""
    from scipy.optimize import minimize

    # With these few parameters SLSQP takes a seventh of the time of L-BFGS-B.
    options = {"ftol": 1e-14, "maxiter": 200}
    return minimize(loss, start, jac=True, method="SLSQP", bounds=bounds, options=options).x
