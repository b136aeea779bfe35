"""The comparison with schema.sql is remembered, and only of a file that did not change since."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from contextlib import nullcontext

import duckdb
import pytest

from indexer.atlas import AtlasFolder
from indexer.database import reading
from indexer.errors import AtlasError
from indexer.publish.staging import staged_publish
from indexer.storage import checksums
from query import Atlas
from tests.conftest import run_python
from tests.opening.conftest import NAMES, attack


@pytest.fixture
def comparisons(own_atlas, tmp_path, monkeypatch):
    """How often a file was compared, of an atlas that has lain there for an hour."""
    counted = []
    examine = reading.examine
    monkeypatch.setattr(reading, "examine", lambda *arguments: counted.append(arguments) or examine(*arguments))
    monkeypatch.setattr(reading, "clock", lambda: time.time() + 3600)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return counted


def opened(folder):
    with Atlas(folder) as atlas:
        return [neighbour.model for neighbour in atlas.similar(NAMES[0])], atlas.sql(
            "SELECT count(*) FROM nearest('x')"
        ).rows


def test_the_same_file_is_compared_once(own_atlas, comparisons):
    first = opened(own_atlas)
    assert [opened(own_atlas), opened(own_atlas)] == [first, first]
    assert len(comparisons) == 1


@pytest.mark.parametrize("others_write", ["atlas.duckdb", pytest.param(".", marks=pytest.mark.slow)])
def test_a_file_of_a_moment_ago_that_others_may_write_to_is_compared_again(
    own_atlas, comparisons, monkeypatch, others_write
):
    monkeypatch.setattr(reading, "clock", time.time)
    (own_atlas / others_write).chmod(0o777)
    os.utime(own_atlas / "atlas.duckdb")
    opened(own_atlas), opened(own_atlas)
    assert len(comparisons) == 2


def test_what_this_user_publishes_is_not_compared(own_atlas, comparisons, monkeypatch):
    monkeypatch.setattr(reading, "clock", time.time)
    with staged_publish(AtlasFolder(own_atlas)) as sibling:
        sibling.connection.execute("UPDATE fine_tunes SET likes = 7")
    opened(own_atlas)
    assert comparisons == []
    # Nor is it believed of what comes later to its place, whatever the folder says.
    evil = shutil.copytree(own_atlas, own_atlas.parent / "evil")
    attack(evil, ["CREATE VIEW mine AS SELECT 1"])
    status = (own_atlas / "atlas.duckdb").stat()
    os.utime(evil / "atlas.duckdb", ns=(status.st_atime_ns, status.st_mtime_ns))
    (evil / "atlas.duckdb").replace(own_atlas / "atlas.duckdb")
    with pytest.raises(AtlasError, match="is refused: it holds a view 'mine'"):
        opened(own_atlas)


@pytest.mark.slow
def test_what_is_published_where_others_may_write_is_compared(own_atlas, comparisons, monkeypatch):
    monkeypatch.setattr(reading, "clock", time.time)
    own_atlas.chmod(0o777)
    with staged_publish(AtlasFolder(own_atlas)) as sibling:
        sibling.connection.execute("UPDATE fine_tunes SET likes = 7")
    opened(own_atlas)
    assert len(comparisons) == 1


@pytest.mark.slow
def test_another_file_of_the_same_size_number_and_time_is_compared_and_refused(own_atlas, comparisons):
    database = own_atlas / "atlas.duckdb"
    evil = shutil.copytree(own_atlas, own_atlas.parent / "evil") / "atlas.duckdb"
    attack(evil.parent, ["CREATE VIEW mine AS FROM read_text('{secret}')"])
    good, bad = database.read_bytes(), evil.read_bytes()
    length = max(len(good), len(bad))
    database.write_bytes(good.ljust(length, b"\0"))
    opened(own_atlas)
    opened(own_atlas)
    assert len(comparisons) == 1
    before = database.stat()
    with database.open("r+b") as file:
        file.write(bad.ljust(length, b"\0"))
    os.utime(database, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = database.stat()
    assert [before.st_size, before.st_ino, before.st_mtime_ns] == [after.st_size, after.st_ino, after.st_mtime_ns]
    with pytest.raises(AtlasError, match="is refused: it holds a view 'mine'"):
        opened(own_atlas)


@pytest.mark.parametrize("statement", ["CREATE VIEW mine AS SELECT 1", "CREATE OR REPLACE VIEW models AS SELECT 1"])
def test_what_differs_is_compared_each_time(own_atlas, comparisons, statement):
    attack(own_atlas, [statement])
    is_refused = pytest.raises(AtlasError, match="is refused") if "VIEW mine" in statement else nullcontext()
    for _ in range(3):
        with is_refused:
            opened(own_atlas)
    assert len(comparisons) == 3


@pytest.mark.slow
@pytest.mark.parametrize("other", [(reading, "schema_sql", lambda: "-- other"), (duckdb, "__version__", "0.0.0")])
def test_another_schema_or_duckdb_compares_again(own_atlas, comparisons, monkeypatch, other):
    opened(own_atlas)
    monkeypatch.setattr(*other)
    opened(own_atlas)
    assert len(comparisons) == 2


@pytest.mark.slow
def test_a_memory_that_others_can_write_is_not_believed(own_atlas, comparisons):
    opened(own_atlas)
    memory = checksums.user_cache() / "checked.json"
    assert str(own_atlas / "atlas.duckdb") in memory.read_text()
    memory.chmod(0o666)
    opened(own_atlas)
    assert len(comparisons) == 2
    memory.unlink()
    os.mkfifo(memory)
    opened(own_atlas)
    assert len(comparisons) == 3


def test_a_folder_that_a_colleague_builds_is_read_at_once_and_after_each_publish(own_atlas, comparisons):
    """Many people open it where it lies: each compares what was published, once, and copies nothing."""
    own_atlas.chmod(0o777)
    for number in (1, 2):
        with staged_publish(AtlasFolder(own_atlas)) as sibling:
            sibling.connection.execute(f"UPDATE fine_tunes SET likes = {number}")
        checksums._memory_file().unlink(missing_ok=True)  # that of the colleague is another one
        for _ in range(2):
            with Atlas(own_atlas) as atlas:
                assert atlas.rows("SELECT max(likes) AS likes FROM models") == [{"likes": number}]
                assert (atlas.database, atlas.notes) == (own_atlas / "atlas.duckdb", [])
        assert len(comparisons) == number


@pytest.mark.slow
def test_a_folder_that_comes_from_another_machine_is_compared_once(own_atlas, comparisons, tmp_path):
    folder = shutil.copytree(own_atlas, tmp_path / "copied")
    with (folder / "checked.json").open("w") as file:  # what it says of itself is not read
        json.dump({str(folder / "atlas.duckdb"): reading._stamp(folder / "atlas.duckdb")}, file)
    opened(folder), opened(folder)
    assert len(comparisons) == 1


# Both are mounted where this process and its own children alone see it.
_READ_ONLY = """
import ctypes, os, subprocess, sys
user, group = os.getuid(), os.getgid()
if ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x00020000):  # CLONE_NEWUSER, CLONE_NEWNS
    sys.exit(77)
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
    open(f"/proc/self/{name}", "w").write(text)
