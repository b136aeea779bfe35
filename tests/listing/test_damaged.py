"""Damaged listings are read as far as they go, repaired and cleared; models are selected from them."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.listing.base_database import schema
from indexer.listing.exchange import read_exported
from indexer.listing.listing import ListedModel, Listing, select
from indexer.listing.listing_tables import ListingTables
from indexer.sources.claims import Claim
from indexer.sources.questions import CrawlRequest
from indexer.storage import small_database
from indexer.storage.checksummed_jsonl import add_checksum, write_lines
from indexer.storage.small_database import DamagedDatabase, SmallDatabase, row_checksum
from tests.flips import flip
from tests.hubs import BASE, SHORT, add_base, add_repo, requested, served, tags, update_listing
from tests.listing.conftest import IDS, ONE, by_id, execute, many


@pytest.fixture(scope="module")
def crawled(tmp_path_factory):
    """A listing of five models, whose crawl is over."""
    folder = tmp_path_factory.mktemp("crawled")
    add_base(folder / "store")
    many(folder / "store", 5)
    with pytest.MonkeyPatch.context() as monkeypatch, served(folder / "store", monkeypatch, page_size=2):
        update_listing(Listing(folder / "a.sqlite"), ONE)
    return folder / "a.sqlite"


@pytest.fixture
def listed_at(crawled, path):
    path.parent.mkdir(parents=True)
    return Path(shutil.copy(crawled, path))


def mended(path) -> Listing:
    """The listing, after what `index rebuild` does with it."""
    listing = Listing(path)
    listing.repair()
    listing.restore([], [BASE])
    assert listing.problems() == []
    return listing


def test_every_cut_is_found_and_mended(listed_at):
    whole = listed_at.read_bytes()
    for cut in [1, 50, 100, 4000, *range(4096, len(whole), 4096), len(whole) - 1]:
        listed_at.write_bytes(whole[:cut])
        listing = Listing(listed_at)
        assert listing.problems(), cut
        with suppress(DamagedDatabase):
            assert len(listing.models()) <= 5
        assert mended(listed_at).aliases() == ()


def test_a_flipped_bit_is_found_or_changes_nothing(listed_at):
    whole, chance = listed_at.read_bytes(), random.Random(1)
    before = Listing(listed_at).as_lines()
    for _ in range(150):
        flip(listed_at, chance.randrange(len(whole)), chance.randrange(8))
        listing = Listing(listed_at)
        assert listing.problems() or listing.as_lines() == before
        listed_at.write_bytes(whole)


@pytest.mark.slow
def test_every_byte_of_a_row_counts(listed_at):
    whole = listed_at.read_bytes()
    position = whole.index(b'"id":"a/model2"')
    for place in range(position, whole.index(b"}", position)):
        flip(listed_at, place, place % 8)
        assert Listing(listed_at).problems(), place
        flip(listed_at, place, place % 8)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE hub_rows SET row = '{}' WHERE number = 2",
        "UPDATE hub_rows SET row = x'fffe00' WHERE number = 2",
        "UPDATE models SET id = 'a/other' WHERE number = 2",
        "UPDATE models SET last_seen = 5 WHERE number = 2",
        "UPDATE claims SET parent = 'x/y' WHERE number = 2",
    ],
)
def test_a_damaged_row_is_reported_and_costs_no_other(listed_at, damage):
    execute(listed_at, damage)
    listing = Listing(listed_at)
    (problem, *_) = listing.problems()
    assert problem.startswith("row ")
    assert "its checksum does not match" in problem
    assert {model.id for model in listing.models()} >= {"a/model4", "a/model2", "a/model1", "a/model0"}
    assert not any(model.id == "a/other" for model in listing.models())
    assert len(mended(listed_at).models()) >= 4
    assert listed_at.with_name(f"{listed_at.name}.damaged").is_file()


def test_a_model_whose_row_is_damaged_is_found_again(store, monkeypatch, listed_at):
    many(store, 5)
    for damage in (
        "UPDATE hub_rows SET row = '{}' WHERE number = 2",
        "UPDATE models SET parent = 'x/y' WHERE number = 2",
    ):
        execute(listed_at, damage)
        assert len(Listing(listed_at).models()) == 4
        with served(store, monkeypatch, page_size=2):
            update_listing(Listing(listed_at), ONE)
        assert by_id(Listing(listed_at))["a/model3"].parent == BASE
        assert Listing(listed_at).problems() == []


ODD_FILES = {
    "noise": lambda path: path.write_bytes(os.urandom(200_000)),
    "another database": lambda path: execute(path, "CREATE TABLE t (a)"),
    "another version": lambda path: execute(path, "PRAGMA user_version = 99"),
    "a trigger": lambda path: execute(path, "CREATE TRIGGER harm AFTER UPDATE ON models BEGIN DELETE FROM claims; END"),
    "a view": lambda path: execute(path, "CREATE VIEW harm AS SELECT 1"),
    "a write-ahead log": lambda path: execute(path, "PRAGMA journal_mode = WAL"),
}


@pytest.mark.parametrize("kind", ODD_FILES)
def test_a_file_of_something_else_is_not_written_to(listed_at, kind):
    if kind == "another database":
        listed_at.unlink()
    ODD_FILES[kind](listed_at)
    before = listed_at.read_bytes()
    listing = Listing(listed_at)
    if kind == "another version":
        with pytest.raises(AtlasError, match="has version 99; this program reads version 1"):
            listing.models()
    else:
        with pytest.raises(DamagedDatabase, match="index rebuild"):
            listing.models()
        assert len(listing.problems()) == 1
    with pytest.raises(AtlasError) as caught:
        listing.add({"id": "a/b"}, "finetune", BASE)
    assert "\n" not in str(caught.value)
    assert str(listed_at) in str(caught.value)
    assert "index rebuild" in str(caught.value) or kind == "another version"
    assert listed_at.read_bytes() == before
    if kind != "another version":
        assert len(mended(listed_at).models()) == 0


REWORDED = {
    "a comment": lambda sql: sql.replace("-- an id of the base on the Hub", "-- an id; it's the base's"),
    "no comments": lambda sql: re.sub("--.*", "", sql),
    "another kind of comment": lambda sql: sql.replace("models (", "models /* all -- of them */ ("),
    "white space": lambda sql: re.sub("--.*", "", sql).replace("\n", "\r\n\t").replace(" TEXT", "  TEXT"),
}


@pytest.mark.parametrize("kind", REWORDED)
def test_comments_and_white_space_are_no_part_of_a_schema(listed_at, kind):
    sql = REWORDED[kind](schema().sql)
    assert sql != schema().sql
    database = SmallDatabase(listed_at, replace(schema(), sql=sql))
    assert database.check() == []
    assert len(database.read(lambda tables: list(tables.all("models")))) == 5
    database.write(lambda tables: tables.put("renamed", "a/old", "a/new"))
    assert Listing(listed_at).problems() == []


OTHER_SCHEMAS = {
    "a column": ("parent TEXT NOT NULL,  -- the", "parent TEXT NOT NULL, more TEXT,  -- the"),
    "a constraint": ("id TEXT NOT NULL UNIQUE", "id TEXT NOT NULL"),
    "words without the space between them": ("seen TEXT NOT NULL,\n", "seenTEXT NOT NULL,\n"),
    "a comment that hides a constraint": ("value TEXT NOT NULL", "value TEXT -- NOT NULL\n"),
    "a text with the signs of a comment": ("value TEXT NOT NULL", "value TEXT NOT NULL DEFAULT '-- a'"),
    "white space that SQLite does not know": ("value TEXT", "value\u00a0 TEXT"),
}


@pytest.mark.parametrize("kind", OTHER_SCHEMAS)
def test_other_tables_are_not_read(path, kind):
    path.parent.mkdir(parents=True)
    before, after = OTHER_SCHEMAS[kind]
    assert before in schema().sql
    other = SmallDatabase(path, replace(schema(), sql=schema().sql.replace(before, after)))
    other.write(lambda tables: tables.put("renamed", "a/old", "a/new"))
    with pytest.raises(DamagedDatabase, match="its tables are not those of a listing"):
        Listing(path).models()


def test_texts_of_a_schema_are_compared_with_their_white_space_and_dashes(path):
    path.parent.mkdir(parents=True)
    texts = ["'a'", "'a '", "'-- a'", "'/* a */'", "''", "'it''s -- a'", '"a"', "[a]", "`a`"]
    schemas = [replace(schema(), sql=f"CREATE TABLE t (a TEXT DEFAULT {text}, checksum TEXT)") for text in texts]
    assert len({each.objects for each in schemas}) == len(texts)


def test_messages_name_the_kind_of_database_and_its_command(path, monkeypatch):
    other = replace(schema(), name="catalogue", writer="index fetch", repair="Remove it.")
    path.parent.mkdir(parents=True)
    execute(path, "CREATE TABLE t (a)")
    with pytest.raises(DamagedDatabase) as caught:
        SmallDatabase(path, other).read(lambda tables: None)
    assert caught.value.message == f"The catalogue {path} is damaged (its tables are not those of a catalogue)."
    assert caught.value.hint == "Remove it."
    path.unlink()
    SmallDatabase(path, other).write(lambda tables: tables.put("renamed", "a/old", "a/new"))
    leave_a_journal(path, "renamed", "new")
    monkeypatch.setattr(small_database, "_has_locks", lambda folder: False)
    monkeypatch.setattr(small_database, "_WAIT_SECONDS", 0.0)
    with pytest.raises(AtlasError, match="a write was interrupted") as interrupted:
        SmallDatabase(path, other).read(lambda tables: None)
    assert interrupted.value.hint.startswith("Run `index fetch` again")


def test_values_that_nobody_writes_end_in_one_line(listed_at):
    """With checksums that fit, as a hostile maker can see to it."""
    values = (2, "a/model3", "yesterday", "2024-01-01", "finetune", "tag", BASE)
    columns = "number, id, first_seen, last_seen, relation, claimed_by, parent, checksum"
    execute(
        listed_at, f"REPLACE INTO models ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *values, row_checksum(values)
    )
    assert len(Listing(listed_at).models()) == 4
    deep = "[" * 300 + "]" * 300
    for row in (deep, "7", '{"a": ' + deep + "}"):
        execute(listed_at, "REPLACE INTO hub_rows VALUES (1, ?, ?)", row, row_checksum((1, row)))
        assert len(Listing(listed_at).models()) == 3
    bad = ("x", "why", "{}", "no time", "")
    execute(listed_at, "INSERT INTO bad_rows VALUES (?, ?, ?, ?, ?, ?)", *bad, row_checksum(bad))
    with pytest.raises(AtlasError, match="values that this program does not write"):
        Listing(listed_at).rejected_rows()


# What a file system cannot do


def test_a_full_disk_changes_nothing(listed_at, monkeypatch):
    before = Listing(listed_at).as_lines()
    pages = len(listed_at.read_bytes()) // 4096
    connect = small_database._connect

    def small(path, parameters):
        connection = connect(path, parameters)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(small_database, "_connect", small)
    with pytest.raises(AtlasError, match="cannot be written: No space left on device"):
        Listing(listed_at).add({"id": "a/b", "x": "y" * 200_000}, "finetune", BASE)
    assert Listing(listed_at).as_lines() == before
    assert not Listing(listed_at).database.journal.exists()


@pytest.mark.parametrize("writes_here", [True, False])
def test_a_file_system_without_locks(listed_at, monkeypatch, writes_here):
    """A write that was killed is undone by the writer of the atlas only; others wait for it."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    monkeypatch.setattr(small_database, "_device_has_locks", small_database._device_has_locks.__wrapped__)
    monkeypatch.setattr(small_database, "_WAIT_SECONDS", 0.2)
    before = [model.id for model in Listing(listed_at).models()]
    leave_a_journal(listed_at)
    folder = AtlasFolder(listed_at.parent.parent)
    with folder.locked("test") if writes_here else nullcontext():
        if writes_here:
            assert [model.id for model in Listing(listed_at).models()] == before
            Listing(listed_at).add({"id": "a/b"}, "finetune", BASE)
            assert len(Listing(listed_at).models()) == 6
        else:
            with pytest.raises(AtlasError, match="a write was interrupted"):
                Listing(listed_at).models()


