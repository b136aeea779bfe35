"""Help that is whole at 80 columns, and what shells complete."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import duckdb
import pytest

from indexer.cli import main as index
from indexer.hub_ids import is_hub_id
from indexer.records.representations.registry import REPRESENTATIONS
from query.faces.cli import main as query
from tests.conftest import ROOT
from tests.patience import PATIENCE

COMMANDS = [
    (name, command) for name, group in (("index", index), ("query", query)) for command in (None, *group.commands)
]


@pytest.mark.parametrize(("program", "command"), COMMANDS)
def test_help_fits_eighty_columns_and_ends_with_an_example(program, command, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(program, *([command] if command else []), "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "..." not in out.replace("[ARGS]...", "").replace("[MODELS]...", "")
    if command:
        before, _, examples = re.split(r"\n  (Examples?:)\n", out)
        assert before
        assert all(line.strip().startswith(f"{program} {command}") for line in examples.strip().splitlines())


def test_representations_come_from_the_registry(run):
    _, out, _ = run("query", "similar", "--help")
    printed = " ".join(out.split())
    assert all(name in printed for name in REPRESENTATIONS)
    assert "[table|json|jsonl|csv]" in printed
    _, out, _ = run("index", "represent", "--help")
    printed = " ".join(out.split())
    assert all(name in printed for name in REPRESENTATIONS)


def test_k_means_one_thing(run):
    for command in ("similar", "purity", "predict"):
        _, out, _ = run("query", command, "--help")
        assert "Number of nearest models" in " ".join(out.split())


def completed(words, atlas):
    """What click answers a shell."""
    code = "import sys; sys.argv = ['query']; from query.faces.cli import main; main(prog_name='query')"
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "_QUERY_COMPLETE": "bash_complete", "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1), "VECTORS_ATLAS": str(atlas),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], env=environment, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert "torch" not in {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.slow
def test_shells_complete_from_the_atlas(small_atlas, tmp_path):
    assert completed("query similar ann", small_atlas) == ["ann/one"]
    assert completed("query similar twin", small_atlas) == ["cyd/twin", "dan/twin"]
    assert completed("query purity --base org", small_atlas) == ["org/base"]
    assert completed("query similar ann/one --representation i", small_atlas) == ["input"]
    assert completed("query similar ann", tmp_path / "nowhere") == []


def test_completions_from_an_untrusted_atlas_contain_no_shell_commands(small_atlas, tmp_path):
    """A shell writes what it is given unquoted: `query show ann<TAB>` and Enter would run it."""
    shutil.copytree(small_atlas, tmp_path / "atlas")
    names = ["ann/$(touch pwned)", "ann/`id`", "ann/x; touch pwned", "ann/*", "ann/a b", "ann/x\nplain,$(id)", "ann/'",
             "ann/\x1b[2J", "ann/../../etc", "~/x", "-oann/x", "$HOME"]  # fmt: skip
    with duckdb.connect(tmp_path / "atlas" / "atlas.duckdb") as connection:
        rows = connection.execute("SELECT model_id FROM fine_tunes ORDER BY model <> 'ann/one', model_id").fetchall()
        for number, name in enumerate(names):
            model_id = 10_000 + number
            connection.execute(
                "INSERT INTO fine_tunes SELECT * REPLACE (? AS model_id, ? AS model) FROM fine_tunes WHERE model_id = ?",
                [model_id, name, rows[0][0]],
            )
            connection.execute("INSERT INTO bases SELECT * REPLACE (? AS base) FROM bases LIMIT 1", [name])
            connection.execute(
                "INSERT INTO representations SELECT * REPLACE (? AS representation) FROM representations LIMIT 1",
                [name],
            )
    for words in ("query similar ann", "query similar ", "query similar $", "query similar ~", "query similar -o"):
        assert all(is_hub_id(one) for one in completed(words, tmp_path / "atlas") if not one.startswith("--")), words
    assert "ann/one" in completed("query similar ann", tmp_path / "atlas")
    assert completed("query purity --base ", tmp_path / "atlas") == ["org/base"]
    assert "input" in completed("query similar ann/one --representation ", tmp_path / "atlas")
    assert set(completed("query similar ann/one --representation ", tmp_path / "atlas")) <= set(REPRESENTATIONS)
