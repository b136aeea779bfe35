"""Which candidates' weights are read for one model, and when enough of them are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexer.errors import ModelError
from query.lineage.candidates import Candidate, FactorStore
from query.lineage.decide import Judge
from query.lineage.evidence import Combinations, residual
from query.lineage.groups import best_group
from query.lineage.links import CONTINUED, RELATED, Link, Reading, Verdict

if TYPE_CHECKING:
    from indexer.records.parts import ModelParts

# Gives the parts of a candidate, or why they cannot be had.
Reader = Callable[[Candidate], "ModelParts | ModelError"]


@dataclass
class Spending:
    """What one answer has read so far."""

    spent: int = 0
    largest: int = 0
    models: int = 0
    notes: list[str] = field(default_factory=list)


class Search:
    """Which candidates to read, and when to stop."""

    def __init__(
        self,
        reader: Reader,
        judge: Judge,
        store: FactorStore,
        candidates: Sequence[Candidate],
        spending: Spending,
    ) -> None:
        self.reader, self.judge, self.store, self.spending = reader, judge, store, spending
        self.held, self.waiting = list(candidates), list(candidates)
        self.readings: list[Reading] = []
        self.gains: dict[int, float] = {}
        self.unread: list[tuple[float, Candidate]] = []
        self.originals: list[Candidate] = []

    def run(self, declared: Sequence[Candidate]) -> Verdict:
        """Read until the answer is settled, nothing promising is left, or the budget is spent."""
        m, limits = self.judge.m, self.judge.limits
        if self.waiting:
            plain, _ = self.store.fit(self.waiting, m.deltas)
            self.gains = {one.model_id: float(gain) for one, gain in zip(self.waiting, plain, strict=True)}
        verdict = Verdict((), settled=False)
        for turn in range(limits.most_models):
            if not self.waiting or self.spending.spent + self.spending.largest > limits.budget:
                break
            chosen = self._next(turn, verdict)
            if chosen is None:
                break
            self._take(chosen)
            verdict = self.judge.verdict(self.readings)
            if verdict.settled:
                break
        for one in declared:
            is_affordable = self.spending.spent + self.spending.largest <= limits.budget
            if not verdict.settled and one in self.waiting and is_affordable:
                self._take(one)
                verdict = self.judge.verdict(self.readings)
        if not verdict.settled and not self.judge.is_sparse:
            verdict = self._together() or verdict
        verdict = self._told_again(verdict)
        return verdict if verdict.links else self._by_factors()

    def _together(self) -> Verdict | None:
        """What comes of reading those that explain most together; None where that settles nothing.

        Parents of a merge may have relatives, or other merges, that are nearer to it each by itself.
        """
        limits = self.judge.limits
        if not self.waiting:
            return None
        group, left = best_group(self.store, self.held, self.judge.m.deltas, self._left(), limits)
        unread = [one for one in group if one in self.waiting]
        if len(group) < 2 or left > limits.together or not unread:
            return None
        for one in unread:
            if self.spending.spent + self.spending.largest > limits.budget:
                return None
            self._take(one)
        verdict = self.judge.verdict(self.readings)
        for _ in range(LAST_ONES):
            is_affordable = self.spending.spent + self.spending.largest <= limits.budget
            if verdict.settled or not self.waiting or not is_affordable:
                break
            # All but one parent may have been read: then that one is what is left.
            _, fitted = self.store.fit(self.waiting, self._left())
            self._take(self.waiting[int(fitted.argmax())])
            verdict = self.judge.verdict(self.readings)
        return verdict if verdict.settled else None

    def _told_again(self, verdict: Verdict) -> Verdict:
        """The verdict, where it is an exact sum, once what its parents may be merged from has been read as well.

        A merge that holds another of the parents explains as much as whatever else it was merged from.
        """
        names = {link.parent.model_id for link in verdict.links if link.parent and link.method in EXACT_METHODS}
        members = [one for one in self.readings if one.candidate.model_id in names]
        if len(members) < 2:
            return verdict
        for one in members:
            if self.spending.spent + self.spending.largest > self.judge.limits.budget or not self.waiting:
                break
            others = [other.parts for other in members if other is not one]
            found = Combinations(one.parts, others, self.judge.base).of(range(len(others)))
            _, fitted = self.store.fit(self.waiting, residual(one.parts, others, found))
            if fitted.max() >= 1 - self.judge.limits.together:
                self._take(self.waiting[int(fitted.argmax())])
        again = self.judge.verdict(self.readings)
        return again if again.settled else verdict

    def _take(self, one: Candidate) -> None:
        self.waiting.remove(one)
        found = self.reader(one)
        if isinstance(found, ModelError):
            self.unread.append((self.gains[one.model_id], one))
            self.spending.notes.append(f"{one.model} cannot be read any more: {found.detail.rstrip('.')}")
            return
        self.readings.append(Reading(one, found))
        if found.precision != "float32" and self.waiting:
            # It may be a recast copy: then whoever was made from it was rather made from the original.
            plain, _ = self.store.fit(self.waiting, found.deltas)
            if plain.max() > ORIGINAL_GAIN:
                self.originals.append(self.waiting[int(plain.argmax())])

    def _next(self, turn: int, verdict: Verdict) -> Candidate | None:
        """In turns the best parent by coefficient 1 and the best for what is left; None where neither promises much."""
        limits = self.judge.limits
        while self.originals:
            if (original := self.originals.pop()) in self.waiting:
                return original
        nearest = max(self.waiting, key=lambda one: self.gains[one.model_id])
        gain = self.gains[nearest.model_id]
        left = self._left()
        _, fitted = self.store.fit(self.waiting, left)
        best = self.waiting[int(fitted.argmax())]
        related = [link for link in verdict.links if link.parent and link.kind in RELATED]
        known = [self.gains[link.parent.model_id] for link in related if link.parent]
        known += [self.gains[sister] for sister in self.judge.sisters]
        if self.judge.is_sparse:
            return nearest if turn == 0 and gain > 0 else best
        is_near = related and related[0].left < (limits.near if related[0].proven else limits.near / 2)
        if is_near or self.judge.sisters:
            # Sisters and cousins on the same data may be nearer than the parent, but not by much.
            return nearest if turn < 3 or gain > NEARLY * min(known) else None
        if turn >= 3 and float(fitted.max()) < limits.giving_up and gain <= 0:
            return None
        if turn >= 4 and self._share_left(left) > (0.3 if known else 0.85):
            return None
        return nearest if turn % 2 == 0 and gain > 0 else best

    def _left(self) -> Mapping[str, NDArray[np.float32]]:
        """What nobody who was read accounts for: of a merge that drops entries, those; else what a sum leaves."""
        if not self.readings:
            return self.judge.m.deltas
        parts = [one.parts for one in self.readings]
        found = Combinations(self.judge.m, parts, self.judge.base).of(range(len(parts)))
        left = residual(self.judge.m, parts, found)
        if self.judge.unexplained is None or len(self.readings) % 2:
            return left
        return self.judge.entries.cut(left, self.judge.unexplained)

    def _share_left(self, left: Mapping[str, NDArray[np.float32]]) -> float:
        return sum(float(np.vdot(one, one)) for one in left.values()) / self.judge.total

    def _by_factors(self) -> Verdict:
        """Where a likely parent cannot be read any more: what its record alone says, if that is clear."""
        likely = [(gain, one) for gain, one in self.unread if gain >= LIKELY_GAIN]
        if not likely:
            return Verdict((), settled=False)
        gain, one = max(likely, key=lambda pair: pair[0])
        because = "by its record alone: its weights cannot be read any more"
        return Verdict((Link(one, CONTINUED, 1.0, 1 - gain, because),), settled=False)


# So many more are read after a group of them.
LAST_ONES = 2
# Merges by one recipe for all matrices.
EXACT_METHODS = ("linear", "task arithmetic")
# A parent's gain is at least so much of that of the relative that is taken for it.
NEARLY = 0.65
# A copy in fewer bits leaves so much of the gain of its original.
ORIGINAL_GAIN = 0.9
# By factors alone a parent must explain so much of the energy with coefficient 1; other runs on its data do not.
LIKELY_GAIN = 0.35
