"""Compressed indexes: candidates of every type, a recall that a brute force confirms, wrong strings, bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from indexer.builds.options import index_change
from indexer.errors import AtlasError
from indexer.vectors import compressed as compressed_module
from indexer.vectors.choice import COMPRESSED, INDEXES, check_index
from indexer.vectors.compressed import Compressed, CompressedSearch, compress, extend, index_bytes
from indexer.vectors.files import open_index, write_index
from indexer.vectors.segments import Vectors

LENGTH, BLOCK = 240, 24


def mixed_vectors(count: int, seed: int = 0, alone: float = 0.4) -> np.ndarray:
    """Unit vectors of blocks of equal norm: a common direction, groups, decaying noise; a share belongs to no group."""
    random = np.random.default_rng(seed)
    fixed = np.random.default_rng(99)
    spectrum = 1 / np.sqrt(np.arange(1, LENGTH + 1))
    turn = np.linalg.qr(fixed.standard_normal((LENGTH, LENGTH)))[0]
    common = fixed.standard_normal(LENGTH)
    common *= 2 / np.linalg.norm(common)
    centres = fixed.standard_normal((40, LENGTH)) * spectrum
    group, strength = random.integers(0, 40, count), random.uniform(0.4, 0.9, (count, 1))
    strength[random.random(count) < alone] = 0
    noise = random.standard_normal((count, LENGTH)) * spectrum
    vectors = common + (np.sqrt(strength) * centres[group] + np.sqrt(1 - strength) * noise) @ turn
    blocks = vectors.reshape(count, -1, BLOCK)
    vectors = (blocks / np.linalg.norm(blocks, axis=2, keepdims=True)).reshape(count, LENGTH)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


MATRIX = mixed_vectors(3000)
IDS = np.arange(3000, dtype=np.int64) * 3 + 7
OLD = [Vectors(IDS[:1500], MATRIX[:1500]), Vectors(IDS[1500:2700], MATRIX[1500:2700])]
NEW = [Vectors(IDS[2700:], MATRIX[2700:])]


def brute_recall(index, ids: np.ndarray, matrix: np.ndarray, candidates: int) -> float:
    """Recall@10 with every model asking, from plain FAISS results and full products in double precision."""
    exact = matrix.astype(np.float64) @ matrix.T.astype(np.float64)
    np.fill_diagonal(exact, -2)
    _, proposed = index.search(matrix, candidates + 1)
    shares = []
    for row, own in enumerate(ids):
        best = set(ids[np.argsort(-exact[row])[:10]].tolist())
        others = [one for one in dict.fromkeys(proposed[row].tolist()) if one not in (own, -1)]
        shares.append(len(best & set(others[:candidates])) / 10)
    return float(np.mean(shares))


@pytest.mark.parametrize("factory", COMPRESSED)
def test_the_recall_is_what_a_brute_force_finds(factory, monkeypatch):
    monkeypatch.setattr(compressed_module, "QUERIES", 10_000)
    monkeypatch.setattr(compressed_module, "CANDIDATES", (15,))
    parts = [Vectors(IDS[:500], MATRIX[:500]), Vectors(IDS[500:1300], MATRIX[500:1300])]
    made = compress(parts, factory, promised=0.9)
    assert made.queries == made.index.ntotal == 1300
    assert made.recall == pytest.approx(brute_recall(made.index, IDS[:1300], MATRIX[:1300], 15), abs=1e-3)


def test_a_sampled_recall_is_near_that_of_all_models(monkeypatch):
    monkeypatch.setattr(compressed_module, "CANDIDATES", (15,))
    sampled = compress(OLD, "RaBitQ", promised=0.9)
    assert sampled.queries == compressed_module.QUERIES
    assert sampled.recall == pytest.approx(brute_recall(sampled.index, IDS[:2700], MATRIX[:2700], 15), abs=0.06)
    assert sampled.recall < 0.95


@pytest.mark.parametrize("factory", COMPRESSED)
def test_it_proposes_after_adding_extending_and_adding_again(factory, tmp_path):
    made = compress(OLD, factory, promised=0.95)
    assert made.recall >= 0.96
    check_candidates(made, range(0, 2700, 270))

    file = write_index(tmp_path, "org/base", "input", made.index, factory)
    assert index_bytes(factory, LENGTH, 2700) == pytest.approx(file.size, rel=0.05)
    mapped = CompressedSearch(open_index(tmp_path, file))
    here = CompressedSearch(made.index)
    for row in range(0, 2700, 300):
        assert mapped.candidates(MATRIX[row], 60).tolist() == here.candidates(MATRIX[row], 60).tolist()

    loaded = replace(made, index=open_index(tmp_path, file, is_mapped=False))
    grown = extend(loaded, NEW, [*OLD, *NEW], promised=0.95)
    assert (grown.index.ntotal, grown.factory) == (3000, factory)
    assert grown.recall >= 0.95
    check_candidates(grown, range(2700, 3000, 30))

    again = extend(grown, [OLD[0]], [*OLD, *NEW], promised=0.95)
    assert again.index.ntotal == 4500
    check_candidates(again, range(0, 3000, 300))


def check_candidates(made: Compressed, rows: range) -> None:
    search = CompressedSearch(made.index)
    for row in rows:
        proposed = search.candidates(MATRIX[row], 50)
        assert proposed.dtype == np.int64
        assert len(set(proposed.tolist())) == len(proposed) <= 50
        assert len(proposed) >= 20
        assert set(proposed.tolist()) <= set(IDS.tolist())
        assert IDS[row] in proposed[:10]


def test_more_candidates_than_there_are_is_all_of_them():
    made = compress([Vectors(IDS[:40], MATRIX[:40])], "RaBitQ", 0.9)
    search = CompressedSearch(made.index)
    assert sorted(search.candidates(MATRIX[0], 1000).tolist()) == IDS[:40].tolist()
    assert search.candidates(MATRIX[0], 0).tolist() == []


def test_it_proposes_as_few_candidates_as_keep_the_promise(monkeypatch):
    monkeypatch.setattr(compressed_module, "CANDIDATES", (15, 60, 400))
    by_promise = [compress(OLD, "RaBitQ", promised) for promised in (0.0, 0.9, 1.1)]
    assert [made.candidates for made in by_promise] == [15, 60, 400]
    assert by_promise[0].recall < by_promise[1].recall < by_promise[2].recall
    assert by_promise[1].recall >= 0.9
    # What was published proposes no fewer after an extension.
    assert extend(by_promise[1], NEW, [*OLD, *NEW], promised=0.0).candidates == 60


def test_two_bits_find_more_than_one(monkeypatch):
    monkeypatch.setattr(compressed_module, "CANDIDATES", (15,))
    one, two = (compress(OLD, factory, 0.95).recall for factory in COMPRESSED)
    assert one + 0.05 < two


def test_an_extension_is_measured_over_all_vectors(monkeypatch):
    """The new vectors lie in other directions than those that the index was trained on."""
    monkeypatch.setattr(compressed_module, "CANDIDATES", (15,))
    monkeypatch.setattr(compressed_module, "QUERIES", 10_000)
    random = np.random.default_rng(4)
    old, new = np.zeros((600, LENGTH), np.float32), np.zeros((900, LENGTH), np.float32)
    old[:, :40], new[:, 40:] = random.standard_normal((600, 40)), random.standard_normal((900, LENGTH - 40))
    old, new = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (old, new))
    first, second = [Vectors(IDS[:600], old)], [Vectors(IDS[600:1500], new)]
    grown = extend(compress(first, "RaBitQ", 0.95), second, first + second, 0.95)
    assert grown.recall == pytest.approx(
        brute_recall(grown.index, IDS[:1500], np.concatenate([old, new]), 15), abs=1e-3
    )


def test_withdrawn_models_in_the_index_take_no_part_in_the_recall():
    made = compress(OLD, "RaBitQ2", 0.95)
    left = [Vectors(IDS[:2700:2], MATRIX[:2700:2])]
    measured = extend(made, [], left, 0.95)
    assert measured.recall >= 0.97
    assert measured.index.ntotal == 2700


def test_equal_vectors_are_equally_good():
    """Of 400 copies of one model, any ten of the others are its ten nearest."""
    matrix = np.concatenate([MATRIX[:500], np.repeat(MATRIX[:1], 400, axis=0)])
    assert compress([Vectors(np.arange(900, dtype=np.int64), matrix)], "RaBitQ2", 0.95).recall >= 0.97


@pytest.mark.slow
def test_one_seed_gives_one_index(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed_module, "SAMPLE", 1000)
    contents = []
    for seed in (1, 1, 2):
        made = compress(OLD, "RaBitQ", 0.95, seed=seed)
        file = write_index(tmp_path, "org/base", "input", made.index)
        contents.append(((tmp_path / file.name).read_bytes(), made.candidates, made.recall))
    assert contents[0] == contents[1]
    assert contents[0][0] != contents[2][0]


WRONG = [
    "", " ", "garbage", "Flat", "SQ8", "PCA256,IVF256,SQ8", "IVF0,Flat", "PQ24x0", "HNSW0", "RaBitQ3", "RaBitQ99",
    "RaBitQfs", "RaBitQ ", "RaBitQ\n", "rabitq", "RaBitQ,RaBitQ", "IDMap,RaBitQ", "SQ8'; DROP TABLE models",
    "\x1b[31mRaBitQ", "A" * 5000, "RaBitQ\0",
]  # fmt: skip


@pytest.mark.parametrize("factory", WRONG)
def test_an_unknown_index_is_one_clear_line_that_names_those_there_are(factory):
    for refused in (lambda: check_index(factory), lambda: index_change(index=factory)):
        with pytest.raises(AtlasError) as caught:
            refused()
        line = str(caught.value)
        assert "\n" not in line
        assert "\x1b" not in line
        assert len(line) < 300
        assert all(name in line for name in INDEXES)


def test_too_few_vectors_or_too_little_memory_is_reported_with_figures():
    with pytest.raises(AtlasError, match=r"needs at least 2 vectors; there are 1"):
        compress([Vectors(IDS[:1], MATRIX[:1])], "RaBitQ", 0.9)
    with pytest.raises(AtlasError, match=r"RaBitQ takes 124,200 bytes for 2,700 vectors; 100,000 are allowed"):
        compress(OLD, "RaBitQ", 0.9, memory=100_000)
    with pytest.raises(AtlasError, match="needs at least 2 vectors; there are 0"):
        compress([Vectors(IDS[:0], MATRIX[:0])], "RaBitQ", 0.9)


def test_what_faiss_throws_becomes_one_line(monkeypatch):
    import faiss

    def refuse(*_arguments):
        raise RuntimeError("Error in void f() at /project/faiss/x.cpp:64: Error: '!(d % M == 0)' failed: Too odd\nhere")

    monkeypatch.setattr(faiss, "index_factory", refuse)
    with pytest.raises(AtlasError, match=r"^FAISS cannot build the index RaBitQ: Too odd here"):
        compress(OLD, "RaBitQ", 0.9)


LIMITED = """
import resource, sys, threading
import faiss
import numpy as np
from indexer.vectors import compressed, segments
from indexer.vectors.segments import Vectors

