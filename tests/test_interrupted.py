"""Commands that change an atlas in several steps, killed between any two of them.

What is left is the state before or after, or the next command that publishes finishes what was begun.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from huggingface_hub import constants

from indexer.atlas import AtlasFolder
from indexer.builds.commands import build
from indexer.builds.shards import publish_records
from indexer.listing.listing import Listing
from indexer.publish.stored_answers import PREDICTIONS, exported_answers
from indexer.records.store import RecordStore
from indexer.upkeep import removal
from indexer.upkeep.maintenance import rebuild
from indexer.upkeep.removal import remove
from indexer.upkeep.verification import verify
from query import Atlas
from tests.conftest import Shell
from tests.killed import TIMES, killable, moments
from tests.tiny_hub import BASE, served_shell

MODEL = "ann/glue-0"
INTERRUPTED = "its removal was interrupted"

FINISHING = {
    "remove": lambda folder: remove(MODEL, atlas=folder.root),
    "build": lambda folder: build(BASE, folder.root, workers=1),
    "rebuild": lambda folder: rebuild(folder),
    "publish": lambda folder: publish_records((), folder.root),
}


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def traces(folder: AtlasFolder) -> dict[str, int]:
    """How much of the model is left, besides the note of its removal."""
    with Atlas(folder.root) as opened:
        rows = opened.rows("SELECT 1 FROM fine_tunes WHERE model = ?", [MODEL])
    return {
        "rows": len(rows),
        "records": sum(one.identity.model == MODEL for one in RecordStore(folder).headers()),
        "listed": sum(one.id == MODEL for one in Listing(folder.listing(BASE)).models()),
        "answers": int(any(MODEL in str(line) for line in exported_answers(PREDICTIONS, folder, BASE)[0])),
    }


NOTHING = {"rows": 0, "records": 0, "listed": 0, "answers": 0}


def problems(folder: AtlasFolder) -> list[str]:
    """What `index verify` says, besides that a removal was interrupted."""
    return [f"{one.what}: {one.problem}" for one in verify(folder) if INTERRUPTED not in one.problem]


class Stopped(BaseException):
    pass


@pytest.mark.parametrize(
    ("step", "command"),
    [("forget", "rebuild"), ("publish", "build"), ("conclude", "remove")],
)
def test_a_removal_that_is_interrupted_is_finished_by_the_next_command(atlas, offline, monkeypatch, step, command):
    def stop(*_, **__):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(removal, step, stop)
        with pytest.raises(Stopped):
            remove(MODEL, atlas=atlas.root)
    assert [(one.kind, one.what) for one in verify(atlas) if INTERRUPTED in one.problem] == [("listing", MODEL)]
    assert problems(atlas) == []
    FINISHING[command](atlas)
    assert traces(atlas) == NOTHING
    assert verify(atlas) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("times", [10, pytest.param(100, marks=pytest.mark.study)])
def test_a_removal_killed_at_any_moment(made, tmp_path, offline, times):
    kept, folder = tmp_path / "kept", AtlasFolder(tmp_path / "atlas")
    shutil.copytree(made, kept)
    with Atlas(kept) as opened:
        opened.predict_many(["bob/glue-1", MODEL], store=True)
    shutil.copytree(kept, folder.root)
    with killable(Shell("http://127.0.0.1:9", tmp_path), "index", "remove", MODEL) as run:
        code, total = run(0)
        assert code == 0
        for moment in moments(total, times):
            shutil.rmtree(folder.root)
            shutil.copytree(kept, folder.root)
            assert run(moment)[0] in (-9, 0)
            assert problems(folder) == [], moment
            if not verify(folder):
                assert traces(folder) in (NOTHING, {"rows": 1, "records": 1, "listed": 1, "answers": 1}), moment
            command = list(FINISHING)[moment % len(FINISHING)]
            if verify(folder) or command == "remove":
                FINISHING[command](folder)
                assert verify(folder) == [], (moment, command)
                assert traces(folder) == NOTHING, (moment, command)


NEW = "eve/new"

# Each with what it begins from: the atlas, or two of them to be merged.
COMMANDS = {
    "build": ("index", "build", "--base", BASE, "--workers", "1"),
    "add": ("index", "add", "store/ann/glue-0", "--base", BASE, "--name", NEW),
    "publish": ("index", "publish"),
    "rebuild": ("index", "rebuild"),
    "represent": ("index", "represent", "output"),
    "profile": ("index", "profile", "ann/glue-0", "--layers", "1", "--workers", "1"),
    "merge": ("index", "merge", "atlas", "other", "--atlas", "merged"),
    "predict": ("query", "predict", "--undocumented", "--base", BASE, "--store"),
    "lineage": ("query", "lineage", "--all", "--base", BASE),
}


def content(folder: AtlasFolder) -> dict[str, list]:
    """What readers see, without times and names of files."""
    questions = {
        "models": 'SELECT model, status, "read", delta_norm FROM fine_tunes LEFT JOIN records USING (model_id) ORDER BY model',
        "vectors": "SELECT base, representation, vectors FROM representations ORDER BY ALL",
        "near": "SELECT model_id, neighbour_id, representation FROM neighbours ORDER BY ALL",
        "profiles": "SELECT model, is_complete FROM profiles ORDER BY ALL",
        "predictions": "SELECT model_id, dataset FROM predictions ORDER BY ALL",
        "lineage": "SELECT model_id, kind, parent_id FROM lineage ORDER BY ALL",
    }
    with Atlas(folder.root) as opened:
        return {name: opened.rows(question) for name, question in questions.items()}


@pytest.fixture(scope="module")
def hub_of_three(tiny_store, tmp_path_factory):
    """A shell beside a Hub of three models, one of which is new since its atlas was built."""
    folder = tmp_path_factory.mktemp("interrupted")
    store = tiny_store(1, folder / "store")
    hidden = folder / "hidden"
    hidden.mkdir()
    names = (
        ("cyd/squad-0", "cyd/squad-0.repo.json")
        if (store / "cyd/squad-0").exists()
        else ("ann/squad-0", "ann/squad-0.repo.json")
    )
    for name in names:
        shutil.move(store / name, hidden / name.replace("/", "--"))
    with served_shell(store, folder) as shell:
        ran = shell("index", "build", "--base", BASE)
        assert ran.code == 0, ran.err
        for name in names:
            shutil.move(hidden / name.replace("/", "--"), store / name)
        yield shell


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("times", [2, pytest.param(TIMES, marks=pytest.mark.study)])
def test_a_command_killed_at_any_moment_is_finished_by_the_next_run(hub_of_three, tmp_path, command, times):
    shell = replace(hub_of_three, folder=tmp_path)
    kept, words = hub_of_three.folder / "atlas", COMMANDS[command]
    target = AtlasFolder(tmp_path / ("merged" if command == "merge" else "atlas"))
    (tmp_path / "store").symlink_to(hub_of_three.store)

    def begin():
        for name in ("atlas", "other", "merged"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        shutil.copytree(kept, tmp_path / "atlas")
        if command == "merge":
            shutil.copytree(kept, tmp_path / "other")

    begin()
    before = content(AtlasFolder(tmp_path / "atlas"))
    with killable(shell, *words) as run:
        code, total = run(0)
        assert code == 0
        after = content(target)
        assert verify(target) == []
        for moment in moments(total, times):
            begin()
            assert run(moment)[0] in (-9, 0)
            if target.database.exists():
                assert content(target) in (before, after), moment
            if command != "merge" or not target.database.exists():
                assert run(0)[0] == 0, moment
            assert verify(target) == [], moment
            assert content(target) == after, moment
