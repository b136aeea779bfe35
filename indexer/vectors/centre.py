"""The centre of a group of models: what the fine-tunes of a base have in common, taken away before they are compared.

All fine-tunes of a base share directions, and adapters share others. So from every block (unit norm) of a model the
mean block of its group, adapters or full fine-tunes, is subtracted, and the rest scaled to unit norm again. The mean
is one vote an author, shrunk by n/(n + 2) for n votes: of one model a third, of none nothing.

LoRA factors that started from the same random A stay near it, so that adapters of one seed are alike whatever their
data are. Where models of one initialisation name two data sets or more, the initialisation has a centre of its own:
their mean, one vote a data set, drawn towards the centre of all adapters by half a model. Of one data set nobody can
tell what comes from the seed and what from the data, and the centre of all adapters serves. A model that names no data
has its author's vote; as it may be on the same data as another, three votes are needed then.

Adapters of one initialisation also differ in how far they moved from it, in directions that belong to the seed. So
what is left of a block counts a quarter along two directions: from the adapters' centre to the initialisation's, and
the initialisation's drift, which is how blocks change with log ‖δW‖ among models of the same data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.masks import changed_blocks

Floats = NDArray[np.float32]

ADAPTER, FULL = "adapter", "full"
GROUPS = (ADAPTER, FULL)

# Votes that pull a centre towards zero, and models that pull that of an initialisation towards the adapters'.
SHRINK = 2.0
INITIALISATION_SHRINK = 0.5

# Votes below which a block of an initialisation has no centre of its own; one more where some are of authors.
FEWEST_VOTES = 2

# In an initialisation a vote of n models counts n/(n + 8): of one model alone it is mostly what that model has of its
# own, which all others would then lack, and be alike by it.
FEW_MODELS = 8.0

# How much of what is left of a block of an initialisation counts in the directions that say how far it moved.
ALONG_SEED = 0.25

# A block this near to its centre has no direction left but rounding.
_NOTHING = 1e-6

_DATA = "data "  # no author's name holds a space

# A group's centre moves once it has so many times the models that it was made of.
GROWTH = 1.5


@dataclass(frozen=True, eq=False)
class GroupCentre:
    """The centre of one group: ``blocks`` (b, m), the ``votes`` (b,) behind each, and the models it was made of.

    ``drift`` (b, m), only of an initialisation: the regression of blocks on the log of the norm of the whole change,
    within data sets and not normalised; zeros where it is not known.
    """

    blocks: Floats
    votes: NDArray[np.int64]
    models: int
    drift: Floats | None = None

    @classmethod
    def nothing(cls, blocks: int, length: int) -> GroupCentre:
        """Of a group without models."""
        return cls(np.zeros((blocks, length), np.float32), np.zeros(blocks, np.int64), 0)

    def is_outgrown(self, models: int) -> bool:
        """Whether the group has grown by half since."""
        return models > self.models and models >= GROWTH * self.models


def initialisation_group(initialisation: int) -> str:
    """The name of the group of models of one initialisation (``records.initialisation``)."""
    return f"initialisation {initialisation}"


def data_vote(datasets: Sequence[str]) -> str:
    """Whose vote a model of an initialisation has a share of, by the data sets that it names."""
    return f"{_DATA}{' '.join(datasets)}"


def fewest_votes(voters: Iterable[str]) -> int:
    """How many of these votes, by ``data_vote`` or of authors, an initialisation needs for a centre of its own."""
    return FEWEST_VOTES + any(not voter.startswith(_DATA) for voter in voters)


@dataclass(frozen=True, eq=False)
class Centre:
    """The centres of all groups of one (base, representation), by name: GROUPS, and some initialisations."""

    groups: Mapping[str, GroupCentre]

    def group_of(self, vector_group: str, initialisation: int | None) -> str:
        """Whose centre is subtracted from a model: its initialisation's where that has one, else its group's."""
        own = vector_group if initialisation is None else initialisation_group(initialisation)
        return own if own in self.groups else vector_group

    @property
    def version(self) -> str:
        """A digest (16 hex digits) of all their numbers: vectors of two centres never meet."""
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
        """(n, d) published vectors of uncentred ones of a group: what is left of each block, scaled to unit norm.

        A block that was not changed stays zero, and so does one that is its centre.
        """
        centre = self.groups[group].blocks.astype(np.float64)
        blocks = vectors.astype(np.float64).reshape(len(vectors), *centre.shape)
        rest = (blocks - centre) * blocks.any(axis=2, keepdims=True)
        for line in self._lines(group):
            rest -= (1 - ALONG_SEED) * np.einsum("nbm,bm->nb", rest, line)[:, :, None] * line
        norms = np.linalg.norm(rest, axis=2, keepdims=True)
        rest = np.divide(rest, norms, out=np.zeros_like(rest), where=norms > _NOTHING)
        return rest.reshape(len(vectors), -1).astype(np.float32)

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
        """Of an initialisation, the directions (b, m) that say how far a model moved: of unit norm, or zero.

        They are at right angles to each other in every block.
        """
        if group in GROUPS:
            return []
        own = self.groups[group]
        first = _unit(own.blocks.astype(np.float64) - self.groups[ADAPTER].blocks)
        if own.drift is None:
            return [first]
        drift = _unit(own.drift.astype(np.float64))
        return [first, _unit(drift - np.einsum("bm,bm->b", drift, first)[:, None] * first)]


def _unit(blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(blocks, axis=1, keepdims=True)
    return np.divide(blocks, norms, out=np.zeros_like(blocks), where=norms > _NOTHING)


def cosine_of_strangers(votes: NDArray[np.integer], shrink: float = SHRINK) -> NDArray[np.float64]:
    """What centring alone makes of the cosine of two voters whose blocks were at right angles, as was everybody's.

    With n ≥ 2 votes the centre is Σb/(n + s), which holds a part of both: −(n + 2s)/((n + s)² − n − 2s), −.6 for two
    votes and s = 2. Of an initialisation that is so with what is left without the adapters' centre.
    """
    n = votes.astype(np.float64)
    found: NDArray[np.float64] = -(n + 2 * shrink) / ((n + shrink) ** 2 - n - 2 * shrink)
    return found


def vote_shares(
    voters: Sequence[str], changed: NDArray[np.bool_], few: float = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """What each block of each model counts in the mean over votes, (n, b), and the votes of each, (b,).

    ``voters``: whose vote each model has a share of, its author's mostly. ``changed`` (n, b). A vote of n models counts
    n/(n + ``few``). Columns of the shares sum to 1, or to 0 where nobody changed the block.
    """
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(voter, len(numbers)) for voter in voters], dtype=np.intp)
    counts = np.zeros((len(numbers), changed.shape[1]))
    np.add.at(counts, codes, changed)
    votes = (counts > 0).sum(axis=0)
    weights = np.divide(1, counts + few, out=np.zeros_like(counts), where=counts > 0)
    shares = changed * weights[codes]
    total = shares.sum(axis=0)
    return np.divide(shares, total, out=np.zeros_like(shares), where=total > 0), votes


def drift_slopes(voters: Sequence[str], changed: NDArray[np.bool_], norms: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far the log of the norm (n,) of each model is above the mean of its voter, (n, b); 0 in unchanged blocks.

    With these weights the sum of blocks is their regression on how far models moved, within voters. A voter of one
    model adds nothing.
    """
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(voter, len(numbers)) for voter in voters], dtype=np.intp)
    counts, sums = np.zeros((2, len(numbers), changed.shape[1]))
    logs = np.log(np.maximum(norms, 1e-30))[:, None] * changed
    np.add.at(counts, codes, changed)
    np.add.at(sums, codes, logs)
    return np.where(changed & (counts[codes] > 1), logs - (sums / np.maximum(counts, 1))[codes], 0.0)


