"""The centre of the full fine-tunes of a base: what they have in common, subtracted before they are compared.

All full fine-tunes of a base share directions. So from every block (unit norm) of one a mean block of all is
subtracted, and the rest is scaled to unit norm again. The mean must not be that of the data that most models of the
atlas were tuned on. So models that are more alike than most share a vote, as the models of an author do, and the mean
is shrunk by (n - 2)/n for n votes: up to two votes nothing is subtracted. No label is read (docs/evidence/vectors.md).

Nothing is subtracted from adapters: directions that several share come mostly from their data. In an atlas in which
most adapters were tuned on one data set, any mean would be that data set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.masks import changed_blocks

Floats = NDArray[np.float32]
Number = TypeVar("Number", np.float32, np.float64)

# The groups of models. Of an adapter by output it is not known what training did to its input side: it began at unknown
# random numbers, or its factors A were not trained.
ADAPTER, BY_OUTPUT, FULL = "adapter", "adapter by output", "full"
GROUPS = (ADAPTER, BY_OUTPUT, FULL)
CENTRED = (FULL,)

# So many votes do not count: a mean of n votes is multiplied by (n - 2)/n.
SHRINK = 2.0

# A model has a whole vote if it is no more alike to any author than to the least alike tenth of them; the more alike
# ones share votes by this power of what is above it. If even the least alike are that much alike, the rest is data.
_LEAST_ALIKE, _MOST_COMMON, _SHARPNESS = 0.1, 0.8, 1.5

# Models are compared with this many authors, drawn with a fixed seed.
_MOST_VOTERS = 256

# The rest of a block that is this close to its centre is only rounding.
_NOTHING = 1e-6

# A group's centre moves once the group has this many times the models that it was computed from.
GROWTH = 1.5


@dataclass(frozen=True, eq=False)
class GroupCentre:
    """The centre of one group: ``blocks`` (b, m), the number of ``votes`` (b,) in each, and the number of models.

    ``datasets``: how many different sets of datasets these name, or authors of models that name none.
    """

    blocks: Floats
    votes: NDArray[np.float64]
    models: int
    datasets: int = 0

    @classmethod
    def nothing(cls, blocks: int, length: int) -> GroupCentre:
        """The centre of a group without models."""
        return cls(np.zeros((blocks, length), np.float32), np.zeros(blocks), 0)

    def is_outgrown(self, models: int) -> bool:
        """Whether the group has grown by half since, to this number of models."""
        return models > self.models and models >= GROWTH * self.models


@dataclass(frozen=True, eq=False)
class Centre:
    """The centres of one (base, representation), by group. Nothing is subtracted from models of other groups."""

    groups: Mapping[str, GroupCentre]

    @property
    def version(self) -> str:
        """A digest (16 hex digits) of all numbers; vectors of different versions cannot be compared."""
        digest = hashlib.sha256()
        for name in sorted(self.groups):
            group = self.groups[name]
            digest.update(f"{name}|{group.blocks.shape}|{group.models}|".encode())
            digest.update(np.ascontiguousarray(group.blocks, dtype="<f4").tobytes())
            digest.update(np.ascontiguousarray(group.votes, dtype="<f8").tobytes())
        return digest.hexdigest()[:16]

    def centred(self, vectors: NDArray[np.floating], group: str) -> Floats:
        """(n, d) uncentred vectors of one group minus its centre, each block scaled to unit norm.

        Blocks that are zero or equal to the centre become zero.
        """
        if group not in self.groups:
            return vectors.astype(np.float32)
        centre = self.groups[group].blocks.astype(np.float64)
        blocks = vectors.astype(np.float64).reshape(len(vectors), *centre.shape)
        differences = (blocks - centre) * blocks.any(axis=2, keepdims=True)
        return unit_norm(differences, _NOTHING).reshape(len(vectors), -1).astype(np.float32)


def unit_norm(rows: NDArray[Number], nothing: float = 0.0) -> NDArray[Number]:
    """(…, d) scaled to unit norm; zeros for rows of a norm of at most ``nothing``."""
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.divide(rows, norms, out=np.zeros_like(rows), where=norms > nothing)


def _shrinkage(votes: NDArray[np.float64]) -> NDArray[np.float64]:
    """The factor by which a mean of so many votes is multiplied."""
    return np.divide(votes - SHRINK, votes, out=np.zeros_like(votes), where=votes > SHRINK)


class Mean:
    """Computes the centre of a group from vectors that arrive in any order, a few at a time, and twice.

    First ``compare`` takes all vectors, then ``add`` does. ``ids`` (n,) ascending are the models that count, ``voters``
    their authors, and ``changed`` (n, b) their changed blocks. ``length``: numbers of a block.
    """

    def __init__(self, ids: NDArray[np.int64], voters: Sequence[str], changed: NDArray[np.bool_], length: int) -> None:
        self.ids = ids
        names = sorted(set(voters))
        numbers = {name: number for number, name in enumerate(names)}
        self._voter = np.array([numbers[voter] for voter in voters], dtype=np.intp)
        counts = np.zeros((len(names), changed.shape[1]))
        np.add.at(counts, self._voter, changed)
        # The share (n, b) of each model in the vote of its author.
        self._shares = changed * np.divide(1, counts, out=np.zeros_like(counts), where=counts > 0)[self._voter]
        voter_numbers = np.arange(len(names))
        if len(names) > _MOST_VOTERS:
            voter_numbers = np.sort(np.random.default_rng(0).choice(len(names), _MOST_VOTERS, replace=False))
        # The place of each author among those that models are compared with; -1 if it is none of them.
        self._position = np.full(len(names), -1)
        self._position[voter_numbers] = np.arange(len(voter_numbers))
        self._authors = np.zeros((len(voter_numbers), changed.shape[1], length))
        self.sum = np.zeros((changed.shape[1], length))
        self.votes = np.zeros(changed.shape[1])

    def compare(self, ids: NDArray[np.int64], vectors: NDArray[np.floating]) -> None:
        """Take uncentred vectors (n, d), with which all models will be compared; others than ``ids`` are ignored."""
        rows, blocks = self._counted(ids, vectors)
        position = self._position[self._voter[rows]]
        is_compared = position >= 0
        np.add.at(
            self._authors, position[is_compared], blocks[is_compared] * self._shares[rows[is_compared]][:, :, None]
        )

    def add(self, ids: NDArray[np.int64], vectors: NDArray[np.floating]) -> None:
        """Add uncentred vectors (n, d); those of models that do not count are ignored."""
        rows, blocks = self._counted(ids, vectors)
        if not len(rows):
            return
        shares = self._shares[rows] / self._crowding(rows, blocks)[:, None]
        self.sum += np.einsum("nb,nbm->bm", shares, blocks)
        self.votes += shares.sum(axis=0)

    def centre(self) -> GroupCentre:
        """The mean so far, shrunk towards zero."""
        mean = np.divide(self.sum, self.votes[:, None], out=np.zeros_like(self.sum), where=self.votes[:, None] > 0)
        return GroupCentre((mean * _shrinkage(self.votes)[:, None]).astype(np.float32), self.votes, len(self.ids))

    def _counted(
        self, ids: NDArray[np.int64], vectors: NDArray[np.floating]
    ) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """The places of the models that count, and their blocks (…, b, m)."""
        positions = np.searchsorted(self.ids, ids).clip(max=max(len(self.ids) - 1, 0))
        counts = np.flatnonzero(self.ids[positions] == ids) if len(self.ids) else np.zeros(0, np.intp)
        return positions[counts], vectors[counts].reshape(len(counts), *self.sum.shape).astype(np.float64)

    def _crowding(self, rows: NDArray[np.intp], blocks: NDArray[np.float64]) -> NDArray[np.float64]:
        """(…,) how many authors share the vote of each of these models: itself, and those that are more alike."""
        columns = self._position[self._voter[rows]]
        products = _mean_products(blocks, self._authors)
        compared_rows = np.flatnonzero(columns >= 0)
        products[compared_rows, columns[compared_rows]] = np.nan  # its own author
        compared = len(self._authors) - (columns >= 0)
        if not compared.all():  # one author alone
            return np.ones(len(rows))
        common = np.nanquantile(products, _LEAST_ALIKE, axis=1, keepdims=True).clip(0, _MOST_COMMON)
        alike = np.nan_to_num(((products - common) / (1 - common)).clip(0, 1))
        other_authors = len(self._position) - 1
        crowding: NDArray[np.float64] = 1 + (alike**_SHARPNESS).sum(axis=1) * other_authors / compared
        return crowding


def _mean_products(blocks: NDArray[np.float64], other_blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, m) mean products of blocks over those that both have."""
    have = [np.asarray(side.any(axis=2), dtype=np.float64) for side in (blocks, other_blocks)]
    shared: NDArray[np.float64] = have[0] @ have[1].T
    products: NDArray[np.float64] = blocks.reshape(len(blocks), -1) @ other_blocks.reshape(len(other_blocks), -1).T
    return products / np.maximum(shared, 1)


def centre_of(vectors: NDArray[np.floating], voters: Sequence[str], blocks: int) -> GroupCentre:
    """The centre of (n, d) uncentred vectors of one group."""
    changed = changed_blocks(vectors, blocks)
    rows = np.flatnonzero(changed.any(axis=1))
    ids = np.arange(len(rows), dtype=np.int64)
    mean = Mean(ids, [voters[row] for row in rows.tolist()], changed[rows], vectors.shape[1] // blocks)
    mean.compare(ids, vectors[rows])
    mean.add(ids, vectors[rows])
    return mean.centre()
