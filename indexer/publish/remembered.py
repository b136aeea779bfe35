"""What is known of models besides the listing: by the database that is to be made again, by records, by outcomes.

Each source may be gone or damaged; what can be read is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.database.reading import earlier_rows
from indexer.errors import AtlasError
from indexer.listing.listing import ListedModel
from indexer.publish.rows import Entry
from indexer.records.identity import Identity
from indexer.records.representation import DEFAULT
from indexer.vectors.choice import IndexChoice

# Names that a refusal gives before it only counts.
MOST_NAMES = 5

# What claims the base of a model of which nothing but its record, or what stands in place of one, is left.
BY_RECORD = "record"


@dataclass(frozen=True)
class Before:
    """The atlas as its database tells it, whatever its schema; empty where that is gone or damaged.

    ``models``: by base and id the key of the record each is published with, None where it has none.
    """

    representations: Sequence[str] = ()
    choices: dict[str, IndexChoice] = field(default_factory=dict)
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    models: dict[tuple[str, str], str | None] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: AtlasFolder) -> Before:
        """Each part by itself: a damaged table costs no other."""
        representations = _asked(folder, "representations", "FROM representations ORDER BY representation")
        return cls(
            list(dict.fromkeys(row["representation"] for row in representations)),
            _choices(representations),
            {row["base"]: tuple(row["aliases"]) for row in _asked(folder, "bases", "SELECT base, aliases FROM bases")},
            {
                (row["base"], row["model"]): row["record_key"]
                for row in _asked(
                    folder, "fine_tunes", "SELECT base, model, record_key FROM fine_tunes ORDER BY model_id"
                )
            },
        )

    def lost_by(self, entries: Iterable[Entry], damaged: Collection[str]) -> list[tuple[str, str]]:
        """(base, model) of what an atlas of these entries would hold less than this one.

        A model that is left without a vector because its record is ``damaged`` is not lost: the next build reads it
        again. Where that is all that a base had, it is.
        """
        after = {(entry.base, entry.listed.id): entry.record_key is not None for entry in entries}
        had, has = Counter(base for (base, _), key in self.models.items() if key), Counter[str]()
        has.update(base for (base, _), is_indexed in after.items() if is_indexed)
        return [
            (base, model)
            for (base, model), key in self.models.items()
            if (base, model) not in after
            or (key is not None and not after[base, model] and (key not in damaged or (had[base] and not has[base])))
        ]


def refuse(lost: Sequence[tuple[str, str]], without_base: Collection[str], root: object) -> AtlasError:
    """What says that a rebuild would leave less than there is; ``without_base`` are bases whose matrices are gone."""
    names = ", ".join(model for _, model in lost[:MOST_NAMES])
    more = f" and {len(lost) - MOST_NAMES} more" if len(lost) > MOST_NAMES else ""
    bases = sorted({base for base, _ in lost})
    why = [f"the block matrices of {base} are missing or damaged" for base in sorted(without_base) if base in bases]
    why = why or ["their records are missing"]
    commands = " and ".join(f"`index build --base {base}`" for base in bases)
    return AtlasError(
        f"A rebuild of {root} would take {len(lost)} models out of it: {names}{more}; {', '.join(why)}.",
        f"Nothing was changed. Bring the files back, or run {commands}, which fetches what is missing; "
        "`index rebuild --force` goes on without.",
    )


def known_models(
    folder: AtlasFolder, base: str, besides: Collection[str], identities: Iterable[tuple[Identity, str]]
) -> list[ListedModel]:
    """The models of a base that are known ``besides`` those listed: as the database tells them, else the records.

    ``identities``: of records and outcomes, each with a time in ISO 8601.
    """
    found = {one.id: one for one in _listed(folder, base, besides)}
    for identity, when in identities:
        if identity.base == base and identity.model not in besides and identity.model not in found:
            found[identity.model] = _of_identity(identity, when)
    return list(found.values())


def _of_identity(identity: Identity, when: str) -> ListedModel:
    try:
        seen = _utc(datetime.fromisoformat(when))
    except ValueError:
        seen = datetime.now(UTC)
    row = {"id": identity.model, "sha": identity.commit}
    return ListedModel(identity.model, row, identity.relation, BY_RECORD, identity.base, seen, seen)


def _listed(folder: AtlasFolder, base: str, besides: Collection[str]) -> Iterator[ListedModel]:
    """Rows of fine_tunes as the Hub might have listed them."""
    rows = _asked(folder, "fine_tunes", "FROM fine_tunes ORDER BY model_id")
    wanted = [row for row in rows if row["base"] == base and row["model"] not in besides]
    if not wanted:
        return
    tags, datasets = _grouped(folder, "tags", "tag"), _grouped(folder, "model_datasets", "raw")
    for row in wanted:
        number, now = row["model_id"], datetime.now(UTC)
        said = {
            "id": row["model"],
            "sha": row["commit"],
            "createdAt": _spelt(row["created"]),
            "lastModified": _spelt(row["modified"]),
            "downloads": row["downloads"],
            "likes": row["likes"],
            "gated": row["gated"],
            "private": row.get("private"),  # a column since schema 6
            "pipeline_tag": row["pipeline_tag"],
            "library_name": row["library"],
            "tags": tags.get(number, []),
            "cardData": {
                name: value
                for name, value in (
                    ("license", row["licence"]),
                    ("language", row["languages"]),
                    ("datasets", datasets.get(number)),
                )
                if value
            },
        }
        yield ListedModel(
            row["model"],
            {name: value for name, value in said.items() if value not in (None, [], {})},
            row["relation"],
            row["claimed_by"] or BY_RECORD,
            row["parent"] or base,
            _utc(row["first_seen"] or now),
            _utc(row["last_seen"] or now),
            bool(row.get("deleted_at_hub", row.get("gone"))),
        )


def _asked(folder: AtlasFolder, table: str, statement: str) -> list[dict[str, Any]]:
    """Each table by itself: a damaged one costs no other."""
    return (earlier_rows(folder.database, [table], [statement]) or [[]])[0]


def _grouped(folder: AtlasFolder, table: str, column: str) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for row in _asked(folder, table, f"SELECT DISTINCT model_id, {column} FROM {table} ORDER BY ALL"):
        found.setdefault(row["model_id"], []).append(row[column])
    return found


def _choices(representations: Sequence[dict[str, Any]]) -> dict[str, IndexChoice]:
    """The index chosen for each base."""
    return {
        row["base"]: IndexChoice(row["index_choice"], row["index_memory"], row["promised_recall"], row.get("budget"))
        for row in representations
        if row["representation"] == DEFAULT and "index_choice" in row
    }


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _spelt(moment: datetime | None) -> str | None:
    return None if moment is None else _utc(moment).isoformat(timespec="milliseconds").replace("+00:00", "Z")