segments.BLOCK_BYTES, compressed.SAMPLE, compressed.QUERIES = 4 << 20, 2000, 32
matrix = np.load(sys.argv[1], mmap_mode="r")
compressed.compress([Vectors(np.arange(800), matrix[:800])], sys.argv[2], 0.5)
data = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) << 10
limit = data + int(sys.argv[3])
threading.stack_size(1 << 20)  # how many threads begin is a matter of timing
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
made = compressed.compress([Vectors(np.arange(len(matrix)), matrix)], sys.argv[2], 0.5)
print(made.index.ntotal, made.recall)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits as Linux keeps them")
def test_memory_does_not_grow_with_the_matrix(tmp_path):
    """100 MB of vectors, 40 MB of memory to allocate: a copy of the matrix or of the sample's rows would not fit."""
    path = tmp_path / "matrix.npy"
    matrix = np.lib.format.open_memmap(path, "w+", "float32", (25_000, 1000))
    random = np.random.default_rng(0)
    for start in range(0, len(matrix), 5000):
        matrix[start : start + 5000] = random.standard_normal((5000, 1000), dtype=np.float32) / 1000**0.5
    matrix.flush()

    def run(bytes_allowed: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", LIMITED, str(path), "RaBitQ", str(bytes_allowed)],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )

    done = run(40 << 20)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("25000 ")
    assert run(1 << 20).returncode != 0
