"""Segments, search and neighbour lists against brute force: made at once, or piece by piece with replacements."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import duckdb
import numpy as np
import pytest

from indexer.atlas import schema_sql
from indexer.publish.neighbours import COLUMNS, nearest
from indexer.vectors.published import read_published
from indexer.vectors.search import VectorIndex
from indexer.vectors.segments import (
    GROWTH,
    OpenSegment,
    Vectors,
    blocks,
    joined,
    normalised,
    positions,
    to_merge,
    write_segment,
)
from indexer.vectors.table import VectorTable
from tests.atlas_builder import publish_vectors
from tests.halves import a_few


def unit_rows(count: int, length: int, seed: int = 0) -> Vectors:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(count, length)).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    ids = np.sort(rng.choice(10 * count, count, replace=False)).astype(np.int64) + 1
    return Vectors(ids, matrix)


def exact_rows(count: int, rng: np.random.Generator) -> np.ndarray:
    """Unit vectors (count, 16) whose cosines are exact multiples of 1/8 in any arithmetic: ties everywhere."""
    return rng.choice([-0.25, 0.25], size=(count, 16)).astype(np.float32)


def brute_force(vectors: Vectors, k: int) -> list[tuple[int, int, int]]:
    """(owner, rank, neighbour), owners in order of id."""
    found = []
    exact = vectors.matrix.astype(np.float64) @ vectors.matrix.astype(np.float64).T
    for row in np.argsort(vectors.ids):
        others = [(-round(float(exact[row, j]), 6), int(other)) for j, other in enumerate(vectors.ids) if j != row]
        found += [(int(vectors.ids[row]), rank, other) for rank, (_, other) in enumerate(sorted(others)[:k], start=1)]
    return found


def part(vectors: Vectors, chosen: slice | np.ndarray) -> Vectors:
    return Vectors(vectors.ids[chosen], vectors.matrix[chosen])


@pytest.mark.parametrize("columns", a_few([17, COLUMNS, 33], 2))
@pytest.mark.parametrize(("count", "k"), [(1, 5), (2, 5), (40, 7), (40, 50), (600, 20)])
def test_nearest_is_brute_force_over_several_segments_and_in_small_tiles(tmp_path, monkeypatch, count, k, columns):
    monkeypatch.setattr("indexer.publish.neighbours.COLUMNS", columns)
    monkeypatch.setattr("indexer.publish.neighbours.SLACK", 1)
    vectors = unit_rows(count, 16)
    vectors.matrix[:] = exact_rows(count, np.random.default_rng(count))
    vectors.matrix[: count // 2] = vectors.matrix[0]  # more ties: half of the models are the same
    segments = [
        OpenSegment(tmp_path, write_segment(tmp_path, "b", "input", part(vectors, slice(start, start + 250))))
        for start in reversed(range(0, count, 250))  # of models that tie the earlier id comes later
    ]
    found, entering = nearest(VectorIndex(segments, 16), [vectors], k)
    pairs, rank = found.ranked()
    assert list(zip(pairs.owner, rank, pairs.neighbour, strict=True)) == brute_force(vectors, k)
    assert len(entering.owner) == 0


def test_search_finds_what_numpy_finds_with_and_without_a_filter(tmp_path):
    vectors = unit_rows(300, 24, seed=2)
    index = VectorIndex([OpenSegment(tmp_path, write_segment(tmp_path, "owner/base", "input", vectors))], 24)
    np.testing.assert_array_equal(index.vectors().ids, vectors.ids)
    np.testing.assert_array_equal(index.vectors().matrix, vectors.matrix)
    query = normalised(np.random.default_rng(5).normal(size=24).astype(np.float32))
    for ids in (None, vectors.ids[::7]):
        keep = np.isin(vectors.ids, vectors.ids if ids is None else ids)
        similarity = vectors.matrix[keep] @ query
        expected = vectors.ids[keep][np.argsort(-similarity)][:10].tolist()
        assert [
            model_id for model_id, _ in index.search(VectorTable(query[None], index.masks.blocks), 10, ids)
        ] == expected
    assert index.search(VectorTable(query[None], index.masks.blocks), 10, []) == []
    assert len(index.search(VectorTable(query[None], index.masks.blocks), 1000)) == 300


def test_equal_similarities_come_in_order_of_id_even_at_the_cut(tmp_path):
    vectors = unit_rows(50, 8)
    vectors.matrix[:] = vectors.matrix[0]
    index = VectorIndex([OpenSegment(tmp_path, write_segment(tmp_path, "b", "input", vectors))], 8)
    assert [
        model_id for model_id, _ in index.search(VectorTable(vectors.matrix[0][None], index.masks.blocks), 5)
    ] == vectors.ids[:5].tolist()


def test_zero_and_broken_vectors_stay_out():
    assert normalised(np.zeros(4, np.float32)) is None
    assert normalised(np.array([1, np.nan], np.float32)) is None
    assert normalised(np.array([1, np.inf], np.float32)) is None
    np.testing.assert_allclose(normalised(np.array([3, 4], np.float32)), [0.6, 0.8], rtol=1e-6)


def test_a_mapped_vector_outlives_what_it_was_read_from(tmp_path):
    vectors = unit_rows(30, 8)
    rows = OpenSegment(tmp_path, write_segment(tmp_path, "b", "input", vectors)).stored.matrix
    (tmp_path / next(tmp_path.glob("*.faiss")).name).unlink()
    np.testing.assert_array_equal(rows, vectors.matrix)
    assert not rows.flags.writeable


def test_a_file_of_the_same_content_is_left_alone_and_a_damaged_one_replaced(tmp_path):
    vectors = unit_rows(30, 8)
    path = tmp_path / write_segment(tmp_path, "b", "input", vectors).file.name
    before = path.stat()
    write_segment(tmp_path, "b", "input", vectors)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    write_segment(tmp_path, "b", "input", vectors)
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_what_counts_of_a_file_is_copied_block_by_block(tmp_path, monkeypatch):
    """One withdrawn model is no reason to hold all others."""
    vectors = unit_rows(4000, 500)  # 8 MB
    segment = replace(write_segment(tmp_path, "b", "input", vectors), removed=vectors.ids[5:6])
    opened = OpenSegment(tmp_path, segment)
    monkeypatch.setattr("indexer.vectors.segments.BLOCK_BYTES", 1 << 18)
    tracemalloc.start()
    try:
        counting = opened.vectors()
        seen = sum(len(block) for block in blocks([counting]))
        assert tracemalloc.get_traced_memory()[1] < 2e6
    finally:
        tracemalloc.stop()
    assert seen == 3999
    whole = joined([counting], 500)
    np.testing.assert_array_equal(whole.ids, np.delete(vectors.ids, 5))
    np.testing.assert_array_equal(whole.matrix, np.delete(vectors.matrix, 5, axis=0))
    asked = vectors.ids[[3, 5, 77]]
    np.testing.assert_array_equal(counting.copied(positions(counting.ids, asked)), vectors.matrix[[3, 77]])


def test_a_list_asks_for_no_more_vectors_than_are_compared_at_a_time(tmp_path, monkeypatch):
    rng = np.random.default_rng(6)
    store, asked, rows = Store(tmp_path), [], VectorIndex.rows
    store.publish(draw(rng, list(range(1, 201))))
    monkeypatch.setattr("indexer.publish.neighbours.ROWS", 30)

    def noted(index, ids):
        asked.append(len(ids))
        return rows(index, ids)

    monkeypatch.setattr(VectorIndex, "rows", noted)
    store.publish(draw(rng, list(range(150, 230))), (3,))
    assert max(asked) <= 30
    assert sum(asked) >= 80
    assert store.lists() == brute_force(store.vectors(), 50)


def test_parts_join_in_order_of_id():
    vectors = unit_rows(40, 4, seed=3)
    shuffled = np.random.default_rng(0).permutation(40)
    whole = joined([part(vectors, np.sort(shuffled[:25])), part(vectors, np.sort(shuffled[25:]))], 4)
    np.testing.assert_array_equal(whole.ids, vectors.ids)
    np.testing.assert_array_equal(whole.matrix, vectors.matrix)
    assert joined([], 4).matrix.shape == (0, 4)


class Store:
    """An atlas's vectors and neighbours, and the same kept in a dict."""

    def __init__(self, root) -> None:
        self.root = root
        self.connection = duckdb.connect()
        self.connection.execute(schema_sql())
        self.truth: dict[int, np.ndarray] = {}

    def publish(self, added: dict[int, np.ndarray], withdrawn: tuple[int, ...] = (), **options) -> None:
        stale = {*withdrawn, *(set(added) & set(self.truth))}
        # All at once: one by one they would take most of the time of these tests.
        self.connection.execute(
            "INSERT INTO fine_tunes (model_id, model, base, author, status, relation, deleted_at_hub) "
            "SELECT id, 'a/' || id, 'b', 'a', 'indexed', 'finetune', false FROM (SELECT unnest(?::INTEGER[]) AS id) "
            "WHERE id NOT IN (SELECT model_id FROM fine_tunes)",
            [sorted(added)],
        )
        ids = sorted(added)
        matrix = np.stack([added[model_id] for model_id in ids]) if ids else np.zeros((0, 16), np.float32)
        publish_vectors(
            self.connection, self.root, "b", "input", Vectors(np.array(ids, dtype=np.int64), matrix),
            stale=tuple(stale), **options,
        )  # fmt: skip
        for model_id in withdrawn:
            self.truth.pop(model_id, None)
        self.truth.update(added)

    def vectors(self) -> Vectors:
        ids = sorted(self.truth)
        return Vectors(np.array(ids, dtype=np.int64), np.stack([self.truth[model_id] for model_id in ids]))

    def lists(self) -> list[tuple[int, int, int]]:
        return self.connection.execute(
            "SELECT model_id, rank, neighbour_id FROM neighbours ORDER BY model_id, rank"
        ).fetchall()

    def published(self):
        return read_published(self.connection, "b", "input")


