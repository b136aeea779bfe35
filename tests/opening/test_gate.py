"""The gate for databases of others: rows of tables pass, in bounds; nothing else of the file does."""

from __future__ import annotations

import os
import re
import shutil
import signal

import duckdb
import pytest

from indexer.database import gate
from indexer.database.catalog import empty_database
from indexer.database.reading import Reading
from indexer.errors import AtlasError
from indexer.upkeep.verification import contradiction_in
from query import Atlas
from tests.database import leave_log, replace_bytes
from tests.every_kind import make_every_kind
from tests.halves import a_few
from tests.once import made_once
from tests.opening.conftest import IGNORED, NAMES, REFUSED, SECRET, attack
from tests.opening.test_changed import HAS_TRIGGERS
from tests.share.conftest import rows_of


def copied(folder):
    """What the gate makes of the database, within this process."""
    target = folder / "admitted.duckdb"
    target.write_bytes(empty_database())
    gate._copy(folder / "atlas.duckdb", target)
    return target


@pytest.fixture
def unnoticed(monkeypatch):
    """The catalogue is as it should be, whatever the rows are."""
    monkeypatch.setattr(gate, "refuse", lambda *_: None)


# By table and column: a statement that makes one value odd, and what the line says of it.
ODD = {
    "fine_tunes.author": ("UPDATE fine_tunes SET author = repeat('x', 2000000)", "a text of more than 1,048,576"),
    "fine_tunes.detail": ("UPDATE fine_tunes SET detail = 'a' || chr(0) WHERE model_id = 2", "a text with a zero byte"),
    "fine_tunes.created": ("UPDATE fine_tunes SET created = 'infinity'", "a time that is no date"),
    "fine_tunes.tried": ("UPDATE fine_tunes SET tried = '20000-01-01'", "a time that is no date"),
    "fine_tunes.languages": ("UPDATE fine_tunes SET languages = range(70000)::VARCHAR[]", "a list of more than 65,536"),
    "fine_tunes.oddities": ("UPDATE fine_tunes SET oddities = ['x', chr(0)]", "a text with a zero byte"),
    "fine_tunes.path": ("UPDATE fine_tunes SET path = [{relation: 'x', model: chr(0)}]", "a text with a zero byte"),
    "fine_tunes.model": (
        "UPDATE fine_tunes SET model = 'RULE: obey' WHERE model_id = 1",
        "'RULE: obey', which is not a",
    ),
    "fine_tunes.base": ("UPDATE fine_tunes SET base = '../../x'", "'../../x', which is not a valid id"),
    "bases.base": ("UPDATE bases SET base = 'a' || chr(27) || '[2Jb'", "'a\ufffd[2Jb', which is not a valid id"),
    "bases.aliases": ("UPDATE bases SET aliases = ['org/base', NULL]", "'None', which is not a valid id"),
    "bases.config": ("UPDATE bases SET config = repeat('[', 5000) || repeat(']', 5000)", "invalid JSON"),
    "neighbours.similarity": ("UPDATE neighbours SET similarity = 'nan'", "a number that is not finite"),
    "records.base_cosine": ("UPDATE records SET base_cosine = '-inf'", "a number that is not finite"),
    "compared_deltas.difference": (
        "INSERT INTO internal.compared_deltas VALUES (1, 2, 'inf'), (1, 3, 'nan')",
        "a number that is not finite",
    ),
}


@pytest.mark.parametrize("column", a_few(ODD, 3))
def test_a_value_out_of_bounds_is_refused_by_table_and_column(own_atlas, column):
    statement, answer = ODD[column]
    attack(own_atlas, [statement])
    with pytest.raises(AtlasError) as caught:
        copied(own_atlas)
    message = caught.value.message
    assert f"{own_atlas / 'atlas.duckdb'} is refused: {column} holds {answer}" in message
    assert not re.search(r"[\x00-\x1f\x7f]", message)


def test_a_text_that_is_not_utf_8_is_refused(own_atlas):
    attack(own_atlas, ["UPDATE fine_tunes SET detail = 'a needle of some length: ' || model_id"])
    assert replace_bytes(own_atlas / "atlas.duckdb", b"a needle of some length: 3", b"a needle of some \xff\xff")
    with pytest.raises(AtlasError, match=r"fine_tunes.detail holds a text that is not UTF-8"):
        copied(own_atlas)
    with Atlas(own_atlas) as opened, pytest.raises(AtlasError, match=r"is damaged .it holds a text that is not UTF-8"):
        opened.show("org/model-2")


@pytest.mark.slow
def test_null_where_it_must_not_be_is_refused(own_atlas, unnoticed):
    attack(own_atlas, ["ALTER TABLE fine_tunes ALTER author DROP NOT NULL", "UPDATE fine_tunes SET author = NULL"])
    with pytest.raises(AtlasError, match=r"is refused: fine_tunes.author holds null\."):
        copied(own_atlas)


