"""Publishing: make the database and the FAISS files from listing and records, atomically.

A publish changes a staged copy of the database in one transaction, writes new FAISS files next to the old ones, and
renames the copy over the original (see ``indexer.publish.staging``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from indexer.atlas import AtlasFolder
from indexer.database.connection import translated_errors
from indexer.database.validation import InvalidValue, check_rows, valid_rows
from indexer.errors import AtlasError
from indexer.publish.duplicates import renew_duplicates, renew_initialisations, with_duplicates
from indexer.publish.profile_tables import renew_profile_tables
from indexer.publish.rows import Entry, Publication, record_rows, row_of_base, row_of_licence, valid_listing_rows
from indexer.publish.runs import renew_runs
from indexer.publish.staging import staged_publish
from indexer.publish.stored_answers import ANSWERS, renew_answers
from indexer.publish.tables import Row, Tables
from indexer.publish.vector_update import VectorUpdates
from indexer.publish.vectors import PublishedVectors
from indexer.quantities import some_of
from indexer.records.identity import LEADS_BACK, NAMES_ITSELF, NAMES_REVISION, ROW_NAMES, Thresholds
from indexer.records.store import RecordStore, current_record
from indexer.sources.cards.modelcard import LICENCE_COLUMNS, Licence
from indexer.sources.questions import BadRow

# Rows that are collected before they are inserted.
_ROWS_AT_ONCE = 10_000
_DELTAS_AT_ONCE = 50_000

_RECORD_TABLES = ("records", "deltas", "fused_matrices", "adapter_bases")
_LISTING_TABLES = ("fine_tunes", "tags", "model_datasets", "evaluations")
# Datasets come from listing rows, and from the files that were read with the weights.
_OF_BOTH = "model_datasets"
_FROM_RECORDS = "source = 'training'"

# Skipped models that the message names; all are in the database.
_MOST_NAMED = 3


def publish(
    folder: AtlasFolder,
    publications: Iterable[Publication],
    representations: Sequence[str] = (),
    *,
    from_scratch: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
    memory: int | None = None,
) -> None:
    """Bring the atlas to the state that ``publications`` describe; other bases stay as they are.

    Representations published before are kept up to date, ``representations`` are added. ``from_scratch`` starts from an
    empty database, but keeps the ids of the old one if it can be read. ``say`` receives messages for the user.
    ``memory``: limit of the database in bytes, unless that is too little. The caller holds the lock of the writer.
    """
    import duckdb

    publication_list = list(publications)

    def run(limit: int | None) -> None:
        superseded: list[str] = []
        with staged_publish(folder, from_scratch=from_scratch, memory=limit) as tables:
            for publication in publication_list:
                publisher = _Publisher(folder, tables, publication, say)
                publisher.run(representations)
                superseded += publisher.superseded
        for digest in superseded:
            publisher.store.discard(digest)

    with translated_errors(folder.database):
        try:
            run(memory)
        except duckdb.OutOfMemoryException:
            if memory is None:
                raise
            say("the database needs more memory than --memory leaves for publishing; continuing without that limit")
            run(None)


class _Publisher:
    """Publishes one base, inside the transaction.

    Models that do not fit the database are skipped instead of failing the publish. ``skipped``: those whose record is
    not published, and why; ``unlisted``: those whose listing row is not. ``superseded``: digests of records that the
    former generation does not name either, so that no reader looks for them.
    """

    def __init__(
        self, folder: AtlasFolder, tables: Tables, publication: Publication, say: Callable[[str], None]
    ) -> None:
        self.folder = folder
        self.tables = tables
        self.publication = publication
        self.base = publication.base.base
        self.say = say
        self.store = RecordStore(folder)
        self.skipped: dict[str, InvalidValue] = {}
        self.unlisted: dict[str, InvalidValue] = {}
        self.superseded: list[str] = []

    def run(self, representations: Sequence[str]) -> None:
        self._base_row()
        former_rows = {
            model: (model_id, fingerprint, record_key)
            for model, model_id, fingerprint, record_key in self.tables.rows(
                "SELECT model, model_id, fingerprint, record_key FROM fine_tunes WHERE base = ?", [self.base]
            )
        }
        ids = self._assign_ids({model: row[0] for model, row in former_rows.items()})
        renewed = self.publication.renewed
        changed_entries = [
            entry
            for entry in self.publication.entries
            if former_rows.get(entry.listed.id, (0, None, None))[1] != entry.fingerprint or entry.listed.id in renewed
        ]
        reread = [
            entry
            for entry in changed_entries
            if former_rows.get(entry.listed.id, (0, "", None))[2] != entry.record_key
            or entry.listed.id in renewed
            or entry.tracked is not None  # the training of a tracked model may have changed
        ]
        withdrawn = [former_rows[model][0] for model in self.publication.withdrawn if model in former_rows]
        stale = [ids[entry.listed.id] for entry in reread] + withdrawn
        touched = with_duplicates(self.tables, stale)
        self.tables.delete((*_RECORD_TABLES, *_LISTING_TABLES), withdrawn)
        self._listing_tables(changed_entries, ids)
        reread = [entry for entry in reread if entry.listed.id not in self.unlisted]
        has_new_profiles = renew_profile_tables(self.folder, self.tables, self.base, self.say)
        with VectorUpdates(self.folder, self.tables, self.publication, representations, self.say) as updates:
            of_records = [update for update in updates.all if not update.representation.from_tables]
            # A representation that is new in an atlas needs all records, the others only the new ones.
            all_needed = [
                update for update in of_records if update.is_new and former_rows and update not in updates.offered
            ]
            self._record_tables(reread, ids, updates, [update for update in of_records if update not in all_needed])
            if former_rows:
                all_needed += [update for update in updates.offered if update.is_new and updates.is_wanted(update)]
            all_ids = set(ids.values())
            unpublished, of_lost = self._unpublish(updates.read_records(dict.fromkeys(all_needed, all_ids)))
            # Before the centre is computed, because duplicates share one vote.
            within = Thresholds().duplicate_within
            if changed_entries or withdrawn or unpublished:
                renew_duplicates(self.tables, self.store, self.base, within, touched | of_lost)
            if changed_entries or withdrawn or unpublished:
                renew_runs(self.tables, self.base)
            removed = [*stale, *unpublished]
            while True:  # once, unless records turn out to be damaged
                unpublished, of_lost = self._unpublish(updates.read_moving(removed))
                if not unpublished:
                    break
                removed += unpublished
                renew_duplicates(self.tables, self.store, self.base, within, of_lost)
                renew_runs(self.tables, self.base)
            reread_ids = {ids[entry.listed.id] for entry in reread}
            renew_initialisations(self.tables, self.base, len(self.publication.base.layout.matrices), reread_ids)
            updates.publish(removed, ids.values(), has_new_profiles)
        for kind in ANSWERS:
            renew_answers(kind, self.tables, self.folder, self.base)
        if self.publication.rejected_rows is not None:
            self.tables.run("DELETE FROM rejected_listing_rows WHERE base = ?", [self.base])
            rows = [{"base": self.base, **row} for row in self.publication.rejected_rows]
            self.tables.insert("rejected_listing_rows", valid_rows("rejected_listing_rows", rows))
        now = datetime.now(UTC)
        rejected = [BadRow.of({"id": model}, f"it does not fit: {why}", now) for model, why in self.unlisted.items()]
        self.tables.insert("rejected_listing_rows", [{"base": self.base, **update.as_row()} for update in rejected])
        if left_out := [f"{model} ({why})" for model, why in [*self.unlisted.items(), *self.skipped.items()]]:
            self.say(f"{self.base}: skipped, not published: {some_of(left_out, _MOST_NAMED)}")
        if self.publication.build is not None:
            (build_id,) = self.tables.first("SELECT coalesce(max(build_id), 0) + 1 FROM builds") or (1,)
            self.tables.insert("builds", [{"build_id": build_id, "base": self.base, **self.publication.build}])
            self.superseded = self._superseded({model: key for model, (_, _, key) in former_rows.items() if key})

    def _superseded(self, former: Mapping[str, str]) -> list[str]:
        """Digests of records of former names, and of records that a better one of the ``former`` generation replaces.

        ``former``: by model, the key of its record. Like FAISS files, records stay while readers of the former
        generation may need them.
        """
        published_keys = {
            key for (key,) in self.tables.rows("SELECT record_key FROM fine_tunes WHERE record_key IS NOT NULL")
        }
        digests = []
        for header in self.store.headers(excluded=published_keys.union(former.values())):
            identity = header.identity
            if identity.base != self.base:
                continue
            if identity.model in self.publication.withdrawn:
                digests.append(header.digest)
            elif (former_header := self.store.header(former.get(identity.model, ""))) is not None:
                alike = ("commit", "base_commit")
                is_same = all(getattr(identity, name) == getattr(former_header.identity, name) for name in alike)
                is_same = is_same and identity.spec.rank == former_header.identity.spec.rank
                if is_same and current_record([header, former_header], identity.commit) is former_header:
                    digests.append(header.digest)
        return digests

    def _base_row(self) -> None:
        columns = ", ".join(LICENCE_COLUMNS)
        former_row = self.tables.first(f"SELECT aliases, {columns} FROM bases WHERE base = ?", [self.base])
        published, *texts = former_row or ((), *(None for _ in LICENCE_COLUMNS))
        licence = self.publication.licence or Licence.of_row(dict(zip(LICENCE_COLUMNS, texts, strict=True)))
        aliases = sorted({*self.publication.aliases, *published} - {self.base})
        row = row_of_base(self.publication.base) | {"aliases": aliases} | row_of_licence(licence)
        try:
            check_rows("bases", [row])
        except InvalidValue as why:
            raise AtlasError(f"{self.base} cannot be published: {why}.", "Choose another base.") from why
        self.tables.run("DELETE FROM bases WHERE base = ?", [self.base])
        self.tables.insert("bases", [row])

    def _assign_ids(self, former_ids: dict[str, int]) -> dict[str, int]:
        """The id of every model of the base. No id is ever given to another model."""
        (next_id,) = self.tables.first("SELECT next_model_id FROM atlas_info") or (1,)
        ids = dict(former_ids)
        for entry in self.publication.entries:
            model = entry.listed.id
            if model in ids:
                continue
            reserved_id = self.tables.kept_ids.get((model, self.base))
            ids[model] = next_id if reserved_id is None else reserved_id
            next_id = max(next_id, ids[model] + 1)
        self.tables.run("UPDATE atlas_info SET next_model_id = ?", [next_id])
        return ids

    def _listing_tables(self, changed: list[Entry], ids: dict[str, int]) -> None:
        self.tables.delete(
            _LISTING_TABLES, [ids[entry.listed.id] for entry in changed], {_OF_BOTH: f"NOT {_FROM_RECORDS}"}
        )
        for start in range(0, len(changed), _ROWS_AT_ONCE):
            rows: dict[str, list[Row]] = {table: [] for table in _LISTING_TABLES}
            for entry in changed[start : start + _ROWS_AT_ONCE]:
                try:
                    rows_by_table = valid_listing_rows(ids[entry.listed.id], entry)
                except InvalidValue as why:
                    self.unlisted[entry.listed.id] = why
                    continue
                for table, batch in rows.items():
                    batch.extend(rows_by_table[table])
            self._insert_all(rows)
        # Separately, because last_seen changes on every crawl and other columns do not.
        listed = [entry.listed for entry in self.publication.entries]
        last_seen = [{"model_id": ids[model.id], "last_seen": model.last_seen} for model in listed]
        self.tables.update("fine_tunes", {"last_seen": "TIMESTAMP"}, last_seen)

    def _record_tables(
        self, reread: list[Entry], ids: dict[str, int], updates: VectorUpdates, of_new: Sequence[PublishedVectors]
    ) -> None:
        """Write the rows of _RECORD_TABLES and, in the same pass over the files, the vectors ``of_new`` records."""
        self._delete_of_records([ids[entry.listed.id] for entry in reread])
        representations = [vectors.representation for vectors in of_new]
        rows: dict[str, list[Row]] = {table: [] for table in (*_RECORD_TABLES, _OF_BOTH)}
        for entry in reread:
            if not entry.record_key:
                continue
            model_id = ids[entry.listed.id]
            try:
                rows_by_table, vectors_of_model = record_rows(
                    model_id, entry.record_key, self.publication.base, self.store, representations,
                    entry.tracked,
                )  # fmt: skip
            except InvalidValue as why:
                self._skip(entry.listed.id, model_id, why)
                continue
            for table, batch in rows.items():
                batch.extend(rows_by_table[table])
            updates.add(of_new, model_id, vectors_of_model, is_sampled=rows_by_table["records"][0]["read"] == "sample")
            if len(rows["deltas"]) > _DELTAS_AT_ONCE:
                self._insert_all(rows)
        self._insert_all(rows)
        # Set the flags that depend on a threshold, in rows that change. Adapters of another base are unrelated.
        self.tables.run(
            "UPDATE records SET is_unrelated = found.unrelated, verified = found.verified FROM (SELECT model_id, "
            "coalesce(base_cosine < $below, false) OR verdict IS NOT DISTINCT FROM 'foreign' AS unrelated, "
            "CASE WHEN verdict = 'foreign' THEN false ELSE base_cosine >= $below END AS verified "
            "FROM records JOIN fine_tunes USING (model_id) LEFT JOIN adapter_bases USING (model_id) "
            "WHERE base = $base) AS found WHERE records.model_id = found.model_id "
            "AND (is_unrelated IS DISTINCT FROM found.unrelated OR records.verified IS DISTINCT FROM found.verified)",
            {"below": Thresholds().unrelated_below, "base": self.base},
        )
        # Note as an oddity that an adapter's listing row names another base than its file does.
        self.tables.run(
            "UPDATE fine_tunes SET oddities = list_append(coalesce(oddities, []), 'base_model: ' || why) "
            "FROM adapter_bases WHERE adapter_bases.model_id = fine_tunes.model_id AND base = $base "
            "AND (starts_with(why, $row_names) OR contains(why, $itself) OR contains(why, $circle) "
            "OR contains(why, $revision)) AND NOT list_contains(coalesce(oddities, []), 'base_model: ' || why)",
            {
                "base": self.base,
                "row_names": ROW_NAMES,
                "itself": NAMES_ITSELF,
                "circle": LEADS_BACK,
                "revision": NAMES_REVISION,
            },
        )

    def _unpublish(self, rejected: Mapping[int, tuple[str, InvalidValue]]) -> tuple[list[int], set[int]]:
        """Skip models whose record turned out not to fit; returns their ids, and those of them and their duplicates."""
        touched = with_duplicates(self.tables, list(rejected))
        self._delete_of_records(list(rejected))
        for model_id, (model, why) in rejected.items():
            self._skip(model, model_id, why, again=True)
        return list(rejected), touched

    def _skip(self, model: str, model_id: int, why: InvalidValue, *, again: bool = False) -> None:
        """Note that a record is not published. ``again``: drop the fingerprint, so the next publish retries."""
        self.skipped[model] = why
        self.tables.run(
            "UPDATE fine_tunes SET status = 'skipped', reason = 'does_not_fit', detail = ?, record_key = NULL, "
            "fingerprint = CASE WHEN ? THEN NULL ELSE fingerprint END WHERE model_id = ?",
            [str(why), again, model_id],
        )

    def _delete_of_records(self, model_ids: Sequence[int]) -> None:
        """Delete the rows that come from the records of some models."""
        self.tables.delete((*_RECORD_TABLES, _OF_BOTH), model_ids, {_OF_BOTH: _FROM_RECORDS})

    def _insert_all(self, rows: dict[str, list[Row]]) -> None:
        for table, batch in rows.items():
            self.tables.insert(table, batch)
            batch.clear()
