"""From evidence to an answer: what a model was made from, and by which kind of step. Nothing is read here."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from query.lineage.candidates import SAME_DAY, Candidate
from query.lineage.entries import Entries, unchanged_share
from query.lineage.evidence import (
    SPACING,
    Combination,
    Combinations,
    energy,
    equal_share,
    ranks_of,
    rounding,
    single,
)
from query.lineage.grids import grid_of, level_share
from query.lineage.kinship import kinship
from query.lineage.links import (
    CONTINUED_OR_RUN,
    COPY,
    LORA,
    MERGE,
    QUANTISED,
    RECAST,
    Link,
    Reading,
    Verdict,
    age,
    one_link,
)
from query.lineage.sisters import Relative, Relatives
from query.lineage.thresholds import Limits

if TYPE_CHECKING:
    from indexer.records.parts import ModelParts


class Judge:
    """Weighs the models that were read against the asked one.

    ``base``: the base's weights; ``tokens``: the base with its embeddings, where they could be had. ``dates``: whether
    creation dates may be used; candidates are then the earlier models alone.
    """

    def __init__(
        self,
        asked: Candidate,
        m: ModelParts,
        base: Mapping[str, NDArray[np.float32]],
        tokens: ModelParts | None,
        limits: Limits,
        *,
        dates: bool,
    ) -> None:
        self.asked, self.m, self.base, self.tokens, self.limits, self.dates = asked, m, base, tokens, limits, dates
        self.total = energy(m.deltas)
        self.noise = rounding(m) / self.total if self.total else 0.0
        self.grid = grid_of(m)
        self.entries = Entries(m, base)
        self.relatives = Relatives(m, tokens, limits, dates=dates)
        # Models near enough for a parent that words rule out: the parent may be near them.
        self.sisters: set[int] = set()
        self._low_ranks: dict[int, list[int] | None] = {}
        self._weighed: dict[int, Relative | None] = {}
        # Whether it looks like a merge that drops entries, and which of its entries no parent accounts for so far.
        self.is_sparse = float(self.entries.nothing.mean()) > limits.sparse
        self.unexplained: NDArray[np.bool_] | None = None

    def verdict(self, read: Sequence[Reading]) -> Verdict:
        """What these models make of it, the surest explanation first."""
        read = [one for one in read if not self._is_made_from_asked(one)]
        if self.dates:  # else sums with negative weights count for nothing, and this is asked of likely parents alone
            read = [one for one in read if not self._is_merge_of_asked(one, read)]
        copied = self._copied(read)
        if copied is not None and all(link.direction for link in copied.links):
            return copied
        # A copy that may as well be the original says nothing of where both come from.
        twins = {link.parent.model for link in copied.links if link.parent} if copied else set()
        twins |= {name for link in copied.links for name in link.same} if copied else set()
        read = [one for one in read if one.candidate.model not in twins and not self._is_recast(one, read)]
        rules = (self._quantised, self._summed, self._lora, self._sparse, self._continued)
        found = next((verdict for rule in rules if (verdict := rule(read)) is not None), Verdict((), settled=False))
        return replace(found, links=(*found.links, *copied.links)) if copied else found

    def _is_made_from_asked(self, one: Reading) -> bool:
        """Whether the other is this model stored in fewer bits: then it is no parent, whatever the dates."""
        if SPACING[one.parts.precision] > SPACING[self.m.precision] and equal_share(one.parts, self.m) > 0.9999:
            return True
        grid = None if self.grid is not None else grid_of(one.parts)
        return grid is not None and level_share(one.parts, self.m.weights, grid) >= self.limits.level

    def _is_recast(self, one: Reading, read: Sequence[Reading]) -> bool:
        """Whether the other is one of those read, stored in fewer bits, with nothing of its rounding in this model.

        Rounded rows are alike to many: such a copy would pass for a nearer relative than what it is a copy of.
        """
        spacing, grid = SPACING[one.parts.precision], grid_of(one.parts)
        own = single(self.m, one.parts)
        for other in read:
            if spacing > SPACING[other.parts.precision] and equal_share(one.parts, other.parts) > 0.9999:
                return own.equal == 0
            if grid is not None and level_share(one.parts, other.parts.weights, grid) >= self.limits.level:
                return own.left > single(self.m, other.parts).left
        return False

    def is_before(self, candidate: Candidate) -> bool | None:
        """Whether dates say that the candidate was there first; None where they cannot."""
        mine, theirs = self.asked.created, candidate.created
        if not self.dates or mine is None or theirs is None or abs(mine - theirs) < SAME_DAY:
            return None
        return theirs < mine

    def _copied(self, read: Sequence[Reading]) -> Verdict | None:
        equal = [
            one
            for one in read
            if SPACING[one.parts.precision] <= SPACING[self.m.precision] and equal_share(self.m, one.parts) > 0.9999
        ]
        if not equal:
            return None
        first, *others = sorted(equal, key=lambda one: (-SPACING[one.parts.precision], age(one.candidate)))
        if self.m.precision != first.parts.precision:
            left = single(self.m, first.parts).left
            because = f"the same weights, stored as {self.m.precision}"
            return one_link(first, RECAST, 1.0, left, because, True, others)
        direction = self.is_before(first.candidate) is not None
        return one_link(first, COPY, 1.0, 0.0, "the same weights", direction, others)

    def _quantised(self, read: Sequence[Reading]) -> Verdict | None:
        """Its weights stand on the levels of a quantiser; the source is the model that rounds to them."""
        if self.grid is None:
            return None
        shares = [
            (level_share(self.m, one.parts.weights, self.grid), one) for one in read if grid_of(one.parts) is None
        ]
        of_base = level_share(self.m, self.base, self.grid)
        best = max((share for share, _ in shares), default=0.0)
        because = (
            "its weights stand on the levels of " + ("8-bit" if self.grid.form == "int8" else "4-bit") + " numbers"
        )
        if max(best, of_base) < self.limits.level:
            return None
        if of_base >= best:
            return Verdict((Link(None, QUANTISED, 1.0, 1.0, because),), settled=True)
        first, *others = sorted(
            (one for share, one in shares if share >= best - 1e-6), key=lambda one: age(one.candidate)
        )
        return one_link(first, QUANTISED, 1.0, single(self.m, first.parts).left, because, True, others)

    def _summed(self, read: Sequence[Reading]) -> Verdict | None:
        """An exact sum of others' changes: linear, task arithmetic, SLERP."""
        limits = self.limits
        allowed = limits.exact + limits.noise * self.noise
        if limits.noise * self.noise > limits.most_noise or not read:
            return None
        distinct = _distinct(read)
        found = [
            one
            for one in Combinations(self.m, [reading.parts for reading in distinct], self.base).all_of(
                limits.most_parents
            )
            if one.left <= allowed and self._is_plausible(one, distinct)
        ]
        if not found:
            return None
        fewest = min(len(one.members) for one in found)
        members = {member for one in found for member in one.members if len(one.members) == fewest}
        merged = self._merged(members, distinct)
        best = min(
            found,
            key=lambda one: (
                len(one.members),
                len(merged.intersection(one.members)),
                one.spread > 1e-9,
                one.off > 0,
                _negative(one),
                float(np.abs(one.mean).sum()),
            ),
        )
        chosen = [distinct[member] for member in best.members]
        if len(chosen) == 1 and chosen[0].parts.is_adapter:
            link = Link(chosen[0].candidate, LORA, float(best.mean[0]), best.left, "the adapter's change, added")
            return Verdict((link,), settled=True)
        if best.spread < 1e-9:
            method = "linear" if abs(best.mean.sum() - 1) < 5e-3 else "task arithmetic"
        else:
            method = "slerp" if len(chosen) == 2 else "layer by layer"
        links = tuple(
            Link(one.candidate, MERGE, float(weight), best.left, "an exact sum of their changes", method)
            for one, weight in zip(chosen, best.mean, strict=True)
        )
        return Verdict(links, settled=True)

    def _merged(self, members: Collection[int], read: Sequence[Reading]) -> set[int]:
        """Which of these are themselves exact sums, by one recipe, of two or three others of them."""
        found = set()
        for member in members if len(members) > 2 else ():
            m, others = read[member].parts, [read[other].parts for other in members if other != member]
            share = self.limits.noise * rounding(m) / max(energy(m.deltas), 1e-300)
            sums = Combinations(m, others, self.base)
            tried = (
                sums.even(chosen) for count in (2, 3) for chosen in itertools.combinations(range(len(others)), count)
            )
            if any(one.left <= self.limits.exact + share and not _negative(one) for one in tried):
                found.add(member)
        return found

    def _is_plausible(self, found: Combination, read: Sequence[Reading]) -> bool:
        """Whether somebody might have merged like this: no weight that is nothing, none that only cancels another.

        One author's runs on one data set within a day fit each other almost exactly, in every matrix another way: of
        these only one recipe for all matrices counts.
        """
        limits = self.limits
        if (np.abs(found.mean) < limits.least_weight).any() or (np.abs(found.mean) > limits.most_weight).any():
            return False
        if found.off > 5e-3 or (not self.dates and _negative(found)):
            return False
        if len(found.members) == 1 and found.spread > 1e-3:
            return False
        is_sweep = all(self._is_sister(read[member].candidate) for member in found.members)
        return not (is_sweep and found.spread > 1e-3)

    def _is_sister(self, other: Candidate) -> bool:
        mine, theirs = self.asked.created, other.created
        near = mine is None or theirs is None or abs(mine - theirs) <= timedelta(hours=self.limits.same_hours)
        return near and other.author == self.asked.author and other.datasets == self.asked.datasets

    def _lora(self, read: Sequence[Reading]) -> Verdict | None:
        """What was added is of low rank and zero elsewhere: a LoRA, on the base or on one of the models."""
        if self.m.is_adapter:
            return None
        of_base = self._rank_over(None)
        found = [(rank, one) for one in read if (rank := self._rank_over(one)) is not None]
        better = [(rank, one) for rank, one in found if of_base is None or rank <= 0.7 * of_base]
        if better:
            rank, first = min(better, key=lambda pair: (pair[0], age(pair[1].candidate)))
            others = [one for other, one in better if other == rank and one is not first]
            seen = single(self.m, first.parts)
            turned = abs(seen.cosine) > abs(seen.reverse)
            if turned and self.is_before(first.candidate) is None:
                return None
            direction = self.is_before(first.candidate) is not None or not turned
            return one_link(first, LORA, 1.0, seen.left, f"the difference is of rank {rank}", direction, others)
        if of_base is None:
            return None
        link = Link(None, LORA, 1.0, 1.0, f"the change is of rank {of_base}")
        return Verdict((link,), settled=len(read) >= 2)

    def _rank_over(self, one: Reading | None) -> int | None:
        """The rank of W_m − W_p where it is low in every matrix that differs; None where it is not."""
        key = -1 if one is None else one.candidate.model_id
        if key not in self._low_ranks:
            others = self.base if one is None else one.parts.weights
            differences = (weight - others[name] for name, weight in self.m.weights.items())
            size = sum(weight.size for weight in self.m.weights.values())
            most = min(min(weight.shape) for weight in self.m.weights.values()) * self.limits.rank_share
            ranks = ranks_of(differences, (rounding(self.m) + 1e-14 * energy(self.m.weights)) / size, most)
            # A smooth spectrum whose tail rounding hides is no LoRA.
            is_low = bool(ranks) and float(np.median([one.drop for one in ranks])) >= self.limits.rank_drop
            self._low_ranks[key] = [one.rank for one in ranks] if is_low else None
        found = self._low_ranks[key]
        return max(found) if found else None

    def _sparse(self, read: Sequence[Reading]) -> Verdict | None:
        """A merge that drops entries: parents whose entries it holds times one number."""
        own = float(self.entries.nothing.mean())
        distinct = [one for one in _distinct(read) if own > unchanged_share(one.parts, self.base) + 0.005]
        left = ~self.entries.nothing
        self.unexplained = None
        chosen: list[tuple[Reading, float]] = []
        while distinct:
            found = [(self.entries.atom(one.parts, left), one) for one in distinct]
            atom, one = max(found, key=lambda pair: pair[0].share)
            if atom.share < self.limits.atom or atom.contrast < self.limits.atom_contrast:
                break
            chosen.append((one, atom.share))
            left &= ~atom.explained
            distinct = [other for other in distinct if other is not one]
        if not chosen:
            return None
        self.unexplained = left
        parents = [one for one, _ in chosen]
        sum_ = Combinations(self.m, [one.parts for one in parents], self.base).of(range(len(parents)))
        links = tuple(
            Link(
                one.candidate, MERGE, float(weight), sum_.left, f"{share:.0%} of its entries, untouched", "ties or dare"
            )
            for (one, share), weight in zip(chosen, sum_.mean, strict=True)
        )
        return Verdict(links, settled=float(left.mean()) < 0.3 * float((~self.entries.nothing).mean()))

    def _continued(self, read: Sequence[Reading]) -> Verdict | None:
        """The nearest model whose training this one went through: by what is equal, else by size and angle."""
        for reading in read:
            if reading.candidate.model_id not in self._weighed:
                self._weighed[reading.candidate.model_id] = self._relative(reading)
        found = [one for reading in read if (one := self._weighed[reading.candidate.model_id]) is not None]
        found = [one for one in found if not self._is_merge_of_asked(one.reading, read)]
        chosen = self.relatives.parent(found)
        if chosen is None:
            return None
        first, others = chosen
        verdict = one_link(first.reading, first.kind, 1.0, first.left, first.because, first.direction, others)
        return Verdict((replace(verdict.links[0], proven=first.is_proven, signals=first.signals),), settled=False)

    def _relative(self, reading: Reading) -> Relative | None:
        """The reading as a possible ancestor, None where it cannot be one."""
        limits = self.limits
        seen = single(self.m, reading.parts)
        kin = kinship(self.m, reading.parts, self.tokens)
        if kin is not None and kin.only_p > max(2, 0.01 * (kin.shared + kin.both)):
            return None  # p was trained on words that m still has as the base
        is_upright = abs(seen.cosine) < abs(seen.reverse)
        is_before = self.is_before(reading.candidate) is not None
        is_told_by_words = kin is not None and kin.only_m > limits.shared
        if not is_before and not is_told_by_words and abs(seen.cosine) > abs(seen.reverse) + limits.turned:
            return None  # of the two, p looks like the one that was continued from m
        direction = is_before or is_upright or is_told_by_words
        words, flatter = self.relatives.beside_base(reading)
        signals: dict[str, float] = {
            "left": seen.left, "cosine": seen.cosine, "reverse": seen.reverse, "equal": seen.equal, "words": words,
            "flatter": flatter, "sister": self._is_sister(reading.candidate),
        }  # fmt: skip
        if kin is not None:
            signals |= {"shared": kin.shared, "only_m": kin.only_m, "only_p": kin.only_p, "both": kin.both}
        shared = kin.shared if kin else 0
        if seen.equal > 0:
            what = "matrices of its training, inherited"
            return Relative(reading, seen.left, what, direction, True, shared, signals)
        if kin is not None and kin.shared >= limits.shared:
            is_weak = kin.shared < limits.weak_share * (kin.shared + kin.both)
            if is_weak and seen.left > limits.weak_near:
                return None
            what = f"{kin.shared} embeddings of its training, inherited"
            return Relative(reading, seen.left, what, direction, not is_weak, kin.shared, signals)
        if seen.left > limits.near or not is_upright:
            return None
        # Trained on along its own way, as on the same data again, it may go on in the parent's direction.
        if abs(seen.cosine) > limits.aligned and not self.relatives.is_nearer_than_base(reading):
            return None
        what = "its change, and one of another direction"
        # Runs from the base with the same data and seed, but another rate or length, look just like that.
        if words >= limits.flat_rows and flatter <= 0.5 - 1 / np.sqrt(words):
            self.sisters.add(reading.candidate.model_id)
            return None  # fewer trainings lie between m and the base than between m and p
        is_told = words >= limits.flat_rows
        if flatter < limits.flatter_than_sister if is_told else self._is_sister(reading.candidate):
            return Relative(reading, seen.left, what, False, False, 0, signals, CONTINUED_OR_RUN)
        return Relative(reading, seen.left, what, True, False, 0, signals)

    def _is_merge_of_asked(self, one: Reading, read: Sequence[Reading]) -> bool:
        """Whether the other, uploaded on the same day or at an unknown time, is a sum of this model and another."""
        others = [other for other in read if other is not one]
        if self.is_before(one.candidate) is not None or not others:
            return False
        sums = Combinations(one.parts, [self.m, *(other.parts for other in others)], self.base)
        allowed = self.limits.exact + self.limits.noise * rounding(one.parts) / max(energy(one.parts.deltas), 1e-300)
        pairs = [
            sums.of((0, place), spherical=spherical)
            for place in range(1, len(others) + 1)
            for spherical in (False, True)
        ]
        return any(
            pair.left <= allowed and pair.off < 5e-3 and bool((pair.mean > self.limits.least_weight).all())
            for pair in pairs
        )


def _distinct(read: Sequence[Reading]) -> list[Reading]:
    """Models that repeat each other count once: the earliest of each."""
    kept: list[Reading] = []
    for one in sorted(read, key=lambda reading: age(reading.candidate)):
        if not any(_repeats(one, other) for other in kept):
            kept.append(one)
    return kept


def _repeats(one: Reading, other: Reading) -> bool:
    seen = single(one.parts, other.parts)
    return seen.left < 1e-2 and abs(seen.cosine) < 0.5


def _negative(found: Combination) -> bool:
    return bool((found.mean < 0).any())
