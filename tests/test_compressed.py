"""Compressed indexes: candidates of every type, a recall that a brute force confirms, wrong strings, bounded memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from indexer.errors import AtlasError
from indexer.vectors import compressed as room
from indexer.vectors.candidates import CompressedSearch
from indexer.vectors.compressed import Compressed, compress, extend
from indexer.vectors.factories import UNDERSTOOD, auto_factories, is_understood, read_factory
from indexer.vectors.files import open_index, write_index
from indexer.vectors.segments import Vectors
from tests.halves import a_few

LENGTH, BLOCK = 240, 24

FACTORIES = [
    "Flat",
    "SQ8",
    "SQ4",
    "PCA64,SQbf16",
    "IVF16,SQ6",
    "PCA64,IVF16,SQ8",
    "PCA64,RR,PQ32x4fs",
    "PQ24x4",
    "PCA64,RR,RaBitQfs",
    "RR,IVF16,RaBitQ2",
    "HNSW16",
    "PCA64,HNSW16_SQ8",
]


def world(count: int, seed: int = 0, alone: float = 0.4) -> np.ndarray:
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


MATRIX = world(3000)
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


@pytest.mark.parametrize("factory", ["SQ8", "PCA16,IVF32,SQ4", "PCA64,RR,RaBitQ", "HNSW4"])
def test_the_recall_is_what_a_brute_force_finds(factory, monkeypatch):
    monkeypatch.setattr(room, "QUERIES", 10_000)
    monkeypatch.setattr(room, "CANDIDATES", (15,))
    parts = [Vectors(IDS[:500], MATRIX[:500]), Vectors(IDS[500:1300], MATRIX[500:1300])]
    made = compress(parts, factory, promised=0.9)
    assert made.queries == made.index.ntotal == 1300
    CompressedSearch(made.index, made.parameters)
    assert made.recall == pytest.approx(brute_recall(made.index, IDS[:1300], MATRIX[:1300], 15), abs=1e-3)


def test_a_sampled_recall_is_near_that_of_all_models(monkeypatch):
    monkeypatch.setattr(room, "CANDIDATES", (15,))
    sampled = compress(OLD, "PCA16,SQ8", promised=0.9)
    assert sampled.queries == room.QUERIES
    assert sampled.recall == pytest.approx(brute_recall(sampled.index, IDS[:2700], MATRIX[:2700], 15), abs=0.06)
    assert sampled.recall < 0.95


@pytest.mark.parametrize("factory", a_few(FACTORIES, 4))
def test_every_type_proposes_after_adding_extending_and_adding_again(factory, tmp_path):
    made = compress(OLD, factory, promised=0.95)
    assert made.recall >= 0.95, made
    check_candidates(made, range(0, 2700, 270))

    file = write_index(tmp_path, "org/base", "input", made.index, factory)
    assert read_factory(factory, LENGTH).bytes(2700) == pytest.approx(file.size, rel=0.05)
    mapped = CompressedSearch(open_index(tmp_path, file), made.parameters)
    here = CompressedSearch(made.index, made.parameters)
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
    search = CompressedSearch(made.index, made.parameters)
    for row in rows:
        proposed = search.candidates(MATRIX[row], 50)
        assert proposed.dtype == np.int64
        assert len(set(proposed.tolist())) == len(proposed) <= 50
        assert len(proposed) >= 20
        assert set(proposed.tolist()) <= set(IDS.tolist())
        assert IDS[row] in proposed[:10]


def test_candidates_come_nearest_first():
    """Codes that lose nothing give the brute force's own order."""
    search = CompressedSearch(compress(OLD, "Flat", 0.95).index, "")
    for row in (0, 999, 2699):
        order = np.argsort(-(MATRIX[:2700] @ MATRIX[row]), kind="stable")[:30]
        assert search.candidates(MATRIX[row], 30).tolist() == IDS[order].tolist()


def test_more_candidates_than_there_are_is_all_of_them():
    few = [Vectors(IDS[:40], MATRIX[:40])]
    made = compress(few, "SQ8", 0.9)
    search = CompressedSearch(made.index, made.parameters)
    assert sorted(search.candidates(MATRIX[0], 1000).tolist()) == IDS[:40].tolist()
    assert search.candidates(MATRIX[0], 0).tolist() == []

    lists = compress(OLD, "IVF16,SQ8", 0.0)
    assert lists.parameters == "nprobe=1"
    one_list = CompressedSearch(lists.index, lists.parameters).candidates(MATRIX[0], 2700)
    assert len(set(one_list.tolist())) == 2700
    assert -1 not in one_list


@pytest.mark.slow
def test_the_search_is_as_thorough_as_the_promise_asks():
    by_promise = [compress(OLD, "PCA64,IVF32,SQ8", promised) for promised in (0.0, 0.7, 0.95, 1.1)]
    visited = [int(made.parameters.removeprefix("nprobe=")) for made in by_promise]
    assert visited == sorted(visited)
    assert visited[0] == 1
    assert visited[-1] == 32
    assert 1 < visited[2] < 32
    for made, promised in zip(by_promise[:3], (0.0, 0.7, 0.95), strict=True):
        assert made.recall >= promised
    assert all(low.recall < high.recall for low, high in pairwise([by_promise[0], by_promise[2]]))


