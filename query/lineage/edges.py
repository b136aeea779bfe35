"""The steps of a family tree, by names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edge:
    """One step from ``parent`` (None: the base) to ``child``."""

    parent: str | None
    child: str
    kind: str
    coefficient: float
    left: float
    card: str
    direction: str
    probability: float | None = None
