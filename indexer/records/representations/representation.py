"""A representation: named, versioned, a pure function from what an atlas knows of a model to a vector of fixed length.

Publishing, verifying and querying ask a representation for everything that they need to know of it, so that a kind of
representation is a class in a file of this folder and a line in ``registry.py``. Vectors computed here are *uncentred*:
the atlas subtracts the centre of the model's group when it publishes them (see ``indexer.vectors.centre``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from indexer.records.sketch import USUAL_BUDGET

if TYPE_CHECKING:
    import duckdb

    from indexer.database.connection import Connection
    from indexer.records.record import Record

Vector = NDArray[np.float32]


class Base(Protocol):
    """What a representation may ask about a base."""

    @property
    def base(self) -> str:
        """Its id."""

    @property
    def vocabulary(self) -> int:
        """Rows of its input embedding; 0 if it has none."""

    @property
    def words(self) -> tuple[str, ...]:
        """The word of each of the rows that are read, "" for none; () if they are not known."""


@dataclass(frozen=True, kw_only=True)
class Representation:
    """One way to turn a model into a vector. Subclasses say which models have one, and compute it.

    Most are made from records: ``is_held_by`` and ``compute``. Those with ``from_tables`` are made from other tables of
    an atlas, of all models of a base at once: ``of_models``.

    Two vectors are compared by their cosine; if they have several blocks (``blocks_among``), by the mean cosine of the
    blocks that both models have.

    Attributes:
        per_delta: a vector consists of blocks of equal length, one for each delta in the order of
            ``DeltaKey.sort_key``. Only then can a similarity be explained by layer and family.
        centred: the groups of models whose centre the atlas subtracts (``indexer.vectors.centre``).
        blocks: how many blocks of a vector are compared one by one, if these are not deltas; 0: it is compared whole.
        budget: about how many numbers a vector has; None if the user cannot choose.
        adapters_by: another representation, whose vectors two adapters are compared by if the start of one of them is
            not known (``indexer.vectors.table``). It is published before this one, and has no neighbours of its own.
        offered_to: the groups of models of which one suffices to publish it unasked.
        is_partial: a model may lack it although all of the model was read.
        lacking: which models lack it, or why, as the end of a sentence.
        from_tables: it is not made from records, so that a model that is not indexed has none.
        has_lists: lists of neighbours, and the null distribution within a base, are made of it.
    """

    name: str
    version: int
    description: str
    per_delta: bool = False
    centred: tuple[str, ...] = ()
    blocks: int = 0
    budget: int | None = None
    adapters_by: str | None = None
    offered_to: tuple[str, ...] = ()
    is_partial: bool = False
    lacking: str = "their records hold no factors"
    from_tables: bool = False
    has_lists: bool = True

    def with_words(self, words: Sequence[str]) -> Self:
        """The same for the models of a base whose rows stand for these words (``Base.words``)."""
        return self

    @property
    def length(self) -> int | None:
        """How many numbers a vector has, if the base alone decides it."""
        return None

    @property
    def needs_all_rows(self) -> bool:
        """Whether a sampled record lacks it."""
        return False

    @property
    def tag(self) -> str:
        """Name, version and an unusual budget. Vectors with different tags are never compared."""
        length = "" if self.budget in (None, USUAL_BUDGET) else f".{self.budget}"
        return f"{self.name}.{self.version}{length}"

    def of_length(self, budget: int | None) -> Self:
        """The same with about ``budget`` numbers; itself if its length is fixed or ``budget`` is None."""
        return self if budget is None or self.budget is None else replace(self, budget=budget)

    def blocks_among(self, deltas: int) -> int:
        """How many blocks of a vector are compared one by one, for a base of so many deltas; 0: it is whole."""
        return deltas if self.per_delta and self.centred else self.blocks

    def expected_length(self, record: Record) -> int | None:
        """The length that the vector of ``record`` must have; None if only the computation can say."""
        return None

    def is_held_by(self, record: Record) -> bool:
        """Whether ``record`` holds the vector, or what it is computed from."""
        raise NotImplementedError

    def is_defined_for(self, base: Base) -> bool:
        """Whether models of ``base`` can have it."""
        return True

    def mismatch(self, record: Record, base: Base) -> str:
        """Why a record that holds it cannot be one of a model of ``base``; empty if it can."""
        return ""

    def compute(self, record: Record) -> Vector:
        """The float32 vector of a record that holds it, not normalised as a whole.

        Raises AtlasError if the record does not hold what it is computed from.
        """
        raise NotImplementedError

    def of(self, record: Record) -> Vector:
        """The uncentred vector, computed even if one is stored; zeros if nothing changed."""
        vector = self.compute(record)
        return np.zeros_like(vector) if record.is_copy else vector

    def vector(self, record: Record) -> Vector:
        """The uncentred vector of ``record``. Raises AtlasError if the record does not hold it."""
        return self.of(record)

    def of_models(self, connection: duckdb.DuckDBPyConnection | Connection, base: str) -> Mapping[int, Vector]:
        """With ``from_tables``: the vectors of all models of a base that have one, by model id."""
        raise NotImplementedError

    def absent(self, model: str) -> AtlasError:
        """The error for an indexed model that was read in full and has no such vector."""
        return AtlasError(f"{model} has no {self.name!r} vector.", "Run `index verify`.")
