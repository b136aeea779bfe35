"""Stored vectors, search and neighbour lists against brute force: made at once, or piece by piece with replacements."""

from __future__ import annotations

import tracemalloc

import duckdb
import numpy as np
import pytest

from indexer.atlas import schema_sql
from indexer.publish.neighbours import COLUMNS, nearest
from indexer.vectors.files import HALF, SINGLE
from indexer.vectors.published import read_published
from indexer.vectors.search import VectorIndex
from indexer.vectors.stored import OpenVectors, Vectors, blocks, normalised, write_vectors
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


def opened(root, vectors: Vectors, factory: str = SINGLE) -> VectorIndex:
    return VectorIndex(OpenVectors(root, write_vectors(root, "owner/base", "input", vectors, factory)))


def part(vectors: Vectors, chosen: slice | np.ndarray) -> Vectors:
    return Vectors(vectors.ids[chosen], vectors.matrix[chosen])


@pytest.mark.parametrize("columns", a_few([17, COLUMNS, 33], 2))
@pytest.mark.parametrize(("count", "k"), [(1, 5), (2, 5), (40, 7), (40, 50), (600, 20)])
def test_nearest_is_brute_force_in_small_tiles(tmp_path, monkeypatch, count, k, columns):
    monkeypatch.setattr("indexer.publish.neighbours.COLUMNS", columns)
    monkeypatch.setattr("indexer.publish.neighbours.SLACK", 1)
    vectors = unit_rows(count, 16)
    vectors.matrix[:] = exact_rows(count, np.random.default_rng(count))
    vectors.matrix[: count // 2] = vectors.matrix[0]  # more ties: half of the models are the same
    found, entering = nearest(opened(tmp_path, vectors), [vectors], k)
    pairs, rank = found.ranked()
    assert list(zip(pairs.owner, rank, pairs.neighbour, strict=True)) == brute_force(vectors, k)
    assert len(entering.owner) == 0


def test_search_finds_what_numpy_finds_with_and_without_a_filter(tmp_path):
    vectors = unit_rows(300, 24, seed=2)
    index = opened(tmp_path, vectors)
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
    index = opened(tmp_path, vectors)
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
    rows = opened(tmp_path, vectors).opened.vectors.matrix
    (tmp_path / next(tmp_path.glob("*.faiss")).name).unlink()
    np.testing.assert_array_equal(rows, vectors.matrix)
    assert not rows.flags.writeable


def test_a_file_of_the_same_content_is_left_alone_and_a_damaged_one_replaced(tmp_path):
    vectors = unit_rows(30, 8)
    path = tmp_path / write_vectors(tmp_path, "b", "input", vectors).name
    before = path.stat()
    write_vectors(tmp_path, "b", "input", vectors)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    write_vectors(tmp_path, "b", "input", vectors)
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("factory", [SINGLE, HALF])
def test_a_file_is_what_faiss_would_write(tmp_path, factory):
    import faiss

    vectors = unit_rows(1500, 24)
    vectors.matrix[:, :3] = (1 + np.arange(4500).reshape(1500, 3)) / 2**13  # many halfway between two of 16 bits
    path = tmp_path / write_vectors(tmp_path, "b", "input", vectors, factory).name
    index = faiss.index_factory(24, "IDMap,SQfp16" if factory == HALF else "IDMap,Flat", faiss.METRIC_INNER_PRODUCT)
    index.add_with_ids(vectors.matrix, vectors.ids)
    faiss.write_index(index, str(tmp_path / "faiss"))
    assert path.read_bytes() == (tmp_path / "faiss").read_bytes()


def test_a_file_may_hold_no_vectors(tmp_path):
    none = Vectors(np.zeros(0, np.int64), np.zeros((0, 5), np.float32))
    index = opened(tmp_path, none)
    assert len(index) == 0
    assert index.search(VectorTable(np.ones((1, 5), np.float32)), 3) == []
    assert index.vectors().matrix.shape == (0, 5)


def test_a_file_that_changes_a_little_is_written_block_by_block(tmp_path, monkeypatch):
    """Memory does not grow with the vectors that stay."""
    vectors = unit_rows(4000, 500)  # 8 MB
    monkeypatch.setattr("indexer.vectors.stored.BLOCK_BYTES", 1 << 18)
    monkeypatch.setattr("indexer.publish.vectors._BYTES_AT_ONCE", 1 << 18)
    monkeypatch.setattr("indexer.storage.checksums._MOST_MEMORY", 1 << 16)
    with duckdb.connect() as connection:
        connection.execute(schema_sql())
        publish_vectors(connection, tmp_path, "b", "input", vectors, neighbours=False)
        more = Vectors(vectors.ids[5:7], vectors.matrix[[6, 5]])
        tracemalloc.start()
        try:
            index, added, removed = publish_vectors(
                connection, tmp_path, "b", "input", more, stale=(int(vectors.ids[9]),), neighbours=False
            )
            assert tracemalloc.get_traced_memory()[1] < 2e6
        finally:
            tracemalloc.stop()
    assert added.tolist() == more.ids.tolist()
    assert removed.tolist() == vectors.ids[[5, 6, 9]].tolist()
    expected = vectors.matrix.copy()
    expected[5:7] = expected[[6, 5]]
    np.testing.assert_array_equal(index.ids, np.delete(vectors.ids, 9))
    found = np.concatenate([block.matrix for block in blocks(index.opened.vectors)])
    np.testing.assert_allclose(found, np.delete(expected, 9, axis=0), atol=1e-7)


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


def test_lists_shorter_than_fifty_grow(tmp_path):
    rng = np.random.default_rng(0)
    store = Store(tmp_path)
    for model_id in range(1, 9):
        store.publish(draw(rng, [model_id]))
        assert store.lists() == brute_force(store.vectors(), 50)


def test_a_vector_that_comes_back_as_it_was_is_found_again(tmp_path):
    """Its new file has the content, and so the name, of one before."""
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


def test_a_similarity_is_the_same_number_in_lists_and_searches_and_of_equal_vectors(tmp_path):
    """In products of any shape, in single precision, equal vectors would get different ones."""
    rng = np.random.default_rng(7)
    few = unit_rows(30, 300, seed=4).matrix
    vectors = Vectors(np.arange(1, 421, dtype=np.int64), few[rng.integers(0, 30, 420)])
    index = opened(tmp_path, vectors, HALF)
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
    index = opened(tmp_path, shuffled)
    equal = shuffled.ids[order < 1500]
    assert [found for found, _ in index.search(VectorTable(vectors.matrix[0][None], index.masks.blocks), 20)] == equal[
        :20
    ].tolist()
    allowed = equal[::-7]
    assert [
        found for found, _ in index.search(VectorTable(vectors.matrix[0][None], index.masks.blocks), 20, allowed)
    ] == sorted(allowed.tolist())[:20]
