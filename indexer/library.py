"""The `index` commands that look after an atlas, and `index profile`, as Python functions.

Each has the arguments of its command, reports progress by callback, and returns the report as an object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from indexer.arguments import plain_arguments
from indexer.atlas import AtlasFolder
from indexer.builds.options import ProfileOptions, RebuildOptions, RepresentOptions
from indexer.builds.report import ProfileReport, Progress, Watcher
from indexer.console.option import Option
from indexer.console.options import with_options

if TYPE_CHECKING:
    from indexer.upkeep.verification import Disagreement


@plain_arguments
@with_options(ProfileOptions)
def profile(
    models: str | Sequence[str] = (),
    base: str | None = None,
    atlas: str | Path = "atlas",
    *,
    options: ProfileOptions,
) -> ProfileReport:
    """Measure what each layer of ``models``, or of the fine-tunes of ``base``, keeps of its input: `index profile`.

    Raises AtlasError if a model is not indexed, or the base cannot be run.
    """
    from indexer.builds.profiling import base_and_models, profile_base

    folder = AtlasFolder(atlas).require()
    canonical, model_ids = base_and_models(folder, base, [models] if isinstance(models, str) else models)
    with folder.locked("index profile"):
        return profile_base(folder, canonical, model_ids, options)


@plain_arguments
def status(atlas: str | Path = "atlas") -> dict[str, Any]:
    """What is in the atlas: bases, models by status, representations, bytes. Raises AtlasError if there is none."""
    from indexer.upkeep.maintenance import status as status_of

    return status_of(AtlasFolder(atlas))


@plain_arguments
def listed_models(atlas: str | Path = "atlas", base: str | None = None) -> Iterator[dict[str, Any]]:
    """The models that the Hub listed for all bases, or for ``base``: what `index listing` prints.

    Each is an object with ``base``, ``model``, ``relation``, ``claimed_by``, ``parent``, ``path``, ``first_seen``,
    ``last_seen``, ``deleted_at_hub``, ``claims`` and ``row``, the fields of the Hub's own listing. Raises AtlasError if
    there is no such listing, or it is damaged.
    """
    from indexer.listing.exchange import listed_rows

    return listed_rows(AtlasFolder(atlas), base)


@plain_arguments
def verify(
    atlas: str | Path = "atlas",
    *,
    strict: Annotated[
        bool,
        Option(
            "Also publish everything again in a temporary folder and compare: for an atlas by someone else. It takes "
            "as long as `index rebuild`, and the space of the database and the vectors two to three times (in TMPDIR)."
        ),
    ] = False,
) -> list[Disagreement]:
    """The disagreements between files, checksums and database, none if all is well: what `index verify` does.

    ``strict``: also publish everything again in a temporary folder and compare; that takes as long as ``rebuild``, and
    two to three times the space of database and vectors. Raises AtlasError where there is no atlas.
    """
    if strict:
        from indexer.upkeep.deep_verification import verify_deeply

        return verify_deeply(AtlasFolder(atlas))
    from indexer.upkeep.verification import verify as verify_atlas

    return verify_atlas(AtlasFolder(atlas))


@plain_arguments
def prune(
    atlas: str | Path = "atlas",
    *,
    dry_run: Annotated[bool, Option("Only print what would be removed.")] = False,
) -> dict[str, Any]:
    """Remove what the atlas does not need, or can make or fetch again: what `index prune` does.

    Returns ``atlas``, ``dry_run``, ``bytes`` (freed) and ``removed``, a list of objects with ``kind``, ``what``,
    ``bytes`` and ``why``. ``dry_run``: only say what would go. Raises AtlasError if another process writes to the
    atlas, or its database cannot be read.
    """
    from indexer.upkeep.prune import prune as prune_atlas

    folder = AtlasFolder(atlas).require()
    with folder.locked("index prune"):
        return prune_atlas(folder, dry_run=dry_run)


@plain_arguments
@with_options(RebuildOptions)
def rebuild(
    atlas: str | Path = "atlas", *, progress: Progress | None = None, options: RebuildOptions
) -> dict[str, Any]:
    """Rebuild the database and the FAISS files from the listing and the records: what `index rebuild` does.

    Raises AtlasError if models would be lost or there is nothing to build from; nothing is changed then.
    """
    from indexer.upkeep.maintenance import rebuild as rebuild_atlas

    folder = AtlasFolder(atlas)
    with folder.locked("index rebuild"):
        return rebuild_atlas(
            folder, say=Watcher(progress).say, force=options.force, vector_length=options.vector_length
        )


@plain_arguments
@with_options(RepresentOptions)
def represent(
    name: str, atlas: str | Path = "atlas", *, progress: Progress | None = None, options: RepresentOptions
) -> dict[str, Any]:
    """Publish another representation from the records, without reading a checkpoint: what `index represent` does.

    Raises AtlasError if there is no representation of that name, or the records lack what it needs.
    """
    from indexer.upkeep.maintenance import represent as represent_atlas

    folder = AtlasFolder(atlas).require()
    with folder.locked(f"index represent {name}"):
        return represent_atlas(folder, name, say=Watcher(progress).say, vector_length=options.vector_length)
