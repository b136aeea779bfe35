"""Models that a publish sets aside, one by one, instead of failing: what does not fit is told by name and reason."""

from __future__ import annotations

from datetime import UTC, datetime

from indexer.listing.questions import BadRow
from indexer.publish.fitting import Misfit
from indexer.publish.tables import Row, Tables

# So many are told by name in the one sentence; all are in the database.
_TOLD = 3


class Aside:
    """What was set aside of one base: ``models`` whose record is not published, ``unlisted`` ones whose row is not."""

    def __init__(self, tables: Tables, base: str) -> None:
        self._tables = tables
        self._base = base
        self.models: dict[str, Misfit] = {}
        self.unlisted: dict[str, Misfit] = {}

    def record(self, model: str, model_id: int, why: Misfit) -> None:
        """A record that cannot be published is a model that is not indexed, with the reason, and no more than that."""
        self.models[model] = why
        self._tables.run(
            "UPDATE fine_tunes SET status = 'skipped', reason = 'does_not_fit', detail = ?, record_key = NULL "
            "WHERE model_id = ?",
            [str(why), model_id],
        )

    def rejected_rows(self) -> list[Row]:
        """Rows of the rejected_listing_rows table for models that have no row of fine_tunes."""
        now = datetime.now(UTC)
        bad = [BadRow.of({"id": model}, f"it does not fit: {why}", now) for model, why in self.unlisted.items()]
        return [{"base": self._base, **one.as_row()} for one in bad]

    @property
    def told(self) -> str:
        """A sentence for a person; empty where nothing was set aside."""
        found = [f"{model} ({why})" for model, why in [*self.unlisted.items(), *self.models.items()]]
        more = f" and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
        return f"{self._base}: set aside, not published: {', '.join(found[:_TOLD])}{more}" if found else ""
