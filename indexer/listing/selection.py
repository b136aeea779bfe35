"""Which of the listed models a build looks at. Pure and deterministic: the same listing, the same choice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from indexer.errors import AtlasError
from indexer.names import author_of
from indexer.untrusted import Reader

_EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class ListedModel:
    """One model of a base's listing, as it was last seen.

    ``asked``: the questions that show it, by their keys; ``gone``: none does any more.
    """

    id: str
    row: dict[str, Any]
    relation: str
    claimed_by: str
    parent: str
    first_seen: datetime
    last_seen: datetime
    gone: bool = False
    asked: tuple[str, ...] = ()

    @property
    def author(self) -> str:
        """The account it belongs to."""
        return author_of(self.id)

    @property
    def created(self) -> datetime | None:
        """When it was created, where the row says so in a way that can be read."""
        return Reader().moment(self.row.get("createdAt"), "createdAt")

    def count(self, name: str) -> int:
        """A number of the row (downloads, likes); 0 where there is none."""
        return Reader().count(self.row.get(name), name) or 0


_ORDERS: dict[str, Callable[[ListedModel], Any]] = {
    "downloads": lambda model: model.count("downloads"),
    "likes": lambda model: model.count("likes"),
    "created": lambda model: model.created or _EARLIEST,
}
SORTS = tuple(_ORDERS)


def select(
    models: Iterable[ListedModel],
    limit: int | None = None,
    sort: str = "downloads",
    since: datetime | None = None,
    author: str | None = None,
    relations: Collection[str] | None = None,
) -> list[ListedModel]:
    """The first ``limit`` models, most first, that are still there and fit; ties in the order of ids.

    ``since``: created then or later (a model that does not say when is not). Raises AtlasError where ``sort``
    is not one of SORTS or ``limit`` is below zero.
    """
    if sort not in _ORDERS:
        raise AtlasError(f"Models cannot be sorted by {sort!r}.", f"Choose one of {', '.join(SORTS)}.")
    if limit is not None and limit < 0:
        raise AtlasError(f"The limit {limit} is below zero.", "Give a number of models.")
    start = in_utc(since)
    chosen = [
        model
        for model in models
        if not model.gone
        and (relations is None or model.relation in relations)
        and (author is None or model.author.lower() == author.lower())
        and (start is None or (model.created or _EARLIEST) >= start)
    ]
    chosen.sort(key=lambda model: model.id)
    chosen.sort(key=_ORDERS[sort], reverse=True)  # stable: ties stay in the order of ids
    return chosen[:limit]


def in_utc(moment: datetime | None) -> datetime | None:
    """A time that a person typed without a zone is meant in UTC."""
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
