"""From measurements to probabilities: two small logistic models, fitted on models whose datasets are known.

The first model assumes that the dataset is one of the answers: P(d) ∝ exp(Σ weight · measurement_d), a conditional
logit (McFadden, 1974). Its columns are ``measurements.OF_ANSWERS``.

The second model gives the probability of "none of these". It is a logistic regression on ``measurements.OF_MODELS`` and
on how certain the first model is. It is fitted on every model twice: as it is, and with its datasets hidden, as if no
other author had used them. Its intercept is then moved from this even mixture to the true share of models whose dataset
no other author names (King & Zeng, 2001).

Some models lack evidence: adapters have no head and no vocabulary. Both logistic models are fitted for each set of
evidence, on its columns of the design matrix and on the models that have it; a model is predicted by the fit for its
own set. One fit for all models, with indicator columns for missing evidence, was worse: over eight trainings of the
demo's family, whose adapters lack much, the mean Brier score was .069 instead of .049. Reduced models are usually
better than imputed values (Saar-Tsechansky & Provost, 2007).

Both models are regularised towards fixed values with the weight of one model, so that little data changes little.

No weight and no slope may be negative. Each model is used for fitting with its own author left out. That makes exactly
the right dataset rarer than it is, and hidden datasets leave fewer answers, which increases certainty. From this,
unconstrained models would conclude that a common dataset, or one with votes, is less probable, and that certainty is
evidence for "none of these".

A measurement of the second model is clipped, so that extreme values count no more than usual ones. Some adapters have
almost no direction in common with other models and stand out less than any model whose dataset is hidden: their vector
is weak, but their dataset may be known. The lower limit is the median over models whose datasets are hidden, the upper
limit the median over models as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from query.questions.predict.measurements import (
    EVIDENCE,
    OF_ANSWERS,
    OF_MODELS,
    Design,
    columns_of,
    design_of,
    usual_weights,
    ways,
)
from query.questions.predict.training_set import Features, Reals, TrainingSet
from query.shared.statistics.neighbours import Booleans, Integers

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
        return self.intercept + np.vecdot(self.standardised(signals), self.slopes)

    def standardised(self, signals: Reals) -> Reals:
        """Signals in units of their spread from their centre; missing ones are at the centre."""
        return np.nan_to_num((np.clip(signals, self.low, self.high) - self.centre) / self.spread)


@dataclass(frozen=True)
class Classifier:
    """Both models for one set of evidence.

    Attributes:
        evidence: the kinds of evidence.
        weights: for the columns of ``OF_ANSWERS`` that need no other evidence.
        novelty: the second model, for an even mixture; None if there were no observations.
    """

    evidence: frozenset[str]
    weights: Reals
    novelty: NoveltyModel | None = None

    def log_given_known(self, design: Design) -> Reals:
        """(rows, answers): ln of the probability of each answer, given that one is right; -inf if it is not present."""
        terms = design.of_answers[columns_of(OF_ANSWERS, self.evidence)]
        return _log_given_known(terms, self.weights, design.present)

    def signals(self, design: Design) -> Reals:
        """(rows, signals) that the dataset is one of the answers; NaN if unknown. The last signal is the certainty."""
        columns = columns_of(OF_MODELS, self.evidence)
        best = np.clip(np.exp(self.log_given_known(design)).max(axis=1, initial=0), 1e-4, 1 - 1e-4)
        return np.concatenate([design.of_models[columns], np.log(best / (1 - best))[None, :]]).T

    def probabilities(self, design: Design, none: float) -> Reals:
        """(rows, answers + 1); rows sum to 1, and the last column is "none of these", whose prior is ``none``."""
        answer_shares = np.exp(self.log_given_known(design))
        log_odds = np.full(len(answer_shares), np.log((1 - none) / none))
        if self.novelty is not None:
            log_odds += self.novelty.log_odds(self.signals(design))
        is_answer = np.where(design.present.any(axis=1), 1 / (1 + np.exp(-log_odds)), 0)[:, None]
        return np.concatenate([is_answer * answer_shares, 1 - is_answer], axis=1)


@dataclass(frozen=True)
class FittedClassifiers:
    """The classifiers for every set of evidence.

    Attributes:
        classifiers: the fitted classifiers by evidence; sets of evidence that are not here have the usual weights.
        none: the share of models whose dataset no other author names.
        is_calibrated: whether there were enough models to fit on.
    """

    classifiers: Mapping[frozenset[str], Classifier]
    none: float
    is_calibrated: bool

    def by(self, evidence: frozenset[str]) -> Classifier:
        """The classifier for models that have this evidence."""
        return self.classifiers.get(evidence) or Classifier(evidence, usual_weights(evidence))

    def probabilities(self, features: Features) -> dict[str, Reals]:
        """By way of predicting (rows, answers + 1); rows sum to 1, and the last column is "none of these".

        The ways are ``TOGETHER``, each kind of evidence alone, and without each optional kind. A model without any such
        evidence is predicted by how common datasets are.
        """
        design = design_of(features)
        return {way: self._by_evidence(design, evidence) for way, evidence in ways(design.kinds).items()}

    def _by_evidence(self, design: Design, evidence: frozenset[str]) -> Reals:
        used = design.is_known & np.array([kind.name in evidence for kind in EVIDENCE])
        probabilities = np.zeros((len(used), design.present.shape[1] + 1))
        for pattern in np.unique(used, axis=0):
            rows = (used == pattern).all(axis=1)
            kinds = frozenset(kind.name for kind, is_used in zip(EVIDENCE, pattern, strict=True) if is_used)
            probabilities[rows] = self.by(kinds).probabilities(design.take(rows), self.none)
        return probabilities


def fit(training: TrainingSet, withheld: Sequence[int]) -> FittedClassifiers:
    """Fit on the labelled models among ``training.rows``, without the models of the authors ``withheld``.

    Models of these authors do not vote either, so they have no influence at all. A sweep (one author, one set of
    datasets) counts as one model.
    """
    sweeps = training.sweeps
    sweep_of_row = sweeps.of_model[training.rows]
    rows = training_rows(sweep_of_row, np.isin(sweeps.authors[training.rows], withheld))
    features = training.features(rows, withheld)
    importance = 1 / np.bincount(sweep_of_row[rows], minlength=1)[sweep_of_row[rows]]
    comparable = features.present.any(axis=1)  # a model without other authors to compare with shows nothing
    none = none_share(features.covered[comparable], importance[comparable])
    is_covered = features.covered > 0
    authors = sweeps.authors[training.rows[rows[is_covered]]]
    if is_covered.sum() < ENOUGH_MODELS or len(set(authors.tolist())) < _ENOUGH_AUTHORS:
        return uncalibrated(none)
    shown = design_of(features)
    hidden = design_of(training.features(rows, withheld, is_hidden=True))  # the same models, their datasets hidden
    classifiers = {}
    for size in range(1, len(shown.kinds) + 1):
        for kinds in combinations(shown.kinds, size):
            # With its datasets hidden, a model may have no other sweep to compare its vocabulary with.
            has_shown, has_hidden = shown.has(kinds), shown.has(kinds) & hidden.has(kinds)
            if has_shown.any():
                cases = (
                    (shown.take(has_shown), importance[has_shown]),
                    (hidden.take(has_hidden), importance[has_hidden]),
                )
                classifiers[frozenset(kinds)] = _fitted(frozenset(kinds), *cases)
    return FittedClassifiers(classifiers, none, is_calibrated=True)


def training_rows(sweep: Integers, is_withheld: Booleans, most: int = _MAX_MODELS) -> Integers:
    """Indices of the labelled models to fit on: all, or ``most``.

    The order is one model of every sweep, then a second model of every sweep, and so on.

    Args:
        sweep: (n,) the sweep of each model; -1: it has no datasets.
        is_withheld: (n,) models to leave out.
        most: the largest number of models.
    """
    rows = np.flatnonzero((sweep >= 0) & ~is_withheld)
    counts_by_sweep: dict[int, int] = {}
    order = []
    for number in sweep[rows].tolist():
        order.append(counts_by_sweep.get(number, 0))
        counts_by_sweep[number] = order[-1] + 1
    return np.sort(rows[np.argsort(np.array(order, dtype=np.intp), kind="stable")[:most]])


def uncalibrated(none: float) -> FittedClassifiers:
    """Usual weights, and one probability of "none of these" for all models."""
    return FittedClassifiers({}, none, is_calibrated=False)


def none_share(covered: Reals, importance: Reals) -> float:
    """The share of models whose dataset is none of the answers, by the rule of succession: never 0 or 1."""
    return float((importance @ (1 - covered) + 1) / (importance.sum() + 2))


def _fitted(evidence: frozenset[str], shown: tuple[Design, Reals], hidden: tuple[Design, Reals]) -> Classifier:
    """Fit to models as they are and to models whose datasets are hidden, both with their importance (rows,)."""
    shown_design, shown_importance = shown
    hidden_design, hidden_importance = hidden
    fitted = Classifier(evidence, _fit_weights(evidence, shown_design, shown_importance))
    covered = shown_importance * shown_design.truth.sum(axis=1)
    if not covered.sum() or not hidden_importance.sum():
        return fitted
    signals = fitted.signals(shown_design), fitted.signals(hidden_design)
    return replace(fitted, novelty=_fit_novelty(*signals, covered, hidden_importance))


# ---- the first model: which of the answers ----


def _log_given_known(terms: Reals, weights: Reals, present: Booleans) -> Reals:
    """(rows, answers): ln of the probability, given that it is one of the answers; -inf if it is not present.

    ``terms``: (columns, rows, answers).
    """
    # Column by column: in a product of matrices, the rounding of a row depends on the other rows.
    scores = np.where(present, sum(weight * term for weight, term in zip(weights, terms, strict=True)), -np.inf)
    highest = scores.max(axis=1, keepdims=True, initial=-np.inf)
    shifted = scores - np.where(np.isfinite(highest), highest, 0)
    total = np.exp(shifted).sum(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.where(total > 0, total, 1)))


def _fit_weights(evidence: frozenset[str], shown: Design, importance: Reals) -> Reals:
    """The weights, none negative, that maximise the log-likelihood of the conditional logit less the penalty."""
    terms, usual = shown.of_answers[columns_of(OF_ANSWERS, evidence)], usual_weights(evidence)
    covered = importance * shown.truth.sum(axis=1)
    observed = np.array([importance @ np.vecdot(shown.truth, term) for term in terms])

    def loss(weights: Reals) -> tuple[float, Reals]:
        logs = _log_given_known(terms, weights, shown.present)
        likelihood = importance @ np.vecdot(shown.truth, np.where(shown.present, logs, 0))
        probabilities = np.exp(logs)
        expected = np.array([covered @ np.vecdot(probabilities, term) for term in terms])
        deviation = weights - usual
        return float(_PENALTY / 2 * deviation @ deviation - likelihood), expected - observed + _PENALTY * deviation

    return _minimum(loss, usual, [(0, None)] * len(usual))


# ---- the second model: whether it is one of the answers ----


def _fit_novelty(shown: Reals, hidden: Reals, covered: Reals, importance: Reals) -> NoveltyModel:
    """Logistic regression of ``shown`` (weighted by ``covered``) against ``hidden``, with equal total weights.

    No slope is negative.
    """
    from scipy.special import expit

    low, high = _medians(hidden, importance), _medians(shown, covered)
    is_ordered = low < high
    low, high = np.where(is_ordered, low, -np.inf), np.where(is_ordered, high, np.inf)
    signals = np.clip(np.concatenate([shown, hidden]), low, high)
    is_shown = np.repeat([1.0, 0.0], [len(shown), len(hidden)])
    counted = np.concatenate([covered, importance * covered.sum() / importance.sum()])
    weight = np.where(np.isnan(signals), 0, counted[:, None])
    total = np.maximum(weight.sum(axis=0), 1e-12)
    centre = (weight * np.nan_to_num(signals)).sum(axis=0) / total
    spread = np.sqrt((weight * np.nan_to_num(signals - centre) ** 2).sum(axis=0) / total)
    model = NoveltyModel(low, high, centre, np.where(spread > 1e-9, spread, 1), np.zeros(len(centre)), 0.0)
    design = np.concatenate([np.ones((len(signals), 1)), model.standardised(signals)], axis=1)
    penalty = np.array([1e-9] + [_PENALTY] * len(centre))

    def loss(fitted: Reals) -> tuple[float, Reals]:
        odds = design @ fitted
        value = counted @ (np.logaddexp(0, odds) - is_shown * odds) + penalty @ fitted**2 / 2
        return float(value), design.T @ (counted * (expit(odds) - is_shown)) + penalty * fitted

    fitted = _minimum(loss, np.zeros(design.shape[1]), [(None, None)] + [(0, None)] * len(centre))
    return replace(model, slopes=fitted[1:], intercept=float(fitted[0]))


def _medians(signals: Reals, weight: Reals) -> Reals:
    """Weighted medians of the columns, ignoring missing values; NaN for a column without any."""
    medians = np.full(signals.shape[1], np.nan)
    for column, values in enumerate(signals.T):
        is_usable = ~np.isnan(values) & (weight > 0)
        if is_usable.any():
            medians[column] = np.quantile(values[is_usable], 0.5, weights=weight[is_usable], method="inverted_cdf")
    return medians


def _minimum(
    loss: Callable[[Reals], tuple[float, Reals]], start: Reals, bounds: Sequence[tuple[float | None, float | None]]
) -> Reals:
    """The minimum of a convex function, given with its gradient, within bounds."""
    from scipy.optimize import minimize

    # With these few parameters SLSQP takes a seventh of the time of L-BFGS-B.
    options = {"ftol": 1e-14, "maxiter": 200}
    return minimize(loss, start, jac=True, method="SLSQP", bounds=bounds, options=options).x
