"""How a build shows itself to a person: a bar of models on stderr, and a line for what they should know."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from indexer.builds.plan import Estimate, Planned
from indexer.builds.progress import ModelsProgress
from indexer.builds.report import BuildReport, Watcher
from indexer.builds.result import Result
from indexer.console.terminal import Progress, say, say_more

# Bytes to be read above which a person is asked first.
ASK_ABOVE = 2_000_000_000


class BuildView(Watcher):
    """A watcher for the command line."""

    def __init__(self, yes: bool = False) -> None:
        self.yes = yes
        self._models: ModelsProgress | None = None
        self._pages: Progress | None = None

    def __enter__(self) -> BuildView:
        return self

    def __exit__(self, *ending: object) -> None:
        self._finish_models()
        self._finish_pages()

    def started(self, base: str, units: int, planned: Sequence[Planned]) -> None:
        """Work on ``units`` models begins."""
        self._finish_pages()
        self._finish_models()  # of the base before
        if units:
            self._models = ModelsProgress(units, base)

    def finished(self, result: Result, report: BuildReport) -> None:
        """One model is done."""
        if result.error is not None:
            say_more(f"{result.unit.model.id}: {result.error.reason}: {result.error.detail}")
        if self._models is not None:
            self._models.finished(result)

    def say(self, sentence: str) -> None:
        """A line for people."""
        self._finish_pages()
        say(sentence)

    def confirmed(self, estimate: Estimate) -> bool:
        """Say what is coming; where a person sits at a terminal and that is much, ask. Ctrl-C goes on upwards."""
        if not estimate.models:
            return True
        self.say(estimate.sentence)
        is_asked = not self.yes and estimate.bytes > ASK_ABOVE and sys.stdin.isatty() and sys.stderr.isatty()
        return not is_asked or click.confirm("Go on?", default=True, err=True)

    def say_progress(self, sentence: str) -> None:
        """A page of the listing has come."""
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
