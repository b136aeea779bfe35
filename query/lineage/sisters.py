"""Which of several relatives a model was continued from: sisters and cousins may be nearer to it than its parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from query.lineage.evidence import single
from query.lineage.kinship import Rows, kept_rows, kinship, rows_between
from query.lineage.links import CONTINUED, Reading, age
from query.lineage.thresholds import Limits

if TYPE_CHECKING:
    from indexer.records.parts import ModelParts

Floats = NDArray[np.float32]

# One in so many directions of a step counts as what the data ask of everyone.
LEADING = 8


@dataclass(frozen=True)
class Relative:
    """A model that the asked one may have been continued from. ``shared``: embeddings of its training that it holds.

    ``signals``: the numbers that speak for and against it, for its probability. ``kind``: how the step is called.
    """

    reading: Reading
    left: float
    because: str
    direction: bool
    is_proven: bool
    shared: int
    signals: Mapping[str, float] = field(default_factory=dict)
    kind: str = CONTINUED


class Relatives:
    """Chooses among the relatives of the asked model ``m``.

    ``tokens``: the base with its embeddings, where they could be had. ``dates``: whether creation dates may be used.
    """

    def __init__(self, m: ModelParts, tokens: ModelParts | None, limits: Limits, *, dates: bool) -> None:
        self.m, self.tokens, self.limits, self.dates = m, tokens, limits, dates
        self._rows: dict[int, Rows | None] = {}

    def parent(self, found: Sequence[Relative]) -> tuple[Relative, list[Reading]] | None:
        """The parent, and the other models that the weights cannot tell from it; None where each one is ruled out."""
        found = [one for one in found if not any(self._is_left_behind(one, other) for other in found)]
        # In a circle, where each is refused for another, this says nothing.
        found = [one for one in found if not any(self._is_farther(one, other) for other in found)] or found
        found = [one for one in found if one.is_proven or not any(other.is_proven for other in found)]
        found = [one for one in found if one.direction or not any(other.direction for other in found)]
        found = [one for one in found if not any(self._is_sister_beside(one, other) for other in found)]
        if not found:
            return None
        most = max(one.shared for one in found) - self.limits.shared
        near = [one for one in found if one.shared >= most]
        first = min(near, key=lambda one: (round(one.left, 9), age(one.reading.candidate)))
        others = [one.reading for one in near if one is not first and abs(one.left - first.left) < 1e-9]
        return first, others

    def _is_left_behind(self, one: Relative, parent: Relative) -> bool:
        """Whether the asked model holds embeddings of ``parent`` that ``one`` changed, and none the other way."""
        m, mine, theirs = self.m, one.reading.parts, parent.reading.parts
        if one is parent or not kept_rows(m, theirs, mine, self.tokens):
            return False
        return not kept_rows(m, mine, theirs, self.tokens)

    def _is_farther(self, one: Relative, parent: Relative) -> bool:
        """Whether more trainings lie between the asked model and ``one`` than between it and ``parent``.

        The rows of one training's change are flatter than those of several together, in most of the words.
        """
        if one is parent or one.shared > parent.shared + self.limits.shared:
            return False
        if one.direction and not parent.direction:
            return False
        return self._is_flatter(self._rows_of(parent.reading), self._rows_of(one.reading), self.limits.flatter)

    def is_nearer_than_base(self, one: Reading) -> bool:
        """Whether fewer trainings lie between the asked model and ``one`` than between it and the base."""
        return self._is_flatter(self._rows_of(one), self._of_base, self.limits.flatter_than_base)

    def beside_base(self, one: Reading) -> tuple[int, float]:
        """How many words tell ``one`` from the base, and in which share of them the change from ``one`` is flatter."""
        return self._flatter_share(self._rows_of(one), self._of_base)

    def _is_flatter(self, first: Rows | None, second: Rows | None, least: float) -> bool:
        """Whether the change of ``least`` of the words is flatter in the first than in the second, and not by chance.

        Only words that the asked model has otherwise than either, and evenly by one of the two at least: what an
        optimiser without steps of one size leaves is uneven by both, and says nothing.
        """
        words, share = self._flatter_share(first, second)
        # Beyond two standard deviations of a coin.
        return words >= self.limits.flat_rows and share >= max(least, 0.5 + 1 / np.sqrt(words))

    def _flatter_share(self, first: Rows | None, second: Rows | None) -> tuple[int, float]:
        if first is None or second is None:
            return 0, 0.5
        told = first.changed & second.changed & (first.flatness != second.flatness)
        told &= np.maximum(first.flatness, second.flatness) >= self.limits.flat
        words = int(np.count_nonzero(told))
        return words, float(np.mean(first.flatness[told] > second.flatness[told])) if words else 0.5

    def _rows_of(self, other: Reading) -> Rows | None:
        key = other.candidate.model_id
        if key not in self._rows:
            self._rows[key] = rows_between(self.m, other.parts) if self.tokens else None
        return self._rows[key]

    @cached_property
    def _of_base(self) -> Rows | None:
        return rows_between(self.m, self.tokens) if self.tokens else None

    def _is_sister_beside(self, one: Relative, parent: Relative) -> bool:
        """Whether ``one`` went another way from ``parent`` than the asked model did, which holds no more of it."""
        if one is parent or one.shared > parent.shared + self.limits.shared or parent.left <= one.left:
            return False
        if not self._may_come_from(one.reading, parent.reading):
            return False
        return tail_cosine(self.m, one.reading.parts, parent.reading.parts) < self.limits.sister

    def _may_come_from(self, one: Reading, parent: Reading) -> bool:
        """Whether ``one`` may have been continued from ``parent``, by dates, angles and embeddings."""
        if self.dates and age(parent.candidate) > age(one.candidate):
            return False
        seen = single(one.parts, parent.parts)
        if abs(seen.cosine) > self.limits.aligned or abs(seen.cosine) >= abs(seen.reverse):
            return False
        kin = kinship(one.parts, parent.parts, self.tokens)
        return kin is None or kin.only_p <= 2


def tail_cosine(m: ModelParts, s: ModelParts, p: ModelParts) -> float:
    """The cosine of what is left after s, m − s, with its step s − p, without the step's leading directions.

    What data ask of every model that is trained on them lies in few directions, in which a sister may go as far as s
    did and farther. In all the others a child of s has the whole step and something of its own, near 0; a sister went
    another way, and lacks it: below 0. 0 where one of them did not move.
    """
    along = after = before = 0.0
    for name, weight in m.weights.items():
        step = s.weights[name] - p.weights[name]
        if not step.any():
            continue
        u, _, vt = np.linalg.svd(step, full_matrices=False)
        leading = min(step.shape) // LEADING
        u, vt = u[:, :leading], vt[:leading]
        step = _without(step, u, vt)
        rest = _without(weight - s.weights[name], u, vt)
        along += float(np.vdot(rest, step))
        after += float(np.vdot(rest, rest))
        before += float(np.vdot(step, step))
    return along / float(np.sqrt(after * before)) if after > 0 and before > 0 else 0.0


def _without(matrix: Floats, u: Floats, vt: Floats) -> Floats:
    """What is left of a matrix beside the columns of ``u`` and the rows of ``vt``."""
    rest: Floats = matrix - u @ (u.T @ matrix)
    rest -= (rest @ vt.T) @ vt
    return rest
