"""The unit of work: one model at one commit against one base, and how its result is to be computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from indexer.names import ModelRef
from indexer.records.identity import Identity, Spec
from indexer.records.parent import Parent


@dataclass(frozen=True)
class Unit:
    """One thing to do. ``commit`` pins the model; ``filenames`` are the names the listing gave, if it did.

    ``parent`` is what an adapter stands on, None where that is the base or nobody can tell; ``is_on_base``: it is known
    to be the base, whatever name the adapter gives it. ``vector_length``: about how many numbers a vector has, where
    that can be chosen; None for the usual one. Vectors in a record are uncentred. ``row_base`` is what the
    listing's row says that an adapter stands on, "" for nothing; None where no row was looked at.
    """

    model: ModelRef
    commit: str
    base: str
    base_commit: str
    relation: str
    spec: Spec
    filenames: tuple[str, ...] | None = None
    device: str = "cpu"
    keep_factors: bool = True
    representations: tuple[str, ...] = ("input",)
    vector_length: int | None = None
    card: Mapping[str, Any] | None = None
    parent: Parent | None = None
    is_on_base: bool = False
    row_base: str | None = None

    @property
    def identity(self) -> Identity:
        """What names the record."""
        return Identity(
            model=self.model.id,
            commit=self.commit,
            base=self.base,
            base_commit=self.base_commit,
            relation=self.relation,
            spec=self.spec,
            subfolder=self.model.subfolder,
            parent=self.parent.name if self.parent else "",
        )


@dataclass
class Traffic:
    """Bytes read of one model and bytes of its weight files, told also where it comes to nothing."""

    read: int = 0
    total: int = 0
