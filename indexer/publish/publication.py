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

    Models without an entry here are left unchanged, as are ``rejected_rows`` and ``index`` if they are None. Models
    that are ``withdrawn`` are deleted: they were renamed or removed. ``purged``: also rewrite the vector files that
    contain them, which otherwise happens only some publishes later.
    """

    base: StoredBase
    aliases: Sequence[str]
    entries: Sequence[Entry]
    rank: int
    withdrawn: Sequence[str] = ()
    purged: bool = False
    rejected_rows: Sequence[Row] | None = None
    build: Row | None = None
    index: IndexChange | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
