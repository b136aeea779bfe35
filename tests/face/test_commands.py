"""The commands in rows: one per model, dataset or cluster; no cell that holds a table; the answer first in a table."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from click.testing import CliRunner

from query.faces.cli import main
from tests.console.speaking import at_terminal, plain_lines
from tests.halves import a_few

ROWS = {
    "purity": (["purity"], "dataset", 3),
    "purity by model": (["purity", "--by", "model"], "model", 12),
    "clusters": (["clusters"], "cluster", 2),
    "clusters by model": (["clusters", "--by", "model"], "model", 12),
    "similar": (["similar", "author1/model-1", "-k", "3"], "model", 3),
    "evaluate": (["predict", "--evaluate"], "model", 11),
    "show": (["show", "author0/model-0"], "model", 1),
}


def ask(small_atlas, *words):
    ran = CliRunner().invoke(main, [*words, "--atlas", str(small_atlas)])
    assert ran.exit_code == 0, ran.stderr
    return ran


def test_confused_pairs_are_rows_an_object_and_a_table(small_atlas):
    whole = json.loads(ask(small_atlas, "purity", "--confusions", "--json").stdout)
    pairs = [*whole["confusions"], *whole["cross_author"]["confusions"]]
    lines = [
        json.loads(line) for line in ask(small_atlas, "purity", "--confusions", "--format", "jsonl").stdout.splitlines()
    ]
    assert [{name: cell for name, cell in line.items() if name != "among"} for line in lines] == pairs
    assert "by dataset" not in ask(small_atlas, "purity", "--confusions").stdout


@pytest.mark.parametrize("what", a_few(ROWS, 4))
def test_csv_and_json_lines_are_rows(small_atlas, what):
    words, key, count = ROWS[what]
    rows = list(csv.DictReader(io.StringIO(ask(small_atlas, *words, "--format", "csv").stdout)))
    lines = [json.loads(line) for line in ask(small_atlas, *words, "--format", "jsonl").stdout.splitlines()]
    assert len(rows) == len(lines) == count
    assert [row[key] for row in rows] == [str(line[key]) for line in lines]
    assert not any(cell.startswith(("[{", "{")) for row in rows for cell in row.values())
    assert len({row[key] for row in rows}) == count


def test_the_first_row_of_a_csv_is_the_whole(small_atlas):
    """The headline of ``purity`` is not lost in CSV: a row with ``part=all``."""

    def rows_and_object(*words):
        rows = list(csv.DictReader(io.StringIO(ask(small_atlas, *words, "--format", "csv").stdout)))
        return rows, json.loads(ask(small_atlas, *words, "--json").stdout)

    for by in ("dataset", "model"):
        rows, answer = rows_and_object("purity", "--by", by)
        assert [row["part"] for row in rows] == ["all", *[by] * (len(rows) - 1)]
        for name in ("purity", "chance", "ci_low", "p_value", "models"):
            assert rows[0][name] == ("" if answer[name] is None else str(answer[name]))
            assert rows[0][f"cross_author_{name}"] == str(answer["cross_author"][name] or "")


def test_shares_of_an_evaluation_stand_next_to_their_intervals(small_atlas):
    """Two decimals and an interval at a terminal; JSON has all digits."""
    answer = json.loads(ask(small_atlas, "predict", "--evaluate", "--json").stdout)
    page = ask(small_atlas, "predict", "--evaluate").stdout
    (between,) = (one["accuracy"] for one in answer["intervals"] if one["evidence"] == "together")
    (score,) = (one["accuracy"] for one in answer["scores"] if one["evidence"] == "together")
    shown = f"{score:.2f} ({between[0]:.2f}–{between[1]:.2f})"
    (line,) = (line for line in page.splitlines() if line.startswith("together") and "(" in line)
    assert shown in line
    assert "95 % interval" in page.splitlines()[0].replace("\u00a0", " ")
    assert not re.search(r"\d\.\d{3}", page + ask(small_atlas, "predict", "--evaluate", "--details").stdout)


def test_a_map_gives_its_points(small_atlas, tmp_path):
    pytest.importorskip("matplotlib")
    out = str(tmp_path / "map.svg")
    rows = list(
        csv.DictReader(io.StringIO(ask(small_atlas, "map", "--method", "pca", "--out", out, "--format", "csv").stdout))
    )
    assert len(rows) == 12
    assert all(float(row["x"]) == float(row["x"]) for row in rows)


@pytest.mark.slow
def test_a_table_begins_with_the_answer_and_has_details_on_request(small_atlas):
    asked = (["purity"], ["clusters"], ["predict", "author5/model-11"], ["predict", "--evaluate"])
    for words in (*asked, ["similar", "author1/model-1"]):
        first = ask(small_atlas, *words).stdout.splitlines()[0]
        assert first.endswith("."), words
        assert " " in first
    short, long = ask(small_atlas, "clusters").stdout, ask(small_atlas, "clusters", "--details").stdout
    assert "homogeneity" not in short
    assert "homogeneity" in long


def test_a_narrow_terminal_leaves_out_what_tells_least_and_cuts_no_id(small_atlas):
    rows = [{"rank": 1, "model": "some-author/a-model-with-a-long-name-of-sixty-columns-or-so", "similarity": 0.5,
             "author": "some-author", "relation": "finetune"}]  # fmt: skip
    code = f"emit({rows!r}, 'table', optional_columns=('author', 'relation', 'rank'))"
    wide, narrow = plain_lines(at_terminal(code, 120)), plain_lines(at_terminal(code, 80))
    assert wide[0].split() == ["rank", "model", "similarity", "author", "relation"]
    assert narrow[0].split() == ["rank", "model", "similarity"]
    assert rows[0]["model"] in narrow[1]
    assert "no room for author, relation" in "\n".join(narrow)


def test_lineage_begins_with_the_answer(capsys):
    from query.faces.cli.printing import print_result
    from query.questions.lineage.result import Edge, Lineage

    edge = Edge("org/child", "org/parent", "continued", 1.0, 0.1, "shared change")
    print_result(Lineage("org/child", "org/base", 1, (edge,), 0, 0), "table")
    lead = capsys.readouterr().out.splitlines()[0]
    assert lead == "org/child, by its weights: continued from org/parent (its card: not declared)."
