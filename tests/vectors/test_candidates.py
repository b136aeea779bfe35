"""What a compressed index proposes where some models lack blocks: the nearest by the blocks that both have."""

from __future__ import annotations

import faiss
import numpy as np
import pytest

from indexer.vectors.choice import COMPRESSED
from indexer.vectors.compressed import CompressedSearch, compress, draw_questions, recall
from indexer.vectors.masks import Masks
from indexer.vectors.segments import Vectors, id_selector

BLOCKS, EACH = 12, 20
COUNT, LACKING = 3000, 600
KINDS = [np.r_[np.ones(4), np.zeros(8)].astype(bool), np.r_[np.zeros(6), np.ones(6)].astype(bool)]


def unrelated_models(common: float = 0.0) -> tuple[np.ndarray, Masks]:
    """Every fifth with few blocks: by chance these are nearer to many, but their products are smaller.

    ``common``: the cosine's root of what models have in common with nineteen others.
    """
    random = np.random.default_rng(3)
    blocks = np.sqrt(1 - common**2) * random.normal(size=(COUNT, BLOCKS, EACH))
    blocks += common * random.normal(size=(COUNT // 20, BLOCKS, EACH))[np.arange(COUNT) % (COUNT // 20)]
    blocks /= np.linalg.norm(blocks, axis=2, keepdims=True)
    members: dict[bytes, list[int]] = {}
    for row in range(0, COUNT, COUNT // LACKING):
        kind = KINDS[row % 2]
        blocks[row, ~kind] = 0
        members.setdefault(kind.astype(np.uint8).tobytes(), []).append(row)
    return blocks.reshape(COUNT, -1).astype(np.float32), Masks.of(BLOCKS, members)


@pytest.fixture(scope="module")
def planted() -> tuple[np.ndarray, Masks]:
    return unrelated_models()


def likeness(matrix: np.ndarray, asked: int) -> np.ndarray:
    """By a loop over blocks."""
    found = np.zeros(len(matrix))
    shared = np.zeros(len(matrix))
    for block in matrix.reshape(len(matrix), BLOCKS, EACH).transpose(1, 0, 2).astype(np.float64):
        if block[asked].any():
            found += block @ block[asked]
            shared += block.any(axis=1)
    return found / np.maximum(shared, 4)


@pytest.mark.parametrize("asked", [1, 0, 5])  # one with all blocks, one of each kind that lacks some
def test_the_nearest_are_proposed_whatever_they_lack(planted, asked):
    matrix, masks = planted
    exact = faiss.IndexIDMap(faiss.IndexFlatIP(matrix.shape[1]))
    exact.add_with_ids(matrix, np.arange(COUNT))
    search = CompressedSearch(exact, masks=masks)
    nearest = np.argsort(-likeness(matrix, asked))[:30]
    lacking = set(range(0, COUNT, COUNT // LACKING))
    assert asked != 1 or len(lacking & set(nearest.tolist())) > 15, "those that lack blocks are the nearer ones"
    for count in (100, 400):
        proposed = search.candidates(matrix[asked], count)
        assert len(proposed) == len(set(proposed.tolist())) == count
        assert set(nearest.tolist()) <= set(proposed.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("factory", COMPRESSED)
def test_their_recall_is_measured_and_kept(planted, factory):
    matrix, masks = planted
    parts = [Vectors(np.arange(COUNT), matrix)]
    made = compress(parts, factory, 0.95, masks=masks)
    assert made.recall >= 0.95
    search = CompressedSearch(made.index, masks=masks)
    assert recall(draw_questions(parts, 200, 1, masks), search.candidates, made.candidates, parts, masks) >= 0.93


@pytest.mark.parametrize("ids", [np.arange(0, 90, 3), np.array([5]), np.array([7, 2_000_000_011])])
def test_a_selector_takes_no_more_memory_than_its_ids(ids):
    """Ids of a foreign atlas may be any numbers."""
    selector = id_selector(ids)
    numbers = [*ids.tolist(), 1, 4, 8, 91, 1_999_999_999]
    assert [selector.is_member(number) for number in numbers] == [number in ids for number in numbers]
    if isinstance(selector, faiss.IDSelectorBitmap):
        assert selector.n <= 8 * len(ids)


def test_those_that_lack_blocks_do_not_push_out_the_others():
    """Divided by fewer blocks, the error of a code is larger: ranked by that alone, unrelated models would come first."""
    matrix, masks = unrelated_models(common=0.5)
    parts = [Vectors(np.arange(COUNT), matrix)]
    made = compress(parts, "RaBitQ", 0.1, masks=masks)
    search = CompressedSearch(made.index, masks=masks)
    lacking = np.arange(0, COUNT, COUNT // LACKING)
    index = made.index

    def by_likeness_alone(query: np.ndarray, count: int) -> np.ndarray:
        chosen = [id_selector(lacking), faiss.IDSelectorNot(id_selector(lacking))]
        found = [index.search(query[None], count, params=faiss.SearchParameters(sel=one)) for one in chosen]
        ids = np.concatenate([one[1][0] for one in found])
        likely = np.concatenate([one[0][0] for one in found]) / masks.divisors(query[None], ids)[0]
        return ids[np.argsort(-likely)[:count]]

    asked = draw_questions(parts, 300, 1, masks)
    for count in (100, 200):
        found = recall(asked, search.candidates, count, parts, masks)
        assert found > recall(asked, by_likeness_alone, count, parts, masks) + 0.01


@pytest.mark.parametrize("lacking", ["no model", "a range of ids", "everywhere"])
def test_codes_that_several_threads_compare_propose_the_same(planted, monkeypatch, lacking):
    """Ids are far apart and not in the order of the codes; those that lack blocks are in one stretch of ids, or in all."""
    matrix, _ = planted
    lacks = np.arange(COUNT) % (COUNT // LACKING) == 0
    order = np.argsort(~lacks, kind="stable") if lacking == "a range of ids" else np.arange(COUNT)
    ids = 7 * np.arange(COUNT)
    members: dict[bytes, list[int]] = {}
    for row, one in zip(order[lacks[order]].tolist(), ids[lacks[order]].tolist(), strict=True):
        members.setdefault(KINDS[row % 2].astype(np.uint8).tobytes(), []).append(one)
    masks = Masks.none() if lacking == "no model" else Masks.of(BLOCKS, members)
    places = np.random.default_rng(5).permutation(COUNT)
    made = compress([Vectors(ids[places], matrix[order][places])], "RaBitQ", 0.1, masks=masks)
    monkeypatch.setattr("indexer.vectors.compressed.CODES_A_THREAD", 1000)
    monkeypatch.setattr("indexer.vectors.compressed.processors", lambda: 1)
    alone = CompressedSearch(made.index, masks=masks)
    monkeypatch.setattr("indexer.vectors.compressed.processors", lambda: 3)
    several = CompressedSearch(made.index, masks=masks)
    assert len(several._ranges) == 3
    for asked in (0, 1, 5):
        for count in (40, 700):
            assert several.candidates(matrix[asked], count).tolist() == alone.candidates(matrix[asked], count).tolist()
