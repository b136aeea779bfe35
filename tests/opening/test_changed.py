"""An atlas that comes from somebody else: what its database holds besides schema.sql harms nobody."""

from __future__ import annotations

import os

import duckdb
import pytest

from indexer.atlas import SCHEMA_VERSION, AtlasFolder, schema_sql
from indexer.database import catalog
from indexer.database.secure_connection import attached
from indexer.errors import AtlasError
from indexer.publish.previous_atlas import published_rank
from indexer.publish.staging import staged_publish
from indexer.upkeep.maintenance import status
from query import Atlas
from tests.atlas_builder import BASE
from tests.database import leave_log
from tests.halves import a_few
from tests.opening.conftest import IGNORED, NAMES, REFUSED, SECRET, attack

HAS_TRIGGERS = duckdb.__version__ >= "2"


@pytest.fixture
def near(own_atlas):
    with Atlas(own_atlas) as opened:
        return opened.similar(NAMES[0])


@pytest.mark.parametrize("name", a_few(REFUSED, 10))
def test_what_schema_sql_does_not_make_is_refused_by_name(own_atlas, name):
    statements, answer = REFUSED[name]
    if "TRIGGER" in statements[0] and not HAS_TRIGGERS:
        pytest.skip("this DuckDB has no triggers")
    attack(own_atlas, statements)
    before = (own_atlas / "atlas.duckdb").read_bytes()
    folder = AtlasFolder(own_atlas)
    for use in (lambda: Atlas(own_atlas), lambda: status(folder), lambda: staged_publish(folder).__enter__()):
        with pytest.raises(AtlasError) as caught:
            use()
        assert "is refused: it " in caught.value.message
        assert answer in caught.value.message
        assert "index rebuild" in caught.value.hint
        assert SECRET not in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "\x1b" not in str(caught.value)
    assert (own_atlas / "atlas.duckdb").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", a_few(IGNORED, 3))
def test_views_and_macros_of_the_file_are_never_used(own_atlas, near, name):
    attack(own_atlas, IGNORED[name])
    with Atlas(own_atlas) as opened:
        assert opened.similar(NAMES[0]) == near
        chosen = opened.similar(NAMES[0], where="model <> 'x'", k=3)
        assert [neighbour.model for neighbour in chosen] == [neighbour.model for neighbour in near[:3]]
        assert opened.sql("SELECT model FROM nearest('org/model-0')").rows == [[neighbour.model] for neighbour in near]
        assert opened.sql("SELECT count(*), any_value(model) LIKE 'org/%' FROM models").rows == [[6, True]]
        assert opened.sql("FROM failures").rows == []
        assert opened.show(NAMES[0])["model"] == NAMES[0]
        notes = opened.notes
    answer = status(AtlasFolder(own_atlas))
    assert answer["failures"] == []
    assert SECRET not in repr(answer)
    views = [words.split()[4] for words in IGNORED[name] if "REPLACE VIEW" in words]
    assert all(view in notes[0] for view in views)


def test_a_publish_puts_our_own_views_and_macros_in_their_place(own_atlas, near):
    attack(own_atlas, [statement for statements in IGNORED.values() for statement in statements[:1]] + ["{models}"])
    folder = AtlasFolder(own_atlas)
    with staged_publish(folder) as sibling:
        sibling.connection.execute("UPDATE atlas_info SET generation = generation + 1")
    with Atlas(own_atlas) as opened:
        assert opened.notes == []
        assert opened.similar(NAMES[0]) == near
    # Read by DuckDB alone, as people do.
    with duckdb.connect(str(folder.database), read_only=True) as plain:
        assert plain.execute("SELECT model FROM nearest('org/model-0')").fetchall() == [
            (neighbour.model,) for neighbour in near
        ]
        uncommented = "SELECT view_name FROM duckdb_views() WHERE comment IS NULL AND NOT internal"
        assert plain.execute(uncommented).fetchall() == []


