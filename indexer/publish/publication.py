"""What a publish is to say about one base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from indexer.deltas.stored_base import StoredBase
from indexer.publish.rows import Entry, Row
from indexer.records.thresholds import Thresholds
from indexer.vectors.choice import IndexChange


@dataclass(frozen=True)
class Publication:
    """What is to be said about one base: entries of its listing, and the build that brought them here.

    Entries that are not named stay as they are, and so do ``bad_rows`` and the ``index`` where they are None; models
    that are ``withdrawn`` go: they are known by another name, or were removed. ``purged``: no file of vectors holds
    one of them any more, which else is so only after some more publishes.
    """

    base: StoredBase
    aliases: Sequence[str]
    entries: Sequence[Entry]
    rank: int
    withdrawn: Sequence[str] = ()
    purged: bool = False
    bad_rows: Sequence[Row] | None = None
    build: Row | None = None
    index: IndexChange | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