@pytest.mark.parametrize("name", a_few(REFUSED, 1))
def test_what_schema_sql_does_not_make_does_not_pass(own_atlas, name):
    statements, answer = REFUSED[name]
    if "TRIGGER" in statements[0] and not HAS_TRIGGERS:
        pytest.skip("this DuckDB has no triggers")
    attack(own_atlas, statements)
    with pytest.raises(AtlasError, match="is refused: it ") as caught:
        copied(own_atlas)
    assert answer in caught.value.message


def test_rows_pass_and_views_macros_and_comments_stay_behind(own_atlas):
    before = rows_of(own_atlas / "atlas.duckdb")
    shutil.copy(
        own_atlas / "atlas.duckdb", own_atlas / "admitted.duckdb"
    )  # with its log: left by a process that was killed
    leave_log(own_atlas / "admitted.duckdb", "UPDATE fine_tunes SET author = 'x'")
    attack(own_atlas, [statement for statements in IGNORED.values() for statement in statements[:1]] + ["{models}"])
    gate.admit(own_atlas / "atlas.duckdb", own_atlas / "admitted.duckdb")
    assert {path.name for path in own_atlas.glob("admitted*")} == {"admitted.duckdb"}
    assert rows_of(own_atlas / "admitted.duckdb") == before
    (own_atlas / "admitted.duckdb").replace(own_atlas / "atlas.duckdb")
    assert SECRET.encode() not in (own_atlas / "atlas.duckdb").read_bytes()
    with Atlas(own_atlas) as opened:
        assert opened.notes == []
        assert len(opened.similar(NAMES[0])) == 5
    with duckdb.connect(str(own_atlas / "atlas.duckdb"), read_only=True) as plain:
        assert plain.execute("SELECT count(*) FROM models").fetchone() == (6,)


@pytest.mark.slow
def test_an_atlas_of_every_kind_passes(tmp_path, tmp_path_factory):
    every = made_once(tmp_path_factory, "every-kind", make_every_kind) / "atlas"
    shutil.copy(every / "atlas.duckdb", tmp_path)
    admitted = copied(tmp_path)
    assert rows_of(admitted) == rows_of(every / "atlas.duckdb")
    with Reading(admitted) as connection:
        assert contradiction_in(connection) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "answer"),
    [
        ({"_LEAST_BYTES": 300_000, "_GROWTH": 0}, "holds more than 0 MB"),
        ({"_LEAST_SECONDS": 0.01, "_BYTES_A_SECOND": 1 << 60}, "takes longer than 0 s to read"),
        ({}, "holds a text of more than|of memory to read"),
    ],
)
def test_a_small_file_takes_bounded_memory_space_and_time(own_atlas, monkeypatch, limits, answer):
    attack(
        own_atlas, ["UPDATE fine_tunes SET detail = repeat('x', 300000000) WHERE model_id = 1"] if not limits else []
    )
    for name, most in limits.items():
        monkeypatch.setattr(gate, name, most)
    with pytest.raises(AtlasError, match=answer):
        gate.admit(own_atlas / "atlas.duckdb", own_atlas / "admitted.duckdb")
    assert list(own_atlas.glob("admitted*")) == []


@pytest.mark.slow
def test_a_crash_while_reading_is_one_line(own_atlas, monkeypatch):
    monkeypatch.setattr(gate, "bare_environment", lambda: {**os.environ, "PYTHONPATH": "", "PYTHONSTARTUP": ""})
    script = own_atlas / "crash.py"
    script.write_text(f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})")
    monkeypatch.setattr(gate, "__file__", str(script))
    with pytest.raises(AtlasError, match="is damaged: reading it ends in SIGSEGV"):
        gate.admit(own_atlas / "atlas.duckdb", own_atlas / "admitted.duckdb")
    assert list(own_atlas.glob("admitted*")) == []


def test_only_this_users_own_memory_says_what_was_admitted(own_atlas, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    database, sha256 = own_atlas / "atlas.duckdb", "a" * 64
    assert not gate.was_admitted(sha256, database)
    gate.remember_admitted(sha256, database)
    assert gate.was_admitted(sha256, database)
    assert not gate.was_admitted("b" * 64, database)
    memory = gate._memory()
    memory.chmod(0o666)
    assert not gate.was_admitted(sha256, database)
    memory.chmod(0o600)
    attack(own_atlas, ["UPDATE fine_tunes SET likes = 7"])
    assert not gate.was_admitted(sha256, database)
    (own_atlas / "atlas.duckdb").unlink()
    assert not gate.was_admitted(sha256, database)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    gate.remember_admitted(sha256, memory)
