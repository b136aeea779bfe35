"""`index deepen`: read the rest of sampled models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from indexer.arguments import plain_arguments
from indexer.atlas import AtlasFolder
from indexer.builds.build import Build
from indexer.builds.commands import facts_of_stored, prepare
from indexer.builds.options import BuildOptions, DeepenArguments
from indexer.builds.report import BuildReport, Confirm, Progress, Watcher
from indexer.database.connection import base_named, indexed_models, published_bases
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError, BadArgument
from indexer.listing.claims import BY_FOLDER
from indexer.listing.listing import Listing
from indexer.publish.removal import finish_removals


@plain_arguments
def deepen(
    models: str | Sequence[str] = (),
    base: str | None = None,
    atlas: str | Path = "atlas",
    *,
    where: str | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    **options: Unpack[DeepenArguments],
) -> BuildReport:
    """Read all block matrices of ``models``, or of the sampled fine-tunes of ``base``: what `index deepen` does.

    Norms and singular values become exact, U and with it the other representations become available. Only sampled
    models are read, at the commit that is in the atlas; the others count as unchanged. ``where``: an SQL condition on
    the view ``models``; ``limit``: only this many models, most downloads first. ``dry_run``: only report what would be
    read. ``confirm`` is called with an :class:`Estimate` before anything is read; if it returns False, nothing is
    read. ``options``: spectra, device, workers, connections, memory and bandwidth, as in :func:`build`.

    Raises AtlasError if a model is not indexed, if models belong to several bases, and for a model that was added from
    a folder, whose path is not stored.
    """
    names = [models] if isinstance(models, str) else list(models)
    if not names and base is None:
        raise BadArgument("Name models, or a `base`.", "")
    if names and (where is not None or limit is not None):
        raise BadArgument("`where` and `limit` choose among the models of a `base`.", "Leave them out to name models.")
    folder, watcher = AtlasFolder(atlas).require(), Watcher(progress, confirm)
    with folder.locked("index deepen"):
        finish_removals(folder, say=watcher.say)
        with Reading(folder.database) as connection:
            named = base_named(connection, base) if base is not None else None
            if names:
                found = indexed_models(connection, names, named)
            else:
                condition = "" if where is None else f" AND (\n{where}\n)"
                found = connection.rows(
                    f'SELECT model, base, "read" FROM models WHERE base = $base AND "read" = \'sample\'{condition} '
                    "ORDER BY downloads DESC NULLS LAST, model LIMIT coalesce($limit, 1000000000)",
                    {"base": named, "limit": limit},
                )
            if not found and where is not None:
                raise AtlasError(f"No sampled model of {named} matches this condition.", "List them: `query models`")
            canonical = str(found[0]["base"] if found else named)
            (published,) = published_bases(connection, canonical)
        stored = StoredBase(folder.base(canonical, published["commit"]))
        stored.check()
        listing = Listing(folder.listing(canonical))
        chosen = BuildOptions.parse(read="full", rank=published["rank"], retry_failed=True, **options)
        prepare(chosen, watcher)
        build = Build(folder, facts_of_stored(stored, listing), chosen, watcher, listing)
        read = {str(row["model"]): row["read"] for row in found}
        selected = [model for model in listing.models() if model.id in read]
        folders = sorted(one.id for one in selected if one.claimed_by == BY_FOLDER and read[one.id] == "sample")
        if folders:
            why = f"{folders[0]} is a folder, whose path is not stored"
            if names:
                raise AtlasError(f"{why}.", f"Name it: `add(FOLDER, {canonical!r}, read='full')`")
            watcher.say(f"{why}: add it again with --read full ({len(folders)} of these)")
        planned = build.plan(selected)
        estimate = build.estimate(planned)
        if dry_run:
            build.report.dry_run = estimate.as_row()
            watcher.say(estimate.sentence)
            return build.report
        if not watcher.confirm(estimate):
            raise AtlasError("Nothing was read.", "Take fewer with `limit`.")
        return build.run(planned, build.stored_base() if stored.is_sampled else stored)
