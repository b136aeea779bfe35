"""FAISS files of a foreign atlas, with valid checksums: no file reaches FAISS that would crash it."""

from __future__ import annotations

import os

import faiss
import numpy as np
import pytest

from indexer.errors import AtlasError
from indexer.storage.checksums import file_sha256
from indexer.vectors.files import HALF, SINGLE, MalformedIndex, VectorFile, check_file, check_format, open_index
from tests.conftest import run_python

LENGTH, COUNT = 32, 200
KINDS = [SINGLE, HALF]
FACTORIES = {SINGLE: "Flat", HALF: "SQfp16"}


def written(path, factory):
    draws = np.random.default_rng(0).normal(size=(700, LENGTH)).astype(np.float32)
    draws /= np.linalg.norm(draws, axis=1, keepdims=True)
    index = faiss.index_factory(LENGTH, FACTORIES.get(factory, factory), faiss.METRIC_INNER_PRODUCT)
    index.train(draws)
    index = faiss.IndexIDMap(index)
    index.add_with_ids(draws[:COUNT], np.arange(COUNT) + 10)
    faiss.write_index(index, str(path))
    return path


@pytest.mark.parametrize("factory", KINDS)
def test_every_index_that_can_be_built_is_understood_to_its_last_byte(tmp_path, factory):
    path = written(tmp_path / "a.faiss", factory)
    check_format(path, factory, COUNT, LENGTH)
    for count, length in ((COUNT + 1, LENGTH), (COUNT, LENGTH + 8)):
        with pytest.raises(MalformedIndex):
            check_format(path, factory, count, length)
    content = path.read_bytes()
    for other in (content[:-1], content + b"\0", b""):
        path.write_bytes(other)
        with pytest.raises(MalformedIndex):
            check_format(path, factory, COUNT, LENGTH)


FUZZ = """
import sys
from pathlib import Path
import faiss, numpy as np
from indexer.vectors.files import MalformedIndex, check_format
path, factory, count, length = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
content = path.read_bytes()
random = np.random.default_rng(1)
query = np.ones((1, length), dtype=np.float32)
refused = searched = raised = 0
for turn in range(120):
    changed = bytearray(content)
    ends = (random.integers(0, 400), random.integers(len(content) - 400, len(content)), random.integers(0, len(content)))
    at = int(np.clip(ends[turn % 3], 0, len(content) - 8))
    if turn % 2:
        changed[at] ^= 1 << int(random.integers(8))
    else:
        value = (0, 1, -1, 2**31 - 1, 2**62, -(2**63), count + 1, 255)[int(random.integers(8))]
        changed[at : at + 8] = value.to_bytes(8, "little", signed=True)
    path.write_bytes(bytes(changed))
    try:
        check_format(path, factory, count, length)
    except MalformedIndex:
        refused += 1
        continue
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        index.search(query, 20)
        searched += 1
    except RuntimeError:
        raised += 1
print(refused, searched, raised)
"""


@pytest.mark.parametrize("factory", KINDS)
def test_no_altered_file_crashes_faiss(tmp_path, factory):
    path = written(tmp_path / "a.faiss", factory)
    process = run_python("-c", FUZZ, path, factory, COUNT, LENGTH)
    assert process.code == 0, process.err[-500:]
    refused, searched, _ = map(int, process.out.split())
    assert refused > 10
    assert searched > 0, "bent codes and numbers are still an index"


@pytest.mark.parametrize("name", ["../a.faiss", "/etc/passwd", "a/../a.faiss", "a.faiss\0", "..", "", "lock"])
def test_a_name_stays_in_the_folder(tmp_path, name):
    written(tmp_path / "a.faiss", SINGLE)
    with pytest.raises(AtlasError, match="as a FAISS file"):
        check_file(tmp_path, VectorFile(name, "0" * 64, 1, COUNT, LENGTH))


@pytest.mark.parametrize(
    "kind", ["Flat", "SQ8", "PCA16,SQ8", "IVF4,Flat", "IVF4,RaBitQ", "PQ8x4fs", "HNSW8", "RaBitQ", "RaBitQ2"]
)
def test_no_other_kind_of_index_is_read(tmp_path, kind):
    path = written(tmp_path / "a.faiss", kind)
    for factory in (kind, *KINDS):
        if FACTORIES.get(factory) != kind:
            with pytest.raises(MalformedIndex):
                check_format(path, factory, COUNT, LENGTH)


def test_a_file_of_another_kind_is_refused_though_everything_else_fits(tmp_path):
    path = written(tmp_path / "a.faiss", "RaBitQ")
    answer = VectorFile(path.name, file_sha256(path), path.stat().st_size, COUNT, LENGTH)
    with pytest.raises(AtlasError, match="does not match the database"):
        check_file(tmp_path, answer)
    link = tmp_path / "b.faiss"
    link.symlink_to(path)
    with pytest.raises(AtlasError, match="it is a link"):
        check_file(tmp_path, VectorFile(link.name, answer.sha256, answer.size, COUNT, LENGTH))


def hostile(path, kind):
    """A file that would crash FAISS, or that it would read as something else."""
    draws = np.random.default_rng(0).normal(size=(700, LENGTH)).astype(np.float32)
    if kind == "binary":
        index = faiss.IndexBinaryFlat(LENGTH * 8)
        index.add(np.ones((COUNT, LENGTH), np.uint8))
        faiss.write_index_binary(index, str(path))
    elif kind == "not trained":
        faiss.write_index(faiss.IndexIVFFlat(faiss.IndexFlatIP(LENGTH), LENGTH, 4), str(path))
    else:
        factory = {"cut lists": "IVF4,Flat", "links out of range": "HNSW8", "rotated": "OPQ8,PQ8x4"}.get(kind, "Flat")
        index = faiss.index_factory(LENGTH, factory, faiss.METRIC_INNER_PRODUCT)
        index.train(draws)
        index.add(draws[:COUNT])
        faiss.write_index(index, str(path))
        content = bytearray(path.read_bytes())
        if kind == "cut lists":
            del content[-2_000:]
        elif kind == "links out of range":
            content[-400:] = b"\xff\xff\xff\x7f" * 100
        elif kind == "huge numbers":
            content[4:16] = (2**31 - 1).to_bytes(4, "little") + (2**62).to_bytes(8, "little")
        path.write_bytes(content)


@pytest.mark.parametrize(
    "kind", ["binary", "not trained", "cut lists", "links out of range", "rotated", "huge numbers", "plain flat"]
)
def test_a_hostile_index_behind_a_right_checksum_gets_one_line(tmp_path, kind, monkeypatch):
    path = tmp_path / "a.faiss"
    hostile(path, kind)
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("FAISS must not see it"))
    for factory in KINDS:
        file = VectorFile(path.name, file_sha256(path), path.stat().st_size, COUNT, LENGTH, factory)
        with pytest.raises(AtlasError, match="does not match the database") as caught:
            open_index(tmp_path, file)
        assert "\n" not in str(caught.value)


def test_a_file_is_looked_at_each_time_though_its_checksum_is_remembered(tmp_path):
    """Whoever changes a file can set its times."""
    path = written(tmp_path / "a.faiss", SINGLE)
    status = path.stat()
    file = VectorFile(path.name, file_sha256(path), status.st_size, COUNT, LENGTH)
    check_file(tmp_path, file)
    with path.open("r+b") as opened:
        opened.seek(4)
        opened.write(b"\xff" * 12)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(AtlasError, match="does not match the database"):
        check_file(tmp_path, file)
