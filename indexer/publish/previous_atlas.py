"""The atlas as it was published before: its models, representations and ranks, for a rebuild or another publish.

The database may be missing, damaged or of another schema; only tables with today's columns are used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.database.reading import EarlierRows, earlier_database
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError, Call, Text
from indexer.listing.listing import ListedModel
from indexer.publish.rows import Entry, moment
from indexer.records.identity import Identity
from indexer.records.representations.registry import DEFAULT
from indexer.records.store import RecordStore
from indexer.sources.cards.modelcard import LICENCE_COLUMNS, Licence

# ``claimed_by`` of models known only from a stored record or failure.
BY_RECORD = "record"

# Columns are named, so that a table of another schema either has all of them or counts as one that cannot be read.
_REPRESENTATIONS = "SELECT base, representation, rank, vectors, budget FROM representations"
_MODEL_COLUMNS = (
    'model_id, base, model, "commit", relation, claimed_by, parent, created, modified, downloads, likes, gated, '
    "private, licence, licence_name, licence_link, languages, pipeline_tag, library, first_seen, last_seen, "
    "deleted_at_hub"
)

# The rank if neither the user nor the atlas determines one.
USUAL_RANK = 8


@dataclass(frozen=True)
class PreviousAtlas:
    """The atlas as described by its database of any schema; empty if that is missing or damaged.

    ``vector_lengths`` (those asked for), ``aliases`` and ``licences``: by base. ``models``: by base and id, the
    published record's key, or None.
    """

    representations: Sequence[str] = ()
    vector_lengths: dict[str, int] = field(default_factory=dict)
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    licences: dict[str, Licence] = field(default_factory=dict)
    models: dict[tuple[str, str], str | None] = field(default_factory=dict)

    @classmethod
    def read(cls, rows: EarlierRows) -> PreviousAtlas:
        """Each table is read separately, so that a damaged one does not affect the others."""
        representations = _rows_of(rows, "representations", f"{_REPRESENTATIONS} ORDER BY representation")
        bases = _rows_of(rows, "bases", f"SELECT base, aliases, {', '.join(LICENCE_COLUMNS)} FROM bases")
        models = _rows_of(rows, "fine_tunes", "SELECT base, model, record_key FROM fine_tunes ORDER BY model_id")
        return cls(
            list(dict.fromkeys(row["representation"] for row in representations)),
            {
                row["base"]: row["budget"]
                for row in representations
                if row["representation"] == DEFAULT and row["budget"]
            },
            {row["base"]: tuple(row["aliases"]) for row in bases},
            {row["base"]: licence for row in bases if (licence := Licence.of_row(row))},
            {(row["base"], row["model"]): row["record_key"] for row in models},
        )

    def missing_after(
        self,
        entries: Iterable[Entry],
        damaged: Collection[str],
        withdrawn: Collection[tuple[str, str]] = (),
        unread: Collection[str] = (),
    ) -> list[tuple[str, str]]:
        """The (base, model) pairs that a rebuild from these entries would lose, besides those ``withdrawn``.

        A model whose record is ``damaged`` is not counted, because the next build reads it again, unless no model of
        its base is left; one whose record is ``unread`` (of another version) is not counted, because it is kept.
        """
        after = {(entry.base, entry.listed.id): entry.record_key is not None for entry in entries}
        records_before, records_after = Counter(base for (base, _), key in self.models.items() if key), Counter[str]()
        records_after.update(base for (base, _), is_indexed in after.items() if is_indexed)
        return [
            (base, model)
            for (base, model), key in self.models.items()
            if (base, model) not in withdrawn
            if (base, model) not in after
            or (
                key is not None
                and key not in unread
                and not after[base, model]
                and (key not in damaged or (records_before[base] and not records_after[base]))
            )
        ]


def known_models(
    earlier: EarlierRows, base: str, listed: Collection[str], identities: Iterable[tuple[Identity, str]]
) -> list[ListedModel]:
    """The models of a base that are not ``listed``, according to the database or else to the records.

    ``identities``: those of records and failures, each with a time in ISO 8601.
    """
    models: dict[str, ListedModel] = {}
    now = datetime.now(UTC)
    rows = _rows_of(earlier, "fine_tunes", f"SELECT {_MODEL_COLUMNS} FROM fine_tunes ORDER BY model_id")
    unlisted_rows = [row for row in rows if row["base"] == base and row["model"] not in listed]
    values: dict[str, dict[int, list[str]]] = {"tag": {}, "raw": {}}
    # Datasets that the files beside the weights name are in the record.
    tables = (("tags", "tag", ""), ("model_datasets", "raw", "WHERE source <> 'training' "))
    for table, column, condition in tables if unlisted_rows else ():
        for row in _rows_of(earlier, table, f"SELECT DISTINCT model_id, {column} FROM {table} {condition}ORDER BY ALL"):
            values[column].setdefault(row["model_id"], []).append(row[column])
    for row in unlisted_rows:
        card = {
            "license": row["licence"],
            "license_name": row["licence_name"],
            "license_link": row["licence_link"],
            "language": row["languages"],
            "datasets": values["raw"].get(row["model_id"]),
        }
        row_of_hub = {
            "id": row["model"],
            "sha": row["commit"],
            "createdAt": _as_on_hub(row["created"]),
            "lastModified": _as_on_hub(row["modified"]),
            "downloads": row["downloads"],
            "likes": row["likes"],
            "gated": row["gated"],
            "private": row["private"],
            "pipeline_tag": row["pipeline_tag"],
            "library_name": row["library"],
            "tags": values["tag"].get(row["model_id"], []),
            "cardData": {name: value for name, value in card.items() if value},
        }
        models[row["model"]] = ListedModel(
            row["model"],
            {name: value for name, value in row_of_hub.items() if value not in (None, [], {})},
            row["relation"],
            row["claimed_by"] or BY_RECORD,
            row["parent"] or base,
            _utc(row["first_seen"] or now),
            _utc(row["last_seen"] or now),
            bool(row["deleted_at_hub"]),
        )
    for identity, when in identities:
        if identity.base != base or identity.model in listed or identity.model in models:
            continue
        last_seen = moment(when) or now
        row = {"id": identity.model, "sha": identity.commit}
        models[identity.model] = ListedModel(
            identity.model, row, identity.relation, BY_RECORD, identity.base, last_seen, last_seen
        )
    return list(models.values())


def _rows_of(rows: EarlierRows, table: str, statement: str) -> list[dict[str, Any]]:
    """Rows of one table; empty if it cannot be read."""
    return (rows([table], [statement]) or [[]])[0]


def _utc(when: datetime) -> datetime:
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def _as_on_hub(when: datetime | None) -> str | None:
    """A time as the Hub writes it."""
    return None if when is None else _utc(when).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class PublishedRank:
    """The rank of the records that a base is published with, and the number of its vectors in all representations.

    ``budget``: the requested length of a vector, approximately; None if none was requested.
    """

    rank: int
    vectors: int
    budget: int | None = None


def published_rank(folder: AtlasFolder, base: str) -> PublishedRank | None:
    """The rank of a published base; None if it has no vectors or the database cannot be read."""
    with earlier_database(folder.database) as rows:
        return rank_of(rows, base)


def rank_of(earlier: EarlierRows, base: str) -> PublishedRank | None:
    """``published_rank`` by a database that is open."""
    representations = _rows_of(earlier, "representations", _REPRESENTATIONS)
    rows = [row for row in representations if row["base"] == base and row["rank"] and row["vectors"]]
    if not rows:
        return None
    budget = next((row["budget"] for row in rows if row["representation"] == DEFAULT), None)
    return PublishedRank(min(row["rank"] for row in rows), sum(row["vectors"] for row in rows), budget)


def check_rank(folder: AtlasFolder, base: str, rank: int) -> None:
    """Raises AtlasError if the base is published at another rank: vectors of two ranks cannot be compared."""
    published = published_rank(folder, base)
    if published is not None and published.rank != rank:
        raise AtlasError(
            f"This atlas holds {base} at rank {published.rank}; vectors of rank {rank} cannot be compared with those.",
            Text("Use ", Call(rank=published.rank), ", or another `atlas`."),
        )


def rank_to_publish(folder: AtlasFolder, base: StoredBase, requested: int | None) -> int:
    """The rank that was ``requested``, else the published one, else that of the records.

    Raises AtlasError if that is not the published one, or if none was requested and the records differ.
    """
    if requested is not None:
        check_rank(folder, base.base, requested)
        return requested
    published = published_rank(folder, base.base)
    if published is not None:
        return published.rank
    ranks = Counter(
        identity.spec.rank
        for identity in (header.identity for header in RecordStore(folder).headers())
        if (identity.base, identity.base_commit) == (base.base, base.commit)
    )
    if len(ranks) > 1:
        found_ranks = " and ".join(f"rank {rank} ({count})" for rank, count in sorted(ranks.items()))
        raise AtlasError(
            f"{base.base} has records of {found_ranks}: only those of one rank can be published.",
            f"Choose one: index publish --rank {ranks.most_common(1)[0][0]}",
        )
    return next(iter(ranks), USUAL_RANK)
