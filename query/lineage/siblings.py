"""Which of several relatives a model was continued from: its siblings and cousins may be nearer to it than its parent.

Two measurements on token embeddings decide, then one on the block matrices: which rows two models share, how even the
update of each row is, and whether a relative moved the same way outside of the leading directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from query.lineage.candidates import SAME_DAY, Candidate, SampledWeights
from query.lineage.evidence import SPACING, parent_fit
from query.lineage.result import CONTINUED, CONTINUED_OR_RUN, Edge
from query.lineage.thresholds import Thresholds

if TYPE_CHECKING:
    from indexer.records.parts import ModelParts

Floats = NDArray[np.float32]

# How far apart two float32 rows may be, relative to their norm, that are the same.
_BLUR = 1e-5
_ALIKE, _UNCLEAR, _DIFFERENT = 0, 1, 2

# The leading directions of a step, which the data require of every model: one in this many.
_LEADING = 8


# ---- token embeddings ----


@dataclass(frozen=True)
class SharedUpdates:
    """Rows of the token embeddings that two models changed: ``shared`` alike in both, the rest by one alone.

    Training leaves the row of a token that it never meets as it was (weight decay scales all such rows alike). So rows
    that p changed and that are equal in m were inherited from p; and if m was made from p, there is no row that p
    changed and that is the base's in m. ``both``: rows changed by both, differently.
    """

    shared: int
    only_m: int
    only_p: int
    both: int


def shared_updates(m: ModelParts, p: ModelParts, base: ModelParts | None) -> SharedUpdates | None:
    """See :class:`SharedUpdates`; None if one of the three has no embeddings, or of another shape."""
    if base is None or not _are_comparable(m, p, base):
        return None
    of_m, of_p, between = _compare(m, base), _compare(p, base), _compare(m, p)
    in_both = (of_m == _DIFFERENT) & (of_p == _DIFFERENT)
    return SharedUpdates(
        shared=int(np.count_nonzero((between == _ALIKE) & in_both)),
        only_m=int(np.count_nonzero((of_m == _DIFFERENT) & (of_p == _ALIKE))),
        only_p=int(np.count_nonzero((of_p == _DIFFERENT) & (of_m == _ALIKE))),
        both=int(np.count_nonzero((between == _DIFFERENT) & in_both)),
    )


def rows_lost_by(s: ModelParts, m: ModelParts, p: ModelParts, base: ModelParts | None) -> int:
    """Rows that p changed, that are equal in m, and that s has changed again: a child of s could not have them.

    0 if one of the models has no embeddings to compare, or has them rounded: rounded rows are equal to many others.
    """
    if base is None or any(one.precision != "float32" for one in (m, p, s)) or not _are_comparable(m, p, s, base):
        return 0
    is_of_p = (_compare(m, p) == _ALIKE) & (_compare(p, base) == _DIFFERENT)
    return int(np.count_nonzero(is_of_p & (_compare(m, s) == _DIFFERENT)))


@dataclass(frozen=True)
class RowUpdates:
    """For each token, (tokens,): whether m differs from p, and how even the update m − p is.

    Evenness is (mean |x|)² / mean x² over the entries of the row. Adam moves all entries by steps of nearly the same
    size, so the row of a token that one training met a few times changed by much the same everywhere: near 1. Where
    several trainings add up or cancel, entries come out large and small: nearer to 2 / π, the value for a Gaussian.
    0 where nothing changed.
    """

    changed: NDArray[np.bool_]
    evenness: NDArray[np.float64]


def row_updates(m: ModelParts, p: ModelParts) -> RowUpdates | None:
    """See :class:`RowUpdates`; None if one of them has no embeddings, or of another shape."""
    if m.tokens is None or p.tokens is None or m.tokens.shape != p.tokens.shape:
        return None
    change = m.tokens.astype(np.float64) - p.tokens
    square = np.square(change).mean(axis=1)
    evenness = np.square(np.abs(change).mean(axis=1)) / np.where(square == 0, 1, square)
    return RowUpdates(_compare(m, p) == _DIFFERENT, evenness)


def _are_comparable(*models: ModelParts) -> bool:
    """Whether all have token embeddings, of one shape."""
    shapes = {None if one.tokens is None else one.tokens.shape for one in models}
    return None not in shapes and len(shapes) == 1


def _compare(first: ModelParts, second: ModelParts) -> NDArray[np.int8]:
    """For each token whether one row is a multiple of the other: _ALIKE, _DIFFERENT, or _UNCLEAR between."""
    assert first.tokens is not None
    assert second.tokens is not None
    # How far apart rows may be, relative to their norm, that were equal before they were stored.
    blur = max(_BLUR, 0.75 * SPACING[first.precision], 0.75 * SPACING[second.precision])
    a, b = first.tokens.astype(np.float64), second.tokens.astype(np.float64)
    square = (b * b).sum(axis=1)
    scale = (a * b).sum(axis=1) / np.where(square == 0, 1, square)
    left = np.linalg.norm(a - scale[:, None] * b, axis=1)
    relative = left / np.maximum(np.linalg.norm(a, axis=1), 1e-30)
    found = np.full(len(a), _UNCLEAR, dtype=np.int8)
    found[relative <= blur] = _ALIKE
    found[relative > 4 * blur] = _DIFFERENT
    return found


# ---- block matrices ----


def sibling_cosine(m: ModelParts, s: ModelParts, p: ModelParts) -> float:
    """The cosine of m − s with the step s − p, without the leading directions of that step.

    What the data require of every model trained on them lies in few directions, in which a sibling may go as far as s
    did, and farther. In all the others a child of s has the whole step and something of its own (near 0), while a
    sibling went another way and lacks the step (below 0). 0 if one of them did not move.
    """
    along = after = before = 0.0
    for name, weight in m.weights.items():
        step = s.weights[name] - p.weights[name]
        if not step.any():
            continue
        u, _, vt = np.linalg.svd(step, full_matrices=False)
        leading = min(step.shape) // _LEADING
        u, vt = u[:, :leading], vt[:leading]
        step = _project_out(step, u, vt)
        rest = _project_out(weight - s.weights[name], u, vt)
        along += float(np.vdot(rest, step))
        after += float(np.vdot(rest, rest))
        before += float(np.vdot(step, step))
    return along / float(np.sqrt(after * before)) if after > 0 and before > 0 else 0.0


def _project_out(matrix: Floats, u: Floats, vt: Floats) -> Floats:
    """The matrix without the columns of ``u`` and the rows of ``vt``."""
    rest: Floats = matrix - u @ (u.T @ matrix)
    rest -= (rest @ vt.T) @ vt
    return rest


# ---- the choice ----


@dataclass(frozen=True)
class Relative:
    """A model that the asked one may have been continued from, and the edge if it was.

    ``shared``: token embeddings of its training that are equal in the asked model. ``updates``: of the asked model.
    """

    weights: SampledWeights
    edge: Edge
    shared: int
    updates: RowUpdates | None


class Siblings:
    """Compares the relatives of the asked model ``m``; for the arguments see ``LineageRules``.

    ``ruled_out``: ids of models near enough for a parent that token embeddings rule out; the parent may be near them.
    """

    def __init__(
        self, asked: Candidate, m: ModelParts, tokens: ModelParts | None, thresholds: Thresholds, *, dates: bool
    ) -> None:
        self.asked, self.m, self.tokens, self.thresholds, self.dates = asked, m, tokens, thresholds, dates
        self.ruled_out: set[int] = set()
        self._relatives: dict[int, Relative | None] = {}
        self._updates_from_base = None if tokens is None else row_updates(m, tokens)

    def has_order(self, other: Candidate) -> bool:
        """Whether dates show which was there first. It is then the other: later models are left out before."""
        mine, theirs = self.asked.created, other.created
        return self.dates and mine is not None and theirs is not None and abs(mine - theirs) >= SAME_DAY

    def is_run_of_same_sweep(self, other: Candidate) -> bool:
        """Whether the other is by the same author on the same datasets, within a day or at an unknown time."""
        mine, theirs = self.asked.created, other.created
        hours = timedelta(hours=self.thresholds.same_run_hours)
        is_near = mine is None or theirs is None or abs(mine - theirs) <= hours
        return is_near and other.author == self.asked.author and other.datasets == self.asked.datasets

    def relative(self, one: SampledWeights) -> Relative | None:
        """The model as a possible parent; None if it cannot be one."""
        key = one.candidate.model_id
        if key not in self._relatives:
            self._relatives[key] = self._measured(one)
        return self._relatives[key]

    def _measured(self, one: SampledWeights) -> Relative | None:
        thresholds = self.thresholds
        fit = parent_fit(self.m, one.parts)
        updates = shared_updates(self.m, one.parts, self.tokens)
        if updates is not None and updates.only_p > max(2, 0.01 * (updates.shared + updates.both)):
            return None  # p was trained on tokens whose rows are still the base's in m
        is_upright = abs(fit.cosine) < abs(fit.reverse)
        is_ordered = self.has_order(one.candidate) or (updates is not None and updates.only_m > thresholds.min_shared)
        if not is_ordered and abs(fit.cosine) > abs(fit.reverse) + thresholds.reversed_cosine:
            return None  # of the two, p looks like the one that was continued from m
        row_changes = None if self.tokens is None else row_updates(self.m, one.parts)
        tokens, share = self._more_even(row_changes, self._updates_from_base)
        is_same_sweep = self.is_run_of_same_sweep(one.candidate)
        # Named as in the studies that calibrated the probabilities.
        signals: dict[str, float] = {
            "left": fit.residual, "cosine": fit.cosine, "reverse": fit.reverse, "equal": fit.equal, "words": tokens,
            "flatter": share, "sister": is_same_sweep,
        }  # fmt: skip
        if updates is not None:
            signals |= asdict(updates)
        shared = 0 if updates is None else updates.shared

        def relative(evidence: str, is_known: bool, is_proven: bool, shared: int, kind: str = CONTINUED) -> Relative:
            parent, direction = one.candidate, "known" if is_known else "unknown"
            edge = Edge(
                self.asked.model, parent.model, kind, 1.0, fit.residual, evidence, direction=direction,
                parent_id=parent.model_id, is_proven=is_proven, signals=signals,
            )  # fmt: skip
            return Relative(one, edge, shared, row_changes)

        if fit.equal > 0:
            return relative("matrices of its training, inherited", is_ordered or is_upright, True, shared)
        if updates is not None and shared >= thresholds.min_shared:
            is_weak = shared < thresholds.weak_share * (shared + updates.both)
            if is_weak and fit.residual > thresholds.weak_residual:
                return None
            evidence = f"{shared} embeddings of its training, inherited"
            return relative(evidence, is_ordered or is_upright, not is_weak, shared)
        if fit.residual > thresholds.max_residual or not is_upright:
            return None
        # A model trained on the same data again may go on in the parent's direction; then its tokens must show that.
        is_nearer_than_base = self._is_enough(tokens, share, thresholds.more_even_than_base)
        if abs(fit.cosine) > thresholds.max_cosine and not is_nearer_than_base:
            return None
        # Runs from the base with the same data and seed, but another rate or length, leave just such a change.
        can_compare = tokens >= thresholds.min_tokens
        if can_compare and share <= 0.5 - 1 / np.sqrt(tokens):
            self.ruled_out.add(one.candidate.model_id)
            return None  # fewer trainings lie between m and the base than between m and p
        is_run = share < thresholds.more_even_than_run if can_compare else is_same_sweep
        kind = CONTINUED_OR_RUN if is_run else CONTINUED
        return relative("its change, and one of another direction", not is_run, False, 0, kind)

    def parent_among(self, relatives: Sequence[Relative]) -> tuple[Edge, list[SampledWeights]] | None:
        """The edge from the parent, and the models that the weights cannot distinguish from it; None without any."""

        def is_known(one: Relative) -> bool:
            return one.edge.direction == "known"

        found = [one for one in relatives if not any(self._is_superseded(one, other) for other in relatives)]
        # Where all are ruled out by each other in a circle, this decides nothing.
        found = [one for one in found if not any(self._is_farther(one, other) for other in found)] or found
        found = [one for one in found if one.edge.is_proven or not any(other.edge.is_proven for other in found)]
        found = [one for one in found if is_known(one) or not any(map(is_known, found))]
        found = [one for one in found if not any(self._is_sibling(one, other) for other in found)]
        if not found:
            return None
        most = max(one.shared for one in found) - self.thresholds.min_shared
        near = [one for one in found if one.shared >= most]
        first = min(near, key=lambda one: (round(one.edge.residual, 9), one.weights.candidate.upload_order))
        alike = [one for one in near if one is not first and abs(one.edge.residual - first.edge.residual) < 1e-9]
        return first.edge, [one.weights for one in alike]

    def _is_superseded(self, one: Relative, parent: Relative) -> bool:
        """Whether the asked model has embeddings of ``parent`` that ``one`` changed, and none the other way."""
        m, mine, theirs = self.m, one.weights.parts, parent.weights.parts
        if one is parent or not rows_lost_by(mine, m, theirs, self.tokens):
            return False
        return not rows_lost_by(theirs, m, mine, self.tokens)

    def _is_farther(self, one: Relative, parent: Relative) -> bool:
        """Whether more trainings lie between the asked model and ``one`` than between it and ``parent``.

        The rows of one training's update are more even than those of several together, for most tokens.
        """
        if one is parent or one.shared > parent.shared + self.thresholds.min_shared:
            return False
        if one.edge.direction == "known" and parent.edge.direction != "known":
            return False
        tokens, share = self._more_even(parent.updates, one.updates)
        return self._is_enough(tokens, share, self.thresholds.more_even)

    def _is_enough(self, tokens: int, share: float, least: float) -> bool:
        # Beyond two standard deviations of a fair coin.
        return tokens >= self.thresholds.min_tokens and share >= max(least, 0.5 + 1 / np.sqrt(tokens))

    def _more_even(self, first: RowUpdates | None, second: RowUpdates | None) -> tuple[int, float]:
        """How many tokens can be compared, and in which share of them the first update is more even than the second.

        Only tokens that the asked model changed from both, and evenly from one of them: an optimiser whose steps are
        not of one size leaves both updates uneven, which says nothing.
        """
        if first is None or second is None:
            return 0, 0.5
        comparable = first.changed & second.changed & (first.evenness != second.evenness)
        comparable &= np.maximum(first.evenness, second.evenness) >= self.thresholds.even_update
        tokens = int(np.count_nonzero(comparable))
        return tokens, float(np.mean(first.evenness[comparable] > second.evenness[comparable])) if tokens else 0.5

    def _is_sibling(self, one: Relative, parent: Relative) -> bool:
        """Whether ``one`` went another way from ``parent`` than the asked model did, which shares no more with it."""
        if one is parent or one.shared > parent.shared + self.thresholds.min_shared:
            return False
        if parent.edge.residual <= one.edge.residual:
            return False
        # By dates, angles and embeddings: may ``one`` have been continued from ``parent``?
        first, second = one.weights, parent.weights
        if self.dates and second.candidate.upload_order > first.candidate.upload_order:
            return False
        fit = parent_fit(first.parts, second.parts)
        if abs(fit.cosine) > self.thresholds.max_cosine or abs(fit.cosine) >= abs(fit.reverse):
            return False
        updates = shared_updates(first.parts, second.parts, self.tokens)
        if updates is not None and updates.only_p > 2:
            return False
        return sibling_cosine(self.m, first.parts, second.parts) < self.thresholds.sibling_cosine
