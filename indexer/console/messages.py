"""What is printed on stderr: remarks and progress.

Strings from the Hub are printed without anything that moves a cursor, hides or reorders text.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import time
import unicodedata
from typing import Any, Self

import click

from indexer.quantities import duration_in_words

_PLAIN_PROGRESS_SECONDS = 10.0
# Weight of the latest update in a rate: about twenty updates count, because several workers finish in bursts.
_SMOOTHING = 0.05


@dataclasses.dataclass
class Verbosity:
    """How much to print on stderr, for the whole process."""

    quiet: bool = False
    verbose: bool = False
    debug: bool = False


verbosity = Verbosity()


# Characters without a shape of their own, which hide text, change its direction or join words: Unicode's
# Default_Ignorable_Code_Point, except for those in the categories that `clean` checks anyway.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_MOST_MARKS = 3  # accents on one letter; more are drawn over other lines


def clean(text: str, keep_lines: bool = False) -> str:
    """Escape every character that moves a cursor, hides, or reorders text."""
    if text.isascii() and text.isprintable():
        return text
    shown, marks = [], 0
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        is_harmless = (
            category not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
            and marks <= _MOST_MARKS
            and not _INVISIBLE.match(character)
        )
        if is_harmless or (keep_lines and character == "\n"):
            shown.append(character)
        else:
            shown.append(character.encode("unicode_escape").decode("ascii"))
    return "".join(shown)


def is_coloured(stream: Any) -> bool:
    """Whether colours may be used on ``stream``."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(sentence: str) -> None:
    """Print a line on stderr, unless --quiet was given."""
    if verbosity.quiet:
        return
    if Progress.is_drawn:
        from tqdm import tqdm

        tqdm.write(clean(sentence), file=sys.stderr)
    else:
        click.echo(clean(sentence), err=True)


def say_over_the_bar(sentence: str) -> None:
    """The same in a worker process. Its parent may be drawing a bar: the bar is erased, and drawn again later."""
    if not verbosity.quiet:
        click.echo(("\r\x1b[K" if sys.stderr.isatty() else "") + clean(sentence), err=True)


def say_more(sentence: str) -> None:
    """Print a line on stderr if --verbose was given."""
    if verbosity.verbose:
        say(sentence)


class Progress:
    """A bar if stderr is a terminal, else a plain line now and then.

    Rates are moving averages, so a slow start is soon forgotten.
    """

    is_drawn = False  # whether a bar is on the terminal now

    def __init__(self, total: int | None, what: str) -> None:
        self.what, self.total, self.done, self.note = what, total, 0, ""
        from tqdm.std import EMA

        self._mean_seconds, self._mean_units, self._mean_size = (EMA(_SMOOTHING) for _ in range(3))
        self._started = self._last = self._printed = time.monotonic()
        self._bar: Any = None
        if self.may_draw():
            self._bar = self._drawn()
            Progress.is_drawn = True

    @staticmethod
    def may_draw() -> bool:
        """Whether bars may be drawn at all."""
        return sys.stderr.isatty() and not verbosity.quiet

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ending: object) -> None:
        self.close()

    @property
    def seconds(self) -> float:
        """From the start to the latest update."""
        return self._last - self._started

    @property
    def rate(self) -> float | None:
        """Units per second; None before anything is done."""
        return self._mean_units() / self._mean_seconds() if self._mean_seconds() > 0 else None

    @property
    def size_rate(self) -> float | None:
        """Bytes per second; None before anything is done."""
        return self._mean_size() / self._mean_seconds() if self._mean_seconds() > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """At the recent rate; None if that or the total is not known."""
        return None if not self.rate or self.total is None else max(0, self.total - self.done) / self.rate

    def update(self, count: int = 1, note: str = "", size: float = 0.0) -> None:
        """``count`` more units are done, of ``size`` bytes in all; ``note`` is printed after the numbers."""
        self.done += count
        self.note = note
        now = time.monotonic()
        self._mean_seconds(now - self._last)
        self._mean_units(count)
        self._mean_size(size)
        self._last = now
        if self._bar is not None:
            self._bar.set_postfix_str(clean(note), refresh=False)
            self._bar.update(count)
        elif self._last - self._printed >= _PLAIN_PROGRESS_SECONDS:
            self._print()

    def close(self) -> None:
        """Finish the bar, or print the last line; once."""
        if self._bar is not None:
            self._bar.close()
            Progress.is_drawn = False
        elif self.done:
            self._print()
        self._bar, self.done = None, 0

    def words(self) -> list[str]:
        """What a plain line says after the count."""
        seconds = self.seconds_left
        words = [f"about {duration_in_words(seconds)} left" if seconds and self.done else "", self.note]
        return [word for word in words if word]

    def _drawn(self) -> Any:
        from tqdm import tqdm

        return tqdm(total=self.total, desc=clean(self.what), file=sys.stderr, dynamic_ncols=True, unit="")

    def _print(self) -> None:
        self._printed = time.monotonic()
        count = f"{self.what}: {self.done}" + (f" of {self.total}" if self.total is not None else "")
        say(", ".join([count, *self.words()]))
