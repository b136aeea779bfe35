"""`index profile` interrupted: nothing is half-written, complete layers are kept, and the end result is the same.

Interruptions come at a counted operation, not after a time.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from safetensors.numpy import load

from indexer.atlas import AtlasFolder
from indexer.builds.options import ProfileOptions
from indexer.builds.profiling import ProfileReport, profile_base
from indexer.profiles import measurement
from indexer.profiles.store import ProfileStore
from indexer.storage.atomic_files import remove_leftovers
from indexer.upkeep.verification import verify
from tests.conftest import run_python
from tests.database import read_rows
from tests.hubs import use_endpoint
from tests.patience import PATIENCE
from tests.tiny_hub import BASE, indexed

pytestmark = pytest.mark.slow

LAYERS = 2  # of each model; the base comes first


@pytest.fixture(scope="module")
def shell(tiny_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    with indexed(tiny_store(1), folder) as shell, pytest.MonkeyPatch.context() as patch:
        use_endpoint(patch, shell.endpoint)
        patch.setenv("HF_ENDPOINT", shell.endpoint)  # of workers
        yield shell


@pytest.fixture
def folder(shell, tmp_path) -> AtlasFolder:
    shutil.copytree(Path(shell.folder) / "atlas", tmp_path / "atlas")
    return AtlasFolder(tmp_path / "atlas")


def profile(folder: AtlasFolder, **options) -> ProfileReport:
    with folder.locked("index profile"):
        return profile_base(folder, BASE, [], ProfileOptions(limit=2, **options))


def contents(folder: AtlasFolder) -> dict[str, bytes]:
    store = ProfileStore(folder)
    return {digest: folder.profile(digest).read_bytes() for digest in store.digests()}


@pytest.fixture(scope="module")
def undisturbed(shell, tmp_path_factory) -> dict[str, bytes]:
    atlas = tmp_path_factory.mktemp("undisturbed") / "atlas"
    shutil.copytree(Path(shell.folder) / "atlas", atlas)
    assert profile(AtlasFolder(atlas)).indexed == 2
    return contents(AtlasFolder(atlas))


def same_bytes(folder: AtlasFolder, expected: dict[str, bytes]) -> None:
    """Compare by column first, so that a failure shows what differs."""
    files = contents(folder)
    assert set(files) == set(expected)
    for digest in files:
        arrays, expected_arrays = load(files[digest]), load(expected[digest])
        assert {name: arrays[name].tolist() for name in arrays} == {
            name: expected_arrays[name].tolist() for name in expected_arrays
        }
    assert files == expected


def layers_by_file(folder: AtlasFolder) -> list[list[int]]:
    store = ProfileStore(folder)
    return sorted((store.read(digest).layers.tolist() for digest in store.digests()), key=len)


def published(folder: AtlasFolder) -> list[tuple]:
    return read_rows(
        folder.database,
        "SELECT subject, is_complete, count(layer) FROM profiles JOIN profile_layers USING (profile_id) "
        "GROUP BY profile_id, subject, is_complete ORDER BY ALL",
    )


def interrupted_at(call: int, monkeypatch) -> list[int]:
    """Ctrl-C at the ``call``-th layer that is measured; the layers measured are kept in the list."""
    measured = []
    layer_row = measurement.LayerRow

    def row(layer, *rest):
        if len(rest) == 2:  # else it is a layer of an earlier run, with its values
            measured.append(layer)
            if len(measured) == call:
                raise KeyboardInterrupt
        return layer_row(layer, *rest)

    monkeypatch.setattr(measurement, "LayerRow", row)
    return measured


def test_ctrl_c_keeps_complete_layers_and_the_next_run_continues(folder, undisturbed, monkeypatch):
    interrupted_at(LAYERS + 2, monkeypatch)  # at the second layer of the first model
    with pytest.raises(KeyboardInterrupt):
        profile(folder)
    assert layers_by_file(folder) == [[1], [1, 2]]
    assert published(folder) == [("base", True, 2), ("fine_tune", False, 1)]
    assert not verify(folder)
    monkeypatch.undo()
    measured = interrupted_at(0, monkeypatch)
    report = profile(folder)
    assert (report.indexed, report.unchanged) == (2, 0)
    assert measured == [2, 1, 2]  # complete layers are not measured again
    same_bytes(folder, undisturbed)
    assert published(folder) == [("base", True, 2), ("fine_tune", True, 2), ("fine_tune", True, 2)]
    again = profile(folder)
    assert (again.indexed, again.unchanged, len(measured)) == (0, 2, 3)
    same_bytes(folder, undisturbed)


KILLED = """
import os, signal, sys
from pathlib import Path
from indexer.storage import atomic_files
synced, calls = os.fsync, []
def fsync(file):
    calls.append(file)
    if len(calls) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    synced(file)
atomic_files.os = type("Os", (), {**vars(os), "fsync": staticmethod(fsync)})
from indexer.cli import main
main(["profile", "--base", sys.argv[2], "--limit", "2", "--atlas", sys.argv[3]])
"""


def test_a_kill_in_the_middle_of_a_write_leaves_nothing_half_written(shell, folder, undisturbed):
    # Every whole layer, and the end, is two files; here the second layer of the first model is being written.
    call = 2 * (LAYERS + 1) + 4
    killed = run_python(
        "-c", KILLED, call, BASE, folder.root,
        env={**shell.environment, "HF_ENDPOINT": shell.endpoint}, timeout=PATIENCE, cwd=folder.root.parent,
    )  # fmt: skip
    assert killed.code == -signal.SIGKILL, killed.err
    temporary = [path for path in folder.profiles.rglob(".*") if path.is_file()]
    assert len(temporary) == 1  # a temporary file, not the file itself
    assert layers_by_file(folder) == [[1], [1, 2]]
    assert published(folder) == []  # the atlas as it was
    report = profile(folder)
    assert (report.indexed, report.unchanged) == (2, 0)
    same_bytes(folder, undisturbed)
    assert not verify(folder)
    os.utime(temporary[0], (0, 0))
    remove_leftovers(folder)
    assert not temporary[0].exists()


def test_workers_give_the_same_bytes(folder, undisturbed, monkeypatch):
    monkeypatch.setattr("indexer.builds.profiling.workers_for", lambda workers, models: workers)
    report = profile(folder, workers=2)
    assert (report.indexed, report.failed, report.refused) == (2, 0, [])
    same_bytes(folder, undisturbed)


def test_a_model_larger_than_the_memory_allowed_is_not_begun(folder):
    from indexer.errors import AtlasError

    with pytest.raises(AtlasError, match=r"`memory` .* is too little"):
        profile(folder, memory=1 << 20)
    assert not folder.profiles.exists()
