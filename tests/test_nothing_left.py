"""A command that came to nothing leaves nothing, so that the next message is the one it would have been."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time

import pytest
from huggingface_hub import constants

from indexer.atlas import AtlasFolder
from indexer.cli import main
from indexer.errors import AtlasError
from tests.conftest import start_python
from tests.hubs import reset_session, use_endpoint
from tests.patience import PATIENCE
from tests.tiny_hub import BASE, describe, served_shell


@pytest.fixture(scope="module")
def store(tiny_store, tmp_path_factory):
    root = tiny_store(1, tmp_path_factory.mktemp("nothing-left") / "store")
    describe(root, "org/no-weights")
    (root / "org/no-weights/config.json").write_text('{"model_type": "roberta"}')
    describe(root, "org/strange")
    (root / "org/strange/config.json").write_text('{"model_type": "strange"}')
    (root / "org/strange/model.safetensors").write_bytes((root / BASE / "model.safetensors").read_bytes())
    shutil.copytree(root / BASE, root / "org/lonely")
    describe(root, "org/lonely")
    describe(
        root, "eve/tuned-on-strange", tags=["base_model:org/strange", "base_model:finetune:org/strange"],
        card_data={"base_model": "org/strange"},
    )  # fmt: skip
    return root


@pytest.fixture
def shell(store, tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    with served_shell(store, folder, HF_HOME=str(tmp_path / "hf")) as shell:
        yield shell


def left(shell) -> list[str]:
    return sorted(str(path.relative_to(shell.folder)) for path in shell.folder.rglob("*"))


COMMANDS = {
    "an unknown base": ("build", "--base", "org/nobody"),
    "no id": ("build", "--base", "../etc"),
    "a base without weights": ("build", "--base", "org/no-weights"),
    "a base of a strange kind": ("build", "--base", "org/strange"),
    "a dry run of one": ("build", "--base", "org/strange", "--dry-run"),
    "a base that nobody tuned": ("build", "--base", "org/lonely"),
    "a dry run of that": ("build", "--base", "org/lonely", "--dry-run"),
    "an author without models": ("build", "--base", BASE, "--author", "nobody"),
    "two, the second unknown": ("build", "--base", BASE, "--base", "org/nobody"),
    "a share of an unknown base": ("work", "--base", "org/nobody", "--shard", "0/2"),
    "a share of a strange one": ("work", "--base", "org/strange", "--shard", "0/2"),
    "a share of nothing": ("publish",),
    "an unknown model": ("add", "eve/nobody", "--base", BASE),
    "a model of a strange base": ("add", "ann/glue-0", "--base", "org/strange"),
    "a model of an unknown base": ("add", "ann/glue-0", "--base", "org/nobody"),
    "the base itself": ("add", BASE, "--base", BASE),
    "a rebuild of nothing": ("rebuild",),
    "a status of nothing": ("status",),
    "a representation of nothing": ("represent", "output"),
}


@pytest.fixture
def index(shell, monkeypatch, capsys):
    """Commands in this process, where they need not begin by importing torch: exit code and what was said."""
    monkeypatch.chdir(shell.folder)
    use_endpoint(monkeypatch, shell.endpoint)

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words), prog_name="index")
        return int(ended.value.code or 0), capsys.readouterr().err

    yield run
    reset_session()


@pytest.mark.parametrize("what", COMMANDS)
def test_nothing_is_left_where_nothing_was_learnt(shell, index, what):
    code, said = index(*COMMANDS[what], "--atlas", "a/b/atlas")
    assert code == 1, said
    assert left(shell) == []
    assert index(*COMMANDS[what], "--atlas", "a/b/atlas") == (code, said)


@pytest.mark.parametrize("words", [("build", "--base", BASE), ("build", "--base", BASE, "--dry-run")])
def test_without_network_nothing_is_left(shell, index, monkeypatch, words):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert index(*words)[0] == 1
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert index(*words)[0] == 1
    assert left(shell) == []


def test_a_listing_that_fails_at_once_leaves_nothing(shell, index):
    shell.hub.faults.add("/api/models.filter", status=403)
    assert index("build", "--base", BASE)[0] == 1
    assert left(shell) == []


@pytest.mark.slow
def test_one_that_can_go_on_is_kept(shell):
    """A page was read: that is something learnt."""
    shell.hub._api.page_size = 1
    shell.hub.faults.add("cursor", status=403, since=2)
    assert shell("index", "build", "--base", BASE).code == 1
    assert [name for name in left(shell) if "listing/" in name] == ["atlas/listing/org--tiny-base.sqlite"]
    shell.hub.faults.clear()
    ran = shell("index", "build", "--base", BASE, "--workers", "1")
    assert ran.code == 0
    assert "resuming the crawl" in ran.err


@pytest.mark.parametrize(("path", "learnt"), [("/api/models.filter", False), (f"repos/{BASE}", True)])
def test_ctrl_c(shell, path, learnt):
    """Before anything came; and after the listing came, which stays, without a database that would hold no more."""
    fault = shell.hub.faults.add(path, method="GET", hang=600, nth=3 if learnt else 1)
    process = start_python(
        "-m", "indexer", "build", "--base", BASE, "--workers", "1",
        cwd=shell.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={"HF_ENDPOINT": shell.endpoint, **shell.environment},
    )  # fmt: skip
    try:
        while not fault.struck:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 130
    assert ("atlas/listing/org--tiny-base.sqlite" in left(shell)) == learnt
    assert "atlas/atlas.duckdb" not in left(shell)
    assert learnt or left(shell) == []


def test_what_was_there_before_stays(shell, index):
    (shell.folder / "atlas").mkdir()
    assert index("build", "--base", "org/nobody")[0] == 1
    assert left(shell) == ["atlas"]
    (shell.folder / "atlas" / "notes.txt").write_text("mine")
    assert index("build", "--base", "org/nobody")[0] == 1
    assert "atlas/notes.txt" in left(shell)


def test_a_lock_file_that_was_deleted_while_waiting_is_opened_again(tmp_path):
    """Two that hold the lock at once would be the end of an atlas: who comes second looks whether it still is one."""
    folder = AtlasFolder(tmp_path / "atlas")
    with folder.locked("first"):
        handle = os.open(folder.root / "lock", os.O_RDWR)  # a second one, that waits for its turn
    assert not folder.root.exists()
    taken = []
    opened = AtlasFolder._opened_lock

    def stale_at_first(self) -> int:
        taken.append(opened(self))
        return handle if len(taken) == 1 else taken[-1]

    class Waiting(AtlasFolder):
        _opened_lock = stale_at_first

    with Waiting(folder.root).locked("second", wait=True):
        assert os.fstat(taken[-1]).st_ino == (folder.root / "lock").stat().st_ino
        with pytest.raises(AtlasError, match="is being written to by"), folder.locked("third"):
            pass
