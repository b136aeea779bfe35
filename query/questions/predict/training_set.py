"""The models whose datasets are known, and their features, with any choice of authors left out.

A *sweep* is all models of one author with one set of datasets. It has one vote, cast by its model nearest to the one
being predicted, so that a sweep of a hundred runs counts once. On 67 real fine-tunes by seven authors in six
representations, one vote per sweep gave a lower out-of-author log loss than one vote per model.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from indexer.names import voters
from indexer.vectors.masks import changed_blocks, shared_blocks
from indexer.vectors.table import VectorTable
from query.models.population import (
    BY_RUN,
    START,
    Head,
    Population,
    distinct,
    head_of,
    notes_on_sampled,
    read_population,
)
from query.questions.predict.dataset_runs import DatasetRuns, Reals
from query.questions.predict.heads import HeadMatches
from query.shared.statistics.neighbours import Booleans, Floats, Integers

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from query.models.across import WordPopulation
    from query.models.reader import AtlasReader

VOCABULARY = "vocabulary"

_SHARPNESS = 3  # power of a vote; with 1, many distant sweeps outvote a few near ones
COMMON_SHARE = 0.2  # share of the votes that is given to datasets by how common they are
_CORROBORATING = 2  # sweeps of a dataset that say how near it is
_HALVES = 2  # blocks of a vocabulary vector
_APART = -2.0  # in place of the similarity of models that cannot be compared
# Labels and starts are confounded if fewer than this share of random exchanges of labels share as many.
_EXCHANGES, _SIGNIFICANT = 199, 0.05
_BLOCK = 1 << 23  # similarities in memory at a time


@dataclass(frozen=True)
class LabelledModels:
    """Models with known datasets; entry i of every column is the same model.

    ``table``: their vectors, zero for a model without one. ``datasets``: empty for the model to be predicted.
    ``authors``: the voter that each model belongs to: its author or, with ``by_run`` (all are by one author), its run.
    ``starts``: where adapters began (``query.models.population.START``), None for others and if it is not known.
    ``vocabulary``: the same of their vocabulary vectors (``indexer.records.representations.vocabulary``), whose two
    blocks are compared one by one; None if there are none.
    """

    table: VectorTable
    models: list[str]
    authors: list[str]
    datasets: list[frozenset[str]]
    heads: list[Head]
    vocabulary: Floats | None = None
    starts: list[str | None] | None = None
    by_run: bool = False

    def voter(self, author: str, model: str) -> str:
        """The voter that another model would belong to."""
        return model if self.by_run else author

    @property
    def vectors(self) -> Floats:
        """(n, d) their input sides."""
        return self.table.inputs

    @property
    def blocks(self) -> int:
        """Blocks of a vector that are compared one by one."""
        return self.table.blocks

    def with_unlabelled(
        self,
        vector: VectorTable,
        model: str,
        author: str,
        head: Head,
        vocabulary: Floats | None = None,
        start: str | None = None,
    ) -> LabelledModels:
        """These models and, last, one whose datasets are unknown."""
        vocabularies = self.vocabulary
        if vocabularies is not None:
            last = np.zeros(vocabularies.shape[1], np.float32) if vocabulary is None else vocabulary
            vocabularies = np.concatenate([vocabularies, last[None, :]])
        return LabelledModels(
            table=self.table.with_last(vector),
            models=[*self.models, model],
            authors=[*self.authors, author],
            datasets=[*self.datasets, frozenset()],
            heads=[*self.heads, head],
            vocabulary=vocabularies,
            starts=None if self.starts is None else [*self.starts, start],
            by_run=self.by_run,
        )


class LabelledModelReader:
    """Reads the labelled models of each base once. ``notes``: on the sampled models of the base that was read last."""

    def __init__(self, atlas: AtlasReader, representation: str = "input") -> None:
        self.representation = representation
        self.notes: tuple[str, ...] = ()
        self._atlas = atlas
        self._read: dict[str, tuple[Population, dict[int, Head], dict[int, str | None]]] = {}
        self._of_all_bases: tuple[WordPopulation, dict[int, Head]] | None = None

    def read(self, base: str, without: Collection[int] = ()) -> LabelledModels:
        """The labelled models of a base: no copies, no unrelated models, one for each group of duplicates.

        Models with the ids ``without`` are left out before duplicates are grouped, and with them the datasets that only
        they name. Raises AtlasError if the representation is not published.
        """
        if base not in self._read:
            population = read_population(self._atlas, base, self.representation, documented=True)
            facts = self._atlas.rows(
                f"SELECT model_id, {START} AS start, head_class, label_count, label_names, problem_type "
                "FROM models WHERE base = ?",
                [base],
            )
            starts = {row["model_id"]: row.pop("start") for row in facts}
            self._read[base] = population, {row.pop("model_id"): head_of(**row) for row in facts}, starts
        population, heads, starts = self._read[base]
        is_out = np.isin(population.ids, list(without))
        distinct_models = distinct(replace(population, is_copy=population.is_copy | is_out))
        rows = [row for row, names in enumerate(distinct_models.datasets) if names]
        self.notes = notes_on_sampled(self._atlas, population)
        models, authors = (
            [column[row] for row in rows] for column in (distinct_models.models, distinct_models.authors)
        )
        votes = voters(authors, models)
        by_run = votes != authors
        if by_run and len(set(votes)) > 1:
            self.notes += (BY_RUN,)
        return LabelledModels(
            table=distinct_models.table.take(rows),
            models=models,
            authors=votes,
            by_run=by_run,
            datasets=[distinct_models.datasets[row] for row in rows],
            heads=[heads[int(distinct_models.ids[row])] for row in rows],
            vocabulary=self._vocabulary(base, distinct_models.ids[rows]),
            starts=[starts[int(distinct_models.ids[row])] for row in rows],
        )

    def read_others(self, base: str, without: Collection[int] = ()) -> LabelledModels | None:
        """The labelled models of all bases, to be compared across bases, by words.

        None if no other base has any, or ``base`` cannot be compared. Models with the ids ``without`` are left out.
        """
        from query.models.across import all_bases

        if self._of_all_bases is None:
            try:
                population = all_bases(self._atlas, documented=True)
            except AtlasError:  # only one base has vectors of words
                return None
            facts = self._atlas.rows(
                "SELECT model_id, head_class, label_count, label_names, problem_type FROM models "
                "WHERE model_id IN (SELECT unnest($1::INTEGER[]))",
                [population.ids.tolist()],
            )
            self._of_all_bases = population, {row.pop("model_id"): head_of(**row) for row in facts}
        population, heads = self._of_all_bases
        table = population.across_only()
        if base not in table.space.bases:
            return None
        base_number = table.space.bases.index(base)
        is_used = [
            bool(names) and table.space.are_comparable(base_number, number)
            for names, number in zip(population.datasets, table.base.tolist(), strict=True)
        ]
        rows = np.flatnonzero(np.array(is_used, dtype=bool) & ~np.isin(population.ids, list(without))).tolist()
        if not rows:
            return None
        models, authors = ([column[row] for row in rows] for column in (population.models, population.authors))
        votes = voters(authors, models)
        self.notes = ()
        return LabelledModels(
            table=table.take(rows),
            models=models,
            authors=votes,
            by_run=votes != authors,
            datasets=[population.datasets[row] for row in rows],
            heads=[heads[int(population.ids[row])] for row in rows],
        )

    def _vocabulary(self, base: str, ids: NDArray[np.int64]) -> Floats | None:
        """(n, d) vocabulary vectors, zero for a model without one; None if none of the models has one."""
        if self.representation == VOCABULARY or not has_vocabulary(self._atlas, base):
            return None
        stored_vectors = self._atlas.index(base, VOCABULARY).rows(sorted(ids.tolist()))
        if not len(stored_vectors.ids):
            return None
        vectors = np.zeros((len(ids), stored_vectors.matrix.shape[1]), dtype=np.float32)
        row_of = {model_id: row for row, model_id in enumerate(ids.tolist())}
        vectors[[row_of[model_id] for model_id in stored_vectors.ids.tolist()]] = stored_vectors.matrix
        return vectors


def has_vocabulary(atlas: AtlasReader, base: str) -> bool:
    """Whether vocabulary vectors are published."""
    return bool(
        atlas.rows("FROM representations WHERE base = ? AND representation = ? AND vectors > 0", [base, VOCABULARY])
    )


@dataclass(frozen=True)
class Votes:
    """The votes of the nearest sweeps on models (rows), by one kind of vector.

    Attributes:
        is_known: (rows,): whether a model has such a vector, and can be compared.
        weights: (rows, sweeps), sparse: the vote of each sweep.
        votes: (rows, answers), sparse.
        share: (rows, answers), of the votes.
        log_votes: ln of the share, a fifth of it given by how common datasets are; 0 for answers that are not present.
        prominence: (rows,): ln of how far the nearest sweep is above the median of all sweeps, in units of the
            distance from the median to the lower quartile; 0 if there are no sweeps.
        similarity: (rows,): that of the nearest sweep; NaN if it is not known.
    """

    is_known: Booleans
    weights: csr_array
    votes: csr_array
    share: Reals
    log_votes: Reals
    prominence: Reals
    similarity: Reals


@dataclass(frozen=True)
class Features:
    """The features of the models (rows) at ``indices`` of a training set, from the ``allowed`` sweeps (rows, sweeps).

    Everything is computed when it is first asked for. Rows of all arrays are these models, columns all answers.
    """

    training: TrainingSet
    indices: Integers
    allowed: Booleans

    @cached_property
    def common(self) -> Floats:
        """(rows, answers): the dataset's share of the sweeps that may vote."""
        shares = self.allowed.astype(np.float32) @ self.training.sweeps.shares
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1)
        return shares

    @cached_property
    def present(self) -> Booleans:
        """(rows, answers): whether a model that may vote names the dataset; all logarithms are 0 if not."""
        return self.common > 0

    @cached_property
    def log_common(self) -> Reals:
        """(rows, answers): ln of ``common``."""
        return self._log(self.common)

    @cached_property
    def truth(self) -> Reals:
        """(rows, answers): the share of each answer in the model's own datasets.

        Rows sum to less than 1 if no model that may vote names one of them.
        """
        return self.training.sweeps.truth(self.training.rows[self.indices], self.present)

    @cached_property
    def covered(self) -> Reals:
        """(rows,): the share of the truth that the answers cover."""
        return self.truth.sum(axis=1)

    @cached_property
    def _voting(self) -> Booleans:
        """(rows, sweeps): which sweeps vote by their vectors."""
        return self.training.voting(self.indices, self.allowed) & self.training.has_vector[self.indices][:, None]

    @cached_property
    def vectors(self) -> Votes:
        """The votes by vectors."""
        return self._votes(self.training.nearest, self._voting, self.training.has_vector[self.indices])

    @cached_property
    def nearness(self) -> Reals:
        """(rows,): the mean similarity of a dataset's two nearest sweeps, or that of its only one.

        It is that of the dataset where it is largest; NaN if there are no sweeps or the model has no vector.
        """
        return self.training.nearness(self.indices, self._voting)

    @cached_property
    def vocabulary(self) -> Votes | None:
        """The votes by vocabulary vectors; None if no labelled model has one."""
        nearest = self.training.nearest_by_vocabulary
        if nearest is None:
            return None
        assert nearest.comparable is not None
        comparable = self.allowed & nearest.comparable[self.indices]
        return self._votes(nearest, comparable, np.asarray(comparable.any(axis=1)))

    @cached_property
    def has_head(self) -> Booleans:
        """(rows,): whether anything is known about the head."""
        return self.training.heads.is_known[self.indices]

    @cached_property
    def head(self) -> Reals:
        """(rows, answers): ln P(head | dataset) / P(head); 0 without a head."""
        return np.where(self.present, self.training.heads.log_ratios(self.indices, self.allowed), 0)

    @cached_property
    def recognised(self) -> Reals:
        """(rows,), see ``HeadMatches``."""
        return self.training.heads.recognised(self.indices, self.allowed)

    def _votes(self, nearest: NearestSweeps, voting: Booleans, is_known: Booleans) -> Votes:
        weights, prominence, similarity = self.training.cast_votes(nearest, self.indices, voting)
        votes = weights @ self.training.sweeps.shares
        total = votes.sum(axis=1)[:, None]
        share = votes.toarray() / np.where(total > 0, total, 1)
        return Votes(
            is_known=is_known,
            weights=weights,
            votes=votes,
            share=share.astype(np.float64),
            log_votes=self._log((1 - COMMON_SHARE) * share + COMMON_SHARE * self.common),
            prominence=prominence,
            similarity=np.where(voting.any(axis=1), similarity, np.nan).astype(np.float64),
        )

    def _log(self, shares: Floats) -> Reals:
        return np.log(np.where(self.present, shares, 1).astype(np.float64))


