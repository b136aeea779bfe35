"""Adapters that were made from other adapters: measurements on their factors, and the rules that decide by them.

A LoRA's change is a product of factors that are small, so whole matrices are compared. Two adapters that began with one
seed have nearly the same A, and that says nothing: B began as zero, and their changes point in different directions.
An adapter that was continued from another contains the other's whole change; one that PEFT merged
(``add_weighted_adapter``) is a sum of the factors or of the changes of others, or holds many of their entries.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from indexer.records.parts import ModelParts
from query.questions.lineage.candidates import Candidate, SampledWeights
from query.questions.lineage.evidence import SPACING, Combination, Combinations, SparseMerges, as_stored
from query.questions.lineage.result import (
    CONTINUED,
    CONTINUED_OR_RUN,
    COPY,
    MERGE,
    NO_ORDER,
    OF_ADAPTER,
    RECAST,
    SAME_WEIGHTS,
    SPARSE_METHODS,
    Decision,
    Edge,
)

if TYPE_CHECKING:
    from query.questions.lineage.siblings import Siblings
    from query.questions.lineage.thresholds import Thresholds

Floats = NDArray[np.float64]

# Above this share of equal entries, two adapters have the same factors.
_SAME = 0.9999
# The share of the change up to which two adapters with other factors make the same change: float32 rounds to 1e-7.
_SAME_CHANGE = 1e-8
# The same, up to which a candidate repeats another, perhaps in a narrower dtype.
_REPEATED = 1e-4
# Above this evenness, (mean |x|)² / mean x², numbers have nearly one size.
_EVEN = 0.97
# Up to this weight, a member of an exact sum is not part of it.
_NO_WEIGHT = 1e-4
# Up to this largest entry of |A Aᵀ − 1|, the rows of every A are orthonormal: singular vectors, not trained numbers.
_ORTHONORMAL = 5e-3


# ---- measurements ----


@dataclass(frozen=True, eq=False)
class Product:
    """A matrix of low rank as left (out, k) · right (k, in)."""

    left: Floats
    right: Floats

    def inner(self, other: Product) -> float:
        """The inner product of the two matrices."""
        return float(np.vdot(self.left.T @ other.left, self.right @ other.right.T))

    def minus(self, other: Product) -> Product:
        """The difference of the two matrices."""
        return Product(np.hstack([self.left, -other.left]), np.vstack([self.right, other.right]))

    @cached_property
    def triplets(self) -> tuple[Floats, Floats, Floats]:
        """The singular vectors (out, k), values (k,) and right singular vectors (in, k)."""
        first, left = np.linalg.qr(self.left)
        second, right = np.linalg.qr(self.right.T)
        u, s, vt = np.linalg.svd(left @ right.T, full_matrices=False)
        return first @ u, s, second @ vt.T


class Adapter:
    """What an adapter changes, matrix by matrix: ``whole`` from a LoRA's factors, else the parts that were read."""

    def __init__(self, parts: ModelParts) -> None:
        self.parts = parts
        self.names = [name for name, change in parts.own.items() if change.any() or name in parts.factors]
        self.is_whole = all(name in parts.factors for name in self.names)

    @cached_property
    def whole(self) -> Mapping[str, Product]:
        """The whole changes, from factors."""
        return {
            name: Product(one.b.astype(np.float64) * one.scale, one.a.astype(np.float64))
            for name, one in self.parts.factors.items()
        }

    @cached_property
    def read(self) -> Mapping[str, Product]:
        """The changes of the parts that were read, for adapters of other kinds."""
        found = {}
        for name in self.names:
            u, s, vt = np.linalg.svd(self.parts.own[name].astype(np.float64), full_matrices=False)
            count = max(int(np.count_nonzero(s > 1e-6 * s[0])), 1)
            found[name] = Product(u[:, :count] * s[:count], vt[:count])
        return found

    @cached_property
    def square(self) -> float:
        """‖δ‖² of what ``whole`` or ``read`` gives."""
        return sum(one.inner(one) for one in (self.whole if self.is_whole else self.read).values())


