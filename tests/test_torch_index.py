"""PyTorch's own files, both forms, against torch.load; and what strangers could put into them."""

from __future__ import annotations

import collections
import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.errors import Skipped
from indexer.formats.pickled import PickledName
from indexer.formats.state_pickle import read_pickle
from indexer.formats.stored_tensor import Buffers, TensorIndex
from indexer.formats.torch_index import read_torch_index
from indexer.network.byterange import LocalFile

FORMS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def save(value: Any, path: Path, zipped: bool) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


def load(path: Path, index: TensorIndex, file: LocalFile, name: str) -> torch.Tensor:
    stored = index.locate(name)
    run = file.run(stored.start, stored.stop)
    try:
        return stored.load(run, Buffers())
    finally:
        run.close()


def check_against_torch(path: Path, expected: dict[str, torch.Tensor]) -> None:
    """Every tensor as torch.load gives it: values, dtype, shape, stride, and memory that nobody shares."""
    file = LocalFile(path)
    index = read_torch_index(file)
    assert set(index.tensors) == set(expected)
    for name, tensor in expected.items():
        info = index.tensors[name]
        assert (info.dtype, info.shape) == (tensor.dtype, tuple(tensor.shape)), name
        assert info.nbytes == tensor.numel() * tensor.itemsize
        found = load(path, index, file, name)
        assert found.dtype == tensor.dtype
        assert found.stride() == tensor.stride()
        assert torch.equal(found, tensor), name
        again = load(path, index, file, name)
        assert not tensor.numel() or again.data_ptr() != found.data_ptr()


def skipped(path: Path) -> Skipped:
    with pytest.raises(Skipped) as skip:
        read_torch_index(LocalFile(path))
    return skip.value


def rich_state() -> dict[str, torch.Tensor]:
    """Tensors of every kind that state dicts hold."""
    torch.manual_seed(0)
    flat = torch.randn(1000)
    tied = torch.randn(30, 8)
    return {
        "plain.weight": torch.randn(64, 32),
        "half": torch.randn(5, 3).half(),
        "bfloat": torch.randn(7).bfloat16(),
        "double": torch.randn(3, 2, 2).double(),
        "scalar": torch.tensor(3.5),
        "ids": torch.arange(512).unsqueeze(0),
        "flag": torch.tensor([True, False]),
        "byte": torch.arange(5, dtype=torch.uint8),
        "empty": torch.empty(0, 4),
        "transposed": torch.randn(9, 7).t(),
        "column": torch.randn(20, 6)[:, 2],
        "flat.first": flat[:600].view(20, 30),
        "flat.rest": flat[600:],
        "tied.one": tied,
        "tied.two": tied,
        "parameter": torch.nn.Parameter(torch.randn(4, 4)),
        "bytes of \u00fc": torch.randn(2),
    }


@FORMS
def test_every_kind_of_tensor(tmp_path: Path, zipped: bool) -> None:
    state = rich_state()
    path = save(state, tmp_path / "a.bin", zipped)
    loaded = torch.load(path, weights_only=True)
    check_against_torch(path, {name: tensor.detach() for name, tensor in loaded.items()})
    assert read_torch_index(LocalFile(path)).format == ("torch-zip" if zipped else "torch-legacy")


@FORMS
def test_real_models(tmp_path: Path, zipped: bool) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64)
    state = BertModel(config).state_dict()
    assert isinstance(state, collections.OrderedDict)
    check_against_torch(save(state, tmp_path / "a.bin", zipped), dict(state))


@FORMS
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3, "optimizer": {"state": {0: {"step": torch.ones(2)}}}},
        lambda state: {"model": state, "args": {"lr": 1e-3}, "ema": {**state, "more": torch.ones(3)}},
        lambda state: {"checkpoint": {"module": state}, "history": [1.0, None, "x", (2, b"y")]},
        lambda state: {**state, "epoch": 3, "note": "text", "nested": {"a": torch.ones(5)}},
        lambda state: collections.OrderedDict(state),
    ],
    ids=["state_dict", "model", "deep", "flat", "ordered"],
)
def test_the_state_dict_is_found_where_it_is(tmp_path: Path, zipped: bool, wrap: Callable) -> None:
    state = {"a": torch.randn(3, 2), "b": torch.randn(4)}
    check_against_torch(save(wrap(state), tmp_path / "a.bin", zipped), state)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@FORMS
