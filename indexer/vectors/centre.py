"""The centre of a group of models: what the fine-tunes of a base have in common, subtracted before they are compared.

All fine-tunes of a base share directions, and adapters share others. So from every block (unit norm) of a model the
mean block of its group, adapters or full fine-tunes, is subtracted, and the rest is scaled to unit norm again. Every
author has one vote in the mean, which is shrunk by n/(n + 2) for n votes: to a third for one vote.

LoRA factors that started from the same random A stay near it, so that adapters of one seed are similar whatever their
data are. If models of one initialisation name two datasets or more, the initialisation has a centre of its own: their
mean, with one vote per dataset, shrunk towards the centre of all adapters by half a model. With one dataset the effects
of seed and data cannot be separated, and the centre of all adapters is used. A model that names no dataset has the
vote of its author; three votes are needed then, because it may have the same data as another model.

Adapters of one initialisation also differ in how far they moved from it, in directions that belong to the seed. So
the rest of a block is scaled to a quarter along two directions: from the adapters' centre to the initialisation's,
and the initialisation's drift, which is how blocks change with log ‖δW‖ among models of the same data (if there are
enough of these).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.masks import changed_blocks

Floats = NDArray[np.float32]
Number = TypeVar("Number", np.float32, np.float64)

ADAPTER, FULL = "adapter", "full"
GROUPS = (ADAPTER, FULL)

# Strength of the shrinkage of a group towards zero, in votes, and of an initialisation towards the adapters, in models.
SHRINK = 2.0
INITIALISATION_SHRINK = 0.5

# The fewest votes for a centre of an initialisation's own; one more if some are votes of authors.
FEWEST_VOTES = 2

# In an initialisation a vote of n models counts n/(n + 8): the mean of a single model is mostly particular to it, and
# subtracting it would make the other models similar.
FEW_MODELS = 8.0

# The drift of an initialisation needs this many models beyond the first of every voter. It is fitted within voters, so
# that of few models is made of the models themselves: scaling along it makes models of one voter alike, whatever their
# data are (docs/arena.md).
FEWEST_OF_DRIFT = 10

# The scale of the rest of a block along the directions in which models of an initialisation moved.
ALONG_SEED = 0.25

# The rest of a block that is this close to its centre is only rounding.
_NOTHING = 1e-6

_DATA = "data "  # names of authors contain no space

# A group's centre moves once the group has this many times the models that it was computed from.
GROWTH = 1.5


@dataclass(frozen=True, eq=False)
class GroupCentre:
    """The centre of one group: ``blocks`` (b, m), the number of ``votes`` (b,) in each, and the number of models.

    ``drift`` (b, m), only for an initialisation: the regression of blocks on the log of the norm of the whole change,
    within datasets and not normalised; zeros if it is unknown or its models are too few.
    """

    blocks: Floats
    votes: NDArray[np.int64]
    models: int
    drift: Floats | None = None

    @classmethod
    def nothing(cls, blocks: int, length: int) -> GroupCentre:
        """The centre of a group without models."""
        return cls(np.zeros((blocks, length), np.float32), np.zeros(blocks, np.int64), 0)

    def is_outgrown(self, models: int) -> bool:
        """Whether the group has grown by half since, to this number of models."""
        return models > self.models and models >= GROWTH * self.models


def initialisation_group(initialisation: int) -> str:
    """The name of the group of models of one initialisation (``records.initialisation``)."""
    return f"initialisation {initialisation}"


def data_vote(datasets: Sequence[str]) -> str:
    """The voter of a model of an initialisation that names these datasets."""
    return f"{_DATA}{' '.join(datasets)}"


def fewest_votes(voters: Iterable[str]) -> int:
    """How many different voters an initialisation needs for a centre of its own, if these are its voters."""
    return FEWEST_VOTES + any(not voter.startswith(_DATA) for voter in voters)


@dataclass(frozen=True, eq=False)
class Centre:
    """The centres of one (base, representation) by the name of the group: GROUPS, and some initialisations."""

    groups: Mapping[str, GroupCentre]

    def group_of(self, vector_group: str, initialisation: int | None) -> str:
        """The group whose centre is subtracted from a model: its initialisation if that has one, else its own."""
        own = vector_group if initialisation is None else initialisation_group(initialisation)
        return own if own in self.groups else vector_group

    @property
    def version(self) -> str:
        """A digest (16 hex digits) of all numbers; vectors of different versions cannot be compared."""
        digest = hashlib.sha256()
        for name in sorted(self.groups):
            one = self.groups[name]
            digest.update(f"{name}|{one.blocks.shape}|{one.models}|".encode())
            digest.update(np.ascontiguousarray(one.blocks, dtype="<f4").tobytes())
            digest.update(np.ascontiguousarray(one.votes, dtype="<i8").tobytes())
            if one.drift is not None:
                digest.update(np.ascontiguousarray(one.drift, dtype="<f4").tobytes())
        return digest.hexdigest()[:16]

    def centred(self, vectors: NDArray[np.floating], group: str) -> Floats:
        """(n, d) uncentred vectors of one group minus its centre, each block scaled to unit norm.

        Blocks that are zero or equal to the centre become zero.
        """
        centre = self.groups[group].blocks.astype(np.float64)
        blocks = vectors.astype(np.float64).reshape(len(vectors), *centre.shape)
        rest = (blocks - centre) * blocks.any(axis=2, keepdims=True)
        for line in self._lines(group):
            rest -= (1 - ALONG_SEED) * np.einsum("nbm,bm->nb", rest, line)[:, :, None] * line
        return unit_norm(rest, _NOTHING).reshape(len(vectors), -1).astype(np.float32)

    def uncentred(self, vectors: NDArray[np.floating], group: str) -> Floats:
        """(n, d) the vectors of unit blocks that were centred to (n, d) ``vectors``: no record need be read again.

        With p the published block, its parts along the seed's lines restored, c the centre and s > 0 what was left:
        b = c + s·p has norm 1, and as ‖c‖ < 1 there is one such s: (−c·p + √((c·p)² + ‖p‖²(1 − ‖c‖²))) / ‖p‖².
        """
        centre = self.groups[group].blocks.astype(np.float64)
        blocks = vectors.astype(np.float64).reshape(len(vectors), *centre.shape)
        for line in self._lines(group):
            blocks = blocks + (1 / ALONG_SEED - 1) * np.einsum("nbm,bm->nb", blocks, line)[:, :, None] * line
        along = np.einsum("nbm,bm->nb", blocks, centre)
        square = np.einsum("nbm,nbm->nb", blocks, blocks)
        room = 1 - np.einsum("bm,bm->b", centre, centre)
        root = np.sqrt(np.maximum(along**2 + square * room, 0)) - along
        left = np.divide(root, square, out=np.zeros_like(root), where=square > 0)
        whole = (centre + left[:, :, None] * blocks) * blocks.any(axis=2, keepdims=True)
        return whole.reshape(len(vectors), -1).astype(np.float32)

    def _lines(self, group: str) -> list[NDArray[np.float64]]:
        """The directions (b, m) in which models of an initialisation moved; blocks have unit norm or are zero.

        They are orthogonal to each other in every block.
        """
        if group in GROUPS:
            return []
        own = self.groups[group]
        first = unit_norm(own.blocks.astype(np.float64) - self.groups[ADAPTER].blocks, _NOTHING)
        if own.drift is None:
            return [first]
        drift = unit_norm(own.drift.astype(np.float64), _NOTHING)
        return [first, unit_norm(drift - np.einsum("bm,bm->b", drift, first)[:, None] * first, _NOTHING)]


def unit_norm(rows: NDArray[Number], nothing: float = 0.0) -> NDArray[Number]:
    """(…, d) scaled to unit norm; zeros for rows of a norm of at most ``nothing``."""
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.divide(rows, norms, out=np.zeros_like(rows), where=norms > nothing)


def cosine_from_centring(votes: NDArray[np.integer], shrink: float = SHRINK) -> NDArray[np.float64]:
    """The cosine of two voters after centring if the blocks of all voters were orthogonal.

    With n ≥ 2 votes the centre Σb/(n + s) contains a part of both, so the cosine is −(n + 2s)/((n + s)² − n − 2s):
    −.6 for two votes and s = 2. For an initialisation this holds for the rest without the adapters' centre.
    """
    n = votes.astype(np.float64)
    found: NDArray[np.float64] = -(n + 2 * shrink) / ((n + shrink) ** 2 - n - 2 * shrink)
    return found


class Mean:
    """Computes the centre of a group from vectors that arrive in any order, a few at a time.

    ``ids`` (n,) ascending are the models that count, ``voters`` the vote that each has a share of (mostly its author),
    and ``changed`` (n, b) their changed blocks. ``norms`` (n,), only for an initialisation: the norm of each model's
    whole change. ``length``: numbers of a block.
    """

    def __init__(
        self,
        ids: NDArray[np.int64],
        voters: Sequence[str],
        changed: NDArray[np.bool_],
        length: int,
        norms: NDArray[np.float64] | None = None,
    ) -> None:
        self.ids = ids
        self.fewest = fewest_votes(voters)
        numbers: dict[str, int] = {}
        codes = np.array([numbers.setdefault(voter, len(numbers)) for voter in voters], dtype=np.intp)
        counts = np.zeros((len(numbers), changed.shape[1]))
        np.add.at(counts, codes, changed)
        self.votes = (counts > 0).sum(axis=0).astype(np.int64)
        # The share (n, b) of each model in the mean: votes count alike, or n/(n + FEW_MODELS) with n models.
        few = 0.0 if norms is None else FEW_MODELS
        weights = np.divide(1, counts + few, out=np.zeros_like(counts), where=counts > 0)
        shares = changed * weights[codes]
        total = shares.sum(axis=0)
        self.shares = np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)
        self.sum = np.zeros((changed.shape[1], length))
        # With these weights (n, b) the sum of blocks is their regression on log norms, within voters. The only model
        # of a voter adds nothing.
        self.slopes: NDArray[np.float64] | None = None
        self.drift = np.zeros_like(self.sum)
        if norms is not None:
            logs = np.log(np.maximum(norms, 1e-30))[:, None] * changed
            sums = np.zeros_like(counts)
            np.add.at(sums, codes, logs)
            above_mean = logs - (sums / np.maximum(counts, 1))[codes]
            is_enough = np.maximum(counts - 1, 0).sum(axis=0) >= FEWEST_OF_DRIFT
            self.slopes = np.where(changed & (counts[codes] > 1) & is_enough, above_mean, 0.0)

    def add(self, ids: NDArray[np.int64], vectors: NDArray[np.floating]) -> None:
        """Add uncentred vectors (n, d); those of models that do not count are ignored."""
        places = np.searchsorted(self.ids, ids).clip(max=max(len(self.ids) - 1, 0))
        counts = np.flatnonzero(self.ids[places] == ids) if len(self.ids) else np.zeros(0, np.intp)
        blocks = vectors[counts].reshape(len(counts), *self.sum.shape).astype(np.float64)
        self.sum += np.einsum("nb,nbm->bm", self.shares[places[counts]], blocks)
        if self.slopes is not None:
            self.drift += np.einsum("nb,nbm->bm", self.slopes[places[counts]], blocks)

    def centre(self, above: GroupCentre | None = None) -> GroupCentre:
        """The mean so far, shrunk towards zero; for an initialisation towards the adapters' centre, ``above``.

        Blocks in which an initialisation has no centre of its own get no votes.
        """
        if above is None:
            shrunk = self.sum * (self.votes / (self.votes + SHRINK))[:, None]
            return GroupCentre(shrunk.astype(np.float32), self.votes, len(self.ids))
        models = np.count_nonzero(self.shares, axis=0)
        is_enough = (self.votes >= self.fewest)[:, None]
        own = np.where(is_enough, (models / (models + INITIALISATION_SHRINK))[:, None], 0.0)
        shrunk = own * self.sum + (1 - own) * above.blocks
        drift = np.where(is_enough, self.drift, 0.0).astype(np.float32)
        return GroupCentre(shrunk.astype(np.float32), np.where(is_enough[:, 0], self.votes, 0), len(self.ids), drift)


def centre_of(
    vectors: NDArray[np.floating],
    voters: Sequence[str],
    blocks: int,
    above: GroupCentre | None = None,
    norms: Sequence[float] | None = None,
) -> GroupCentre:
    """The centre of (n, d) uncentred vectors of one group; ``above`` as in ``Mean.centre``, ``norms`` as in Mean."""
    changed = changed_blocks(vectors, blocks)
    kept = np.flatnonzero(changed.any(axis=1))
    of_kept = None if norms is None else np.asarray(norms, dtype=np.float64)[kept]
    ids = np.arange(len(kept), dtype=np.int64)
    mean = Mean(ids, [voters[row] for row in kept.tolist()], changed[kept], vectors.shape[1] // blocks, of_kept)
    mean.add(ids, vectors[kept])
    return mean.centre(above)
