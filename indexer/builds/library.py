"""`index build` and `index add` for Python: the same arguments, progress by callback, the report as an object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from indexer.builds.bases import add_model, build_bases
from indexer.builds.options import Size, build_options
from indexer.builds.report import BuildReport, Watcher
from indexer.errors import Failed

if TYPE_CHECKING:
    from indexer.builds.plan import Planned
    from indexer.builds.result import Result


@dataclass(frozen=True)
class BuildEvent:
    """Something that happened in a build.

    ``kind``: ``listing``, a page of the listing has come; ``started``, ``total`` models are to be read; ``model``,
    one is done, ``done`` so far; ``note``, something to know. ``message`` says it in words. Of a model: its id, its
    ``outcome``, and the bytes read of it.
    """

    kind: Literal["listing", "started", "model", "note"]
    message: str
    done: int = 0
    total: int | None = None
    model: str | None = None
    outcome: Literal["indexed", "skipped", "failed"] | None = None
    bytes_read: int = 0


Progress = Callable[[BuildEvent], None]


class _Teller(Watcher):
    """Tells a function what happens."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress or (lambda _event: None)
        self.done = self.total = 0

    def started(self, base: str, units: int, planned: Sequence[Planned]) -> None:
        self.done, self.total = 0, units
        self.progress(BuildEvent("started", f"reading {units} fine-tunes of {base}", total=units))

    def finished(self, result: Result, report: BuildReport) -> None:
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
        self.progress(BuildEvent("note", sentence))

    def say_progress(self, sentence: str) -> None:
        self.progress(BuildEvent("listing", sentence))


@overload
def build(
    base: str,
    atlas: str | Path = ...,
    *,
    limit: int | None = ...,
    sort: str = ...,
    relation: str = ...,
    discover: str = ...,
    descendants: bool = ...,
    since: str | date | None = ...,
    author: str | None = ...,
    retry_failed: bool = ...,
    rank: int = ...,
    spectra: bool = ...,
    keep_factors: bool = ...,
    device: str = ...,
    workers: int | None = ...,
    memory: Size = ...,
    bandwidth: Size = ...,
    index: str | None = ...,
    index_memory: Size = ...,
    recall: float | None = ...,
    vector_length: int | None = ...,
    executor: str = ...,
    scheduler: str | None = ...,
    dry_run: bool = ...,
    progress: Progress | None = ...,
) -> BuildReport: ...
@overload
def build(
    base: list[str] | tuple[str, ...],
    atlas: str | Path = ...,
    *,
    limit: int | None = ...,
    sort: str = ...,
    relation: str = ...,
    discover: str = ...,
    descendants: bool = ...,
    since: str | date | None = ...,
    author: str | None = ...,
    retry_failed: bool = ...,
    rank: int = ...,
    spectra: bool = ...,
    keep_factors: bool = ...,
    device: str = ...,
    workers: int | None = ...,
    memory: Size = ...,
    bandwidth: Size = ...,
    index: str | None = ...,
    index_memory: Size = ...,
    recall: float | None = ...,
    vector_length: int | None = ...,
    executor: str = ...,
    scheduler: str | None = ...,
    dry_run: bool = ...,
    progress: Progress | None = ...,
) -> list[BuildReport]: ...
def build(
    base: str | list[str] | tuple[str, ...],
    atlas: str | Path = "atlas",
    *,
    limit: int | None = None,
    sort: str = "downloads",
    relation: str = "finetune,adapter",
    discover: str = "tags",
    descendants: bool = False,
    since: str | date | None = None,
    author: str | None = None,
    retry_failed: bool = False,
    rank: int = 8,
    spectra: bool = False,
    keep_factors: bool = True,
    device: str = "cpu",
    workers: int | None = None,
    memory: Size = None,
    bandwidth: Size = None,
    index: str | None = None,
    index_memory: Size = None,
    recall: float | None = None,
    vector_length: int | None = None,
    executor: str = "local",
    scheduler: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> BuildReport | list[BuildReport]:
    """Crawl the fine-tunes of ``base``, read what is new, publish into the folder ``atlas``: what `index build` does.

    Run it again at any time: unchanged models are not read again, failures are.

    ``limit``: only the first so many of the listing, in the order of ``sort`` (downloads, created or likes).
    ``relation``: finetune, adapter, merge, quantized, separated by commas. ``discover``: names also looks for untagged
    fine-tunes. ``since``: a day (2024-01-31). ``rank``: singular triplets kept of each δW. ``spectra``: also all its
    singular values. ``keep_factors``: False saves disk. ``workers``: processes. ``memory``, ``bandwidth`` (a second)
    and ``index_memory``: bytes, or text like "2G". ``recall``: the least recall@10 of a compressed index, 0 to 1.
    ``vector_length``: about how many numbers a vector has.
    ``dry_run``: crawl, then only say how many models and bytes. ``progress`` is called with a :class:`BuildEvent` for
    all that happens; without it nothing is said.

    Gives the report of the one base, or a list of them; ``report.stopped`` says why a build did not run to its end.
    Several workers are started as new processes: in a script, call it below ``if __name__ == "__main__"``. Raises
    AtlasError where a base is unknown or held at another rank, an argument is wrong, or the atlas is being written to.
    """
    options = build_options(
        limit=limit,
        sort=sort,
        rank=rank,
        relation=relation,
        discover=discover,
        descendants=descendants,
        since=since,
        author=author,
        spectra=spectra,
        keep_factors=keep_factors,
        workers=workers,
        memory=memory,
        bandwidth=bandwidth,
        executor=executor,
        scheduler=scheduler,
        device=device,
        retry_failed=retry_failed,
        index=index,
        index_memory=index_memory,
        recall=recall,
        vector_length=vector_length,
    )
    names = [base] if isinstance(base, str) else list(base)
    reports = build_bases(str(atlas), names, options, dry_run, _Teller(progress))
    return reports[0] if isinstance(base, str) else reports


def add(
    model: str | Path,
    base: str,
    atlas: str | Path = "atlas",
    *,
    rank: int = 8,
    spectra: bool = False,
    keep_factors: bool = True,
    device: str = "cpu",
    vector_length: int | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Add one model, a Hub id, ``owner/name@revision`` or a local checkpoint folder: what `index add` does.

    ``name``: what the atlas calls a folder, by default ``local:NAME`` by its own; where it lies is kept nowhere.
    See :func:`build` for the other arguments; ``report.problem`` says why a model was not indexed. Raises AtlasError
    where it cannot be found or is the base itself, and as ``build`` does.
    """
    options = build_options(
        rank=rank, spectra=spectra, keep_factors=keep_factors, device=device, vector_length=vector_length
    )
    return add_model(str(atlas), str(model), base, options, _Teller(progress), name)
