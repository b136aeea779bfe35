"""The questions that a crawl asks the Hub's listing, and what a page of answers contains. Plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from indexer.listing.claims import Claim

RawRow = dict[str, Any]

# Fields that a listing can return (the Hub refuses childrenModelCount and usedStorage there).
EXPANDED = (
    "author", "baseModels", "cardData", "config", "createdAt", "disabled", "downloads", "gated", "lastModified",
    "library_name", "likes", "pipeline_tag", "private", "safetensors", "sha", "siblings", "tags",
)  # fmt: skip

_LONGEST_RAW = 2_000
_FIRST_OF_BAD = ("id", "private")
_NAMES_A_PAGE = 100


@dataclass(frozen=True)
class CrawlRequest:
    """What to look for. ``ids``: every id of the base, the canonical one first.

    ``since`` and ``author`` narrow the questions, so such a crawl cannot notice that a model was deleted.
    ``max_aliases``: quantised copies of the base whose adapters count as its own; ``max_parents``: fine-tunes
    whose fine-tunes are asked for, down to ``max_depth``; ``max_candidates``: untagged models examined.
    """

    ids: tuple[str, ...]
    relations: tuple[str, ...] = ("finetune", "adapter")
    discover: str = "tags"
    descendants: bool = False
    since: datetime | None = None
    author: str | None = None
    max_aliases: int = 20
    max_parents: int = 500
    max_depth: int = 3
    max_candidates: int = 5_000
    page_size: int = 200

    @property
    def base(self) -> str:
        """The canonical id."""
        return self.ids[0]

    @property
    def is_narrowed(self) -> bool:
        """Whether the answers may lack models that are still on the Hub."""
        return self.since is not None or self.author is not None

    def as_json(self) -> dict[str, Any]:
        """What must be the same for a crawl to be resumed."""
        return {
            "ids": sorted(self.ids),
            "relations": sorted(self.relations),
            "discover": self.discover,
            "descendants": self.descendants,
            "since": self.since.isoformat() if self.since else None,
            "author": self.author,
            "bounds": [self.max_aliases, self.max_parents, self.max_depth, self.max_candidates],
        }


@dataclass(frozen=True)
class Question:
    """One listing to page through. ``kind``: tag, alias, descendants, names or weights.

    ``asked``: an id, a name, or the type of models whose weights are compared.
    """

    kind: str
    asked: str
    relation: str | None = None

    @property
    def key(self) -> str:
        """The name of the question, the same in every crawl."""
        return f"{self.kind}:{self.relation or '*'}:{self.asked}"

    @property
    def what(self) -> str:
        """What is being listed, for messages."""
        if self.kind == "names":
            return f"models named like {self.asked}"
        if self.kind == "weights":
            return f"models of type {self.asked}"
        return f"the {self.relation or 'tagged'} models of {self.asked}"

    def parameters(self, request: CrawlRequest) -> list[tuple[str, str]]:
        """The query of its first page, sorted by creation because the default order changes between pages."""
        relation = f"{self.relation}:" if self.relation else ""
        if self.kind == "names":
            asked = [("search", self.asked)]
        elif self.kind == "weights":
            asked = [("filter", self.asked), ("filter", "safetensors")]
        else:
            asked = [("filter", f"base_model:{relation}{self.asked}")]
        author = [("author", request.author)] if request.author else []
        # Each untagged model costs requests of its own, whose results are stored a page at a time.
        size = min(request.page_size, _NAMES_A_PAGE) if self.kind in ("names", "weights") else request.page_size
        return [*asked, *author, ("sort", "createdAt"), ("limit", str(size)), *(("expand", name) for name in EXPANDED)]


@dataclass(frozen=True)
class ClaimedRow:
    """A row and what it claims."""

    row: RawRow
    claim: Claim

    @property
    def id(self) -> str:
        """The model's id."""
        return str(self.row["id"])


@dataclass(frozen=True)
class BadRow:
    """A row that could not be used. ``raw`` is its JSON in ASCII, cut short; ``key`` identifies it."""

    why: str
    raw: str
    key: str
    seen: datetime | None = None

    @classmethod
    def of(cls, row: Any, why: str, seen: datetime | None = None) -> BadRow:
        """Describe a row of any kind."""
        if isinstance(row, dict):  # a push needs these, so they must not be cut off
            row = {name: row[name] for name in _FIRST_OF_BAD if name in row} | row
        raw = json.dumps(row, default=str)[:_LONGEST_RAW]
        identifier = row.get("id") if isinstance(row, dict) else None
        return cls(why, raw, json.dumps(identifier)[:200] if identifier is not None else raw, seen)

    def as_row(self) -> dict[str, Any]:
        """The columns of the table rejected_listing_rows."""
        return {"why": self.why, "raw": self.raw, "seen": self.seen}


@dataclass(frozen=True)
class Rejected:
    """An untagged model that was examined at this commit and is not a fine-tune of this base."""

    id: str
    commit: str
    why: str


@dataclass(frozen=True)
class Unrelated:
    """An untagged model whose weights, at this commit, are not nearly those of this base."""

    id: str
    commit: str
    why: str


# What the check of a row that makes a claim, or might make one, ends with.
CheckedRow = ClaimedRow | BadRow | Rejected | Unrelated


@dataclass(frozen=True)
class Page:
    """One page of answers. ``is_last``: the question is answered; ``next_link``: the next page otherwise.

    ``is_cut``: untagged models were left out by a bound. ``oldest``: the earliest ``createdAt`` of the question so far,
    where it can be taken up if the address of the next page is no longer accepted.
    """

    question: Question
    rows: tuple[ClaimedRow, ...] = ()
    bad: tuple[BadRow, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    unrelated: tuple[Unrelated, ...] = ()
    next_link: str | None = None
    is_last: bool = False
    is_cut: bool = False
    oldest: str | None = None


@dataclass
class CrawlProgress:
    """How far an earlier crawl of the same request came, and what it found.

    ``fine_tunes``: id → (parent, downloads), to ask for their fine-tunes. ``known``: id → (commit, claim or None) of
    untagged models that were examined before; ``compared``: the same of those whose weights were.
    """

    finished: set[str] = field(default_factory=set)
    current: str | None = None
    link: str | None = None
    oldest: str | None = None
    fine_tunes: dict[str, tuple[str, int]] = field(default_factory=dict)
    known: Mapping[str, tuple[str, Claim | None]] = field(default_factory=dict)
    compared: Mapping[str, tuple[str, Claim | None]] = field(default_factory=dict)