def test_a_rebuild_asks_nothing_of_a_file_that_would_run_something(own_atlas):
    attack(own_atlas, ['CREATE MACRO "="(a, b) AS (SELECT sum(x.range) FROM range(1000000000) x, range(1000000000) y)'])
    folder = AtlasFolder(own_atlas)
    assert published_rank(folder, BASE) is None
    with staged_publish(folder, from_scratch=True) as sibling:
        assert sibling.kept_ids == {}


def test_ids_and_rank_are_read_of_another_schema(own_atlas):
    attack(own_atlas, ["UPDATE atlas_info SET schema_version = 2", "ALTER TABLE tags ADD COLUMN more INTEGER"])
    folder = AtlasFolder(own_atlas)
    assert published_rank(folder, BASE).rank == 8
    with staged_publish(folder, from_scratch=True) as sibling:
        assert sibling.kept_ids == {(name, BASE): number for number, name in enumerate(NAMES, 1)}
        assert sibling.connection.execute("SELECT next_model_id FROM atlas_info").fetchone() == (len(NAMES) + 1,)


def test_another_schema_is_reported(own_atlas):
    attack(own_atlas, ["UPDATE atlas_info SET schema_version = 2", "ALTER TABLE tags ADD COLUMN more INTEGER"])
    with pytest.raises(AtlasError, match="has schema 2; this version reads schema"):
        Atlas(own_atlas)


def test_a_log_next_to_the_database_is_not_replayed(own_atlas, near):
    change = "CREATE OR REPLACE VIEW models AS SELECT 1 AS model; UPDATE fine_tunes SET author = 'x'"
    log = leave_log(own_atlas / "atlas.duckdb", change).read_bytes()
    with Atlas(own_atlas) as opened:
        assert opened.similar(NAMES[0]) == near
        assert opened.sql("SELECT DISTINCT author FROM models").rows == [["org"]]
        assert "atlas.duckdb.wal" in opened.notes[0]
    assert status(AtlasFolder(own_atlas))["bases"][0]["indexed"] == 6
    assert (own_atlas / "atlas.duckdb.wal").read_bytes() == log


@pytest.mark.parametrize("content", [b"", b"no database" * 1000, b"SQLite format 3\0" + bytes(4096)])
def test_what_is_not_a_database_gives_one_line(own_atlas, content):
    (own_atlas / "atlas.duckdb").write_bytes(content)
    with pytest.raises(AtlasError) as caught:
        Atlas(own_atlas)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_not_a_file_gives_one_line(own_atlas, kind):
    (own_atlas / "atlas.duckdb").unlink()
    (own_atlas / "atlas.duckdb").mkdir() if kind == "folder" else os.mkfifo(own_atlas / "atlas.duckdb")
    with pytest.raises(AtlasError, match=r"no atlas.duckdb there"):
        Atlas(own_atlas)


def test_a_file_that_is_named_as_a_part_of_duckdb_is_opened_as_any_other(tmp_path, own_atlas):
    for name in ("system", "temp", "main", "memory"):
        path = (own_atlas / "atlas.duckdb").rename(own_atlas / f"{name}.duckdb")
        with attached(path) as connection:
            assert connection.execute("SELECT count(*) FROM atlas.main.fine_tunes").fetchall() == [(6,)]
        path.rename(own_atlas / "atlas.duckdb")


def test_an_empty_database_of_schema_sql_has_no_problems_and_all_of_it_is_looked_at(tmp_path):
    path = tmp_path / "atlas.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(schema_sql())
        connection.execute(f"INSERT INTO atlas_info VALUES ({SCHEMA_VERSION}, 1, NULL, NULL, 1)")
    with attached(path) as connection:
        differences = catalog.examine(connection, path)
    assert differences.problems == ()
    assert differences.differing_views == []
    assert len(catalog.definitions()) == schema_sql().count("\nCREATE ")
    assert [definition.name for definition in differences.differing] == ["nearest", "similarity_error", "background"]


