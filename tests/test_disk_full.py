"""A disk that fills up: one line that says where, nothing half-written, and the next build goes on."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.share.conftest import NAME, is_whole, open_hub, shell_of
from tests.tiny_hub import BASE, served_shell

pytestmark = pytest.mark.slow

SMALL = 400_000  # bytes: room for the listing, the base and some of the twelve records
ENOUGH = 40_000_000


def resize(disk, size: int, *more: str) -> bool:
    """Mount (or, with ``remount``, resize) a disk in memory; False where that is not allowed."""
    if sys.platform != "linux" or not shutil.which("mount"):
        return False
    options = ",".join([*more, f"size={size}"])
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], capture_output=True, check=False)
    return done.returncode == 0


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


def test_a_build_on_a_full_disk_stops_with_one_line_and_goes_on_later(shell, disk):
    ran = shell("index", "--quiet", "build", "--base", BASE, "--workers", "1")
    assert ran.code == 1
    assert ran.err.count("\n") == 1, ran.err
    assert ran.err.startswith("Error: The disk is full at ")
    assert str(disk) in ran.err
    assert not leftovers(disk)
    kept = {path: path.read_bytes() for path in disk.rglob("records/*/*.safetensors")}
    assert 0 < len(kept) < 12
    assert resize(disk, ENOUGH, "remount")
    report = shell("index", "build", "--base", BASE, "--workers", "1", "--json").json
    assert (report["unchanged"], report["indexed"]) == (len(kept), 12 - len(kept))
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_publish_on_a_full_disk_leaves_the_last_state(shell, disk):
    assert resize(disk, ENOUGH, "remount")
    assert shell("index", "build", "--base", BASE).code == 0
    before = shell("query", "similar", "ann/glue-0", "--json").json
    used = sum(path.stat().st_size for path in disk.rglob("*") if path.is_file())
    assert resize(disk, used + 300_000, "remount")
    ran = shell("index", "--quiet", "represent", "output")
    assert ran.code == 1
    assert ran.err.startswith("Error: The disk is full")
    assert not leftovers(disk)
    assert shell("query", "similar", "ann/glue-0", "--json").json == before
    assert shell("index", "verify").code == 0
    assert resize(disk, ENOUGH, "remount")
    assert shell("index", "represent", "output").code == 0
    assert shell("query", "similar", "ann/glue-0", "--representation", "output").code == 0


@pytest.mark.parametrize("free", [100_000, 2_500_000, 6_000_000])
def test_a_push_on_a_full_disk_shows_nothing_and_leaves_nothing(disk, made, tmp_path, free):
    """The copy of the database, the database written again, and Parquet or packs do not fit, each in turn."""
    assert resize(disk, ENOUGH, "remount")
    atlas = shutil.copytree(made, disk / "atlas")
    used = sum(-(-path.stat().st_size // 4096) * 4096 for path in disk.rglob("*"))
    with open_hub(tmp_path / "hub") as hub:
        ann = shell_of(hub, tmp_path / "ann")
        assert resize(disk, used + free, "remount")
        ran = ann("index", "--quiet", "push", NAME, "--with-records", "--atlas", str(atlas))
        assert ran.code == 1
        assert ran.err.count("\n") == 1, ran.err
        assert ran.err.startswith("Error: The disk is full"), ran.err
        assert hub.datasets.find(NAME) is None or not is_whole(hub)
        assert not (atlas / ".push").exists()
        assert resize(disk, ENOUGH, "remount")
        assert ann("index", "push", NAME, "--with-records", "--atlas", str(atlas)).code == 0
        assert is_whole(hub)
