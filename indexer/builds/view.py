"""How a build is shown on a terminal: a bar of models on stderr, and a line for each remark."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from indexer.builds.report import BuildEvent
from indexer.console.advice import for_command_line
from indexer.console.messages import Progress, say, say_more
from indexer.quantities import duration_in_words, size_in_words

if TYPE_CHECKING:
    from indexer.builds.estimate import Estimate

# Bytes to be read above which the user is asked first.
_ASK_ABOVE = 2_000_000_000

_NARROWEST_BAR = 5  # columns; a shorter bar shows less than the count next to it
_PERCENT_AND_EDGES = 7  # " 45%|" and "| "


class BuildView:
    """Shows the events of a build: the ``progress`` and ``confirm`` of the command line. ``yes``: never ask."""

    def __init__(self, yes: bool = False) -> None:
        self.yes = yes
        self._shown: Progress | None = None  # the pages of the listing, then the models of a base

    def __enter__(self) -> BuildView:
        return self

    def __exit__(self, *ending: object) -> None:
        self._close()

    def __call__(self, event: BuildEvent) -> None:
        """Show one event."""
        if event.kind == "started":
            self._close()
            if event.total:
                self._shown = ModelsProgress(event.total, event.base or "")
        elif event.kind == "model":
            if event.outcome != "indexed":
                say_more(event.message)
            if isinstance(self._shown, ModelsProgress):
                self._shown.finished(event)
        elif event.kind == "listing":
            if self._shown is None or isinstance(self._shown, ModelsProgress):
                self._close()
                self._shown = Progress(None, "pages of the listing")
            self._shown.update(1, event.message)
        else:
            if not isinstance(self._shown, ModelsProgress):
                self._close()
            say(for_command_line(event.message))

    def confirm(self, estimate: Estimate) -> bool:
        """Print what will be read; at a terminal, ask first if that is much. Ctrl-C is not caught."""
        if not estimate.models:
            return True
        self(BuildEvent("note", estimate.sentence))
        is_asked = not self.yes and estimate.bytes > _ASK_ABOVE and sys.stdin.isatty() and sys.stderr.isatty()
        return not is_asked or click.confirm("Go on?", default=True, err=True)

    def _close(self) -> None:
        if self._shown is not None:
            self._shown.close()
            self._shown = None


class ModelsProgress(Progress):
    """Models done, failed and skipped in this run, bytes, rates and the time left: as a bar, or as plain lines."""

    def __init__(self, total: int, base: str) -> None:
        self.failed = self.skipped = self.bytes_read = 0
        super().__init__(total, f"reading fine-tunes of {base}")

    def finished(self, event: BuildEvent) -> None:
        """One model is finished."""
        self.failed += event.outcome == "failed"
        self.skipped += event.outcome == "skipped"
        self.bytes_read += event.bytes_read
        self.update(1, size=event.bytes_read)

    def words(self) -> list[str]:
        """What is shown after the count."""
        is_over = self.done == self.total
        models, size, seconds = self.rate, self.size_rate, self.seconds_left
        if is_over and self.seconds > 0:
            models, size = self.done / self.seconds, self.bytes_read / self.seconds
        words = [f"{self.failed} failed", f"{self.skipped} skipped", size_in_words(self.bytes_read)]
        if models is not None and size is not None:
            is_slow = models * 60 < 1
            rate = 1 / models if is_slow else models * 60
            short = f"{rate:.{1 if rate < 9.95 else 0}f}"
            words.append(f"{short} s each" if is_slow else f"{short}/min")
            words.append(f"{size_in_words(size)}/s")
        if is_over:
            words.append(f"in {duration_in_words(self.seconds)}")
        elif seconds is not None:
            words.append(f"{duration_in_words(seconds)} left")
        return words

    def text_and_bar(self, columns: int | None) -> tuple[str, bool]:
        """The text next to the bar on a terminal of ``columns``, and whether there is room for the bar itself."""
        words = [f"{self.done}/{self.total}", *self.words()]
        text = ", ".join(words)
        if columns is None or len(text) + _NARROWEST_BAR + _PERCENT_AND_EDGES <= columns:
            return text, True
        tight = " ".join(re.sub(r"(?<=\d) (?!failed|skipped)", "", word) for word in words)
        tightest = re.sub(r"(?<=\d\d)\.\d", "", tight).removesuffix(" left")
        return next((line for line in (text, tight, tightest) if len(line) <= columns), tightest[:columns]), False

    def _drawn(self) -> Any:
        from tqdm import tqdm

        progress = self
        say(self.what)

        class Bar(tqdm):
            """Chooses its words by its current width."""

            @property
            def format_dict(self) -> dict[str, Any]:
                fields = dict(super().format_dict)
                text, has_bar = progress.text_and_bar(fields["ncols"])
                fields["bar_format"] = "{percentage:3.0f}%|{bar}| {counts}" if has_bar else "{counts}"
                return fields | {"counts": text}

        return Bar(total=self.total, file=sys.stderr, dynamic_ncols=True)
