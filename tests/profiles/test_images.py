"""Image files: what cannot be read as an image, or would take too much memory, is refused."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import pytest

from indexer.errors import AtlasError
from indexer.profiles.probes import ProbeChoice, images_sha256, read_image, read_images
from tests.profiles.test_loading import deadline


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header claims this size, without pixels."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"no image at all", "cannot be read as an image"),
        (b"", "cannot be read as an image"),
        (bomb(40_000, 25_000), "more than 67108864 pixels"),
        (bomb(9_600, 9_600), "more than 67108864 pixels"),
        (bomb(8_193, 8_193), "more than 67108864 pixels"),
        (bomb(8, 8), "cannot be read as an image"),
    ],
)
def test_invalid_images_are_refused(tmp_path, content, expected):
    path = tmp_path / "image.png"
    path.write_bytes(content)
    with pytest.raises(AtlasError, match=expected):
        read_image(path, (3, 16, 16))
    with pytest.raises(AtlasError, match="no file"):
        read_image(tmp_path / "missing.png", (3, 16, 16))


@pytest.fixture
def pipe(tmp_path) -> Path:
    """A FIFO without a writer: opening it as a file blocks for ever."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("path", ["pipe", "/dev/zero", "."])
def test_special_files_are_refused_without_waiting(pipe, monkeypatch, path):
    """Images and texts named by a user: a FIFO, an endless device, a folder."""
    monkeypatch.chdir(pipe.parent)
    path = Path(path)
    with deadline(10):
        for read in (
            lambda: read_image(path, (3, 16, 16)),
            lambda: images_sha256([path]),
            lambda: ProbeChoice(text=path).source,
        ):
            with pytest.raises(AtlasError, match=r"a pipe|a device|a folder"):
                read()


def test_a_sparse_image_file_is_not_read_whole(tmp_path):
    with (tmp_path / "image.png").open("wb") as file:
        file.truncate(1 << 40)
    for read in (lambda path: read_image(path, (3, 16, 16)), lambda path: images_sha256([path])):
        with pytest.raises(AtlasError, match="more than"):
            read(tmp_path / "image.png")


def test_an_image_of_one_colour_is_refused(tmp_path):
    from PIL import Image

    Image.new("RGB", (20, 20), (10, 200, 30)).save(tmp_path / "flat.png")
    with pytest.raises(AtlasError, match="one colour only"):
        read_images([tmp_path / "flat.png"], (3, 16, 16))
