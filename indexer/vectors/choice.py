"""The choice of vectors and index: how many numbers a vector has, and whether search is exact or compressed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from indexer.errors import AtlasError

AUTO, EXACT = "auto", "exact"

# Compressed indexes by the name that FAISS gives them, and their bits per number, in the order in which `auto` tries
# them; see ``indexer.vectors.compressed``.
COMPRESSED = {"RaBitQ": 1, "RaBitQ2": 2}

INDEXES = (AUTO, EXACT, *COMPRESSED)
KNOWN_INDEXES = (
    "Choose auto (exact while that is fast, then RaBitQ or RaBitQ2), exact, RaBitQ (1 bit per number) or RaBitQ2 "
    "(2 bits per number)."
)


def check_index(name: str) -> None:
    """Raises AtlasError if there is no such index."""
    if name not in INDEXES:
        raise AtlasError(f"Unknown index {name[:60]!r}.", KNOWN_INDEXES)


@dataclass(frozen=True)
class IndexChange:
    """A requested change; None leaves a setting as it is.

    ``index``: one of INDEXES. ``memory``: bytes that a compressed index may take. ``promised``: the lowest recall@10 of
    a compressed index. ``budget``: the length of a vector, approximately, if the representation lets it be chosen.
    """

    index: str | None = None
    memory: int | None = None
    promised: float | None = None
    budget: int | None = None


@dataclass(frozen=True)
class IndexChoice(IndexChange):
    """The current settings. ``budget``: None for the usual length."""

    index: str = AUTO
    memory: int = 1 << 30
    promised: float = 0.95
    budget: int | None = None

    def changed(self, asked: IndexChange | None) -> IndexChoice:
        """These settings with a change."""
        changes = {} if asked is None else {name: value for name, value in vars(asked).items() if value is not None}
        return replace(self, **changes)
