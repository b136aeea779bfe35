"""A build as others see it: what it is asked to do, what it tells while it runs, and what has come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from indexer.console.notebook import shown
from indexer.processors import processors
from indexer.records.thresholds import Thresholds
from indexer.vectors.choice import IndexChange

if TYPE_CHECKING:
    from indexer.builds.plan import Estimate, Planned
    from indexer.builds.result import Result


# Options that decide what an atlas holds, by field.
_DECIDING = {
    "limit": "--limit",
    "sort": "--sort",
    "rank": "--rank",
    "relations": "--relation",
    "discover": "--discover",
    "descendants": "--descendants",
    "since": "--since",
    "author": "--author",
    "spectra": "--spectra",
    "keep_factors": "--no-keep-factors",
}


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
    workers: int = field(default_factory=processors)
    memory: int | None = None
    bandwidth: float | None = None
    scheduler: str | None = None
    device: str = "cpu"
    retry_failed: bool = False
    index: IndexChange | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)

    def as_words(self) -> list[str]:
        """The options of `index build` that decide what an atlas holds, as typed; those that are as usual are left out.

        How it was built (workers, memory, bandwidth, a scheduler, a device) is not among them.
        """
        usual = BuildOptions()
        words = []
        for name, flag in _DECIDING.items():
            value = getattr(self, name)
            if value == getattr(usual, name):
                continue
            if name == "relations":
                value = ",".join(self.relations)
            elif name == "since":
                value = value.date().isoformat()
            words += [flag] if isinstance(value, bool) else [flag, str(value)]
        return words


@dataclass(repr=False)
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
    dry_run: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        row = asdict(self)
        del row["problem"]
        for name in ("stopped", "dry_run"):
            if row[name] is None:
                del row[name]
        order = ("base", "base_commit", "discovered", "indexed", "unchanged", "skipped", "failed")
        return {name: row.pop(name) for name in order} | {"atlas": row.pop("atlas")} | row

    @property
    def headline(self) -> str:
        """What came of it, in a line."""
        counts = f"{self.discovered} discovered: {self.indexed} indexed, {self.unchanged} unchanged, "
        ended = f"; stopped: {self.stopped}" if self.stopped else "; a dry run" if self.dry_run is not None else ""
        return f"{self.base}: {counts}{self.skipped} skipped, {self.failed} failed{ended}"

    def __repr__(self) -> str:
        return f"<BuildReport {self.headline}>"

    def _repr_html_(self) -> str:
        return shown(self.headline, self.to_dict())

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

    def confirmed(self, estimate: Estimate) -> bool:
        """Whether to go on and read that much."""
        return True

    def say_progress(self, sentence: str) -> None:
        """How far something has come; the next one replaces it."""
