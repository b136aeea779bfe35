"""Caches are read only where no other user can have written them."""

from __future__ import annotations

import os
import stat

import pytest

from indexer.storage import checksums
from indexer.storage.own_files import read_own, write_own


def test_what_is_written_is_read_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        file = tmp_path / "new" / "cache" / "a"
        write_own(file, b"one")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) & 0o022 == 0
    assert read_own(file, 10) == b"one"
    file.parent.chmod(0o777)  # as an earlier version may have left it
    write_own(file, b"two")
    assert read_own(file, 10) == b"two"


@pytest.mark.parametrize(
    "spoilt", ["group", "others", "folder", "owner", "owner of the folder", "link", "pipe", "long"]
)
def test_what_others_may_have_written_is_not_read(tmp_path, spoilt):
    file = tmp_path / "cache" / "a"
    write_own(file, b"one")
    if spoilt.startswith("owner"):
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(file.parent if "folder" in spoilt else file, 12345, 12345)
    elif spoilt == "folder":
        file.parent.chmod(0o770)
    elif spoilt in ("link", "pipe"):
        file.rename(file.with_name("b"))
        file.symlink_to("b") if spoilt == "link" else os.mkfifo(file)
    elif spoilt == "long":
        file.write_bytes(b"x" * 11)
    else:
        file.chmod(0o660 if spoilt == "group" else 0o602)
    said = []
    for _ in range(3):
        with pytest.raises(OSError, match=r"other users|it is a|more than 10 bytes"):
            read_own(file, 10, said.append)
    assert len(said) == (spoilt not in ("link", "pipe", "long")), "once"


def test_a_check_is_not_spared_by_a_memory_that_others_may_write(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path, ran = tmp_path / "file", []
    path.write_bytes(b"x")
    for mode in (0o600, 0o660):
        for _ in range(2):
            checksums.check_once(path, [1], lambda mode=mode: ran.append(mode))
        (checksums.user_cache() / "checked.json").chmod(mode | 0o020)
    assert ran == [0o600, 0o660]
