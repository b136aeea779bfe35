"""Which files a published atlas consists of: its database, and every file that this or the folder's plan names.

A file belongs to the generation where a table of the database says so: a column ``X_file`` with ``X_sha256`` beside it
names a file of the atlas's folder. So what a later schema names is carried, too, without a list here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from indexer.atlas import AtlasFolder
from indexer.database.connection import Connection
from indexer.errors import AtlasError
from indexer.records.store import RecordStore
from indexer.regular_files import regular_status
from indexer.share.manifest import is_plain
from indexer.untrusted import printable

# Small folders that belong to every published atlas, whatever the database says of them.
CARRIED = ("lineage", "predictions")
# Kept in packs: one file a model is too many for a repository.
PACKED = ("records", "profiles")
_DIGEST_FILE = re.compile(r"(?:records|profiles)/([0-9a-f]{2})/\1[0-9a-f]{62}(?:\.safetensors|(?:\.run)?\.json)")


@dataclass(frozen=True)
class Named:
    """A file that the database names, below the atlas's folder."""

    path: str
    sha256: str


def named_files(connection: Connection) -> list[Named]:
    """Every file that a table of the database names. Raises AtlasError where a name leads out of the folder."""
    columns = connection.rows(
        "SELECT columns.schema_name, columns.table_name, column_name FROM system.main.duckdb_columns() AS columns "
        "JOIN system.main.duckdb_tables() AS tables USING (database_name, schema_name, table_name) "
        "WHERE database_name = current_database() AND ends_with(column_name, '_file') ORDER BY ALL"
    )
    found: dict[str, Named] = {}
    for row in columns:
        schema, table, column = row["schema_name"], row["table_name"], row["column_name"]
        checksum = f"{column.removesuffix('_file')}_sha256"
        rows = connection.rows(
            f'SELECT DISTINCT "{column}" AS path, "{checksum}" AS sha256 FROM "{schema}"."{table}" '
            f'WHERE "{column}" IS NOT NULL'
        )
        found |= {one["path"]: Named(one["path"], one["sha256"]) for one in rows}
    for path in found:
        if not is_plain(path):
            raise AtlasError(f"The database names {printable(path, 100)!r} as a file of the atlas.", "Do not use it.")
    return [found[path] for path in sorted(found)]


def files_in(folder: AtlasFolder, names: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """The regular files in folders of the atlas, by path; what is hidden, damaged or temporary is left out."""
    for name in names:
        for where, inner, found in os.walk(folder.root / name):
            inner[:] = sorted(one for one in inner if not one.startswith("."))
            for one in sorted(found):
                path = Path(where) / one
                relative = path.relative_to(folder.root).as_posix()
                if not one.startswith(".") and not one.endswith(".damaged") and is_plain(relative):
                    regular_status(path)
                    yield relative, path


def known_digests(folder: AtlasFolder, connection: Connection) -> frozenset[str]:
    """Digests of the records, outcomes and profiles of models that the database lists.

    Those of a model that was removed may still lie in the folder.
    """
    listed = {(row["model"], row["base"]) for row in connection.rows("SELECT model, base FROM fine_tunes")}
    named = "SELECT record_key AS digest FROM fine_tunes UNION SELECT profile_key FROM profiles"
    found = {row["digest"] for row in connection.rows(named) if row["digest"] is not None}
    store = RecordStore(folder)
    others = [(one.digest, one.identity) for one in store.kept(besides=found)]
    others += [(one.identity.digest, one.identity) for one in store.outcomes()]
    return frozenset(found) | {digest for digest, one in others if (one.model, one.base) in listed}


def packable(folder: AtlasFolder) -> Iterator[tuple[str, Path]]:
    """Records, outcomes and profiles, by path."""
    for path, source in files_in(folder, PACKED):
        if is_packable(path):
            yield path, source


def is_packable(path: str) -> bool:
    """Whether it is the name of a record, an outcome or a profile, and so may stand in a pack."""
    return _DIGEST_FILE.fullmatch(path) is not None
