"""A build as others see it: what it is asked to do, what it tells while it runs, and what has come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from indexer.build.resources import default_workers
from indexer.records.thresholds import Thresholds
from indexer.vectors.choice import IndexChange

if TYPE_CHECKING:
    from indexer.build.plan import Planned
    from indexer.build.result import Result


@dataclass(frozen=True)
class BuildOptions:
    """What a build is asked to do; see `index build --help`."""

    limit: int | None = None
    sort: str = "downloads"
    rank: int = 8
    relations: tuple[str, ...] = ("finetune", "adapter")
    discover: str = "tags"
    descendants: bool = False
    since: datetime | None = None
    author: str | None = None
    spectra: bool = False
    keep_factors: bool = True
    workers: int = field(default_factory=default_workers)
    memory: int | None = None
    bandwidth: float | None = None
    scheduler: str | None = None
    device: str = "cpu"
    retry_failed: bool = False
    index: IndexChange | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)


@dataclass
class BuildReport:
    """Counts of one run: discovered = indexed + unchanged + skipped + failed.

    ``stopped`` says why it did not run to its end, ``problem`` what was wrong with the last model that came to
    nothing, ``dry_run`` what would have been read.
    """

    base: str
    base_commit: str
    atlas: str
    discovered: int = 0
    indexed: int = 0
    unchanged: int = 0
    skipped: int = 0
    failed: int = 0
    bytes_read: int = 0
    bytes_total: int = 0
    seconds: float = 0.0
    stopped: str | None = None
    problem: str | None = None
    dry_run: dict[str, int] | None = None

    def as_row(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        row = asdict(self)
        del row["problem"]
        for name in ("stopped", "dry_run"):
            if row[name] is None:
                del row[name]
        order = ("base", "base_commit", "discovered", "indexed", "unchanged", "skipped", "failed")
        return {name: row.pop(name) for name in order} | {"atlas": row.pop("atlas")} | row

    @property
    def is_success(self) -> bool:
        """Whether the build ran to its end and something is indexed."""
        return self.stopped is None and (self.dry_run is not None or self.indexed + self.unchanged > 0)


class Watcher:
    """Told of what happens; the command line shows it, a library user may ignore it."""

    def started(self, base: str, units: int, planned: Sequence[Planned]) -> None:
        """Work on ``units`` models begins."""

    def finished(self, result: Result, report: BuildReport) -> None:
        """One model is done."""

    def say(self, sentence: str) -> None:
        """Something that a person should know."""

    def say_progress(self, sentence: str) -> None:
        """How far something has come; the next one replaces it."""