for words in (["--bind", "atlas", "atlas"], ["-o", "remount,ro,bind", "atlas"],
              ["-t", "tmpfs", "-o", "size=4k", "none", "cache"]):
    if subprocess.run(["mount", *words]).returncode:
        sys.exit(77)
with open("cache/full", "wb") as file:
    try:
        file.write(bytes(1 << 20))
    except OSError:
        pass
from query.faces.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", [["similar", NAMES[0], "-k", "2"], ["sql", "SELECT count(*) AS n FROM models"]])
def test_a_read_only_folder_answers_without_a_word_and_with_a_full_cache(own_atlas, tmp_path, words):
    (tmp_path / "cache").mkdir()
    command = run_python(
        "-c", _READ_ONLY, *words, "--atlas", "atlas", "--json",
        cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path / "cache")},
    )  # fmt: skip
    if command.code == 77:
        pytest.skip("nothing can be mounted on this machine (unshare -Urm)")
    assert (command.code, command.err) == (0, "")
    assert command.out


def test_an_earlier_database_is_opened_once_and_a_damaged_table_hides_no_other(tmp_path, monkeypatch):
    path, opened = tmp_path / "atlas.duckdb", []
    with duckdb.connect(str(path)) as writer:
        for table in ("whole", "broken"):
            writer.execute(f"CREATE TABLE {table} AS SELECT '{table} ' || hash(i) AS word FROM range(100000) t(i)")
    attached = reading.attached
    monkeypatch.setattr(reading, "attached", lambda *arguments: opened.append(arguments) or attached(*arguments))
    questions = [
        ([table], [f"SELECT count(DISTINCT word) AS n FROM {table}"]) for table in ("whole", "broken", "whole")
    ]
    with reading.earlier_database(path) as rows:
        assert [rows(*question) for question in questions] == [[[{"n": 100_000}]]] * 3
    assert len(opened) == 1

    content = bytearray(path.read_bytes())
    positions = [match.start() for match in re.finditer(b"broken ", content)]
    content[positions[len(positions) // 2]] ^= 1  # of a value: the first ones belong to the file's catalog
    path.write_bytes(content)
    with reading.earlier_database(path) as rows:
        assert [rows(*question) for question in questions] == [[[{"n": 100_000}]], None, [[{"n": 100_000}]]]
