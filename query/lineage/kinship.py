"""What embeddings of tokens say of whose training a model went through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from query.lineage.evidence import SPACING

if TYPE_CHECKING:
    from indexer.records.parts import ModelParts


@dataclass(frozen=True)
class Kin:
    """Embeddings of tokens that two models changed: ``shared`` alike in both and not the base's, the rest by one alone.

    Training leaves the row of a word that it never meets as it was (weight decay shrinks all such rows alike). So rows
    that p changed and m has exactly as p are p's training, inherited; and if m was made from p, there is no row that p
    changed and m has as the base. ``both`` changed rows are changed in each, and differ.
    """

    shared: int
    only_m: int
    only_p: int
    both: int


def kinship(m: ModelParts, p: ModelParts, base: ModelParts | None) -> Kin | None:
    """See :class:`Kin`; None where one of the three has no embeddings to compare."""
    if base is None or m.tokens is None or p.tokens is None or base.tokens is None:
        return None
    if not m.tokens.shape == p.tokens.shape == base.tokens.shape:
        return None
    same_m = _apart(m.tokens, base.tokens, _blur(m, base))
    same_p = _apart(p.tokens, base.tokens, _blur(p, base))
    same = _apart(m.tokens, p.tokens, _blur(m, p))
    return Kin(
        shared=int(np.count_nonzero((same == ALIKE) & (same_p == APART) & (same_m == APART))),
        only_m=int(np.count_nonzero((same_m == APART) & (same_p == ALIKE))),
        only_p=int(np.count_nonzero((same_p == APART) & (same_m == ALIKE))),
        both=int(np.count_nonzero((same_m == APART) & (same_p == APART) & (same == APART))),
    )


def kept_rows(m: ModelParts, p: ModelParts, s: ModelParts, base: ModelParts | None) -> int:
    """Rows that p changed, m has exactly as p, and s has otherwise: in a model made from s they could not be p's again.

    0 where one of them has no embeddings to compare, or has them rounded: rounded rows are alike to many.
    """
    if base is None or any(one.precision != "float32" for one in (m, p, s)):
        return 0
    if m.tokens is None or p.tokens is None or s.tokens is None or base.tokens is None:
        return 0
    if not m.tokens.shape == p.tokens.shape == s.tokens.shape == base.tokens.shape:
        return 0
    is_of_p = (_apart(m.tokens, p.tokens, BLUR) == ALIKE) & (_apart(p.tokens, base.tokens, _blur(p, base)) == APART)
    return int(np.count_nonzero(is_of_p & (_apart(m.tokens, s.tokens, BLUR) == APART)))


@dataclass(frozen=True)
class Rows:
    """Row by row, (tokens,): whether m has it otherwise than p, and how flat the change m − p is.

    Flatness is (mean |x|)² / mean x² over the row's entries. Adam moves all entries by steps of nearly one size, so the
    row of a word that one training met a few times changed by much the same everywhere: near 1. Where several trainings
    add up or cancel, entries come out large and small: nearer to 2 / π, which is Gauss's. 0 where nothing changed.
    """

    changed: NDArray[np.bool_]
    flatness: NDArray[np.float64]


def rows_between(m: ModelParts, p: ModelParts) -> Rows | None:
    """See :class:`Rows`; None where one of them has no embeddings to compare."""
    if m.tokens is None or p.tokens is None or m.tokens.shape != p.tokens.shape:
        return None
    change = m.tokens.astype(np.float64) - p.tokens
    square = np.square(change).mean(axis=1)
    flatness = np.square(np.abs(change).mean(axis=1)) / np.where(square == 0, 1, square)
    return Rows(_apart(m.tokens, p.tokens, _blur(m, p)) == APART, flatness)


ALIKE, UNSURE, APART = 0, 1, 2
# How far apart rows of float32 may be, relative to their norm, that are the same.
BLUR = 1e-5


def _blur(first: ModelParts, second: ModelParts) -> float:
    """How far apart rows may be, relative to their norm, that were the same before they were stored."""
    return max(BLUR, 0.75 * SPACING[first.precision], 0.75 * SPACING[second.precision])


def _apart(first: NDArray[np.float32], second: NDArray[np.float32], blur: float) -> NDArray[np.int8]:
    """Row by row whether one is a multiple of the other: ALIKE, APART, or UNSURE between."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    square = (b * b).sum(axis=1)
    scale = (a * b).sum(axis=1) / np.where(square == 0, 1, square)
    left = np.linalg.norm(a - scale[:, None] * b, axis=1)
    relative = left / np.maximum(np.linalg.norm(a, axis=1), 1e-30)
    found = np.full(len(a), UNSURE, dtype=np.int8)
    found[relative <= blur] = ALIKE
    found[relative > 4 * blur] = APART
    return found