@dataclass(frozen=True)
class Continuation:
    """How the change of an adapter m relates to that of another, p; D = δ_m − δ_p.

    Attributes:
        left: ‖D‖² / ‖δ_m‖².
        cosine: of D with δ_p; near 0 or above if m was continued from p.
        reverse: of −D with δ_m.
        kept: how much of the change of p, outside the leading quarter of its directions, m contains: the median over
            the matrices of the coefficient of a regression. 1 if m was continued from p. Adapters that were trained on
            the same data from the same start move alike in the leading directions, by another amount in each matrix.
        spread: the standard deviation of that coefficient between the matrices.
        fine: the same as ``kept`` outside the leading half.
    """

    left: float
    cosine: float
    reverse: float
    kept: float
    spread: float
    fine: float

    @property
    def signals(self) -> dict[str, float]:
        """As numbers behind a probability."""
        named = {"kept": self.kept, "kept_spread": self.spread, "fine": self.fine}
        return {"left": self.left, "cosine": self.cosine, "reverse": self.reverse, **named}


def pair(m: Adapter, p: Adapter) -> tuple[Mapping[str, Product], Mapping[str, Product]]:
    """The changes of two adapters in a form that can be compared."""
    return (m.whole, p.whole) if m.is_whole and p.is_whole else (m.read, p.read)


