"""Results of single units, the report of a whole run, and the events of a build in progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from indexer.console.notebook import shown
from indexer.errors import Failed, ModelError

if TYPE_CHECKING:
    from indexer.builds.estimate import Estimate
    from indexer.records.identity import Unit


class Digested(Protocol):
    """The identity of a unit of work."""

    @property
    def digest(self) -> str:
        """A hash of everything that the result depends on, or another text that no other unit of the run has."""
        ...


class WorkUnit(Protocol):
    """A model whose record is to be made, whose depth profile is to be measured, or that is read to be described."""

    @property
    def identity(self) -> Digested:
        """The identity of the file that is to be written, or of the unit where none is."""
        ...


U = TypeVar("U", bound=WorkUnit)


@dataclass(frozen=True)
class Result(Generic[U]):
    """The result of one unit; ``error`` is None if its file was written, or ``is_unchanged``: it needs no new one."""

    unit: U
    error: ModelError | None
    bytes_read: int = 0
    bytes_total: int = 0
    seconds: float = 0.0
    is_unchanged: bool = False


class Worker(Protocol[U]):
    """Does one unit of work. It is sent to other processes, so it must be picklable."""

    def __call__(self, unit: U) -> Result[U]:
        """Do the work. Never raises because of a bad model."""
        ...

    def give_up(self, unit: U, error: ModelError) -> Result[U]:
        """The result of a unit whose process died each time."""
        ...


# The keys of a report's JSON, in order; a kind of report that lacks one leaves it out.
_KEYS = (
    "base", "base_commit", "discovered", "indexed", "unchanged", "skipped", "failed", "bytes_read", "bytes_total",
    "seconds", "atlas",
)  # fmt: skip


@dataclass(repr=False)
class RunReport:
    """Counts of one run: discovered = indexed + unchanged + skipped + failed."""

    base: str
    base_commit: str
    atlas: str
    discovered: int = 0
    indexed: int = 0
    unchanged: int = 0
    skipped: int = 0
    failed: int = 0
    seconds: float = 0.0

    def count(self, error: ModelError | None) -> None:
        """One more model was worked on."""
        if error is None:
            self.indexed += 1
        elif isinstance(error, Failed):
            self.failed += 1
        else:
            self.skipped += 1

    @property
    def is_success(self) -> bool:
        """Whether at least one model is indexed, or has a profile."""
        return self.indexed + self.unchanged > 0

    @property
    def headline(self) -> str:
        """The counts in a line."""
        return (
            f"{self.base}: {self.discovered} discovered: {self.indexed} indexed, {self.unchanged} unchanged, "
            f"{self.skipped} skipped, {self.failed} failed"
        )

    def to_dict(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        return {name: getattr(self, name) for name in _KEYS if hasattr(self, name)}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.headline}>"

    def _repr_html_(self) -> str:
        return shown(self.headline, self.to_dict())


@dataclass(repr=False)
class BuildReport(RunReport):
    """The report of a build.

    ``stopped`` says why it did not finish, ``problem`` what was wrong with the last model that was not indexed,
    ``dry_run`` what would have been read. ``conversions``: how many of those that were skipped are copies in other
    formats, of which it was looked for what they are copies of.
    """

    bytes_read: int = 0
    bytes_total: int = 0
    conversions: int = 0
    stopped: str | None = None
    problem: str | None = None
    dry_run: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        extra = {"conversions": self.conversions or None, "stopped": self.stopped, "dry_run": self.dry_run}
        return super().to_dict() | {name: value for name, value in extra.items() if value is not None}

    @property
    def headline(self) -> str:
        """The counts in a line, and how the build ended."""
        ended = f"; stopped: {self.stopped}" if self.stopped else "; a dry run" if self.dry_run is not None else ""
        return super().headline + ended

    @property
    def is_success(self) -> bool:
        """Whether the build finished and a model is indexed, or is a conversion."""
        return self.stopped is None and (self.dry_run is not None or super().is_success or self.conversions > 0)


@dataclass(repr=False)
class ProfileReport(RunReport):
    """The report of `index profile`; ``refused`` names the models that were skipped or failed, and why."""

    refused: list[dict[str, str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        return super().to_dict() | {"refused": self.refused}


@dataclass(frozen=True)
class BuildEvent:
    """Something that happened in a build.

    ``kind``: ``listing``, a page of the Hub's listing was read; ``started``, ``total`` models will be read; ``model``,
    one more is finished, ``done`` so far; ``note``, a remark. ``message`` says it in words. ``started`` also has the
    ``base``; events of a model have its id, its ``outcome``, and the bytes read.
    """

    kind: Literal["listing", "started", "model", "note"]
    message: str
    done: int = 0
    total: int | None = None
    model: str | None = None
    outcome: Literal["indexed", "skipped", "failed"] | None = None
    bytes_read: int = 0
    base: str | None = None


# Called with every event.
Progress = Callable[[BuildEvent], None]
# Called with what will be read; returns whether to continue.
Confirm = Callable[["Estimate"], bool]


class Watcher:
    """Turns what happens in a build into events for ``progress``; ``confirm`` is asked before models are read."""

    def __init__(self, progress: Progress | None = None, confirm: Confirm | None = None) -> None:
        self.progress: Progress = progress or (lambda _event: None)
        self.confirm: Confirm = confirm or (lambda _estimate: True)
        self.done = self.total = 0

    def started(self, base: str, units: int) -> None:
        """Work on ``units`` models begins."""
        self.done, self.total = 0, units
        self.progress(BuildEvent("started", f"reading {units} fine-tunes of {base}", total=units, base=base))

    def finished(self, result: Result[Unit]) -> None:
        """One model is finished."""
        self.done += 1
        error, model = result.error, result.unit.model.id
        self.progress(
            BuildEvent(
                "model",
                model if error is None else f"{model}: {error.reason}: {error.detail}",
                done=self.done,
                total=self.total,
                model=model,
                outcome="indexed" if error is None else "failed" if isinstance(error, Failed) else "skipped",
                bytes_read=result.bytes_read,
            )
        )

    def say(self, sentence: str) -> None:
        """A remark that a person should see."""
        self.progress(BuildEvent("note", sentence))

    def listed(self, sentence: str) -> None:
        """A page of the listing was read; this sentence replaces the previous one."""
        self.progress(BuildEvent("listing", sentence))
