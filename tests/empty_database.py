"""A database as schema.sql makes it, for tests that plant an atlas: made once a process, as it takes a while."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import duckdb

from indexer.atlas import STORAGE_VERSION, schema_sql


@cache
def empty_database() -> bytes:
    """The file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "atlas.duckdb"
        with duckdb.connect(str(file), config={"storage_compatibility_version": STORAGE_VERSION}) as connection:
            connection.execute(schema_sql())
        return file.read_bytes()
