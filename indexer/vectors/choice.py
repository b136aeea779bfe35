"""Which vectors and which index an atlas is to have: of how many numbers; exact, or compressed by a FAISS factory."""

from __future__ import annotations

from dataclasses import dataclass

AUTO, EXACT = "auto", "exact"


@dataclass(frozen=True)
class IndexChange:
    """What is asked for; None leaves it as it was chosen before.

    ``index``: auto (exact while that is instant, then what fits), exact, or a FAISS factory string. ``memory``: bytes
    that a compressed index may take. ``promised``: the recall@10 below which none is published. ``budget``: about how
    many numbers a vector of a length that can be chosen has.
    """

    index: str | None = None
    memory: int | None = None
    promised: float | None = None
    budget: int | None = None


@dataclass(frozen=True)
class IndexChoice(IndexChange):
    """What is chosen, nothing left open but a budget that nobody asked for: the usual one."""

    index: str = AUTO
    memory: int = 1 << 30
    promised: float = 0.95
    budget: int | None = None

    def changed(self, asked: IndexChange | None) -> IndexChoice:
        """This choice, but for what is asked for."""
        if asked is None:
            return self
        return IndexChoice(
            self.index if asked.index is None else asked.index,
            self.memory if asked.memory is None else asked.memory,
            self.promised if asked.promised is None else asked.promised,
            self.budget if asked.budget is None else asked.budget,
        )
