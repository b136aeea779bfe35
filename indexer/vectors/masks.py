"""Which blocks of a vector were changed, and the similarity of two vectors if some were not.

Vectors of blocks of unit norm are compared by the mean of the block cosines over the blocks that both models changed:
their inner product divided by the number of these blocks. An overlap of fewer than ``fewest_shared`` blocks is weak
evidence, so it counts as if the missing blocks were orthogonal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import fewest_shared

Floats = NDArray[np.float32]
Booleans = NDArray[np.bool_]


def changed_blocks(vectors: NDArray[np.floating], blocks: int) -> Booleans:
    """(n, blocks): which blocks of (n, d) vectors are not zero."""
    return np.asarray(vectors.reshape(len(vectors), blocks, vectors.shape[1] // blocks).any(axis=2))


def shared_blocks(changed: Booleans, other_changed: Booleans) -> Floats:
    """(a, b): how many blocks both changed, from masks (a, blocks) and (b, blocks)."""
    return changed.astype(np.float32) @ other_changed.astype(np.float32).T


def divisors(shared: Floats, blocks: int) -> Floats:
    """The divisor of an inner product: the shared blocks, at least ``fewest_shared``."""
    return np.maximum(shared, np.float32(max(1, fewest_shared(blocks))))


@dataclass(frozen=True, eq=False)
class Masks:
    """The changed blocks of every vector of one (base, representation).

    ``blocks``: blocks of a vector; 0 if it is compared as a whole. ``kinds`` (c, blocks): the different masks, first
    that of all blocks; ``ids`` (m,) ascending are the models of another kind, ``places`` (m,) their rows in ``kinds``.
    """

    blocks: int
    kinds: Booleans
    ids: NDArray[np.int64]
    places: NDArray[np.intp]

    @classmethod
    def none(cls) -> Masks:
        """Vectors are compared as a whole."""
        return cls(0, np.ones((1, 0), bool), np.zeros(0, np.int64), np.zeros(0, np.intp))

    @classmethod
    def of(cls, blocks: int, members: Mapping[bytes, Iterable[int]]) -> Masks:
        """From the ids of the models of each kind; a kind has one byte per block."""
        kinds, ids, kind_numbers = [np.ones(blocks, bool)], [np.zeros(0, np.int64)], [np.zeros(0, np.intp)]
        for kind in sorted(members):
            model_ids = np.fromiter(members[kind], dtype=np.int64)
            mask = np.frombuffer(kind, dtype=np.uint8) > 0
            if mask.all() or not len(model_ids):
                continue
            ids.append(model_ids)
            kind_numbers.append(np.full(len(model_ids), len(kinds), dtype=np.intp))
            kinds.append(mask)
        everyone = np.concatenate(ids)
        order = np.argsort(everyone, kind="stable")
        return cls(blocks, np.stack(kinds), everyone[order], np.concatenate(kind_numbers)[order])

    @property
    def are_all_full(self) -> bool:
        """Whether no vector lacks a block, so that all models have the same divisor."""
        return not len(self.ids)

    def kinds_of(self, ids: NDArray[np.int64]) -> NDArray[np.intp]:
        """(n,) rows of ``kinds`` for these models."""
        if self.are_all_full:
            return np.zeros(len(ids), dtype=np.intp)
        positions = np.searchsorted(self.ids, ids).clip(max=len(self.ids) - 1)
        return np.where(self.ids[positions] == ids, self.places[positions], 0)

    def rows(self, ids: NDArray[np.int64]) -> Booleans:
        """(n, blocks): the changed blocks of these models."""
        return self.kinds[self.kinds_of(ids)]

    def members(self) -> dict[bytes, NDArray[np.int64]]:
        """The ids of the models of every kind except the first, in the form that ``of`` takes."""
        return {
            self.kinds[kind].astype(np.uint8).tobytes(): self.ids[self.places == kind]
            for kind in range(1, len(self.kinds))
        }

    def divisors_by_kind(self, queries: NDArray[np.floating]) -> Floats:
        """(a, c): divisors of the inner products of (a, d) vectors with those of models of each kind."""
        if not self.blocks:
            return np.ones((len(queries), 1), dtype=np.float32)
        return divisors(shared_blocks(changed_blocks(queries, self.blocks), self.kinds), self.blocks)

    def divisors(self, queries: NDArray[np.floating], ids: NDArray[np.int64]) -> Floats:
        """(a, n): divisors of the inner products of (a, d) vectors with those of the models ``ids``.

        (a, 1) if they are the same for all models.
        """
        by_kind = self.divisors_by_kind(queries)
        return by_kind if self.are_all_full else by_kind[:, self.kinds_of(ids)]
