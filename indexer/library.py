"""Every `index` command for Python: the same arguments, progress by callback, the report as an object or mapping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from indexer.atlas import AtlasFolder
from indexer.builds.bases import add_model, build_bases
from indexer.builds.options import Size, build_options, index_change
from indexer.builds.report import BuildOptions, BuildReport, Watcher
from indexer.errors import Failed, require

if TYPE_CHECKING:
    from indexer.builds.plan import Planned
    from indexer.builds.profiling import ProfileReport
    from indexer.builds.result import Result
    from indexer.publish.verification import Disagreement
    from indexer.share.merge import MergeReport
    from indexer.share.pull import PullReport
    from indexer.share.push import PushReport


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


def work(
    base: str, shard: str, atlas: str | Path = "atlas", *, progress: Progress | None = None, **options: Any
) -> BuildReport:
    """Do one share of a build (``shard``: "0/16" to "15/16") and publish nothing: what `index work` does.

    ``options``: those of :func:`build` that choose models, records and resources, the same for all shares. Raises
    ValueError for a shard that is none, AtlasError as ``build`` does.
    """
    from indexer.builds.shards import Shard, work_shard

    return work_shard(str(atlas), base, Shard.parse(shard), build_options(**options), _Teller(progress))


def publish_records(
    bases: str | Sequence[str] = (),
    atlas: str | Path = "atlas",
    *,
    rank: int | None = None,
    index: str | None = None,
    index_memory: Size = None,
    recall: float | None = None,
    vector_length: int | None = None,
    progress: Progress | None = None,
) -> list[BuildReport]:
    """Publish what :func:`work` has done for ``bases`` (all, if none is named): what `index publish` does.

    It is not named ``publish``, as the package ``indexer.publish`` is.
    ``rank``: of the records; by default the atlas's, else theirs. The network is not asked. Raises AtlasError where
    there is nothing to publish, or a base or rank does not fit.
    """
    from indexer.builds import shards
    from indexer.names import RELATIONS

    change = index_change(index, index_memory, recall, vector_length)
    names = [bases] if isinstance(bases, str) else list(bases)
    return shards.publish_records(
        str(atlas), names, BuildOptions(relations=RELATIONS, index=change), _Teller(progress), rank
    )


def remove(
    model: str, base: str | None = None, atlas: str | Path = "atlas", *, keep_record: bool = False
) -> dict[str, Any]:
    """Take a model out of the atlas: tables, vectors, profiles and records; what `index remove` does.

    ``base``: only as a model of this base. ``keep_record``: adding it again reads nothing. Gives ``model``, ``bases``,
    ``records_removed`` and ``atlas``. Raises AtlasError where the atlas does not hold it.
    """
    from indexer.builds.removal import remove_model

    return remove_model(str(atlas), model, base, keep_record=keep_record)


def profile(
    models: str | Sequence[str] = (),
    base: str | None = None,
    atlas: str | Path = "atlas",
    *,
    limit: int | None = None,
    with_untrained: bool = False,
    probe: Literal["random", "text", "image"] | None = None,
    text: str | Path | None = None,
    images: Sequence[str | Path] = (),
    recover: bool = False,
    exact: bool = False,
    layers: Sequence[int] | None = None,
    recipe: Literal["default", "seed"] = "default",
    steps: int | None = None,
    shift: float | None = None,
    rate: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    workers: int | None = None,
    memory: Size = None,
) -> ProfileReport:
    """Measure what each layer of ``models``, or of the fine-tunes of ``base``, keeps of its input: `index profile`.

    ``limit``: only so many of them, most downloads first. ``with_untrained``: also the base's architecture with fresh
    weights. ``probe``, ``text``, ``images``: what to ask with. ``recover``, ``exact``: also find the input again, by
    gradients or by search. ``layers``: only these. ``steps``, ``shift``, ``rate``: of the recipe "seed". ``memory``:
    bytes for all workers, or text like "2G". Raises AtlasError where a model is not indexed, or the base cannot be run.
    """
    require("Profiling", "torch", "transformers")
    from indexer.builds.profile_options import base_and_models, profile_options
    from indexer.builds.profiling import profile_base

    folder = AtlasFolder(atlas).require()
    options = profile_options({
        "limit": limit, "with_untrained": with_untrained, "probe": probe, "text": text, "images": images,
        "recover": recover, "exact": exact, "layers": None if layers is None else ",".join(map(str, layers)),
        "recipe": recipe, "steps": steps, "shift": shift, "rate": rate, "seed": seed, "device": device,
        "workers": workers, "memory": memory,
    })  # fmt: skip
    canonical, named = base_and_models(folder, base, [models] if isinstance(models, str) else models)
    with folder.locked("index profile"):
        return profile_base(folder, canonical, named, options)


def status(atlas: str | Path = "atlas") -> dict[str, Any]:
    """What is in the atlas: bases, models by status, representations, bytes. Raises AtlasError where there is none."""
    from indexer.publish.maintenance import status as status_of

    return status_of(AtlasFolder(atlas))


def verify(atlas: str | Path = "atlas", *, strict: bool = False) -> list[Disagreement]:
    """What disagrees between files, checksums and database; an empty list where all is well: `index verify`.

    ``strict``: also whether the atlas is what schema.sql and its records say, computed again. Raises AtlasError where
    there is no atlas.
    """
    if strict:
        from indexer.publish.strictness import verify_strictly

        return verify_strictly(AtlasFolder(atlas))
    from indexer.publish.verification import verify as verify_atlas

    return verify_atlas(AtlasFolder(atlas))


def rebuild(
    atlas: str | Path = "atlas",
    *,
    force: bool = False,
    vector_length: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Make the database and the FAISS files again from listing and records: what `index rebuild` does.

    ``force``: even where fewer models would be left. Raises AtlasError where models would be lost or there is nothing
    to build from; nothing is changed then.
    """
    from indexer.publish.maintenance import rebuild as rebuild_atlas

    folder = AtlasFolder(atlas)
    with folder.locked("index rebuild"):
        return rebuild_atlas(
            folder, say=_Teller(progress).say, force=force, index=index_change(None, None, None, vector_length)
        )


