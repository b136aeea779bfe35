"""The representation ``words``: the words of the training text, by which models of different bases are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Self

import numpy as np

from indexer.errors import AtlasError
from indexer.records.representations.embedding import OfEmbedding
from indexer.records.representations.representation import Base, Vector
from indexer.records.tokens import MISSING, UNSURE
from indexer.records.words import largest_of_words, squared_ranks
from indexer.vectors.centre import FULL, GROUPS

if TYPE_CHECKING:
    from indexer.records.record import Record


@dataclass(frozen=True, kw_only=True)
class OfWords(OfEmbedding):
    """Made from how far the rows of the input embedding moved whose tokens are words; ``words``: those of a base.

    A vector has a number for each different word of the base, in alphabetical order: the largest of its tokens' squared
    ranks among all rows that moved, minus the mean over the words. So it does not depend on the learning rate, and
    ``indexer.vectors.across`` compares models of two bases over the words that both have. Shares of the change of a
    tied head are ranked as sizes are. A missing row counts as the mean.
    """

    words: tuple[str, ...] = ()

    def with_words(self, words: Sequence[str]) -> Self:
        """The same with these words."""
        return replace(self, words=tuple(words))

    @property
    def length(self) -> int:
        """A number for each different word."""
        return len(different_words(self.words))

    def is_held_by(self, record: Record) -> bool:
        """Whether rows of words are known to have moved, not all alike."""
        codes = self.codes_of(record)
        if codes is None or not self.words:
            return False
        if len(codes) != len(self.words):
            return True  # a model of another base, see ``mismatch``
        is_word = np.array([word != "" for word in self.words])
        return len(np.unique(codes[is_word & (codes != MISSING)] % UNSURE)) > 1  # unsure counts as 0

    def is_defined_for(self, base: Base) -> bool:
        """Whether the words of the base are known."""
        return any(base.words)

    def expected_length(self, record: Record) -> int | None:
        """The number of different words."""
        return self.length

    def compute(self, record: Record) -> Vector:
        """See the class. Raises AtlasError if the record does not hold it."""
        if record.tokens is None or not self.is_held_by(record):
            raise self.absent(record.identity.model)
        words, values = largest_of_words(squared_ranks(record.tokens.codes), self.words)
        positions = {word: position for position, word in enumerate(different_words(self.words))}
        vector = np.zeros(len(positions))
        vector[[positions[word] for word in words]] = values - values.mean()
        return (vector / np.linalg.norm(vector)).astype(np.float32)

    def absent(self, model: str) -> AtlasError:
        """The error for an adapter, a model whose embedding did not move, or a base without a tokenizer."""
        return AtlasError(
            f"{model} has no {self.name!r} vector: {self.lacking} have none.",
            "Ask which models were tuned on texts like its own: query ask FILE --all-bases.",
        )


@lru_cache(maxsize=64)
def different_words(words: Sequence[str]) -> tuple[str, ...]:
    """The different words of the rows of a base (a tuple), in alphabetical order, without ""."""
    return tuple(sorted(set(words) - {""}))


WORDS = OfWords(
    name="words",
    version=1,
    description="the words of the training text, for models of different bases: how far the rows of words moved in the "
    "input embedding, minus the centre of the full fine-tunes; not of adapters",
    centred=(FULL,),
    blocks=1,
    offered_to=GROUPS,
    is_partial=True,
    has_lists=False,
    lacking="adapters, models whose input embedding did not move, and models of bases without a tokenizer",
)
