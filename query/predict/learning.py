"""The calibrations that judge a model, learnt from models of other authors only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from query.predict.answers import EVIDENCE, Calibration, calibrate, none_share, uncalibrated
from query.predict.evidence import Evidence, Reals, Witnesses
from query.statistics.neighbours import Booleans, Integers

# Below these, probabilities are not calibrated: models whose dataset another author names too, and their authors.
ENOUGH_MODELS = 20
ENOUGH_AUTHORS = 3
TOO_FEW = (
    f"The probabilities are not calibrated: that takes {ENOUGH_MODELS} models, by {ENOUGH_AUTHORS} authors, whose "
    "datasets others name too."
)

# A few parameters are learnt: more models than this change nothing but the time it takes.
MOST_MODELS = 1000


@dataclass(frozen=True)
class Learnt:
    """A calibration for each kind of evidence; ``is_calibrated`` where there was enough to learn them from.

    ``none``: the share of models whose dataset no other author names.
    """

    calibrations: Mapping[str, Calibration]
    none: float
    is_calibrated: bool

    def probabilities(self, evidence: Evidence) -> dict[str, Reals]:
        """By kind of evidence (rows, answers + 1). Together is vectors alone where a model has no head to go by."""
        found = {kind: calibration.probabilities(evidence) for kind, calibration in self.calibrations.items()}
        found["together"] = np.where(evidence.has_head[:, None], found["together"], found["vectors"])
        return found


def learn(witnesses: Witnesses, withheld: Sequence[int]) -> Learnt:
    """Learn from those documented models among ``witnesses.rows`` that are by none of the authors ``withheld``.

    Models of these authors do not speak of the others either, so nothing of theirs has any part in it. A sweep
    (one author, one set of datasets) counts as one model.
    """
    sweeps = witnesses.sweeps
    mine = sweeps.of_model[witnesses.rows]
    places = lessons(mine, np.isin(sweeps.authors[witnesses.rows], withheld))
    shown = witnesses.evidence(places, withheld)
    importance = 1 / np.bincount(mine[places], minlength=1)[mine[places]]
    asked = shown.present.any(axis=1)  # where there is nobody else, that nobody else names it means nothing
    none = none_share(shown.known[asked], importance[asked])
    known = shown.known > 0
    authors = sweeps.authors[witnesses.rows[places[known]]]
    if known.sum() < ENOUGH_MODELS or len(set(authors.tolist())) < ENOUGH_AUTHORS:
        return Learnt({kind: uncalibrated(kind, none) for kind in EVIDENCE}, none, is_calibrated=False)
    hidden = witnesses.evidence(places, withheld, is_hidden=True)
    with_head = importance * shown.has_head
    counted = {"together": with_head, "vectors": importance, "head": with_head}
    calibrations = {kind: calibrate(kind, none, shown, hidden, counted[kind]) for kind in EVIDENCE}
    return Learnt(calibrations, none, is_calibrated=True)


def lessons(sweep: Integers, is_withheld: Booleans, most: int = MOST_MODELS) -> Integers:
    """Places of the documented models to learn from: all, or ``most``.

    Of every sweep its first is taken, then of every sweep its second, and so on.
    ``sweep``: the sweep of each model, -1 for one without datasets.
    """
    places = np.flatnonzero((sweep >= 0) & ~is_withheld)
    heard: dict[int, int] = {}
    turns = []
    for number in sweep[places].tolist():
        turns.append(heard.get(number, 0))
        heard[number] = turns[-1] + 1
    return np.sort(places[np.argsort(np.array(turns, dtype=np.intp), kind="stable")[:most]])
