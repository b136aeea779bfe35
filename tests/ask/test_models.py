"""The models that texts are compared with, read in tiles, against whole matrices."""

from __future__ import annotations

import base64
import shutil

import duckdb
import numpy as np
import pytest

from indexer.records.tokens import MISSING, UNSURE, codes_of_sizes
from indexer.vectors.search import VectorIndex
from indexer.vectors.stored import OpenVectors, Vectors, write_vectors
from query import Atlas
from query.models.population import distinct, read_population
from query.questions.ask import models
from query.questions.ask.evidence import Features
from query.questions.ask.models import Candidates, read_candidates
from query.questions.trace.evidence import TokenEvidence
from query.shared.statistics.likeness import similarities

BASE, ROWS = "org/tiny-base", 64


def drawn(count: int, length: int) -> Features:
    random = np.random.default_rng(3)
    rates = random.dirichlet(np.ones(ROWS), count).astype(np.float32)
    return Features(random.normal(size=(count, length)).astype(np.float32), rates)


@pytest.mark.parametrize("tile", [1, 16 << 20])
def test_vectors_are_compared_as_in_the_population(made, monkeypatch, tile) -> None:
    monkeypatch.setattr(models, "_TILE_BYTES", tile)
    with Atlas(made) as atlas:
        population = distinct(read_population(atlas, BASE))
        candidates = read_candidates(atlas, BASE, ROWS)
        assert candidates.ids.tolist() == population.ids.tolist()
        assert candidates.left_out == population.left_out
        features = drawn(3, population.vectors.shape[1])
        expected = similarities(features.blocks, population.vectors, population.blocks)
        assert candidates.by_vectors([features])[0] == pytest.approx(expected, abs=1e-5)
        subset = candidates.only(np.array([1, 4]))
        assert subset.by_vectors([features])[0] == pytest.approx(expected[:, [1, 4]], abs=1e-5)
        more = candidates.with_newcomer(population.vectors[2], -1, None)
        assert more.by_vectors([features])[0] == pytest.approx(expected[:, [*range(len(candidates)), 2]], abs=1e-5)


def test_codes_that_an_atlas_should_not_hold_are_left_out(made, tmp_path) -> None:
    """An atlas may come from anybody."""
    made = shutil.copytree(made, tmp_path / "atlas")
    with Atlas(made) as atlas:
        (first, second, third, *_) = read_candidates(atlas, BASE, ROWS).ids.tolist()
    with duckdb.connect(str(made / "atlas.duckdb")) as database:
        good = base64.b64encode(np.arange(ROWS, dtype=np.uint8).tobytes()).decode()
        for identity, codes, scale in ((first, good, 1.0), (second, "no base64!", 1.0), (third, good, float("nan"))):
            database.execute(
                "UPDATE records SET token_class = 'exact', token_codes = ?, token_scale = ?, token_is_share = false, "
                "base_token_rows = 64 WHERE model_id = ?", [codes, scale, identity],
            )  # fmt: skip
    with Atlas(made) as atlas:
        candidates = read_candidates(atlas, BASE, ROWS)
        assert candidates.codes[0].tolist() == list(range(ROWS))
        assert candidates.has_vocabulary.tolist()[:3] == [True, False, False]
        assert not read_candidates(atlas, BASE, ROWS - 1).has_vocabulary.any()


def test_sizes_are_centred_among_their_kind(tmp_path) -> None:
    """Unit norm, minus the mean of the models of a kind; then cosines with √rates."""
    random = np.random.default_rng(0)
    sizes = random.random((9, ROWS)) * (random.random((9, ROWS)) < 0.5)
    sizes[3] = 0  # an adapter
    codes = np.where(sizes > 0, codes_of_sizes(np.maximum(sizes, 1e-9)), 0).astype(np.uint8)
    codes[0, :2] = UNSURE, MISSING
    is_share = np.array([False] * 7 + [True] * 2)  # two models have no mean worth subtracting
    none = Vectors(np.zeros(0, np.int64), np.zeros((0, 8), np.float32))
    index = VectorIndex(OpenVectors(tmp_path, write_vectors(tmp_path, BASE, "input", none)))
    candidates = Candidates(BASE, index, np.arange(9), codes, is_share)
    rates, reference = random.dirichlet(np.ones(ROWS), 2), random.dirichlet(np.ones(ROWS))
    groups, pooled = [Features(np.empty((2, 0), np.float32), rates.astype(np.float32))], reference.astype(np.float32)
    (values,) = candidates.by_vocabulary(groups, pooled)
    known = 2.0 ** ((codes - 1.0) / 8 - 26) * (codes > 0) * (codes < UNSURE)
    rows = [0, 1, 2, 4, 5, 6]
    unit = known[rows] / np.linalg.norm(known[rows], axis=1, keepdims=True)
    unit = unit - unit.mean(axis=0)
    deviations = np.sqrt(rates) - np.sqrt(reference)
    expected = deviations @ unit.T / np.linalg.norm(deviations, axis=1)[:, None] / np.linalg.norm(unit, axis=1)
    assert values[:, rows] == pytest.approx(expected, abs=1e-5)
    assert np.isnan(values[:, [3, 7, 8]]).all()
    evidence = TokenEvidence("exact", np.arange(ROWS), codes[1], False, 1.0, ROWS, ROWS, None, None)
    more = candidates.with_newcomer(np.ones(8, np.float32), -1, evidence)
    (values,) = more.by_vocabulary(groups, pooled)
    assert values.shape == (2, 10)
    assert not np.isnan(values[:, 9]).any()
