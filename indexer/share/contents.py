"""The files of a published atlas: its database, the files that the database names, and some small folders.

A column ``X_file`` of any table, with a column ``X_sha256``, names a file of the atlas's folder. So the files of a
later schema are included without a list here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from indexer.atlas import AtlasFolder
from indexer.database.connection import Connection
from indexer.errors import AtlasError
from indexer.records.store import RecordStore
from indexer.regular_files import regular_status
from indexer.share.manifest import is_plain
from indexer.untrusted import printable

# Small folders that belong to every published atlas although the database does not name their files.
CARRIED = ("lineage", "predictions", "conversions")
# Stored in packs: one file per model is too many for a repository.
PACKED = ("records", "profiles")
_DIGEST_FILE = re.compile(r"(?:records|profiles)/([0-9a-f]{2})/\1[0-9a-f]{62}(?:\.safetensors|(?:\.run)?\.json)")


def named_files(connection: Connection) -> dict[str, str]:
    """The sha256 of every file that a table of the database names, by path below the atlas's folder.

    Raises AtlasError if a name leads out of the folder.
    """
    columns = connection.rows(
        "SELECT columns.schema_name, columns.table_name, column_name FROM system.main.duckdb_columns() AS columns "
        "JOIN system.main.duckdb_tables() AS tables USING (database_name, schema_name, table_name) "
        "WHERE database_name = current_database() AND ends_with(column_name, '_file') ORDER BY ALL"
    )
    checksums: dict[str, str] = {}
    for row in columns:
        schema, table, column = row["schema_name"], row["table_name"], row["column_name"]
        checksum = f"{column.removesuffix('_file')}_sha256"
        rows = connection.rows(
            f'SELECT DISTINCT "{column}" AS path, "{checksum}" AS sha256 FROM "{schema}"."{table}" '
            f'WHERE "{column}" IS NOT NULL'
        )
        checksums |= {file["path"]: file["sha256"] for file in rows}
    for path in checksums:
        if not is_plain(path):
            raise AtlasError(f"The database names {printable(path, 100)!r} as a file of the atlas.", "Do not use it.")
    return dict(sorted(checksums.items()))


def files_in(folder: AtlasFolder, names: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """The regular files in folders of the atlas, by path, without hidden, damaged and temporary ones."""
    for name in names:
        for where, inner, file_names in os.walk(folder.root / name):
            inner[:] = sorted(file_name for file_name in inner if not file_name.startswith("."))
            for file_name in sorted(file_names):
                path = Path(where) / file_name
                relative = path.relative_to(folder.root).as_posix()
                if not file_name.startswith(".") and not file_name.endswith(".damaged") and is_plain(relative):
                    regular_status(path)
                    yield relative, path


def known_digests(folder: AtlasFolder, connection: Connection) -> frozenset[str]:
    """Digests of the records, stored failures and profiles of models that the database lists.

    The folder may still hold those of models that were removed.
    """
    listed = {(row["model"], row["base"]) for row in connection.rows("SELECT model, base FROM fine_tunes")}
    statement = "SELECT record_key AS digest FROM fine_tunes UNION SELECT profile_key FROM profiles"
    digests = {row["digest"] for row in connection.rows(statement) if row["digest"] is not None}
    store = RecordStore(folder)
    stored = [(header.digest, header.identity) for header in store.headers(excluded=digests)]
    stored += [(failure.identity.digest, failure.identity) for failure in store.failures()]
    return frozenset(digests) | {digest for digest, identity in stored if (identity.model, identity.base) in listed}


def packable(folder: AtlasFolder) -> Iterator[tuple[str, Path]]:
    """Records, stored failures and profiles, by path."""
    for path, source in files_in(folder, PACKED):
        if is_packable(path):
            yield path, source


def is_packable(path: str) -> bool:
    """Whether a path is that of a record, a stored failure or a profile, which packs may hold."""
    return _DIGEST_FILE.fullmatch(path) is not None
