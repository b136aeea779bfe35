"""Which candidates' weights are read for one model, and when to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexer.errors import ModelError
from query.questions.lineage.adapters import precision_of
from query.questions.lineage.candidates import Candidate, FactorStore, SampledWeights, best_group
from query.questions.lineage.evidence import energy, residual
from query.questions.lineage.result import CONTINUED, CONTINUED_OR_RUN, Decision, Edge
from query.questions.lineage.rules import LineageRules

if TYPE_CHECKING:
    from indexer.records.parts import ModelParts

# Returns the parts of a candidate, or the error if they cannot be read.
Reader = Callable[[Candidate], "ModelParts | ModelError"]

# Merges with one recipe for all matrices.
_ONE_RECIPE_METHODS = ("linear", "task arithmetic")


@dataclass
class ReadLog:
    """The reads for one answer so far: bytes in total and of the largest model, number of models, and notes."""

    bytes: int = 0
    largest: int = 0
    models: int = 0
    notes: list[str] = field(default_factory=list)


class Search:
    """A matching pursuit: reads the most promising candidate, decides, and repeats until the decision is settled.

    ``is_same``: whether the record of a candidate, whose weights cannot be read, is that of the asked model.
    """

    def __init__(
        self,
        reader: Reader,
        rules: LineageRules,
        store: FactorStore,
        candidates: Sequence[Candidate],
        log: ReadLog,
        is_same: Callable[[Candidate], bool] = lambda candidate: False,
    ) -> None:
        self.reader, self.rules, self.store, self.log, self.is_same = reader, rules, store, log, is_same
        self.candidates, self.waiting = list(candidates), list(candidates)
        self.samples: list[SampledWeights] = []
        self.gains: dict[int, float] = {}
        self.unreadable: list[tuple[float, Candidate]] = []
        self.originals: list[Candidate] = []
        thresholds, is_adapter = rules.thresholds, rules.adapters is not None
        # The factors of an adapter are small; a merge of factors contains less of each parent than a merge of weights.
        self.max_models = thresholds.max_adapters if is_adapter else thresholds.max_models
        self.min_gain = thresholds.min_adapter_gain if is_adapter else thresholds.min_gain

    def run(self, declared: Sequence[Candidate]) -> Decision:
        """Read until the decision is settled, nothing promising is left, or the budget is spent.

        ``declared``: the parents that the card names, which are read in any case.
        """
        if self.waiting:
            plain, _ = self.store.fit(self.waiting, self.rules.m.deltas)
            self.gains = {candidate.model_id: float(gain) for candidate, gain in zip(self.waiting, plain, strict=True)}
        decision = Decision()
        for turn in range(self.max_models):
            if not self.waiting or not self._can_afford():
                break
            chosen = self._next(turn, decision)
            if chosen is None:
                break
            decision = self._decide_with(chosen)
            if decision.is_settled:
                break
        for candidate in declared:
            if not decision.is_settled and candidate in self.waiting and self._can_afford():
                decision = self._decide_with(candidate)
        if not decision.is_settled and not self.rules.is_sparse:
            decision = self._group() or decision
        decision = self._check_merged_parents(decision)
        likely = [pair for pair in self.unreadable if pair[0] >= self.rules.thresholds.record_gain]
        if decision.edges or not likely:
            return decision
        # A likely parent cannot be read any more: if its record alone is clear enough, that decides.
        if copies := [candidate for _, candidate in likely if self.is_same(candidate)]:
            return self.rules.copy_by_record(copies)
        gain, parent = max(likely, key=lambda pair: pair[0])
        evidence = "by its record alone: its weights cannot be read any more"
        child = self.rules.target.model
        return Decision((Edge(child, parent.model, CONTINUED, 1.0, 1 - gain, evidence, parent_id=parent.model_id),))

    @cached_property
    def _spanned(self) -> dict[int, float]:
        """By candidate, the share of the asked model's change in its columns."""
        shares = self.store.spanned(self.candidates, self.rules.m.deltas)
        return {candidate.model_id: float(share) for candidate, share in zip(self.candidates, shares, strict=True)}

    def _can_afford(self) -> bool:
        """Whether another model as large as the largest so far fits in the budget."""
        return self.log.bytes + self.log.largest <= self.rules.thresholds.max_bytes

    def _decide_with(self, candidate: Candidate) -> Decision:
        self._take(candidate)
        return self.rules.decide(self.samples)

    def _take(self, candidate: Candidate) -> None:
        self.waiting.remove(candidate)
        parts = self.reader(candidate)
        if isinstance(parts, ModelError):
            self.unreadable.append((self.gains[candidate.model_id], candidate))
            self.log.notes.append(f"{candidate.model} cannot be read any more: {parts.detail.rstrip('.')}")
            return
        self.samples.append(SampledWeights(candidate, parts))
        if precision_of(parts) != "float32" and self.waiting:
            # It may be a recast copy. Then the asked model was more probably made from the original.
            plain, _ = self.store.fit(self.waiting, parts.deltas)
            if plain.max() > self.rules.thresholds.original_gain:
                self.originals.append(self.waiting[int(plain.argmax())])

    def _best_fit(self, unexplained: Mapping[str, NDArray[np.float32]]) -> tuple[Candidate, float]:
        """The waiting candidate that explains most of ``unexplained``, and how much."""
        _, fitted = self.store.fit(self.waiting, unexplained)
        return self.waiting[int(fitted.argmax())], float(fitted.max())

    def _next(self, turn: int, decision: Decision) -> Candidate | None:
        """The best parent with coefficient 1 or the best for the residual, in turn; None if neither is promising."""
        thresholds = self.rules.thresholds
        while self.originals:
            if (original := self.originals.pop()) in self.waiting:
                return original
        nearest = max(self.waiting, key=lambda candidate: self.gains[candidate.model_id])
        gain = self.gains[nearest.model_id]
        unexplained = self._unexplained()
        best, fitted = self._best_fit(unexplained)
        related = [edge for edge in decision.edges if edge.parent and edge.kind in (CONTINUED, CONTINUED_OR_RUN)]
        gains = [self.gains[edge.parent_id] for edge in related if edge.parent_id is not None]
        gains += [self.gains[sibling] for sibling in self.rules.siblings.ruled_out]
        if self.rules.adapters is not None and (
            self.rules.adapters.looks_merged or (turn < thresholds.max_unexplained and not decision.edges)
        ):
            if turn % 3 == 0 and gain > 0:
                return nearest
            return best if turn % 3 == 1 else max(self.waiting, key=lambda candidate: self._spanned[candidate.model_id])
        if self.rules.is_sparse:
            return nearest if turn == 0 and gain > 0 else best
        max_residual = thresholds.max_residual
        is_near = related and related[0].residual < (max_residual if related[0].is_proven else max_residual / 2)
        if is_near or self.rules.siblings.ruled_out:
            # Siblings and cousins trained on the same data may be nearer than the parent, but not by much.
            return nearest if turn < 3 or gain > thresholds.sibling_gain * min(gains) else None
        if turn >= 3 and fitted < self.min_gain and gain <= 0:
            return None
        if (
            self.rules.adapters is None
            and turn >= 4
            and energy(unexplained) / self.rules.total > (0.3 if gains else 0.85)
        ):
            return None
        return nearest if turn % 2 == 0 and gain > 0 else best

    def _unexplained(self) -> Mapping[str, NDArray[np.float32]]:
        """The residual of the models read so far; for sparse merges, every second time the unexplained entries."""
        if not self.samples:
            return self.rules.m.deltas
        unexplained = residual(self.rules.m, [sample.parts for sample in self.samples], self.rules.base)
        if self.rules.unexplained is None or len(self.samples) % 2:
            return unexplained
        return self.rules.entries.masked(unexplained, self.rules.unexplained)

    def _group(self) -> Decision | None:
        """Read the group of models that explains most together, and decide; None if the decision is not settled.

        Relatives of the parents, or other merges, may each be nearer to a merge than its parents are.
        """
        if not self.waiting:
            return None
        thresholds = self.rules.thresholds
        group, group_residual = best_group(
            self.store, self.candidates, self.rules.m.deltas, self._unexplained(), thresholds
        )
        unread = [candidate for candidate in group if candidate in self.waiting]
        if len(group) < 2 or group_residual > thresholds.max_group_residual or not unread:
            return None
        for candidate in unread:
            if not self._can_afford():
                return None
            self._take(candidate)
        decision = self.rules.decide(self.samples)
        for _ in range(thresholds.reads_after_group):
            if decision.is_settled or not self.waiting or not self._can_afford():
                break
            # If all parents but one have been read, the last one explains the residual.
            decision = self._decide_with(self._best_fit(self._unexplained())[0])
        return decision if decision.is_settled else None

    def _check_merged_parents(self, decision: Decision) -> Decision:
        """For an exact sum: read the models that its parents may themselves be merged from, and decide again.

        If one parent is a merge that contains another parent, the models it was merged from explain just as much.
        """
        names = {edge.parent_id for edge in decision.edges if edge.method in _ONE_RECIPE_METHODS}
        members = [sample for sample in self.samples if sample.candidate.model_id in names]
        if len(members) < 2:
            return decision
        for sample in members:
            if not self._can_afford() or not self.waiting:
                break
            other_parts = [other.parts for other in members if other is not sample]
            best, fitted = self._best_fit(residual(sample.parts, other_parts, self.rules.base))
            if fitted >= 1 - self.rules.thresholds.max_group_residual:
                self._take(best)
        new_decision = self.rules.decide(self.samples)
        return new_decision if new_decision.is_settled else decision
