"""Archives that are not what they say."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

from indexer.checkpoints.torch_files import read_torch_index
from indexer.errors import Skipped
from indexer.network.byterange import LocalFile
from tests.pickles.saved import FORMS, load, save, skipped, zip_with_pickle


@FORMS
@pytest.mark.parametrize("kept", [0, 1, 10, 100, 1000, 3000, -1000, -1])
def test_truncated_files_are_corrupt(tmp_path: Path, zipped: bool, kept: int) -> None:
    path = save({"a": torch.randn(30, 30), "b": torch.randn(9)}, tmp_path / "a.bin", zipped)
    path.write_bytes(path.read_bytes()[:kept])
    skip = skipped(path)
    assert skip.reason == "corrupt_file"


def test_the_missing_bytes_of_a_truncated_legacy_file_are_counted(tmp_path: Path) -> None:
    path = save({"a": torch.randn(30, 30)}, tmp_path / "a.bin", False)
    path.write_bytes(path.read_bytes()[:-77])
    assert "77 of its" in skipped(path).detail


def test_compressed_entries_are_refused(tmp_path: Path) -> None:
    plain = save({"a": torch.zeros(3000, 1000)}, tmp_path / "a.bin", True)
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(tmp_path / "b.bin", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for info in source.infolist():
            target.writestr(info.filename, source.read(info))
    assert os.path.getsize(tmp_path / "b.bin") < 100_000
    assert skipped(tmp_path / "b.bin").reason == "corrupt_file"


def test_an_entry_that_claims_another_place_is_refused(tmp_path: Path) -> None:
    """The directory points "data/1" at the bytes of "data/0"."""
    path = save({"a": torch.zeros(50), "b": torch.ones(50)}, tmp_path / "a.bin", True)
    with zipfile.ZipFile(path) as archive:
        offsets = {info.filename: info.header_offset for info in archive.infolist()}
    content = path.read_bytes()
    first, second = (next(v for k, v in offsets.items() if k.endswith(f"data/{n}")) for n in "01")
    directory = content.index(b"PK\x01\x02")
    tail = content[directory:].replace(struct.pack("<I", second), struct.pack("<I", first))
    path.write_bytes(content[:directory] + tail)
    assert skipped(path).reason == "corrupt_file"


def test_a_local_header_that_disagrees_is_noticed(tmp_path: Path) -> None:
    path = save({"a": torch.zeros(50), "b": torch.ones(50)}, tmp_path / "a.bin", True)
    with zipfile.ZipFile(path) as archive:
        offset = next(info.header_offset for info in archive.infolist() if info.filename.endswith("data/1"))
    content = bytearray(path.read_bytes())
    content[offset + 28 : offset + 30] = b"\xff\xff"
    path.write_bytes(content)
    file = LocalFile(path)
    index = read_torch_index(file)
    assert torch.equal(load(path, index, file, "a"), torch.zeros(50))
    with pytest.raises(Skipped) as skip:
        load(path, index, file, "b")
    assert skip.value.reason == "corrupt_file"


def test_a_legacy_count_that_disagrees_is_noticed(tmp_path: Path) -> None:
    path = save({"a": torch.full((50,), 3.0)}, tmp_path / "a.bin", False)
    content = bytearray(path.read_bytes())
    offset = content.index(struct.pack("<q", 50) + struct.pack("<f", 3.0))
    content[offset : offset + 8] = struct.pack("<q", 49)
    path.write_bytes(content)
    file = LocalFile(path)
    index = read_torch_index(file)
    with pytest.raises(Skipped) as skip:
        load(path, index, file, "a")
    assert skip.value.reason == "corrupt_file"


def test_big_endian_files_are_refused(tmp_path: Path) -> None:
    path = zip_with_pickle(tmp_path / "a.bin", b"\x80\x02}.", {"byteorder": b"big"})
    assert skipped(path).reason == "unreadable_format"


def test_torchscript_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("data.pkl", "code/__torch__.py", "constants.pkl", "version"):
            archive.writestr(f"archive/{name}", b"\x80\x02}." * 50)
    skip = skipped(tmp_path / "a.bin")
    assert skip.reason == "unreadable_format"
    assert "TorchScript" in skip.detail


def test_tar_files_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.bin", "w") as archive:
        info = tarfile.TarInfo("storages")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"hello"))
    skip = skipped(tmp_path / "a.bin")
    assert skip.reason == "unreadable_format"
    assert "tar" in skip.detail


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 5\n", "Git LFS pointer"),
        (b"<html>not found</html>", "pickle"),
        (b"", "pickle"),
        (b"PK\x03\x04 and nothing more", "zip"),
        (pickle.dumps({"a": [1, 2.5, None, "x"]}), "neither"),
        (pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1002, 2), "neither"),
    ],
)
def test_other_files_are_corrupt(tmp_path: Path, content: bytes, word: str) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    skip = skipped(tmp_path / "a.bin")
    assert skip.reason == "corrupt_file"
    assert word in skip.detail


def test_another_zip_is_corrupt(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.bin", "w") as archive:
        archive.writestr("hello.txt", "hello")
    assert "data.pkl" in skipped(tmp_path / "a.bin").detail


def test_a_directory_of_a_million_entries_is_not_read(tmp_path: Path) -> None:
    """Its size alone is refused: 46 bytes an entry on disk become 500 in memory."""
    path = zip_with_pickle(tmp_path / "a.bin", b"\x80\x02}.")
    content = path.read_bytes()
    start = content.index(b"PK\x01\x02")
    end = content.index(b"PK\x05\x06")
    entry = content[start : start + 46 + 16]
    directory = entry * 400_000
    record = bytearray(content[end:])
    record[8:12] = b"\xff\xff\xff\xff"
    record[12:16] = struct.pack("<I", len(directory))
    path.write_bytes(content[:start] + directory + bytes(record))
    file = LocalFile(path)
    with pytest.raises(Skipped) as skip:
        read_torch_index(file)
    assert skip.value.reason == "corrupt_file"
    assert file.bytes_read < 1_000_000