def represent(
    name: str,
    atlas: str | Path = "atlas",
    *,
    index: str | None = None,
    index_memory: Size = None,
    recall: float | None = None,
    vector_length: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Publish another representation from the records, without reading a checkpoint: what `index represent` does.

    Raises AtlasError where there is no representation of that name, or the records lack what it needs.
    """
    from indexer.publish.maintenance import represent as represent_atlas

    folder = AtlasFolder(atlas).require()
    with folder.locked(f"index represent {name}"):
        change = index_change(index, index_memory, recall, vector_length)
        return represent_atlas(folder, name, change, _Teller(progress).say)


def push(
    name: str,
    atlas: str | Path = "atlas",
    *,
    private: bool = False,
    tag: str | None = None,
    with_records: bool = False,
    with_local: bool = False,
    with_private: bool = False,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> PushReport:
    """Publish the atlas as the dataset ``name`` (OWNER/NAME) on the Hub, in one commit: what `index push` does.

    ``with_local``, ``with_private``: even where models are folders of this machine, or private or gated on the Hub.
    Raises AtlasError where this account may not, or a newer atlas is there (unless ``force``).
    """
    from indexer.share.push import PushOptions
    from indexer.share.push import push as push_atlas

    options = PushOptions(
        private=private,
        tag=tag,
        with_records=with_records,
        with_local=with_local,
        with_private=with_private,
        force=force,
        dry_run=dry_run,
    )
    return push_atlas(AtlasFolder(atlas), name, options, _Teller(progress).say)


def pull(
    name: str, atlas: str | Path = "atlas", *, with_records: bool = False, progress: Progress | None = None
) -> PullReport:
    """Fetch the atlas ``name`` (OWNER/NAME[@TAG]) from the Hub into a folder, and check it: what `index pull` does.

    Raises AtlasError where there is none, it is damaged, or the folder holds another.
    """
    from indexer.share.pull import pull as pull_atlas

    return pull_atlas(AtlasFolder(atlas), name, _Teller(progress).say, with_records=with_records)


def merge(
    sources: Sequence[str | Path], atlas: str | Path = "atlas", *, progress: Progress | None = None
) -> MergeReport:
    """Make one new atlas of several, from their records: what `index merge` does.

    Raises AtlasError where one has no records, their bases do not fit, or ``atlas`` is not empty.
    """
    from indexer.share.merge import merge as merge_atlases

    return merge_atlases([AtlasFolder(one) for one in sources], AtlasFolder(atlas), _Teller(progress).say)
