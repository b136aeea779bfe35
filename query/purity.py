"""Purity: how far the nearest neighbours of a model were tuned on the same datasets.

Arrays in, numbers out: no database, no index, no files. The definition is the "Purity" paragraph of the
design: the candidates C_f of a model f are the other models with a dataset that are neither copies nor
unrelated, one per duplicate group; m_f of them share a dataset with f; purity_f is the share of matches
among the m_f nearest. A model with m_f = 0 is not scored but stays a candidate of the others.

Memory: one table of neighbours in order, 2 n² bytes (200 MB at 10,000 models), and blocks of a few megabytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]
Order = npt.NDArray[np.unsignedinteger[Any]]

_BLOCK = 1 << 21  # numbers held at a time in a block of the similarity matrix
_TIE = 1e-12  # two means that differ by less are the same sum in another order


class Population(Protocol):
    """The models of one base that have a vector; entry i of every column is the same model.

    ``vectors``: (n, d) float32 of unit norm. ``ids``: unique; ties go to the lower one. ``datasets``: names
    each model is known to be tuned on. ``group``: the duplicate group a model belongs to, or None;
    ``representative``: whether it stands for its group (the earliest upload).
    """

    base: str
    representation: str
    vectors: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64]
    models: list[str]
    authors: list[str]
    datasets: list[frozenset[str]]
    is_copy: npt.NDArray[np.bool_]
    is_unrelated: npt.NDArray[np.bool_]
    group: list[int | None]
    representative: npt.NDArray[np.bool_]


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

    model: str
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
class PurityResult(Score):
    """Purity of one base in one representation; ``cross_author`` is the same among other authors' models."""

    base: str = ""
    representation: str = ""
    k: int | None = None
    cross_author: Score = Score(0, 0, 0)

    def to_dict(self, *, by_model: bool = False) -> dict[str, Any]:
        """The documented JSON object; the rows of single models only on request."""
        result: dict[str, Any] = {"base": self.base, "representation": self.representation, "k": self.k}
        result |= _numbers(self)
        result["cross_author"] = _numbers(self.cross_author) | {"by_dataset": _rows(self.cross_author.by_dataset)}
        result["by_dataset"] = _rows(self.by_dataset)
        return result | ({"by_model": _rows(self.by_model)} if by_model else {})


def _numbers(score: Score) -> dict[str, Any]:
    names = [field.name for field in fields(Score) if field.name not in ("by_dataset", "by_model")]
    return {name: getattr(score, name) for name in names}


