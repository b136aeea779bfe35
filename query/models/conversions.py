"""Conversions (GGUF, AWQ …) and their sources: from the atlas, or read for a question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from indexer.errors import AtlasError, Call, ModelError, Text, require, unreadable
from indexer.records.conversion import CONVERSION, ConversionSource
from query.models.resolved import READERS

if TYPE_CHECKING:
    from indexer.sources.registry import ModelRef
    from query.models.reader import AtlasReader, IndexedModel

_COLUMNS = (
    "format", "types", "source", "verdict", "rows_equal", "codes_equal", "residual", "error", "log_odds", "next",
    "bytes_read", "fingerprint", "file_bytes",
)  # fmt: skip

_LISTS = ("claimed", "differing", "also", "notes")


@dataclass(frozen=True)
class Conversion:
    """A conversion and the ``match`` that was computed for it; ``source_id``: its source, if that is in the atlas.

    ``answered_at``: when a stored answer was computed; None if it was read now.
    """

    model: str
    match: ConversionSource
    source_id: int | None
    model_id: int | None = None
    answered_at: datetime | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that ``show`` prints: columns of the table ``conversions``."""
        match = self.match
        values = {name: getattr(match, name) for name in _COLUMNS}
        lists = {name: list(getattr(match, name)) for name in _LISTS}
        return values | lists | {"rows_compared": match.rows, "answered_at": self.answered_at}


def stored_conversion(atlas: AtlasReader, model_id: int) -> Conversion | None:
    """The stored answer of a conversion; None if there is none."""
    rows = atlas.rows(
        "SELECT conversions.*, model, base FROM conversions JOIN fine_tunes USING (model_id) WHERE model_id = ?",
        [model_id],
    )
    return _of_row(rows[0]) if rows else None


def _of_row(row: Mapping[str, Any]) -> Conversion:
    values: dict[str, Any] = {name: row[name] for name in _COLUMNS}
    values |= {name: tuple(row[name]) for name in _LISTS}
    match = ConversionSource(base=row["base"], rows=row["rows_compared"], **values)
    return Conversion(row["model"], match, row["source_id"], row["model_id"], row["answered_at"])


def conversion_of(atlas: AtlasReader, indexed: IndexedModel) -> Conversion:
    """A conversion that the atlas lists, by its stored answer. Raises AtlasError if there is none."""
    conversion = stored_conversion(atlas, indexed.model_id)
    if conversion is None:
        raise AtlasError(
            f"{indexed.model} is a conversion whose source is not recorded in this atlas.",
            Text("Look for its source: ", Call("lineage", indexed.model, fresh=True)),
        )
    return conversion


def read_conversion(
    atlas: AtlasReader, reference: ModelRef, base: str | None, indexed: IndexedModel | None = None
) -> Conversion:
    """Read a conversion, and find its source among the models of a base. ``indexed``: as the atlas lists it.

    Raises AtlasError if it cannot be read, is none, or is not made from this base.
    """
    require("Finding the source of a conversion", *READERS)
    from indexer.deltas.base import published_matrices
    from indexer.deltas.conversions.find import IndexedCandidate, find_conversion

    published = atlas.published_base(base)
    rows = atlas.rows(
        'SELECT model_id, model, "commit", relation, record_key FROM models WHERE base = ? '
        "ORDER BY downloads DESC NULLS LAST, model_id",
        [published.base],
    )
    models = [IndexedCandidate(row["model"], row["commit"], row["relation"], row["record_key"]) for row in rows]
    matrices = published_matrices(published)
    matrices.check()
    claimed = []
    if indexed is not None:
        declared = "SELECT DISTINCT parent FROM declared_lineage WHERE model_id = ?"
        claimed = [row["parent"] for row in atlas.rows(declared, [indexed.model_id])]
    try:
        match = find_conversion(atlas.folder, reference, matrices, models, claimed=claimed)
    except ModelError as error:
        raise unreadable(reference.id, error) from error
    if match is None:
        raise AtlasError(f"{reference.id} is no conversion.", "")
    ids = {row["model"]: row["model_id"] for row in rows}
    return Conversion(reference.id, match, ids.get(match.source or ""), None if indexed is None else indexed.model_id)


def is_of_conversion(error: AtlasError) -> bool:
    """Whether a model could not be read as a fine-tune because it is a conversion."""
    cause = error.__cause__
    return isinstance(cause, ModelError) and cause.reason == CONVERSION
