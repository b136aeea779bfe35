"""Which index an atlas is to have: exact, compressed by a named FAISS factory, or whatever fits."""

from __future__ import annotations

from dataclasses import dataclass

AUTO, EXACT = "auto", "exact"


@dataclass(frozen=True)
class IndexChoice:
    """``index``: auto (exact while that is instant, then what fits), exact, or a FAISS factory string.

    ``memory``: bytes that a compressed index may take. ``promised``: the recall@10 below which none is published.
    """

    index: str = AUTO
    memory: int = 1 << 30
    promised: float = 0.95
