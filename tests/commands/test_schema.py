"""`query schema`, the views for one representation, and how many rows a terminal gets."""

from __future__ import annotations

import json

import numpy as np

from query.contract.glossary import schema
from tests.atlas_builder import Model, write_atlas
from tests.console.speaking import at_terminal


def test_all_are_listed_with_comments(run):
    code, out, _ = run("query", "schema", "--json")
    assert code == 0
    rows = json.loads(out)
    assert all(row["comment"] for row in rows)
    names = {row["name"] for row in rows}
    assert {"models", "likely_datasets", "nearest", "fine_tunes"} <= names
    assert not names & {"segments", "removed_vectors", "compared_deltas"}


def test_columns_of_one(run):
    columns = schema("MODELS")
    assert [row["column"] for row in columns][:3] == ["model_id", "id", "model"]
    assert all(row["comment"] for row in columns)
    code, _, err = run("query", "schema", "modells")
    assert code == 1
    assert "Did you mean models" in err


def test_views_are_of_the_default_representation_and_can_leave_duplicates_out(tmp_path, run):
    directions = np.random.default_rng(1).normal(size=(3, 8))
    models = [
        Model("ann/one", directions[0]), Model("bob/again", directions[0], duplicate_of=1),
        Model("cyd/two", directions[1]),
    ]  # fmt: skip
    folder = write_atlas(tmp_path / "atlas", models)
    import duckdb

    with duckdb.connect(str(folder / "atlas.duckdb")) as connection:
        connection.execute("INSERT INTO neighbours SELECT 'output', * EXCLUDE (representation) FROM neighbours")
        assert connection.execute("SELECT count(*) FROM similar_models").fetchone() == (6,)
        assert connection.execute("SELECT count(*) FROM similar_by_representation").fetchone() == (12,)
        assert connection.execute("SELECT count(*) FROM similar_pairs").fetchone() == (3,)
        pairs = "SELECT model, neighbour FROM similar_pairs WHERE NOT is_repeat"
        assert connection.execute(pairs).fetchall() == [("ann/one", "cyd/two")]


def test_a_terminal_gets_forty_rows_and_a_pipe_all(small_atlas, run):
    statement = "SELECT i AS row_number FROM range(50) AS t(i)"
    code, out, err = run("query", "sql", statement, "--atlas", small_atlas)
    assert (code, len(out.splitlines()), err) == (0, 51, "")
    code = (
        f"import sys; from query.faces.cli import main; "
        f"main(['sql', {statement!r}, '--atlas', {str(small_atlas)!r}], prog_name='query')"
    )
    answer = at_terminal(code).splitlines()
    assert len(answer) == 42
    assert "only the first 40 rows are shown; for all: --limit N" in answer[-1]


def test_a_narrow_terminal_gets_whole_comments():
    code = "from query.faces.cli import main; main(['schema', 'models'], prog_name='query')"
    answer = "".join(at_terminal(code, columns=50).split())  # lines may break within a word
    for row in schema("models"):
        assert "".join("".join(row.values()).split()) in answer


def test_an_atlas_may_be_named(tmp_path, run):
    folder = write_atlas(tmp_path / "atlas", [Model("ann/one", np.eye(8)[0]), Model("bob/two", np.eye(8)[1])])
    assert run("query", "schema", "models", "--atlas", str(folder), "--json")[0] == 0
    assert run("query", "schema", "--atlas", str(tmp_path / "none"))[0] == 1


def test_rows_are_written_as_parquet_csv_and_json(tmp_path, run):
    import csv

    import pyarrow.parquet as parquet

    folder = write_atlas(tmp_path / "atlas", [Model("ann/one", np.eye(8)[0]), Model("bob/two", np.eye(8)[1])])
    statement = (
        "SELECT model, model_id, [1, 2] AS list, NULL AS nothing, DATE '2026-01-02' AS day, 0.5::DOUBLE AS half, "
        "{'a': 1} AS object, '=1+1' AS formula, 170141183460469231731687303715884105727 AS huge FROM models ORDER BY model"
    )

    def written(suffix):
        file = tmp_path / f"rows{suffix}"
        code, out, err = run("query", "sql", statement, "--out", str(file), "--atlas", str(folder), "--json")
        assert code == 0, err
        assert json.loads(out)["rows"] == 2
        return file

    table = parquet.read_table(written(".parquet"))
    assert table.column("model").to_pylist() == ["ann/one", "bob/two"]
    assert [str(table.schema.field(name).type) for name in ("list", "day", "half")] == [
        "list<element: int32>", "date32[day]", "double"
    ]  # fmt: skip
    assert table.column("object").to_pylist() == [{"a": 1}] * 2
    assert table.column("nothing").to_pylist() == [None, None]
    rows = json.loads(written(".json").read_text())
    assert rows == [json.loads(line) for line in written(".jsonl").read_text().splitlines()]
    with written(".csv").open(newline="") as file:
        text = file.read()
    assert "\r" not in text
    assert next(csv.DictReader(text.splitlines()))["formula"] == "'=1+1"
    code, _, err = run("query", "sql", "SELECT 1", "--out", "rows.txt", "--atlas", str(folder))
    assert (code, "does not end in .parquet" in err) == (2, True)
