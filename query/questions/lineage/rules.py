"""The rules that decide the parents of a model from measurements on weights. This module reads no files."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from query.questions.lineage.adapters import AdapterRules
from query.questions.lineage.candidates import Candidate, SampledWeights
from query.questions.lineage.evidence import (
    SPACING,
    Combination,
    Combinations,
    SparseMerges,
    energy,
    equal_share,
    parent_fit,
    quantisation_of,
    ranks_of,
    rounding,
    share_on_levels,
)
from query.questions.lineage.result import (
    COPY,
    LORA,
    MERGE,
    NO_ORDER,
    QUANTISED,
    RECAST,
    SAME_WEIGHTS,
    SPARSE_METHODS,
    Decision,
    Edge,
)
from query.questions.lineage.siblings import Relative, Siblings
from query.questions.lineage.thresholds import Thresholds

if TYPE_CHECKING:
    from indexer.records.parts import ModelParts

# Above this share of equal entries, two models have the same weights.
_SAME = 0.9999
# The largest difference between the base's weight in a SLERP and the value that the other two weights imply.
_SLERP_ERROR = 5e-3
# If weights spread over the matrices by more than this, the sum has no single recipe for all of them.
_ONE_RECIPE = 1e-3


class LineageRules:
    """Compares the models that were read with the asked one.

    Args:
        target: the model asked about, a child of unknown parents.
        m: its weights.
        base: the base's weights.
        tokens: the base with its embeddings, if they can be read.
        thresholds: all thresholds of the rules.
        dates: whether creation dates may be used; candidates are then only the earlier models.
    """

    def __init__(
        self,
        target: Candidate,
        m: ModelParts,
        base: Mapping[str, NDArray[np.float32]],
        tokens: ModelParts | None,
        thresholds: Thresholds,
        *,
        dates: bool,
    ) -> None:
        self.target, self.m, self.base = target, m, base
        self.thresholds, self.dates = thresholds, dates
        self.total = energy(m.deltas)
        self.noise = rounding(m) / self.total if self.total else 0.0  # share of the change that may be rounding
        self.grid = quantisation_of(m)
        self.entries = SparseMerges(m, base)
        self.siblings = Siblings(target, m, tokens, thresholds, dates=dates)
        self.adapters = AdapterRules(target, m, self.siblings, thresholds) if m.is_adapter else None
        # Whether it looks like a sparse merge, and which of its entries no parent explains so far.
        self.is_sparse = not m.is_adapter and float(self.entries.unchanged.mean()) > thresholds.sparse_share
        self.unexplained: NDArray[np.bool_] | None = None
        self._low_ranks: dict[int, int | None] = {}
        self._relatives: dict[int, Relative | None] = {}

    def decide(self, samples: Sequence[SampledWeights]) -> Decision:
        """Apply the rule with the most certain evidence; no edges if no rule applies."""
        if self.adapters is not None:
            decision = self.adapters.decide([sample for sample in samples if sample.parts.is_adapter])
            full_models = [sample for sample in samples if not sample.parts.is_adapter]
            # Full models explain only the change of an adapter that was trained on the base itself.
            is_on_base = self.m.deltas is self.m.own
            return decision or (self._exact_sum(full_models) if full_models and is_on_base else None) or Decision()
        # A copy of this model in fewer bits cannot be its parent, whatever the dates.
        samples = [
            sample
            for sample in samples
            if not self._is_recast(sample, self.m) and not self._is_quantised(sample, self.m)
        ]
        # Without dates this is checked for likely parents only, as sums with negative weights are then not accepted.
        if self.dates:
            samples = [sample for sample in samples if not self._is_merge_of_target(sample, samples)]
        copied = self._copy(samples)
        if copied and copied.edges[0].direction == "known":
            return copied
        # If their order is unknown, a twin is no evidence for where both come from.
        twins = {copied.edges[0].parent, *copied.edges[0].same} if copied else set()
        samples = [
            sample
            for sample in samples
            if sample.candidate.model not in twins and not self._is_coarse_copy(sample, samples)
        ]
        rules = (self._quantised, self._exact_sum, self._lora, self._sparse_merge, self._continued)
        decision = next((result for rule in rules if (result := rule(samples)) is not None), Decision())
        return replace(decision, edges=(*decision.edges, *copied.edges)) if copied else decision

    def _edge(
        self, parent: Candidate | None, kind: str, coefficient: float, residual: float, evidence: str, **facts: Any
    ) -> Edge:
        """An edge to the asked model, from the base if ``parent`` is None."""
        name, model_id = (None, None) if parent is None else (parent.model, parent.model_id)
        return Edge(self.target.model, name, kind, coefficient, residual, evidence, parent_id=model_id, **facts)

    def _one_parent(
        self,
        parent: SampledWeights,
        copies: Sequence[SampledWeights],
        kind: str,
        residual: float,
        evidence: str,
    ) -> Decision:
        """A settled decision for one parent; ``copies``: models that the weights cannot distinguish from it."""
        names = tuple(sample.candidate.model for sample in copies)
        edge = self._edge(parent.candidate, kind, 1.0, residual, evidence, same=names)
        return Decision((edge,), is_settled=True)

    # ---- models that cannot be a parent ----

    def _is_recast(self, sample: SampledWeights, source: ModelParts) -> bool:
        """Whether a model is ``source`` stored in a narrower dtype."""
        return sample.spacing > SPACING[source.precision] and equal_share(sample.parts, source) > _SAME

    def _is_quantised(self, sample: SampledWeights, source: ModelParts) -> bool:
        """Whether a model is a quantised copy of ``source``, which is not quantised itself."""
        if sample.grid is None or (source is self.m and self.grid is not None):
            return False
        return share_on_levels(sample.parts, source.weights, sample.grid) >= self.thresholds.level_share

    def _is_coarse_copy(self, sample: SampledWeights, samples: Sequence[SampledWeights]) -> bool:
        """Whether ``sample`` is a copy in fewer bits of a model that was read, and the asked model lacks its rounding.

        Such a copy would look like a nearer relative than its original, because a rounded row equals many others.
        """
        fit = parent_fit(self.m, sample.parts)
        for source in samples:
            if self._is_recast(sample, source.parts):
                return fit.equal == 0
            if self._is_quantised(sample, source.parts):
                return fit.residual > parent_fit(self.m, source.parts).residual
        return False

    def _is_merge_of_target(self, sample: SampledWeights, samples: Sequence[SampledWeights]) -> bool:
        """Whether ``sample``, of the same day or an unknown date, is a merge of the asked model and another."""
        other_samples = [other_sample for other_sample in samples if other_sample is not sample]
        if self.siblings.has_order(sample.candidate) or not other_samples:
            return False
        sums = Combinations(sample.parts, [self.m, *(other_sample.parts for other_sample in other_samples)], self.base)
        allowed_residual = self._exact_residual(sample.parts)
        pairs = [
            sums.by_matrix((0, index), spherical=spherical)
            for index in range(1, len(other_samples) + 1)
            for spherical in (False, True)
        ]
        return any(
            pair.residual <= allowed_residual
            and pair.base_error < _SLERP_ERROR
            and bool((pair.mean > self.thresholds.min_weight).all())
            for pair in pairs
        )

    def _exact_residual(self, parts: ModelParts) -> float:
        """The residual up to which an explanation of ``parts`` is exact."""
        share = rounding(parts) / max(energy(parts.deltas), 1e-300)
        return self.thresholds.exact_residual + self.thresholds.rounding_factor * share

    # ---- equal weights ----

    def _copy(self, samples: Sequence[SampledWeights]) -> Decision | None:
        spacing = SPACING[self.m.precision]
        full_models = [
            sample for sample in samples if not sample.parts.is_adapter
        ]  # a merged adapter is not a copy of it
        equal = [
            sample for sample in full_models if sample.spacing <= spacing and equal_share(self.m, sample.parts) > _SAME
        ]
        if not equal:
            return None
        first, *copies = sorted(equal, key=lambda sample: (-sample.spacing, sample.candidate.upload_order))
        if self.m.precision != first.parts.precision:
            residual = parent_fit(self.m, first.parts).residual
            return self._one_parent(first, copies, RECAST, residual, f"the same weights, stored as {self.m.precision}")
        return self._copy_of(first.candidate, [sample.candidate for sample in copies])

    def copy_by_record(self, copies: Sequence[Candidate]) -> Decision:
        """A copy of models whose weights cannot be read any more, but whose records equal the asked model's."""
        first, *later_copies = sorted(copies, key=lambda candidate: candidate.upload_order)
        return self._copy_of(first, later_copies)

    def _copy_of(self, original: Candidate, copies: Sequence[Candidate]) -> Decision:
        direction = "known" if self.siblings.has_order(original) else "unknown"
        evidence = SAME_WEIGHTS if direction == "known" else f"{SAME_WEIGHTS}; {NO_ORDER}"
        names = tuple(candidate.model for candidate in copies)
        edge = self._edge(original, COPY, 1.0, 0.0, evidence, direction=direction, same=names)
        return Decision((edge,), is_settled=True)

    def _quantised(self, samples: Sequence[SampledWeights]) -> Decision | None:
        """A quantised copy: its weights lie on the levels of a quantiser, and those of its source round to them."""
        if self.grid is None:
            return None
        grid = self.grid
        shares = [
            (share_on_levels(self.m, sample.parts.weights, grid), sample) for sample in samples if sample.grid is None
        ]
        share_of_base = share_on_levels(self.m, self.base, grid)
        best = max((share for share, _ in shares), default=0.0)
        evidence = f"its weights lie on the levels of {'8-bit' if grid[0] == 'int8' else '4-bit'} numbers"
        if max(best, share_of_base) < self.thresholds.level_share:
            return None
        if share_of_base >= best:
            return Decision((self._edge(None, QUANTISED, 1.0, 1.0, evidence),), is_settled=True)
        nearest = [sample for share, sample in shares if share >= best - 1e-6]
        first, *copies = sorted(nearest, key=lambda sample: sample.candidate.upload_order)
        return self._one_parent(first, copies, QUANTISED, parent_fit(self.m, first.parts).residual, evidence)

    # ---- exact sums ----

    def _exact_sum(self, samples: Sequence[SampledWeights]) -> Decision | None:
        """An exact sum of others' changes: linear, task arithmetic, SLERP."""
        thresholds = self.thresholds
        noise = thresholds.rounding_factor * self.noise
        if noise > thresholds.max_rounding or not samples:
            return None
        distinct = _distinct(samples)
        sums = Combinations(self.m, [sample.parts for sample in distinct], self.base).all_up_to(thresholds.max_parents)
        allowed_residual = thresholds.exact_residual + noise
        exact = [
            combination
            for combination in sums
            if combination.residual <= allowed_residual and self._is_plausible(combination, distinct)
        ]
        if not exact:
            return None
        fewest = min(len(combination.members) for combination in exact)
        members = {
            member for combination in exact for member in combination.members if len(combination.members) == fewest
        }
        merged = self._merges_among(members, distinct)
        best = min(
            exact,
            key=lambda combination: (
                len(combination.members),
                len(merged.intersection(combination.members)),
                combination.spread > 1e-9,
                combination.base_error > 0,
                bool((combination.mean < 0).any()),
                float(np.abs(combination.mean).sum()),
            ),
        )
        parents = [distinct[member] for member in best.members]
        if len(parents) == 1 and parents[0].parts.is_adapter:
            evidence = "the adapter's change, added"
            edge = self._edge(parents[0].candidate, LORA, float(best.mean[0]), best.residual, evidence)
            return Decision((edge,), is_settled=True)
        if best.spread < 1e-9:
            method = "linear" if abs(best.mean.sum() - 1) < 5e-3 else "task arithmetic"
        else:
            method = "slerp" if len(parents) == 2 else "layer by layer"
        evidence = "an exact sum of their changes"
        edges = tuple(
            self._edge(sample.candidate, MERGE, float(weight), best.residual, evidence, method=method)
            for sample, weight in zip(parents, best.mean, strict=True)
        )
        return Decision(edges, is_settled=True)

    def _merges_among(self, members: Collection[int], samples: Sequence[SampledWeights]) -> set[int]:
        """The ``members`` that are exact sums, by one recipe, of two or three other members."""
        merges = set()
        for member in members if len(members) > 2 else ():
            other_parts = [samples[other_member].parts for other_member in members if other_member != member]
            sums = Combinations(samples[member].parts, other_parts, self.base)
            tried = (
                sums.one_recipe(group)
                for size in (2, 3)
                for group in itertools.combinations(range(len(other_parts)), size)
            )
            allowed_residual = self._exact_residual(samples[member].parts)
            if any(combination.residual <= allowed_residual and (combination.mean >= 0).all() for combination in tried):
                merges.add(member)
        return merges

    def _is_plausible(self, combination: Combination, samples: Sequence[SampledWeights]) -> bool:
        """Whether the weights are plausible for a merge: none is tiny, and none is large only to cancel another.

        Runs of one sweep explain each other almost exactly if every matrix has its own weights. For them only one
        recipe for all matrices is accepted.
        """
        sizes = np.abs(combination.mean)
        if (sizes < self.thresholds.min_weight).any() or (sizes > self.thresholds.max_weight).any():
            return False
        if combination.base_error > _SLERP_ERROR or (not self.dates and (combination.mean < 0).any()):
            return False
        if len(combination.members) == 1 and combination.spread > _ONE_RECIPE:
            return False
        is_sweep = all(self.siblings.is_run_of_same_sweep(samples[member].candidate) for member in combination.members)
        return not (is_sweep and combination.spread > _ONE_RECIPE)

    # ---- low rank ----

    def _lora(self, samples: Sequence[SampledWeights]) -> Decision | None:
        """The difference is of low rank, and zero elsewhere: a LoRA, on the base or on one of the models."""
        rank_over_base = self._rank_over(None)
        ranked = [(rank, sample) for sample in samples if (rank := self._rank_over(sample)) is not None]
        better = [(rank, sample) for rank, sample in ranked if rank_over_base is None or rank <= 0.7 * rank_over_base]
        if better:
            rank, first = min(better, key=lambda pair: (pair[0], pair[1].candidate.upload_order))
            copies = [sample for other_rank, sample in better if other_rank == rank and sample is not first]
            fit = parent_fit(self.m, first.parts)
            # The angles suggest that the other model was made from this one, and dates do not contradict them.
            if abs(fit.cosine) > abs(fit.reverse) and not self.siblings.has_order(first.candidate):
                return None
            return self._one_parent(first, copies, LORA, fit.residual, f"the difference is of rank {rank}")
        if rank_over_base is None:
            return None
        edge = self._edge(None, LORA, 1.0, 1.0, f"the change is of rank {rank_over_base}")
        return Decision((edge,), is_settled=len(samples) >= 2)

    def _rank_over(self, sample: SampledWeights | None) -> int | None:
        """The largest rank of W_m − W_p if every matrix that differs has a low rank, else None.

        ``sample`` None: the difference from the base.
        """
        key = -1 if sample is None else sample.candidate.model_id
        if key not in self._low_ranks:
            weights = self.base if sample is None else sample.parts.weights
            differences = (weight - weights[name] for name, weight in self.m.weights.items())
            size = sum(weight.size for weight in self.m.weights.values())
            max_rank = min(min(weight.shape) for weight in self.m.weights.values()) * self.thresholds.max_rank
            ranks = ranks_of(differences, (rounding(self.m) + 1e-14 * energy(self.m.weights)) / size, max_rank)
            # A smooth spectrum whose tail is hidden by rounding is not that of a LoRA.
            is_low = bool(ranks) and float(np.median([drop for _, drop in ranks])) >= self.thresholds.rank_drop
            self._low_ranks[key] = max(rank for rank, _ in ranks) if is_low else None
        return self._low_ranks[key]

    # ---- sparse merges ----

    def _sparse_merge(self, samples: Sequence[SampledWeights]) -> Decision | None:
        """A merge that drops entries: many of its entries are those of a parent, times one number."""
        unchanged = float(self.entries.unchanged.mean())
        distinct = [
            sample
            for sample in _distinct(samples)
            if unchanged > float(SparseMerges(sample.parts, self.base).unchanged.mean()) + 0.005
        ]
        unexplained = ~self.entries.unchanged
        self.unexplained = None
        parents: list[tuple[SampledWeights, float]] = []
        while distinct:
            fits = [(self.entries.fixed_multiple(sample.parts, unexplained), sample) for sample in distinct]
            (share, contrast, explained), sample = max(fits, key=lambda pair: pair[0][0])
            if share < self.thresholds.multiple_share or contrast < self.thresholds.multiple_contrast:
                break
            parents.append((sample, share))
            unexplained &= ~explained
            distinct = [remaining for remaining in distinct if remaining is not sample]
        if not parents:
            return None
        self.unexplained = unexplained
        fitted = Combinations(self.m, [sample.parts for sample, _ in parents], self.base).by_matrix(range(len(parents)))
        edges = tuple(
            self._edge(
                sample.candidate, MERGE, float(weight), fitted.residual, f"{share:.0%} of its entries, untouched",
                method=SPARSE_METHODS,
            )
            for (sample, share), weight in zip(parents, fitted.mean, strict=True)
        )  # fmt: skip
        return Decision(edges, is_settled=float(unexplained.mean()) < 0.3 * float((~self.entries.unchanged).mean()))

    # ---- continued training ----

    def _continued(self, samples: Sequence[SampledWeights]) -> Decision | None:
        """The nearest model that it can have been continued from: by equal weights, else by size and angle."""
        for sample in samples:
            if sample.candidate.model_id not in self._relatives:
                self._relatives[sample.candidate.model_id] = self.siblings.relative(sample)
        possible = (self._relatives[sample.candidate.model_id] for sample in samples)
        relatives = [
            relative
            for relative in possible
            if relative is not None and not self._is_merge_of_target(relative.weights, samples)
        ]
        edge = self.siblings.parent_among(relatives)
        return None if edge is None else Decision((edge,))


def _distinct(samples: Sequence[SampledWeights]) -> list[SampledWeights]:
    """The models without those that repeat an earlier one."""
    distinct: list[SampledWeights] = []
    for sample in sorted(samples, key=lambda sample: sample.candidate.upload_order):
        fits = (parent_fit(sample.parts, distinct_sample.parts) for distinct_sample in distinct)
        if not any(fit.residual < 1e-2 and abs(fit.cosine) < 0.5 for fit in fits):
            distinct.append(sample)
    return distinct