def test_of_the_ways_that_keep_the_promise_the_one_that_reads_least_is_taken(monkeypatch):
    """Codes as large as vectors make lists dear, and a few bytes make candidates dear: each time all ways are tried."""
    monkeypatch.setattr(room, "CANDIDATES", (15, 60))
    taken = []
    for factory in ("IVF32,SQ8", "PCA16,IVF32,SQ4"):
        made = compress(OLD, factory, 0.85)
        asked = read_factory(factory, LENGTH)
        questions = room.ask(OLD, room.QUERIES, 0)
        ways = {}
        for lists in (1, 2, 4, 8, 16, 32):
            for candidates in (15, 60):
                search = CompressedSearch(made.index, f"nprobe={lists}")
                if room.recall(questions, search.candidates, candidates, OLD) >= 0.85:
                    read = asked.bytes_each * len(IDS[:2700]) * lists / 32 + 2 * LENGTH * candidates
                    ways[lists, candidates] = read
        way = int(made.parameters.removeprefix("nprobe=")), made.candidates
        assert way == min(ways, key=ways.__getitem__)
        taken.append(way)
    assert len({candidates for _, candidates in taken}) == 2, taken


def test_a_promise_that_cannot_be_kept_is_reported(monkeypatch):
    monkeypatch.setattr(room, "CANDIDATES", (15,))
    made = compress(OLD, "PCA4,IVF16,SQ4", promised=0.95)
    assert made.parameters == "nprobe=16"
    assert made.recall < 0.6


def test_an_extension_that_the_training_does_not_fit_is_measured(monkeypatch):
    """The new vectors lie where the old ones never were: the old directions cannot tell them apart."""
    monkeypatch.setattr(room, "CANDIDATES", (15,))
    random = np.random.default_rng(4)
    old, new = np.zeros((1000, LENGTH), np.float32), np.zeros((2000, LENGTH), np.float32)
    old[:, :40], new[:, 40:] = random.standard_normal((1000, 40)), random.standard_normal((2000, LENGTH - 40))
    old, new = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (old, new))
    first, second = [Vectors(IDS[:1000], old)], [Vectors(IDS[1000:], new)]
    made = compress(first, "PCA40,SQ8", 0.95)
    assert made.recall > 0.95
    assert extend(made, second, first + second, 0.95).recall < 0.5


def test_withdrawn_models_in_the_index_take_no_part_in_the_recall():
    made = compress(OLD, "SQ8", 0.95)
    left = [Vectors(IDS[:2700:2], MATRIX[:2700:2])]
    measured = extend(made, [], left, 0.95)
    assert measured.recall >= 0.99
    assert measured.index.ntotal == 2700


def test_equal_vectors_are_equally_good():
    """Forty copies of one model: any ten of the other copies are its ten nearest."""
    matrix = np.concatenate([MATRIX[:500], np.repeat(MATRIX[:1], 400, axis=0)])
    assert compress([Vectors(np.arange(900, dtype=np.int64), matrix)], "SQ8", 0.95).recall == pytest.approx(1.0)


@pytest.mark.slow
def test_one_seed_gives_one_index(tmp_path):
    contents = []
    for seed in (1, 1, 2):
        made = compress(OLD, "PCA64,IVF16,SQ8", 0.95, seed=seed)
        file = write_index(tmp_path, "org/base", "input", made.index)
        contents.append(((tmp_path / file.name).read_bytes(), made.parameters, made.recall))
    assert contents[0] == contents[1]
    assert contents[0][0] != contents[2][0]


def test_a_projection_keeps_inner_products_and_not_distances_from_a_mean():
    """The candidates of a narrow projection are those of the leading eigenvectors of the uncentred second moment."""
    made = compress([Vectors(IDS, MATRIX)], "PCA24,Flat", 0.0)
    directions = np.linalg.eigh(MATRIX.T.astype(np.float64) @ MATRIX)[1][:, -24:]
    narrow = MATRIX @ directions
    search = CompressedSearch(made.index, "")
    for row in range(0, 3000, 500):
        expected = IDS[np.argsort(-(narrow @ narrow[row]))[:100]]
        assert len(np.intersect1d(search.candidates(MATRIX[row], 100), expected)) >= 97


