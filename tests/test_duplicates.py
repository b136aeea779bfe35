"""Duplicates: by file hashes, or by the changes themselves, against the formed matrices."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from indexer.publish.duplicates import Upload, find_duplicates
from indexer.records.difference import difference_of
from tests.test_record import make_record


def upload(model_id: int, days: int, hashes: tuple[str, ...] = ()) -> Upload:
    return Upload(model_id, datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=days), hashes)


def test_duplicates_by_hash_or_by_deltas_are_led_by_the_earliest_upload():
    uploads = [upload(1, 9, ("h1",)), upload(2, 3, ("h2",)), upload(3, 5, ("h3",)), upload(4, 7, ("h1",)), upload(5, 1)]
    differences = [(1, 2, 0.0005), (2, 3, 0.2), (3, 5, float("inf")), (5, 99, 0.0)]
    assert find_duplicates(uploads, differences, 1e-3) == {1: 2, 2: 2, 4: 2}
    assert find_duplicates(uploads, differences, 0.5) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert find_duplicates(uploads, [], 1e-3) == {1: 4, 4: 4}


def test_a_difference_that_cannot_be_measured_is_infinite():
    one = make_record(1)
    bare = dataclasses.replace(one, deltas=tuple(dataclasses.replace(d, u=None, v=None) for d in one.deltas))
    assert difference_of(one, bare) == float("inf")
    louder = dataclasses.replace(one, deltas=tuple(dataclasses.replace(d, norm=1.25 * d.norm) for d in one.deltas))
    assert difference_of(one, louder) == pytest.approx(0.2)


def test_the_difference_is_one_minus_the_cosine_of_the_formed_matrices():
    one = make_record(1, rank=6)
    for seed, blend, largest, smallest in ((2, 0.0, -1e-9, 1e-9), (2, 0.03, 1e-4, 1e-3), (2, 0.2, 5e-3, 1)):
        other = make_record(seed, rank=6)
        deltas = []
        product = first_square = second_square = 0.0
        for first, second in zip(one.deltas, other.deltas, strict=True):
            full = [(d.u.astype(float) * d.s) @ d.v.astype(float).T for d in (first, second)]
            mixed = full[0] + blend * full[1]
            mixed *= np.linalg.norm(full[0]) / np.linalg.norm(mixed)
            u, s, vt = np.linalg.svd(mixed, full_matrices=False)
            deltas.append(
                dataclasses.replace(first, u=u.astype(np.float16), s=s.astype(np.float32), v=vt.T.astype(np.float16))
            )
            product += (full[0] * mixed).sum()
            first_square += (full[0] ** 2).sum()
            second_square += (mixed**2).sum()
        expected = 1 - product / np.sqrt(first_square * second_square)
        # Factors are float16: their cosine is known to about three digits of what it misses of 1.
        assert difference_of(one, dataclasses.replace(one, deltas=tuple(deltas))) == pytest.approx(expected, abs=2e-4)
        assert largest < expected < smallest
