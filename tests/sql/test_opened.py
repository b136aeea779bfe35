"""A database is read as one file, also while it is replaced; a damaged one is named with its repair."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest

from indexer.database.secure_connection import attached
from indexer.errors import AtlasError
from query import Atlas
from query.shared.sandbox.locked import connect_locked
from tests.database import execute


def write(path: Path, rows: int) -> Path:
    execute(path, "CREATE TABLE numbers AS SELECT range AS number, md5(range::VARCHAR) AS text FROM range(?)", rows)
    return path


def test_a_publish_while_it_is_opened_leads_to_the_new_file(tmp_path, monkeypatch):
    path, new = write(tmp_path / "atlas.duckdb", 100_000), write(tmp_path / "new.duckdb", 3)
    opened = []
    really = duckdb.connect

    def overtaken(*arguments, **options):
        connection = really(*arguments, **options)
        opened.append(connection)
        if len(opened) == 1:
            os.replace(new, path)
        return connection

    monkeypatch.setattr(duckdb, "connect", overtaken)
    with connect_locked(path) as connection:
        assert connection.execute("SELECT count(*), max(text) IS NULL FROM numbers").fetchall() == [(3, False)]
    assert len(opened) == 2
    with pytest.raises(duckdb.ConnectionException):
        opened[0].execute("SELECT 1")


@pytest.mark.parametrize("connect", [connect_locked, attached])
def test_a_missing_or_damaged_database_is_opened_once(tmp_path, monkeypatch, connect):
    tries = []
    really = duckdb.connect
    monkeypatch.setattr(duckdb, "connect", lambda *words, **options: (tries.append(1), really(*words, **options))[1])
    damaged = tmp_path / "damaged.duckdb"
    damaged.write_bytes(b"no database" * 1000)
    for path in (tmp_path / "none.duckdb", damaged):
        tries.clear()
        with pytest.raises(duckdb.Error):
            connect(path)
        assert len(tries) == 1


# ---- a statement that meets a damaged block says that the file is damaged, and how it is made again


def test_a_flipped_bit_is_reported_with_its_repair(atlas):
    content = bytearray(atlas.database.read_bytes())
    places = [at for at in range(len(content)) if content.startswith(b"dataset:glue", at)]  # in the table tags
    for at in places:
        content[at] ^= 1
    atlas.database.write_bytes(content)
    for ask in (lambda opened: opened.sql("FROM tags"),
                lambda opened: opened.similar(
                    "bob/glue-1", where="model_id IN (SELECT model_id FROM tags WHERE tag <> 'x')")):  # fmt: skip
        with pytest.raises(AtlasError) as caught, Atlas(atlas.root) as opened:
            ask(opened)
        assert "atlas.duckdb is damaged (" in caught.value.message
        assert "does not match stored checksum" in caught.value.message
        assert "index rebuild" in caught.value.hint
