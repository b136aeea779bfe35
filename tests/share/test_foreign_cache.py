"""The cache of hf:// is read only where no other user can have written it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from indexer.errors import AtlasError
from indexer.share.cache import cached_atlas
from tests.share.conftest import NAME, rows_of


def slow(*names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


ADDRESS = f"hf://{NAME}@g1"


def fetched(said=None):
    return cached_atlas(ADDRESS, (said if said is not None else []).append)


def a_link(root):
    (root / "atlas.duckdb").rename(root / "other")
    (root / "atlas.duckdb").symlink_to(root / "other")


def a_pipe(root):
    (root / "atlas.duckdb").unlink()
    os.mkfifo(root / "atlas.duckdb")


def given_away(path):
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(path, 12345, 12345)


PLANTED = {
    "a link": a_link,
    "a pipe": a_pipe,
    "a link to a folder": lambda root: (root.rename(root.with_name("x")), root.symlink_to(root.with_name("x"))),
    "a file of another": lambda root: given_away(next(root.glob("*.faiss"))),
    "a folder of another": given_away,
    "a file that others write to": lambda root: (root / "atlas.duckdb").chmod(0o666),
    "a folder that its group writes to": lambda root: root.chmod(0o775),
    "a hard link to a file of another": lambda root: (
        given_away(root / "atlas.duckdb"), os.link(root / "atlas.duckdb", root / "more")),
    "another atlas": lambda root: (root / "pulled.json").unlink(),
}  # fmt: skip


@pytest.mark.slow
def test_what_was_planted_is_fetched_again(ann, atlas, monkeypatch):
    ann.push(atlas)
    root = fetched()
    own = rows_of(root / "atlas.duckdb")
    for name, plant in PLANTED.items():
        plant(root)
        with monkeypatch.context() as patch:
            patch.setattr(constants, "HF_HUB_OFFLINE", True)
            with pytest.raises(AtlasError, match=r"is not used.*Unset HF_HUB_OFFLINE"):
                fetched()
        said = []
        assert fetched(said) == root, name
        assert "is fetched again" in said[0], name
        assert not root.is_symlink()
        assert rows_of(root / "atlas.duckdb") == own, name
        said.clear()
        fetched(said)
        assert said == [], "it stays"


@pytest.mark.parametrize("planted", ["open to all", *slow("another's", "a link", "no commit", "above")])
def test_a_note_that_others_may_have_written_names_nothing(ann, atlas, monkeypatch, planted):
    ann.push(atlas)
    root = fetched()
    note = root.parent / "refs" / "g1"
    shutil.copytree(root, root.parent.parent / "x")
    if planted == "another's":
        given_away(note)
    elif planted == "open to all":
        note.chmod(0o666)
    elif planted == "a link":
        note.rename(note.with_name("x"))
        note.symlink_to("x")
    else:
        note.write_text("0" * 39 if planted == "no commit" else "../x")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(AtlasError, match="is not in the cache"):
        fetched()


@pytest.mark.parametrize("planted", ["another's", "a link", "a file"])
def test_a_home_of_another_is_not_used(ann, planted):
    home = Path(constants.HF_ASSETS_CACHE, "vectors-in-the-wild", "atlases", NAME.replace("/", "--"))
    (home.parent / "x").mkdir(parents=True)
    if planted == "another's":
        home.mkdir()
        given_away(home)
    elif planted == "a link":
        home.symlink_to("x")
        given_away(home.parent / "x")
    else:
        home.write_text("")
    with pytest.raises(AtlasError, match=r"HF_HOME"):
        fetched()


@pytest.mark.slow
def test_contents_that_others_may_change_are_copied_and_a_group_of_ones_own_loses_its_right(ann, atlas, monkeypatch):
    ann.push(atlas)
    before = os.umask(0o002)
    try:
        root = fetched()
    finally:
        os.umask(before)
    assert all(not path.stat().st_mode & 0o022 for path in [root.parent, root, *root.rglob("*")])
    shutil.rmtree(root)
    for blob in Path(constants.HF_HUB_CACHE).rglob("blobs/*"):
        given_away(blob)
    root = fetched()
    assert all(path.stat().st_uid == os.geteuid() for path in root.rglob("*"))
    said = []
    fetched(said)
    assert said == []
