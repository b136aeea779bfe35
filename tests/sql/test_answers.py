"""Time, memory and rows have limits; honest statements and conditions are answered."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import time

import duckdb
import pytest

from indexer.errors import AtlasError
from query.questions import sql
from query.questions.sql import run_sql
from query.shared.sandbox import process
from query.shared.sandbox.locked import connect_locked
from tests.halves import a_few
from tests.patience import PATIENCE, wait_for
from tests.sql.conftest import check_condition, state

ENDLESS = [
    "SELECT len(range(100000000))",
    "SELECT levenshtein(repeat('ab', 50000), repeat('ba', 50000))",
    "SELECT sum(i) FROM range(1000000000000) t(i)",
    "WITH RECURSIVE r AS (SELECT 1 i UNION ALL SELECT i + 1 FROM r) SELECT max(i) FROM r",
    "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE hash(a.range + b.range) = 7",
    "SELECT list_sum(list_transform(range(30000), lambda x: list_sum(list_transform(range(30000), lambda y: y * x))))",
    "SELECT * FROM range(100000000000) t(i) WHERE sin(i) > 2",
]


@pytest.mark.parametrize("statement", a_few(ENDLESS, 2))
def test_the_time_limit_holds(database, statement):
    with pytest.raises(AtlasError) as caught:
        run_sql(database, statement, seconds=0.5)
    # On a fast machine the first one may reach the limit of memory first.
    assert str(caught.value) in (str(sql._too_long(0.5)), str(sql._too_much()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT list(i) FROM range(1000000000) t(i)",
        "SELECT repeat('x', 1000) r FROM range(10000000) ORDER BY r",
        "SELECT repeat('x', 4000000000)",
        "SELECT string_agg(repeat('x', 1000), '') FROM range(10000000)",
    ],
)
def test_the_memory_limit_holds(database, statement):
    with pytest.raises(AtlasError, match=r"memory|larger than|longer than"):
        run_sql(database, statement, seconds=PATIENCE)


def test_a_large_result_is_refused_before_it_is_handed_over(database):
    with pytest.raises(AtlasError, match="larger than 64 MB"):
        run_sql(database, "SELECT repeat('x', 10000) FROM range(10000)", limit=None)


def test_absurd_numbers_are_sentences(database):
    for statement in ["SELECT repeat('x', 10000000000)", "SELECT len(range(1000000000000))", "SELECT 'a'::INTEGER"]:
        with pytest.raises(AtlasError):
            run_sql(database, statement, seconds=PATIENCE)


def test_deep_nesting_and_long_statements_are_sentences(database):
    for statement in [
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
        "SELECT " + "[" * 50_000,
        "SELECT 1" + " + 1" * 50_000,
        "SELECT " + "1, " * 400_000 + "1",
        "SELECT '" + "x" * 1_100_000 + "'",
    ]:
        with pytest.raises(AtlasError) as caught:
            run_sql(database, statement)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


# ---- friendly statements ----


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("SELECT count(*) FROM models", [[1000]]),
        ("FROM nearest(2)", [[0, "author0", 0], [1, "author1", 10]]),
        ("WITH a AS (SELECT max(downloads) m FROM models) SELECT m + 1 FROM a", [[9991]]),
        ("VALUES (1, 'a'), (2, NULL)", [[1, "a"], [2, None]]),
        ("TABLE models LIMIT 1", [[0, "author0", 0]]),
        ("SHOW TABLES", [["facts"], ["models"]]),
        ("DESCRIBE SELECT 1 AS a", [["a", "INTEGER", "YES", None, None, None]]),
        ("SELECT author FROM models GROUP BY ALL ORDER BY author LIMIT 1", [["author0"]]),
        ("SELECT 1 UNION ALL SELECT 2", [[1], [2]]),
        ("/* a remark */ SELECT 1 -- and another", [[1]]),
        ("SELECT 'a; DROP TABLE facts'", [["a; DROP TABLE facts"]]),
        ("SELECT 'duckdb_settings', 'query' AS query", [["duckdb_settings", "query"]]),
        ("SELECT 1;", [[1]]),
    ],
)
def test_a_select_is_answered(database, statement, rows):
    assert run_sql(database, statement).rows == rows


def test_every_type_comes_back_as_json_has_it(database):
    found = run_sql(
        database,
        """SELECT DATE '2024-01-31', TIMESTAMP '2024-01-31 12:00:00', TIMESTAMPTZ '2024-01-31 12:00:00+02',
        1.50::DECIMAL(10, 2), 7::DECIMAL(10, 0), 'nan'::DOUBLE, 'inf'::FLOAT, 170141183460469231731687303715884105727,
        [1, NULL], {'a': 1, 'b': [2]}, MAP {'k': 1}, 'a\\x00'::BLOB, TRUE, NULL, '12:30'::TIME, 'a' || chr(27),
        '290000-01-01'::TIMESTAMP, uuid() IS NOT NULL, INTERVAL 2 DAY""",
    )
    assert found.rows[0] == [
        "2024-01-31", "2024-01-31T12:00:00", "2024-01-31T10:00:00+00:00",
        1.5, 7, None, None, 170141183460469231731687303715884105727,
        [1, None], {"a": 1, "b": [2]}, {"k": 1}, "6100", True, None, "12:30:00", "a\x1b",
        "290000-01-01 00:00:00", True, "2 days, 0:00:00",
    ]  # fmt: skip
    json.dumps(found.rows, allow_nan=False)


def test_now_needs_no_further_package(database):
    before = time.time()
    ((text,),) = run_sql(database, "SELECT now()").rows
    assert before - 1 <= datetime.datetime.fromisoformat(text).timestamp() <= time.time() + 1


def test_duckdbs_own_collection_of_odd_values(database):
    assert len(run_sql(database, "FROM test_all_types()").rows) == 3


def test_the_row_limit(database):
    found = run_sql(database, "SELECT model_id FROM models ORDER BY 1", limit=3)
    assert (found.rows, found.truncated) == ([[0], [1], [2]], True)
    assert not run_sql(database, "SELECT model_id FROM models LIMIT 3", limit=3).truncated
    assert len(run_sql(database, "SELECT model_id FROM models", limit=None).rows) == 1000
    assert len(run_sql(database, "SELECT * FROM range(100000000000)", limit=5).rows) == 5


def test_columns_of_one_name_are_distinguished(database):
    found = run_sql(database, "SELECT 1 AS a, 2 AS a, 3 AS a_2, 4 AS a")
    assert found.to_rows() == [{"a": 1, "a_2": 2, "a_2_2": 3, "a_3": 4}]


def test_parameters(database):
    assert run_sql(database, "SELECT ? + 1, ?", parameters=[1, "x' OR 1=1 --"]).rows == [[2, "x' OR 1=1 --"]]
    assert run_sql(database, "SELECT $a", parameters={"a": None}).rows == [[None]]
    with pytest.raises(AtlasError, match="not provided"):
        run_sql(database, "SELECT ?")
    with pytest.raises(AtlasError, match="cannot be passed to the process"):
        run_sql(database, "SELECT ?", parameters=[object()])


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT * FORM models", 'syntax error at or near "models" (line 1: SELECT * FORM >>models<<).'),
        ("SELECT\n1,\nnope FROM models", "(line 3: >>nope<< FROM models)"),
        ("SELECT donwloads FROM models", 'Candidate bindings: "downloads"'),
        ("SELECT 1 FROM modelz", 'Did you mean "models"? (line 1: SELECT 1 FROM >>modelz<<)'),
        ("SELECT 'é日本', nope FROM models", "SELECT 'é日本', >>nope<< FROM models"),
        ("SELECT " + "1, " * 100 + "nope FROM models", ">>nope<< FROM models"),
        ("", "Expected one SELECT statement, got none"),
        ("-- nothing", "Expected one SELECT statement, got none"),
        ("SELECT 1; SELECT 2", "Expected one SELECT statement, got 2"),
        ("DROP TABLE facts", "not DROP. The atlas can only be read."),
        ("PIVOT facts ON author", "not PIVOT."),
        ("SELECT \ud800", ""),
        ("SELECT '\x00", ""),
    ],
)
def test_errors_are_one_line(database, statement, said):
    with pytest.raises(AtlasError) as caught:
        run_sql(database, statement)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_database_that_cannot_be_opened(tmp_path, database):
    with pytest.raises(AtlasError, match="There is no database"):
        run_sql(tmp_path / "none.duckdb", "SELECT 1")
    other = tmp_path / "text.duckdb"
    other.write_text("not a database " * 1000)
    with pytest.raises(AtlasError, match="cannot be read"):
        run_sql(other, "SELECT 1")
    assert not (tmp_path / "none.duckdb").exists()


def test_a_database_in_use_by_a_writer(tmp_path):
    path = tmp_path / "busy.duckdb"
    with (
        duckdb.connect(str(path)),
        pytest.raises(AtlasError, match=rf"open for writing in another program \(process {os.getpid()}\)"),
    ):
        run_sql(path, "SELECT 1")


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_time_limit_must_be_one(database, seconds):
    with pytest.raises(AtlasError, match="is not a valid time limit"):
        run_sql(database, "SELECT 1", seconds=seconds)


def test_it_runs_from_any_folder_and_under_a_relative_name(database, monkeypatch):
    monkeypatch.chdir(database.parent)
    assert run_sql(type(database)("atlas.duckdb"), "SELECT 1").rows == [[1]]


# ---- conditions ----


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("downloads > 9970", 2),
        ("author = 'author3' AND downloads < 100", 1),
        ("downloads IN (SELECT max(downloads) FROM models)", 1),
        ("downloads > 9970 -- the largest", 2),
        ("/* the largest */ downloads\n>\n9970", 2),
        ("author LIKE '%) OR (%'", 0),
        ("list_contains([10, 20], downloads)", 2),
        ("(downloads > 9970) OR (downloads < 20)", 4),
        ("NULL", 0),
        ("EXISTS (FROM nearest(1))", 1000),
        ("CASE WHEN model_id = 3 THEN true END", 1),
    ],
)
def test_a_condition_finds_ids(database, where, count):
    found = check_condition(database, where)
    assert len(found) == count
    assert found == sorted(found)
    assert all(isinstance(identity, int) for identity in found)


@pytest.mark.parametrize(
    "where",
    [
        "1=1) UNION SELECT 1 --",
        "1=1) UNION SELECT model_id FROM (SELECT 7 AS model_id",
        "1=1); DROP TABLE facts; SELECT (1",
        "1=1; DROP TABLE facts",
        "1=1) OR (1=1",
        "1=1) LIMIT 1 --",
        "1=1) ORDER BY (1",
        "1=1] || [1",
        "1=1)]) --",
        "true LIMIT 5",
        "SELECT 1",
        "(",
        ")",
        "",
        "downloads >",
        "'unfinished",
        "$$unfinished",
        "1 /* unfinished",
        "downloads, 1",
        "count(*) > 1",
        "row_number() OVER () > 1",
        "downloads = ?",
        "nope = 1",
        "author",
        "downloads > 'many'",
        "EXISTS (FROM read_text('/etc/passwd'))",
        "EXISTS (FROM duckdb_settings())",
        "(SELECT count(*) FROM query('SELECT 1')) = 1",
        "EXISTS (WITH x AS (COPY (SELECT 1) TO 'x.csv') FROM x)",
        "x" * 2_000_000,
        "\x00",
        "[" * 5000,
    ],
)
def test_what_is_not_a_condition_is_refused(folder, database, where):
    """Here, in this process: the same two steps that the other one takes."""
    before = state(folder)
    with connect_locked(database) as connection, pytest.raises((process._Refused, duckdb.Error)):
        process._rows(connection, process._checked(connection, {"condition": where, "view": "models"}), None, None)
    assert state(folder) == before


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("", "`where` is empty."),
        ("1=1) OR (1=1", "`where` '1=1) OR (1=1': syntax error at or near \")\" (line 1: 1=1>>)<< OR (1=1)."),
        ("downloads >", "the condition ends too early. Look for a missing bracket or value."),
        ("\nnope = 1", "(line 2: >>nope<< = 1)"),
        ("EXISTS (FROM read_text('/etc/passwd'))", "out of reach"),
        ("x" * 2_000_000, "longer than"),
        ("author", "Could not convert string"),
    ],
)
def test_a_refused_condition_is_one_line(database, where, said):
    with pytest.raises(AtlasError) as caught:
        check_condition(database, where)
    assert said in str(caught.value)
    assert str(caught.value).startswith("`where` ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_view_is_a_name_and_nothing_else(database):
    assert len(check_condition(database, "true", view="facts")) == 1000
    with pytest.raises(AtlasError, match="does not exist"):
        check_condition(database, "true", view='models" WHERE false --')


# ---- our own readers ----


def test_two_readers_in_one_process(database):
    with connect_locked(database) as one, connect_locked(database) as other:
        assert one.execute("SELECT count(*) FROM models").fetchone() == (1000,)
        assert other.execute("SELECT count(*) FROM models").fetchone() == (1000,)
        with pytest.raises(duckdb.Error):
            other.execute("SET threads = 4")
        # A plain connection, as a build makes to look at its own atlas, is not shut out.
        with duckdb.connect(str(database), read_only=True) as plain:
            assert plain.execute("SELECT count(*) FROM models").fetchone() == (1000,)
    with duckdb.connect(str(database), read_only=True), connect_locked(database) as late:
        assert late.execute("SELECT current_setting('lock_configuration')").fetchone() == (True,)


def test_importing_it_costs_nothing():
    code = "import sys, query.questions.sql; print('duckdb' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_a_process_that_was_prepared_answers_once_and_one_that_is_not_asked_ends(database):
    sql.prepare()
    waiting = sql._prepared[-1]
    assert run_sql(database, "SELECT count(*) FROM models").rows == [[1000]]
    assert waiting.poll() is not None, "it was the one that answered"
    assert sql._prepared == []
    code = "from query.questions import sql; sql.prepare(); print(sql._prepared[0].pid)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    wait_for(lambda: not os.path.exists(f"/proc/{int(done.stdout)}/cmdline"), "it waits for ever")
