"""From evidence to probabilities: two small logistic models, fitted on models whose datasets are known.

First, given that the dataset is among the answers: P(d) ∝ exp(Σ weight · term_d), a conditional logit (McFadden,
1974) whose terms are ln of the lift (the share of the votes over that of the sweeps), the share of the votes, ln of
how common the dataset is, and ln of the likelihood ratio of the head. (The share beside the lift lets a clear majority
be believed while a dataset without a vote is not ruled out; what is common collects votes by being common.) Second,
whether it is among the answers at all, which makes "none of these": a logistic regression on how far the nearest sweep
stands out, how well the head fits the dataset it fits best, whether its label names have been seen before, and how
sure the first step is. Every model is shown to the second twice: as it is, and with its datasets hidden, as if
nobody else had used them. The intercept is then moved from this even mixture to the real share of models whose
dataset no other author names (King & Zeng, 2001). Both are pulled towards fixed values with the force of one model,
so that little data does little.

A model is learnt from with its own author left out, and that alone must teach nothing. Left out, the author makes just
the right dataset rarer; and with a model's datasets hidden there are fewer to choose from, which makes surer. Both
would teach the wrong way round, so no weight and no slope is negative: neither being common nor votes beyond what is
common are evidence against a dataset, nor is being sure evidence for "none of these".

Nor does a sign say more the further out it lies. Some adapters have hardly a direction in common with anybody, and
stand out less than any model whose dataset is hidden: that is a weak vector, not an unknown dataset. So a sign counts
for no less than that of the middle model whose datasets are hidden, and for no more than that of the middle one as it
is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from query.predict.evidence import Evidence, Reals
from query.statistics.neighbours import Booleans

EVIDENCE = ("together", "vectors", "head")
NONE_OF_THESE = "none of these"  # no dataset's name holds a blank

# Towards what the weights of the terms are pulled.
_USUAL_WEIGHTS = {"together": (1.5, 0.0, 1.5, 1.0), "vectors": (1.5, 0.0, 1.5), "head": (1.0, 1.0)}
_PULL = 1.0
_MOST_STEPS = 50


@dataclass(frozen=True)
class Familiarity:
    """Log-odds that a dataset is among the answers: intercept + Σ slope · (sign - centre)/spread, a missing sign 0.

    A sign below its ``low`` counts as that, one above its ``high`` as that.
    """

    low: Reals
    high: Reals
    centre: Reals
    spread: Reals
    slopes: Reals
    intercept: float

    def log_odds(self, signs: Reals) -> Reals:
        """(rows,) from (rows, signs)."""
        odds: Reals = self.intercept + self.standardised(signs) @ self.slopes
        return odds

    def standardised(self, signs: Reals) -> Reals:
        """Signs in units of their spread from their centre; what is missing lies at the centre."""
        return np.nan_to_num((np.clip(signs, self.low, self.high) - self.centre) / self.spread)


@dataclass(frozen=True)
class Calibration:
    """The parameters of both models for one ``kind`` of evidence, one of EVIDENCE.

    ``weights``: of the terms. ``none``: the share of models whose dataset no other author names. ``familiarity``:
    how the evidence moves that, in an even mixture; None where there was nothing to learn it from.
    """

    kind: str
    weights: Reals
    none: float
    familiarity: Familiarity | None = None

    def probabilities(self, evidence: Evidence) -> Reals:
        """(rows, answers + 1); rows sum to 1, and the last column is "none of these".

        Where a head is asked for and there is none, that is as probable as it is on the whole.
        """
        given = _given_known(_terms(self.kind, evidence), self.weights, evidence.present)
        log_odds = np.full(len(given), np.log((1 - self.none) / self.none))
        if self.familiarity is not None:
            learnt = self.familiarity.log_odds(_signs(self.kind, evidence, given))
            log_odds += np.where(evidence.has_head | (self.kind == "vectors"), learnt, 0)
        known = np.where(evidence.present.any(axis=1), _logistic(log_odds), 0)[:, None]
        return np.concatenate([known * given, 1 - known], axis=1)


def uncalibrated(kind: str, none: float) -> Calibration:
    """Usual weights, and the same chance of "none of these" whatever the evidence."""
    return Calibration(kind, np.array(_USUAL_WEIGHTS[kind]), none)


def calibrate(kind: str, none: float, shown: Evidence, hidden: Evidence, importance: Reals) -> Calibration:
    """The calibration for one kind of evidence, from the same models as they are and with their datasets hidden.

    ``importance``: (rows,) how much each model counts.
    """
    weights = _fit_weights(_terms(kind, shown), shown, importance, np.array(_USUAL_WEIGHTS[kind]))
    seen, unseen = (
        _signs(kind, evidence, _given_known(_terms(kind, evidence), weights, evidence.present))
        for evidence in (shown, hidden)
    )
    return Calibration(kind, weights, none, _fit_familiarity(seen, unseen, importance * shown.known, importance))


def none_share(known: Reals, importance: Reals) -> float:
    """The share of models whose dataset is none of the answers; by the rule of succession never 0 or 1."""
    return float((importance @ (1 - known) + 1) / (importance.sum() + 2))


def _logistic(log_odds: Reals) -> Reals:
    probability: Reals = 1 / (1 + np.exp(-log_odds))
    return probability


def _terms(kind: str, evidence: Evidence) -> tuple[Reals, ...]:
    """The terms of the first model, (rows, answers) each."""
    lift = evidence.log_votes - evidence.log_common
    return {
        "together": (lift, evidence.share, evidence.log_common, evidence.head),
        "vectors": (lift, evidence.share, evidence.log_common),
        "head": (evidence.log_common, evidence.head),
    }[kind]


def _signs(kind: str, evidence: Evidence, given: Reals) -> Reals:
    """(rows, signs) that the dataset is among the answers; NaN where unknown. ``given``: (rows, answers)."""
    fit = np.where(evidence.present, evidence.head, -np.inf).max(axis=1, initial=-np.inf)
    fit = np.where(evidence.has_head & np.isfinite(fit), fit, np.nan)
    best = np.clip(given.max(axis=1, initial=0), 1e-4, 1 - 1e-4)
    sureness = np.log(best / (1 - best))
    signs = {
        "together": (evidence.prominence, fit, evidence.recognised, sureness),
        "vectors": (evidence.prominence, sureness),
        "head": (fit, evidence.recognised, sureness),
    }
    return np.stack(signs[kind], axis=1)


def _given_known(terms: Sequence[Reals], weights: Reals, present: Booleans) -> Reals:
    """(rows, answers): the probability of each, given that it is one of them; zeros where there is none."""
    scores = np.where(present, sum(weight * term for weight, term in zip(weights, terms, strict=True)), -np.inf)
    highest = scores.max(axis=1, keepdims=True, initial=-np.inf)
    given = np.exp(scores - np.where(np.isfinite(highest), highest, 0))
    total = given.sum(axis=1, keepdims=True)
    return np.asarray(given / np.where(total > 0, total, 1))


def _fit_weights(terms: Sequence[Reals], shown: Evidence, importance: Reals, usual: Reals) -> Reals:
    """The weights, none negative, that maximise the log-likelihood of the conditional logit less the pull.

    Its gradient is observed less expected terms, its curvature minus the covariance of the terms.
    """
    known = importance * shown.known
    observed = np.array([importance @ _along(shown.truth, term) for term in terms])

    def derivatives(weights: Reals) -> tuple[Reals, Reals]:
        given = _given_known(terms, weights, shown.present)
        means = np.array([_along(given, term) for term in terms])
        products = np.array([[known @ _along(given * one, other) for other in terms] for one in terms])
        covariance = products - (means * known) @ means.T
        return means @ known - observed + _PULL * (weights - usual), covariance + _PULL * np.eye(len(usual))

    return _least(derivatives, usual, np.zeros(len(usual)))


def _along(left: Reals, right: Reals) -> Reals:
    """(rows,): the inner product of the two in each row."""
    return np.einsum("rd,rd->r", left, right)


def _fit_familiarity(seen: Reals, unseen: Reals, known: Reals, importance: Reals) -> Familiarity | None:
    """Logistic regression of seen (counted ``known``) against unseen, each half of the whole, by Newton's method."""
    if not known.sum():
        return None
    low, high = _middles(seen, unseen, known, importance)
    signs = np.clip(np.concatenate([seen, unseen]), low, high)
    is_seen = np.repeat([1.0, 0.0], [len(seen), len(unseen)])
    counted = np.concatenate([known, importance * known.sum() / importance.sum()])
    weight = np.where(np.isnan(signs), 0, counted[:, None])
    total = np.maximum(weight.sum(axis=0), 1e-12)
    centre = (weight * np.nan_to_num(signs)).sum(axis=0) / total
    spread = np.sqrt((weight * np.nan_to_num(signs - centre) ** 2).sum(axis=0) / total)
    plain = Familiarity(low, high, centre, np.where(spread > 1e-9, spread, 1), np.zeros(len(centre)), 0.0)
    design = np.concatenate([np.ones((len(signs), 1)), plain.standardised(signs)], axis=1)
    pull = np.array([1e-9] + [_PULL] * len(centre))

    def derivatives(fitted: Reals) -> tuple[Reals, Reals]:
        expected = _logistic(design @ fitted)
        curvature = (design * (counted * expected * (1 - expected))[:, None]).T @ design + np.diag(pull)
        return design.T @ (counted * (expected - is_seen)) + pull * fitted, curvature

    fitted = _least(derivatives, np.zeros(design.shape[1]), np.array([-np.inf] + [0.0] * len(centre)))
    return replace(plain, slopes=fitted[1:], intercept=float(fitted[0]))


