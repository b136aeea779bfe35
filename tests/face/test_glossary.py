"""One table says what words and columns mean: for --help, `query help`, the report and the tools of agents."""

from __future__ import annotations

import csv
import io
import json
import tomllib

import pytest
from click.testing import CliRunner

from query import Atlas
from query.cli import main
from query.glossary import columns_of, definition, words
from tests.conftest import ROOT

GLOSSARY = tomllib.loads((ROOT / "query" / "glossary.toml").read_text())
ASKED = {
    "similar": (["similar", "author1/model-1"],),
    "predict": (["predict", "author5/model-11", "--details"], ["predict", "--evaluate", "--details"]),
    "purity": (["purity", "--details"], ["purity", "--by", "model", "--details"], ["purity", "--confusions", "--details"]),
    "clusters": (["clusters", "--details"], ["clusters", "--by", "model", "--details"]),
    "schema": (["schema"], ["schema", "models"]),
}  # fmt: skip


def names_in(value):
    """The columns of all tables in what a result shows."""
    rows = value if isinstance(value, list) else []
    found = {name for row in rows if isinstance(row, dict) for name in row}
    parts = value.values() if isinstance(value, dict) else ()
    return found.union(*(names_in(part) for part in parts))


@pytest.mark.parametrize("command", ASKED)
def test_every_column_that_is_printed_is_explained(small_atlas, command):
    explained = {name for name, meaning in columns_of(command) if meaning}
    for asked in ASKED[command]:
        atlas = [] if command == "schema" else ["--atlas", str(small_atlas)]
        ran = CliRunner().invoke(main, [*asked, *atlas, "--format", "csv"])
        assert ran.exit_code == 0, ran.stderr
        assert set(next(csv.reader(io.StringIO(ran.stdout)), [])) <= explained
    help_text = CliRunner().invoke(main, [command, "--help"]).stdout
    columns = help_text.partition("Columns:")[2]
    assert all(name in columns for name in explained)


def test_every_column_of_a_table_for_people_is_explained(small_atlas):
    with Atlas(small_atlas) as atlas:
        tables = {
            "similar": atlas.similar("author1/model-1").table(),
            "predict": atlas.predict("author5/model-11").table(),
            "purity": atlas.purity(draws=20, confusions=True).table(details=True),
            "clusters": atlas.clusters(draws=20).table(details=True),
        }
    for command, table in tables.items():
        found = names_in(table)
        assert found
        assert not {name for name in found if not definition(name, command)}, command


def test_columns_that_need_a_model_to_be_read_are_explained():
    from indexer.names import MEASURES
    from query.compare import Comparison
    from query.layers import Layers
    from query.lineage.result import Edge
    from query.rank.study import RankStudy

    known = {command: {name for name, _ in columns_of(command)} for command in GLOSSARY["commands"]}
    assert set(Comparison.COLUMNS) <= known["compare"]
    assert set(Layers.COLUMNS) <= known["layers"]
    assert set(RankStudy.COLUMNS) <= known["rank"]
    assert set(Edge("", None, "", 1, 0).as_row()) <= known["lineage"]
    assert {"layer", "output", "right", "closer_ratio", "top"} <= known["invert"]
    shown = ("tolerance", "tolerance_own", "readable", "recovered", "verified", "reach", "cka", "drift", "image_error")
    assert {name for name in shown if name in MEASURES} <= known["depth"]


def test_every_explained_column_is_used():
    pytest.importorskip("typing_extensions")
    from query.serve import answers

    used = {(command, name) for command, names in GLOSSARY["commands"].items() for name in names}
    keys = {name for one in vars(answers).values() if hasattr(one, "__total__") for name in one.__annotations__}
    tools = ("show", "trace", "compare", "layers", "datasets", "bases", "sql", "clusters", "purity", "similar")
    for name, meaning in GLOSSARY["columns"].items():
        command, dot, column = name.rpartition(".")
        assert meaning.endswith("."), name
        assert (not dot and (any(one == name for _, one in used) or name in keys)) or (
            dot and ((command, column) in used or (command in tools and column in keys))
        ), name


def test_a_word_is_explained_on_request(small_atlas):
    left = CliRunner().invoke(main, ["help", "left"])
    assert left.exit_code == 0
    assert left.stdout.startswith("left (query lineage): Share of the energy")
    both = json.loads(CliRunner().invoke(main, ["help", "rank", "--json"]).stdout)
    assert {"", "query ask", "query similar, query show", "query rank"} == {one["where"] for one in both}
    assert "delta" in CliRunner().invoke(main, ["help", "δW"]).stdout
    assert "Commit" in CliRunner().invoke(main, ["help", "base_commit"]).stdout  # of the database
    assert "Columns:" in CliRunner().invoke(main, ["help", "similar"]).stdout
    every = CliRunner().invoke(main, ["help"]).stdout
    assert all(term in every for term in words())
    wrong = CliRunner().invoke(main, ["help", "backgruond"])
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    assert "Did you mean background" in wrong.stderr


@pytest.mark.slow
def test_the_report_has_the_same_words(small_atlas):
    with Atlas(small_atlas) as atlas:
        page = str(atlas.report().html)
    assert all(f"<dt>{term}</dt>" in page for term in words())
