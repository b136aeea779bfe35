"""Many models in one process: stdin, the undocumented, rows with errors, and what the atlas keeps."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from indexer.builds.profile_worker import ProfileUnit
from indexer.console.stdin import read_stdin
from indexer.errors import AtlasError, ModelError
from indexer.profiles.single import read_now
from indexer.profiles.store import ProfileIdentity
from indexer.publish.stored_answers import PREDICTIONS, exported_answers, write_answers
from indexer.records.identity import ModelVersion
from indexer.regular_files import MOST_FILES, files_below
from indexer.sources.registry import ModelRef
from indexer.upkeep.maintenance import rebuild
from query import Atlas
from query.contract.results import plain
from tests.halves import a_few


@pytest.fixture
def typed(monkeypatch):
    """Puts text on stdin."""

    def put(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return put


def undocumented(atlas, *models):
    """Take the datasets of these models out of the listing, as if their cards named none."""
    from indexer.listing.listing import Listing

    listing = Listing(atlas.listing("org/tiny-base"))
    for one in listing.models():
        if one.id in models:
            row = one.row | {"cardData": {}, "tags": [tag for tag in one.row["tags"] if not tag.startswith("dataset:")]}
            listing.add(row, one.relation, one.parent)
    rebuild(atlas)


def test_similar_of_many_is_similar_of_each(atlas, run, typed):
    typed("# a list\n\nann/glue-0\n  imdb-0  # by its end\nann/nobody\n")
    code, out, err = run("query", "similar", "-", "-k", "2", "--atlas", atlas.root, "--format", "jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    with Atlas(atlas.root) as opened:
        expected = [
            {"asked": asked} | plain(one)
            for asked, model in (("ann/glue-0", "ann/glue-0"), ("imdb-0", "ann/imdb-0"))
            for one in opened.similar(model, 2)
        ]
    assert rows[:-1] == expected
    assert rows[-1]["asked"] == "ann/nobody"
    assert "ann/nobody is not in this atlas" in rows[-1]["error"]
    assert code == 1
    assert "No answer for 1 of 3 models." in err


def test_nothing_on_stdin_is_reported(atlas, run, typed):
    typed("\n# nobody\n")
    code, out, err = run("query", "predict", "-", "--atlas", atlas.root)
    assert (code, out) == (1, "")
    assert "No model came on stdin" in err


@pytest.mark.slow
def test_stored_predictions_outlive_a_publish_and_a_rebuild(atlas, run):
    undocumented(atlas, "ann/glue-0")
    code, out, err = run("query", "predict", "--undocumented", "--store", "--atlas", atlas.root, "--json")
    assert code == 0, err
    rows = json.loads(out)
    assert {row["model"] for row in rows} == {"ann/glue-0"}
    assert rows[0]["dataset"] == "glue"
    assert "keeps the predictions for 1 models" in err
    statement = "SELECT rank, dataset, probability, votes, models FROM predictions ORDER BY rank"
    with Atlas(atlas.root) as opened:
        kept = opened.rows(statement)
        assert [(row["dataset"], row["probability"]) for row in kept] == [
            (row["dataset"], row["probability"]) for row in rows
        ]
        (likely,) = opened.rows("FROM likely_datasets")
        assert (likely["model"], likely["dataset"]) == ("ann/glue-0", "glue")
        assert likely["agreement"] >= 0.5
    rebuild(atlas)
    with Atlas(atlas.root) as opened:
        assert opened.rows(statement) == kept


@pytest.mark.slow
def test_a_prediction_of_another_record_is_dropped(atlas):
    with Atlas(atlas.root) as opened:
        opened.predict_many(["ann/glue-0"], store=True)
        assert opened.rows("SELECT count(*) AS n FROM predictions")[0]["n"] > 0
    lines, _ = exported_answers(PREDICTIONS, atlas, "org/tiny-base")
    assert lines
    write_answers(PREDICTIONS, atlas, "org/tiny-base", [line | {"record_key": "f" * 64} for line in lines])
    rebuild(atlas)
    with duckdb.connect(str(atlas.database), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM predictions").fetchone() == (0,)


@pytest.mark.slow
def test_storing_one_more_keeps_the_others(atlas):
    with Atlas(atlas.root) as opened:
        opened.predict_many(["ann/glue-0"], store=True)
        found = opened.predict_many(["bob/imdb-1", "no/body"], store=True)
        assert [one.error is None for one in found] == [True, False]
        assert {row["model"] for row in opened.rows("SELECT model FROM predictions JOIN models USING (model_id)")} == {
            "ann/glue-0",
            "bob/imdb-1",
        }


HOSTILE_LINES = [
    b"x" * 5000,
    b"o/" + b"y/" * 2500,
    b"~nouser",
    b"~nouser/x",
    b"\xff\xfe\x00\x01\x80",
    b"a\x00b",
    b"a\x85b\x0bc\x1cd",
    b"https://[::1",
    b"http://huggingface.co/%00/%ff",
    b"local:" + b"z" * 5000,
    b"ann/glue-0@" + b"r" * 5000,
    b"..",
    b"/dev/zero",
]


@pytest.mark.parametrize("command", a_few(["similar", "predict"], 1))
def test_every_line_has_an_answer(atlas, shell_of, command, tmp_path, monkeypatch):
    """What is on one line never ends the others: one row with `asked` for each line, in order."""
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")  # what lies above is no model
    lines = [b"ann/glue-0", *HOSTILE_LINES, b"x" * 3_000_000, b"bob/imdb-1"]
    ran = shell_of("query", command, "-", "--atlas", atlas.root, "--format", "jsonl", given=b"\n".join(lines))
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    asked = list(dict.fromkeys(row["asked"] for row in rows))
    assert (asked[0], asked[-1]) == ("ann/glue-0", "bob/imdb-1"), ran.stderr[-2000:]
    assert len(asked) == len(lines)
    assert all("error" in row for row in rows if row["asked"] not in ("ann/glue-0", "bob/imdb-1"))
    assert all(len(row["asked"]) < 500 and len(row.get("error", "")) < 1000 for row in rows)
    assert ran.returncode == 1
    assert b"Traceback" not in ran.stderr


def test_of_a_folder_two_levels_are_read(tmp_path, run, atlas):
    """A home folder or a disk is refused at once, not hashed."""
    deep = tmp_path / "home" / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "model.safetensors").touch()
    (deep.parent / ".hidden").touch()
    (deep.parent / "found.json").touch()
    (tmp_path / "home" / "a-first").touch()
    assert files_below(tmp_path / "home") == ["a-first", "a/b/found.json"]
    code, _, said = run("query", "similar", tmp_path / "home", "--atlas", atlas.root)
    assert code == 1
    assert "holds no weights" in said
    many = tmp_path / "many"
    many.mkdir()
    for number in range(MOST_FILES + 1):
        (many / f"{number}.safetensors").touch()
    code, _, said = run("query", "similar", many, "--atlas", atlas.root)
    assert code == 1
    assert "more than 10,000 files, so it is no checkpoint" in said


@pytest.mark.parametrize("words", [("similar", "-"), ("predict", "-"), ("sql", "-")])
def test_stdin_that_does_not_end_is_refused(atlas, shell_of, words):
    ran = shell_of("query", *words, "--atlas", atlas.root, given=Path("/dev/zero"))
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert b"stdin holds more than" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_stdin_on_which_nothing_comes_is_given_up(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(reading) as silent:
        monkeypatch.setattr(sys, "stdin", silent)
        with pytest.raises(AtlasError, match=r"No input on stdin for 0\.2 s"):
            read_stdin(100, seconds=0.2)
        os.write(writing, b"SELECT 1")
        os.close(writing)
        assert read_stdin(100, seconds=0.2) == b"SELECT 1"


@pytest.fixture
def shell_of(tmp_path):
    """Runs a command as a process, with bytes or a file on stdin, offline, and little memory."""

    def ran(program, *words, given):
        module = {"index": "indexer.cli", "query": "query.faces.cli"}[program]
        main = f"import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)); from {module} import main; main()"
        source = {"stdin": given.open("rb")} if isinstance(given, Path) else {"input": given}
        return subprocess.run(
            [sys.executable, "-c", main, *map(str, words)], **source, capture_output=True, check=False, timeout=120,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )  # fmt: skip

    return ran


def test_a_folder_here_is_not_read_for_a_model_of_the_atlas(atlas, run, tmp_path, monkeypatch):
    """Names that come from the database, not from the command line: no folder of this machine is meant."""
    undocumented(atlas, "ann/glue-0")
    (tmp_path / "here" / "ann" / "glue-0").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    code, out, err = run("query", "predict", "--undocumented", "--atlas", atlas.root, "--format", "jsonl")
    assert code == 0, err
    assert {json.loads(line)["model"] for line in out.splitlines()} == {"ann/glue-0"}
    for name in ("~", "..", ".", "ann/glue-0/../..", str(tmp_path), "local:../x", "", "a" * 5000):
        with pytest.raises(ModelError, match="not a Hub id"):
            ModelRef.of_atlas(name)
    assert ModelRef.of_atlas("ann/glue-0") == ModelRef("ann/glue-0")
    unit = ProfileUnit(ProfileIdentity("fine_tune", "ann/glue-0", "c", "org/base", "b"), "finetune", None, 0)
    assert unit.version.model == ModelRef("ann/glue-0")
    with pytest.raises(AtlasError, match="cannot be run"):
        read_now(ModelVersion(ModelRef("~"), "c", parent=ModelVersion(ModelRef("org/base"), "c")))
