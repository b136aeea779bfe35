"""Adapters that were made from other adapters: measurements on their factors, and the rules that decide by them.

A LoRA's change is a product of factors that are small, so whole matrices are compared. Two adapters that began with one
seed have nearly the same A, which is no evidence: B began as zero, and their changes point in different directions.
An adapter that was continued from another contains the other's whole change; one that PEFT merged
(``add_weighted_adapter``) is a sum of the factors or of the changes of others, or contains many of their entries.
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
    """The change of an adapter, matrix by matrix: ``products`` if it has LoRA factors, else ``sampled_products``."""

    def __init__(self, parts: ModelParts) -> None:
        self.parts = parts
        self.names = [name for name, change in parts.own.items() if change.any() or name in parts.factors]
        self.is_whole = all(name in parts.factors for name in self.names)

    @cached_property
    def products(self) -> Mapping[str, Product]:
        """The whole changes, from factors."""
        return {
            name: Product(factors.b.astype(np.float64) * factors.scale, factors.a.astype(np.float64))
            for name, factors in self.parts.factors.items()
        }

    @cached_property
    def sampled_products(self) -> Mapping[str, Product]:
        """The changes of the parts that were read, for adapters of other kinds."""
        products = {}
        for name in self.names:
            u, s, vt = np.linalg.svd(self.parts.own[name].astype(np.float64), full_matrices=False)
            count = max(int(np.count_nonzero(s > 1e-6 * s[0])), 1)
            products[name] = Product(u[:, :count] * s[:count], vt[:count])
        return products

    @cached_property
    def square(self) -> float:
        """‖δ‖² of ``products`` or ``sampled_products``."""
        return sum(
            product.inner(product) for product in (self.products if self.is_whole else self.sampled_products).values()
        )


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

    residual: float
    cosine: float
    reverse: float
    kept: float
    spread: float
    fine: float

    @property
    def signals(self) -> dict[str, float]:
        """As numbers behind a probability."""
        measurements = {"kept": self.kept, "kept_spread": self.spread, "fine": self.fine}
        return {"left": self.residual, "cosine": self.cosine, "reverse": self.reverse, **measurements}


def pair(m: Adapter, p: Adapter) -> tuple[Mapping[str, Product], Mapping[str, Product]]:
    """The changes of two adapters in a form that can be compared."""
    return (m.products, p.products) if m.is_whole and p.is_whole else (m.sampled_products, p.sampled_products)


def continuation(m: Adapter, p: Adapter) -> Continuation | None:
    """See :class:`Continuation`; None if one of them changes nothing, or their matrices have other shapes."""
    products_m, products_p = pair(m, p)
    inner = square_p = 0.0
    kept: list[float] = []
    fine: list[float] = []
    square_m = sum(product.inner(product) for product in products_m.values())
    for name, product_p in products_p.items():
        square_p += product_p.inner(product_p)
        product_m = products_m.get(name)
        u, s, v = product_p.triplets
        if product_m is None or not s[0]:
            kept += [0.0] if s[0] else []
            fine += [0.0] if s[0] else []
            continue
        inner += product_m.inner(product_p)
        # uᵢᵀ δ_m vᵢ / sᵢ is the coefficient in one direction; weighted by sᵢ², as in a regression.
        weighted = s * np.einsum("ki,ki->i", product_m.left.T @ u, product_m.right @ v)
        for leading, coefficients in ((-(-len(s) // 4), kept), (len(s) // 2, fine)):
            first = leading if len(s) > 1 else 0
            coefficients.append(float(weighted[first:].sum() / max(np.square(s[first:]).sum(), 1e-300)))
    if not square_p or not square_m:
        return None
    difference = max(square_m - 2 * inner + square_p, 0.0)
    distance = np.sqrt(difference) if difference else 1.0
    return Continuation(
        residual=difference / square_m,
        cosine=float((inner - square_p) / (distance * np.sqrt(square_p))),
        reverse=float((inner - square_m) / (distance * np.sqrt(square_m))),
        kept=float(np.median(kept)),
        spread=float(np.std(kept)),
        fine=float(np.median(fine)),
    )


def advance(m: Adapter, s: Adapter, p: Adapter) -> float:
    """The cosine of m − s with the step s − p, outside the leading directions of that step.

    Near 0 for a child of s, below 0 for another child of p; see ``query.questions.lineage.siblings.sibling_cosine``.
    """
    along = rest_energy = step_energy = 0.0
    products_m, products_s = pair(m, s)
    products_p = pair(p, s)[0]
    for name in set(products_s) & set(products_p) & set(products_m):
        step = products_s[name].minus(products_p[name])
        u, lengths, v = step.triplets
        leading = len(lengths) // 8
        difference = products_m[name].minus(products_s[name])
        core = np.einsum("ki,ki->i", difference.left.T @ u, difference.right @ v)
        along += float(lengths[leading:] @ core[leading:])
        step_energy += float(np.square(lengths[leading:]).sum())
        rest_energy += difference.inner(difference)
    return along / np.sqrt(rest_energy * step_energy) if rest_energy > 0 and step_energy > 0 else 0.0


# ---- rules ----


class AdapterRules:
    """Compares the adapters that were read with the asked one; for the arguments see ``LineageRules``."""

    def __init__(self, target: Candidate, m: ModelParts, siblings: Siblings, thresholds: Thresholds) -> None:
        self.target, self.m, self.siblings, self.thresholds = target, Adapter(m), siblings, thresholds
        self.spacing = spacing_of(m)
        self._adapters: dict[int, Adapter] = {}
        self._continuations: dict[int, Continuation | None] = {}
        self._repeated: dict[tuple[int, int], bool] = {}

    def decide(self, samples: Sequence[SampledWeights]) -> Decision | None:
        """Apply the rule with the most certain evidence; None if no rule applies."""
        samples = [sample for sample in samples if not self._is_coarser(sample)]
        if not self.m.names or not samples:
            return None
        copied = self._copy(samples)
        if copied and copied.edges[0].direction == "known":
            return copied
        # If their order is unknown, a twin is no evidence for where both come from.
        twins = {copied.edges[0].parent, *copied.edges[0].same} if copied else set()
        samples = self._distinct([sample for sample in samples if sample.candidate.model not in twins])
        rules = (self._sum, self._sparse, self._compressed, self._continued)
        decision = next((result for rule in rules if (result := rule(samples)) is not None), None)
        if copied is None:
            return decision
        decision = decision or Decision()
        return replace(decision, edges=(*decision.edges, *copied.edges))

    @cached_property
    def looks_merged(self) -> bool:
        """Whether it lacks entries of B, or its factors are singular vectors: no training leaves them so."""
        return share_of_zeros(self.m.parts) > self.thresholds.sparse_share or is_orthonormal(self.m.parts)

    def adapter(self, sample: SampledWeights) -> Adapter:
        """The measurements of a candidate (cached)."""
        return self._adapters.setdefault(sample.candidate.model_id, Adapter(sample.parts))

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
        candidate, numbers = parent.candidate, {OF_ADAPTER: 1.0, **(signals or {})}
        return Edge(
            self.target.model, candidate.model, kind, coefficient, residual, evidence, parent_id=candidate.model_id,
            signals=numbers, **facts,
        )  # fmt: skip

    # ---- equal factors ----

    def _is_coarser(self, sample: SampledWeights) -> bool:
        """Whether a candidate is the asked adapter, stored in a narrower dtype."""
        return spacing_of(sample.parts) > self.spacing and equal_factors(sample.parts, self.m.parts) > _SAME

    def _copy(self, samples: Sequence[SampledWeights]) -> Decision | None:
        """The same factors, perhaps in another dtype, or the same change in other factors."""
        spacings = {sample.candidate.model_id: spacing_of(sample.parts) for sample in samples}
        equal = [
            sample
            for sample in samples
            if spacings[sample.candidate.model_id] <= self.spacing and equal_factors(self.m.parts, sample.parts) > _SAME
        ]
        evidence = SAME_WEIGHTS
        if not equal:
            relations = [(self._continuation(sample), sample) for sample in samples]
            equal = [
                sample
                for relation, sample in relations
                if relation is not None and relation.residual <= self._rounding(_SAME_CHANGE)
            ]
            evidence = "the same change, in other factors"
        if not equal:
            return None
        # The most precise, then the oldest.
        first, *copies = sorted(
            equal, key=lambda sample: (-spacings[sample.candidate.model_id], sample.candidate.upload_order)
        )
        copied_names = tuple(sample.candidate.model for sample in copies)
        if spacings[first.candidate.model_id] < self.spacing and evidence == SAME_WEIGHTS:
            relation = self._continuation(first)
            residual, precision = 0.0 if relation is None else relation.residual, precision_of(self.m.parts)
            edge = self._edge(
                first, RECAST, 1.0, residual, f"the same weights, stored as {precision}", same=copied_names
            )
            return Decision((edge,), is_settled=True)
        direction = "known" if self.siblings.has_order(first.candidate) else "unknown"
        evidence = evidence if direction == "known" else f"{evidence}; {NO_ORDER}"
        edge = self._edge(first, COPY, 1.0, 0.0, evidence, direction=direction, same=copied_names)
        return Decision((edge,), is_settled=True)

    def _rounding(self, least: float) -> float:
        """The share of a change that may be the rounding of two adapters' factors, at least ``least``."""
        return max(least, self.thresholds.rounding_factor * 0.54 / 12 * 4 * self.spacing**2)

    def _distinct(self, samples: Sequence[SampledWeights]) -> list[SampledWeights]:
        """The adapters without those that repeat an earlier one."""
        distinct: list[SampledWeights] = []
        for sample in sorted(samples, key=lambda sample: sample.candidate.upload_order):
            if not any(self._repeats(sample, other) for other in distinct):
                distinct.append(sample)
        return distinct

    def _repeats(self, sample: SampledWeights, other: SampledWeights) -> bool:
        """Whether two candidates make the same change."""
        key = sample.candidate.model_id, other.candidate.model_id
        if key not in self._repeated:
            relation = continuation(self.adapter(sample), self.adapter(other))
            self._repeated[key] = relation is not None and relation.residual < _REPEATED
        return self._repeated[key]

    # ---- exact sums ----

    def _sum(self, samples: Sequence[SampledWeights]) -> Decision | None:
        """A sum of factors (``linear``), of changes (``cat``), or of changes cut to a lower rank (``svd``)."""
        same_shapes = [sample for sample in samples if has_same_shapes(self.m.parts, sample.parts)]
        factored = [sample for sample in samples if self.m.is_whole and self.adapter(sample).is_whole]
        allowed_residual = self._rounding(self.thresholds.exact_residual)
        decision = self._sum_of_factors(same_shapes, allowed_residual)
        if decision is None and factored:
            decision = self._exact(
                factored, self._products_of(factored), allowed_residual, "cat", "an exact sum of their changes"
            )
        if decision is None and factored:
            projected = self._cut_products_of(factored)
            decision = self._exact(
                factored, projected, allowed_residual, "svd", "the leading directions of a sum of their changes"
            )
        return decision

    def _sum_of_factors(self, samples: Sequence[SampledWeights], allowed_residual: float) -> Decision | None:
        """A merge by ``linear``: A and B are sums of the others' A and B, with the roots of the weights."""
        if not samples:
            return None
        names = list(self.m.parts.factors)
        scales = np.array([[sample.parts.factors[name].scale for sample in samples] for name in names])
        scales_m = np.array([self.m.parts.factors[name].scale for name in names])
        sides = []
        for side in ("a", "b"):
            stacks = [
                np.stack(
                    [
                        getattr(parts.factors[name], side).ravel()
                        for parts in (self.m.parts, *(sample.parts for sample in samples))
                    ]
                )
                for name in names
            ]
            grams = np.stack([stack.astype(np.float64) @ stack.T.astype(np.float64) for stack in stacks])
            sides.append(Combinations.of_products(grams))
        sums = [side.by_matrix(range(len(samples))) for side in sides]
        if max(side.residual for side in sums) > allowed_residual:
            return None
        for group in self._groups(np.maximum(*(np.abs(side.weights).max(axis=0) for side in sums))):
            sum_a, sum_b = (side.by_matrix(group) for side in sides)
            if max(sum_a.residual, sum_b.residual) > allowed_residual or (sum_b.weights < 0).any():
                continue
            weights = sum_a.weights * sum_b.weights * scales_m[:, None] / scales[:, list(group)]
            mean = weights.mean(axis=0)
            if (np.abs(mean) >= self.thresholds.min_weight).all() and weights.std(axis=0).max() <= 0.02:
                residual = max(sum_a.residual, sum_b.residual)
                return self._merge(
                    samples, Combination(group, weights, residual), "linear", "exact sums of their factors"
                )
        return None

    def _exact(
        self, samples: Sequence[SampledWeights], sums: Combinations, allowed_residual: float, method: str, evidence: str
    ) -> Decision | None:
        everything = sums.one_recipe(range(len(samples)))
        if everything.residual > allowed_residual:
            return None
        for group in self._groups(np.abs(everything.mean)):
            combination = sums.one_recipe(group)
            sizes = np.abs(combination.mean)
            if combination.residual > allowed_residual or (sizes < self.thresholds.min_weight).any():
                continue
            # A sum with a negative weight may be one of its parts, explained by the whole.
            is_ordered = all(self.siblings.has_order(samples[member].candidate) for member in group)
            if (combination.mean > 0).all() or is_ordered:
                return self._merge(samples, combination, method, evidence)
        return None

    def _groups(self, weights: Floats) -> Iterable[tuple[int, ...]]:
        """All choices of members, the fewest first; ``weights``: each member's weight in the sum of all, mostly 0.

        If some members explain a change exactly, all together do. Callers check that first: nearly always none do.
        """
        members = np.flatnonzero(weights > _NO_WEIGHT).tolist()
        for size in range(1, min(self.thresholds.max_parents, len(members)) + 1):
            yield from itertools.combinations(members, size)

    def _merge(
        self,
        samples: Sequence[SampledWeights],
        combination: Combination,
        method: str,
        evidence: str,
        residual: float | None = None,
    ) -> Decision:
        residual = combination.residual if residual is None else residual
        edges = [
            self._edge(samples[member], MERGE, float(weight), residual, evidence, method=method)
            for member, weight in zip(combination.members, combination.mean, strict=True)
        ]
        # A sum of one adapter is that adapter, scaled. Only dates or a lower rank show which was first.
        if (
            len(edges) == 1
            and method != "svd"
            and not self.siblings.has_order(samples[combination.members[0]].candidate)
        ):
            edges = [replace(edges[0], direction="unknown")]
        # As long as a parent of two is not read, a larger group of relatives may explain the sum as exactly.
        return Decision(tuple(edges), is_settled=len(edges) <= 2)

    def _products_of(self, samples: Sequence[SampledWeights]) -> Combinations:
        """Inner products of whole changes, pooled over the matrices."""
        adapters = [self.m, *(self.adapter(sample) for sample in samples)]
        names = sorted({name for adapter in adapters for name in adapter.products})
        grams = np.zeros((1, len(adapters), len(adapters)))
        for name in names:
            present = [
                (index, adapter.products[name]) for index, adapter in enumerate(adapters) if name in adapter.products
            ]
            for (row, first), (column, second) in itertools.combinations_with_replacement(present, 2):
                grams[0, row, column] = grams[0, column, row] = grams[0, row, column] + first.inner(second)
        return Combinations.of_products(grams)

    def _cut_products_of(self, samples: Sequence[SampledWeights]) -> Combinations:
        """Inner products of the changes after projection onto the row and column spaces of the asked adapter's change.

        If m is the sum S cut to its leading directions, Uᵀ S = Uᵀ δ_m and S V = δ_m V for its singular vectors.
        """
        adapters = [self.m, *(self.adapter(sample) for sample in samples)]
        grams = np.zeros((1, len(adapters), len(adapters)))
        for name, product in self.m.products.items():
            u, _, v = product.triplets
            rows = []
            for adapter in adapters:
                product_p = adapter.products.get(name)
                if product_p is None:
                    rows.append(np.zeros(u.shape[1] * (len(u) + len(v))))
                else:
                    left_projection, right_projection = (
                        (u.T @ product_p.left) @ product_p.right,
                        product_p.left @ (product_p.right @ v),
                    )
                    rows.append(np.concatenate([left_projection.ravel(), right_projection.ravel()]))
            stacked = np.stack(rows)
            grams[0] += stacked @ stacked.T
        return Combinations.of_products(grams)

    # ---- merges that drop entries ----

    def _sparse(self, samples: Sequence[SampledWeights]) -> Decision | None:
        """A merge by TIES or DARE, or a pruned copy: many entries of B are entries of another's B, times one number.

        A is not compared, because adapters of one seed have nearly equal A.
        """
        comparable = [
            sample
            for sample in samples
            if has_same_shapes(self.m.parts, sample.parts) and not is_first_step(sample.parts)
        ]
        if not comparable or is_first_step(self.m.parts):
            return None
        # Other merges may contain the same entries. They are compared only if no dense adapter does.
        zeros_m, sparse_share = share_of_zeros(self.m.parts), self.thresholds.sparse_share
        dense = [sample for sample in comparable if share_of_zeros(sample.parts) <= sparse_share]
        sparse = [sample for sample in comparable if sparse_share < share_of_zeros(sample.parts) < zeros_m]
        return self._multiples(dense) or (self._multiples(sparse) if sparse else None)

    def _multiples(self, samples: list[SampledWeights]) -> Decision | None:
        """The adapters whose entries of B, times one number, are entries of the asked adapter's B."""
        zeros = {name: np.zeros_like(factors.b) for name, factors in self.m.parts.factors.items()}
        entries = SparseMerges(_factors_b(self.m.parts), zeros)
        unexplained = ~entries.unchanged
        parents: list[tuple[SampledWeights, float]] = []
        while samples:
            fits = [(entries.fixed_multiple(_factors_b(sample.parts), unexplained), sample) for sample in samples]
            (share, contrast, explained), sample = max(fits, key=lambda fit: fit[0][0])
            if share < self.thresholds.multiple_share or contrast < self.thresholds.multiple_contrast:
                break
            parents.append((sample, share))
            unexplained &= ~explained
            samples = [remaining for remaining in samples if remaining is not sample]
        if not parents:
            return None
        members = [sample for sample, _ in parents]
        combination = self._products_of(members).one_recipe(range(len(members)))
        scales = [
            np.mean([factors.scale for factors in parts.factors.values()])
            for parts in (self.m.parts, *(sample.parts for sample in members))
        ]
        stacks = [_factors_b(parts) for parts in (self.m.parts, *(sample.parts for sample in members))]
        grams = np.zeros((1, len(stacks), len(stacks)))
        for name in zeros:
            stacked = np.stack([parts.weights[name].ravel() for parts in stacks]).astype(np.float64)
            grams[0] += stacked @ stacked.T
        roots = Combinations.of_products(grams).one_recipe(range(len(members))).mean
        edges = tuple(
            self._edge(
                sample, MERGE, float(root * abs(root) * scales[0] / scale), combination.residual,
                f"{share:.0%} of the entries of its B, untouched", method=SPARSE_METHODS,
            )
            for (sample, share), root, scale in zip(parents, roots, scales[1:], strict=True)
        )  # fmt: skip
        changed = float((~entries.unchanged).mean())
        return Decision(edges, is_settled=len(edges) > 1 and float(unexplained.mean()) < 0.3 * changed)

    def _compressed(self, samples: Sequence[SampledWeights]) -> Decision | None:
        """Merged by TIES or DARE and then cut to a lower rank: singular vectors in place of trained factors."""
        factored = [sample for sample in samples if self.adapter(sample).is_whole]
        if not factored or not self.m.is_whole or not is_orthonormal(self.m.parts):
            return None
        sums, best = self._cut_products_of(factored), None
        for size in range(1, min(self.thresholds.max_parents, len(factored)) + 1):
            combinations = [sums.one_recipe(group) for group in itertools.combinations(range(len(factored)), size)]
            combinations = [
                combination
                for combination in combinations
                if (combination.mean > self.thresholds.min_compressed_weight).all()
            ]
            nearest = min(combinations, key=lambda combination: combination.residual, default=None)
            if nearest is None or (
                best is not None and best.residual - nearest.residual < self.thresholds.min_compressed_gain
            ):
                break
            best = nearest
        if best is None or best.residual > self.thresholds.max_compressed_residual:
            return None
        evidence = f"singular vectors, which {'their' if len(best.members) > 1 else 'its'} changes explain together"
        return replace(self._merge(factored, best, f"{SPARSE_METHODS}, svd", evidence), is_settled=False)

    # ---- continued training ----

    def _continuation(self, sample: SampledWeights) -> Continuation | None:
        if sample.candidate.model_id not in self._continuations:
            self._continuations[sample.candidate.model_id] = continuation(self.m, self.adapter(sample))
        return self._continuations[sample.candidate.model_id]

    def _continued(self, samples: Sequence[SampledWeights]) -> Decision | None:
        """The nearest adapter that it can have been continued from."""
        relatives = [(relation, sample) for sample in samples if (relation := self._continuation(sample)) is not None]
        relatives = [(relation, sample) for relation, sample in relatives if self._may_precede(relation, sample)]
        for is_run in (False, True):
            group = [(relation, sample) for relation, sample in relatives if self._goes_on(relation) == is_run]
            fits = self._is_later_in_run if is_run else self._holds
            parents = [(relation, sample) for relation, sample in group if fits(relation, sample)]
            parents = [
                (relation, sample)
                for relation, sample in parents
                if not any(self._is_sibling(sample, parent) for _, parent in parents if parent is not sample)
            ] or parents
            if parents:
                break
        else:
            return None
        relation, first = min(parents, key=lambda match: (match[0].residual, match[1].candidate.upload_order))
        kind, direction = CONTINUED, "known"
        # The earlier of two checkpoints has the smaller change. If size shows no order, the angles must differ.
        is_clear = is_run or abs(relation.reverse) - abs(relation.cosine) >= self.thresholds.reversed_cosine
        has_order, parent = self.siblings.has_order(first.candidate), first.candidate
        if not (is_clear or has_order):
            direction = "unknown"
        is_same_data = bool(parent.datasets) and parent.datasets == self.target.datasets
        if is_same_data and not has_order and parent.author != self.target.author:
            # Two authors with the same seed and data may train nearly the same adapter at the same time.
            kind, direction = CONTINUED_OR_RUN, "unknown"
            evidence = "it holds the other's change; both name the same data, and no date says which came first"
        elif not is_run:
            evidence = "it holds the other's whole change, and one of another direction"
        elif self.siblings.is_run_of_same_sweep(first.candidate):
            evidence = "it continues in the other's direction: a later checkpoint of one run"
        else:
            kind, direction = CONTINUED_OR_RUN, "unknown"
            evidence = "it continues in the other's direction, as does a run from the same start on the same data"
        edge = self._edge(
            first,
            kind,
            1.0,
            relation.residual,
            evidence,
            direction=direction,
            is_proven=False,
            signals=relation.signals,
        )
        return Decision((edge,))

    def _may_precede(self, relation: Continuation, sample: SampledWeights) -> bool:
        """Whether dates or angles allow that a candidate is the earlier of the two."""
        is_upright = abs(relation.cosine) < abs(relation.reverse)
        return relation.residual <= self.thresholds.max_adapter_residual and (
            is_upright or self.siblings.has_order(sample.candidate)
        )

    def _goes_on(self, relation: Continuation) -> bool:
        """Whether it went on in the direction of the candidate: on the same data, or from the same start."""
        return relation.cosine > self.thresholds.max_cosine

    def _holds(self, relation: Continuation, sample: SampledWeights) -> bool:
        """Whether the asked adapter contains the candidate's whole change, in all directions and matrices."""
        thresholds = self.thresholds
        return (
            relation.cosine >= thresholds.min_adapter_cosine
            and abs(relation.kept - 1) <= thresholds.max_kept_error
            and abs(relation.fine - 1) <= thresholds.max_fine_error
            and relation.spread <= thresholds.max_kept_spread
        )

    def _is_later_in_run(self, relation: Continuation, sample: SampledWeights) -> bool:
        """Whether it contains at least the candidate's change."""
        return min(relation.kept, relation.fine) >= 1 - self.thresholds.max_kept_error

    def _is_sibling(self, sample: SampledWeights, parent: SampledWeights) -> bool:
        """Whether ``sample`` is another child of ``parent``, rather than the asked adapter's parent itself."""
        relation, relation_to_parent = self._continuation(sample), self._continuation(parent)
        if relation is None or relation_to_parent is None or relation_to_parent.residual <= relation.residual:
            return False
        if self.siblings.dates and parent.candidate.upload_order > sample.candidate.upload_order:
            return False
        step = continuation(self.adapter(sample), self.adapter(parent))
        if step is None or abs(step.kept - 1) > self.thresholds.max_kept_error or abs(step.cosine) >= abs(step.reverse):
            return False
        return advance(self.m, self.adapter(sample), self.adapter(parent)) < self.thresholds.adapter_sibling_cosine


