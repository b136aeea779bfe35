"""What is told of one delta, of one layer, of one family."""

from __future__ import annotations

from dataclasses import dataclass

from indexer.names import family_key

# What can be looked at, layer by layer and family by family.
MEASURES = ("relative_norm", "norm", "share", "rank_50", "rank_90", "energy")


@dataclass(frozen=True)
class Change:
    """One delta: its Frobenius ``norm``, that over the base's matrix, its ``share`` of all squared norms.

    ``energy``: the share of norm² that the kept singular values hold; ``rank_50``, ``rank_90``: the smallest rank that
    holds so many per cent of it, 0 of a zero delta, None where the kept values cannot say.
    """

    stack: str
    layer: int
    family: str
    norm: float
    relative_norm: float
    share: float
    energy: float
    rank_50: int | None
    rank_90: int | None

    @property
    def family_key(self) -> str:
        """``query``, or ``encoder.query`` where there are two stacks."""
        return family_key(self.stack, self.family)


@dataclass(frozen=True)
class Part:
    """The deltas of one layer, or of one family. ``relative_norm``: root mean square of theirs."""

    name: str
    norm: float
    relative_norm: float
    share: float
