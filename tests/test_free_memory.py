"""How much memory there is: in the group that a process is in, in every one above it, and on the machine."""

from __future__ import annotations

import pytest

from indexer import machine
from indexer.machine import available_memory

MB = 10**6


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A machine with 20 GB free, and writers of its control groups."""
    (tmp_path / "meminfo").write_text("MemTotal: 32000000 kB\nMemAvailable: 19531250 kB\n")
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")

    def group(path, **files):
        folder = tmp_path / "groups" / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / f"memory.{name}").write_text(f"{text}\n")

    return group, (tmp_path / "own").write_text


def test_the_limit_of_the_own_group_holds_not_that_of_the_root(groups):
    group, own = groups
    own("0::/slurm/job_7/step_0\n")
    group("slurm/job_7/step_0", max="max", current=300 * MB)
    group("slurm/job_7", max=1024 * MB, current=400 * MB, stat=f"anon 1\ninactive_file {100 * MB}\nfile 3")
    group("slurm", max=64_000 * MB, current=1 * MB)
    assert available_memory() == 724 * MB


def test_groups_of_the_first_version(groups):
    group, own = groups
    own("11:cpu,cpuacct:/here\n4:hugetlb,memory:/job\n0::/elsewhere\n")
    group(
        "memory/job",
        limit_in_bytes=2000 * MB,
        usage_in_bytes=1500 * MB,
        stat=f"inactive_file 5\ntotal_inactive_file {700 * MB}",
    )
    group("memory", limit_in_bytes=9223372036854771712, usage_in_bytes=1)
    assert available_memory() == 1200 * MB


def test_in_a_container_the_root_is_the_containers(groups):
    """The path in /proc is the host's, and is not to be seen from within."""
    group, own = groups
    own("0::/system.slice/docker-ab12.scope\n")
    group("", max=500 * MB, current=600 * MB, stat="inactive_file 0")
    assert available_memory() == 0


@pytest.mark.parametrize("text", ["", "garbage", "0::/../../etc\n", "::\n", "1:memory"])
def test_without_groups_the_machine_decides(groups, text):
    groups[1](text)
    assert available_memory() == 20_000 * MB


def test_memory_of_this_machine():
    with open("/proc/meminfo") as file:
        total = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemTotal"))
    assert 0 < available_memory() <= total
