"""What a library user and a batch system meet: our own exceptions, lower limits, Ctrl-C, and files that are none."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys

import duckdb
import pytest

from indexer.atlas import AtlasFolder
from indexer.database.connection import translated_errors
from indexer.errors import AtlasError
from indexer.records.store import RecordStore
from indexer.upkeep.verification import verify
from query import Atlas
from tests.conftest import ROOT
from tests.halves import a_few
from tests.opening.conftest import NAMES
from tests.patience import PATIENCE

QUERY = [sys.executable, "-m", "query"]


def run_query(folder, *words, limits=()):
    def lower():
        for limit, most in limits:
            resource.setrlimit(limit, (most, most))

    return subprocess.run(
        [*QUERY, *words, "--atlas", str(folder), "--json"],
        cwd=ROOT, capture_output=True, text=True, check=False, preexec_fn=lower if limits else None, timeout=PATIENCE,
    )  # fmt: skip


@pytest.mark.parametrize(
    "limit", a_few([(resource.RLIMIT_AS, 2 << 30), (resource.RLIMIT_CPU, 30), (resource.RLIMIT_NOFILE, 64)], 1)
)
def test_statements_run_under_lower_hard_limits(own_atlas, limit):
    process = run_query(own_atlas, "sql", "SELECT count(*) AS n FROM models", limits=[limit])
    assert (process.returncode, process.stderr) == (0, "")
    process = run_query(own_atlas, "similar", NAMES[0], "--where", "model <> 'x'", "-k", "2", limits=[limit])
    assert (process.returncode, process.stderr) == (0, "")


def test_a_closed_atlas_raises_a_clear_error(own_atlas):
    opened = Atlas(own_atlas)
    opened.close()
    for question in (
        lambda: opened.generation,
        lambda: opened.similar(NAMES[0]),
        lambda: opened.sql("SELECT 1"),
        lambda: opened.show(NAMES[0]),
        lambda: opened.bases(),
        lambda: opened.connection.execute("SELECT 1").fetchall(),
    ):
        with pytest.raises(AtlasError, match="closed"):
            question()


def test_nothing_of_duckdbs_comes_out_of_a_connection(own_atlas):
    with Atlas(own_atlas) as opened:
        for statement in (
            "SELECT",
            "SELECT nothing",
            "FROM nowhere",
            "SELECT 1/",
            "SELECT 'x'::INTEGER",
            "DROP TABLE tags",
        ):
            with pytest.raises(AtlasError) as caught:
                opened.connection.execute(statement).fetchall()
            assert "\n" not in str(caught.value)


def test_ctrl_c_within_duckdb_is_ctrl_c(tmp_path):
    with pytest.raises(KeyboardInterrupt), translated_errors(tmp_path):
        raise RuntimeError("Query interrupted")
    with pytest.raises(KeyboardInterrupt), translated_errors(tmp_path):
        raise duckdb.InterruptException("INTERRUPT Error: Interrupted!")
    with pytest.raises(RuntimeError, match="other"), translated_errors(tmp_path):
        raise RuntimeError("other")


@pytest.mark.parametrize("words", [("sql", "SELECT count(*) FROM range(100000000000) t(i) WHERE i % 7 = 8"),
                                   ("similar", NAMES[0], "--where", "(SELECT count(*) FROM range(100000000000) t(i) WHERE i % 7 = 8) = 0")])  # fmt: skip
def test_ctrl_c_ends_a_query_with_130_and_one_line(own_atlas, words):
    code = (
        "import subprocess, sys, os, signal\n"
        "import query.questions.sql as sql\n"
        "really = subprocess.Popen.communicate\n"
        "def communicate(process, *arguments, **options):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"  # it has been asked, and nobody has answered
        "    return really(process, *arguments, **options)\n"
        "subprocess.Popen.communicate = communicate\n"
        "sys.argv = ['query', *sys.argv[1:]]\n"
        "from query.faces.cli import main\n"
        "main()\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, *words, "--atlas", str(own_atlas)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.returncode == 130
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1
    assert process.stderr.startswith("Stopped")


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_only_regular_files_are_opened(atlas, tmp_path, kind):
    def put(path, elsewhere):
        moved = tmp_path / elsewhere
        path.rename(moved)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(moved)
        else:
            path.mkdir()

    listing = next(atlas.listings.glob("*.sqlite"))
    record = next(atlas.records.glob("*/*.safetensors"))
    base = next(atlas.bases.glob("*.safetensors"))
    vectors = next(atlas.root.glob("*.faiss"))
    for number, path in enumerate((listing, record, base, vectors)):
        put(path, f"moved-{number}")
    assert {problem.kind for problem in verify(atlas)} >= {"listing", "record", "base", "vectors"}
    RecordStore(atlas).discard(record.stem)


def test_the_lock_is_not_a_link_to_another_file(own_atlas, tmp_path):
    (tmp_path / "precious").write_text("kept")
    (own_atlas / "lock").unlink(missing_ok=True)
    (own_atlas / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(AtlasError, match="it is a link"), AtlasFolder(own_atlas).locked("test"):
        pass
    assert (tmp_path / "precious").read_text() == "kept"


def test_an_atlas_that_is_reached_by_a_link_is_one(own_atlas, tmp_path):
    (tmp_path / "link").symlink_to(own_atlas)
    with Atlas(tmp_path / "link") as opened:
        assert opened.vectors("org/base").ids.tolist() == [1, 2, 3, 4, 5, 6]
