"""Which of several related models a model was continued from. Siblings and cousins may be nearer than the parent.

Three measurements decide. Two compare token embeddings: which rows two models share, and how even the update of each
row is. One compares block matrices: whether a related model moved the same way outside the leading directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from query.questions.lineage.candidates import SAME_DAY, Candidate, SampledWeights
from query.questions.lineage.evidence import SPACING, ParentFit, parent_fit
from query.questions.lineage.result import CONTINUED, CONTINUED_OR_RUN, Edge
from query.questions.lineage.thresholds import Thresholds

if TYPE_CHECKING:
    from indexer.records.parts import ModelParts

Floats = NDArray[np.float32]

# Two float32 rows are equal if their relative distance is at most this.
_BLUR = 1e-5
_ALIKE, _UNCLEAR, _DIFFERENT = 0, 1, 2

# One in this many directions of a step counts as leading: every model trained on the same data moves along those.
_LEADING = 8


# ---- token embeddings ----


@dataclass(frozen=True)
class SharedUpdates:
    """Counts of token embeddings that model m, model p, or both changed.

    Training does not change the row of a token that does not occur in its data; weight decay scales all such rows by
    the same factor. So a row that p changed and that is equal in m was inherited from p (``shared``). If m was made
    from p, no row that p changed is still the base's in m (``only_p``). ``both``: rows that both changed, to different
    values.
    """

    shared: int
    only_m: int
    only_p: int
    both: int


def shared_updates(m: ModelParts, p: ModelParts, base: ModelParts | None) -> SharedUpdates | None:
    """See :class:`SharedUpdates`; None if the three do not all have embeddings of one shape."""
    if base is None or not _are_comparable(m, p, base):
        return None
    change_m, change_p, between = _compare(m, base), _compare(p, base), _compare(m, p)
    in_both = (change_m == _DIFFERENT) & (change_p == _DIFFERENT)
    return SharedUpdates(
        shared=int(np.count_nonzero((between == _ALIKE) & in_both)),
        only_m=int(np.count_nonzero((change_m == _DIFFERENT) & (change_p == _ALIKE))),
        only_p=int(np.count_nonzero((change_p == _DIFFERENT) & (change_m == _ALIKE))),
        both=int(np.count_nonzero((between == _DIFFERENT) & in_both)),
    )


def _rows_lost_by(s: ModelParts, m: ModelParts, p: ModelParts, base: ModelParts | None) -> int:
    """How many rows m shares with p, where p differs from the base and s differs from both. A child of s has none.

    0 if embeddings are missing or rounded: a rounded row is equal to many others.
    """
    if base is None or any(parts.precision != "float32" for parts in (m, p, s)) or not _are_comparable(m, p, s, base):
        return 0
    is_of_p = (_compare(m, p) == _ALIKE) & (_compare(p, base) == _DIFFERENT)
    return int(np.count_nonzero(is_of_p & (_compare(m, s) == _DIFFERENT)))


@dataclass(frozen=True)
class RowUpdates:
    """For each token, (tokens,): whether m differs from p, and how even the update m − p is.

    Evenness is (mean |x|)² / mean x² over the entries of the row; 0 where nothing changed. Adam moves all entries by
    steps of nearly the same size, so one training run with a few occurrences of a token changes its row evenly: near 1.
    Where the updates of several runs add up or cancel, the evenness is nearer to 2/π, its value for a Gaussian.
    """

    changed: NDArray[np.bool_]
    evenness: NDArray[np.float64]


def row_updates(m: ModelParts, p: ModelParts) -> RowUpdates | None:
    """See :class:`RowUpdates`; None if the two do not both have embeddings of one shape."""
    if not _are_comparable(m, p):
        return None
    assert m.tokens is not None
    assert p.tokens is not None
    change = m.tokens.astype(np.float64) - p.tokens
    square = np.square(change).mean(axis=1)
    evenness = np.square(np.abs(change).mean(axis=1)) / np.where(square == 0, 1, square)
    return RowUpdates(_compare(m, p) == _DIFFERENT, evenness)


def _are_comparable(*models: ModelParts) -> bool:
    """Whether all have token embeddings, of one shape."""
    shapes = {None if parts.tokens is None else parts.tokens.shape for parts in models}
    return None not in shapes and len(shapes) == 1


def _compare(first: ModelParts, second: ModelParts) -> NDArray[np.int8]:
    """For each token whether one row is a multiple of the other: _ALIKE, _DIFFERENT, or _UNCLEAR between."""
    assert first.tokens is not None
    assert second.tokens is not None
    # The largest relative distance of rows that were equal before they were rounded to their precision.
    blur = max(_BLUR, 0.75 * SPACING[first.precision], 0.75 * SPACING[second.precision])
    pairs = ((first.tokens, first.tokens), (first.tokens, second.tokens), (second.tokens, second.tokens))
    aa, ab, bb = (np.einsum("ij,ij->i", a, b, dtype=np.float64) for a, b in pairs)
    # ‖a − (⟨a, b⟩ / ⟨b, b⟩) b‖² of every row. What cancellation loses of ‖a‖², 1e-15 of it, is far below blur².
    residual = np.maximum(aa - ab * (ab / np.where(bb == 0, 1, bb)), 0)
    relative = np.sqrt(residual / np.maximum(aa, 1e-60))
    relation = np.full(len(aa), _UNCLEAR, dtype=np.int8)
    relation[relative <= blur] = _ALIKE
    relation[relative > 4 * blur] = _DIFFERENT
    return relation


# ---- block matrices ----


def sibling_cosine(m: ModelParts, s: ModelParts, p: ModelParts) -> float:
    """The cosine of m − s with the step s − p, outside the leading directions of that step.

    All models trained on the same data move along a few leading directions, and a sibling may move as far along them as
    s did, or farther. In the other directions a child of s has the whole step of s plus a change of its own, so the
    cosine is near 0. A sibling took a different step and lacks that of s, so the cosine is below 0. The value is 0 if
    one of the models did not move.
    """
    steps = {name: s.weights[name] - p.weights[name] for name in m.weights}
    inner_product, rest_energy, step_energy = _outside_leading(m, s, steps)
    return inner_product / float(np.sqrt(rest_energy * step_energy)) if rest_energy > 0 and step_energy > 0 else 0.0


def step_kept(m: ModelParts, p: ModelParts) -> tuple[float, float]:
    """How much of the change of p, outside its leading directions, m contains, and how much that varies by matrix.

    The first number is the coefficient of a regression over all matrices, the second the standard deviation of the
    coefficients of single matrices. Both are 0 if p did not move. They are 1 and 0 for a model made from p, however far
    it was trained later: it has all of that change in every matrix. A run from the base moves as p does only in the
    leading directions, and has little of the other change, even on the same data.
    """
    steps = {name: step for name, step in p.deltas.items() if step.any()}
    sums = [_outside_leading(m, p, {name: step}) for name, step in steps.items()]
    inner_product, step_energy = (sum(inner[index] for inner in sums) for index in (0, 2))
    spread = float(np.std([inner[0] / inner[2] for inner in sums if inner[2] > 0] or [0.0]))
    return (1 + inner_product / step_energy if step_energy > 0 else 0.0), spread


def _outside_leading(m: ModelParts, s: ModelParts, steps: Mapping[str, Floats]) -> tuple[float, float, float]:
    """⟨D, S⟩, ‖D‖² and ‖S‖² of D = m − s and a step S, both without the leading directions of S, over all matrices."""
    inner_product = rest_energy = step_energy = 0.0
    for name, step in steps.items():
        if not step.any():
            continue
        u, _, vt = np.linalg.svd(step, full_matrices=False)
        leading = min(step.shape) // _LEADING
        u, vt = u[:, :leading], vt[:leading]
        outside = _project_out(step, u, vt)
        difference = _project_out(m.weights[name] - s.weights[name], u, vt)
        inner_product += float(np.vdot(difference, outside))
        rest_energy += float(np.vdot(difference, difference))
        step_energy += float(np.vdot(outside, outside))
    return inner_product, rest_energy, step_energy


def _project_out(matrix: Floats, u: Floats, vt: Floats) -> Floats:
    """The matrix without the columns of ``u`` and the rows of ``vt``."""
    outside: Floats = matrix - u @ (u.T @ matrix)
    outside -= (outside @ vt.T) @ vt
    return outside


# ---- the choice ----


@dataclass(frozen=True)
class Relative:
    """A model that the asked one may have been continued from, and the edge if it was.

    ``shared``: the number of token embeddings that its training changed and that are equal in the asked model.
    ``updates``: the updates of the asked model from it.
    """

    weights: SampledWeights
    edge: Edge
    shared: int
    updates: RowUpdates | None


@dataclass(frozen=True)
class _Verdict:
    """The evidence that a model is the parent.

    ``is_known``: whether the direction is known; ``shared``: as in ``Relative``.
    """

    evidence: str
    is_known: bool
    is_proven: bool
    shared: int = 0
    kind: str = CONTINUED


class Siblings:
    """Compares the relatives of the asked model ``m``; for the arguments see ``LineageRules``.

    ``ruled_out``: ids of models that are near enough to be the parent, but whose token embeddings show that they are
    not. The parent is often near them.
    """

    def __init__(
        self, target: Candidate, m: ModelParts, tokens: ModelParts | None, thresholds: Thresholds, *, dates: bool
    ) -> None:
        self.target, self.m, self.tokens, self.thresholds, self.dates = target, m, tokens, thresholds, dates
        self.ruled_out: set[int] = set()
        self._updates_from_base = None if tokens is None else row_updates(m, tokens)

    @property
    def even_tokens(self) -> int:
        """The number of tokens that the asked model changed evenly from the base: these may identify its parent."""
        updates = self._updates_from_base
        if updates is None:
            return 0
        return int(np.count_nonzero(updates.changed & (updates.evenness >= self.thresholds.even_update)))

    def has_order(self, candidate: Candidate) -> bool:
        """Whether dates show that the other model was created first; models created later are never candidates."""
        created, other_created = self.target.created, candidate.created
        return (
            self.dates
            and created is not None
            and other_created is not None
            and abs(created - other_created) >= SAME_DAY
        )

    def is_run_of_same_sweep(self, candidate: Candidate) -> bool:
        """Whether the other has the same author and datasets, and dates that are close or unknown."""
        created, other_created = self.target.created, candidate.created
        hours = timedelta(hours=self.thresholds.same_run_hours)
        is_near = created is None or other_created is None or abs(created - other_created) <= hours
        return is_near and candidate.author == self.target.author and candidate.datasets == self.target.datasets

    def relative(self, sample: SampledWeights) -> Relative | None:
        """The model as a possible parent; None if it cannot be one."""
        fit = parent_fit(self.m, sample.parts)
        updates = shared_updates(self.m, sample.parts, self.tokens)
        is_ordered = self.has_order(sample.candidate) or (
            updates is not None and updates.only_m > self.thresholds.min_shared
        )
        if self._is_no_parent(fit, updates, is_ordered):
            return None
        row_changes = None if self.tokens is None else row_updates(self.m, sample.parts)
        tokens, share = self._more_even(row_changes, self._updates_from_base)
        is_same_sweep = self.is_run_of_same_sweep(sample.candidate)
        signals: dict[str, float] = {
            "left": fit.residual, "cosine": fit.cosine, "reverse": fit.reverse, "equal": fit.equal, "words": tokens,
            "more_even": share, "same_sweep": is_same_sweep,
        }  # fmt: skip
        if updates is not None:
            signals |= asdict(updates)
        if fit.equal > 0 or (updates is not None and updates.shared >= self.thresholds.min_shared):
            verdict = self._inherited(fit, updates, is_ordered)
        else:
            verdict = self._continued(sample, fit, signals)
        if verdict is None:
            return None
        edge = Edge(
            self.target.model, sample.candidate.model, verdict.kind, 1.0, fit.residual, verdict.evidence,
            direction="known" if verdict.is_known else "unknown", parent_id=sample.candidate.model_id,
            is_proven=verdict.is_proven, signals=signals,
        )  # fmt: skip
        return Relative(sample, edge, verdict.shared, row_changes)

    def _is_no_parent(self, fit: ParentFit, updates: SharedUpdates | None, is_ordered: bool) -> bool:
        """Whether p changed rows that are still the base's in m, or was continued from m rather than m from p."""
        if updates is not None and updates.only_p > max(2, 0.01 * (updates.shared + updates.both)):
            return True
        return not is_ordered and abs(fit.cosine) > abs(fit.reverse) + self.thresholds.reversed_cosine

    def _inherited(self, fit: ParentFit, updates: SharedUpdates | None, is_ordered: bool) -> _Verdict | None:
        """The verdict on a model whose matrices or embeddings are equal in m; None if the evidence is too weak."""
        is_known = is_ordered or fit.is_upright
        shared = 0 if updates is None else updates.shared
        if updates is None or fit.equal > 0:
            return _Verdict("matrices of its training, inherited", is_known, is_proven=True, shared=shared)
        is_weak = shared < self.thresholds.weak_share * (shared + updates.both)
        if is_weak and fit.residual > self.thresholds.weak_residual:
            return None
        evidence = f"{shared} embeddings of its training, inherited"
        return _Verdict(evidence, is_known, is_proven=not is_weak, shared=shared)

    def _continued(self, sample: SampledWeights, fit: ParentFit, signals: dict[str, float]) -> _Verdict | None:
        """The verdict on a model without equal weights, by its change; adds measurements to ``signals``."""
        thresholds = self.thresholds
        tokens, share = signals["words"], signals["more_even"]
        if fit.residual > thresholds.max_far_residual or not fit.is_upright:
            return None
        can_compare = tokens >= thresholds.min_tokens
        if can_compare and not self._is_enough(int(tokens), share, thresholds.more_even_than_base):
            # Training on the same data again may continue in the parent's direction. Then tokens must show it.
            if fit.residual > thresholds.max_residual or abs(fit.cosine) > thresholds.max_cosine:
                return None
        elif not can_compare:
            signals["kept"], signals["kept_spread"] = step_kept(self.m, sample.parts)
            if signals["kept"] < thresholds.min_kept or signals["kept_spread"] > thresholds.max_kept_spread:
                return None
        # Runs from the base with the same data and seed, but another learning rate or length, differ in this way too.
        if can_compare and share <= 0.5 - 1 / np.sqrt(tokens):
            self.ruled_out.add(sample.candidate.model_id)
            return None  # fewer trainings lie between m and the base than between m and p
        is_run = share < thresholds.more_even_than_run if can_compare else bool(signals["same_sweep"])
        kind = CONTINUED_OR_RUN if is_run else CONTINUED
        return _Verdict("its change, and one of another direction", is_known=not is_run, is_proven=False, kind=kind)

    def parent_among(self, relatives: Sequence[Relative]) -> Edge | None:
        """The edge from the parent, with the models that the weights cannot distinguish from it; None if no parent."""

        def is_known(relative: Relative) -> bool:
            return relative.edge.direction == "known"

        remaining = [
            relative for relative in relatives if not any(self._is_superseded(relative, other) for other in relatives)
        ]
        # If they rule each other out in a circle, this comparison decides nothing.
        remaining = [
            relative for relative in remaining if not any(self._is_farther(relative, other) for other in remaining)
        ] or remaining
        remaining = [
            relative
            for relative in remaining
            if relative.edge.is_proven or not any(other.edge.is_proven for other in remaining)
        ]
        remaining = [relative for relative in remaining if is_known(relative) or not any(map(is_known, remaining))]
        remaining = [
            relative for relative in remaining if not any(self._is_sibling(relative, other) for other in remaining)
        ]
        if not remaining:
            return None
        most = max(relative.shared for relative in remaining) - self.thresholds.min_shared
        nearest = [relative for relative in remaining if relative.shared >= most]
        first = min(
            nearest, key=lambda relative: (round(relative.edge.residual, 9), relative.weights.candidate.upload_order)
        )
        equal = [
            relative
            for relative in nearest
            if relative is not first and abs(relative.edge.residual - first.edge.residual) < 1e-9
        ]
        return replace(first.edge, same=tuple(relative.weights.candidate.model for relative in equal))

    def _is_superseded(self, relative: Relative, parent: Relative) -> bool:
        """Whether m has rows of ``parent`` that ``relative`` lacks, but no rows of ``relative`` that it lacks."""
        m, parts, parent_parts = self.m, relative.weights.parts, parent.weights.parts
        if relative is parent or not _rows_lost_by(parts, m, parent_parts, self.tokens):
            return False
        return not _rows_lost_by(parent_parts, m, parts, self.tokens)

    def _is_farther(self, relative: Relative, parent: Relative) -> bool:
        """Whether more training runs lie between the asked model and ``relative`` than between it and ``parent``.

        For most tokens, the update of a single run is more even than the sum of several updates.
        """
        if relative is parent or relative.shared > parent.shared + self.thresholds.min_shared:
            return False
        if relative.edge.direction == "known" and parent.edge.direction != "known":
            return False
        tokens, share = self._more_even(parent.updates, relative.updates)
        return self._is_enough(tokens, share, self.thresholds.more_even)

    def _is_enough(self, tokens: int, share: float, least: float) -> bool:
        # More than two standard deviations above one half.
        return tokens >= self.thresholds.min_tokens and share >= max(least, 0.5 + 1 / np.sqrt(tokens))

    def _more_even(self, first: RowUpdates | None, second: RowUpdates | None) -> tuple[int, float]:
        """The number of tokens that can be compared, and the share in which the first update is more even.

        A token counts if it was updated from both models, and evenly from at least one of them. If the optimiser's
        steps vary in size, both updates are uneven and show nothing.
        """
        if first is None or second is None:
            return 0, 0.5
        comparable = first.changed & second.changed & (first.evenness != second.evenness)
        comparable &= np.maximum(first.evenness, second.evenness) >= self.thresholds.even_update
        tokens = int(np.count_nonzero(comparable))
        return tokens, float(np.mean(first.evenness[comparable] > second.evenness[comparable])) if tokens else 0.5

    def _is_sibling(self, relative: Relative, parent: Relative) -> bool:
        """Whether ``relative`` is another child of ``parent``, rather than the asked model's parent itself."""
        if relative is parent or relative.shared > parent.shared + self.thresholds.min_shared:
            return False
        if parent.edge.residual <= relative.edge.residual:
            return False
        # First check by dates, angles and embeddings that ``relative`` may have been continued from ``parent``.
        first, second = relative.weights, parent.weights
        if self.dates and second.candidate.upload_order > first.candidate.upload_order:
            return False
        fit = parent_fit(first.parts, second.parts)
        if abs(fit.cosine) > self.thresholds.max_cosine or abs(fit.cosine) >= abs(fit.reverse):
            return False
        updates = shared_updates(first.parts, second.parts, self.tokens)
        if updates is not None and updates.only_p > 2:
            return False
        return sibling_cosine(self.m, first.parts, second.parts) < self.thresholds.sibling_cosine
