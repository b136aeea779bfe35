"""Publishing: listing and records become a database and FAISS files, all at once or not at all.

``atlas.duckdb`` is the one pointer. A publish changes a sibling copy in one transaction, writes new FAISS files
beside the old ones, checkpoints, syncs, and renames the copy over the original. Killed at any point, the atlas
holds the state before or after.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer import __version__
from indexer.atlas import AtlasFolder
from indexer.base import BaseMatrices
from indexer.publishing.duplicates import CANDIDATE_COSINE, Upload, find_duplicates
from indexer.publishing.neighbours import nearest
from indexer.publishing.rows import Entry, Row, delta_rows, listing_rows, record_row, whole_rows
from indexer.publishing.sibling import private_copy
from indexer.records import RecordStore
from indexer.representation import DEFAULT, Representation, representation_named
from indexer.vectors import FACTORY, VectorFile, Vectors, normalised, read_vectors, write_vectors

if TYPE_CHECKING:
    import duckdb

NEIGHBOURS = 50


@dataclass(frozen=True)
class Thresholds:
    """Settings behind the flags, stored with every build."""

    unrelated_below: float = 0.3
    duplicate_within: float = 1e-3


@dataclass(frozen=True)
class Publication:
    """All there is to say about one base: every entry of its listing, and the build that brought it here."""

    base: BaseMatrices
    aliases: Sequence[str]
    entries: Sequence[Entry]
    rank: int
    bad_rows: Sequence[Row] = ()
    build: Row | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)


def publish(
    folder: AtlasFolder,
    publications: Iterable[Publication],
    representations: Sequence[str] = (),
    *,
    afresh: bool = False,
) -> None:
    """Bring the atlas to the state that ``publications`` describe; other bases stay as they are.

    Representations published before are kept up to date, ``representations`` are added. ``afresh`` starts from
    an empty database (ids are kept where the old one can be read). The caller holds the writer's lock.
    """
    with private_copy(folder, afresh) as sibling:
        connection = sibling.connection
        connection.execute("BEGIN")
        for publication in publications:
            _Publisher(folder, connection, publication, sibling.kept_ids).run(representations)
        connection.execute(
            "UPDATE atlas_info SET generation = generation + 1, published = ?, tool_version = ?",
            [datetime.now(UTC), __version__],
        )
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT")


class _Publisher:
    """One base's part of a publish, inside the transaction."""

    def __init__(
        self,
        folder: AtlasFolder,
        connection: duckdb.DuckDBPyConnection,
        publication: Publication,
        kept_ids: dict[tuple[str, str], int],
    ) -> None:
        self.folder = folder
        self.connection = connection
        self.publication = publication
        self.base = publication.base.base
        self.kept_ids = kept_ids
        self.store = RecordStore(folder)
        self.read = lru_cache(maxsize=64)(self.store.read)

    def run(self, representations: Sequence[str]) -> None:
        self._base_row()
        before = {
            model: (model_id, fingerprint, record_key)
            for model, model_id, fingerprint, record_key in self.connection.execute(
                "SELECT model, model_id, fingerprint, record_key FROM fine_tunes WHERE base = ?", [self.base]
            ).fetchall()
        }
        ids = self._assign_ids({model: row[0] for model, row in before.items()})
        changed = [
            entry
            for entry in self.publication.entries
            if before.get(entry.listed.id, (0, None, None))[1] != entry.fingerprint
        ]
        reread = [
            entry for entry in changed if before.get(entry.listed.id, (0, "", None))[2] != entry.record_key
        ]
        self._listing_tables(changed, ids)
        fresh = self._record_tables(reread, ids)
        self._unrelated()
        for representation in self._wanted(representations):
            self._vectors(representation, reread, ids, fresh)
        self._duplicates()
        self._bad_rows()
        if self.publication.build is not None:
            self._build_row(self.publication.build)

    def _base_row(self) -> None:
        base = self.publication.base
        layers: dict[str, int] = {}
        for matrix in base.layout.matrices:
            layers[matrix.key.stack] = max(layers.get(matrix.key.stack, 0), matrix.key.layer + 1)
        before = self._first("SELECT aliases FROM bases WHERE base = ?", [self.base])
        row = {
            "base": self.base,
            "commit": base.commit,
            "aliases": sorted({*self.publication.aliases, *(before[0] if before else ())} - {self.base}),
            "model_type": str(base.config.get("model_type")),
            "architecture": base.layout.architecture,
            "layers": [{"stack": stack, "layers": count} for stack, count in layers.items()],
            "deltas": [str(matrix.key) for matrix in base.layout.matrices],
            "block_bytes": base.block_bytes,
            "config": json.dumps(dict(base.config)),
        }
        self.connection.execute("DELETE FROM bases WHERE base = ?", [self.base])
        self._insert("bases", [row])

    def _assign_ids(self, known: dict[str, int]) -> dict[str, int]:
        (next_id,) = self._first("SELECT next_model_id FROM atlas_info") or (1,)
        ids = dict(known)
        for entry in self.publication.entries:
            model = entry.listed.id
            if model in ids:
                continue
            kept = self.kept_ids.get((model, self.base))
            ids[model] = next_id if kept is None else kept
            next_id = max(next_id, ids[model] + 1)
        self.connection.execute("UPDATE atlas_info SET next_model_id = ?", [next_id])
        return ids

    def _listing_tables(self, changed: list[Entry], ids: dict[str, int]) -> None:
        rows = [listing_rows(ids[entry.listed.id], entry) for entry in changed]
        self._delete(
            ("fine_tunes", "tags", "model_datasets", "evaluations"), [ids[e.listed.id] for e in changed]
        )
        self._insert("fine_tunes", [row.fine_tune for row in rows])
        self._insert("tags", [tag for row in rows for tag in row.tags])
        self._insert("model_datasets", [claim for row in rows for claim in row.datasets])
        self._insert("evaluations", [result for row in rows for result in row.evaluations])

    def _record_tables(self, reread: list[Entry], ids: dict[str, int]) -> dict[int, dict[str, Any]]:
        """Rows of records, deltas and wholes, and (in the same pass over the files) the vectors of every new record."""
        self._delete(("records", "deltas", "wholes"), [ids[entry.listed.id] for entry in reread])
        names = self._wanted(())
        vectors: dict[int, dict[str, Any]] = {}
        records: list[Row] = []
        deltas: list[Row] = []
        wholes: list[Row] = []
        for entry in reread:
            if not entry.record_key:
                continue
            model_id = ids[entry.listed.id]
            record = self.store.read(entry.record_key)
            records.append(record_row(model_id, record, entry.record_key))
            deltas.extend(delta_rows(model_id, record))
            wholes.extend(whole_rows(model_id, record))
            vectors[model_id] = {
                representation.name: normalised(representation.vector(record)) for representation in names
            }
            if len(deltas) > 50_000:
                self._insert("deltas", deltas)
                deltas = []
        self._insert("records", records)
        self._insert("deltas", deltas)
        self._insert("wholes", wholes)
        return vectors

    def _wanted(self, added: Sequence[str]) -> list[Representation]:
        """The default, those published for this base before, and those asked for now."""
        published = self.connection.execute(
            "SELECT representation FROM representations WHERE base = ? ORDER BY representation", [self.base]
        ).fetchall()
        names = dict.fromkeys([DEFAULT, *(name for (name,) in published), *added])
        return [representation_named(name) for name in names]

    def _vectors(
        self,
        representation: Representation,
        reread: list[Entry],
        ids: dict[str, int],
        fresh: dict[int, dict[str, Any]],
    ) -> None:
        """The FAISS file, its row, and the neighbours of one representation."""
        before = self._published(representation)
        stale = {ids[entry.listed.id] for entry in reread}
        kept: dict[int, Any] = {}
        if before is not None:
            old = read_vectors(self.folder.root, before)
            kept = {
                int(model_id): row
                for model_id, row in zip(old.ids, old.matrix, strict=True)
                if int(model_id) not in stale
            }
            new = {model_id: vectors.get(representation.name) for model_id, vectors in fresh.items()}
        else:
            new = dict(self._all_vectors(representation))
        if before is not None and not stale:
            return
        kept.update({model_id: vector for model_id, vector in new.items() if vector is not None})
        order = sorted(kept)
        length = len(next(iter(kept.values()))) if kept else 1
        vectors = Vectors(
            np.array(order, dtype=np.int64),
            np.stack([kept[model_id] for model_id in order]) if order else np.zeros((0, length), np.float32),
        )
        file = write_vectors(self.folder.root, self.base, representation.name, vectors)
        self._representation_row(representation, file)
        self._neighbours(representation, vectors)

    def _published(self, representation: Representation) -> VectorFile | None:
        row = self._first(
            "SELECT faiss_file, faiss_sha256, faiss_bytes, vectors, length, version, rank FROM representations "
            "WHERE base = ? AND representation = ?",
            [self.base, representation.name],
        )
        if row is None:
            return None
        if (row[5], row[6]) != (representation.version, self.publication.rank):
            # Vectors of another version or rank never meet: all are computed again from the records.
            return None
        return VectorFile(*row[:5])

    def _all_vectors(self, representation: Representation) -> Iterator[tuple[int, Any]]:
        rows = self.connection.execute(
            "SELECT model_id, record_key FROM fine_tunes WHERE base = ? AND status = 'indexed' ORDER BY model_id",
            [self.base],
        ).fetchall()
        for model_id, record_key in rows:
            yield model_id, normalised(representation.vector(self.store.read(record_key)))

    def _representation_row(self, representation: Representation, file: VectorFile) -> None:
        self.connection.execute(
            "DELETE FROM representations WHERE base = ? AND representation = ?",
            [self.base, representation.name],
        )
        self._insert(
            "representations",
            [
                {
                    "base": self.base,
                    "representation": representation.name,
                    "version": representation.version,
                    "rank": self.publication.rank,
                    "length": file.length,
                    "vectors": file.count,
                    "per_delta": representation.per_delta,
                    "faiss_file": file.name,
                    "faiss_sha256": file.sha256,
                    "faiss_bytes": file.size,
                    "factory": FACTORY,
                }
            ],
        )

    def _neighbours(self, representation: Representation, vectors: Vectors) -> None:
        self.connection.execute(
            "DELETE FROM neighbours WHERE representation = ? AND model_id IN "
            "(SELECT model_id FROM fine_tunes WHERE base = ?)",
            [representation.name, self.base],
        )
        rows = nearest(vectors, NEIGHBOURS)
        columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
        self._insert_columns(
            "neighbours",
            {
                "representation": [representation.name] * len(rows),
                "model_id": list(columns[0]),
                "rank": list(columns[1]),
                "neighbour_id": list(columns[2]),
                "similarity": list(columns[3]),
            },
        )

    def _unrelated(self) -> None:
        self.connection.execute(
            "UPDATE records SET is_unrelated = coalesce(base_cosine < ?, false), verified = base_cosine >= ? "
            "WHERE model_id IN (SELECT model_id FROM fine_tunes WHERE base = ?)",
            [self.publication.thresholds.unrelated_below] * 2 + [self.base],
        )

    def _duplicates(self) -> None:
        uploads = [
            Upload(model_id, created, tuple(sorted(hashes)) if all(hashes) else (), record_key, norm)
            for model_id, created, hashes, record_key, norm in self.connection.execute(
                "SELECT model_id, created, list_transform(weight_files, lambda f: f.sha256), records.record_key, "
                "delta_norm FROM records JOIN fine_tunes USING (model_id) WHERE base = ? AND NOT is_copy "
                "ORDER BY model_id",
                [self.base],
            ).fetchall()
        ]
        near = self.connection.execute(
            "SELECT model_id, neighbour_id FROM neighbours WHERE representation = ? AND similarity >= ? "
            "AND model_id < neighbour_id AND model_id IN (SELECT model_id FROM fine_tunes WHERE base = ?) "
            "ORDER BY ALL",
            [DEFAULT, CANDIDATE_COSINE, self.base],
        ).fetchall()
        groups = find_duplicates(uploads, near, self.read, self.publication.thresholds.duplicate_within)
        self.connection.execute(
            "UPDATE records SET duplicate_group = NULL, duplicate_of = NULL "
            "WHERE model_id IN (SELECT model_id FROM fine_tunes WHERE base = ?)",
            [self.base],
        )
        self._update_groups(groups)

    def _update_groups(self, groups: dict[int, int]) -> None:
        import pyarrow

        if not groups:
            return
        columns = {"model_id": list(groups), "first": list(groups.values())}
        self.connection.register("incoming", pyarrow.table(columns))
        self.connection.execute(
            "UPDATE records SET duplicate_group = incoming.first, "
            "duplicate_of = CASE WHEN incoming.first <> records.model_id THEN incoming.first END "
            "FROM incoming WHERE records.model_id = incoming.model_id"
        )
        self.connection.unregister("incoming")

    def _bad_rows(self) -> None:
        self.connection.execute("DELETE FROM bad_rows WHERE base = ?", [self.base])
        self._insert("bad_rows", [{"base": self.base, **row} for row in self.publication.bad_rows])

    def _build_row(self, build: Row) -> None:
        (build_id,) = self._first("SELECT coalesce(max(build_id), 0) + 1 FROM builds") or (1,)
        self._insert("builds", [{"build_id": build_id, "base": self.base, **build}])

    def _first(self, statement: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row. All rows are fetched: a result half read blocks the connection."""
        rows = self.connection.execute(statement, list(parameters)).fetchall()
        return rows[0] if rows else None

    def _delete(self, tables: Iterable[str], model_ids: list[int]) -> None:
        if model_ids:
            for table in tables:
                self.connection.execute(
                    f"DELETE FROM {table} WHERE model_id IN (SELECT unnest(?::INTEGER[]))", [model_ids]
                )

    def _insert(self, table: str, rows: list[Row]) -> None:
        if rows:
            self._insert_columns(table, {name: [row[name] for row in rows] for name in rows[0]})

    def _insert_columns(self, table: str, columns: dict[str, list[Any]]) -> None:
        import pyarrow

        if not next(iter(columns.values())):
            return
        incoming = pyarrow.table(columns)
        self.connection.register("incoming", incoming)
        self.connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
        self.connection.unregister("incoming")
