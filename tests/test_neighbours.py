"""Neighbours and duplicates against brute force."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from indexer.publishing.duplicates import Upload, find_duplicates, same_deltas
from indexer.publishing.neighbours import nearest
from indexer.vectors import Vectors, normalised, open_index, read_vectors, search, write_vectors
from tests.test_record import make_record


def unit_rows(count: int, length: int, seed: int = 0) -> Vectors:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(count, length)).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    ids = np.sort(rng.choice(10 * count, count, replace=False)).astype(np.int64)
    return Vectors(ids, matrix)


def brute_force(vectors: Vectors, k: int) -> list[tuple[int, int, int]]:
    found = []
    exact = vectors.matrix.astype(np.float64) @ vectors.matrix.astype(np.float64).T
    for row, model_id in enumerate(vectors.ids):
        others = [
            (-round(float(exact[row, j]), 6), int(other)) for j, other in enumerate(vectors.ids) if j != row
        ]
        found += [(int(model_id), rank, other) for rank, (_, other) in enumerate(sorted(others)[:k], start=1)]
    return found


@pytest.mark.parametrize(("count", "k"), [(1, 5), (2, 5), (40, 7), (40, 50), (600, 20)])
def test_nearest_is_brute_force(count, k):
    vectors = unit_rows(count, 16)
    vectors.matrix[: count // 2] = vectors.matrix[0]  # ties: half of the models are the same
    found = nearest(vectors, k)
    assert [row[:3] for row in found] == brute_force(vectors, k)


def test_search_finds_what_numpy_finds_with_and_without_a_filter(tmp_path):
    vectors = unit_rows(300, 24, seed=2)
    file = write_vectors(tmp_path, "owner/base", "input", vectors)
    index = open_index(tmp_path, file)
    back = read_vectors(tmp_path, file)
    np.testing.assert_array_equal(back.ids, vectors.ids)
    np.testing.assert_array_equal(back.matrix, vectors.matrix)
    query = normalised(np.random.default_rng(5).normal(size=24).astype(np.float32))
    allowed = vectors.ids[::7]
    for ids in (None, allowed):
        keep = np.isin(vectors.ids, vectors.ids if ids is None else ids)
        similarity = vectors.matrix[keep] @ query
        expected = vectors.ids[keep][np.argsort(-similarity)][:10].tolist()
        assert [model_id for model_id, _ in search(index, query, 10, ids)] == expected
    assert search(index, query, 10, []) == []
    assert len(search(index, query, 1000)) == 300


def test_equal_similarities_come_in_order_of_id_even_at_the_cut(tmp_path):
    vectors = unit_rows(50, 8)
    vectors.matrix[:] = vectors.matrix[0]
    index = open_index(tmp_path, write_vectors(tmp_path, "b", "input", vectors))
    assert [model_id for model_id, _ in search(index, vectors.matrix[0], 5)] == vectors.ids[:5].tolist()


def test_zero_and_broken_vectors_stay_out():
    assert normalised(np.zeros(4, np.float32)) is None
    assert normalised(np.array([1, np.nan], np.float32)) is None
    assert normalised(np.array([1, np.inf], np.float32)) is None
    np.testing.assert_allclose(normalised(np.array([3, 4], np.float32)), [0.6, 0.8], rtol=1e-6)


def upload(model_id: int, days: int, hashes: tuple[str, ...], key: str, norm: float = 1.0) -> Upload:
    return Upload(model_id, datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=days), hashes, key, norm)


def test_duplicates_by_hash_or_by_deltas_are_led_by_the_earliest_upload():
    records = {"x": make_record(1), "y": make_record(2)}
    records["x again"] = dataclasses.replace(records["x"], files=())
    uploads = [
        upload(1, 9, ("h1",), "x"),
        upload(2, 3, ("h2",), "x again"),
        upload(3, 5, ("h3",), "y"),
        upload(4, 7, ("h1",), "x"),
        upload(5, 1, (), "y", norm=1.1),
    ]
    groups = find_duplicates(uploads, [(1, 2), (2, 3), (3, 5)], records.__getitem__, 1e-3)
    assert groups == {1: 2, 2: 2, 4: 2}


def test_same_deltas_is_the_cosine_of_the_formed_matrices():
    one = make_record(1, rank=6)
    for seed, blend, expected in ((2, 0.0, True), (2, 0.03, True), (2, 0.2, False)):
        other = make_record(seed, rank=6)
        deltas = []
        product = first_square = second_square = 0.0
        for first, second in zip(one.deltas, other.deltas, strict=True):
            full = [(d.u.astype(float) * d.s) @ d.v.astype(float).T for d in (first, second)]
            mixed = full[0] + blend * full[1]
            mixed *= np.linalg.norm(full[0]) / np.linalg.norm(mixed)
            u, s, vt = np.linalg.svd(mixed, full_matrices=False)
            deltas.append(
                dataclasses.replace(
                    first, u=u.astype(np.float16), s=s.astype(np.float32), v=vt.T.astype(np.float16)
                )
            )
            product += (full[0] * mixed).sum()
            first_square += (full[0] ** 2).sum()
            second_square += (mixed**2).sum()
        is_same = product / np.sqrt(first_square * second_square) >= 1 - 1e-3
        assert bool(is_same) is expected
        assert same_deltas(one, dataclasses.replace(one, deltas=tuple(deltas)), 1e-3) is expected