def precision_of(parts: ModelParts) -> str:
    """The narrowest dtype that holds a model's values (for an adapter: its factors)."""
    return min(
        (factors.precision for factors in parts.factors.values()), key=SPACING.__getitem__, default=parts.precision
    )


def spacing_of(parts: ModelParts) -> float:
    """The largest relative distance of neighbouring numbers in the precision of an adapter's factors."""
    return SPACING[precision_of(parts)]


def has_same_shapes(m: ModelParts, p: ModelParts) -> bool:
    """Whether two adapters have factors of the same matrices and ranks."""
    if not m.factors or m.factors.keys() != p.factors.keys():
        return False
    return all(
        factors.a.shape == p.factors[name].a.shape and factors.b.shape == p.factors[name].b.shape
        for name, factors in m.factors.items()
    )


def equal_factors(m: ModelParts, p: ModelParts) -> float:
    """The share of the numbers of an adapter that are equal when p is stored in m's precision."""
    if not m.factors:
        is_equal = not p.factors and all(np.array_equal(change, p.own[name]) for name, change in m.own.items())
        return float(is_equal)
    if not has_same_shapes(m, p) or any(factors.scale != p.factors[name].scale for name, factors in m.factors.items()):
        return 0.0
    precision = precision_of(m)
    equal = total = 0
    for name, factors in m.factors.items():
        factors_p = p.factors[name]
        for values_m, values_p in ((factors.a, factors_p.a), (factors.b, factors_p.b)):
            equal += int(np.count_nonzero(as_stored(values_p, precision) == values_m))
            total += values_m.size
    return equal / total


