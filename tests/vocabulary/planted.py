"""Records whose vocabulary is known: which rows of the input embedding moved, and how far."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from indexer.records.record import Record, TokenChanges
from indexer.records.tokens import MISSING, token_rows

ROWS = 64  # as the base of tests.tiny_hub has
READ = len(token_rows(ROWS))


def codes_of(dataset: int, seed: int, share: float = 0.4, rate: int = 0) -> np.ndarray:
    """Codes of a model tuned on a dataset: it has tokens of its own, and common ones; ``rate`` moves all sizes."""
    own = np.random.default_rng(1_000 + dataset)
    frequency = np.where(own.random(READ) < share, own.random(READ), 0)
    frequency[:4] = 1  # tokens that every text has
    rng = np.random.default_rng(seed)
    is_met = rng.random(READ) < np.minimum(1, 3 * frequency)
    sizes = 60 + rate + 40 * frequency + rng.normal(0, 4, READ)
    return np.where(is_met, np.clip(np.rint(sizes), 1, 253), 0).astype(np.uint8)


def changes(codes: np.ndarray, kind: str = "exact", *, is_share: bool = False) -> TokenChanges:
    """The same as a record holds it."""
    return TokenChanges(np.asarray(codes, np.uint8), 1.0, ROWS, ROWS, kind, is_share)


def with_tokens(record: Record, codes: np.ndarray, kind: str = "exact", *, is_share: bool = False) -> Record:
    """The record with this vocabulary."""
    return replace(record, tokens=changes(codes, kind, is_share=is_share))


def without_rows(codes: np.ndarray, first: int) -> np.ndarray:
    """The codes of a model whose embedding ends at a row that is read."""
    return np.where(np.arange(len(codes)) < first, codes, MISSING).astype(np.uint8)
