"""What an atlas publishes of drawn vectors: unit blocks minus the centre of their group, in plain loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.vectors import loops


def published(
    drawn: np.ndarray, blocks: int, is_adapter: np.ndarray, authors: Sequence[str], votes: np.ndarray
) -> np.ndarray:
    """(n, d) from (n, d) drawn vectors; ``votes`` (n,): which models their group's centre is made of."""
    shaped = drawn.astype(np.float64).reshape(len(drawn), blocks, -1)
    norms = np.linalg.norm(shaped, axis=2, keepdims=True)
    unit = np.divide(shaped, norms, out=np.zeros_like(shaped), where=norms > 0)
    found = np.zeros_like(unit)
    for of_group in (is_adapter, ~is_adapter):
        members = np.flatnonzero(of_group & votes)
        middle = loops.centre([unit[row] for row in members], [authors[row] for row in members])
        for row in np.flatnonzero(of_group):
            found[row] = loops.centred(unit[row], middle) if unit[row].any() else 0
    return found.reshape(len(drawn), -1)
