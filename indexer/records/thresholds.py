"""Where a record stops being a model of its own: limits behind the flags."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Settings behind the flags, stored with every build."""

    unrelated_below: float = 0.3
    duplicate_within: float = 1e-3