def leave_a_journal(path, table="hub_rows", column="row") -> None:
    """What a process leaves that is killed in the middle of a large write."""
    code = (
        "import sqlite3, os, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('PRAGMA cache_size = 1')\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "for number in range(5):\n"
        f"    connection.execute('UPDATE {table} SET {column} = zeroblob(40000)')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    assert path.with_name(f"{path.name}-journal").stat().st_size > 0


def test_a_first_write_that_fails_leaves_no_file(path):
    with pytest.raises(ValueError, match="no row"):
        Listing(path).database.write(lambda tables: ListingTables(tables).see("a/b", {}, None, datetime.now(UTC)))
    assert not path.exists()


def test_a_write_that_was_killed_is_undone(listed_at):
    before = Listing(listed_at).as_lines()
    leave_a_journal(listed_at)
    assert Listing(listed_at).as_lines() == before
    assert Listing(listed_at).problems() == []


def test_a_first_write_that_was_killed_is_undone(path):
    path.parent.mkdir(parents=True)
    code = (
        "import sqlite3, os, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('PRAGMA cache_size = 1')\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "connection.execute('CREATE TABLE models (a)')\n"
        "for number in range(5):\n"
        "    connection.execute('INSERT INTO models VALUES (zeroblob(400000))')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert path.stat().st_size > 0
    assert path.with_name(f"{path.name}-journal").exists()
    assert Listing(path).models() == []
    Listing(path).add({"id": "a/b"}, "finetune", BASE)
    assert [model.id for model in Listing(path).models()] == ["a/b"]
    assert Listing(path).problems() == []


def test_a_writer_waits_for_a_reader_and_says_so_in_the_end(listed_at, monkeypatch):
    monkeypatch.setattr(small_database, "_WRITER_WAIT_SECONDS", 0.1)
    with closing(sqlite3.connect(listed_at, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM models").fetchall()
        assert len(Listing(listed_at).models()) == 5
        with pytest.raises(AtlasError, match="Another process has been using the listing"):
            Listing(listed_at).add({"id": "a/b"}, "finetune", BASE)
    Listing(listed_at).add({"id": "a/b"}, "finetune", BASE)


def test_without_the_right_to_write_it_is_read(listed_at, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert len(Listing(listed_at).models()) == 5


# Lines


@pytest.mark.parametrize(
    "damage",
    [
        b"garbage",
        b"\xff\xfe\x00",
        b"{}",
        b"[]",
        b"null",
        {"kind": "model"},
        {"kind": "model", "id": 5, "seen": "x", "claims": {}},
        {"kind": "model", "id": "a/x", "seen": "2024-01-01", "claims": {"t": {"relation": 5}}, "row": {}},
        {"kind": "model", "id": "a/x", "seen": "2024-01-01", "claims": {}, "row": {}},
        {"kind": "model", "id": "a/unseen", "seen": "2024-01-01", "claims": {"t": {
            "relation": "finetune", "claimed_by": "tag", "parent": "x"}}},
        {"kind": "step", "id": "a/b", "of": BASE, "relation": "finetune", "downloads": 1 << 70},
        {"kind": "renamed", "id": "a/b", "to": "../x"},
        {"kind": "removed", "id": "a/b", "seen": "", "pending": {"bases": ["../x"], "records": True}},
        {"kind": "page", "crawl": "x", "question": "q", "next": None, "last": True},
        {"kind": "nonsense"},
        {"kind": ["model"]},
        b"[" * 100_000,
        b"",
    ],
)  # fmt: skip
def test_a_line_that_is_not_valid_is_reported_and_costs_no_other(crawled, tmp_path, damage):
    whole = Listing(crawled).as_lines()
    path = tmp_path / "a.jsonl"
    write_lines(path, whole)
    content = path.read_bytes().splitlines(keepends=True)
    line = damage if isinstance(damage, bytes) else add_checksum(json.dumps(damage))
    path.write_bytes(b"".join([*content[:3], line + b"\n", *content[3:]]))
    lines, problems = read_exported(path)
    (problem,) = problems
    assert problem.startswith("line 4 ")
    assert len(problem) <= 300
    assert lines == whole


def test_lines_are_read_as_far_as_a_cut_file_goes(crawled, tmp_path):
    path, known = tmp_path / "a.jsonl", 0
    write_lines(path, Listing(crawled).as_lines())
    whole = path.read_bytes()
    for cut in range(0, len(whole), 37):
        path.write_bytes(whole[:cut])
        lines, problems = read_exported(path)
        assert len(lines) >= known
        assert bool(problems) == (not whole[:cut].endswith(b"\n") and cut > 0)
        known = len(lines)


def test_lines_of_one_listing_are_another_listing(crawled, tmp_path):
    listing, other = Listing(crawled), Listing(tmp_path / "b.sqlite")
    assert other.write(listing.as_lines()) == []
    assert other.models() == listing.models()
    assert other.as_lines() == listing.as_lines()


# What does not grow


def test_crawls_without_news_do_not_make_the_file_larger(store, monkeypatch, path):
    many(store, 5)
    add_repo(store, "me/roberta-base-x", {"config.json": {"_name_or_path": "x/y"}})
    request = CrawlRequest(IDS, discover="names")
    with served(store, monkeypatch) as hub:
        hub.faults.add("/api/models", splice_row={"id": "../x"})
        update_listing(Listing(path), request)
        order, size = list(by_id(Listing(path))), path.stat().st_size
        (store / "a/model3.repo.json").write_text(json.dumps({"private": True}))
        for number in range(4):
            add_repo(store, "a/model1", tags=tags(BASE), downloads=number)
            listing = Listing(path)
            update_listing(listing, request)
            assert listing.models() == Listing(path).models()
            assert listing.rejected_rows() == Listing(path).rejected_rows()
        assert path.stat().st_size <= size + 4096
        assert [one.name for one in path.parent.iterdir()] == [path.name]
        found = by_id(Listing(path))
        assert list(found) == order
        assert found["a/model3"].deleted_at_hub
        assert found["a/model1"].row["downloads"] == 3
        assert Listing(path).aliases() == (SHORT,)
        assert len(Listing(path).rejected_rows()) == 1
        hub.reset_log()
        update_listing(Listing(path), request)
        assert not requested(hub, "/resolve/")  # what was examined is still known


# Selection


def listed(name: str, **row) -> ListedModel:
    now = datetime(2024, 1, 1, tzinfo=UTC)
    relation = row.pop("relation", "finetune")
    return ListedModel(name, row, relation, "tag", BASE, now, now, row.pop("deleted_at_hub", False))


MODELS = [
    listed("b/two", downloads=5, likes=1, createdAt="2024-03-01T00:00:00.000Z"),
    listed("a/one", downloads=5, likes=9, createdAt="2024-01-01T00:00:00.000Z"),
    listed("c/three", downloads=50, likes=0, createdAt="2024-02-01T00:00:00.000Z", relation="adapter"),
    listed("d/odd", downloads="a million", likes=True, createdAt="yesterday"),
    listed("e/none"),
    listed("f/gone", downloads=10**9, deleted_at_hub=True),
]


def names(**choice) -> list[str]:
    return [model.id for model in select(MODELS, **choice)]


def test_selection():
    assert names() == ["c/three", "a/one", "b/two", "d/odd", "e/none"]
    assert names(limit=2) == ["c/three", "a/one"]
    assert names(limit=0) == []
    assert names(sort="likes")[:2] == ["a/one", "b/two"]
    assert names(sort="created") == ["b/two", "c/three", "a/one", "d/odd", "e/none"]
    assert names(relations=("adapter",)) == ["c/three"]
    assert names(author="A") == ["a/one"]
    assert names(since=datetime(2024, 2, 1, tzinfo=UTC)) == ["c/three", "b/two"]
    assert names(since=datetime(2024, 2, 1)) == ["c/three", "b/two"]  # what click gives
    assert [model.id for model in select(list(reversed(MODELS)))] == names()


def test_claims_are_ranked():
    ranked = [
        Claim("adapter", "tag", BASE),
        Claim("finetune", "tag", BASE),
        Claim("adapter", "alias:q/q", "q/q"),
        Claim("adapter", "adapter_config", BASE),
        Claim("finetune", "config", BASE),
        Claim("finetune", "card", BASE),
        Claim("finetune", "user", BASE),
        Claim("finetune", "name", BASE),
        Claim("odd", "odd", BASE),
    ]
    shuffled = ranked[3:] + ranked[:3]
    assert sorted(shuffled, key=lambda claim: claim.rank) == ranked