def draw(rng: np.random.Generator, ids: list[int]) -> dict[int, np.ndarray]:
    return dict(zip(ids, exact_rows(len(ids), rng), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", a_few(range(4), 2))
def test_whatever_is_added_replaced_or_withdrawn_lists_are_those_of_brute_force(tmp_path, seed):
    rng = np.random.default_rng(seed)
    store = Store(tmp_path)
    store.publish(draw(rng, list(range(1, 121))))
    next_id = 121
    for _ in range(8):
        new = list(range(next_id, next_id + int(rng.integers(0, 12))))
        next_id += len(new)
        replaced = rng.choice(sorted(store.truth), 3, replace=False).tolist()
        withdrawn = tuple(set(rng.choice(sorted(store.truth), 4, replace=False).tolist()) - set(replaced))
        store.publish(draw(rng, [*new, *replaced]), withdrawn)
        expected = store.vectors()
        assert store.lists() == brute_force(expected, 50)
        index = store.published().opened(tmp_path)
        np.testing.assert_array_equal(index.ids, expected.ids)
        np.testing.assert_allclose(index.vectors().matrix, expected.matrix, atol=1e-7)
        query = next(iter(draw(rng, [0]).values()))
        order = np.lexsort((expected.ids, -np.round(expected.matrix @ query, 6)))
        assert [found for found, _ in index.search(VectorTable(query[None], index.masks.blocks), 10)] == expected.ids[
            order
        ][:10].tolist()
        assert store.published().count == len(expected)
        assert len(store.published().segments) <= 8


def test_lists_shorter_than_fifty_grow(tmp_path):
    rng = np.random.default_rng(0)
    store = Store(tmp_path)
    for model_id in range(1, 9):
        store.publish(draw(rng, [model_id]))
        assert store.lists() == brute_force(store.vectors(), 50)


def test_a_vector_that_comes_back_as_it_was_is_found_again(tmp_path):
    """Its new segment has the content, and so the name, of the one that holds it as removed."""
    rng = np.random.default_rng(1)
    store = Store(tmp_path)
    store.publish(draw(rng, list(range(1, 60))))
    lone = draw(rng, [77])
    store.publish(lone)
    store.publish({}, (77,))
    assert 77 not in store.published().opened(tmp_path).ids
    store.publish(lone)
    assert 77 in store.published().opened(tmp_path).ids
    store.publish(lone)  # another commit with the same weights
    assert store.published().opened(tmp_path).ids.tolist().count(77) == 1
    assert store.lists() == brute_force(store.vectors(), 50)


def test_old_lists_that_do_not_change_are_not_written_again(tmp_path):
    rng = np.random.default_rng(2)
    store = Store(tmp_path)
    store.publish(draw(rng, list(range(1, 400))))
    before = dict(store.connection.execute("SELECT model_id, max(rowid) FROM neighbours GROUP BY ALL").fetchall())
    store.publish(draw(rng, [400]))
    after = dict(store.connection.execute("SELECT model_id, max(rowid) FROM neighbours GROUP BY ALL").fetchall())
    rewritten = {model_id for model_id in before if after[model_id] != before[model_id]}
    naming = {owner for owner, _, neighbour in store.lists() if neighbour == 400}
    assert rewritten == naming
    assert len(naming) < 200


@pytest.mark.slow
def test_segments_stay_few_and_large_ones_are_seldom_written_again(tmp_path):
    rng = np.random.default_rng(3)
    store = Store(tmp_path)
    store.publish(draw(rng, list(range(1, 121))))
    first = store.published().segments[0].file.name
    for start in range(121, 141):
        store.publish(draw(rng, [start]), neighbours=False)
        assert len(store.published().segments) <= 5
    assert first in {one.file.name for one in store.published().segments}
    for start in range(141, 201, 5):
        store.publish(draw(rng, list(range(start, start + 5))), neighbours=False)
    assert first not in {one.file.name for one in store.published().segments}
    assert len(store.published().opened(tmp_path)) == 200


def test_merging_takes_the_newest_of_like_size(tmp_path):
    def sized(*counts: int):
        return [write_segment(tmp_path, "b", "input", unit_rows(count, 3, seed=count)) for count in counts]

    assert to_merge([]) == []
    assert to_merge(sized(100)) == []
    assert to_merge(sized(GROWTH * 10 + 1, 10)) == []
    assert to_merge(sized(GROWTH * 10, 10)) == [0, 1]
    assert to_merge(sized(1000, 30, 10)) == [1, 2]


def test_full_segments_are_passed_over_and_small_ones_behind_them_still_merge(tmp_path, monkeypatch):
    """As after a first publish of very many: all alike, and merged four by four."""
    segments = [write_segment(tmp_path, "b", "input", unit_rows(10, 3, seed=seed)) for seed in range(9)]
    monkeypatch.setattr("indexer.vectors.segments.MOST_BYTES", 4 * segments[0].bytes)
    assert to_merge(segments) == [5, 6, 7, 8]
    full = write_segment(tmp_path, "b", "input", unit_rows(40, 3, seed=99))
    assert to_merge([*segments[:5], full]) == [1, 2, 3, 4]
    assert to_merge([segments[0], full, full]) == []


def test_a_similarity_is_the_same_number_in_lists_and_searches_and_of_equal_vectors(tmp_path):
    """In products of any shape, in single precision, equal vectors would get different ones."""
    rng = np.random.default_rng(7)
    few = unit_rows(30, 300, seed=4).matrix
    vectors = Vectors(np.arange(1, 421, dtype=np.int64), few[rng.integers(0, 30, 420)])
    parts = [part(vectors, slice(start, start + 70)) for start in reversed(range(0, 420, 70))]
    segments = [OpenSegment(tmp_path, write_segment(tmp_path, "b", "input", one, centre="a")) for one in parts]
    index = VectorIndex(segments, 300)
    stored = index.vectors()
    for asked in (stored, part(stored, slice(0, 7)), part(stored, slice(3, 4))):
        pairs, _ = nearest(index, [asked], 25)[0].ranked()
        for place, owner in enumerate(asked.ids.tolist()):
            mine = slice(25 * place, 25 * place + 25)
            found = index.search(
                VectorTable(asked.matrix[place][None], index.masks.blocks), 25, np.setdiff1d(stored.ids, [owner])
            )
            assert found == list(zip(pairs.neighbour[mine].tolist(), pairs.similarity[mine].tolist(), strict=True))
    exact = stored.matrix[0].astype(np.float64) @ stored.matrix.T.astype(np.float64)
    expected = [int(stored.ids[row]) for row in np.lexsort((stored.ids, -exact.round(9))) if row][:25]
    assert nearest(index, [part(stored, slice(0, 1))], 25)[0].neighbour.tolist() == expected


def test_of_more_ties_than_a_search_asks_for_at_first_the_earliest_ids_are_found(tmp_path):
    vectors = unit_rows(2000, 24)
    vectors.matrix[:1500] = vectors.matrix[0]
    order = np.random.default_rng(3).permutation(2000)
    shuffled = Vectors(vectors.ids, vectors.matrix[order])
    index = VectorIndex([OpenSegment(tmp_path, write_segment(tmp_path, "b", "input", shuffled))], 24)
    equal = shuffled.ids[order < 1500]
    assert [found for found, _ in index.search(VectorTable(vectors.matrix[0][None], index.masks.blocks), 20)] == equal[
        :20
    ].tolist()
    allowed = equal[::-7]
    assert [
        found for found, _ in index.search(VectorTable(vectors.matrix[0][None], index.masks.blocks), 20, allowed)
    ] == sorted(allowed.tolist())[:20]
