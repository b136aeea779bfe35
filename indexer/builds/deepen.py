"""`index deepen`: read the rest of sampled models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from indexer.arguments import plain_arguments
from indexer.atlas import AtlasFolder
from indexer.builds.build import Build
from indexer.builds.commands import facts_of_stored, prepare
from indexer.builds.indexed import check_choice, choose_indexed, refuse_folders
from indexer.builds.options import BuildOptions, DeepenArguments
from indexer.builds.report import BuildReport, Confirm, Progress, Watcher
from indexer.builds.trees import places_in_trees
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError, Call, Text
from indexer.listing.listing import Listing
from indexer.upkeep.removal import finish_removals


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
    a folder, whose path is not stored. Those of trees are read where they lie.
    """
    names = [models] if isinstance(models, str) else list(models)
    check_choice(names, base, where, limit)
    folder, watcher = AtlasFolder(atlas).require(), Watcher(progress, confirm)
    with folder.locked("index deepen"):
        finish_removals(folder, say=watcher.say)
        with Reading(folder.database) as connection:
            found = choose_indexed(connection, names, base, "\"read\" = 'sample'", "sampled model", where, limit)
        stored = StoredBase(folder.base(found.base, found.commit))
        stored.check()
        listing = Listing(folder.listing(found.base))
        chosen = BuildOptions.parse(read="full", rank=found.rank, retry_failed=True, **options)
        prepare(chosen, watcher)
        places = places_in_trees(folder, found.names)
        build = Build(folder, facts_of_stored(stored, listing), chosen, watcher, listing, places=places)
        selected = [model for model in listing.models() if model.id in found.names]
        sampled = {str(row["model"]) for row in found.rows if row["read"] == "sample"}
        advice = Text("Name it: ", Call("add", "FOLDER", found.base, read="full"))
        again = "add it again with --read full"
        unread = [one for one in selected if one.id in sampled and one.id not in places]
        refuse_folders(unread, bool(names), advice, again, watcher)
        planned = build.plan(selected)
        estimate = build.estimate(planned)
        if dry_run:
            build.report.dry_run = estimate.as_row()
            watcher.say(estimate.sentence)
            return build.report
        if not watcher.confirm(estimate):
            raise AtlasError("Nothing was read.", "Take fewer with `limit`.")
        return build.run(planned, build.stored_base() if stored.is_sampled else stored)
