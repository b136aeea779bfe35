"""What this machine offers: processors, free memory, and devices for torch."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from indexer.errors import AtlasError, Call, Text

OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")

# Used if neither the machine nor a control group says how much memory is free.
_ASSUMED_BYTES = 4 << 30

# In control groups of version 1 and 2: the files with limits and with what is used, and the name of the idle page
# cache in memory.stat, which is counted as used and is given up when memory is short. A program above memory.high is
# not killed, but slowed down until it hardly runs.
_VERSION_1 = (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = (("memory.max", "memory.high"), "memory.current", "inactive_file")


def processors() -> int:
    """How many processors this process may use: its affinity, and the quota of its control group, rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min([count, *(math.ceil(quota) for quota in _quotas())]))


def _quotas() -> Iterator[float]:
    """The processors that this process's control group and each group above it may use, where they have a quota."""
    for root, group, is_old in _groups("cpu"):
        for folder in _upwards(root, group):
            try:
                if is_old:
                    quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii")  # -1 for none
                    period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii")
                else:
                    quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()  # "max" for none
                processors = int(quota) / int(period)
            except (OSError, ValueError, ArithmeticError):
                continue
            if processors > 0:
                yield processors


def available_memory() -> int:
    """Bytes that a new program could use without swapping, by the machine and by every limit on this process."""
    sizes = list(_free_in_groups())
    machine = _value_in(MEMINFO, "MemAvailable:")
    if machine is not None:
        sizes.append(machine << 10)
    else:
        with suppress(ValueError, OSError, AttributeError):
            sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    return min(sizes, default=_ASSUMED_BYTES)


def _free_in_groups() -> Iterator[int]:
    """What is free in this process's control group and in each group above it, where they have a limit."""
    for root, group, is_old in _groups("memory"):
        limit_files, used_file, idle = _VERSION_1 if is_old else _VERSION_2
        for folder in _upwards(root, group):
            limits = []
            for name in limit_files:
                with suppress(OSError, ValueError):  # the group is not visible here, or has no such limit ("max")
                    limits.append(int((folder / name).read_text(encoding="ascii")))
            with suppress(OSError, ValueError):
                if limits:
                    used = int((folder / used_file).read_text(encoding="ascii"))
                    used -= _value_in(folder / "memory.stat", idle) or 0
                    yield max(0, min(limits) - max(0, used))


def _groups(controller: str) -> Iterator[tuple[Path, PurePosixPath, bool]]:
    """Where a controller's groups lie, this process's group there, and whether they are of version 1."""
    try:
        lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        group = PurePosixPath(path.lstrip("/"))
        if ".." in group.parts:
            continue
        if controller in controllers.split(","):
            yield GROUPS / controller, group, True
        elif not controllers:
            yield GROUPS, group, False


def _upwards(root: Path, group: PurePosixPath) -> Iterator[Path]:
    """The group's folder and those above it. In a container the path is often the host's and does not exist here."""
    yield from (root / group, *(root / above for above in group.parents))


def _value_in(path: Path, name: str) -> int | None:
    """The number after ``name`` in a file with one name on each line; None without such a file or number."""
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            words = line.split()
            if words and words[0] == name:
                return int(words[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def check_device(device: str) -> None:
    """Raises AtlasError if torch cannot use ``device``. Imports torch unless it is the CPU."""
    if device == "cpu":
        return
    import torch

    try:
        torch.zeros(1, dtype=torch.float64, device=device).item()  # mps has no such numbers, meta none at all
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0].split(". ")[0].rstrip(".")
        raise AtlasError(
            f"The device {device!r} cannot be used here: {reason}.", Text("Use ", Call(device="cpu"), ".")
        ) from error


def refuses_connections(address: str, seconds: float = 1.0) -> bool:
    """Whether the server of an http(s) address cannot be connected to: its name is unknown, or it refuses.

    False if a proxy leads there, and if no answer came in time, which says nothing.
    """
    parts = urlsplit(address)
    host = parts.hostname or ""
    if not host or (parts.scheme in getproxies() and not proxy_bypass(host)):
        return False
    try:
        socket.create_connection((host, parts.port or (443 if parts.scheme == "https" else 80)), seconds).close()
    except TimeoutError:
        return False
    except (OSError, ValueError):
        return True
    return False
