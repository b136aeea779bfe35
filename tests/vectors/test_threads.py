"""A search by several threads finds what one thread finds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from indexer.vectors import search
from indexer.vectors.masks import Masks, changed_blocks
from indexer.vectors.search import VectorIndex
from indexer.vectors.stored import OpenVectors, Vectors, write_vectors
from indexer.vectors.table import VectorTable
from tests.vectors.test_pairs import blocks_of

BLOCKS, LENGTH, COUNT = 6, 12, 400


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """The same vector many times, and vectors that lack blocks."""
    folder, vectors = tmp_path_factory.mktemp("threads"), blocks_of(3, COUNT).reshape(COUNT, -1).astype(np.float32)
    vectors[50:300:7] = vectors[50]
    ids = np.arange(5, 5 + 3 * COUNT, 3)
    kinds: dict[bytes, list[int]] = {}
    for model_id, mask in zip(ids.tolist(), changed_blocks(vectors, BLOCKS).astype(np.uint8), strict=True):
        kinds.setdefault(mask.tobytes(), []).append(model_id)
    masks = Masks.of(BLOCKS, kinds)
    opened = OpenVectors(folder, write_vectors(folder, "base", "input", Vectors(ids, vectors, BLOCKS)), masks)
    return VectorIndex(opened), ids, vectors


@pytest.mark.parametrize("part", [1 << 10, 4 << 10, 20 << 10], ids=["few vectors", "more", "two parts"])
@pytest.mark.parametrize("some", [None, slice(0, None, 3), slice(120, 121)], ids=["all", "a third", "one"])
def test_threads_find_what_one_thread_finds(index, monkeypatch, part, some):
    opened, ids, vectors = index
    allowed = None if some is None else ids[some]
    asked = [VectorTable(vectors[row : row + 1], BLOCKS) for row in (0, 50, 77)]
    alone = [opened.search(one, k, allowed) for one in asked for k in (1, 30, COUNT)]
    monkeypatch.setattr(search, "_BYTES_OF_THREAD", 1)
    monkeypatch.setattr(search, "_BYTES_OF_PART", part)
    monkeypatch.setattr(search, "processors", lambda: 4)
    assert [opened.search(one, k, allowed) for one in asked for k in (1, 30, COUNT)] == alone
    assert len(search._parts(opened.opened)) > 1


def test_every_id_is_in_one_part(index, monkeypatch):
    monkeypatch.setattr(search, "_BYTES_OF_PART", 1 << 10)
    opened, _, _ = index
    parts = search._parts(opened.opened)
    held = opened.ids
    assert sum(((first <= held) & (held < last)).sum() for first, last in parts) == len(held)
    assert all(one[1] == other[0] for one, other in pairwise(parts))
