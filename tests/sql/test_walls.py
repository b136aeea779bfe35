"""Statements that mean ill: each wall alone, and all together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import duckdb
import numpy as np
import pytest

from indexer.child_processes import bare_environment
from indexer.errors import AtlasError
from query.questions.sql import run_sql
from query.shared.sandbox import process
from query.shared.sandbox.locked import connect_locked
from tests.sql.conftest import SECRET, state

# Statements that want out. {file}: the database itself, {folder}: where it lies.
ATTACKS = """
COPY (SELECT 1) TO '{file}' (FORMAT csv, USE_TMP_FILE false)
COPY (SELECT 1) TO '{file}' (FORMAT parquet)
COPY (SELECT 1) TO '{file}.wal' (FORMAT csv, USE_TMP_FILE false)
COPY (SELECT 1) TO '{folder}/roberta-base.input.0123.faiss' (FORMAT csv)
COPY (SELECT 1) TO '{folder}/new.csv'
COPY (SELECT 1) TO 'here.csv'
COPY (SELECT 1) TO '/dev/stdout'
COPY facts TO '{file}' (FORMAT csv, USE_TMP_FILE false)
COPY facts FROM '{folder}/secret.csv'
WITH x AS (COPY (SELECT 1) TO '{file}' (FORMAT csv, USE_TMP_FILE false)) SELECT * FROM x
WITH RECURSIVE x AS (COPY (SELECT 1) TO '{file}.wal' (FORMAT csv, USE_TMP_FILE false)) FROM x
SELECT * FROM (WITH x AS (COPY (SELECT 1) TO '{folder}/new.csv') SELECT * FROM x)
WITH x AS (INSERT INTO facts VALUES (1, 'x', 1) RETURNING *) SELECT * FROM x
WITH x AS (DELETE FROM facts RETURNING *) SELECT * FROM x
SELECT 1; COPY (SELECT 1) TO '{file}' (FORMAT csv, USE_TMP_FILE false)
COPY FROM DATABASE atlas TO temp
EXPORT DATABASE '{folder}/export'
IMPORT DATABASE '{folder}'
ATTACH '{file}' AS again (READ_ONLY false)
ATTACH '{file}' AS again
ATTACH '{folder}/other.duckdb' AS other
ATTACH ':memory:' AS memory
ATTACH '{folder}/secret.csv' AS s (TYPE sqlite)
DETACH atlas
SELECT * FROM read_csv('{folder}/secret.csv')
SELECT * FROM read_csv_auto('{folder}/*.csv')
SELECT * FROM read_text('{folder}/secret.csv')
SELECT * FROM read_blob('{file}')
SELECT * FROM read_json('{folder}/secret.csv')
SELECT * FROM read_json_objects('{folder}/secret.csv', format = 'unstructured')
SELECT * FROM read_ndjson_objects('/etc/passwd')
SELECT * FROM read_parquet('{folder}/secret.csv')
SELECT * FROM parquet_metadata('{folder}/secret.csv')
SELECT * FROM parquet_scan(['{folder}/secret.csv'])
SELECT * FROM read_duckdb('{file}')
SELECT * FROM sniff_csv('{folder}/secret.csv')
SELECT * FROM glob('{folder}/*')
SELECT * FROM '{folder}/secret.csv'
FROM '{file}'
SELECT * FROM 'https://huggingface.co/models.json'
SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')
SELECT * FROM read_parquet('s3://bucket/x.parquet')
SELECT * FROM read_text('hf://datasets/x/y/z')
SELECT (SELECT content FROM read_text('{folder}/secret.csv'))
SELECT * FROM models WHERE EXISTS (FROM read_text('{folder}/secret.csv'))
SELECT * FROM query('FROM read_text(''{folder}/secret.csv'')')
SELECT * FROM query_table('{folder}/secret.csv')
SELECT * FROM json_execute_serialized_sql(json_serialize_sql('FROM read_text(''{folder}/secret.csv'')'))
PREPARE p AS SELECT * FROM read_text('{folder}/secret.csv')
PREPARE p AS COPY (SELECT 1) TO '{file}' (FORMAT csv, USE_TMP_FILE false)
EXECUTE p
EXPLAIN ANALYZE COPY (SELECT 1) TO '{file}' (FORMAT csv, USE_TMP_FILE false)
EXPLAIN ANALYZE SELECT * FROM read_text('{folder}/secret.csv')
SUMMARIZE '{folder}/secret.csv'
DESCRIBE '{folder}/secret.csv'
INSTALL httpfs
FORCE INSTALL spatial FROM community
LOAD httpfs
LOAD '{folder}/secret.csv'
UPDATE EXTENSIONS
SET enable_external_access = true
SET GLOBAL disabled_filesystems = ''
RESET disabled_filesystems
SET lock_configuration = false
SET allowed_directories = ['/']
SET temp_directory = '{folder}/spill'
SET memory_limit = '100GB'
SET threads = 64
SET max_execution_time = 0
SET secret_directory = '{folder}'
SET log_query_path = '{folder}/log'
SET profiling_output = '{folder}/profile'
SET enable_profiling = 'json'
PRAGMA enable_profiling
PRAGMA profiling_output = '{folder}/profile'
PRAGMA enable_logging
CALL enable_logging(storage = 'file', storage_path = '{folder}')
PRAGMA import_database('{folder}')
CREATE TABLE t AS SELECT 1
CREATE OR REPLACE VIEW models AS SELECT 1
CREATE MACRO f(x) AS x
CREATE SCHEMA s
CREATE PERSISTENT SECRET s (TYPE s3)
INSERT INTO facts VALUES (1, 'x', 1)
UPDATE facts SET downloads = 0
DELETE FROM facts
TRUNCATE facts
DROP TABLE facts
DROP VIEW models
ALTER TABLE facts ADD COLUMN x INTEGER
COMMENT ON TABLE facts IS 'x'
VACUUM FULL
SELECT getenv('HOME')
SELECT * FROM connection
SELECT * FROM frame
""".strip().splitlines()


# Harmless behind the second wall (they see or change nothing that lasts), but no SELECT of the atlas either.
ONLY_REFUSED = """
CHECKPOINT
FORCE CHECKPOINT
VACUUM
ANALYZE
CREATE TEMP TABLE t AS SELECT * FROM range(10)
CREATE TEMP MACRO f(x) AS x
CREATE SECRET s (TYPE s3, KEY_ID 'x', SECRET 'y')
BEGIN
CALL pragma_version()
PRAGMA database_list
PRAGMA table_info('models')
USE main
SET VARIABLE x = 1
PREPARE p AS SELECT 1
DEALLOCATE p
PIVOT facts ON author
SELECT 1; SELECT 2
SELECT * FROM duckdb_settings()
SELECT value FROM pg_catalog.pg_settings
SELECT path FROM duckdb_databases()
SELECT path FROM duckdb_databases
SELECT path FROM DuckDB_Databases
SELECT "path" FROM SYSTEM.main."DuckDB_Databases"()
SELECT current_setting('allowed_paths')
SELECT list_transform([1], lambda x: current_setting('secret_directory'))
SELECT * FROM duckdb_secrets()
SELECT * FROM which_secret('s3://x', 's3')
SELECT * FROM query('SELECT path FROM duckdb_' || 'databases()')
SELECT write_log('x')
SELECT sleep_ms(1)
EXPLAIN COPY (SELECT 1) TO 'x'
EXPLAIN SELECT path FROM duckdb_databases()
""".strip().splitlines()


def filled(attack, folder):
    return attack.replace("{file}", str(folder / "atlas.duckdb")).replace("{folder}", str(folder))


def test_the_second_wall_alone_stops_every_attack(folder, database):
    """On the locked connection, without the parser's and without the process's help."""
    before = state(folder)
    frame = {"word": np.array([SECRET])}  # noqa: F841 - what a replacement scan would find
    with connect_locked(database) as connection:
        for attack in ATTACKS:
            try:
                got = connection.execute(filled(attack, folder)).fetchall()
            except (duckdb.Error, RuntimeError) as error:
                got = str(error)
            assert got == [] or isinstance(got, str), attack
            assert SECRET not in got, attack
        assert connection.execute("SELECT count(*) FROM models").fetchone() == (1000,)
    assert state(folder) == before


def test_the_first_wall_refuses_what_is_not_a_select_of_the_atlas(folder, database):
    """Without running anything: each of them is answered with a sentence."""
    passed, answers = set(), []
    with connect_locked(database) as connection:
        for statement in [*ATTACKS, *ONLY_REFUSED]:
            text = filled(statement, folder)
            try:
                process._checked(connection, {"statement": text})
            except process._Refused as refused:
                answers.append(refused.answer["error"])
            except duckdb.Error:
                pass
            else:
                passed.add(statement)
    assert all(answer.endswith(".") and "\n" not in answer for answer in answers)
    # What has the shape of a SELECT and names no function on the list gets as far as the second wall.
    assert all(statement.startswith(("SELECT", "FROM", "SUMM", "DESC", "EXPLAIN")) for statement in passed)
    assert not passed & set(ONLY_REFUSED)


THROUGH_ALL_WALLS = [0, 8, 9, 14, 16, 18, 24, 37, 39, 51, 94]


@pytest.mark.parametrize("number", THROUGH_ALL_WALLS)
def test_attacks_end_in_one_sentence(folder, database, number):
    before = state(folder)
    with pytest.raises(AtlasError) as caught:
        run_sql(database, filled(ATTACKS[number], folder))
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)
    assert state(folder) == before


def test_the_third_wall_is_the_system_itself(folder, database):
    """In a process with all its SQL unlocked, the limits alone keep files and sockets away."""
    code = f"""
        import socket, duckdb
        from query.shared.sandbox import process
        connection = duckdb.connect({str(database)!r}, read_only=True)
        connection.execute("SET temp_directory = ''; SET threads = 1")
        process._drop_privileges(30)
        attempts = [
            lambda: open({str(folder / "secret.csv")!r}),
            lambda: open({str(folder / "new.txt")!r}, "w"),
            lambda: socket.socket(),
            lambda: connection.execute("FROM read_text('{folder}/secret.csv')").fetchall(),
            lambda: connection.execute("COPY (SELECT 1) TO '{database}' (FORMAT csv, USE_TMP_FILE false)"),
            lambda: connection.execute("COPY (SELECT 1) TO '{folder}/new.csv'"),
            lambda: bytearray(4 << 30),
        ]
        for attempt in attempts:
            try:
                attempt()
            except (OSError, duckdb.Error, MemoryError) as error:
                print("stopped")
        print(connection.execute("SELECT count(*) FROM models").fetchone())
    """
    before = state(folder)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["stopped"] * 7 + ["(1000,)"], done.stderr
    assert state(folder) == before


def test_limits_cannot_be_raised_again():
    code = """
        import resource
        from query.shared.sandbox import process
        process._drop_privileges(30)
        for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS):
            print(resource.getrlimit(limit)[0] == resource.getrlimit(limit)[1] != resource.RLIM_INFINITY)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 3


def test_nothing_of_this_machine_can_be_read(folder, database):
    """Every view and every function without arguments that the first wall lets pass."""
    with connect_locked(database) as connection:
        views = connection.execute("SELECT schema_name || '.' || view_name FROM duckdb_views()").fetchall()
        functions = connection.execute(
            "SELECT DISTINCT function_name || '()' FROM duckdb_functions() "
            "WHERE function_type IN ('table', 'table_macro', 'scalar', 'macro') AND regexp_matches(function_name, '^\\w+$')"
        ).fetchall()
        ran = 0
        for (name,) in views + functions:
            for statement in (f"SELECT * FROM {name}", f"SELECT {name}"):
                try:
                    checked = process._checked(connection, {"statement": statement})
                    rows = connection.execute(checked).fetchall()
                except (duckdb.Error, process._Refused, RuntimeError):
                    continue
                ran += 1
                assert str(folder.parent) not in repr(rows), name
                assert os.path.expanduser("~/") not in repr(rows), name
        assert ran > 50


def test_the_process_has_an_empty_environment(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert "secret" not in json.dumps(bare_environment())
    assert "HOME" not in bare_environment()
