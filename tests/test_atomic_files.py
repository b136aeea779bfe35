"""Files appear whole or not at all, with concurrent or killed writers and on a disk that fills up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from indexer.atlas import AtlasFolder
from indexer.storage.atomic_files import LEFT_SECONDS, remove_leftovers, temporary_path, write_atomically
from tests.share.conftest import NAME, is_whole, open_hub, shell_of
from tests.tiny_hub import BASE, served_shell


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    """Two machines at one unit may well have one process id: here two threads have."""
    path = tmp_path / "aa" / "record"
    payloads = [bytes([number]) * 200_000 for number in range(2)]
    barrier = Barrier(2)

    def write(payload):
        barrier.wait()
        write_atomically(path, payload)
        return path.read_bytes() in payloads

    with ThreadPoolExecutor(2) as threads:
        for _ in range(30):
            assert all(threads.map(write, payloads))
    assert [file.name for file in path.parent.iterdir()] == ["record"]


def test_what_killed_writers_left_is_swept_up_once_it_is_old(tmp_path):
    folder = AtlasFolder(tmp_path)
    precious = [folder.record("ab" + 62 * "0"), folder.base("org/base", "1" * 40), tmp_path / "precious" / ".left.tmp"]
    old = [
        temporary_path(precious[0]),
        temporary_path(precious[1]),
        temporary_path(precious[1], "data"),
        precious[0].with_name(".former.4711.tmp"),
    ]
    fresh = [temporary_path(precious[0]), temporary_path(precious[1], "data")]
    for path in (*precious, *old, *fresh):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    for path in (*precious, *old):
        os.utime(path, (0, time.time() - LEFT_SECONDS - 60))
    (folder.records / "cd").symlink_to(tmp_path / "precious", target_is_directory=True)
    remove_leftovers(folder)
    assert all(path.exists() for path in (*precious, *fresh))
    assert not any(path.exists() for path in old)
    remove_leftovers(AtlasFolder(tmp_path / "nothing"))


SMALL = 550_000  # bytes: room for the listing, the base and some of the twelve records
ENOUGH = 40_000_000


def resize(disk, size: int, *more: str) -> bool:
    """Mount (or, with ``remount``, resize) a disk in memory; False where that is not allowed."""
    if sys.platform != "linux" or not shutil.which("mount"):
        return False
    options = ",".join([*more, f"size={size}"])
    process = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], capture_output=True, check=False)
    return process.returncode == 0


@pytest.fixture
def disk(tmp_path):
    """A disk of ``SMALL`` bytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not resize(folder, SMALL):
        pytest.skip("a small disk can only be mounted by root on Linux")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def shell(disk, tiny_store, tmp_path):
    with served_shell(tiny_store(4), disk, HF_HOME=str(tmp_path / "hf")) as shell:
        yield shell


def leftovers(disk) -> list[str]:
    """Temporary files; the lock is not a leftover."""
    return [path.name for path in disk.rglob("*") if path.is_file() and ("tmp" in path.name or "part" in path.name)]


@pytest.mark.slow
def test_a_build_on_a_full_disk_stops_with_one_line_and_goes_on_later(shell, disk):
    build = shell("index", "--quiet", "build", "--base", BASE, "--workers", "1")
    assert build.code == 1
    assert build.err.count("\n") == 1, build.err
    assert build.err.startswith("Error: The disk is full at ")
    assert str(disk) in build.err
    assert not leftovers(disk)
    records = {path: path.read_bytes() for path in disk.rglob("records/*/*.safetensors")}
    assert 0 < len(records) < 12
    assert resize(disk, ENOUGH, "remount")
    report = shell("index", "build", "--base", BASE, "--workers", "1", "--json").json
    assert (report["unchanged"], report["indexed"]) == (len(records), 12 - len(records))
    assert {path: path.read_bytes() for path in records} == records


@pytest.mark.slow
def test_a_publish_on_a_full_disk_leaves_the_last_state(shell, disk):
    assert resize(disk, ENOUGH, "remount")
    assert shell("index", "build", "--base", BASE).code == 0
    before = shell("query", "similar", "ann/glue-0", "--json").json
    used = sum(path.stat().st_size for path in disk.rglob("*") if path.is_file())
    assert resize(disk, used + 300_000, "remount")
    command = shell("index", "--quiet", "represent", "output")
    assert command.code == 1
    assert command.err.startswith("Error: The disk is full")
    assert not leftovers(disk)
    assert shell("query", "similar", "ann/glue-0", "--json").json == before
    assert shell("index", "verify").code == 0
    assert resize(disk, ENOUGH, "remount")
    assert shell("index", "represent", "output").code == 0
    assert shell("query", "similar", "ann/glue-0", "--representation", "output").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("free", [100_000, 2_500_000, 6_000_000])
def test_a_push_on_a_full_disk_shows_nothing_and_leaves_nothing(disk, made, tmp_path, free):
    """The copy of the database, the database written again, and Parquet or packs do not fit, each in turn."""
    assert resize(disk, ENOUGH, "remount")
    atlas = shutil.copytree(made, disk / "atlas")
    used = sum(-(-path.stat().st_size // 4096) * 4096 for path in disk.rglob("*"))
    with open_hub(tmp_path / "hub") as hub:
        ann = shell_of(hub, tmp_path / "ann")
        assert resize(disk, used + free, "remount")
        push = ann("index", "--quiet", "push", NAME, "--with-records", "--atlas", str(atlas))
        assert push.code == 1
        assert push.err.count("\n") == 1, push.err
        assert push.err.startswith("Error: The disk is full"), push.err
        assert hub.datasets.find(NAME) is None or not is_whole(hub)
        assert not (atlas / ".push").exists()
        assert resize(disk, ENOUGH, "remount")
        assert ann("index", "push", NAME, "--with-records", "--atlas", str(atlas)).code == 0
        assert is_whole(hub)
