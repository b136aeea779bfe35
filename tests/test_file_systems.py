"""Atlases on file systems that lack some calls, and under names that other programs take for something else."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat

import pytest
from huggingface_hub import constants

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.publish.maintenance import rebuild
from indexer.publish.removal import remove
from indexer.publish.verification import verify
from query import Atlas

MODEL = "ann/glue-0"
WHOLE_MMAP = mmap.mmap


def refuse(code):
    def refused(*_, **__):
        raise OSError(code, os.strerror(code))

    return refused


def lacking(patch, call: str) -> None:
    """Let a call fail as on file systems without it."""
    real_sync, real_open = os.fsync, os.open

    def sync_of_files_only(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real_sync(descriptor)

    def open_of_files_only(path, flags, *more, **named):
        if not isinstance(path, int) and os.path.isdir(path) and "dir_fd" not in named:
            raise OSError(errno.EACCES, "no folders", str(path))
        return real_open(path, flags, *more, **named)

    class NoFiles(WHOLE_MMAP):
        def __new__(cls, descriptor, *more, **named):
            if descriptor != -1:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
            return WHOLE_MMAP.__new__(cls, descriptor, *more, **named)

    made = {
        "sync of folders": [(os, "fsync", sync_of_files_only)],
        "sync": [(os, "fsync", refuse(errno.EINVAL))],
        "open of folders": [(os, "open", open_of_files_only)],
        "maps": [(mmap, "mmap", NoFiles)],
        "links": [(os, "link", refuse(errno.EPERM)), (os, "symlink", refuse(errno.EPERM))],
        "modes": [(os, "chmod", refuse(errno.EPERM)), (os, "fchmod", refuse(errno.EPERM))],
        "times": [(os, "utime", refuse(errno.EPERM))],
    }
    for module, name, replaced in made[call]:
        patch.setattr(module, name, replaced)


@pytest.mark.parametrize(
    "call", ["sync of folders", "sync", "open of folders", "maps", "links", "modes", "times"]
)  # fmt: skip
def test_an_atlas_where_a_call_is_missing(atlas, monkeypatch, call):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with monkeypatch.context() as patch:
        lacking(patch, call)
        rebuild(atlas)
        remove(MODEL, atlas=atlas.root)
        assert verify(atlas) == []
        with Atlas(atlas.root) as opened:
            assert len(opened.similar("bob/glue-1", k=3)) == 3


def test_a_damaged_listing_is_kept_where_there_are_no_hard_links(atlas, monkeypatch):
    lacking(monkeypatch, "links")
    path = next(atlas.listings.glob("*.jsonl"))
    damaged = b"nonsense\n" + path.read_bytes()
    path.write_bytes(damaged)
    rebuild(atlas)
    assert path.with_name(f"{path.name}.damaged").read_bytes() == damaged
    assert Listing(path).problems() == []


def test_a_full_disk_is_no_file_system_without_sync(atlas, monkeypatch):
    monkeypatch.setattr(os, "fsync", refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        rebuild(atlas)


@pytest.mark.parametrize("name", ["100% it's é", 'a#b "c"; d'])
def test_an_odd_name_of_a_folder(made, tmp_path, name):
    shutil.copytree(made, tmp_path / name)
    rebuild(AtlasFolder(tmp_path / name))
    with Atlas(tmp_path / name) as opened:
        assert len(opened.similar(MODEL, k=3)) == 3


def test_a_folder_that_duckdb_would_misread_is_refused_in_one_line(made, tmp_path):
    shutil.copytree(made, tmp_path / "what?now")
    with pytest.raises(AtlasError, match=r"what\?now: DuckDB takes what follows a \?"):
        Atlas(tmp_path / "what?now")


def test_a_database_that_is_a_link_is_read_and_an_atlas_of_links_says_what_it_needs(atlas, tmp_path):
    moved = tmp_path / "blobs" / "d1"
    moved.parent.mkdir()
    atlas.database.rename(moved)
    atlas.database.symlink_to(moved)
    with Atlas(atlas.root) as opened:
        assert len(opened.similar(MODEL, k=3)) == 3
    for path in atlas.root.glob("*.faiss"):
        path.rename(moved.with_name(path.name))
        path.symlink_to(moved.with_name(path.name))
    with Atlas(atlas.root) as opened, pytest.raises(AtlasError, match=r"it is a link.*cp -rL"):
        opened.similar(MODEL, k=3, where="downloads >= 0")
