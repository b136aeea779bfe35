"""A representation that is not per matrix is one class: publishing, verifying and asking find the rest in it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pytest

from indexer.errors import AtlasError
from indexer.records.representations import registry
from indexer.records.representations.representation import Representation
from indexer.records.tokens import MISSING
from indexer.upkeep.maintenance import represent
from indexer.upkeep.verification import verify
from query import Atlas
from tests.vocabulary.test_atlas import BASE, others_than_rows, plant, published

NUMBERS = 64


@dataclass(frozen=True, kw_only=True)
class ToyWords(Representation):
    """Token moves, hashed to two blocks of 32 numbers, of which a model may have one; nothing is subtracted."""

    def is_held_by(self, record):
        return record.tokens is not None and record.tokens.codes.any()

    def expected_length(self, record):
        return NUMBERS

    def compute(self, record):
        blocks = np.zeros((2, NUMBERS // 2), np.float32)
        codes = record.tokens.codes
        for row in np.flatnonzero((codes > 0) & (codes != MISSING)).tolist():
            digest = hashlib.sha256(str(row).encode()).digest()
            blocks[int(record.tokens.is_share), digest[0] % 32] += 1 - 2 * (digest[1] & 1)
        return blocks.ravel()

    def absent(self, model):
        return AtlasError(f"{model} moved no words.", "")


class Backwards(ToyWords):
    def compute(self, record):
        return super().compute(record)[::-1].copy()


TOY = ToyWords(name="toy_words", version=1, description="a toy", blocks=2, is_partial=True, lacking="no word moved")


@pytest.fixture
def planted(atlas, monkeypatch):
    monkeypatch.setitem(registry.REPRESENTATIONS, TOY.name, TOY)
    return atlas, *plant(atlas)


def test_a_representation_of_another_kind_is_published_verified_and_searched(planted):
    folder, tied, bare = planted
    represent(folder, TOY.name)
    assert published(folder) == {"input": 9, TOY.name: 8}
    assert verify(folder) == []
    assert others_than_rows(folder) == []
    with Atlas(folder.root) as atlas:
        (row,) = atlas.rows("SELECT * FROM representations WHERE representation = ?", [TOY.name])
        assert (row["length"], row["blocks"], row["centre"], row["per_delta"]) == (NUMBERS, 2, None, False)
        asked = next(
            row["model"] for row in atlas.rows("SELECT model FROM models WHERE model NOT IN (?, ?)", [tied, bare])
        )
        stored = atlas.similar(asked, k=8, representation=TOY.name)
        searched = atlas.similar(asked, k=60, representation=TOY.name)  # more than lists hold: by exact search
        assert [(one.model, round(one.similarity, 5)) for one in stored] == [
            (one.model, round(one.similarity, 5)) for one in searched
        ]
        assert len(stored) == 7
        assert {one.matrices for one in searched} == {None}
        assert {one.model: one.similarity for one in stored}[tied] == 0  # it has the other block
        with pytest.raises(AtlasError, match="moved no words"):
            atlas.similar(bare, representation=TOY.name)
        found = atlas.purity(BASE, representation=TOY.name)
        assert "1 model has no toy_words vector: no word moved." in found.notes


@pytest.mark.slow
def test_vectors_that_records_do_not_make_are_found(planted):
    folder, _, _ = planted
    represent(folder, TOY.name)
    registry.REPRESENTATIONS[TOY.name] = Backwards(name=TOY.name, version=1, description="another toy", blocks=2)
    problems = [one.problem for one in others_than_rows(folder)]
    assert "its vector (toy_words) differs from that of its record" in problems
