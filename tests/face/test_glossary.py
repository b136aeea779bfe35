"""One table says what words and columns mean: for --help, `query help`, the report and the tools of agents."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner

from indexer.names import MEASURES
from query import Atlas
from query.contract.glossary import SchemaColumn, SchemaObject, answers_of, documented, words
from query.contract.registry import commands
from query.contract.results import columns
from query.faces.cli import main
from scripts.reference.answers import page

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
    explained = documented([SchemaObject, SchemaColumn] if command == "schema" else answers_of(command))
    for asked in ASKED[command]:
        atlas = [] if command == "schema" else ["--atlas", str(small_atlas)]
        ran = CliRunner().invoke(main, [*asked, *atlas, "--format", "csv"])
        assert ran.exit_code == 0, ran.stderr
        assert set(next(csv.reader(io.StringIO(ran.stdout)), [])) <= set(explained)
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
        assert found <= set(documented(answers_of(command))), command


def test_every_key_of_every_answer_is_described():
    for command in commands():
        for answer in answers_of(command):
            known = [*columns(answer), *answer.row_columns()]
            bare = {one.key for one in known if not one.doc and not one.is_heading}
            assert not bare, (command, answer.__name__)
            assert all(one.doc.endswith((".", ")")) for one in known if one.doc), answer.__name__
    depth = documented(answers_of("depth"))
    shown = ("tolerance", "tolerance_own", "readable", "recovered", "verified", "reach", "cka", "drift", "image_error")
    assert {name for name in shown if name in MEASURES} <= set(depth)
    assert {"layer", "output", "right", "closer_ratio", "top"} <= set(documented(answers_of("invert")))


def test_the_page_of_all_keys_names_a_meaning_of_each():
    assert "|  |\n" not in page()  # rows of rows have meanings too


def test_a_word_is_explained_on_request(small_atlas):
    left = CliRunner().invoke(main, ["help", "residual"])
    assert left.exit_code == 0
    assert left.stdout.startswith("residual (query bom, query lineage): Share of the energy")
    both = json.loads(CliRunner().invoke(main, ["help", "rank", "--json"]).stdout)
    assert {"", "query ask", "query show, query similar", "query rank"} == {one["where"] for one in both}
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
