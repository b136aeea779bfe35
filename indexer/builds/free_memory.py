"""How much memory there is for the taking: on the machine, and in the control groups that this process is in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
MACHINE = Path("/proc/meminfo")

# Where neither says anything.
ASSUMED_BYTES = 4 << 30


@dataclass(frozen=True)
class _Names:
    """What one version of control groups calls the limit, what is used, and (in memory.stat) the idle page cache."""

    limit: str
    used: str
    idle: str


_VERSION_1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Names("memory.max", "memory.current", "inactive_file")


def available_memory() -> int:
    """Bytes that a new program could use without anything being swapped out, by the machine and by every limit."""
    sizes = [*_free_in_groups(), _free_on_machine()]
    return min((size for size in sizes if size is not None), default=ASSUMED_BYTES)


def _free_on_machine() -> int | None:
    try:
        for line in MACHINE.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError, AttributeError):
        return None


def _free_in_groups() -> Iterator[int]:
    """What is free in this process's group and in each above it: the limit of any of them holds."""
    for folder, names in _own_groups():
        free = _free_in_group(folder, names)
        if free is not None:
            yield free


def _own_groups() -> Iterator[tuple[Path, _Names]]:
    """Folders that may be this process's groups: in a container the path is often the host's and not there."""
    try:
        lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if "memory" in controllers.split(","):
            root, names = GROUPS / "memory", _VERSION_1
        elif not controllers:
            root, names = GROUPS, _VERSION_2
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        if ".." not in inside.parts:
            yield from ((root / group, names) for group in (inside, *inside.parents))


def _free_in_group(folder: Path, names: _Names) -> int | None:
    """None where the group is not there or has no limit."""
    try:
        limit = int((folder / names.limit).read_text(encoding="ascii"))
        used = int((folder / names.used).read_text(encoding="ascii"))
    except (OSError, ValueError):  # not there, or "max"
        return None
    return max(0, limit - max(0, used - _idle_in_group(folder, names)))


def _idle_in_group(folder: Path, names: _Names) -> int:
    """Page cache that is counted as used, and given up as soon as somebody needs the room."""
    try:
        for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines():
            name, _, size = line.partition(" ")
            if name == names.idle:
                return int(size)
    except (OSError, ValueError):
        pass
    return 0
