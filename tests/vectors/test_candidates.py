"""What a compressed index proposes where some models lack blocks: the nearest by the blocks that both have."""

from __future__ import annotations

import faiss
import numpy as np
import pytest

from indexer.vectors.candidates import CompressedSearch
from indexer.vectors.compressed import compress
from indexer.vectors.masks import Masks
from indexer.vectors.recall import ask, recall
from indexer.vectors.segments import Vectors, only

BLOCKS, EACH = 12, 20
COUNT, LACKING = 3000, 600
KINDS = [np.r_[np.ones(4), np.zeros(8)].astype(bool), np.r_[np.zeros(6), np.ones(6)].astype(bool)]


@pytest.fixture(scope="module")
def planted() -> tuple[np.ndarray, Masks]:
    """Strangers, every fifth with few blocks: by chance these are nearer to many, but their products are smaller."""
    random = np.random.default_rng(3)
    blocks = random.normal(size=(COUNT, BLOCKS, EACH))
    blocks /= np.linalg.norm(blocks, axis=2, keepdims=True)
    members: dict[bytes, list[int]] = {}
    for row in range(0, COUNT, COUNT // LACKING):
        kind = KINDS[row % 2]
        blocks[row, ~kind] = 0
        members.setdefault(kind.astype(np.uint8).tobytes(), []).append(row)
    return blocks.reshape(COUNT, -1).astype(np.float32), Masks.of(BLOCKS, members)


def likeness(matrix: np.ndarray, asked: int) -> np.ndarray:
    """By a loop over blocks."""
    found = np.zeros(len(matrix))
    shared = np.zeros(len(matrix))
    for block in matrix.reshape(len(matrix), BLOCKS, EACH).transpose(1, 0, 2).astype(np.float64):
        if block[asked].any():
            found += block @ block[asked]
            shared += block.any(axis=1)
    return found / np.maximum(shared, 4)


@pytest.mark.parametrize("factory", ["IVF16,Flat", "Flat", "PCA239,SQfp16"])
@pytest.mark.parametrize("asked", [1, 0, 5])  # one with all blocks, one of each kind that lacks some
def test_the_nearest_are_proposed_whatever_they_lack(planted, asked, factory):
    matrix, masks = planted
    made = compress([Vectors(np.arange(COUNT), matrix)], factory, 1.0, masks=masks)
    near = likeness(matrix, asked)
    nearest = np.argsort(-near)[:30]
    lacking = set(range(0, COUNT, COUNT // LACKING))
    assert asked != 1 or len(lacking & set(nearest.tolist())) > 15, "those that lack blocks are the nearer ones"
    for count in (100, 400):
        thorough = "nprobe=16" if "IVF" in factory else ""
        proposed = CompressedSearch(made.index, thorough, masks=masks).candidates(matrix[asked], count)
        assert len(proposed) == len(set(proposed.tolist())) == count
        assert set(nearest.tolist()) <= set(proposed.tolist())


@pytest.mark.parametrize("factory", ["IVF16,SQ8", "IVF16,RaBitQ9", "PCA200,IVF16,SQ8"])
def test_their_recall_is_measured_and_kept(planted, factory):
    matrix, masks = planted
    parts = [Vectors(np.arange(COUNT), matrix)]
    made = compress(parts, factory, 0.95, masks=masks)
    assert made.recall >= 0.95
    search = CompressedSearch(made.index, made.parameters, masks=masks)
    assert recall(ask(parts, 200, 1, masks), search.candidates, made.candidates, parts, masks) >= 0.93


def test_models_that_the_index_does_not_know_are_not_waited_for(planted):
    """Of those that lack blocks half are in a segment of their own: few lists are visited all the same."""
    matrix, masks = planted
    known = np.arange(COUNT // 2)
    made = compress([Vectors(known, matrix[known])], "IVF16,Flat", 0.5, masks=masks)
    search = CompressedSearch(made.index, "nprobe=4", masks=masks)
    proposed = search.candidates(matrix[1], 60)
    assert len(proposed) == 60
    assert proposed.max() < COUNT // 2


@pytest.mark.parametrize("ids", [np.arange(0, 90, 3), np.array([5]), np.array([7, 2_000_000_011])])
def test_a_selector_takes_no_more_memory_than_its_ids(ids):
    """A stranger's ids may be any numbers."""
    selector = only(ids)
    numbers = [*ids.tolist(), 1, 4, 8, 91, 1_999_999_999]
    assert [selector.is_member(number) for number in numbers] == [number in ids for number in numbers]
    if isinstance(selector, faiss.IDSelectorBitmap):
        assert selector.n <= 8 * len(ids)


@pytest.mark.parametrize("factory", ["RaBitQ", "IVF4,RaBitQ", "PCA150,RaBitQ"])
def test_codes_of_one_bit_find_more_than_faiss_finds_in_them_by_itself(factory):
    random = np.random.default_rng(4)
    matrix = random.normal(size=(2000, 160)).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    index = compress([Vectors(np.arange(2000), matrix)], factory, 1.0).index
    asked = matrix[:400]
    nearest = np.argsort(-(asked @ matrix.T), axis=1)[:, 1:11]

    def found(proposed):
        return np.mean([len(set(near) & set(some[:60])) / 10 for near, some in zip(nearest, proposed, strict=True)])

    thorough = "nprobe=4" if "IVF" in factory else ""
    search = CompressedSearch(index, thorough)
    ours = found([search.candidates(one, 60).tolist() for one in asked])
    codes = faiss.downcast_index(index.index)
    codes = faiss.downcast_index(codes.index) if "PCA" in factory else codes
    codes.qb = 4
    assert found(index.search(asked, 60)[1].tolist()) + 0.005 < ours


@pytest.mark.parametrize("lack_some", [True, False])
def test_codes_that_several_threads_compare_propose_the_same(planted, monkeypatch, lack_some):
    """Ids are far apart, not in the order of the codes, and those that lack blocks are all in one stretch of them."""
    matrix, _ = planted
    lacking = np.arange(COUNT) % (COUNT // LACKING) == 0
    order = np.argsort(~lacking, kind="stable")
    ids = 7 * np.arange(COUNT)
    members: dict[bytes, list[int]] = {}
    for row, one in zip(order[:LACKING].tolist(), ids.tolist(), strict=False):
        members.setdefault(KINDS[row % 2].astype(np.uint8).tobytes(), []).append(one)
    masks = Masks.of(BLOCKS, members) if lack_some else Masks.none()
    places = np.random.default_rng(5).permutation(COUNT)
    made = compress([Vectors(ids[places], matrix[order][places])], "RaBitQ", 0.1, masks=masks)
    monkeypatch.setattr("indexer.vectors.candidates.CODES_A_THREAD", 1000)
    monkeypatch.setattr("indexer.vectors.candidates.processors", lambda: 1)
    alone = CompressedSearch(made.index, made.parameters, masks=masks)
    monkeypatch.setattr("indexer.vectors.candidates.processors", lambda: 3)
    several = CompressedSearch(made.index, made.parameters, masks=masks)
    assert len(several._stretches) == 3
    for asked in (0, 1, 5):
        for count in (40, 700):
            assert several.candidates(matrix[asked], count).tolist() == alone.candidates(matrix[asked], count).tolist()
