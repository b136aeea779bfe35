"""Caches are read only where no other user can have written them."""

from __future__ import annotations

import json
import os
import stat
from types import SimpleNamespace

import numpy as np
import pytest
from huggingface_hub import constants

from indexer.storage import checksums
from indexer.storage.arrays import as_bytes, checksum
from indexer.storage.own_files import read_own, write_own
from query.faces.browse import layout
from query.questions.ask.evidence import Reader
from query.questions.trace.words import BaseTokenizer


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
    file.parent.chmod(0o777)  # as another program may have left it
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
    path, checked = tmp_path / "file", []
    path.write_bytes(b"x")
    for mode in (0o600, 0o660):
        for _ in range(2):
            checksums.check_once(path, [1], lambda mode=mode: checked.append(mode))
        (checksums.user_cache() / "checked.json").chmod(mode | 0o020)
    assert checked == [0o600, 0o660]


# ---- what is kept of words, of texts and of maps


def kept_words(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokenizer = BaseTokenizer.__new__(BaseTokenizer)
    tokenizer._header = "of one base"
    arrays = {"texts": np.frombuffer(json.dumps([[0], ["<s>"], ["a", "b"]]).encode(), dtype=np.uint8)}
    write_own(tokenizer._path, as_bytes(arrays, {"checksum": checksum(tokenizer._header, arrays)}))
    return tokenizer._path, lambda: tokenizer._read(2)


def kept_features(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    reader = Reader.__new__(Reader)
    reader._base = "org/base"
    reader._keep("features", {"a": np.zeros(3)})
    return reader._path("features"), lambda: reader._arrays("features")


def kept_layout(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(layout, "_cache_key", lambda *arguments: "key")
    monkeypatch.setattr(layout, "start_process", lambda *arguments: None)
    monkeypatch.setattr(layout.LayoutJob, "_wait", lambda *arguments: None)
    write_own(layout._cache_file("key"), layout.Layout((1,), (0.0,), (0.0,), (None,), "", None, ()).to_json())
    atlas = SimpleNamespace(folder=SimpleNamespace(root=tmp_path))
    return layout._cache_file("key"), lambda: layout.LayoutJob(atlas, "org/base", None).layout


def a_link(path):
    path.rename(path.with_name("x"))
    path.symlink_to("x")


def a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def given_away(path):
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(path, 12345, 12345)


def a_hard_link(path):
    """Another user's file under the name of ours."""
    path.rename(path.with_name("x"))
    given_away(path.with_name("x"))
    os.link(path.with_name("x"), path)


def a_link_to_a_folder(path):
    path.parent.rename(path.parent.with_name("x"))
    path.parent.symlink_to("x")


@pytest.mark.parametrize("kept", [kept_words, kept_features, kept_layout])
@pytest.mark.parametrize(
    "plant",
    [a_link, a_pipe, given_away, a_hard_link, a_link_to_a_folder, lambda path: path.chmod(0o666),
     lambda path: path.parent.chmod(0o775), lambda path: given_away(path.parent)],
)  # fmt: skip
def test_what_is_kept_is_not_read_where_it_was_planted(tmp_path, monkeypatch, kept, plant):
    path, read = kept(tmp_path, monkeypatch)
    assert read() is not None
    plant(path)
    assert read() is None
