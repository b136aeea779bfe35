"""Atlases on file systems that lack some calls, and under names that other programs take for something else."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import stat
from contextlib import contextmanager

import pytest
from huggingface_hub import constants

import indexer
from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.share.staging import staged
from indexer.shared_state import usable_umask
from indexer.storage.atomic_files import write_atomically
from indexer.upkeep.maintenance import rebuild
from indexer.upkeep.removal import remove
from indexer.upkeep.verification import verify
from query import Atlas
from query.faces.cli import main as query

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

    patches = {
        "sync of folders": [(os, "fsync", sync_of_files_only)],
        "sync": [(os, "fsync", refuse(errno.EINVAL))],
        "open of folders": [(os, "open", open_of_files_only)],
        "maps": [(mmap, "mmap", NoFiles)],
        "links": [(os, "link", refuse(errno.EPERM)), (os, "symlink", refuse(errno.EPERM))],
        "modes": [(os, "chmod", refuse(errno.EPERM)), (os, "fchmod", refuse(errno.EPERM))],
        "times": [(os, "utime", refuse(errno.EPERM))],
    }
    for module, name, replaced in patches[call]:
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
    path = next(atlas.listings.glob("*.sqlite"))
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


MASKS = [0, 0o002, 0o077, 0o277, 0o777]


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def misshapen(*folders):
    """Files and folders that their owner cannot use or that everybody may write to."""
    paths = [path for folder in folders for path in (folder, *folder.rglob("*")) if not path.is_symlink()]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    needed = {path: stat.S_IRWXU if path.is_dir() else stat.S_IRUSR for path in paths}
    return [path for path, mode in modes.items() if mode & stat.S_IWOTH or mode & needed[path] != needed[path]]


@pytest.mark.parametrize("mask", MASKS)
def test_what_is_made_can_be_used_by_its_owner_and_not_written_to_by_all(made, tmp_path, mask):
    atlas = AtlasFolder(tmp_path / "atlas")
    with umask(mask):
        with atlas.locked("test"):
            for path in made.rglob("*"):  # as a build makes them: folders, files, files that replace others
                target = atlas.root / path.relative_to(made)
                target.mkdir(exist_ok=True) if path.is_dir() else write_atomically(target, path.read_bytes())
        with staged(atlas, with_records=True) as stage:
            assert misshapen(stage.folder) == []
        assert os.umask(mask) == mask, "restored"
    assert misshapen(atlas.root) == []


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
def test_so_is_an_atlas_that_is_made_again(atlas, mask):
    atlas.database.unlink()
    with umask(mask):
        indexer.rebuild(atlas.root)
        indexer.remove(MODEL, atlas=atlas.root)
    assert misshapen(atlas.root) == []
    assert verify(atlas) == []


@pytest.mark.parametrize("mask", MASKS)
def test_so_are_the_files_of_a_command(made, tmp_path, mask):
    words = ["export", "--base", "org/tiny-base", "--atlas", str(made), "--out", str(tmp_path / "vectors.npz")]
    with umask(mask), pytest.raises(SystemExit) as ended:
        query(words)
    assert ended.value.code == 0
    assert (tmp_path / "vectors.npz").is_file()
    assert misshapen(tmp_path) == []


def test_overlapping_blocks_restore_the_umask():
    with umask(0o777):
        first, second = usable_umask(), usable_umask()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert os.umask(0o077) == 0o077
        second.__exit__(None, None, None)
        assert os.umask(0o777) == 0o777


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EACCES])
@pytest.mark.parametrize("what", ["write", "push"])
def test_a_file_system_without_locks_is_named_and_nothing_is_left(atlas, tmp_path, monkeypatch, code, what):
    monkeypatch.setattr(fcntl, "flock", refuse(code))
    before = sorted(tmp_path.rglob("*"))
    locked = (
        AtlasFolder(tmp_path / "new" / "atlas").locked("test") if what == "write" else staged(atlas, with_records=False)
    )
    with pytest.raises(AtlasError, match=r"cannot be locked: .*needs flock"), locked:
        pass
    assert sorted(tmp_path.rglob("*")) == before
    with Atlas(atlas.root) as opened:  # reading needs no lock
        assert len(opened.similar(MODEL, k=3)) == 3