def continuation(m: Adapter, p: Adapter) -> Continuation | None:
    """See :class:`Continuation`; None if one of them changes nothing, or their matrices have other shapes."""
    of_m, of_p = pair(m, p)
    inner = own = 0.0
    kept: list[float] = []
    fine: list[float] = []
    other = sum(one.inner(one) for one in of_m.values())
    for name, product in of_p.items():
        own += product.inner(product)
        mine = of_m.get(name)
        u, s, v = product.triplets
        if mine is None or not s[0]:
            kept += [0.0] if s[0] else []
            fine += [0.0] if s[0] else []
            continue
        inner += mine.inner(product)
        # uᵢᵀ δ_m vᵢ / sᵢ is the coefficient in one direction; weighted by sᵢ², as in a regression.
        weighted = s * np.einsum("ki,ki->i", mine.left.T @ u, mine.right @ v)
        for leading, found in ((-(-len(s) // 4), kept), (len(s) // 2, fine)):
            first = leading if len(s) > 1 else 0
            found.append(float(weighted[first:].sum() / max(np.square(s[first:]).sum(), 1e-300)))
    if not own or not other:
        return None
    difference = max(other - 2 * inner + own, 0.0)
    apart = np.sqrt(difference) if difference else 1.0
    return Continuation(
        left=difference / other,
        cosine=float((inner - own) / (apart * np.sqrt(own))),
        reverse=float((inner - other) / (apart * np.sqrt(other))),
        kept=float(np.median(kept)),
        spread=float(np.std(kept)),
        fine=float(np.median(fine)),
    )


def advance(m: Adapter, s: Adapter, p: Adapter) -> float:
    """The cosine of m − s with the step s − p, outside the leading directions of that step.

    Near 0 for a child of s, below 0 for another child of p; see ``query.questions.lineage.siblings.sibling_cosine``.
    """
    along = after = before = 0.0
    of_m, of_s = pair(m, s)
    of_p = pair(p, s)[0]
    for name in set(of_s) & set(of_p) & set(of_m):
        step = of_s[name].minus(of_p[name])
        u, lengths, v = step.triplets
        leading = len(lengths) // 8
        rest = of_m[name].minus(of_s[name])
        core = np.einsum("ki,ki->i", rest.left.T @ u, rest.right @ v)
        along += float(lengths[leading:] @ core[leading:])
        before += float(np.square(lengths[leading:]).sum())
        after += rest.inner(rest)
    return along / np.sqrt(after * before) if after > 0 and before > 0 else 0.0


# ---- rules ----


class AdapterRules:
    """Compares the adapters that were read with the asked one; for the arguments see ``LineageRules``."""

    def __init__(self, asked: Candidate, m: ModelParts, siblings: Siblings, thresholds: Thresholds) -> None:
        self.asked, self.m, self.siblings, self.thresholds = asked, Adapter(m), siblings, thresholds
        self.spacing = spacing_of(m)
        self._adapters: dict[int, Adapter] = {}
        self._continuations: dict[int, Continuation | None] = {}
        self._repeated: dict[tuple[int, int], bool] = {}

    def decide(self, read: Sequence[SampledWeights]) -> Decision | None:
        """What these adapters explain, by the rule with the most certain evidence that applies; None if by none."""
        read = [one for one in read if not self._is_coarser(one)]
        if not self.m.names or not read:
            return None
        copied = self._copy(read)
        if copied and copied.edges[0].direction == "known":
            return copied
        # If either may be the copy, the other one does not show where both come from.
        twins = {copied.edges[0].parent, *copied.edges[0].same} if copied else set()
        read = self._distinct([one for one in read if one.candidate.model not in twins])
        rules = (self._sum, self._sparse, self._compressed, self._continued)
        found = next((decision for rule in rules if (decision := rule(read)) is not None), None)
        if copied is None:
            return found
        found = found or Decision()
        return replace(found, edges=(*found.edges, *copied.edges))

    @cached_property
    def looks_merged(self) -> bool:
        """Whether it lacks entries of B, or its factors are singular vectors: no training leaves them so."""
        return share_of_zeros(self.m.parts) > self.thresholds.sparse_share or is_orthonormal(self.m.parts)

    def adapter(self, one: SampledWeights) -> Adapter:
        """The measurements of a candidate, kept."""
        return self._adapters.setdefault(one.candidate.model_id, Adapter(one.parts))

    def _edge(
        self,
        parent: SampledWeights,
        kind: str,
        coefficient: float,
        residual: float,
        evidence: str,
        signals: Mapping[str, float] | None = None,
        **facts: Any,
    ) -> Edge:
        one, numbers = parent.candidate, {OF_ADAPTER: 1.0, **(signals or {})}
        return Edge(
            self.asked.model, one.model, kind, coefficient, residual, evidence, parent_id=one.model_id,
            signals=numbers, **facts,
        )  # fmt: skip

    # ---- equal factors ----

    def _is_coarser(self, one: SampledWeights) -> bool:
        """Whether a candidate is the asked adapter, stored in a narrower dtype."""
        return spacing_of(one.parts) > self.spacing and equal_factors(one.parts, self.m.parts) > _SAME

    def _copy(self, read: Sequence[SampledWeights]) -> Decision | None:
        """The same factors, perhaps in another dtype, or the same change in other factors."""
        spacings = {one.candidate.model_id: spacing_of(one.parts) for one in read}
        equal = [
            one
            for one in read
            if spacings[one.candidate.model_id] <= self.spacing and equal_factors(self.m.parts, one.parts) > _SAME
        ]
        evidence = SAME_WEIGHTS
        if not equal:
            relations = [(self._continuation(one), one) for one in read]
            equal = [
                one for found, one in relations if found is not None and found.left <= self._rounding(_SAME_CHANGE)
            ]
            evidence = "the same change, in other factors"
        if not equal:
            return None
        # The most precise, then the oldest.
        first, *others = sorted(equal, key=lambda one: (-spacings[one.candidate.model_id], one.candidate.upload_order))
        same = tuple(one.candidate.model for one in others)
        if spacings[first.candidate.model_id] < self.spacing and evidence == SAME_WEIGHTS:
            found = self._continuation(first)
            left, stored = 0.0 if found is None else found.left, precision_of(self.m.parts)
            edge = self._edge(first, RECAST, 1.0, left, f"the same weights, stored as {stored}", same=same)
            return Decision((edge,), is_settled=True)
        direction = "known" if self.siblings.has_order(first.candidate) else "unknown"
        evidence = evidence if direction == "known" else f"{evidence}; {NO_ORDER}"
        edge = self._edge(first, COPY, 1.0, 0.0, evidence, direction=direction, same=same)
        return Decision((edge,), is_settled=True)

    def _rounding(self, least: float) -> float:
        """The share of a change that may be the rounding of two adapters' factors, at least ``least``."""
        return max(least, self.thresholds.rounding_factor * 0.54 / 12 * 4 * self.spacing**2)

    def _distinct(self, read: Sequence[SampledWeights]) -> list[SampledWeights]:
        """The adapters without those that repeat an earlier one."""
        kept: list[SampledWeights] = []
        for one in sorted(read, key=lambda sampled: sampled.candidate.upload_order):
            if not any(self._repeats(one, other) for other in kept):
                kept.append(one)
        return kept

    def _repeats(self, one: SampledWeights, other: SampledWeights) -> bool:
        """Whether two candidates make the same change."""
        pair_of = one.candidate.model_id, other.candidate.model_id
        if pair_of not in self._repeated:
            found = continuation(self.adapter(one), self.adapter(other))
            self._repeated[pair_of] = found is not None and found.left < _REPEATED
        return self._repeated[pair_of]

    # ---- exact sums ----

    def _sum(self, read: Sequence[SampledWeights]) -> Decision | None:
        """A sum of factors (``linear``), of changes (``cat``), or of changes cut to a lower rank (``svd``)."""
        alike = [one for one in read if has_same_shapes(self.m.parts, one.parts)]
        whole = [one for one in read if self.m.is_whole and self.adapter(one).is_whole]
        allowed = self._rounding(self.thresholds.exact_residual)
        found = self._sum_of_factors(alike, allowed)
        if found is None and whole:
            found = self._exact(whole, self._products_of(whole), allowed, "cat", "an exact sum of their changes")
        if found is None and whole:
            cut = self._cut_products_of(whole)
            found = self._exact(whole, cut, allowed, "svd", "the leading directions of a sum of their changes")
        return found

    def _sum_of_factors(self, read: Sequence[SampledWeights], allowed: float) -> Decision | None:
        """A and B are sums of others' with the roots of the weights, as ``linear`` merges them."""
        if not read:
            return None
        names = list(self.m.parts.factors)
        scales = np.array([[one.parts.factors[name].scale for one in read] for name in names])
        own = np.array([self.m.parts.factors[name].scale for name in names])
        sides = []
        for side in ("a", "b"):
            stacks = [
                np.stack(
                    [getattr(one.factors[name], side).ravel() for one in (self.m.parts, *(each.parts for each in read))]
                )
                for name in names
            ]
            grams = np.stack([stack.astype(np.float64) @ stack.T.astype(np.float64) for stack in stacks])
            sides.append(Combinations.of_products(grams))
        whole = [side.by_matrix(range(len(read))) for side in sides]
        if max(side.residual for side in whole) > allowed:
            return None
        for chosen in self._groups(np.maximum(*(np.abs(side.weights).max(axis=0) for side in whole))):
            of_a, of_b = (side.by_matrix(chosen) for side in sides)
            if max(of_a.residual, of_b.residual) > allowed or (of_b.weights < 0).any():
                continue
            weights = of_a.weights * of_b.weights * own[:, None] / scales[:, list(chosen)]
            mean = weights.mean(axis=0)
            if (np.abs(mean) >= self.thresholds.min_weight).all() and weights.std(axis=0).max() <= 0.02:
                residual = max(of_a.residual, of_b.residual)
                return self._merge(
                    read, Combination(chosen, weights, residual), "linear", "exact sums of their factors"
                )
        return None

    def _exact(
        self, read: Sequence[SampledWeights], sums: Combinations, allowed: float, method: str, evidence: str
    ) -> Decision | None:
        whole = sums.one_recipe(range(len(read)))
        if whole.residual > allowed:
            return None
        for chosen in self._groups(np.abs(whole.mean)):
            found = sums.one_recipe(chosen)
            sizes = np.abs(found.mean)
            if found.residual > allowed or (sizes < self.thresholds.min_weight).any():
                continue
            # A sum with a negative weight may be one of its parts, explained by the whole.
            is_ordered = all(self.siblings.has_order(read[member].candidate) for member in chosen)
            if (found.mean > 0).all() or is_ordered:
                return self._merge(read, found, method, evidence)
        return None

    def _groups(self, weights: Floats) -> Iterable[tuple[int, ...]]:
        """All choices of members, the fewest first; ``weights``: those of all members together, of which many are 0.

        What some members explain exactly, all explain exactly: this shows in one step that none do, as nearly always.
        """
        members = np.flatnonzero(weights > _NO_WEIGHT).tolist()
        for size in range(1, min(self.thresholds.max_parents, len(members)) + 1):
            yield from itertools.combinations(members, size)

    def _merge(
        self,
        read: Sequence[SampledWeights],
        found: Combination,
        method: str,
        evidence: str,
        residual: float | None = None,
    ) -> Decision:
        left = found.residual if residual is None else residual
        edges = [
            self._edge(read[member], MERGE, float(weight), left, evidence, method=method)
            for member, weight in zip(found.members, found.mean, strict=True)
        ]
        # A sum of one is its source in another size; which was first, only dates or a lower rank tell.
        if len(edges) == 1 and method != "svd" and not self.siblings.has_order(read[found.members[0]].candidate):
            edges = [replace(edges[0], direction="unknown")]
        # Where a parent of two was not read yet, relatives may explain a sum as exactly, and are more.
        return Decision(tuple(edges), is_settled=len(edges) <= 2)

    def _products_of(self, read: Sequence[SampledWeights]) -> Combinations:
        """Inner products of whole changes, pooled over the matrices."""
        models = [self.m, *(self.adapter(one) for one in read)]
        names = sorted({name for one in models for name in one.whole})
        grams = np.zeros((1, len(models), len(models)))
        for name in names:
            held = [(place, one.whole[name]) for place, one in enumerate(models) if name in one.whole]
            for (row, first), (column, second) in itertools.combinations_with_replacement(held, 2):
                grams[0, row, column] = grams[0, column, row] = grams[0, row, column] + first.inner(second)
        return Combinations.of_products(grams)

    def _cut_products_of(self, read: Sequence[SampledWeights]) -> Combinations:
        """The same of what changes have in the row and column spaces of the asked one's.

        If m is the sum S cut to its leading directions, Uᵀ S = Uᵀ δ_m and S V = δ_m V for its singular vectors.
        """
        models = [self.m, *(self.adapter(one) for one in read)]
        grams = np.zeros((1, len(models), len(models)))
        for name, product in self.m.whole.items():
            u, _, v = product.triplets
            rows = []
            for one in models:
                held = one.whole.get(name)
                if held is None:
                    rows.append(np.zeros(u.shape[1] * (len(u) + len(v))))
                else:
                    above, beside = (u.T @ held.left) @ held.right, held.left @ (held.right @ v)
                    rows.append(np.concatenate([above.ravel(), beside.ravel()]))
            stacked = np.stack(rows)
            grams[0] += stacked @ stacked.T
        return Combinations.of_products(grams)

    # ---- merges that drop entries ----

    def _sparse(self, read: Sequence[SampledWeights]) -> Decision | None:
        """Many entries of B are those of another's B, times one number, as TIES, DARE and pruning leave them.

        Only of B: adapters of one seed have nearly equal A.
        """
        alike = [one for one in read if has_same_shapes(self.m.parts, one.parts) and not is_first_step(one.parts)]
        if not alike or is_first_step(self.m.parts):
            return None
        # Other merges may hold the same entries. They are looked at only if no adapter with all its entries does.
        own, most = share_of_zeros(self.m.parts), self.thresholds.sparse_share
        dense = [one for one in alike if share_of_zeros(one.parts) <= most]
        sparse = [one for one in alike if most < share_of_zeros(one.parts) < own]
        return self._multiples(dense) or (self._multiples(sparse) if sparse else None)

    def _multiples(self, alike: list[SampledWeights]) -> Decision | None:
        """The adapters whose entries of B are found, times one number, in that of the asked one."""
        zeros = {name: np.zeros_like(one.b) for name, one in self.m.parts.factors.items()}
        entries = SparseMerges(_factors_b(self.m.parts), zeros)
        left = ~entries.unchanged
        chosen: list[tuple[SampledWeights, float]] = []
        while alike:
            found = [(entries.fixed_multiple(_factors_b(one.parts), left), one) for one in alike]
            (share, contrast, explained), one = max(found, key=lambda each: each[0][0])
            if share < self.thresholds.multiple_share or contrast < self.thresholds.multiple_contrast:
                break
            chosen.append((one, share))
            left &= ~explained
            alike = [other for other in alike if other is not one]
        if not chosen:
            return None
        members = [one for one, _ in chosen]
        whole = self._products_of(members).one_recipe(range(len(members)))
        scales = [
            np.mean([one.scale for one in each.factors.values()])
            for each in (self.m.parts, *(one.parts for one in members))
        ]
        stacks = [_factors_b(each) for each in (self.m.parts, *(one.parts for one in members))]
        grams = np.zeros((1, len(stacks), len(stacks)))
        for name in zeros:
            stacked = np.stack([each.weights[name].ravel() for each in stacks]).astype(np.float64)
            grams[0] += stacked @ stacked.T
        roots = Combinations.of_products(grams).one_recipe(range(len(members))).mean
        edges = tuple(
            self._edge(
                one, MERGE, float(root * abs(root) * scales[0] / scale), whole.residual,
                f"{share:.0%} of the entries of its B, untouched", method=SPARSE_METHODS,
            )
            for (one, share), root, scale in zip(chosen, roots, scales[1:], strict=True)
        )  # fmt: skip
        changed = float((~entries.unchanged).mean())
        return Decision(edges, is_settled=len(edges) > 1 and float(left.mean()) < 0.3 * changed)

    def _compressed(self, read: Sequence[SampledWeights]) -> Decision | None:
        """Merged by TIES or DARE and then cut to a lower rank: singular vectors in place of trained factors."""
        whole = [one for one in read if self.adapter(one).is_whole]
        if not whole or not self.m.is_whole or not is_orthonormal(self.m.parts):
            return None
        sums, best = self._cut_products_of(whole), None
        for size in range(1, min(self.thresholds.max_parents, len(whole)) + 1):
            found = [sums.one_recipe(chosen) for chosen in itertools.combinations(range(len(whole)), size)]
            found = [one for one in found if (one.mean > self.thresholds.min_compressed_weight).all()]
            nearest = min(found, key=lambda one: one.residual, default=None)
            if nearest is None or (
                best is not None and best.residual - nearest.residual < self.thresholds.min_compressed_gain
            ):
                break
            best = nearest
        if best is None or best.residual > self.thresholds.max_compressed_residual:
            return None
        evidence = f"singular vectors, which {'their' if len(best.members) > 1 else 'its'} changes explain together"
        return replace(self._merge(whole, best, f"{SPARSE_METHODS}, svd", evidence), is_settled=False)

    # ---- continued training ----

    def _continuation(self, one: SampledWeights) -> Continuation | None:
        if one.candidate.model_id not in self._continuations:
            self._continuations[one.candidate.model_id] = continuation(self.m, self.adapter(one))
        return self._continuations[one.candidate.model_id]

    def _continued(self, read: Sequence[SampledWeights]) -> Decision | None:
        """The nearest adapter that it can have been continued from."""
        relatives = [(found, one) for one in read if (found := self._continuation(one)) is not None]
        relatives = [(found, one) for found, one in relatives if self._may_precede(found, one)]
        for is_run in (False, True):
            alike = [(found, one) for found, one in relatives if self._goes_on(found) == is_run]
            fits = self._is_later_in_run if is_run else self._holds
            parents = [(found, one) for found, one in alike if fits(found, one)]
            parents = [
                (found, one)
                for found, one in parents
                if not any(self._is_sibling(one, other) for _, other in parents if other is not one)
            ] or parents
            if parents:
                break
        else:
            return None
        found, first = min(parents, key=lambda each: (each[0].left, each[1].candidate.upload_order))
        kind, direction = CONTINUED, "known"
        # Of two checkpoints the earlier is smaller, which shows; otherwise the angles must differ.
        is_clear = is_run or abs(found.reverse) - abs(found.cosine) >= self.thresholds.reversed_cosine
        has_order, other = self.siblings.has_order(first.candidate), first.candidate
        if not (is_clear or has_order):
            direction = "unknown"
        is_same_data = bool(other.datasets) and other.datasets == self.asked.datasets
        if is_same_data and not has_order and other.author != self.asked.author:
            # Strangers who train at one time with one seed on the same data may make nearly the same adapter.
            kind, direction = CONTINUED_OR_RUN, "unknown"
            evidence = "it holds the other's change; both name the same data, and no date says which came first"
        elif not is_run:
            evidence = "it holds the other's whole change, and one of another direction"
        elif self.siblings.is_run_of_same_sweep(first.candidate):
            evidence = "it goes on as the other began: a later checkpoint of one run"
        else:
            kind, direction = CONTINUED_OR_RUN, "unknown"
            evidence = "it goes on as the other began, which a run from the same start on the same data does as well"
        edge = self._edge(
            first, kind, 1.0, found.left, evidence, direction=direction, is_proven=False, signals=found.signals
        )
        return Decision((edge,))

    def _may_precede(self, found: Continuation, one: SampledWeights) -> bool:
        """Whether dates or angles allow that a candidate is the earlier of the two."""
        is_upright = abs(found.cosine) < abs(found.reverse)
        return found.left <= self.thresholds.max_adapter_residual and (
            is_upright or self.siblings.has_order(one.candidate)
        )

    def _goes_on(self, found: Continuation) -> bool:
        """Whether it went on in the direction of the candidate: on the same data, or from the same start."""
        return found.cosine > self.thresholds.max_cosine

    def _holds(self, found: Continuation, one: SampledWeights) -> bool:
        """Whether the asked adapter contains the candidate's whole change, in all directions and matrices."""
        thresholds = self.thresholds
        return (
            found.cosine >= thresholds.min_adapter_cosine
            and abs(found.kept - 1) <= thresholds.max_kept_error
            and abs(found.fine - 1) <= thresholds.max_fine_error
            and found.spread <= thresholds.max_kept_spread
        )

    def _is_later_in_run(self, found: Continuation, one: SampledWeights) -> bool:
        """Whether it contains at least the candidate's change."""
        return min(found.kept, found.fine) >= 1 - self.thresholds.max_kept_error

    def _is_sibling(self, one: SampledWeights, parent: SampledWeights) -> bool:
        """Whether ``one`` is another child of ``parent``, rather than the asked adapter's parent itself."""
        mine, theirs = self._continuation(one), self._continuation(parent)
        if mine is None or theirs is None or theirs.left <= mine.left:
            return False
        if self.siblings.dates and parent.candidate.upload_order > one.candidate.upload_order:
            return False
        step = continuation(self.adapter(one), self.adapter(parent))
        if step is None or abs(step.kept - 1) > self.thresholds.max_kept_error or abs(step.cosine) >= abs(step.reverse):
            return False
        return advance(self.m, self.adapter(one), self.adapter(parent)) < self.thresholds.adapter_sibling_cosine


def precision_of(parts: ModelParts) -> str:
    """The narrowest dtype that holds a model's values: of an adapter, its factors."""
    return min((one.precision for one in parts.factors.values()), key=SPACING.__getitem__, default=parts.precision)


def spacing_of(parts: ModelParts) -> float:
    """The largest relative distance of neighbouring numbers in the precision of an adapter's factors."""
    return SPACING[precision_of(parts)]


def has_same_shapes(m: ModelParts, p: ModelParts) -> bool:
    """Whether two adapters have factors of the same matrices and ranks."""
    if not m.factors or m.factors.keys() != p.factors.keys():
        return False
    return all(
        one.a.shape == p.factors[name].a.shape and one.b.shape == p.factors[name].b.shape
        for name, one in m.factors.items()
    )


def equal_factors(m: ModelParts, p: ModelParts) -> float:
    """The share of the numbers of an adapter that are equal when p is stored in m's precision."""
    if not m.factors:
        is_equal = not p.factors and all(np.array_equal(change, p.own[name]) for name, change in m.own.items())
        return float(is_equal)
    if not has_same_shapes(m, p) or any(one.scale != p.factors[name].scale for name, one in m.factors.items()):
        return 0.0
    precision = precision_of(m)
    same = total = 0
    for name, one in m.factors.items():
        other = p.factors[name]
        for mine, theirs in ((one.a, other.a), (one.b, other.b)):
            same += int(np.count_nonzero(as_stored(theirs, precision) == mine))
            total += mine.size
    return same / total


def is_orthonormal(parts: ModelParts) -> bool:
    """Whether the rows of every A are orthonormal."""
    products = (one.a.astype(np.float64) @ one.a.T.astype(np.float64) for one in parts.factors.values())
    return bool(parts.factors) and all(np.abs(one - np.eye(len(one))).max() <= _ORTHONORMAL for one in products)


def share_of_zeros(parts: ModelParts) -> float:
    """The share of the entries of all B that are zero."""
    total = sum(one.b.size for one in parts.factors.values())
    return sum(int(np.count_nonzero(one.b == 0)) for one in parts.factors.values()) / total if total else 0.0


def is_first_step(parts: ModelParts) -> bool:
    """Whether all entries of B have nearly one size, as after the first step of Adam: all are then multiples."""
    sizes = np.concatenate([np.abs(one.b).ravel() for one in parts.factors.values()]).astype(np.float64)
    sizes = sizes[sizes > 0]
    return len(sizes) > 0 and float(sizes.mean() ** 2 / np.square(sizes).mean()) > _EVEN


def _factors_b(parts: ModelParts) -> ModelParts:
    """The factors B as if they were the weights of a model whose base is zero."""
    b = {name: one.b for name, one in parts.factors.items()}
    return ModelParts(b, b, precision_of(parts), 0, is_adapter=True)