class Mean:
    """The centre of a group as its vectors go by; ``shares`` and ``votes`` as ``vote_shares`` gives them.

    Of an initialisation: ``slopes`` as ``drift_slopes`` gives them, and the ``fewest`` votes of a centre of its own.
    """

    def __init__(
        self,
        ids: NDArray[np.int64],
        shares: NDArray[np.float64],
        votes: NDArray[np.int64],
        length: int,
        slopes: NDArray[np.float64] | None = None,
        fewest: int = 0,
    ) -> None:
        self.ids, self.shares, self.votes, self.slopes, self.fewest = ids, shares, votes, slopes, fewest
        self.sum = np.zeros((shares.shape[1], length))
        self.drift = np.zeros_like(self.sum)

    def add(self, ids: NDArray[np.int64], vectors: NDArray[np.floating]) -> None:
        """Uncentred vectors (n, d) of some models; those that have no share do not count."""
        places = np.searchsorted(self.ids, ids).clip(max=max(len(self.ids) - 1, 0))
        counts = np.flatnonzero(self.ids[places] == ids) if len(self.ids) else np.zeros(0, np.intp)
        blocks = vectors[counts].reshape(len(counts), *self.sum.shape).astype(np.float64)
        self.sum += np.einsum("nb,nbm->bm", self.shares[places[counts]], blocks)
        if self.slopes is not None:
            self.drift += np.einsum("nb,nbm->bm", self.slopes[places[counts]], blocks)

    def centre(self, above: GroupCentre | None = None) -> GroupCentre:
        """The mean so far, shrunk towards zero; of an initialisation towards the adapters' centre, ``above``.

        Blocks in which an initialisation has no centre of its own have no votes.
        """
        votes = self.votes.astype(np.int64)
        if above is None:
            shrunk = self.sum * (self.votes / (self.votes + SHRINK))[:, None]
            return GroupCentre(shrunk.astype(np.float32), votes, len(self.ids))
        models = np.count_nonzero(self.shares, axis=0)
        is_enough = (self.votes >= self.fewest)[:, None]
        own = np.where(is_enough, (models / (models + INITIALISATION_SHRINK))[:, None], 0.0)
        shrunk = own * self.sum + (1 - own) * above.blocks
        drift = np.where(is_enough, self.drift, 0.0).astype(np.float32)
        return GroupCentre(shrunk.astype(np.float32), np.where(is_enough[:, 0], votes, 0), len(self.ids), drift)


