"""How a build is shown on a terminal: a bar of models on stderr, and a line for each remark."""

from __future__ import annotations

import re
import sys
from typing import Any

import click

from indexer.builds.plan import Estimate
from indexer.builds.report import Result, Watcher
from indexer.console.messages import Progress, say, say_more
from indexer.errors import Failed
from indexer.quantities import duration_in_words, size_in_words
from indexer.records.identity import Unit

# Bytes to be read above which the user is asked first.
ASK_ABOVE = 2_000_000_000

NARROWEST_BAR = 5  # columns; a shorter bar shows less than the count next to it
_PERCENT_AND_EDGES = 7  # " 45%|" and "| "


class BuildView(Watcher):
    """The watcher of the command line."""

    def __init__(self, yes: bool = False) -> None:
        super().__init__()
        self.yes = yes
        self._models: ModelsProgress | None = None
        self._pages: Progress | None = None

    def __enter__(self) -> BuildView:
        return self

    def __exit__(self, *ending: object) -> None:
        self._finish_models()
        self._finish_pages()

    def started(self, base: str, units: int) -> None:
        """Work on ``units`` models begins."""
        self._finish_pages()
        self._finish_models()  # of the base before
        if units:
            self._models = ModelsProgress(units, base)

    def finished(self, result: Result[Unit]) -> None:
        """One model is finished."""
        if result.error is not None:
            say_more(f"{result.unit.model.id}: {result.error.reason}: {result.error.detail}")
        if self._models is not None:
            self._models.finished(result)

    def say(self, sentence: str) -> None:
        """Print a remark."""
        self._finish_pages()
        say(sentence)

    def confirmed(self, estimate: Estimate) -> bool:
        """Print what will be read; at a terminal, ask first where that is much. Ctrl-C is not caught."""
        if not estimate.models:
            return True
        self.say(estimate.sentence)
        is_asked = not self.yes and estimate.bytes > ASK_ABOVE and sys.stdin.isatty() and sys.stderr.isatty()
        return not is_asked or click.confirm("Go on?", default=True, err=True)

    def say_progress(self, sentence: str) -> None:
        """A page of the listing was read."""
        if self._pages is None:
            self._pages = Progress(None, "pages of the listing")
        self._pages.update(1, sentence)

    def _finish_pages(self) -> None:
        if self._pages is not None:
            self._pages.close()
            self._pages = None

    def _finish_models(self) -> None:
        if self._models is not None:
            self._models.close()
            self._models = None


class ModelsProgress(Progress):
    """Models done, failed and skipped in this run, bytes, rates and the time left: as a bar, or as plain lines."""

    def __init__(self, total: int, base: str) -> None:
        self.failed = self.skipped = self.bytes_read = 0
        super().__init__(total, f"reading fine-tunes of {base}")

    def finished(self, result: Result[Any]) -> None:
        """One model is finished."""
        if isinstance(result.error, Failed):
            self.failed += 1
        elif result.error is not None:
            self.skipped += 1
        self.bytes_read += result.bytes_read
        self.update(1, size=result.bytes_read)

    def words(self) -> list[str]:
        """What is shown after the count."""
        is_over = self.done == self.total
        models, size, left = self.rate.units_per_second, self.rate.size_per_second, self.seconds_left
        if is_over and self.seconds > 0:
            models, size = self.done / self.seconds, self.bytes_read / self.seconds
        words = [f"{self.failed} failed", f"{self.skipped} skipped", size_in_words(self.bytes_read)]
        if models is not None and size is not None:
            is_slow = models * 60 < 1
            words.append(f"{_short(1 / models)} s each" if is_slow else f"{_short(models * 60)}/min")
            words.append(f"{size_in_words(size)}/s")
        if is_over:
            words.append(f"in {duration_in_words(self.seconds)}")
        elif left is not None:
            words.append(f"{duration_in_words(left)} left")
        return words

    def text_and_bar(self, columns: int | None) -> tuple[str, bool]:
        """The text next to the bar on a terminal of ``columns``, and whether there is room for the bar itself."""
        words = [f"{self.done}/{self.total}", *self.words()]
        text = ", ".join(words)
        if columns is None or len(text) + NARROWEST_BAR + _PERCENT_AND_EDGES <= columns:
            return text, True
        tight = " ".join(re.sub(r"(?<=\d) (?!failed|skipped)", "", word) for word in words)
        tightest = re.sub(r"(?<=\d\d)\.\d", "", tight).removesuffix(" left")
        return next((one for one in (text, tight, tightest) if len(one) <= columns), tightest[:columns]), False

    def _drawn(self) -> Any:
        from tqdm import tqdm

        progress = self
        say(self.what)

        class Bar(tqdm):
            """Chooses its words by its current width."""

            @property
            def format_dict(self) -> dict[str, Any]:
                found = dict(super().format_dict)
                text, has_bar = progress.text_and_bar(found["ncols"])
                found["bar_format"] = "{percentage:3.0f}%|{bar}| {counts}" if has_bar else "{counts}"
                return found | {"counts": text}

        return Bar(total=self.total, file=sys.stderr, dynamic_ncols=True)


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}"
