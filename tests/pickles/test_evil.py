"""Pickles that want more than a checkpoint needs."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.checkpoints.pickled import PickledName, read_pickle
from indexer.checkpoints.torch_files import read_torch_index
from indexer.errors import Skipped
from indexer.network.byterange import LocalFile
from tests.patience import PATIENCE
from tests.pickles.saved import check_against_torch, load, save, skipped, zip_with_pickle


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/weights-were-run",)


def evil_files(tmp_path: Path) -> dict[str, Path]:
    state = {"a": torch.ones(2), "b": Evil()}
    paths = {
        "zip": save(state, tmp_path / "zip.bin", True),
        "legacy": save(state, tmp_path / "old.bin", False),
    }
    for protocol in range(6):
        (tmp_path / f"{protocol}.bin").write_bytes(pickle.dumps(Evil(), protocol))
        paths[f"bare {protocol}"] = tmp_path / f"{protocol}.bin"
        paths[f"zip {protocol}"] = zip_with_pickle(tmp_path / f"z{protocol}.bin", pickle.dumps(Evil(), protocol))
    paths["inst"] = zip_with_pickle(tmp_path / "inst.bin", b"(S'true'\nios\nsystem\n.")
    return paths


def test_code_is_never_run_and_its_name_is_reported(tmp_path: Path) -> None:
    for form, path in evil_files(tmp_path).items():
        skip = skipped(path)
        assert skip.reason == "unsafe_pickle", form
        assert "system" in skip.detail, form
        assert path.name in skip.detail
    assert not Path("/tmp/weights-were-run").exists()


def test_whole_models_are_refused_by_name(tmp_path: Path) -> None:
    for zipped in (True, False):
        skip = skipped(save(torch.nn.Linear(2, 2), tmp_path / "a.bin", zipped))
        assert skip.reason == "unsafe_pickle"
        assert "torch.nn.modules.linear.Linear" in skip.detail


def test_names_in_messages_are_harmless(tmp_path: Path) -> None:
    path = zip_with_pickle(tmp_path / "a.bin", b"\x80\x02c\x1b[31mos\nsys\x07tem" + b"x" * 5000 + b"\n.")
    detail = skipped(path).detail
    assert detail.isprintable()
    assert len(detail) < 400


def test_what_torch_allows_is_allowed() -> None:
    from torch._weights_only_unpickler import _get_allowed_globals

    for name in _get_allowed_globals():
        module, _, attribute = name.rpartition(".")
        assert PickledName(module, attribute).is_allowed, name
    for module, attribute in (
        ("os", "system"),
        ("builtins", "eval"),
        ("torch", "load"),
        ("torch", "hub.load"),
        ("torch.hub", "load"),
        ("torch.storage", "_load_from_bytes"),
        ("numpy.core.multiarray", "fromfile"),
        ("numpy", "load"),
        ("numpy", "fromfile"),
        ("numpy.dtypes", "os"),
        ("numpy.ctypeslib", "scalar"),
        ("numpy.random._pickle", "__randomstate_ctor"),
        ("torch._utils", "os"),
        ("torch", "os"),
    ):
        assert not PickledName(module, attribute).is_allowed, (module, attribute)


def call_of(name: bytes, argument: bytes) -> bytes:
    return b"\x80\x02c" + name + b"\n" + argument + b"\x85R."


HUGE = (1 << 40).to_bytes(6, "little")
SMALL_BOMBS = {
    "bytearray": call_of(b"builtins\nbytearray", b"\x8a\x06" + HUGE),
    "storage": call_of(b"torch.storage\nUntypedStorage", b"\x8a\x06" + HUGE),
    "tensor": call_of(b"torch\nFloatTensor", b"\x8a\x06" + HUGE),
    "list": b"\x80\x02]q\x00" + b"(h\x00h\x00el" * 5 + b".",
    # A doubling that would make 2^60 elements, were it copied.
    "doubling": b"\x80\x02]q\x00" + b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(60)) + b".",
    "text8": b"\x80\x04\x8d" + (1 << 62).to_bytes(8, "little") + b"x",
    "text4": b"\x80\x02X\xff\xff\xff\xffx",
    "long": b"\x80\x02\x8b\xff\xff\xff\x7f\x00",
    "digits": b"I" + b"9" * 100_000 + b"\n.",
}


def test_small_pickles_do_not_make_large_things(tmp_path: Path) -> None:
    """In a separate process, whose largest size shows what was allocated."""
    for name, content in SMALL_BOMBS.items():
        zip_with_pickle(tmp_path / name, content)
        (tmp_path / f"{name}.old").write_bytes(
            pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2) + content
        )
    script = """
import resource, sys
from indexer.network.byterange import LocalFile
from indexer.checkpoints.torch_files import read_torch_index
from indexer.errors import Skipped
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    try:
        print(len(read_torch_index(LocalFile(path)).tensors))
    except Skipped as skip:
        print(skip.reason)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - idle)
