"""A change and its kind, and what a test of one kind is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from indexer.records.kinds.meanings import Kind
from indexer.records.record import Record
from indexer.records.signs import Signs


@dataclass(frozen=True)
class Change:
    """What was done to a base's weights. ``probability`` from 0 to 1; ``evidence`` a sentence without a full stop."""

    kind: Kind
    probability: float
    evidence: str


@dataclass(frozen=True)
class Subject:
    """A record of a full checkpoint with its signs."""

    record: Record
    signs: Signs

    @property
    def is_unrelated(self) -> bool:
        """Whether its weights have nothing of the base's, so that their difference is no change of it."""
        cosine = self.record.base_cosine
        return cosine is not None and cosine < _UNRELATED


_UNRELATED = 0.3
# A probability is at most that of the models on which a test was measured, of which none was wrong.
MOST = 0.998


@dataclass(frozen=True)
class Test:
    """A test of one kind of change.

    Attributes:
        kind: the label if it is the first test in order whose probability is at least one half.
        score: grows with the evidence; 0 is that of an ordinary training.
        evidence: what was seen, in words.
        half: the score at which the probability is one half.
        width: by how much more the odds are e times as high. Both were chosen by ``python -m studies.kinds``.
    """

    kind: Kind
    score: Callable[[Subject], float]
    evidence: Callable[[Subject], str]
    half: float
    width: float

    def probability(self, subject: Subject) -> float:
        """The calibrated probability that the kind of change was made."""
        odds = (self.score(subject) - self.half) / self.width
        return min(MOST, max(1 - MOST, 1 / (1 + math.exp(-min(max(odds, -30.0), 30.0)))))
