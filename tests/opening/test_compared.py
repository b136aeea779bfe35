"""The comparison with schema.sql is remembered, and only of a file that did not change since."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import nullcontext

import duckdb
import pytest

from indexer.database import reading
from indexer.errors import AtlasError
from indexer.storage import checksums
from query import Atlas
from tests.opening.conftest import NAMES, attack


@pytest.fixture
def comparisons(mine, tmp_path, monkeypatch):
    """How often a file was compared, of an atlas that has lain there for an hour."""
    counted = []
    examine = reading.examine
    monkeypatch.setattr(reading, "examine", lambda *given: counted.append(given) or examine(*given))
    monkeypatch.setattr(reading, "clock", lambda: time.time() + 3600)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return counted


def opened(folder):
    with Atlas(folder) as atlas:
        return [one.model for one in atlas.similar(NAMES[0])], atlas.sql("SELECT count(*) FROM nearest('x')").rows


def test_the_same_file_is_compared_once(mine, comparisons):
    first = opened(mine)
    assert [opened(mine), opened(mine)] == [first, first]
    assert len(comparisons) == 1


def test_a_file_of_a_moment_ago_is_compared_again(mine, comparisons, monkeypatch):
    monkeypatch.setattr(reading, "clock", time.time)
    os.utime(mine / "atlas.duckdb")
    opened(mine), opened(mine)
    assert len(comparisons) == 2


@pytest.mark.slow
def test_another_file_of_the_same_size_number_and_time_is_compared_and_refused(mine, comparisons):
    database = mine / "atlas.duckdb"
    evil = shutil.copytree(mine, mine.parent / "evil") / "atlas.duckdb"
    attack(evil.parent, ["CREATE VIEW mine AS FROM read_text('{secret}')"])
    good, bad = database.read_bytes(), evil.read_bytes()
    length = max(len(good), len(bad))
    database.write_bytes(good.ljust(length, b"\0"))
    opened(mine)
    opened(mine)
    assert len(comparisons) == 1
    before = database.stat()
    with database.open("r+b") as file:
        file.write(bad.ljust(length, b"\0"))
    os.utime(database, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = database.stat()
    assert [before.st_size, before.st_ino, before.st_mtime_ns] == [after.st_size, after.st_ino, after.st_mtime_ns]
    with pytest.raises(AtlasError, match="is refused: it holds a view 'mine'"):
        opened(mine)


@pytest.mark.parametrize("statement", ["CREATE VIEW mine AS SELECT 1", "CREATE OR REPLACE VIEW models AS SELECT 1"])
def test_what_differs_is_compared_each_time(mine, comparisons, statement):
    attack(mine, [statement])
    is_refused = pytest.raises(AtlasError, match="is refused") if "VIEW mine" in statement else nullcontext()
    for _ in range(3):
        with is_refused:
            opened(mine)
    assert len(comparisons) == 3


@pytest.mark.slow
@pytest.mark.parametrize("other", [(reading, "schema_sql", lambda: "-- other"), (duckdb, "__version__", "0.0.0")])
def test_another_schema_or_duckdb_compares_again(mine, comparisons, monkeypatch, other):
    opened(mine)
    monkeypatch.setattr(*other)
    opened(mine)
    assert len(comparisons) == 2


@pytest.mark.slow
def test_a_memory_that_others_can_write_is_not_believed(mine, comparisons):
    opened(mine)
    memory = checksums.user_cache() / "checked.json"
    assert str(mine / "atlas.duckdb") in memory.read_text()
    memory.chmod(0o666)
    opened(mine)
    assert len(comparisons) == 2
    memory.unlink()
    os.mkfifo(memory)
    opened(mine)
    assert len(comparisons) == 3


def test_an_earlier_database_is_opened_once_and_a_damaged_table_hides_no_other(tmp_path, monkeypatch):
    path, opened = tmp_path / "atlas.duckdb", []
    with duckdb.connect(str(path)) as made:
        for table in ("whole", "broken"):
            made.execute(f"CREATE TABLE {table} AS SELECT '{table} ' || hash(i) AS word FROM range(100000) t(i)")
    attached = reading.attached
    monkeypatch.setattr(reading, "attached", lambda *given: opened.append(given) or attached(*given))
    asked = [([table], [f"SELECT count(DISTINCT word) AS n FROM {table}"]) for table in ("whole", "broken", "whole")]
    with reading.earlier_database(path) as rows:
        assert [rows(*one) for one in asked] == [[[{"n": 100_000}]]] * 3
    assert len(opened) == 1

    content = bytearray(path.read_bytes())
    places = [found.start() for found in re.finditer(b"broken ", content)]
    content[places[len(places) // 2]] ^= 1  # of a value: the first ones belong to the file's catalog
    path.write_bytes(content)
    with reading.earlier_database(path) as rows:
        assert [rows(*one) for one in asked] == [[[{"n": 100_000}]], None, [[{"n": 100_000}]]]
