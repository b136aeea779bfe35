"""The progress of a build over its models: done, failed, skipped, bytes, rates and the time that is left."""

from __future__ import annotations

import re
import sys
from typing import Any

from indexer.builds.result import Result
from indexer.console.messages import Progress, say
from indexer.errors import Failed
from indexer.quantities import duration_in_words, size_in_words

NARROWEST_BAR = 5  # columns; a shorter bar shows less than the count beside it
_PERCENT_AND_EDGES = 7  # " 45%|" and "| "


class ModelsProgress(Progress):
    """A bar as wide as the terminal allows, or plain lines; counts are those of this run."""

    def __init__(self, total: int, base: str) -> None:
        self.failed = self.skipped = self.bytes_read = 0
        super().__init__(total, f"reading fine-tunes of {base}")

    def finished(self, result: Result) -> None:
        """One model is done."""
        if isinstance(result.error, Failed):
            self.failed += 1
        elif result.error is not None:
            self.skipped += 1
        self.bytes_read += result.bytes_read
        self.update(1, size=result.bytes_read)

    def words(self) -> list[str]:
        """What a plain line says behind the count."""
        return self._words(" models/min", " s a model")

    def beside(self, columns: int | None) -> tuple[str, bool]:
        """What stands beside the bar on a terminal of so many columns, and whether a bar still has room."""
        count = f"{self.done}/{self.total}"
        words = [count, *self._words("/min", " s each")]
        long, short = ", ".join([count, *self.words()]), ", ".join(words)
        tight = " ".join(re.sub(r"(?<=\d) (?!failed|skipped)", "", word) for word in words)
        tightest = re.sub(r"(?<=\d\d)\.\d", "", tight).removesuffix(" left")
        if columns is None:
            return long, True
        for text in (long, short):
            if len(text) + NARROWEST_BAR + _PERCENT_AND_EDGES <= columns:
                return text, True
        return next((text for text in (short, tight, tightest) if len(text) <= columns), tightest[:columns]), False

    def _words(self, a_minute: str, a_model: str) -> list[str]:
        is_over = self.done == self.total
        models, size, left = self.rate.units_per_second, self.rate.size_per_second, self.seconds_left
        if is_over and self.seconds > 0:
            models, size = self.done / self.seconds, self.bytes_read / self.seconds
        words = [f"{self.failed} failed", f"{self.skipped} skipped", size_in_words(self.bytes_read)]
        if models is not None and size is not None:
            is_slow = models * 60 < 1
            words.append(f"{_short(1 / models)}{a_model}" if is_slow else f"{_short(models * 60)}{a_minute}")
            words.append(f"{size_in_words(size)}/s")
        if is_over:
            words.append(f"in {duration_in_words(self.seconds)}")
        elif left is not None:
            words.append(f"{duration_in_words(left)} left")
        return words

    def _drawn(self) -> Any:
        from tqdm import tqdm

        progress = self
        say(self.what)

        class Bar(tqdm):
            """Chooses its words by the width it has at the moment."""

            @property
            def format_dict(self) -> dict[str, Any]:
                found = dict(super().format_dict)
                text, has_bar = progress.beside(found["ncols"])
                found["bar_format"] = "{percentage:3.0f}%|{bar}| {beside}" if has_bar else "{beside}"
                return found | {"beside": text}

        return Bar(total=self.total, file=sys.stderr, dynamic_ncols=True)


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}"