def test_a_new_database_is_what_schema_sql_makes_with_a_comment_on_everything_and_has_no_rows(tmp_path):
    (tmp_path / "new.duckdb").write_bytes(catalog.empty_database())
    with duckdb.connect(str(tmp_path / "made.duckdb")) as connection:
        connection.execute(schema_sql())
    statements = (
        "SELECT comment, table_name, column_name, data_type, is_nullable, column_default FROM duckdb_columns()",
        "SELECT comment, schema_name, table_name, sql, estimated_size FROM duckdb_tables()",
        "SELECT comment, view_name, sql FROM duckdb_views()",
        "SELECT comment, function_name, macro_definition, parameters FROM duckdb_functions()",
    )
    new, uncommented = (
        [
            duckdb_rows(tmp_path / f"{name}.duckdb", f"{statement} WHERE database_name = '{name}'")
            for statement in statements
        ]
        for name in ("new", "made")
    )
    for with_comments, without in zip(new, uncommented, strict=True):
        assert sorted(str(row[1:]) for row in with_comments) == sorted(str(row[1:]) for row in without)
        assert all(row[0] for row in with_comments)
    assert {row[-1] for row in new[1]} == {0}


def test_comments_stand_beside_what_they_are_about_and_views_have_those_of_their_tables(monkeypatch):
    monkeypatch.setattr(catalog, "schema_sql", lambda: SCHEMA)
    for function in (catalog.definitions, catalog.comment_statements):
        monkeypatch.setattr(catalog, function.__name__, function.__wrapped__)
    assert catalog.comment_statements() == {
        "a": (
            "COMMENT ON TABLE a IS 'What somebody''s table has.'",
            """COMMENT ON COLUMN a."one" IS 'The first; it goes on.'""",
            """COMMENT ON COLUMN a."two" IS 'A struct.'""",
        ),
        "b": ("""COMMENT ON COLUMN b."two" IS 'Another.'""",),
        "v": (
            "COMMENT ON VIEW v IS 'A view: of both.'",
            """COMMENT ON COLUMN v."one" IS 'The first; it goes on.'""",
            """COMMENT ON COLUMN v."two" IS 'A struct.'""",
            """COMMENT ON COLUMN v."three" IS 'Its own, which goes on.'""",
        ),
        "m": ("COMMENT ON MACRO TABLE m IS 'A macro.'",),
    }


SCHEMA = """-- Of the file.

BEGIN TRANSACTION;

-- What somebody's table has.
CREATE TABLE a (
    one INTEGER NOT NULL DEFAULT 1,  -- The first;
        -- it goes on.
    "two" STRUCT(  -- A struct.
        one VARCHAR
    ),
    three INTEGER
);

CREATE TABLE b (
    two INTEGER,  -- Another.
    three INTEGER
);

-- A view: of both.
-- three: Its own,
--   which goes on.
CREATE VIEW v AS
SELECT one, a.two, a.three  -- a remark
FROM a JOIN b ON a.one = b.two;

-- A macro.
CREATE MACRO m() AS TABLE SELECT 1;

COMMIT;
"""


def duckdb_rows(path, statement):
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(f"{statement} ORDER BY ALL").fetchall()


def test_the_connection_is_locked_before_the_file_is_looked_at(own_atlas):
    with attached(own_atlas / "atlas.duckdb") as connection:
        assert connection.execute("SELECT current_database()").fetchall() == [("memory",)]
        for statement in ("SET threads = 1", f"FROM read_text('{own_atlas.parent / 'secret'}')", "ATTACH 'x.duckdb'"):
            with pytest.raises(duckdb.Error):
                connection.execute(statement)


def test_a_publishers_connection_reaches_nothing_outside_its_folder(own_atlas, tmp_path):
    with staged_publish(AtlasFolder(own_atlas)) as sibling:
        for statement in (
            f"FROM read_text('{tmp_path / 'secret'}')",
            f"COPY (SELECT 1) TO '{tmp_path / 'new.csv'}'",
            f"ATTACH '{tmp_path / 'new.duckdb'}'",
            "SET enable_external_access = true",
            "INSTALL httpfs",
        ):
            with pytest.raises(duckdb.Error):
                sibling.connection.execute(statement)
            sibling.run("ROLLBACK")
            sibling.run("BEGIN")
