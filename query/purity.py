"""Purity: how far the nearest neighbours of a model were tuned on the same datasets.

Arrays in, numbers out: no database, no index, no files. The definition is the "Purity" paragraph of the
design: the candidates C_f of a model f are the other models with a dataset that are neither copies nor
unrelated, one per duplicate group; m_f of them share a dataset with f; purity_f is the share of matches
among the m_f nearest. A model with m_f = 0 is not scored but stays a candidate of the others.

Memory: one table of neighbour ranks, 2 n² bytes (200 MB at 10,000 models), and blocks of a few megabytes.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

_BLOCK = 1 << 22  # numbers held at a time in a block of the similarity matrix
_TIE = 1e-12  # two means that differ by less are the same sum in another order


@dataclass(frozen=True)
class Population:
    """The models of one base that have a vector; entry i of every field is the same model.

    ``vectors``: (n, d) float32 of unit norm. ``ids``: unique; ties go to the lower one. ``datasets``: names
    each model is known to be tuned on. ``groups``: the duplicate group a model belongs to, or None;
    ``representatives``: whether it stands for its group (the earliest upload). ``names``: what by_model calls
    the models, else their ids.
    """

    vectors: npt.NDArray[np.float32]
    ids: Sequence[int]
    authors: Sequence[str]
    datasets: Sequence[Collection[str]]
    is_copy: Sequence[bool]
    is_unrelated: Sequence[bool]
    groups: Sequence[int | None]
    representatives: Sequence[bool]
    names: Sequence[str] | None = None


@dataclass(frozen=True)
class DatasetPurity:
    """Purity over the models of one dataset, matching on that dataset alone."""

    dataset: str
    models: int  # scored
    purity: float
    chance: float


@dataclass(frozen=True)
class ModelPurity:
    """One scored model: ``neighbours`` is how many were looked at (m_f, or k)."""

    model: int | str
    datasets: tuple[str, ...]
    neighbours: int
    purity: float
    chance: float


@dataclass(frozen=True)
class Score:
    """Purity in one of its two forms. Undefined numbers are None, and ``note`` says why.

    ``models`` and ``datasets`` count what was scored: models with at least one match among their candidates,
    and the datasets (rows of ``by_dataset``) on which at least one model could be scored. ``candidates``
    counts the models that took part as possible neighbours. ``p_value`` is (1 + #≥)/(1 + draws).
    """

    models: int
    candidates: int
    datasets: int
    purity: float | None = None
    purity_by_dataset_mean: float | None = None
    chance: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    p_value: float | None = None
    by_dataset: tuple[DatasetPurity, ...] = ()
    note: str = ""
    by_model: tuple[ModelPurity, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class PurityResult:
    """Purity of one base in one representation, over all neighbours and over other authors' only."""

    base: str
    representation: str
    k: int | None
    score: Score
    cross_author: Score

    def to_dict(self, *, by_model: bool = False) -> dict[str, Any]:
        """The documented JSON object; the rows of single models only on request."""
        result: dict[str, Any] = {"base": self.base, "representation": self.representation, "k": self.k}
        whole, others = asdict(self.score), asdict(self.cross_author)
        models = whole.pop("by_model")
        others.pop("by_model")
        by_dataset = whole.pop("by_dataset")
        result |= whole | {"cross_author": others, "by_dataset": by_dataset}
        return result | ({"by_model": models} if by_model else {})


def measure_purity(
    population: Population,
    *,
    base: str = "",
    representation: str = "",
    k: int | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> PurityResult:
    """Purity of ``population``, plain and cross-author, with bootstrap intervals and permutation p-values.

    ``k``: look at the k nearest instead of the m_f nearest (at all candidates where there are fewer).
    Cosine similarity is computed in float64 and rounded to float32, so that equal similarities are equal
    whatever the order of summation, and ties go to the lower id. Raises ValueError on vectors that are not
    finite, ids that repeat, fields of different lengths, k < 1 or draws < 1.

    Interval: percentiles 2.5 and 97.5 of the mean over authors resampled with replacement (over models where
    all scored models are one author's).

    p, plain: the label sets are permuted freely among the candidates. p, cross-author: models of one author
    with one label set (a sweep) are never independent, so they move as one and keep a common label set, and
    an author's list of label sets moves as a whole to another author with a list of the same length, where it
    meets that author's sweeps in random order. These moves form a group, every list stays one author's, and
    no list has to be cut or stretched to fit; so the test is exact for "which labels an author's sweeps carry
    has nothing to do with where their vectors lie", whatever the sizes of the sweeps and however alike the
    vectors of one author. Compared is purity minus chance: a popular dataset that lands on a large sweep
    raises both. (With the plain permutation chance is constant, and this is purity itself.)
    """
    if (k is not None and k < 1) or draws < 1:
        raise ValueError("k and draws must be at least 1")
    rows, labels = _candidates(population)
    ranks = _neighbour_ranks(np.asarray(population.vectors), rows)
    names = [population.ids[row] if population.names is None else population.names[row] for row in rows]
    author_codes = _codes([population.authors[row] for row in rows])
    alone = np.arange(len(rows), dtype=np.intp)
    scores = []
    for cross, excluded in enumerate((alone, author_codes)):
        _leave_out(ranks, excluded)  # leaving out the author also leaves out the model itself
        trial = _Trial(ranks, excluded, labels, k)
        scores.append(_score(trial, author_codes, names, draws, [seed, cross]))
    return PurityResult(base, representation, k, scores[0], scores[1])


def _candidates(population: Population) -> tuple[Integers, list[frozenset[str]]]:
    """Rows of the candidates in order of id, and their datasets, those of a duplicate group united.

    Flagged models leave first. Should a group's representative be among them, the lowest id stands in.
    """
    count = len(population.ids)
    if any(len(values) != count for values in vars(population).values() if values is not None):
        raise ValueError("the fields of a population must have one entry per model")
    if len(set(population.ids)) != count:
        raise ValueError("ids must be unique")
    stand_in: dict[int, int] = {}
    united: dict[int, set[str]] = {}
    for row in sorted(
        range(count), key=lambda row: (not population.representatives[row], population.ids[row])
    ):
        if population.is_copy[row] or population.is_unrelated[row] or not np.any(population.vectors[row]):
            continue
        group = population.groups[row]
        first = row if group is None else stand_in.setdefault(group, row)
        united.setdefault(first, set()).update(population.datasets[row])
    rows = sorted((row for row in united if united[row]), key=lambda row: population.ids[row])
    return np.array(rows, dtype=np.intp), [frozenset(united[row]) for row in rows]


def _codes(values: Sequence[Any]) -> Integers:
    """Integers from 0 in order of first appearance, equal where the values are."""
    seen: dict[Any, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.intp)


def _neighbour_ranks(vectors: npt.NDArray[np.float32], rows: Integers) -> Ranks:
    """(n, n): the place of each candidate (column) in each candidate's (row's) list, nearest first."""
    count = len(rows)
    ranks = np.empty((count, count), np.uint16 if count < 2**16 - 1 else np.uint32)
    places = np.arange(count, dtype=ranks.dtype)
    step = max(1, _BLOCK // max(count, vectors.shape[1], 1))
    for start in range(0, count, step):
        block = vectors[rows[start : start + step]].astype(np.float64)
        if not np.isfinite(block).all():
            raise ValueError("a vector is not finite")
        similarity = np.empty((len(block), count), np.float32)
        for left in range(0, count, step):
            similarity[:, left : left + step] = block @ vectors[rows[left : left + step]].astype(np.float64).T
        similarity += 0.0  # -0.0 and 0.0 are equal but differ in their bits
        bits = similarity.view(np.int32)
        # Bits of a float as an integer that falls while the float rises; the column below breaks ties by id.
        falling = ~np.where(bits < 0, ~bits, bits | np.int32(-(2**31))).view(np.uint32)
        keys = (falling.astype(np.uint64) << np.uint64(32)) | np.arange(count, dtype=np.uint64)
        keys.sort(axis=1)
        order = (keys & np.uint64(2**32 - 1)).astype(np.intp)
        np.put_along_axis(ranks[start : start + step], order, places[None], axis=1)
    return ranks


def _leave_out(ranks: Ranks, excluded: Integers) -> None:
    """Close the ranks up, in place, as if a row's own group (equal ``excluded``) were not in its list.

    Those left out, now or before, hold the largest value of the dtype.
    """
    out = np.iinfo(ranks.dtype).max
    for members in _members(excluded):
        for part in np.array_split(members, max(1, len(members) * len(ranks) // _BLOCK)):
            table = ranks[part].astype(np.int64)
            gone = np.zeros((len(part), len(ranks) + 1), np.int64)
            np.put_along_axis(gone, np.minimum(table[:, members], len(ranks)), 1, axis=1)
            gone[:, -1] = 0
            shift = np.cumsum(gone, axis=1)
            closed = table - np.take_along_axis(shift, np.minimum(table, len(ranks)), axis=1)
            closed[table == out] = out
            closed[:, members] = out
            ranks[part] = closed


def _members(codes: Integers) -> list[Integers]:
    """For every code from 0 the indices that carry it."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes))[:-1]) if len(codes) else []


def _count_below(ranks: Ranks, rows: Integers, columns: Integers, limits: Integers) -> Integers:
    """How many of ``columns`` rank before ``limits`` in each of ``rows``."""
    counts = np.empty(len(rows), dtype=np.intp)
    flat, width = ranks.reshape(-1), len(ranks)
    step = max(1, (1 << 17) // max(1, len(columns)))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        block = flat.take(rows[part, None] * width + columns)
        # A block is at most 2^17 wide and a row of it at most n: both fit the sum's type.
        counts[part] = (block < limits[part, None]).view(np.uint8).sum(axis=1, dtype=np.uint32)
    return counts


class _Trial:
    """Scores label sets laid on the models: those observed, and any that a permutation deals out.

    Label sets are reduced to the datasets that can match at all (held outside one group of ``excluded``) and
    numbered: ``kind`` of a model. A sweep is the models of one group with one label set.
    """

    def __init__(self, ranks: Ranks, excluded: Integers, labels: list[frozenset[str]], k: int | None) -> None:
        self.ranks, self.excluded, self.labels = ranks, excluded, labels
        holders = Counter(
            name for name, _ in {(n, g) for g, ls in zip(excluded, labels, strict=True) for n in ls}
        )
        self.names = sorted(name for name, groups in holders.items() if groups > 1)
        number = {name: index for index, name in enumerate(self.names)}
        reduced = [tuple(sorted(number[name] for name in names if name in number)) for names in labels]
        self.kinds = _codes(reduced)
        self.kind_labels = list(dict.fromkeys(reduced))
        self.carries = np.zeros((len(self.kind_labels), len(self.names) + 1), bool)
        for kind, datasets in enumerate(self.kind_labels):
            self.carries[kind, list(datasets)] = True
        self.share = np.zeros((len(self.kind_labels),) * 2, bool)
        for dataset in range(len(self.names)):
            carriers = np.flatnonzero(self.carries[:, dataset])
            self.share[np.ix_(carriers, carriers)] = True
        self.share_left, self.share_right = (pairs.astype(np.int32) for pairs in np.nonzero(self.share))

        self.sweeps = _codes(list(zip(excluded.tolist(), labels, strict=True)))
        self.sweep_sizes = np.bincount(self.sweeps)
        first = [members[0] for members in _members(self.sweeps)]
        self.sweep_kinds = self.kinds[first]
        self.lists = _members(excluded[first])  # of every group, its sweeps
        self.own_left, self.own_right = self._pairs_within_lists()
        self.pool = len(ranks) - np.bincount(excluded)[excluded]  # |C_f|
        self.looked_at = None if k is None else np.minimum(k, self.pool)

    def _pairs_within_lists(self) -> tuple[Integers, Integers]:
        empty = [np.empty(0, dtype=np.intp)]
        left = [np.repeat(sweeps, len(sweeps)) for sweeps in self.lists]
        right = [np.tile(sweeps, len(sweeps)) for sweeps in self.lists]
        return np.concatenate(left or empty), np.concatenate(right or empty)

    def matching(self, sweep_kinds: Integers) -> Integers:
        """m_f: how many candidates share a dataset with each model when the sweeps are of these kinds."""
        sizes = np.bincount(sweep_kinds, weights=self.sweep_sizes, minlength=len(self.kind_labels))
        everyone = np.bincount(self.share_left, weights=sizes[self.share_right], minlength=len(sizes))
        shared = self.share[sweep_kinds[self.own_left], sweep_kinds[self.own_right]]
        own = np.bincount(self.own_left, weights=shared * self.sweep_sizes[self.own_right])
        return (everyone[sweep_kinds] - own).astype(np.intp)[self.sweeps]

    def evaluate(self, sweep_kinds: Integers) -> tuple[Integers, Integers, Floats, Floats]:
        """Scored models, how many neighbours each was looked at with, their purity and their chance."""
        matching = self.matching(sweep_kinds)
        scored = np.flatnonzero(matching)
        limits = matching if self.looked_at is None else self.looked_at
        hits = self._hits(sweep_kinds[self.sweeps], scored, limits)
        return scored, limits[scored], hits / limits[scored], matching[scored] / self.pool[scored]

    def _hits(self, kinds: Integers, scored: Integers, limits: Integers) -> Integers:
        """Matches among the first ``limits`` neighbours of each scored model.

        Two ways, by cost: where a kind has many models and few partners, look up those partners' ranks;
        otherwise compare whole rows with the limit and keep the partners by a bit mask.
        """
        count = len(self.ranks)
        hits = np.zeros(count, dtype=np.intp)
        members = _members(np.append(kinds, len(self.kind_labels)))  # the extra code keeps every kind's slot
        sizes = np.array([len(positions) for positions in members[:-1]])
        partners = np.bincount(self.share_left, weights=sizes[self.share_right], minlength=len(sizes))
        few = (sizes > 0) & (partners > 0) & (1.5e4 + 2.0 * sizes * partners < 0.35 * sizes * count)
        for kind in np.flatnonzero(few):
            rows = members[kind]
            columns = np.concatenate([members[other] for other in np.flatnonzero(self.share[kind])])
            hits[rows] = _count_below(self.ranks, rows, columns, limits[rows])
        many = scored[~few[kinds[scored]]]
        if len(many):
            self._hits_by_mask(kinds, many, limits, hits)
        return hits[scored]

    def _hits_by_mask(self, kinds: Integers, rows: Integers, limits: Integers, hits: Integers) -> None:
        wanted = np.flatnonzero(self.carries[kinds[rows]].any(axis=0))
        place = np.full(len(self.names) + 1, len(wanted))
        place[wanted] = np.arange(len(wanted))
        carried = np.append(wanted, len(self.names))  # the last column is carried by no one: padding
        masks = np.packbits(self.carries.T[carried].take(kinds, axis=1), axis=1)
        for start in range(0, len(rows), 32):
            part = rows[start : start + 32]
            own = [self.kind_labels[kind] for kind in kinds[part]]
            longest = max(map(len, own))
            padded = place[[labels + (len(self.names),) * (longest - len(labels)) for labels in own]]
            mask = masks[padded[:, 0]]
            for column in range(1, longest):
                mask |= masks[padded[:, column]]
            below = np.packbits(self.ranks[part] < limits[part, None], axis=1)
            hits[part] = np.bitwise_count(below & mask).sum(axis=1, dtype=np.intp)

    def dataset_scores(self) -> Iterator[DatasetPurity]:
        """Each dataset on its own, among all candidates."""
        holders: dict[str, list[int]] = {}
        for position, names in enumerate(self.labels):
            for name in names:
                holders.setdefault(name, []).append(position)
        for name in self.names:
            members = np.array(holders[name], dtype=np.intp)
            matching = len(members) - np.bincount(self.excluded[members])[self.excluded[members]]
            limits = matching if self.looked_at is None else self.looked_at[members]
            kept = matching > 0
            hits = _count_below(self.ranks, members[kept], members, limits[kept])
            chance = matching[kept] / self.pool[members[kept]]
            yield DatasetPurity(name, len(hits), float(np.mean(hits / limits[kept])), float(np.mean(chance)))

    def permuted(self, rng: np.random.Generator) -> Integers:
        """The kinds of the sweeps after one random move (see ``measure_purity``)."""
        moved = self.sweep_kinds.copy()
        for sweeps in self.strata:
            lists = self.sweep_kinds[sweeps][rng.permutation(len(sweeps))]
            moved[sweeps] = rng.permuted(lists, axis=1)
        return moved

    @property
    def strata(self) -> list[Integers]:
        """(groups, sweeps each) for every length of list."""
        lengths = sorted({len(sweeps) for sweeps in self.lists})
        return [np.array([s for s in self.lists if len(s) == length]) for length in lengths]


def _score(
    trial: _Trial, authors: Integers, names: Sequence[int | str], draws: int, seed: Sequence[int]
) -> Score:
    """Everything that is said of one trial as observed."""
    candidates = len(names)
    scored, neighbours, purity, chance = trial.evaluate(trial.sweep_kinds)
    if not len(scored):
        return Score(0, candidates, 0, note=_why_nothing(trial, authors))
    by_dataset = sorted(trial.dataset_scores(), key=lambda row: (-row.models, row.dataset))
    low, high = _bootstrap(purity, authors[scored], draws, np.random.default_rng([*seed, 0]))
    return Score(
        models=len(scored),
        candidates=candidates,
        datasets=len(by_dataset),
        purity=float(purity.mean()),
        purity_by_dataset_mean=float(np.mean([row.purity for row in by_dataset])),
        chance=float(chance.mean()),
        ci_low=low,
        ci_high=high,
        p_value=_p_value(trial, float((purity - chance).mean()), draws, [*seed, 1]),
        by_dataset=tuple(by_dataset),
        note=_caution(trial, chance),
        by_model=tuple(
            ModelPurity(names[f], tuple(sorted(trial.labels[f])), int(looked), float(p), float(c))
            for f, looked, p, c in zip(scored, neighbours, purity, chance, strict=True)
        ),
    )


def _why_nothing(trial: _Trial, authors: Integers) -> str:
    if not len(authors):
        return "No model has both a vector and a known dataset."
    if len(authors) == 1:
        return "Only one model has both a vector and a known dataset."
    if len(set(trial.excluded.tolist())) == 1:
        return "All models with a known dataset are by one author."
    return (
        "No dataset has models by two authors."
        if trial.excluded is authors
        else "No two models share a dataset."
    )


def _caution(trial: _Trial, chance: Floats) -> str:
    """What a reader must know before quoting the numbers."""
    if chance.min() == 1.0:
        return "Every candidate of every scored model matches it: purity is 1 whatever the vectors are."
    ways = math.prod(math.factorial(len(s)) * math.factorial(s.shape[1]) ** len(s) for s in trial.strata)
    return f"Only {ways} ways to exchange the labels: p cannot be below {1 / ways:.2g}." if ways < 20 else ""


def _bootstrap(
    purity: Floats, authors: Integers, draws: int, rng: np.random.Generator
) -> tuple[float, float]:
    """95 % interval of the mean when authors are drawn again (models, where there is one author)."""
    units = _codes(authors.tolist()) if len(set(authors.tolist())) > 1 else np.arange(len(purity))
    sums, sizes = np.bincount(units, weights=purity), np.bincount(units)
    means = np.empty(draws)
    for draw in range(draws):
        chosen = rng.integers(len(sums), size=len(sums))
        means[draw] = sums[chosen].sum() / sizes[chosen].sum()
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def _p_value(trial: _Trial, observed: float, draws: int, seed: Sequence[int]) -> float:
    """(1 + permutations at least as extreme) / (1 + permutations); one generator a draw, so threads change nothing."""

    def at_least(draw: int) -> bool:
        kinds = trial.permuted(np.random.default_rng([*seed, draw]))
        _, _, purity, chance = trial.evaluate(kinds)
        return float((purity - chance).mean()) >= observed - _TIE

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return (1 + sum(pool.map(at_least, range(draws)))) / (1 + draws)
