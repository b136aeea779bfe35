"""The kinds of change, and what a test of one of them returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from indexer.records.record import Record
from indexer.records.signs import Signs

Kind = Literal[
    "trained", "adapter", "adapter merged", "merge", "unchanged", "fact edited", "abliterated", "pruned", "quantised",
    "noise added", "embedding rows reset", "embedding rows added", "layers moved", "rearranged", "untrained", "broken",
]  # fmt: skip
# What each kind means, in the order in which they are listed.
MEANINGS: dict[Kind, str] = {
    "trained": "weights were trained on; no other change shows",
    "adapter": "an adapter, apart from the base's weights",
    "adapter merged": "each change has a low rank, as of a LoRA that was merged",
    "merge": "a weighted sum of other models (query lineage names them)",
    "unchanged": "the base's weights, at most in another dtype",
    "fact edited": "a change of low rank in the second feed-forward matrix of one or a few layers, as ROME and MEMIT",
    "abliterated": "one direction of the residual stream was removed from all matrices that write into it",
    "pruned": "numbers were set to zero",
    "quantised": "weights lie on a grid of few numbers, as after quantisation, whatever dtype they are stored in",
    "noise added": "independent numbers were added to all weights",
    "embedding rows reset": "rows of the token embedding were written anew",
    "embedding rows added": "rows were appended to the token embedding, and nothing else changed",
    "layers moved": "layers are copied, dropped, or in another order",
    "rearranged": "the base's weights in other places or with other scales",
    "untrained": "weights as a new network draws them, or an adapter that adds zero",
    "broken": "numbers that are not finite, constant matrices, or matrices of another model among the base's",
}


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
        width: by how much more the odds are e times as high. Both were fitted by ``python -m studies.kinds``.
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
