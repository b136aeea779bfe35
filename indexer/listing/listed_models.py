"""The models of a listing, and which of them a build selects."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from indexer.sources.claims import BY_FOLDER, Claim
from indexer.sources.labels import labels_of_row
from indexer.sources.local_names import LOCAL
from indexer.sources.questions import COPY, in_utc
from indexer.sources.registry import author_of
from indexer.sources.runs import run_in
from indexer.untrusted import Reader, tidy

Line = dict[str, Any]

_EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class ListedModel:
    """One model of a base's listing: its merged row, and the most trusted claim (the last one, if it has gone).

    ``claims``: for each question that shows it, by the question's key, the claim made there and the crawl;
    ``deleted_at_hub``: no question shows it any more; ``path``: the models from the base to this one, each with its
    relation to its parent.
    """

    id: str
    row: dict[str, Any]
    relation: str
    claimed_by: str
    parent: str
    first_seen: datetime
    last_seen: datetime
    deleted_at_hub: bool = False
    claims: Mapping[str, tuple[Claim, str]] = field(default_factory=dict)
    path: tuple[tuple[str, str], ...] = ()

    @property
    def created(self) -> datetime | None:
        """When it was created; None if the row has no readable date."""
        return Reader().moment(self.row.get("createdAt"), "createdAt")

    @property
    def author(self) -> str:
        """Whose it is: the owner in its id, or of a model of this machine the one that the user named."""
        stated = labels_of_row(self.row).author if self.claimed_by == BY_FOLDER else None
        if stated is None and self.id.startswith(LOCAL) and isinstance(of_tree := self.row.get("author"), str):
            stated = tidy(of_tree, 96)
        return stated or author_of(self.id)

    @property
    def is_direct(self) -> bool:
        """Whether it was made of the base's own weights: of the base, a mirror of it, or a quantised copy."""
        is_of_copy = all(relation in ("quantized", COPY) for relation, _ in self.path[:-1])
        return is_of_copy or self.claimed_by.startswith("alias:")

    def count(self, name: str) -> int:
        """A number of the row (downloads, likes); 0 if it has none."""
        return Reader().count(self.row.get(name), name) or 0

    def with_claims(self, claims: Mapping[str, tuple[Claim, str]], last: Claim | None = None) -> ListedModel:
        """The same model with these claims; ``last`` is its claim if there are none (by default the one it has)."""
        claim = min((claim for claim, _ in claims.values()), key=lambda claim: claim.rank, default=last)
        claim = claim or Claim(self.relation, self.claimed_by, self.parent)
        return replace(
            self,
            relation=claim.relation,
            claimed_by=claim.claimed_by,
            parent=claim.parent,
            deleted_at_hub=not claims,
            claims=claims,
        )

    def as_line(self) -> Line:
        """One line of a listing file with all of it."""
        return {
            "kind": "model",
            "id": self.id,
            "first_seen": self.first_seen.isoformat(),
            "seen": self.last_seen.isoformat(),
            "claims": {key: asdict(claim) | {"crawl": crawl} for key, (claim, crawl) in self.claims.items()},
            "was": {"relation": self.relation, "claimed_by": self.claimed_by, "parent": self.parent, "crawl": ""},
            "row": self.row,
        }


def without_earlier(models: Iterable[ListedModel], unreadable: Collection[str] = ()) -> list[ListedModel]:
    """The models without the earlier checkpoints of a run, as far as their source says what belongs to one.

    Checkpoints without a number (``final`` in the folder of a run, and this folder itself) all stay. ``unreadable``:
    models that can never be read as they are; the checkpoint before such a one, cut short at the end, is the last.
    """
    listed = list(models)
    last: dict[str, float] = {}
    numbers: dict[str, tuple[str, float]] = {}
    for model in listed:
        if not model.deleted_at_hub and (stated := run_in(model.row)) is not None:
            key, number = stated[0], math.inf if stated[1] is None else stated[1]
            if model.id in unreadable:
                continue
            numbers[model.id] = key, number
            last[key] = max(last.get(key, number), number)
    return [model for model in listed if model.id not in numbers or numbers[model.id][1] == last[numbers[model.id][0]]]


def select(
    models: Iterable[ListedModel],
    limit: int | None = None,
    sort: str = "downloads",
    since: datetime | None = None,
    author: str | None = None,
    relations: Collection[str] | None = None,
    depth: int | None = None,
    of_places: Collection[str] | None = None,
) -> list[ListedModel]:
    """The first ``limit`` models that match and have not gone, largest first; ties in the order of ids.

    ``sort``: one of ``names.SORTS``. ``since``: created at that time or later; a model without a date does not match.
    ``depth``: at most this many steps from the base; 0 for models made of its own weights (``is_direct``).
    ``of_places``: the relations that count for models of folders and addresses; those of all by default.
    """
    of_places = relations if of_places is None else of_places
    start = in_utc(since)
    models_selected = [
        model
        for model in models
        if not model.deleted_at_hub
        and _is_related(model, of_places if model.claimed_by == BY_FOLDER else relations)
        and (author is None or model.author.lower() == author.lower())
        and (depth is None or (len(model.path) <= depth if depth else model.is_direct))
        and (start is None or (model.created or _EARLIEST) >= start)
    ]
    models_selected.sort(key=lambda model: model.id)
    if sort == "created":  # stable: ties stay in the order of ids
        models_selected.sort(key=lambda model: model.created or _EARLIEST, reverse=True)
    else:
        models_selected.sort(key=lambda model: model.count(sort), reverse=True)
    return models_selected[:limit]


def _is_related(model: ListedModel, relations: Collection[str] | None) -> bool:
    return relations is None or model.relation in relations
