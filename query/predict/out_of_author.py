"""Every documented model predicted from models of other authors, and judged, beside majority and chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from query.predict.answers import EVIDENCE
from query.predict.evidence import Evidence, Reals, Witnesses
from query.predict.learning import learn
from query.predict.scoring import Judged, judge, judge_chance
from query.predict.sweeps import DatasetRuns
from query.statistics.intervals import units_of
from query.statistics.neighbours import Integers


@dataclass(frozen=True)
class HeldOut:
    """Judged models: ``rows`` of the documents, entry i of every column the same model.

    ``judged``: by way of predicting: together, vectors, head, majority, chance. ``hidden``: when whoever shares a
    dataset with the model is kept silent, so that "none of these" is true. ``known``: the share of the truth that
    is among the answers. ``is_calibrated``: whether there was enough to learn from.
    """

    rows: Integers
    judged: dict[str, Judged]
    hidden: dict[str, Judged]
    known: Reals
    is_calibrated: bool


def try_all(witnesses: Witnesses, folds: int) -> HeldOut:
    """Deal the authors into groups, judge each group by what was learnt without it, and join the groups."""
    trials = [_try(witnesses, group) for group in deal(witnesses.sweeps.authors, folds)]
    return HeldOut(
        rows=np.concatenate([trial.rows for trial in trials]),
        judged={name: _join([trial.judged[name] for trial in trials]) for name in trials[0].judged},
        hidden={name: _join([trial.hidden[name] for trial in trials]) for name in EVIDENCE},
        known=np.concatenate([trial.known for trial in trials]),
        is_calibrated=all(trial.is_calibrated for trial in trials),
    )


def deal(authors: Integers, folds: int) -> list[Integers]:
    """Rows by group: each author, the one with most models first, goes to the group that has fewest models yet."""
    units = units_of(authors, folds)
    return [np.flatnonzero(units == unit) for unit in range(int(units.max()) + 1)]


def _try(witnesses: Witnesses, group: Integers) -> HeldOut:
    learnt = learn(witnesses, np.unique(witnesses.sweeps.authors[group]).tolist())
    shown = witnesses.evidence(group)
    hidden = witnesses.evidence(group, is_hidden=True)
    guesses = learnt.probabilities(shown)
    guesses["majority"] = _majority(witnesses.sweeps, shown, learnt.none)
    judged = {name: judge(guess, _whole_truth(shown)) for name, guess in guesses.items()}
    judged["chance"] = judge_chance(shown.present, _whole_truth(shown))
    concealed = learnt.probabilities(hidden).items()
    return HeldOut(
        rows=group,
        judged=judged,
        hidden={name: judge(guess, _whole_truth(hidden)) for name, guess in concealed},
        known=shown.known,
        is_calibrated=learnt.is_calibrated,
    )


def _whole_truth(evidence: Evidence) -> Reals:
    """The truth with "none of these" as its last column; rows sum to 1."""
    return np.concatenate([evidence.truth, 1 - evidence.known[:, None]], axis=1)


def _majority(sweeps: DatasetRuns, shown: Evidence, none: float) -> Reals:
    """Each dataset by its share of all sweeps, whatever the model looks like.

    The model's own sweep is counted too. Without it just the dataset that is right would be rarer than it is: where
    all are equally common, this baseline would never be right, and anything would look good beside it.
    """
    share = np.where(shown.present, sweeps.shares.sum(axis=0), 0).astype(np.float64)
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1e-12)
    nothing = np.where(shown.present.any(axis=1), none, 1.0)[:, None]
    return np.concatenate([(1 - nothing) * share, nothing], axis=1)


def _join(parts: Sequence[Judged]) -> Judged:
    names = [field.name for field in fields(Judged)]
    return Judged(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
