"""Numbers and measures in words, as a person reads them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from datetime import datetime

from indexer.quantities import counted as counted
from indexer.quantities import duration_in_words, size_in_words

# The measures of a change in `query layers`, with their titles in a picture.
MEASURES = {
    "relative_norm": "‖δW‖ / ‖W‖",
    "norm": "‖δW‖",
    "share": "share of the squared norm of the change",
    "rank_50": "rank that holds 50 % of the energy",
    "rank_90": "rank that holds 90 % of the energy",
    "energy": "energy that the kept singular values hold",
}

NOTHING = "–"  # for a missing value
NONE = 1.5  # share × (1 + pairs) is 1 if no pair is as similar; with room for rounding
_SPACE = "\u00a0"  # no line breaks here


def count(number: int | None) -> str:
    """12,345."""
    return NOTHING if number is None else f"{number:,}"


def joined(words: Iterable[str]) -> str:
    """a, b and c."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def decimal(number: float | None, digits: int = 2) -> str:
    """0.79; a real minus sign, and no minus zero."""
    if number is None:
        return NOTHING
    return f"{round(number, digits) + 0.0:.{digits}f}".replace("-", "−")


def two_decimals(number: float | None) -> str | None:
    """As ``decimal``; None stays None."""
    return None if number is None else decimal(number)


def short(number: float | None) -> float | None:
    """At most four decimals; no minus zero."""
    return None if number is None else round(number, 4) + 0.0


def two_digits(number: float) -> str:
    """0.013, 5e-06: two significant digits."""
    return f"{number:.2g}"


def percent(share: float | None) -> str:
    """79 %; one more digit if it is small; never 0 % or 100 % for other shares."""
    if share is None:
        return NOTHING
    digits = 0 if share in (0, 1) or 0.095 <= share < 0.995 else 1
    text = f"{100 * share:.{digits}f}{_SPACE}%"
    if share and 100 * share < 0.05:
        return f"< 0.1{_SPACE}%"
    return f"> 99.9{_SPACE}%" if share < 1 and text.startswith("100") else text


def span(low: float | None, high: float | None) -> str:
    """0.73–0.84."""
    return NOTHING if low is None or high is None else f"{decimal(low)}–{decimal(high)}"


def rarity(share: float | None, pairs: int | None = None) -> str:
    """How rare such a similarity is among ``pairs`` of unrelated models: "1 in 4,000", or "7 in 10" if it is common.

    The smallest possible ``share``, 1/(1 + pairs), is a bound and not a count: "none of 1,404 pairs". Empty if the
    share is not known. ``rarityText`` in map_panel.js writes the same.
    """
    if share is None:
        return ""
    if pairs and share * (1 + pairs) < NONE:
        return f"none of {pairs:,} pairs"
    if share > 0.95:
        return "nearly all"
    if share > 0.2:
        return f"{round(10 * share)} in 10"
    number = 1 / share
    step = 10 ** max(0, len(str(int(number))) - 2)
    return f"1 in {round(number / step) * step:,}"


def size(number: int | None) -> str:
    """205 MB, where a megabyte has 10⁶ bytes."""
    return NOTHING if number is None else _unbroken(size_in_words(number))


def day(when: datetime | None) -> str:
    """21 November 2026."""
    return NOTHING if when is None else f"{when.day} {when:%B %Y}"


def moment(when: datetime | None) -> str:
    """2026-11-21 11:49."""
    return NOTHING if when is None else f"{when:%Y-%m-%d %H:%M}"


def duration(seconds: float | None) -> str:
    """6 s, 3 min, 2.5 h."""
    return NOTHING if seconds is None else _unbroken(duration_in_words(seconds))


def _unbroken(words: str) -> str:
    return words.replace(" ", _SPACE)


def sql(statement: str) -> str:
    """The command that runs ``statement``, ready to be pasted into a shell."""
    is_plain = not set(statement) & set('"$`\\!')
    return f'query sql "{statement}"' if is_plain else f"query sql {shlex.quote(statement)}"


def literal(text: str) -> str:
    """A string inside a statement."""
    return "'" + text.replace("'", "''") + "'"
