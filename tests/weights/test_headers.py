"""safetensors headers that lie, and how reads are joined into runs."""

from __future__ import annotations

import itertools
import random
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from indexer.checkpoints.safetensors_header import ITEM_BYTES
from indexer.checkpoints.stored_tensor import DTYPES, GAP_SHARE, plan_runs, read_safetensors
from indexer.errors import Skipped
from indexer.network.byterange import LocalFile
from tests.weights.folders import write_safetensors


def test_sizes_of_dtypes_are_those_of_torch():
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == ITEM_BYTES


@pytest.mark.parametrize(
    ("entries", "data", "word"),
    [
        ({"w": ("F32", [2, 2], 0, 16)}, 15, "1 of its"),
        ({"w": ("F32", [2, 2], 0, 16)}, 0, "16 of its"),
        ({"w": ("F32", [2, 2], 0, 16)}, 20, "belong to no tensor"),
        ({"w": ("F32", [2, 2], 0, 12)}, 12, "takes 16"),
        ({"w": ("F32", [2, 2], 16, 0)}, 16, "ends before"),
        ({"w": ("F32", [2, 2], -16, 0)}, 16, "offsets"),
        ({"w": ("F32", [2, -2], 0, 16)}, 16, "shape"),
        ({"w": ("F32", [True, 4], 0, 16)}, 16, "shape"),
        ({"w": ("F32", [2.0, 2], 0, 16)}, 16, "shape"),
        ({"w": ("F32", [1 << 40, 1 << 40], 0, 16)}, 16, "takes"),
        ({"w": ("F32", [1 << 63, 2], 0, 16)}, 16, "shape"),
        ({"w": ("F32", [1] * 17 + [4], 0, 16)}, 16, "shape"),
        ({"w": ("F32", [4], 0, 16), "v": ("F32", [4], 8, 24)}, 24, "over"),
        ({"w": ("F32", [4], 0, 16), "v": ("F32", [4], 0, 16)}, 16, "over"),
        ({"w": ("F32", [4], 0, 16), "v": ("F32", [4], 20, 36)}, 36, "leaves 4 bytes"),
        ({"w": ("F32", [4], 4, 20)}, 20, "leaves 4 bytes"),
        ({"w": (7, [4], 0, 16)}, 16, "dtype"),
        ({"__metadata__": ("F32", [4], 0, 16)}, 16, "metadata"),
    ],
)
def test_headers_that_lie(tmp_path: Path, entries: dict, data: int, word: str) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, entries, data)
    with pytest.raises(Skipped) as skip:
        read_safetensors(LocalFile(path))
    assert skip.value.reason == "corrupt_file"
    assert word in skip.value.detail
    assert "model.safetensors" in skip.value.detail


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x05",
        struct.pack("<Q", 1 << 63) + b"{}",
        struct.pack("<Q", 100) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"null",
        struct.pack("<Q", 3) + b"{}\xff",
        struct.pack("<Q", 100_000) + b"[" * 100_000,
        struct.pack("<Q", 13) + b'{"a":{},"a":{}}'[:13],
        struct.pack("<Q", 8) + b'{"w":[]}',
        struct.pack("<Q", 8) + b'{"w":{}}',
        struct.pack("<Q", 19) + b'{"__metadata__":[]}',
        b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 5\n",
        b"<!DOCTYPE html><html>",
    ],
)
def test_files_without_a_header(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(Skipped) as skip:
        read_safetensors(LocalFile(path))
    assert skip.value.reason == "corrupt_file"


def test_names_that_come_twice_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    again = ', "w": {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]}'
    write_safetensors(path, {"w": ("F32", [4], 0, 16)}, 32, again)
    with pytest.raises(Skipped, match="twice"):
        read_safetensors(LocalFile(path))


def test_a_header_larger_than_the_first_guess(tmp_path: Path) -> None:
    state = {f"a.rather.long.name.for.a.tensor.number.{i}": torch.full((2,), float(i)) for i in range(2000)}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt", "note": "x" * 5000})
    file = LocalFile(tmp_path / "model.safetensors")
    index = read_safetensors(file)
    assert index.metadata["format"] == "pt"
    for name in list(state)[::97]:
        assert torch.equal(index.read(name), state[name])


def test_a_huge_header_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 90_000_000) + b"{")
        file.truncate(200_000_000)
    source = LocalFile(path)
    with pytest.raises(Skipped) as skip:
        read_safetensors(source)
    assert skip.value.reason == "corrupt_file"
    assert source.bytes_read < 100_000


@given(position=st.integers(0, 10**6), value=st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_flipped_bytes_never_escape(tmp_path_factory: pytest.TempPathFactory, position: int, value: int) -> None:
    path = tmp_path_factory.getbasetemp() / "flip.safetensors"
    save_file({"a": torch.ones(3, 4), "b": torch.ones(2)}, path)
    content = bytearray(path.read_bytes())
    content[position % len(content)] = value
    path.write_bytes(content)
    file = LocalFile(path)
    reason = "corrupt_file"
    try:
        index = read_safetensors(file)
        for name in index.tensors:
            index.read(name)
    except Skipped as skip:
        reason = skip.reason
    assert reason in ("corrupt_file", "unreadable_dtype")


# Runs.


class Piece:
    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop


@given(
    st.lists(st.tuples(st.integers(1, 100_000), st.integers(0, 5_000)), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
)
@settings(max_examples=200, deadline=None)
def test_runs_cover_everything_and_waste_little(pairs: list[tuple[int, int]], chance: random.Random) -> None:
    pieces, position = [], 0
    for size, gap in pairs:
        pieces.append(Piece(position, position + size))
        position += size + gap
    shuffled = pieces[:]
    chance.shuffle(shuffled)
    runs = plan_runs(shuffled)  # type: ignore[arg-type]
    assert [piece for run in runs for piece in run] == pieces
    needed = sum(piece.stop - piece.start for piece in pieces)
    fetched = sum(run[-1].stop - run[0].start for run in runs)
    assert needed <= fetched <= needed * (1 + GAP_SHARE)
    # The smallest gap that was left must not have fitted any more, and neighbours are never parted.
    gaps = [after[0].start - before[-1].stop for before, after in itertools.pairwise(runs)]
    assert all(gap > 0 for gap in gaps)
    assert not gaps or fetched - needed + min(gaps) > needed * GAP_SHARE


def test_tensors_that_overlap_do_not_share_a_run() -> None:
    runs = plan_runs([Piece(0, 100), Piece(50, 150), Piece(150, 200), Piece(0, 100)])  # type: ignore[list-item]
    assert [[(piece.start, piece.stop) for piece in run] for run in runs] == [
        [(0, 100)],
        [(0, 100)],
        [(50, 150), (150, 200)],
    ]