WRONG = [
    "", " ", "garbage", "IVF0,Flat", "IVF-5,Flat", "IVF999999999,Flat", "IVF99999,Flat", "IVF99999999999999999999,Flat",
    "IVF16", "IVF16,", ",Flat", "Flat,", "Flat ", "Flat\n", "flat", "IDMap,Flat", "IDMap2,SQ8", "RFlat", "Flat,RFlat",
    "SQ8,Refine(Flat)", "PQ7", "PQ0", "PQ24x0", "PQ24x64", "PQ24x24", "PQ99999999999999999", "IVF16,PQ57x4fs", "PQ241",
    "HNSW0", "HNSW1", "HNSW99999999", "HNSW32,PQ4", "PCA0,SQ8", "PCA240,SQ8", "PCA4096,SQ8", "PCA٣,SQ8", "SQ99",
    "PCA99999999999999999999,Flat", "PCA32,PCA16,SQ8", "OPQ16,PQ16", "RR32,RaBitQ", "RaBitQ99", "IVF16(Flat),SQ8",
    "LSH", "NSG", "Flat;rm -rf", "SQ8'; DROP TABLE models", "\x1b[31mSQ8", "PQ24x12", "A" * 5000, "IVF16,\0SQ8",
]  # fmt: skip


@pytest.mark.parametrize("factory", WRONG)
def test_a_wrong_string_is_one_clear_line(factory):
    with pytest.raises(AtlasError) as caught:
        compress(OLD, factory, 0.9)
    line = str(caught.value)
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(line) < 500
    assert "/faiss/" not in line


@pytest.mark.parametrize("code", ["PQ24x4", "PQ24x6", "PQ24x10", "PQ24x12", "RaBitQ2", "RaBitQ9", "RaBitQfs", "SQ6"])
def test_what_is_understood_is_named(code):
    assert is_understood(code)
    assert re.sub("^PQ24", "PQm", code) in re.split("[,; ]+", UNDERSTOOD)


def test_too_few_vectors_or_too_little_memory_is_said_with_figures():
    with pytest.raises(AtlasError, match=r"IVF100,SQ8 needs at least 3,900 vectors .* there are 2,700"):
        compress(OLD, "IVF100,SQ8", 0.9)
    with pytest.raises(AtlasError, match=r"PCA64,SQ8 needs at least 64 vectors .* there are 40"):
        compress([Vectors(IDS[:40], MATRIX[:40])], "PCA64,SQ8", 0.9)
    with pytest.raises(AtlasError, match=r"Flat takes [\d,]+ bytes for 2,700 vectors; 1,000,000 are allowed"):
        compress(OLD, "Flat", 0.9, memory=1_000_000)
    with pytest.raises(AtlasError, match="no vectors"):
        compress([Vectors(IDS[:0], MATRIX[:0])], "SQ8", 0.9)


def test_what_faiss_throws_becomes_one_line(monkeypatch):
    import faiss

    def refuse(*_arguments):
        raise RuntimeError("Error in void f() at /project/faiss/x.cpp:64: Error: '!(d % M == 0)' failed: Too odd\nhere")

    monkeypatch.setattr(faiss, "index_factory", refuse)
    with pytest.raises(AtlasError, match=r"^FAISS cannot build the index SQ8: Too odd here"):
        compress(OLD, "SQ8", 0.9)


def test_auto_names_what_fits_and_can_be_trained():
    million = auto_factories(1_000_000, 4104, 1 << 30)
    assert million
    assert all(read_factory(one, 4104).bytes(1_000_000) <= 1 << 30 for one in million)
    assert set(auto_factories(1_000_000, 4104, 200 << 20)) < set(million)
    assert auto_factories(1_000_000, 4104, 10 << 20) == []
    assert auto_factories(0, 4104, 1 << 30) == []
    for count, length in ((30, 57), (700, 240), (2700, LENGTH), (10**7, 768)):
        for one in auto_factories(count, length, 1 << 32):
            assert read_factory(one, length).bytes(count) <= 1 << 32
    more = [auto_factories(count, 4104, 1 << 30) for count in (10**5, 10**6, 10**7, 10**8)]
    assert all(len(after) <= len(before) for before, after in pairwise(more))


def test_the_first_that_auto_names_keeps_the_usual_promise():
    made = compress(OLD, auto_factories(2700, LENGTH, 1 << 30)[0], 0.95)
    assert made.recall >= 0.95


LIMITED = """
import resource, sys
import faiss
import numpy as np
import sklearn.utils.extmath
from indexer.vectors import compressed, segments
from indexer.vectors.factories import UNDERSTOOD, is_understood, read_factory
from indexer.vectors.segments import Vectors

segments.BLOCK_BYTES, compressed.SAMPLE, compressed.QUERIES = 4 << 20, 2000, 32
matrix = np.load(sys.argv[1], mmap_mode="r")
compressed.compress([Vectors(np.arange(800), matrix[:800])], sys.argv[2], 0.5)
data = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) << 10
limit = data + int(sys.argv[3])
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
            [sys.executable, "-c", LIMITED, str(path), "PCA32,RR,PQ16x4fs", str(bytes_allowed)],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )

    done = run(40 << 20)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("25000 ")
    assert run(1 << 20).returncode != 0


def test_auto_asks_for_no_more_lists_than_can_be_trained_in_the_memory_of_a_sample():
    for count in (10**6, 4 * 10**6):
        for text in auto_factories(count, 4104, 1 << 40):
            asked = read_factory(text, 4104)
            assert 4 * asked.kept * room.POINTS_PER_CENTROID * asked.lists <= room.SAMPLE_BYTES, text
