"""Every `index` command as a Python function: the same arguments, progress by callback, the report as an object."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from indexer.atlas import AtlasFolder
from indexer.builds.commands import Shard, add_model, build_bases, work_shard
from indexer.builds.commands import publish_records as publish_bases
from indexer.builds.options import BuildArguments, BuildOptions, IndexArguments, RecordArguments, index_change
from indexer.builds.report import BuildEvent, BuildReport, Progress, Watcher
from indexer.errors import require
from indexer.names import RELATIONS

if TYPE_CHECKING:
    from indexer.builds.profiling import ProfileArguments
    from indexer.builds.report import ProfileReport
    from indexer.publish.verification import Disagreement
    from indexer.share.merge import MergeReport
    from indexer.share.pull import PullReport
    from indexer.share.push import PushReport

__all__ = [
    "BuildEvent", "Progress", "add", "build", "merge", "profile", "publish_records", "pull", "push", "rebuild",
    "remove", "represent", "status", "verify", "work",
]  # fmt: skip


@overload
def build(
    base: str,
    atlas: str | Path = ...,
    *,
    dry_run: bool = ...,
    progress: Progress | None = ...,
    **options: Unpack[BuildArguments],
) -> BuildReport: ...
@overload
def build(
    base: list[str] | tuple[str, ...],
    atlas: str | Path = ...,
    *,
    dry_run: bool = ...,
    progress: Progress | None = ...,
    **options: Unpack[BuildArguments],
) -> list[BuildReport]: ...
def build(
    base: str | list[str] | tuple[str, ...],
    atlas: str | Path = "atlas",
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    **options: Unpack[BuildArguments],
) -> BuildReport | list[BuildReport]:
    """Crawl the fine-tunes of ``base``, read what is new, publish into the folder ``atlas``: what `index build` does.

    Run it again at any time: unchanged models are not read again, failures are.

    ``dry_run``: crawl, then only report how many models and bytes would be read. ``progress`` is called with a
    :class:`BuildEvent` for everything that happens. ``options``, with their defaults:

    - ``limit`` (None), ``sort`` ("downloads", or created, likes): only the first ``limit`` models in that order
    - ``relation`` ("finetune,adapter"): of finetune, adapter, merge and quantized, separated by commas
    - ``discover`` ("tags"): "names" also looks for fine-tunes without a base_model tag
    - ``descendants`` (False): also fine-tunes of fine-tunes
    - ``since`` (None): only models created on or after this day, a date or "2024-01-31"
    - ``author`` (None): only models of this author
    - ``retry_failed`` (False): try every failure again now
    - ``rank`` (8): singular triplets kept of each δW; ``spectra`` (False): also keep all its singular values
    - ``keep_factors`` (True): False keeps only vectors and norms, to save disk space
    - ``device`` ("cpu"), ``workers`` (one for each processor): where and in how many processes the SVD runs
    - ``memory`` (half of what is free), ``bandwidth`` (no limit): bytes, and bytes a second, or text like "2G"
    - ``index`` (auto), ``index_memory`` (1 GiB), ``recall`` (0.95): the FAISS index, the largest size of a compressed
      one, and its smallest recall@10
    - ``vector_length`` (8,208): about how many numbers a vector has
    - ``executor`` ("local") and ``scheduler`` (None): "dask" and the address of its scheduler

    Returns the report of the one base, or a list of reports; ``report.stopped`` says why a build did not finish.
    Several workers are started as new processes: in a script, call this under ``if __name__ == "__main__"``. Raises
    AtlasError where a base is unknown or published at another rank, an argument is wrong, or another process writes to
    the atlas.
    """
    names = [base] if isinstance(base, str) else list(base)
    reports = build_bases(str(atlas), names, BuildOptions.parse(**options), dry_run, Watcher(progress))
    return reports[0] if isinstance(base, str) else reports


def add(
    model: str | Path,
    base: str,
    atlas: str | Path = "atlas",
    *,
    name: str | None = None,
    progress: Progress | None = None,
    **options: Unpack[RecordArguments],
) -> BuildReport:
    """Add one model, a Hub id, ``owner/name@revision`` or a local checkpoint folder: what `index add` does.

    ``name``: what the atlas calls a folder, by default ``local:NAME`` after the folder; its path is not stored.
    ``options``: rank, spectra, keep_factors, device and vector_length, as in :func:`build`. ``report.problem`` says why
    a model was not indexed. Raises AtlasError where it cannot be found or is the base itself, and as ``build`` does.
    """
    return add_model(str(atlas), str(model), base, BuildOptions.parse(**options), Watcher(progress), name)


def work(
    base: str,
    shard: str,
    atlas: str | Path = "atlas",
    *,
    progress: Progress | None = None,
    **options: Unpack[BuildArguments],
) -> BuildReport:
    """Do one share of a build (``shard``: "0/16" to "15/16") and publish nothing: what `index work` does.

    ``options``: those of :func:`build`, the same for all shares. Raises AtlasError as ``build`` does.
    """
    return work_shard(str(atlas), base, Shard.parse(shard), BuildOptions.parse(**options), Watcher(progress))


def publish_records(
    bases: str | Sequence[str] = (),
    atlas: str | Path = "atlas",
    *,
    rank: int | None = None,
    vector_length: int | None = None,
    progress: Progress | None = None,
    **index: Unpack[IndexArguments],
) -> list[BuildReport]:
    """Publish what :func:`work` has done for ``bases`` (all, if none is named): what `index publish` does.

    It is not named ``publish`` because the package ``indexer.publish`` is. ``rank``: of the records; by default the
    atlas's, else that of the records. ``index``: index, index_memory and recall, as in :func:`build`. The network is
    not used. Raises AtlasError where there is nothing to publish, or a base or rank does not fit.
    """
    names = [bases] if isinstance(bases, str) else list(bases)
    options = BuildOptions(relations=RELATIONS, index=index_change(vector_length=vector_length, **index))
    return publish_bases(str(atlas), names, options, Watcher(progress), rank)


def remove(
    model: str, base: str | None = None, atlas: str | Path = "atlas", *, keep_record: bool = False
) -> dict[str, Any]:
    """Take a model out of the atlas: tables, vectors, profiles and records; what `index remove` does.

    ``base``: only as a model of this base. ``keep_record``: adding it again reads nothing. Returns ``model``,
    ``bases``, ``records_removed`` and ``atlas``. Raises AtlasError where the atlas does not contain it.
    """
    from indexer.builds.removal import remove_model

    return remove_model(str(atlas), model, base, keep_record=keep_record)


def profile(
    models: str | Sequence[str] = (),
    base: str | None = None,
    atlas: str | Path = "atlas",
    **options: Unpack[ProfileArguments],
) -> ProfileReport:
    """Measure what each layer of ``models``, or of the fine-tunes of ``base``, keeps of its input: `index profile`.

    ``options``, with their defaults:

    - ``limit`` (None): only this many models, most downloads first
    - ``with_untrained`` (False): also the base's architecture with fresh weights
    - ``probe`` (random, or image), ``text``, ``images``: the kind of input, and files to use instead of the shipped
    - ``recover``, ``exact`` (False): also find the input again, by gradients or by search
    - ``layers`` (all, or 12 evenly spaced): numbers, or text like "1,6,12"
    - ``recipe`` ("default", or "original"); ``steps``, ``rate``: of the original method; ``shift``: σ of its criterion
    - ``seed`` (0), ``device`` ("cpu"), ``workers`` (1)
    - ``memory`` (what is free): bytes for all workers together, or text like "2G"

    Raises AtlasError where a model is not indexed, or the base cannot be run.
    """
    require("Profiling", "torch", "transformers")
    from indexer.builds.profiling import ProfileOptions, base_and_models, profile_base

    folder = AtlasFolder(atlas).require()
    chosen = ProfileOptions.parse(**options)
    canonical, named = base_and_models(folder, base, [models] if isinstance(models, str) else models)
    with folder.locked("index profile"):
        return profile_base(folder, canonical, named, chosen)


def status(atlas: str | Path = "atlas") -> dict[str, Any]:
    """What is in the atlas: bases, models by status, representations, bytes. Raises AtlasError where there is none."""
    from indexer.publish.maintenance import status as status_of

    return status_of(AtlasFolder(atlas))


def verify(atlas: str | Path = "atlas", *, strict: bool = False) -> list[Disagreement]:
    """What disagrees between files, checksums and database; an empty list where nothing does: `index verify`.

    ``strict``: also compute everything again and compare it with schema.sql and the records. Raises AtlasError where
    there is no atlas.
    """
    if strict:
        from indexer.publish.deep_verification import verify_deeply

        return verify_deeply(AtlasFolder(atlas))
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
        change = index_change(vector_length=vector_length)
        return rebuild_atlas(folder, say=Watcher(progress).say, force=force, index=change)


def represent(
    name: str,
    atlas: str | Path = "atlas",
    *,
    vector_length: int | None = None,
    progress: Progress | None = None,
    **index: Unpack[IndexArguments],
) -> dict[str, Any]:
    """Publish another representation from the records, without reading a checkpoint: what `index represent` does.

    ``index``: index, index_memory and recall, as in :func:`build`. Raises AtlasError where there is no representation
    of that name, or the records lack what it needs.
    """
    from indexer.publish.maintenance import represent as represent_atlas

    folder = AtlasFolder(atlas).require()
    with folder.locked(f"index represent {name}"):
        change = index_change(vector_length=vector_length, **index)
        return represent_atlas(folder, name, change, Watcher(progress).say)


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
    return push_atlas(AtlasFolder(atlas), name, options, Watcher(progress).say)


def pull(
    name: str, atlas: str | Path = "atlas", *, with_records: bool = False, progress: Progress | None = None
) -> PullReport:
    """Fetch the atlas ``name`` (OWNER/NAME[@TAG]) from the Hub into a folder, and check it: what `index pull` does.

    Raises AtlasError where there is none, it is damaged, or the folder holds another.
    """
    from indexer.share.pull import pull as pull_atlas

    return pull_atlas(AtlasFolder(atlas), name, Watcher(progress).say, with_records=with_records)


def merge(
    sources: Sequence[str | Path], atlas: str | Path = "atlas", *, progress: Progress | None = None
) -> MergeReport:
    """Make one new atlas of several, from their records: what `index merge` does.

    Raises AtlasError where one has no records, their bases do not fit, or ``atlas`` is not empty.
    """
    from indexer.share.merge import merge as merge_atlases

    return merge_atlases([AtlasFolder(one) for one in sources], AtlasFolder(atlas), Watcher(progress).say)