"""
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    process = subprocess.run(
        [sys.executable, "-c", script, *paths], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    *outcomes, growth = process.stdout.split()
    assert len(outcomes) == 2 * len(SMALL_BOMBS)
    assert set(outcomes) <= {"0", "corrupt_file"}
    assert int(growth) < 20_000


def storage_pickle(elements: int, shape: str, stride: str, offset: int = 0) -> bytes:
    """A pickle in text that describes one float tensor in storage "0"."""
    return (
        b"(S'w'\nctorch._utils\n_rebuild_tensor_v2\n"
        b"((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\n"
        + f"L{elements}L\n".encode()
        + b"tQ"
        + f"L{offset}L\n({shape}t({stride}tI00\n".encode()
        + b"ccollections\nOrderedDict\n)RtRd."
    )


@pytest.mark.parametrize(
    ("elements", "shape", "stride", "offset", "data"),
    [
        (2_500_000_000_000, "L1000000L\nL2500000L\n", "L2500000L\nL1L\n", 0, b"x" * 64),  # 10 TB
        (16, "L4L\nL5L\n", "L5L\nL1L\n", 0, b"x" * 64),  # more than the storage holds
        (16, "L1000000L\nL1000000L\n", "L0L\nL0L\n", 0, b"x" * 64),  # one element, shown as 4 TB
        (16, "L4L\nL4L\n", "L4L\nL1L\n", 1, b"x" * 64),
        (16, "L4L\nL4L\n", "L4L\nL1L\n", 9223372036854775807, b"x" * 64),
        (16, "L-4L\nL-4L\n", "L4L\nL1L\n", 0, b"x" * 64),
        (16, "L4L\nL4L\n", "L-4L\nL1L\n", 0, b"x" * 64),
        (16, "L4L\nL4L\n", "L1L\n", 0, b"x" * 64),
        (16, "L4L\nL4L\n", "L4L\nL1L\n", -1, b"x" * 64),
        (16, "I01\nL4L\n", "L4L\nL1L\n", 0, b"x" * 64),  # True is not a size
        (16, "L1L\n" * 17, "L1L\n" * 17, 0, b"x" * 64),
        (16, "L4L\nL4L\n", "L4L\nL1L\n", 0, b"x" * 60),
        (16, "L4L\nL4L\n", "L4L\nL1L\n", 0, b"x" * 68),
    ],
)
def test_tensors_that_cannot_be_are_corrupt(
    tmp_path: Path, elements: int, shape: str, stride: str, offset: int, data: bytes
) -> None:
    content = storage_pickle(elements, shape, stride, offset)
    skip = skipped(zip_with_pickle(tmp_path / "a.bin", content, {"data/0": data}))
    assert skip.reason == "corrupt_file"


def test_the_hostile_tensors_differ_from_an_honest_one(tmp_path: Path) -> None:
    data = struct.pack("<16f", *range(16))
    path = zip_with_pickle(tmp_path / "a.bin", storage_pickle(16, "L4L\nL4L\n", "L4L\nL1L\n"), {"data/0": data})
    check_against_torch(path, {"w": torch.arange(16.0).view(4, 4)})


def test_too_many_instructions_end_in_time(tmp_path: Path) -> None:
    path = zip_with_pickle(tmp_path / "a.bin", b"\x80\x02" + b"]0" * 7_000_000 + b"N.")
    assert skipped(path).reason == "corrupt_file"


def test_calls_nested_in_calls_are_followed_to_any_depth(tmp_path: Path) -> None:
    nested = b"(h\x00N" * 5000 + b")" + b"Nt" * 5000
    content = b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\nq\x00" + nested + b"R."
    assert not read_torch_index(LocalFile(zip_with_pickle(tmp_path / "a.bin", content))).tensors


def test_a_pickle_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = zip_with_pickle(tmp_path / "a.bin", b"\x80\x02" + b"N0" * 9_000_000 + b"N.")
    file = LocalFile(path)
    with pytest.raises(Skipped) as skip:
        read_torch_index(file)
    assert skip.value.reason == "corrupt_file"
    assert file.bytes_read < 200_000


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_pickle_or_skipped(content: bytes) -> None:
    for prefix in (b"", b"\x80\x02", b"\x80\x02}(X\x01\x00\x00\x00w"):
        reason = "corrupt_file"
        try:
            read_pickle(io.BytesIO(prefix + content), "a.bin")
        except Skipped as skip:
            reason = skip.reason
        assert reason in ("corrupt_file", "unsafe_pickle")


@given(position=st.integers(0, 10**6), value=st.integers(0, 255), zipped=st.booleans())
@settings(max_examples=300, deadline=None)
def test_flipped_bytes_never_escape(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int, zipped: bool
) -> None:
    """A file altered anywhere is read (the data may differ) or skipped; nothing else can happen."""
    folder = tmp_path_factory.getbasetemp()
    path = folder / f"flip-{zipped}.bin"
    if not path.exists():
        save({"a": torch.randn(6, 5), "b": torch.randn(3)}, path, zipped)
    content = bytearray(path.read_bytes())
    content[position % len(content)] = value
    altered = folder / "altered.bin"
    altered.write_bytes(content)
    file = LocalFile(altered)
    reason = "corrupt_file"
    try:
        index = read_torch_index(file)
        for name in index.tensors:
            load(altered, index, file, name)
    except Skipped as skip:
        reason = skip.reason
    assert reason in ("corrupt_file", "unsafe_pickle", "unreadable_format")
