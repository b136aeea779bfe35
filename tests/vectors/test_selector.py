"""The selector of ids that FAISS gets."""

from __future__ import annotations

import faiss
import numpy as np
import pytest

from indexer.vectors.stored import id_selector


@pytest.mark.parametrize("ids", [np.arange(0, 90, 3), np.array([5]), np.array([7, 2_000_000_011])])
def test_a_selector_takes_no_more_memory_than_its_ids(ids):
    """Ids of a foreign atlas may be any numbers."""
    selector = id_selector(ids)
    numbers = [*ids.tolist(), 1, 4, 8, 91, 1_999_999_999]
    assert [selector.is_member(number) for number in numbers] == [number in ids for number in numbers]
    if isinstance(selector, faiss.IDSelectorBitmap):
        assert selector.n <= 8 * len(ids)
