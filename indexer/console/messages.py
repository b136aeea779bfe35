"""What is said on stderr: remarks, progress, and how much of either a person wants to hear.

Strings that come from the Hub are shown without anything that moves a cursor, hides or reorders.
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

from indexer.console.rate import RecentRate
from indexer.quantities import duration_in_words

PLAIN_PROGRESS_SECONDS = 10.0


@dataclasses.dataclass
class Verbosity:
    """How much a person wants to hear, for the whole process."""

    quiet: bool = False
    verbose: bool = False
    debug: bool = False


verbosity = Verbosity()


# Characters without a shape of their own: they hide text, turn its direction or join what is apart (Unicode's
# Default_Ignorable_Code_Point, but for those in the categories that `clean` looks at anyway).
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_MOST_MARKS = 3  # accents on one letter; more are drawn over other lines


def clean(text: str, keep_lines: bool = False) -> str:
    """Text without anything that moves a cursor, hides, or reorders: such characters are shown as escapes."""
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
    """A line on stderr that a person should see, unless they asked for quiet."""
    if verbosity.quiet:
        return
    if Progress.is_drawn:
        from tqdm import tqdm

        tqdm.write(clean(sentence), file=sys.stderr)
    else:
        click.echo(clean(sentence), err=True)


def say_over_the_bar(sentence: str) -> None:
    """The same from a process whose parent may be drawing a bar: that is wiped away, and drawn again later."""
    if not verbosity.quiet:
        click.echo(("\r\x1b[K" if sys.stderr.isatty() else "") + clean(sentence), err=True)


def say_more(sentence: str) -> None:
    """A line on stderr for a person who asked for more."""
    if verbosity.verbose:
        say(sentence)


class Progress:
    """A bar on stderr where that is a terminal, else a plain line now and then."""

    is_drawn = False  # whether a bar is on the terminal now

    def __init__(self, total: int | None, what: str) -> None:
        self.what, self.total, self.done, self.note = what, total, 0, ""
        self.rate = RecentRate()
        self._started = self._last = self._told = time.monotonic()
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
        """From the start to what was done last."""
        return self._last - self._started

    @property
    def seconds_left(self) -> float | None:
        """By the rate of late; None where that, or how much there is to do, is not known."""
        rate = self.rate.units_per_second
        return None if rate is None or self.total is None else max(0, self.total - self.done) / rate

    def update(self, count: int = 1, note: str = "", size: float = 0.0) -> None:
        """``count`` more are done, of ``size`` bytes in all; ``note`` stands behind the numbers."""
        self.done += count
        self.note = note
        self.rate.note(count, size)
        self._last = time.monotonic()
        if self._bar is not None:
            self._bar.set_postfix_str(clean(note), refresh=False)
            self._bar.update(count)
        elif self._last - self._told >= PLAIN_PROGRESS_SECONDS:
            self._tell()

    def close(self) -> None:
        """Finish the bar, or say the last line; once."""
        if self._bar is not None:
            self._bar.close()
            Progress.is_drawn = False
        elif self.done:
            self._tell()
        self._bar, self.done = None, 0

    def words(self) -> list[str]:
        """What a plain line says behind the count."""
        left = self.seconds_left
        told = [f"about {duration_in_words(left)} left"] if left and self.done else []
        return [*told, self.note] if self.note else told

    def _drawn(self) -> Any:
        from tqdm import tqdm

        return tqdm(total=self.total, desc=clean(self.what), file=sys.stderr, dynamic_ncols=True, unit="")

    def _tell(self) -> None:
        self._told = time.monotonic()
        count = f"{self.what}: {self.done}" + (f" of {self.total}" if self.total is not None else "")
        say(", ".join([count, *self.words()]))
