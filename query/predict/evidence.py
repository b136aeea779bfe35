"""What vectors and heads say of some models, dataset by dataset, with chosen authors kept out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from query.predict.documented import Documents
from query.predict.head_evidence import HeadMatches, head_matches
from query.predict.sweeps import DatasetRuns, Floats, Nearness, cast_votes, nearness
from query.statistics.neighbours import Booleans, Integers

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Reals = NDArray[np.float64]

# How much of the vote goes to what is common anyway.
COMMON_SHARE = 0.2


@dataclass(frozen=True)
class Evidence:
    """For some models (rows) and all answers (columns).

    ``present``: the dataset is named by somebody who may speak. ``log_common``: ln of its share among the sweeps
    that may. ``share``: of the votes; ``log_votes``: ln of it, a fifth of the votes given to what is common anyway.
    ``head``: ln P(head | dataset)/P(head); 0 where nothing is known. All of these are 0 where not present.
    ``truth``: the share of each answer in what the model really names; what a row lacks to 1 is named by nobody who
    may speak. ``prominence``, ``weights``: see ``Votes``; ``votes``, sparse: of each answer. ``recognised``: see
    ``HeadMatches``.
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
class Witnesses:
    """Everything that can be said of ``rows`` of ``documents``, computed once for any choice of who may speak."""

    documents: Documents
    rows: Integers
    sweeps: DatasetRuns
    near: Nearness
    matches: HeadMatches
    k: int

    @classmethod
    def of(cls, documents: Documents, k: int, rows: Integers | None = None) -> Witnesses:
        """Those of ``rows`` (of all documents, if not said): one product of vectors and one sort."""
        chosen = np.arange(len(documents.models)) if rows is None else rows
        sweeps = DatasetRuns(documents.authors, documents.datasets)
        return cls(
            documents=documents,
            rows=chosen,
            sweeps=sweeps,
            near=nearness(documents.vectors, chosen, sweeps, documents.blocks),
            matches=head_matches(documents.heads, chosen, sweeps),
            k=k,
        )

    def evidence(self, places: Integers, withheld: Sequence[int] = (), is_hidden: bool = False) -> Evidence:
        """The evidence for the models in ``places`` of ``rows``, from authors other than their own and ``withheld``.

        ``is_hidden``: as if nobody named their datasets.
        """
        sweeps = self.sweeps
        allowed = sweeps.allowed(self.rows[places], np.array(withheld, dtype=np.intp), is_hidden)
        common = allowed.astype(np.float32) @ sweeps.shares
        present = common > 0
        common /= np.maximum(common.sum(axis=1, keepdims=True), 1)
        has_vector = np.linalg.norm(self.documents.vectors[self.rows[places]], axis=1) > 0
        cast = cast_votes(self.near.at(places), allowed & has_vector[:, None], self.k)
        votes = cast.weights @ sweeps.shares
        total = votes.sum(axis=1)[:, None]
        share = votes.toarray() / np.where(total > 0, total, 1)
        head = self.matches.at(places)
        return Evidence(
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
    """Shares of the answers in what the models name; a task that is no answer counts as its collection."""
    own = sweeps.of_model[rows]
    truth = np.zeros(present.shape)
    truth[own >= 0] = sweeps.shares[own[own >= 0]].toarray()
    for task, parent in sorted(sweeps.parents.items(), key=lambda pair: -sweeps.answers[pair[0]].count("/")):
        missing = np.where(present[:, task], 0, truth[:, task])
        truth[:, parent] += missing
        truth[:, task] -= missing
    return np.where(present, truth, 0)
