"""The vocabulary vector of a record: what it depends on, and which records have none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from indexer.errors import AtlasError
from indexer.records.record import Record
from indexer.records.representations.registry import representation_named
from indexer.records.tokens import MISSING, UNSURE
from indexer.vectors.centre import centre_of
from tests.test_representation import random_matrices, record_of
from tests.vocabulary.planted import READ, codes_of, with_tokens, without_rows

CHOSEN = representation_named("vocabulary")
RECORD = record_of(random_matrices(0))


def vector_of(codes: np.ndarray, **kind: object) -> np.ndarray:
    return CHOSEN.vector(with_tokens(RECORD, codes, **kind))


def test_it_is_the_squared_rank_of_each_row_minus_the_mean():
    codes = np.zeros(READ, np.uint8)
    codes[[3, 5, 7, 9]] = [10, 200, 30, 30]
    codes[11] = UNSURE
    expected = np.zeros(READ)
    expected[[3, 5, 7, 9]] = np.array([1 / 4, 1, 2.5 / 4, 2.5 / 4]) ** 2
    expected -= expected.mean()
    vector = vector_of(codes)
    np.testing.assert_allclose(vector[:READ], expected / np.linalg.norm(expected), atol=1e-6)
    assert not vector[READ:].any()
    assert vector.dtype == np.float32
    assert len(vector) == CHOSEN.expected_length(with_tokens(RECORD, codes)) == 2 * READ


def test_the_learning_rate_does_not_matter_and_missing_rows_count_as_the_mean():
    codes = codes_of(1, 0)
    np.testing.assert_array_equal(vector_of(codes), vector_of(np.where(codes > 0, codes + 40, 0)))
    vector = vector_of(without_rows(codes, READ - 10))[:READ]
    assert not vector[-10:].any()
    assert abs(vector.sum()) < 1e-5


def test_sizes_and_shares_are_in_different_blocks():
    codes = codes_of(1, 0)
    sizes, shares = vector_of(codes), vector_of(np.maximum(codes, 1), kind="statistical", is_share=True)
    assert sizes @ shares == 0
    assert not shares[:READ].any()
    assert np.linalg.norm(shares) == pytest.approx(1, abs=1e-6)


def test_models_of_one_dataset_are_alike():
    labels = np.repeat(np.arange(6), 5)
    vectors = np.stack(
        [vector_of(codes_of(dataset, seed, rate=8 * (seed % 4))) for seed, dataset in enumerate(labels.tolist())]
    )
    centre = centre_of(vectors, [f"author{number % 5}" for number in range(len(labels))], 2).blocks.ravel()
    centred = vectors - centre
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    alike = centred @ centred.T
    np.fill_diagonal(alike, -1)
    assert (labels[np.argsort(-alike, axis=1)[:, :4]] == labels[:, None]).mean() == 1


NONE = {
    "an adapter": None,
    "frozen": (np.zeros(READ), "frozen"),
    "of other rows": (codes_of(1, 0)[:-1], "exact"),
    "all alike": (np.full(READ, 40), "exact"),
    "unsure alone": (np.where(np.arange(READ) < 9, UNSURE, 0), "statistical"),
    "missing alone": (np.full(READ, MISSING), "statistical"),
}


@pytest.mark.parametrize("why", NONE)
def test_a_record_that_says_nothing_has_none(why):
    tokens = NONE[why]
    record: Record = RECORD if tokens is None else with_tokens(RECORD, *tokens)
    assert not CHOSEN.is_held_by(record)
    with pytest.raises(AtlasError, match="has no vocabulary vector"):
        CHOSEN.vector(record)


def test_a_copy_of_the_base_has_none_and_a_sample_and_a_record_without_factors_have_one():
    record = with_tokens(RECORD, codes_of(1, 0))
    still = replace(record, deltas=tuple(replace(delta, norm=0.0) for delta in record.deltas))
    assert not CHOSEN.is_held_by(still)
    bare = replace(record, deltas=tuple(replace(delta, u=None, v=None, lines=4) for delta in record.deltas))
    assert bare.is_sampled
    np.testing.assert_array_equal(CHOSEN.vector(bare), CHOSEN.vector(record))
