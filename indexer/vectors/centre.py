"""The centre of the full fine-tunes of a base: what they have in common, subtracted before they are compared.

All full fine-tunes of a base share directions. So from every block (unit norm) of one the mean block of all is
subtracted, and the rest is scaled to unit norm again. Every author has one vote in the mean, which is shrunk by
n/(n + 2) for n votes: to a third for one vote.

Nothing is subtracted from adapters: what several share is mostly their data. Of an atlas in which one data set is most
of the adapters, the mean would be that data set.
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

# Strength of the shrinkage of a group towards zero, in votes.
SHRINK = 2.0

# The rest of a block that is this close to its centre is only rounding.
_NOTHING = 1e-6

# A group's centre moves once the group has this many times the models that it was computed from.
GROWTH = 1.5


@dataclass(frozen=True, eq=False)
class GroupCentre:
    """The centre of one group: ``blocks`` (b, m), the number of ``votes`` (b,) in each, and the number of models."""

    blocks: Floats
    votes: NDArray[np.int64]
    models: int

    @classmethod
    def nothing(cls, blocks: int, length: int) -> GroupCentre:
        """The centre of a group without models."""
        return cls(np.zeros((blocks, length), np.float32), np.zeros(blocks, np.int64), 0)

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
            one = self.groups[name]
            digest.update(f"{name}|{one.blocks.shape}|{one.models}|".encode())
            digest.update(np.ascontiguousarray(one.blocks, dtype="<f4").tobytes())
            digest.update(np.ascontiguousarray(one.votes, dtype="<i8").tobytes())
        return digest.hexdigest()[:16]

    def centred(self, vectors: NDArray[np.floating], group: str) -> Floats:
        """(n, d) uncentred vectors of one group minus its centre, each block scaled to unit norm.

        Blocks that are zero or equal to the centre become zero.
        """
        if group not in self.groups:
            return vectors.astype(np.float32)
        centre = self.groups[group].blocks.astype(np.float64)
        blocks = vectors.astype(np.float64).reshape(len(vectors), *centre.shape)
        rest = (blocks - centre) * blocks.any(axis=2, keepdims=True)
        return unit_norm(rest, _NOTHING).reshape(len(vectors), -1).astype(np.float32)

    def uncentred(self, vectors: NDArray[np.floating], group: str) -> Floats:
        """(n, d) the vectors of unit blocks that were centred to (n, d) ``vectors``: no record need be read again.

        With p the published block, c the centre and s > 0 what was left: b = c + s·p has norm 1, and as ‖c‖ < 1 there
        is one such s: (−c·p + √((c·p)² + ‖p‖²(1 − ‖c‖²))) / ‖p‖².
        """
        if group not in self.groups:
            return vectors.astype(np.float32)
        centre = self.groups[group].blocks.astype(np.float64)
        blocks = vectors.astype(np.float64).reshape(len(vectors), *centre.shape)
        along = np.einsum("nbm,bm->nb", blocks, centre)
        square = np.einsum("nbm,nbm->nb", blocks, blocks)
        room = 1 - np.einsum("bm,bm->b", centre, centre)
        root = np.sqrt(np.maximum(along**2 + square * room, 0)) - along
        left = np.divide(root, square, out=np.zeros_like(root), where=square > 0)
        whole = (centre + left[:, :, None] * blocks) * blocks.any(axis=2, keepdims=True)
        return whole.reshape(len(vectors), -1).astype(np.float32)


def unit_norm(rows: NDArray[Number], nothing: float = 0.0) -> NDArray[Number]:
    """(…, d) scaled to unit norm; zeros for rows of a norm of at most ``nothing``."""
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.divide(rows, norms, out=np.zeros_like(rows), where=norms > nothing)


def cosine_from_centring(votes: NDArray[np.integer], shrink: float = SHRINK) -> NDArray[np.float64]:
    """The cosine of two voters after centring if the blocks of all voters were orthogonal.

    With n ≥ 2 votes the centre Σb/(n + s) contains a part of both, so the cosine is −(n + 2s)/((n + s)² − n − 2s):
    −.6 for two votes and s = 2.
    """
    n = votes.astype(np.float64)
    found: NDArray[np.float64] = -(n + 2 * shrink) / ((n + shrink) ** 2 - n - 2 * shrink)
    return found


class Mean:
    """Computes the centre of a group from vectors that arrive in any order, a few at a time.

    ``ids`` (n,) ascending are the models that count, ``voters`` the vote that each has a share of (its author), and
    ``changed`` (n, b) their changed blocks. ``length``: numbers of a block.
    """

    def __init__(self, ids: NDArray[np.int64], voters: Sequence[str], changed: NDArray[np.bool_], length: int) -> None:
        self.ids = ids
        numbers: dict[str, int] = {}
        codes = np.array([numbers.setdefault(voter, len(numbers)) for voter in voters], dtype=np.intp)
        counts = np.zeros((len(numbers), changed.shape[1]))
        np.add.at(counts, codes, changed)
        self.votes = (counts > 0).sum(axis=0).astype(np.int64)
        # The share (n, b) of each model in the mean.
        weights = np.divide(1, counts, out=np.zeros_like(counts), where=counts > 0)
        shares = changed * weights[codes]
        total = shares.sum(axis=0)
        self.shares = np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)
        self.sum = np.zeros((changed.shape[1], length))

    def add(self, ids: NDArray[np.int64], vectors: NDArray[np.floating]) -> None:
        """Add uncentred vectors (n, d); those of models that do not count are ignored."""
        places = np.searchsorted(self.ids, ids).clip(max=max(len(self.ids) - 1, 0))
        counts = np.flatnonzero(self.ids[places] == ids) if len(self.ids) else np.zeros(0, np.intp)
        blocks = vectors[counts].reshape(len(counts), *self.sum.shape).astype(np.float64)
        self.sum += np.einsum("nb,nbm->bm", self.shares[places[counts]], blocks)

    def centre(self) -> GroupCentre:
        """The mean so far, shrunk towards zero."""
        shrunk = self.sum * (self.votes / (self.votes + SHRINK))[:, None]
        return GroupCentre(shrunk.astype(np.float32), self.votes, len(self.ids))


def centre_of(vectors: NDArray[np.floating], voters: Sequence[str], blocks: int) -> GroupCentre:
    """The centre of (n, d) uncentred vectors of one group."""
    changed = changed_blocks(vectors, blocks)
    kept = np.flatnonzero(changed.any(axis=1))
    ids = np.arange(len(kept), dtype=np.int64)
    mean = Mean(ids, [voters[row] for row in kept.tolist()], changed[kept], vectors.shape[1] // blocks)
    mean.add(ids, vectors[kept])
    return mean.centre()