class TrainingSet:
    """Everything needed for the features of ``rows`` (default: all) of ``models``, for any choice of authors.

    Computed once: one product of vectors and one sort.
    """

    def __init__(self, models: LabelledModels, k: int, rows: Integers | None = None) -> None:
        self.models, self.k = models, k
        self.rows = np.arange(len(models.models)) if rows is None else rows
        self.sweeps = DatasetRuns(models.authors, models.datasets)
        # A number for each start, -1 if it is not known; None if starts and labels are independent.
        self._starts: Integers | None = None
        if models.starts is not None:
            numbers = {start: number for number, start in enumerate(dict.fromkeys([None, *models.starts]), -1)}
            starts = np.array([numbers[start] for start in models.starts], dtype=np.intp)
            if are_starts_confounded(self.sweeps, starts):
                self._starts = starts
        self.has_vector: Booleans = models.table.take(self.rows).has_vector
        self.nearest = self._nearest_sweeps(models.table)
        self.nearest_by_vocabulary: NearestSweeps | None = None
        if models.vocabulary is not None:
            self.nearest_by_vocabulary = self._nearest_sweeps(VectorTable(models.vocabulary, _HALVES), are_halves=True)
        self.heads = HeadMatches(models.heads, self.rows, self.sweeps)

    def features(self, indices: Integers, withheld: Sequence[int] = (), is_hidden: bool = False) -> Features:
        """The features of the models at ``indices`` of ``rows``, from authors other than their own and ``withheld``.

        ``is_hidden``: as if no other model named their datasets.
        """
        return Features(self, indices, self.sweeps.allowed(self.rows[indices], withheld, is_hidden))

    def voting(self, indices: Integers, allowed: Booleans) -> Booleans:
        """Which of the ``allowed`` sweeps (indices, sweeps) vote by their vectors.

        Runs of one data set that began at the same random numbers are more alike than others on that data, because the
        order of their batches comes from the same seed: they repeat each other's labels, right or wrong. So, if labels
        and starts are confounded, a sweep that began where a model did votes on it only if no sweep that began
        elsewhere names one of its datasets.
        """
        is_twin = self.nearest.is_twin
        if is_twin is None or not (twins := allowed & is_twin[indices]).any():
            return allowed
        shares = self.sweeps.shares
        is_named = ((allowed & ~is_twin[indices]).astype(np.float32) @ shares > 0).astype(np.float32)
        return allowed & ~(twins & (is_named @ shares.T.toarray() > 0))

    def has_silent_twins(self, index: int) -> bool:
        """Whether models by others have no vote on the one at ``index`` of ``rows`` because they began where it did."""
        if self.nearest.is_twin is None:
            return False
        indices, sweeps = np.array([index]), self.sweeps
        row = self.rows[indices]
        members = np.flatnonzero((sweeps.of_model >= 0) & (sweeps.authors != sweeps.authors[row]))
        is_twin = self.is_twin(row, members)
        assert is_twin is not None
        votes = self.voting(indices, sweeps.allowed(row, ()))[0] & self.nearest.is_twin[index]
        return not bool(votes[sweeps.of_model[members[is_twin[0]]]].all())

    def is_twin(self, rows: Integers, members: Integers) -> Booleans | None:
        """(rows, members): whether two models began at the same random numbers.

        None if labels and starts are independent.
        """
        if self._starts is None:
            return None
        are_twins: Booleans = (self._starts[rows][:, None] == self._starts[members]) & (self._starts[members] >= 0)
        return are_twins

    def _nearest_sweeps(self, table: VectorTable, *, are_halves: bool = False) -> NearestSweeps:
        """For each of the rows all sweeps, nearest first.

        The similarity of a sweep is that of its nearest member, of those that began elsewhere if there are any. Ties
        are broken by number. ``are_halves``: models are compared only if they have the same one of two blocks.
        """
        sweeps = self.sweeps
        members = np.flatnonzero(sweeps.of_model >= 0)
        members = members[np.argsort(sweeps.of_model[members], kind="stable")]
        starts = np.searchsorted(sweeps.of_model[members], np.arange(len(sweeps.labels)))
        order = np.empty((len(self.rows), len(starts)), dtype=np.int32)
        similarity = np.empty(order.shape, dtype=np.float32)
        twins = None if self._starts is None else np.zeros(order.shape, dtype=bool)
        step = max(1, _BLOCK // max(1, len(members)))
        for start in range(0, len(self.rows) if len(starts) else 0, step):
            block = slice(start, start + step)
            to_members = table.take(self.rows[block]).similarities(table.take(members))
            if are_halves:
                changed, member_changed = (
                    changed_blocks(table.inputs[rows], _HALVES) for rows in (self.rows[block], members)
                )
                to_members[shared_blocks(changed, member_changed) == 0] = _APART
            nearest = np.maximum.reduceat(to_members, starts, axis=1)
            if twins is not None and (is_twin := self.is_twin(self.rows[block], members)) is not None:
                twins[block] = np.logical_and.reduceat(is_twin, starts, axis=1)
                elsewhere = np.maximum.reduceat(np.where(is_twin, _APART, to_members), starts, axis=1)
                nearest = np.where(twins[block], nearest, elsewhere)
            order[block] = np.argsort(-nearest, axis=1, kind="stable")
            similarity[block] = np.take_along_axis(nearest, order[block], axis=1)
        comparable = None
        if are_halves:
            comparable = np.zeros(order.shape, dtype=bool)
            np.put_along_axis(comparable, order, similarity > _APART, axis=1)
        return NearestSweeps(order, similarity, comparable, twins)

    def nearness(self, indices: Integers, allowed: Booleans) -> Reals:
        """(indices,): ``Features.nearness`` by the ``allowed`` sweeps (indices, sweeps)."""
        nearest_sweeps = self.nearest
        table = np.empty(allowed.shape, dtype=np.float64)
        np.put_along_axis(table, nearest_sweeps.order[indices], nearest_sweeps.similarity[indices], axis=1)
        table[~allowed] = -np.inf
        nearest = np.full(len(indices), -np.inf)
        of_answer = self.sweeps.shares.tocsc()
        for answer in range(of_answer.shape[1]):
            members = of_answer.indices[of_answer.indptr[answer] : of_answer.indptr[answer + 1]]
            two_nearest = -np.sort(-table[:, members], axis=1)[:, :_CORROBORATING]
            is_there = np.isfinite(two_nearest)
            mean = np.where(is_there, two_nearest, 0).sum(axis=1) / np.maximum(is_there.sum(axis=1), 1)
            nearest = np.maximum(nearest, np.where(is_there.any(axis=1), mean, -np.inf))
        return np.where(np.isfinite(nearest), nearest, np.nan)

    def cast_votes(
        self, nearest: NearestSweeps, indices: Integers, allowed: Booleans
    ) -> tuple[csr_array, Reals, NDArray[np.float32]]:
        """The votes of the k nearest ``allowed`` sweeps, and the prominence and the similarity of the nearest one.

        A vote is max(0, (s - m) / (s₁ - m))³, with s the similarity of the sweep, s₁ that of the nearest one, and m the
        median over all allowed sweeps. So the nearest has one vote whatever the level of the similarities, which is
        lower for adapters than for full fine-tunes. If no sweep stands out, every vote is 1.
        """
        from scipy.sparse import csr_array

        order, similarity = nearest.order[indices], nearest.similarity[indices]
        votes = np.take_along_axis(allowed, order, axis=1)
        rank = np.cumsum(votes, axis=1, dtype=np.int32)
        counts = votes.sum(axis=1)

        def similarity_at(wanted_rank: Integers) -> Floats:
            """The similarity of the allowed sweep of this rank (from 1); 0 if there are none."""
            if not rank.shape[1]:
                return np.zeros(len(rank), dtype=np.float32)
            column = np.minimum((rank < wanted_rank[:, None]).sum(axis=1), rank.shape[1] - 1)
            return np.where(rank[:, -1] > 0, similarity[np.arange(len(rank)), column], 0)

        first = similarity_at(np.minimum(1, counts))
        middle = (similarity_at((counts + 1) // 2) + similarity_at(counts // 2 + 1)) / 2
        low = similarity_at((3 * counts + 3) // 4)
        row, column = np.nonzero(votes & (rank <= self.k))
        lead = first - middle
        excess = np.maximum(similarity[row, column] - middle[row], 0)
        stands_out = lead > 1e-6
        weight = np.where(stands_out[row], (excess / np.where(stands_out, lead, 1)[row]) ** _SHARPNESS, 1)
        prominence = np.where(counts > 0, np.log((lead + 1e-4) / (middle - low + 1e-4)), 0)
        weights = csr_array((weight.astype(np.float32), (row, order[row, column])), allowed.shape)
        return weights, prominence.astype(np.float64), first


@dataclass(frozen=True)
class NearestSweeps:
    """All sweeps by their similarity to each of the rows, nearest first: numbers and similarities, (rows, sweeps).

    ``comparable`` (rows, sweeps), by number: whether a sweep can be compared at all; None if all can. ``is_twin``, also
    by number: whether all its members began at the same random numbers as the row's model; None if labels and starts
    are independent.
    """

    order: NDArray[np.int32]
    similarity: Floats
    comparable: Booleans | None
    is_twin: Booleans | None = None


def are_starts_confounded(sweeps: DatasetRuns, starts: Integers) -> bool:
    """Whether models by different authors that began alike share datasets more often than by chance.

    ``starts`` (n,): a number for each start, -1 if it is not known. The test exchanges the labels of sweeps (p ≤ .05).
    """
    from scipy.sparse import csr_array

    members = np.flatnonzero((sweeps.of_model >= 0) & (starts >= 0))
    if not len(members):
        return False
    # A sweep counts once for each start.
    units, first = np.unique(np.stack([starts[members], sweeps.of_model[members]], axis=1), axis=0, return_index=True)
    authors = sweeps.authors[members[first]]
    of_start = np.unique(units[:, 0], return_inverse=True)[1]
    of_author = np.unique(np.stack([units[:, 0], authors], axis=1), axis=0, return_inverse=True)[1].ravel()
    labels = sweeps.shares[units[:, 1]]

    def sums(groups: Integers) -> csr_array:
        """(groups, units): 1 where a unit belongs to a group."""
        columns = np.arange(len(groups))
        return csr_array((np.ones(len(groups)), (groups, columns)), (groups.max() + 1, len(groups)))

    by_start, by_author = sums(of_start), sums(of_author)

    def shared(order: Integers) -> float:
        """Over all pairs of one start and two authors, the datasets in common."""
        exchanged = labels[order]
        of_all, of_one = by_start @ exchanged, by_author @ exchanged
        return float((of_all.data**2).sum() - (of_one.data**2).sum())

    rng = np.random.default_rng(0)
    actual = shared(np.arange(len(units)))
    by_chance = [shared(rng.permutation(len(units))) for _ in range(_EXCHANGES)]
    return 1 + sum(overlap >= actual - 1e-9 for overlap in by_chance) <= _SIGNIFICANT * (1 + _EXCHANGES)
