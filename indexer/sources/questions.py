"""What to look for in a source, the questions that are asked of it, and what a page of answers contains. Plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeVar

from indexer.names import DEFAULT_RELATIONS, MOST_QUESTIONS, MOST_STEPS
from indexer.sources.claims import Claim

RawRow = dict[str, Any]

# Relations of models whose children belong to the family, too; and what a mirror is of the base.
WALKED = ("finetune", "merge", "quantized")
COPY = "copy"

# How the question begins, in ``claims`` of a listing, that a source besides the base's own answers as a whole.
SOURCE = "source:"

_LONGEST_RAW = 2_000
_FIRST_OF_BAD = ("id", "private")


@dataclass(frozen=True)
class CrawlRequest:
    """What to look for. ``ids``: every id of the base, the canonical one first.

    ``mirrors``: other names under which its weights are on the Hub. ``descendants``: also what was made of its
    fine-tunes, else only of the base, its mirrors and its quantised copies. ``since`` and ``author`` narrow the
    questions, so such a crawl cannot notice that a model was deleted.

    Bounds: ``max_questions`` models are asked for their children, the most downloaded first; of the quantised copies of
    one model ``max_copies``; nothing further than ``max_depth`` steps from the base is listed. ``max_candidates``:
    untagged models examined.
    """

    ids: tuple[str, ...]
    relations: tuple[str, ...] = DEFAULT_RELATIONS
    discover: str = "tags"
    descendants: bool = True
    since: datetime | None = None
    author: str | None = None
    mirrors: tuple[str, ...] = ()
    max_copies: int = 20
    max_questions: int = MOST_QUESTIONS
    max_depth: int = MOST_STEPS
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
            "mirrors": sorted(self.mirrors),
            "since": self.since.isoformat() if self.since else None,
            "author": self.author,
            "bounds": [self.max_copies, self.max_questions, self.max_depth, self.max_candidates],
        }


@dataclass(frozen=True)
class Question:
    """One listing to page through.

    ``kind``: tag (models of the base), children (of another model of the family), names or weights. ``asked``: an id, a
    name, or the type of models whose weights are compared.
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
        models = {
            "names": "models named like",
            "children": "what was made of",
            "weights": "models of type",
            "tag": f"the {self.relation or 'tagged'} models of",
        }
        return f"{models[self.kind]} {self.asked}"


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
class Step:
    """How a model belongs to the family: it is a ``relation`` of the model ``of``."""

    of: str
    relation: str
    downloads: int = 0


@dataclass(frozen=True)
class UnlistedMember:
    """A model that is not listed, but whose children are: a quantised copy, or one of a relation not asked for."""

    id: str
    step: Step


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
    """An untagged model that was examined at this commit and is not a fine-tune of this base.

    ``kind``: ``rejected`` by what its files and its name say, or ``unrelated`` by its weights.
    """

    id: str
    commit: str
    why: str
    kind: Literal["rejected", "unrelated"] = "rejected"


# The result of checking a row that makes a claim, or might make one.
CheckedRow = ClaimedRow | BadRow | Rejected | UnlistedMember
Checked = TypeVar("Checked", ClaimedRow, BadRow, Rejected, UnlistedMember)


@dataclass(frozen=True)
class Page:
    """One page of answers. ``is_last``: the question is answered; ``next_link``: the next page otherwise.

    ``is_cut``: a bound left untagged models out. ``oldest``: the earliest ``createdAt`` of the question so far, from
    which it can be continued if the address of the next page is no longer accepted.
    """

    question: Question
    rows: tuple[CheckedRow, ...] = ()
    next_link: str | None = None
    is_last: bool = False
    is_cut: bool = False
    oldest: str | None = None

    def of(self, kind: type[Checked]) -> list[Checked]:
        """Its rows of this kind."""
        return [row for row in self.rows if isinstance(row, kind)]


@dataclass
class CrawlProgress:
    """How far an earlier crawl of the same request came, and what it found.

    ``family``: the models found so far that may have children. ``known``: id → (commit, claim or None) of untagged
    models that were examined before; ``compared``: the same for models whose weights were compared. The crawl counts
    its requests in ``calls``, and in ``unasked`` the models that a bound kept it from asking about.
    """

    finished: set[str] = field(default_factory=set)
    current: str | None = None
    link: str | None = None
    oldest: str | None = None
    family: dict[str, Step] = field(default_factory=dict)
    known: Mapping[str, tuple[str, Claim | None]] = field(default_factory=dict)
    compared: Mapping[str, tuple[str, Claim | None]] = field(default_factory=dict)
    calls: int = 0
    unasked: int = 0


def in_utc(moment: datetime | None) -> datetime | None:
    """The moment; one without a time zone is taken to be in UTC."""
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


class RowCheck(Protocol):
    """Checks rows in a way of its own; ``is_full``: it takes no more of them."""

    is_cut: bool

    @property
    def is_full(self) -> bool:
        """Whether further pages would not be checked."""
        ...

    def __call__(self, rows: Sequence[Any]) -> list[CheckedRow | None]:
        """What the rows of a page are."""
        ...