def centre_of(
    vectors: NDArray[np.floating],
    voters: Sequence[str],
    blocks: int,
    above: GroupCentre | None = None,
    norms: Sequence[float] | None = None,
) -> GroupCentre:
    """The centre of (n, d) uncentred vectors of one group, all at once; ``above`` as in ``Mean.centre``.

    ``norms``: of an initialisation, the norm of the whole change of every model.
    """
    changed = changed_blocks(vectors, blocks)
    kept = np.flatnonzero(changed.any(axis=1))
    few = 0.0 if above is None else FEW_MODELS
    of_kept = [voters[row] for row in kept.tolist()]
    shares, votes = vote_shares(of_kept, changed[kept], few)
    slopes = None if norms is None else drift_slopes(of_kept, changed[kept], np.asarray(norms, dtype=np.float64)[kept])
    length = vectors.shape[1] // blocks
    mean = Mean(np.arange(len(kept), dtype=np.int64), shares, votes, length, slopes, fewest_votes(of_kept))
    mean.add(mean.ids, vectors[kept])
    return mean.centre(above)


def joined_centres(parts: Iterable[tuple[str, GroupCentre]]) -> Centre:
    """Centres by group, in the order of GROUPS; then those of initialisations."""
    found = dict(parts)
    return Centre({name: found[name] for name in (*GROUPS, *found) if name in found})
