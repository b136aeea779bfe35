"""Atlases that somebody else has changed: what is done to the database."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import numpy as np
import pytest

from tests.atlas_builder import Model, write_atlas

SECRET = "the secret of another file"

# Refused: by what is done, and what the sentence names.
REFUSED = {
    "a macro that answers for the lock": (
        ["CREATE MACRO current_setting(name) AS true", "DROP VIEW models", "{models}"],
        "macro 'current_setting'",
    ),
    "a macro that never ends": (
        ["CREATE MACRO current_setting(name) AS (SELECT count(*) FROM range(1000000000) a, range(1000000000) b)"],
        "macro 'current_setting'",
    ),
    "a macro that shadows an operator": (["CREATE MACRO count_star() AS 7", 'CREATE MACRO "+"(a, b) AS 7'], "macro"),
    "a table macro of a catalog function": (["CREATE MACRO duckdb_tables() AS TABLE SELECT 1"], "'duckdb_tables'"),
    "a macro of the same name, not a table's": (["DROP MACRO TABLE nearest", "CREATE MACRO nearest(a) AS a"], "macro"),
    "another macro of the same name": (["CREATE MACRO nearest(a) AS a"], "macro 'nearest'"),
    "macros that grow with their nesting": (
        ["CREATE MACRO m0(x) AS x + x", *(f"CREATE MACRO m{n}(x) AS m{n - 1}(m{n - 1}(x))" for n in (1, 2, 3, 4))],
        "macro 'm0'",
    ),
    "a view of its own": (["CREATE VIEW mine AS FROM read_text('{secret}')"], "view 'mine'"),
    "a view in place of a table": (
        [
            "DROP TABLE rejected_listing_rows",
            "CREATE VIEW rejected_listing_rows AS SELECT content AS base FROM read_text('{secret}')",
        ],
        "'rejected_listing_rows'",
    ),
    "a view that is called as one of DuckDB's": (["CREATE VIEW duckdb_views AS SELECT 1 AS a"], "view 'duckdb_views'"),
    "a table of its own": (["CREATE TABLE system (x INTEGER)"], "table 'system'"),
    "a table less": (["DROP TABLE internal.null_groups"], "lacks the table 'null_groups'"),
    "a column more": (["ALTER TABLE tags ADD COLUMN more INTEGER"], "table 'tags'"),
    "a column of another type": (
        ["ALTER TABLE rejected_listing_rows ALTER why TYPE BLOB USING why::BLOB"],
        "table 'rejected_listing_rows'",
    ),
    "a column that may be null": (["ALTER TABLE tags ALTER model_id DROP NOT NULL"], "table 'tags'"),
    "a column that is computed": (
        [
            "DROP TABLE internal.compared_deltas",
            "CREATE TABLE internal.compared_deltas (model_id INTEGER NOT NULL, other_id INTEGER NOT NULL, "
            "difference DOUBLE GENERATED ALWAYS AS (model_id + other_id))",
        ],
        "table 'compared_deltas'",
    ),
    "a default that is computed": (
        ["ALTER TABLE rejected_listing_rows ALTER raw SET DEFAULT getvariable('x')"],
        "'rejected_listing_rows'",
    ),
    "another default": (["ALTER TABLE fine_tunes ALTER deleted_at_hub SET DEFAULT true"], "table 'fine_tunes'"),
    "a check": (
        [
            "DROP TABLE internal.compared_deltas",
            "CREATE TABLE internal.compared_deltas (model_id INTEGER NOT NULL, other_id INTEGER NOT NULL, "
            "difference DOUBLE NOT NULL, CHECK (difference < 1e300))",
        ],
        "table 'compared_deltas'",
    ),
    "a collation": (
        [
            "DROP TABLE rejected_listing_rows",
            "CREATE TABLE rejected_listing_rows (base VARCHAR COLLATE nocase NOT NULL, why VARCHAR NOT NULL, raw VARCHAR, "
            "seen TIMESTAMP)",
        ],
        "table 'rejected_listing_rows'",
    ),
    "an index": (["CREATE INDEX mine ON tags (model_id)"], "index 'mine'"),
    "an index of an expression": (["CREATE INDEX mine ON tags ((model_id + 1))"], "index 'mine'"),
    "a key": (
        [
            "DROP TABLE rejected_listing_rows",
            "CREATE TABLE rejected_listing_rows (base VARCHAR PRIMARY KEY, why VARCHAR, raw VARCHAR, seen DATE)",
        ],
        "table 'rejected_listing_rows'",
    ),
    "a type": (["CREATE TYPE mood AS ENUM ('a', 'b')"], "type 'mood'"),
    "a sequence": (["CREATE SEQUENCE numbers"], "sequence 'numbers'"),
    "a schema": (["CREATE SCHEMA hidden", "CREATE TABLE hidden.models (x INTEGER)"], "schema 'hidden'"),
    "a name that steers a terminal": (['CREATE TABLE "\x1b[2J\x1b]0;x\x07" (x INTEGER)'], "\ufffd[2J"),
    "a trigger": (
        [
            "CREATE TRIGGER thief AFTER INSERT ON fine_tunes FOR EACH STATEMENT "
            "INSERT INTO tags SELECT 1, content FROM read_text('{secret}')"
        ],
        "trigger 'thief'",
    ),
    "a billion rows": (["INSERT INTO internal.null_groups SELECT 'b', 'input', 'full', 1 FROM range(9000000)"], "rows"),
}

# Not used: those of schema.sql stand in.
IGNORED = {
    "a view of models that reads a file": ["DROP VIEW models", "{models}"],
    "a view of failures that reads a file": [
        "CREATE OR REPLACE VIEW failures AS SELECT 'b' AS base, 'failed' AS status, content AS reason, 1 AS models, "
        "'x' AS example, 'y' AS example_model FROM read_text('{secret}')"
    ],
    "a view that never ends": [
        "CREATE OR REPLACE VIEW indexes AS SELECT count(*) AS base FROM range(1000000000) a, range(1000000000) b"
    ],
    "views that double with each": [
        *("CREATE OR REPLACE VIEW duplicates AS SELECT 1 AS x",),
        "CREATE OR REPLACE VIEW failures AS SELECT a.x FROM duplicates a, duplicates b",
        "CREATE OR REPLACE VIEW author_counts AS SELECT a.x FROM failures a, failures b, failures c, failures d",
    ],
    "views that are missing": ["DROP VIEW suspicious_claims", "DROP VIEW rank_by_depth"],
    "nearest, of other rows": [
        "CREATE OR REPLACE MACRO nearest(name, k := 10) AS TABLE SELECT content AS model FROM read_text('{secret}')"
    ],
    "a comment that steers a terminal": ["COMMENT ON TABLE fine_tunes IS '\x1b[2J'"],
}
MODELS = (
    "CREATE VIEW models AS SELECT model_id, content AS id, content AS model, base, content AS author, 'finetune' AS "
    "relation, [content] AS datasets FROM fine_tunes, read_text('{secret}')"
)
NAMES = [f"org/model-{number}" for number in range(6)]


@pytest.fixture(scope="session")
def six_models(tmp_path_factory) -> Path:
    """An atlas of six models; tests must leave it as it is."""
    draws = np.random.default_rng(0).normal(size=(len(NAMES), 12))
    models = [Model(name, vector, ("glue/mrpc",)) for name, vector in zip(NAMES, draws, strict=True)]
    return write_atlas(tmp_path_factory.mktemp("six_models") / "atlas", models)


@pytest.fixture
def own_atlas(six_models, tmp_path) -> Path:
    """A copy to be changed, next to a file that must not be read."""
    (tmp_path / "secret").write_text(SECRET)
    return Path(shutil.copytree(six_models, tmp_path / "atlas"))


def attack(folder: Path, statements: list[str]) -> None:
    """Run the statements in the database of an atlas, as its maker can."""
    secret = folder.parent / "secret"
    if any("TRIGGER" in statement for statement in statements):
        _as_version_2(folder / "atlas.duckdb")
    with duckdb.connect(str(folder / "atlas.duckdb")) as connection:
        for statement in statements:
            text = statement.replace("{models}", MODELS).replace("{secret}", str(secret))
            connection.execute(text)


def _as_version_2(path: Path) -> None:
    """Files of the older version hold no triggers."""
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{path}' AS old (READ_ONLY)")
        connection.execute(f"ATTACH '{path}.new' AS new (STORAGE_VERSION 'v2.0.0')")
        connection.execute("COPY FROM DATABASE old TO new")
    Path(f"{path}.new").replace(path)
