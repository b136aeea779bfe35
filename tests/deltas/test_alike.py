"""Whose records are compared matrix by matrix: those with signatures that are alike, and the most alike of many."""

from __future__ import annotations

import numpy as np
import pytest

from indexer.records import difference
from indexer.records.difference import ALIKE, LENGTH, MOST, alike


@pytest.mark.parametrize("cells", [400, 1 << 24])
def test_pairs_are_those_of_a_loop(monkeypatch, cells):
    monkeypatch.setattr(difference, "_CELLS", cells)
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(200, LENGTH))
    drawn[:70] = drawn[0] + 0.3 * rng.normal(size=(70, LENGTH))  # more than are compared with one model
    drawn[80:90] = drawn[80] + 0.1 * rng.normal(size=(10, LENGTH))
    held = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    asked = np.arange(0, 200, 3)
    expected = set()
    for row in asked.tolist():
        cosines = {other: float(held[row] @ held[other]) for other in range(200) if other != row}
        near = sorted((other for other in cosines if cosines[other] >= ALIKE), key=cosines.__getitem__)[-MOST:]
        expected |= {(row, other) for other in near}
    assert max(sum(row == one for row, _ in expected) for one in asked.tolist()) == MOST
    found = [
        (int(one), int(other)) for mine, theirs in alike(held, asked) for one, other in zip(mine, theirs, strict=True)
    ]
    assert len(found) == len(set(found))
    assert set(found) == expected
