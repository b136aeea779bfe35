"""What a publish is given for one base, and the models of it that do not fit the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from indexer.deltas.stored_base import StoredBase
from indexer.listing.questions import BadRow
from indexer.publish.rows import Entry
from indexer.publish.tables import Row, Tables
from indexer.publish.validation import InvalidValue
from indexer.vectors.choice import IndexChange

# Skipped models that the summary names; all are in the database.
_MOST_NAMED = 3


@dataclass(frozen=True)
class Publication:
    """Everything to publish for one base: its listing entries and the build that produced them.

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


class SkippedModels:
    """Models of one base that do not fit the database: a publish skips them instead of failing.

    ``models``: those whose record is not published; ``unlisted``: those whose listing row is not.
    """

    def __init__(self, tables: Tables, base: str) -> None:
        self._tables = tables
        self._base = base
        self.models: dict[str, InvalidValue] = {}
        self.unlisted: dict[str, InvalidValue] = {}

    def record(self, model: str, model_id: int, why: InvalidValue) -> None:
        """Mark a model whose record cannot be published as skipped, with the reason."""
        self.models[model] = why
        self._tables.run(
            "UPDATE fine_tunes SET status = 'skipped', reason = 'does_not_fit', detail = ?, record_key = NULL "
            "WHERE model_id = ?",
            [str(why), model_id],
        )

    def rejected_rows(self) -> list[Row]:
        """Rows of the table rejected_listing_rows for the models that have no row in fine_tunes."""
        now = datetime.now(UTC)
        bad = [BadRow.of({"id": model}, f"it does not fit: {why}", now) for model, why in self.unlisted.items()]
        return [{"base": self._base, **one.as_row()} for one in bad]

    @property
    def summary(self) -> str:
        """A sentence for the user; empty if no model was skipped."""
        found = [f"{model} ({why})" for model, why in [*self.unlisted.items(), *self.models.items()]]
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        return f"{self._base}: skipped, not published: {', '.join(found[:_MOST_NAMED])}{more}" if found else ""
