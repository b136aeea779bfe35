"""Files that appear whole or not at all, concurrent writers of one file, and leftovers of killed writers."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from indexer.atlas import AtlasFolder
from indexer.storage.atomic_files import LEFT_SECONDS, remove_leftovers, temporary_path, write_atomically


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
    assert [one.name for one in path.parent.iterdir()] == ["record"]


def test_what_killed_writers_left_is_swept_up_once_it_is_old(tmp_path):
    folder = AtlasFolder(tmp_path)
    kept = [folder.record("ab" + 62 * "0"), folder.base("org/base", "1" * 40), tmp_path / "precious" / ".left.tmp"]
    old = [
        temporary_path(kept[0]),
        temporary_path(kept[1]),
        temporary_path(kept[1], "data"),
        kept[0].with_name(".former.4711.tmp"),
    ]
    fresh = [temporary_path(kept[0]), temporary_path(kept[1], "data")]
    for path in (*kept, *old, *fresh):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    for path in (*kept, *old):
        os.utime(path, (0, time.time() - LEFT_SECONDS - 60))
    (folder.records / "cd").symlink_to(tmp_path / "precious", target_is_directory=True)
    remove_leftovers(folder)
    assert all(path.exists() for path in (*kept, *fresh))
    assert not any(path.exists() for path in old)
    remove_leftovers(AtlasFolder(tmp_path / "nothing"))
