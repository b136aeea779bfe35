"""What a build may use: sizes as people write them, how memory is shared out, and how much of it is free."""

from __future__ import annotations

import pytest

from indexer import machine
from indexer.builds import resources
from indexer.builds.options import parse_size
from indexer.builds.resources import AHEAD_BYTES, PROCESS_BYTES, share_out
from indexer.errors import AtlasError
from indexer.machine import available_memory, check_device

MB = 10**6
ROBERTA = (340 * MB, 9_437_184)  # block matrices, the largest as float32
LLAMA_7B = (26_000 * MB, 11008 * 4096 * 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2G", 2 * 10**9), ("512M", 512 * MB), ("1.5 GiB", 3 << 29), ("300k", 300_000), ("1000", 1000),
        ("2gb", 2 * 10**9), (" 1 TiB ", 1 << 40), ("0.5KiB", 512),
    ],
)  # fmt: skip
def test_sizes_as_people_write_them(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "G", "-1G", "2X", "0", "1e9", "2 G B", "9" * 100, "nan", "2,5G"])
def test_invalid_sizes(text):
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_with_enough_memory_there_is_everything():
    found = share_out(4, *ROBERTA, memory=8 * 10**9)
    assert (found.workers, found.resident, found.ahead_bytes) == (4, True, AHEAD_BYTES)


def test_a_large_base_stays_on_the_disk():
    assert not share_out(2, *LLAMA_7B, memory=10**12).resident


def test_workers_come_before_a_base_in_memory():
    found = share_out(4, *ROBERTA, memory=2_000 * MB)
    assert found.workers == 4
    assert not found.resident


def test_reading_ahead_comes_before_a_base_in_memory():
    """A little more memory is never worse: the page cache holds the base for all, nothing else keeps the line busy."""
    one = PROCESS_BYTES + 6 * ROBERTA[1]
    barely = 2 * (one + ROBERTA[0]) + PROCESS_BYTES  # for two workers and a base each, and nothing else
    found = [share_out(2, *ROBERTA, memory=barely + more * MB) for more in (-1, 1, 130, 140)]
    assert [one.ahead_bytes for one in found] == [AHEAD_BYTES] * 4
    assert [one.resident for one in found] == [False, False, False, True]


@pytest.mark.parametrize("memory", [400 * MB, 800 * MB, 1200 * MB, 3 * 10**9, 20 * 10**9])
@pytest.mark.parametrize("base", [ROBERTA, LLAMA_7B])
def test_the_parts_never_exceed_the_whole(memory, base):
    base_bytes, largest = base
    try:
        found = share_out(16, base_bytes, largest, memory=memory)
    except AtlasError:
        assert PROCESS_BYTES + 6 * largest > memory
        return
    each = PROCESS_BYTES + 6 * largest + found.resident * base_bytes + found.ahead_bytes
    assert found.workers * each + (found.workers > 1) * PROCESS_BYTES + found.database_bytes == memory
    assert found.ahead_bytes >= 0


@pytest.mark.parametrize(
    ("memory", "shown"),
    [("100M", "100 MB"), ("10k", "10.0 kB"), ("1.5MB", "1.5 MB"), ("999k", "999 kB"), ("7", "7 bytes")],
)
def test_too_little_for_one_worker_is_reported(memory, shown):
    with pytest.raises(
        AtlasError, match=f"`memory` {shown} is too little for this base: one worker needs about 371 MB"
    ):
        share_out(2, *ROBERTA, memory=parse_size(memory))


def test_close_sizes_look_different():
    with pytest.raises(AtlasError, match=r"`memory` 1,050 MB is too .* about 1,060 MB"):
        share_out(1, 0, (1060 * MB - PROCESS_BYTES) // 6, memory=1050 * MB)


def test_without_a_limit_half_of_what_is_free_is_used(monkeypatch):
    monkeypatch.setattr(resources, "available_memory", lambda: 1_600 * MB)
    found = share_out(8, *ROBERTA)
    assert (found.workers, found.resident, found.database_bytes) == (1, True, None)
    monkeypatch.setattr(resources, "available_memory", lambda: 10 * MB)
    assert share_out(8, *ROBERTA).workers == 1  # without a limit one worker is always tried


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("Torch not compiled with CUDA enabled"),
        RuntimeError("Torch not compiled with CUDA enabled.\nmore"),
        TypeError("Torch not compiled with CUDA enabled"),
    ],
)
def test_the_error_for_a_missing_device(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("torch.zeros", fail)
    with pytest.raises(AtlasError) as caught:
        check_device("cuda")
    assert str(caught.value) == (
        "The device 'cuda' cannot be used here: Torch not compiled with CUDA enabled. Use `device='cpu'`."
    )


# Free memory: of the process's control group, of every group above it, and of the machine


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


@pytest.mark.parametrize(
    ("most", "high", "free"), [("max", 800 * MB, 500), (2048 * MB, 800 * MB, 500), (600 * MB, 800 * MB, 300), ("max", "max", 724)]
)  # fmt: skip
def test_a_group_is_not_filled_up_to_where_it_is_slowed_down(groups, most, high, free):
    group, own = groups
    own("0::/slurm/job_7\n")
    group("slurm/job_7", max=most, high=high, current=300 * MB)
    group("slurm", max=1024 * MB, high="max", current=300 * MB)
    assert available_memory() == free * MB


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