def test_other_pickle_protocols(tmp_path: Path, zipped: bool, protocol: int) -> None:
    state = {"a" * 300: torch.randn(3, 2), "b": torch.randn(4)}
    path = tmp_path / "a.bin"
    torch.save(state, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    check_against_torch(path, state)


@FORMS
def test_only_what_is_needed_is_read(tmp_path: Path, zipped: bool) -> None:
    state = {f"layer.{layer}.weight": torch.randn(256, 256) for layer in range(40)}
    path = save(state, tmp_path / "a.bin", zipped)
    file = LocalFile(path)
    index = read_torch_index(file)
    assert file.size > 10_000_000
    assert file.bytes_read < 150_000
    before = file.bytes_read
    load(path, index, file, "layer.7.weight")
    assert file.bytes_read - before < 256 * 256 * 4 + 300


@FORMS
def test_a_small_view_of_a_large_storage_costs_little(tmp_path: Path, zipped: bool) -> None:
    flat = torch.randn(2_000_000)
    state = {"head": flat[:10], "middle": flat[1_000_000:1_000_100].view(10, 10)}
    path = save(state, tmp_path / "a.bin", zipped)
    file = LocalFile(path)
    index = read_torch_index(file)
    before = file.bytes_read
    assert torch.equal(load(path, index, file, "middle"), state["middle"])
    assert file.bytes_read - before < 1000


@given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=5),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_arbitrary_views(shapes: list[list[int]], data: st.DataObject) -> None:
    import tempfile

    state = {}
    base = torch.arange(2000, dtype=torch.float32)
    for number, shape in enumerate(shapes):
        count = 1
        for size in shape:
            count *= size
        offset = data.draw(st.integers(0, 100))
        step = data.draw(st.integers(1, 2))
        tensor = base[offset : offset + count * step : step].view(shape) if count else torch.empty(shape)
        order = data.draw(st.permutations(range(len(shape))))
        state[str(number)] = tensor.permute(order) if shape else tensor
    with tempfile.TemporaryDirectory() as folder:
        for zipped in (True, False):
            check_against_torch(save(state, Path(folder) / "a.bin", zipped), state)


def test_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    paths = []
    for number in range(6):
        torch.manual_seed(number)
        state = {f"{number}.{i}": torch.randn(20, 20) for i in range(30)}
        paths.append((save(state, tmp_path / f"{number}.bin", number % 2 == 0), state))
    problems: list[BaseException] = []

    def check(path: Path, state: dict[str, torch.Tensor]) -> None:
        try:
            for _ in range(5):
                check_against_torch(path, state)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=check, args=each) for each in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


# Pickles that want more than a checkpoint needs.


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/weights-were-run",)


def zip_with_pickle(path: Path, content: bytes, more: dict[str, bytes] | None = None) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        for name, entry in (more or {}).items():
            archive.writestr(f"archive/{name}", entry)
        archive.writestr("archive/version", "3\n")
    return path


def evil_files(tmp_path: Path) -> dict[str, Path]:
    state = {"a": torch.ones(2), "b": Evil()}
    found = {
        "zip": save(state, tmp_path / "zip.bin", True),
        "legacy": save(state, tmp_path / "old.bin", False),
    }
    for protocol in range(6):
        (tmp_path / f"{protocol}.bin").write_bytes(pickle.dumps(Evil(), protocol))
        found[f"bare {protocol}"] = tmp_path / f"{protocol}.bin"
        found[f"zip {protocol}"] = zip_with_pickle(tmp_path / f"z{protocol}.bin", pickle.dumps(Evil(), protocol))
    found["inst"] = zip_with_pickle(tmp_path / "inst.bin", b"(S'true'\nios\nsystem\n.")
    return found


