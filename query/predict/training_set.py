"""The models whose datasets are known, and their features, with any choice of authors left out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from query.population import Population, distinct, read_population
from query.predict.heads import Head, HeadMatches, head_matches, head_of
from query.predict.votes import DatasetRuns, Floats, Nearness, cast_votes, nearness
from query.statistics.neighbours import Booleans, Integers

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from query.reader import AtlasReader

Reals = NDArray[np.float64]

# The share of the votes that is given to datasets by how common they are.
COMMON_SHARE = 0.2


# ---- labelled models ----


@dataclass(frozen=True)
class LabelledModels:
    """Models with known datasets; entry i of every column is the same model.

    ``vectors``: (n, d) float32 of unit norm (or of ``blocks`` of unit norm, see ``Population``), zero for a model
    without one. ``datasets``: empty for the model to be predicted.
    """

    vectors: Floats
    models: list[str]
    authors: list[str]
    datasets: list[frozenset[str]]
    heads: list[Head]
    blocks: int = 0

    def with_unlabelled(self, vector: Floats, model: str, author: str, head: Head) -> LabelledModels:
        """These models and, last, one whose datasets are unknown."""
        return LabelledModels(
            vectors=np.concatenate([self.vectors.reshape(-1, len(vector)), vector[None, :]]),
            models=[*self.models, model],
            authors=[*self.authors, author],
            datasets=[*self.datasets, frozenset()],
            heads=[*self.heads, head],
            blocks=self.blocks,
        )


class LabelledModelReader:
    """Reads the labelled models of each base once."""

    def __init__(self, atlas: AtlasReader, representation: str = "input") -> None:
        self.representation = representation
        self._atlas = atlas
        self._read: dict[str, tuple[Population, dict[int, Head]]] = {}

    def read(self, base: str, without: Collection[int] = ()) -> LabelledModels:
        """The labelled models of a base: no copies, no unrelated models, one for each group of duplicates.

        The models with the ids ``without`` are left out before duplicates are grouped, so that datasets which only
        they name are left out too. Raises AtlasError if the representation is not published.
        """
        if base not in self._read:
            population = read_population(self._atlas, base, self.representation, documented=True)
            found = self._atlas.rows(
                "SELECT model_id, head_class, label_count, label_names, problem_type FROM models WHERE base = ?", [base]
            )
            heads = {
                row["model_id"]: head_of(row["head_class"], row["label_count"], row["label_names"], row["problem_type"])
                for row in found
            }
            self._read[base] = population, heads
        population, heads = self._read[base]
        is_out = np.isin(population.ids, list(without))
        chosen = distinct(replace(population, is_copy=population.is_copy | is_out))
        rows = [row for row, names in enumerate(chosen.datasets) if names]
        return LabelledModels(
            vectors=chosen.vectors[rows],
            models=[chosen.models[row] for row in rows],
            authors=[chosen.authors[row] for row in rows],
            datasets=[chosen.datasets[row] for row in rows],
            heads=[heads[int(chosen.ids[row])] for row in rows],
            blocks=chosen.blocks,
        )


# ---- features ----


@dataclass(frozen=True)
class Features:
    """The features of some models (rows) for all answers (columns).

    Attributes:
        present: whether a model that may vote names the dataset; the next five are 0 if not.
        log_common: ln of the dataset's share of the sweeps that may vote.
        share: of the votes.
        log_votes: ln of the share of the votes, a fifth of which is given by how common datasets are.
        head: ln P(head | dataset) / P(head); 0 without a head.
        truth: share of each answer in the model's own datasets; no model that may vote names what a row lacks to 1.
        prominence: (rows,), see ``Votes``.
        has_head: (rows,).
        recognised: (rows,), see ``HeadMatches``.
        votes: for each answer, sparse.
        weights: (rows, sweeps), sparse, see ``Votes``.
    """

    present: Booleans
    log_common: Reals
    share: Reals
    log_votes: Reals
    head: Reals
    truth: Reals
    prominence: Reals
    has_head: Booleans
    recognised: Reals
    votes: csr_array
    weights: csr_array

    @property
    def known(self) -> Reals:
        """(rows,): the share of the truth that is among the answers."""
        known: Reals = self.truth.sum(axis=1)
        return known


@dataclass(frozen=True)
class TrainingSet:
    """Everything needed for the features of ``rows`` of ``models``, computed once for any choice of authors."""

    models: LabelledModels
    rows: Integers
    sweeps: DatasetRuns
    near: Nearness
    matches: HeadMatches
    k: int

    @classmethod
    def of(cls, models: LabelledModels, k: int, rows: Integers | None = None) -> TrainingSet:
        """For ``rows`` (default: all models): one product of vectors and one sort."""
        chosen = np.arange(len(models.models)) if rows is None else rows
        sweeps = DatasetRuns(models.authors, models.datasets)
        return cls(
            models=models,
            rows=chosen,
            sweeps=sweeps,
            near=nearness(models.vectors, chosen, sweeps, models.blocks),
            matches=head_matches(models.heads, chosen, sweeps),
            k=k,
        )

    def features(self, places: Integers, withheld: Sequence[int] = (), is_hidden: bool = False) -> Features:
        """The features of the models in ``places`` of ``rows``, from authors other than their own and ``withheld``.

        ``is_hidden``: as if no other model named their datasets.
        """
        sweeps = self.sweeps
        allowed = sweeps.allowed(self.rows[places], np.array(withheld, dtype=np.intp), is_hidden)
        common = allowed.astype(np.float32) @ sweeps.shares
        present = common > 0
        common /= np.maximum(common.sum(axis=1, keepdims=True), 1)
        has_vector = np.linalg.norm(self.models.vectors[self.rows[places]], axis=1) > 0
        cast = cast_votes(self.near.at(places), allowed & has_vector[:, None], self.k)
        votes = cast.weights @ sweeps.shares
        total = votes.sum(axis=1)[:, None]
        share = votes.toarray() / np.where(total > 0, total, 1)
        head = self.matches.at(places)
        return Features(
            present=present,
            log_common=_log(common, present),
            share=share.astype(np.float64),
            log_votes=_log((1 - COMMON_SHARE) * share + COMMON_SHARE * common, present),
            head=np.where(present, head.log_ratios(allowed, sweeps), 0),
            truth=_truth(sweeps, self.rows[places], present),
            prominence=cast.prominence,
            has_head=head.is_known,
            recognised=head.recognised(allowed),
            votes=votes,
            weights=cast.weights,
        )


def _log(shares: Floats, present: Booleans) -> Reals:
    return np.log(np.where(present, shares, 1).astype(np.float64))


def _truth(sweeps: DatasetRuns, rows: Integers, present: Booleans) -> Reals:
    """Shares of the answers in the models' datasets; a task that is not an answer counts as its collection."""
    own = sweeps.of_model[rows]
    truth = np.zeros(present.shape)
    truth[own >= 0] = sweeps.shares[own[own >= 0]].toarray()
    for task, parent in sorted(sweeps.parents.items(), key=lambda pair: -sweeps.answers[pair[0]].count("/")):
        missing = np.where(present[:, task], 0, truth[:, task])
        truth[:, parent] += missing
        truth[:, task] -= missing
    return np.where(present, truth, 0)
