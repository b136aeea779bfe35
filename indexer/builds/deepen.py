"""`index deepen`: read the rest of sampled models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from indexer.arguments import plain_arguments
from indexer.atlas import AtlasFolder
from indexer.builds.build import Build
from indexer.builds.build_base import facts_of_stored
from indexer.builds.commands import prepare
from indexer.builds.indexed import check_choice, choose_indexed, refuse_folders
from indexer.builds.options import DeepenOptions, ResourceOptions, WorkOptions
from indexer.builds.report import BuildReport, Confirm, Progress, Watcher
from indexer.builds.trees import places_in_trees
from indexer.console.options import with_options
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError, Call, Text
from indexer.listing.listing import Listing
from indexer.upkeep.removal import finish_removals


@plain_arguments
@with_options(DeepenOptions)
def deepen(
    models: str | Sequence[str] = (),
    base: str | None = None,
    atlas: str | Path = "atlas",
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    options: DeepenOptions,
) -> BuildReport:
    """Read all block matrices of ``models``, or of the sampled fine-tunes of ``base``: what `index deepen` does.

    Norms and singular values become exact, U and with it the other representations become available. Only sampled
    models are read, at the commit that is in the atlas; the others count as unchanged. ``confirm`` is called with an
    :class:`Estimate` before anything is read; if it returns False, nothing is read.

    Raises AtlasError if a model is not indexed, if models belong to several bases, and for a model that was added from
    a folder, whose path is not stored. Those of trees are read where they lie.
    """
    names = [models] if isinstance(models, str) else list(models)
    check_choice(names, base, options)
    folder, watcher = AtlasFolder(atlas).require(), Watcher(progress, confirm)
    with folder.locked("index deepen"):
        finish_removals(folder, say=watcher.say)
        with Reading(folder.database) as connection:
            published, rows = choose_indexed(
                folder, connection, names, base, "\"read\" = 'sample'", "sampled model", options
            )
        stored = StoredBase(published.file)
        stored.check()
        listing = Listing(folder.listing(published.base))
        work_options = WorkOptions(
            **options.part(ResourceOptions),
            read="full",
            rank=published.rank,
            spectra=options.spectra,
            device=options.device,
            retry_failed=True,
        )
        prepare(work_options, watcher)
        places = places_in_trees(folder, rows)
        build = Build(folder, facts_of_stored(stored, listing), work_options, watcher, listing, places=places)
        selected = [model for model in listing.models() if model.id in rows]
        sampled = {name for name, row in rows.items() if row["read"] == "sample"}
        advice = Text("Name it: ", Call("add", "FOLDER", published.base, read="full"))
        again = "add it again with --read full"
        unread = [model for model in selected if model.id in sampled and model.id not in places]
        refuse_folders(unread, bool(names), advice, again, watcher)
        planned = build.plan(selected)
        estimate = build.estimate(planned)
        if options.dry_run:
            build.report.dry_run = estimate.as_row()
            watcher.say(estimate.sentence)
            return build.report
        if not watcher.confirm(estimate):
            raise AtlasError("Nothing was read.", "Take fewer with `limit`.")
        return build.run(planned, build.stored_base() if stored.is_sampled else stored)