def _middles(seen: Reals, unseen: Reals, known: Reals, importance: Reals) -> tuple[Reals, Reals]:
    """The median of each sign unseen and seen; no bounds where these are the wrong way round."""
    low, high = _medians(unseen, importance), _medians(seen, known)
    is_told = low < high
    return np.where(is_told, low, -np.inf), np.where(is_told, high, np.inf)


def _medians(signs: Reals, weight: Reals) -> Reals:
    """Weighted medians of the columns, without what is missing; NaN where everything is."""
    found = np.full(signs.shape[1], np.nan)
    for column, values in enumerate(signs.T):
        kept = ~np.isnan(values) & (weight > 0)
        if kept.any():
            found[column] = np.quantile(values[kept], 0.5, weights=weight[kept], method="inverted_cdf")
    return found


def _least(derivatives: Callable[[Reals], tuple[Reals, Reals]], start: Reals, lowest: Reals) -> Reals:
    """Where a convex function is least among parameters that are not below ``lowest``, by Newton's method.

    A parameter at its lowest that would go below stays there, and the others move as if it were fixed.
    """
    found = start
    for _ in range(_MOST_STEPS):
        gradient, curvature = derivatives(found)
        moving = np.flatnonzero((found > lowest) | (gradient < 0))
        step = np.zeros(len(found))
        step[moving] = np.linalg.solve(curvature[np.ix_(moving, moving)], gradient[moving])
        moved = np.maximum(found - np.clip(step, -1, 1), lowest)
        change, found = np.abs(moved - found).max(), moved
        if change < 1e-6:
            break
    return found