def test_code_is_never_run_and_its_name_is_told(tmp_path: Path) -> None:
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
        ("numpy.core.multiarray", "_reconstruct"),
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
    """In a process of its own, whose largest size tells what was allocated."""
    for name, content in SMALL_BOMBS.items():
        zip_with_pickle(tmp_path / name, content)
        (tmp_path / f"{name}.old").write_bytes(
            pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2) + content
        )
    script = """
import resource, sys
from indexer.network.byterange import LocalFile
from indexer.formats.torch_index import read_torch_index
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
    done = subprocess.run(
        [sys.executable, "-c", script, *paths], capture_output=True, text=True, check=True, timeout=60
    )
    *outcomes, growth = done.stdout.split()
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
        (16, "I01\nL4L\n", "L4L\nL1L\n", 0, b"x" * 64),  # True is no size
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
    started = time.monotonic()
    assert skipped(path).reason == "corrupt_file"
    assert time.monotonic() - started < 20


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


# Archives that are not what they say.


@FORMS
@pytest.mark.parametrize("kept", [0, 1, 10, 100, 1000, 3000, -1000, -1])
def test_truncated_files_are_corrupt(tmp_path: Path, zipped: bool, kept: int) -> None:
    path = save({"a": torch.randn(30, 30), "b": torch.randn(9)}, tmp_path / "a.bin", zipped)
    path.write_bytes(path.read_bytes()[:kept])
    skip = skipped(path)
    assert skip.reason == "corrupt_file"


def test_a_truncated_legacy_file_tells_how_much_is_missing(tmp_path: Path) -> None:
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
        places = {info.filename: info.header_offset for info in archive.infolist()}
    content = path.read_bytes()
    first, second = (next(v for k, v in places.items() if k.endswith(f"data/{n}")) for n in "01")
    directory = content.index(b"PK\x01\x02")
    tail = content[directory:].replace(struct.pack("<I", second), struct.pack("<I", first))
    path.write_bytes(content[:directory] + tail)
    assert skipped(path).reason == "corrupt_file"


def test_a_local_header_that_disagrees_is_noticed(tmp_path: Path) -> None:
    path = save({"a": torch.zeros(50), "b": torch.ones(50)}, tmp_path / "a.bin", True)
    with zipfile.ZipFile(path) as archive:
        place = next(info.header_offset for info in archive.infolist() if info.filename.endswith("data/1"))
    content = bytearray(path.read_bytes())
    content[place + 28 : place + 30] = b"\xff\xff"
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
    place = content.index(struct.pack("<q", 50) + struct.pack("<f", 3.0))
    content[place : place + 8] = struct.pack("<q", 49)
    path.write_bytes(content)
    file = LocalFile(path)
    index = read_torch_index(file)
    with pytest.raises(Skipped) as skip:
        load(path, index, file, "a")
    assert skip.value.reason == "corrupt_file"


def test_big_endian_files_are_told(tmp_path: Path) -> None:
    path = zip_with_pickle(tmp_path / "a.bin", b"\x80\x02}.", {"byteorder": b"big"})
    assert skipped(path).reason == "unreadable_format"


def test_torchscript_is_told(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("data.pkl", "code/__torch__.py", "constants.pkl", "version"):
            archive.writestr(f"archive/{name}", b"\x80\x02}." * 50)
    skip = skipped(tmp_path / "a.bin")
    assert skip.reason == "unreadable_format"
    assert "TorchScript" in skip.detail


def test_tar_files_are_told(tmp_path: Path) -> None:
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
def test_what_is_no_checkpoint_is_corrupt(tmp_path: Path, content: bytes, word: str) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    skip = skipped(tmp_path / "a.bin")
    assert skip.reason == "corrupt_file"
    assert word in skip.detail


def test_a_zip_that_is_no_checkpoint(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.bin", "w") as archive:
        archive.writestr("hello.txt", "hello")
    assert "data.pkl" in skipped(tmp_path / "a.bin").detail


def test_a_directory_of_a_million_entries_is_not_read(tmp_path: Path) -> None:
    """Its size alone is refused: 46 bytes an entry on disk become 500 in memory."""
    path = zip_with_pickle(tmp_path / "a.bin", b"\x80\x02}.")
    content = path.read_bytes()
    start = content.index(b"PK\x01\x02")
    end = content.index(b"PK\x05\x06")
    one = content[start : start + 46 + 16]
    directory = one * 400_000
    record = bytearray(content[end:])
    record[8:12] = b"\xff\xff\xff\xff"
    record[12:16] = struct.pack("<I", len(directory))
    path.write_bytes(content[:start] + directory + bytes(record))
    file = LocalFile(path)
    with pytest.raises(Skipped) as skip:
        read_torch_index(file)
    assert skip.value.reason == "corrupt_file"
    assert file.bytes_read < 1_000_000