def _rows(rows: Sequence[DatasetPurity] | Sequence[ModelPurity]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def purity(population: Population, *, k: int | None = None, draws: int = 1000, seed: int = 0) -> PurityResult:
    """Purity of ``population``, plain and cross-author, with bootstrap intervals and permutation p-values.

    ``k``: look at the k nearest instead of the m_f nearest (at all candidates where there are fewer).
    Similarities are computed in float64 and compared in steps of 2^-32 (2.3e-10): far finer than float32, far
    coarser than the noise of summing in another order, so that equal similarities are equal whatever the
    blocks; ties go to the lower id. Raises ValueError on vectors that are not finite, ids that repeat, columns
    of different lengths, k < 1 or draws < 1.

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
    if len(rows):
        order = _neighbour_order(population.vectors, rows)
        authors = _codes([population.authors[row] for row in rows])
        names = [population.models[row] for row in rows]
        scores = []
        # Leaving out a model's author also leaves out the model, so one table serves both in turn.
        for form, excluded in enumerate((np.arange(len(rows), dtype=np.intp), authors)):
            _leave_out(order, excluded)
            trial = _Trial(order, excluded, labels, k)
            scores.append(_score(trial, authors, names, draws, np.random.default_rng([seed, form])))
    else:
        scores = [Score(0, 0, 0, note="No model has both a vector and a known dataset.")] * 2
    return PurityResult(
        **vars(scores[0]),
        base=population.base,
        representation=population.representation,
        k=k,
        cross_author=scores[1],
    )


def _candidates(population: Population) -> tuple[Integers, list[frozenset[str]]]:
    """Rows of the candidates in order of id, and their datasets, those of a duplicate group united.

    Flagged models leave first. Should a group's representative be among them, the lowest id stands in.
    """
    ids = [int(identity) for identity in population.ids]
    columns = (
        "vectors",
        "models",
        "authors",
        "datasets",
        "is_copy",
        "is_unrelated",
        "group",
        "representative",
    )
    if any(len(getattr(population, column)) != len(ids) for column in columns) or len(set(ids)) != len(ids):
        raise ValueError("every model needs one entry in every column, and an id of its own")
    leaders: dict[int, int] = {}
    united: dict[int, set[str]] = {}
    for row in sorted(range(len(ids)), key=lambda row: (not population.representative[row], ids[row])):
        if population.is_copy[row] or population.is_unrelated[row] or not np.any(population.vectors[row]):
            continue
        group = population.group[row]
        leader = row if group is None else leaders.setdefault(group, row)
        united.setdefault(leader, set()).update(population.datasets[row])
    rows = sorted((row for row in united if united[row]), key=ids.__getitem__)
    return np.array(rows, dtype=np.intp), [frozenset(united[row]) for row in rows]


def _codes(values: Sequence[Any]) -> Integers:
    """Integers from 0 in order of first appearance, equal where the values are."""
    seen: dict[Any, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.intp)


def _neighbour_order(vectors: npt.NDArray[np.float32], rows: Integers) -> Order:
    """(n, n): for each candidate (row) all candidates, itself included, nearest first."""
    count = len(rows)
    order = np.empty((count, count), np.uint16 if count < 2**16 else np.uint32)
    step = max(1, _BLOCK // max(count, vectors.shape[1]))
    for start in range(0, count, step):
        block = vectors[rows[start : start + step]].astype(np.float64)
        if not np.isfinite(block).all():
            raise ValueError("a vector is not finite")
        similarity = np.empty((len(block), count))
        for left in range(0, count, step):
            similarity[:, left : left + step] = block @ vectors[rows[left : left + step]].astype(np.float64).T
        # One integer to sort by: how far below 2 the similarity is, in steps of 2^-32, then the column's number,
        # which breaks ties by id. Sorting such keys is seven times faster than a stable argsort.
        steps = np.rint(similarity.clip(-1.9, 1.9, out=similarity) * 2.0**32)
        keys = ((2.0**33 - steps).astype(np.uint64) << np.uint64(30)) | np.arange(count, dtype=np.uint64)
        keys.sort(axis=1)
        order[start : start + step] = keys & np.uint64(2**30 - 1)
    return order


def _leave_out(order: Order, excluded: Integers) -> None:
    """Take a row's own group (equal ``excluded``) out of its list, in place.

    The list closes up; its end is filled with n, which stands for nobody.
    """
    count = len(order)
    group_of = np.append(excluded, -1)  # nobody, left out before, belongs to no group
    sizes = np.bincount(excluded)[excluded]
    for size in np.unique(sizes):  # rows that lose equally many can be closed up together
        alike = np.flatnonzero(sizes == size)
        step = max(1, _BLOCK // count)
        for part in (alike[start : start + step] for start in range(0, len(alike), step)):
            lists = order[part]
            kept = lists[group_of[lists] != excluded[part, None]].reshape(len(part), -1)
            order[part, : kept.shape[1]] = kept
            order[part, kept.shape[1] :] = count


def _members(codes: Integers) -> list[Integers]:
    """For every code from 0 the indices that carry it."""
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes)).tolist()
    return [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _count_matches(
    order: Order, rows: Integers, limits: Integers, totals: Integers, is_match: Callable[..., Booleans]
) -> Integers:
    """How many of the first ``limits`` neighbours of ``rows`` match, where ``totals`` of all neighbours do.

    ``is_match(rows, neighbours)`` says which of the (rows, width) neighbours match. Where a limit lies beyond
    the middle of the list, the rest of the list is looked at instead.
    """
    count = len(order)
    counts = np.empty(len(rows), dtype=np.intp)
    beyond = limits * 2 > count
    for chosen, widths in ((np.flatnonzero(~beyond), limits), (np.flatnonzero(beyond), count - limits)):
        chosen = chosen[np.argsort(widths[chosen], kind="stable")]
        ascending = widths[chosen]
        start = 0
        while start < len(chosen):
            narrow = int(ascending[start])
            stop = int(np.searchsorted(ascending, 2 * narrow + 16, side="right"))
            stop = start + max(1, min(stop - start, (1 << 17) // max(1, int(ascending[stop - 1]))))
            part, width = chosen[start:stop], int(ascending[stop - 1])
            places = np.arange(width)
            if widths is limits:
                matches = is_match(rows[part], order[rows[part], :width])
                matches &= places < ascending[start:stop, None]
                counts[part] = matches.view(np.uint8).sum(axis=1, dtype=np.uint32)
            else:
                matches = is_match(rows[part], order[rows[part], count - width :])
                matches &= places >= width - ascending[start:stop, None]
                counts[part] = totals[part] - matches.view(np.uint8).sum(axis=1, dtype=np.uint32)
            start = stop
    return counts


def _marked(marks: Booleans) -> Callable[[Integers, Order], Booleans]:
    """A match is whoever is marked, for all rows alike; ``marks`` has an entry for nobody."""
    return lambda rows, neighbours: marks.take(neighbours)


class _Trial:
    """Scores label sets laid on the models: those observed, and any that a permutation deals out.

    Label sets are reduced to the datasets that can match at all (held outside one group of ``excluded``) and
    numbered: ``kind`` of a model. A sweep is the models of one group with one label set.
    """

    def __init__(self, order: Order, excluded: Integers, labels: list[frozenset[str]], k: int | None) -> None:
        self.order, self.excluded, self.labels = order, excluded, labels
        held = {(name, group) for group, names in zip(excluded.tolist(), labels, strict=True) for name in names}
        holders = Counter(name for name, _ in held)
        self.names = sorted(name for name, groups in holders.items() if groups > 1)
        number = {name: index for index, name in enumerate(self.names)}
        reduced = [tuple(sorted(number[name] for name in names if name in number)) for names in labels]
        self.kinds = _codes(reduced)
        self.kind_labels = list(dict.fromkeys(reduced))
        # Nobody, who fills the lists up, has a kind of its own that shares with none.
        self.share = np.zeros((len(self.kind_labels) + 1,) * 2, bool)
        for dataset in range(len(self.names)):
            carriers = [kind for kind, datasets in enumerate(self.kind_labels) if dataset in datasets]
            self.share[np.ix_(carriers, carriers)] = True
        self.share_left, self.share_right = (pairs.astype(np.int32) for pairs in np.nonzero(self.share))
        self.is_one_each = bool((self.share_left == self.share_right).all())

        self.sweeps = _codes(list(zip(excluded.tolist(), labels, strict=True)))
        self.sweep_sizes = np.bincount(self.sweeps)
        first = [members[0] for members in _members(self.sweeps)]
        self.sweep_kinds = self.kinds[first]
        self.lists = _members(excluded[first])  # of every group, its sweeps
        self.own_left, self.own_right = self._pairs_within_lists()
        lengths = sorted({len(sweeps) for sweeps in self.lists})
        # (groups, sweeps each) for every length of list
        self.strata = [np.array([s for s in self.lists if len(s) == length]) for length in lengths]
        self.kind_sizes = self._sizes(self.sweep_kinds)
        self.sharing = self._sharing(self.kind_sizes)
        self.pool = len(order) - np.bincount(excluded)[excluded]  # |C_f|
        self.looked_at = None if k is None else np.minimum(k, self.pool)

    def _pairs_within_lists(self) -> tuple[Integers, Integers]:
        left = [np.repeat(sweeps, len(sweeps)) for sweeps in self.lists]
        right = [np.tile(sweeps, len(sweeps)) for sweeps in self.lists]
        return np.concatenate(left), np.concatenate(right)

    def _sizes(self, sweep_kinds: Integers) -> npt.NDArray[Any]:
        """Models of each kind."""
        return np.bincount(sweep_kinds, weights=self.sweep_sizes, minlength=len(self.share))

    def _sharing(self, kind_sizes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Models that share a dataset with each kind, those of the kind included."""
        return np.bincount(self.share_left, weights=kind_sizes[self.share_right], minlength=len(kind_sizes))

    def matching(self, sweep_kinds: Integers) -> Integers:
        """m_f: how many candidates share a dataset with each model when the sweeps are of these kinds."""
        sizes = self._sizes(sweep_kinds)
        everyone = np.bincount(self.share_left, weights=sizes[self.share_right], minlength=len(sizes))
        shared = self.share[sweep_kinds[self.own_left], sweep_kinds[self.own_right]]
        own = np.bincount(self.own_left, weights=shared * self.sweep_sizes[self.own_right])
        return (everyone[sweep_kinds] - own).astype(np.intp)[self.sweeps]

    def evaluate(self, sweep_kinds: Integers) -> tuple[Integers, Integers, Floats, Floats]:
        """Scored models, how many neighbours each was looked at with, their purity and their chance."""
        matching = self.matching(sweep_kinds)
        scored = np.flatnonzero(matching)
        limits = matching if self.looked_at is None else self.looked_at
        hits = self._hits(sweep_kinds[self.sweeps], scored, limits[scored], matching[scored])
        return scored, limits[scored], hits / limits[scored], matching[scored] / self.pool[scored]

    def _hits(self, kinds: Integers, rows: Integers, limits: Integers, totals: Integers) -> Integers:
        """Matches among the first ``limits`` neighbours of ``rows``."""
        kind_of = np.append(kinds, len(self.kind_labels)).astype(np.int32)
        if self.is_one_each:

            def is_same(rows: Integers, neighbours: Order) -> Booleans:
                return kind_of.take(neighbours) == kind_of[rows, None]

            return _count_matches(self.order, rows, limits, totals, is_same)

        def is_shared(rows: Integers, neighbours: Order) -> Booleans:
            return self.share.take(kind_of[rows, None] * np.intp(len(self.share)) + kind_of.take(neighbours))

        # One look-up a neighbour is cheaper than two, but needs a turn of its own for every kind.
        hits = np.empty(len(rows), dtype=np.intp)
        many = np.bincount(kinds[rows], weights=np.minimum(limits, len(kinds) - limits)) > 8000
        for kind in np.flatnonzero(many):
            part = np.flatnonzero(kinds[rows] == kind)
            matching = self.share[kind].take(kind_of)
            hits[part] = _count_matches(self.order, rows[part], limits[part], totals[part], _marked(matching))
        rest = np.flatnonzero(~many[kinds[rows]])
        hits[rest] = _count_matches(self.order, rows[rest], limits[rest], totals[rest], is_shared)
        return hits

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
            marks = np.zeros(len(self.order) + 1, bool)
            marks[members] = True
            hits = _count_matches(self.order, members[kept], limits[kept], matching[kept], _marked(marks))
            chance = matching[kept] / self.pool[members[kept]]
            yield DatasetPurity(name, len(hits), float(np.mean(hits / limits[kept])), float(np.mean(chance)))

    def permuted(self, rng: np.random.Generator) -> Integers:
        """The kinds of the sweeps after one random move (see ``purity``)."""
        moved = self.sweep_kinds.copy()
        for sweeps in self.strata:
            lists = self.sweep_kinds[sweeps][rng.permutation(len(sweeps))]
            moved[sweeps] = rng.permuted(lists, axis=1)
        return moved


def _score(trial: _Trial, authors: Integers, names: Sequence[str], draws: int, rng: np.random.Generator) -> Score:
    """Everything that is said of one trial as observed."""
    scored, neighbours, purity, chance = trial.evaluate(trial.sweep_kinds)
    if not len(scored):
        return Score(0, len(names), 0, note=_why_nothing(trial, authors))
    by_dataset = sorted(trial.dataset_scores(), key=lambda row: (-row.models, row.dataset))
    low, high = _bootstrap(purity, authors[scored], draws, rng)
    return Score(
        models=len(scored),
        candidates=len(names),
        datasets=len(by_dataset),
        purity=float(purity.mean()),
        purity_by_dataset_mean=float(np.mean([row.purity for row in by_dataset])),
        chance=float(chance.mean()),
        ci_low=low,
        ci_high=high,
        p_value=_p_value(trial, float((purity - chance).mean()), draws, rng),
        by_dataset=tuple(by_dataset),
        note=_caution(trial, chance),
        by_model=tuple(
            ModelPurity(names[f], tuple(sorted(trial.labels[f])), int(looked), float(p), float(c))
            for f, looked, p, c in zip(scored, neighbours, purity, chance, strict=True)
        ),
    )


def _why_nothing(trial: _Trial, authors: Integers) -> str:
    if len(authors) == 1:
        return "Only one model has both a vector and a known dataset."
    if trial.excluded is not authors:
        return "No two models share a dataset."
    if len(set(authors.tolist())) == 1:
        return "All models with a known dataset are by one author."
    return "No dataset has models by two authors."


def _caution(trial: _Trial, chance: Floats) -> str:
    """What a reader must know before quoting the numbers."""
    if chance.min() == 1.0:
        return "Every candidate of every scored model matches it: purity is 1 whatever the vectors are."
    ways = math.prod(math.factorial(len(s)) * math.factorial(s.shape[1]) ** len(s) for s in trial.strata)
    return f"Only {ways} ways to exchange the labels: p cannot be below {1 / ways:.2g}." if ways < 20 else ""


def _bootstrap(purity: Floats, authors: Integers, draws: int, rng: np.random.Generator) -> tuple[float, float]:
    """95 % interval of the mean when authors are drawn again (models, where there is one author)."""
    units = _codes(authors.tolist()) if len(set(authors.tolist())) > 1 else np.arange(len(purity))
    sums, sizes = np.bincount(units, weights=purity), np.bincount(units)
    means = np.empty(draws)
    for draw in range(draws):
        chosen = rng.integers(len(sums), size=len(sums))
        means[draw] = sums[chosen].sum() / sizes[chosen].sum()
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def _p_value(trial: _Trial, observed: float, draws: int, rng: np.random.Generator) -> float:
    at_least = 0
    for _ in range(draws):
        _, _, purity, chance = trial.evaluate(trial.permuted(rng))
        at_least += float((purity - chance).mean()) >= observed - _TIE
    return (1 + at_least) / (1 + draws)
