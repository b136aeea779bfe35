"""Equal weights give equal vectors, in every format, upload and edition of the repository; and how equal uploads are found."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch

from indexer.publish.duplicates import Upload, find_duplicates
from indexer.records import difference
from indexer.records.difference import ALIKE, LENGTH, MOST, alike, difference_of
from indexer.records.representations.registry import REPRESENTATIONS
from tests.deltas import made
from tests.test_record import make_record


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_twins_stored_differently_have_the_same_vectors_where_spectra_are_flat(tmp_path):
    weights = made.weights()
    base = made.base_of(tmp_path, weights)
    tuned = made.changed(weights, 1e-3)
    records = {
        name: made.record_of(save(tmp_path / name, tuned), base, f"{name}/model", name[0] * 40)
        for name, save in made.SAVED.items()
    }
    first = records["safetensors"]
    assert max(delta.energy for delta in first.deltas) < 0.4  # nothing stands out: a start decides what is found
    for name, other in records.items():
        assert difference_of(first, other) < 1e-6, name
        for delta, other_delta in zip(first.deltas, other.deltas, strict=True):
            np.testing.assert_array_equal(delta.s, other_delta.s, err_msg=name)
        np.testing.assert_array_equal(
            first.vectors[REPRESENTATIONS["input"].tag], other.vectors[REPRESENTATIONS["input"].tag], err_msg=name
        )


def test_an_edited_card_changes_no_vector_and_matrices_differ_in_their_start(tmp_path):
    weights = made.weights()
    base = made.base_of(tmp_path, weights)
    folder = made.save(tmp_path / "tuned", made.changed(weights, 1e-3))
    before, after = (made.record_of(folder, base, "ann/model", commit * 40) for commit in "cd")
    assert before.identity.digest != after.identity.digest
    np.testing.assert_array_equal(
        before.vectors[REPRESENTATIONS["input"].tag], after.vectors[REPRESENTATIONS["input"].tag]
    )


@pytest.mark.parametrize("cells", [400, 1 << 24])
def test_pairs_are_those_of_a_loop(monkeypatch, cells):
    monkeypatch.setattr(difference, "_CELLS", cells)
    rng = np.random.default_rng(0)
    random = rng.normal(size=(200, LENGTH))
    random[:70] = random[0] + 0.3 * rng.normal(size=(70, LENGTH))  # more than are compared with one model
    random[80:90] = random[80] + 0.1 * rng.normal(size=(10, LENGTH))
    signatures = (random / np.linalg.norm(random, axis=1, keepdims=True)).astype(np.float32)
    rows = np.arange(0, 200, 3)
    expected = set()
    for row in rows.tolist():
        cosines = {other: float(signatures[row] @ signatures[other]) for other in range(200) if other != row}
        near = sorted((other for other in cosines if cosines[other] >= ALIKE), key=cosines.__getitem__)[-MOST:]
        expected |= {(row, other) for other in near}
    assert max(sum(first == row for first, _ in expected) for row in rows.tolist()) == MOST
    pairs = [
        (int(first), int(second))
        for first_rows, second_rows in alike(signatures, rows)
        for first, second in zip(first_rows, second_rows, strict=True)
    ]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == expected


def upload(model_id: int, days: int, hashes: tuple[str, ...] = ()) -> Upload:
    return Upload(model_id, datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=days), hashes)


def test_duplicates_by_hash_or_by_deltas_are_led_by_the_earliest_upload():
    uploads = [upload(1, 9, ("h1",)), upload(2, 3, ("h2",)), upload(3, 5, ("h3",)), upload(4, 7, ("h1",)), upload(5, 1)]
    differences = [(1, 2, 0.0005), (2, 3, 0.2), (3, 5, float("inf")), (5, 99, 0.0)]
    assert find_duplicates(uploads, differences, 1e-3) == {1: 2, 2: 2, 4: 2}
    assert find_duplicates(uploads, differences, 0.5) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert find_duplicates(uploads, [], 1e-3) == {1: 4, 4: 4}


def test_a_difference_that_cannot_be_measured_is_infinite():
    record = make_record(1)
    bare = dataclasses.replace(record, deltas=tuple(dataclasses.replace(d, u=None, v=None) for d in record.deltas))
    assert difference_of(record, bare) == float("inf")
    louder = dataclasses.replace(
        record, deltas=tuple(dataclasses.replace(d, norm=1.25 * d.norm) for d in record.deltas)
    )
    assert difference_of(record, louder) == pytest.approx(0.2)


def test_the_difference_is_one_minus_the_cosine_of_the_formed_matrices():
    record = make_record(1, rank=6)
    for seed, blend, largest, smallest in ((2, 0.0, -1e-9, 1e-9), (2, 0.03, 1e-4, 1e-3), (2, 0.2, 5e-3, 1)):
        other = make_record(seed, rank=6)
        deltas = []
        product = first_square = second_square = 0.0
        for first, second in zip(record.deltas, other.deltas, strict=True):
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
        assert difference_of(record, dataclasses.replace(record, deltas=tuple(deltas))) == pytest.approx(
            expected, abs=2e-4
        )
        assert largest < expected < smallest
