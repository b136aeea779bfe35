"""The representation ``vocabulary``: the tokens of the training text, from the rows of the input embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from indexer.errors import AtlasError
from indexer.records.representations.embedding import OfEmbedding
from indexer.records.representations.representation import Base, Vector
from indexer.records.tokens import MISSING, UNSURE, token_rows
from indexer.records.words import squared_ranks
from indexer.vectors.centre import FULL, GROUPS

if TYPE_CHECKING:
    from indexer.records.record import Record


@dataclass(frozen=True, kw_only=True)
class OfTokens(OfEmbedding):
    """Made from how far the rows of the input embedding moved, not from deltas; many records have no such rows.

    Its vectors are (2n,): in the first half how far the n rows moved or, in the second, their shares of the change of
    a tied head. The other half is zero, so that the two kinds have their own centres and are never compared with each
    other. A row counts by the square of its rank among the rows that moved, from 0 (untouched) to 1, minus the mean
    over the rows: sizes depend on the learning rate, their order much less. A missing row counts as the mean. On two
    families of fine-tunes, squared ranks separated datasets better than ranks, sizes, powers and logarithms of sizes,
    or one bit.
    """

    def is_held_by(self, record: Record) -> bool:
        """Whether rows of its input embedding moved, not all alike, and are those of the base that are read today."""
        codes = self.codes_of(record)
        return codes is not None and len(np.unique(codes[codes != MISSING] % UNSURE)) > 1  # unsure rows count as 0

    def is_defined_for(self, base: Base) -> bool:
        """Whether the base has an input embedding."""
        return bool(base.vocabulary)

    def expected_length(self, record: Record) -> int | None:
        """Two numbers for each row that is read."""
        return None if record.tokens is None else 2 * len(token_rows(record.tokens.base_vocabulary))

    def compute(self, record: Record) -> Vector:
        """See the class. Raises AtlasError if the record does not hold it."""
        tokens = record.tokens
        if tokens is None or not self.is_held_by(record):
            raise AtlasError(
                f"{record.identity.model} has no {self.name} vector: no row of its input embedding is known to have "
                "moved (it is an adapter, or its embedding is frozen or cannot be compared).",
                "Use another representation.",
            )
        ranks = squared_ranks(tokens.codes)
        block = np.nan_to_num(ranks - np.nanmean(ranks))
        unit, other = (block / np.linalg.norm(block)).astype(np.float32), np.zeros(len(block), np.float32)
        return np.concatenate([other, unit] if tokens.is_share else [unit, other])

    def absent(self, model: str) -> AtlasError:
        """The error for an adapter, or a model whose embedding did not move."""
        return AtlasError(
            f"{model} has no {self.name} vector: it is an adapter, or its input embedding did not move.",
            "Leave `representation` out.",
        )


VOCABULARY = OfTokens(
    name="vocabulary",
    version=1,
    description="the tokens of the training text: how far each row of the input embedding moved, minus the centre of "
    "the full fine-tunes; not of adapters",
    centred=(FULL,),
    blocks=2,
    offered_to=GROUPS,
    is_partial=True,
    lacking="adapters, and models whose input embedding did not move",
)
