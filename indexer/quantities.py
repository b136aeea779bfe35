"""Sizes, durations and lists of names as texts that are easy to read."""

from __future__ import annotations

from collections.abc import Sequence

_SIZES = ("bytes", "kB", "MB", "GB", "TB")


def size_in_words(count: float) -> str:
    """For example 205 MB or 3.4 GB; 1 MB is 1,000,000 bytes."""
    value, unit = float(count), _SIZES[0]
    for unit in _SIZES:
        if value < 999.5 or unit == _SIZES[-1]:
            break
        value /= 1000
    return f"{value:.{0 if unit == _SIZES[0] or value >= 99.95 else 1}f} {unit}"


def duration_in_words(seconds: float) -> str:
    """For example 6 s, 3 min or 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def some_of(names: Sequence[str], most: int = 5) -> str:
    """For example a, b, c; if there are more than ``most``: a, b and 7 more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def counted(number: int, noun: str, plural: str = "") -> str:
    """1 model, 12,345 models."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