def is_orthonormal(parts: ModelParts) -> bool:
    """Whether the rows of every A are orthonormal."""
    products = (factors.a.astype(np.float64) @ factors.a.T.astype(np.float64) for factors in parts.factors.values())
    return bool(parts.factors) and all(
        np.abs(product - np.eye(len(product))).max() <= _ORTHONORMAL for product in products
    )


def share_of_zeros(parts: ModelParts) -> float:
    """The share of the entries of all B that are zero."""
    total = sum(factors.b.size for factors in parts.factors.values())
    return sum(int(np.count_nonzero(factors.b == 0)) for factors in parts.factors.values()) / total if total else 0.0


def is_first_step(parts: ModelParts) -> bool:
    """Whether all entries of B have nearly one size, as after the first step of Adam: all are then multiples."""
    sizes = np.concatenate([np.abs(factors.b).ravel() for factors in parts.factors.values()]).astype(np.float64)
    sizes = sizes[sizes > 0]
    return len(sizes) > 0 and float(sizes.mean() ** 2 / np.square(sizes).mean()) > _EVEN


def _factors_b(parts: ModelParts) -> ModelParts:
    """The factors B as if they were the weights of a model whose base is zero."""
    b = {name: factors.b for name, factors in parts.factors.items()}
    return ModelParts(b, b, precision_of(parts), 0, is_adapter=True)
