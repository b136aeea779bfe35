"""A build in shards, for processes that share a folder and have no scheduler: what `index work` and `publish` do."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from indexer.arguments import plain_arguments
from indexer.atlas import AtlasFolder
from indexer.builds.build import Build
from indexer.builds.build_base import facts_of_stored, find_base
from indexer.builds.commands import list_source, prepare, update_listing
from indexer.builds.options import PublishOptions, WorkOptions
from indexer.builds.plan import move_records
from indexer.builds.report import BuildReport, Progress, Watcher
from indexer.builds.trees import Trees, list_trees
from indexer.console.options import with_options
from indexer.deltas.stored_base import StoredBase, stored_bases
from indexer.errors import AtlasError, BadArgument, Call, Text
from indexer.listing.listing import Listing
from indexer.names import RELATIONS
from indexer.publish.previous_atlas import check_rank, published_rank, rank_to_publish
from indexer.shared_state import usable_umask
from indexer.storage.atomic_files import remove_leftovers
from indexer.upkeep.removal import finish_removals


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` (from 0) of ``count``. A model belongs to a shard by its name alone."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "i/n". Raises BadArgument."""
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and 0 < int(count[:9]) <= 1_000_000):
            raise BadArgument(f"`shard`: {text!r} is not of the form i/n, like 0/16.", "")
        if int(number) >= int(count):
            last = int(count) - 1
            raise BadArgument(f"`shard`: shards count from 0: the last of {count} is {last}/{count}, not {text}.", "")
        return cls(int(number), int(count))

    def holds(self, model: str) -> bool:
        """Whether a model belongs here: each model belongs to exactly one of ``count`` shards."""
        return int.from_bytes(hashlib.sha256(model.encode()).digest()[:8], "big") % self.count == self.number

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@plain_arguments
@with_options(WorkOptions)
def work(
    base: str,
    shard: str,
    atlas: str | Path = "atlas",
    *,
    progress: Progress | None = None,
    options: WorkOptions,
) -> BuildReport:
    """Do one shard of a build ("0/16" to "15/16") and publish nothing: what `index work` does.

    The first shard crawls the Hub and fetches the base while the others wait; a complete listing that is already there
    is used as it is. Give all shards the same options. Raises AtlasError as ``build`` does.
    """
    share, watcher, folder = Shard.parse(shard), Watcher(progress), AtlasFolder(atlas).require_writable()
    prepare(options, watcher)
    facts = find_base(folder, base)
    check_rank(folder, facts.id, options.rank)
    with_hub = not options.sources or options.hub
    build_of_base = Build(folder, facts, options, watcher, with_hub=with_hub)
    with folder.locked(f"index work --base {base} --shard {share}", wait=True):
        if with_hub and not build_of_base.listing.is_crawled:
            build_of_base.base.check()
            update_listing(build_of_base)
        for source in options.listing_sources:
            list_source(build_of_base, source)
        if options.addresses:  # every shard needs the addresses of models
            trees = Trees(folder, options, watcher)
            _, models = trees.sorted_models([facts], lambda *_: build_of_base.stored_base(whole=False))
            build_of_base.places = models.places(facts.id)
            list_trees(build_of_base, trees, models.of[facts.id])
        stored = build_of_base.stored_base()
        build_of_base.read_readmes([model for model in build_of_base.selected() if share.holds(model.id)])
    planned = build_of_base.plan([model for model in build_of_base.selected() if share.holds(model.id)])
    settled = {each.listed.id: each for each in planned}
    with usable_umask():
        for _ in build_of_base.work(planned, stored, settled):
            pass
    return build_of_base.finished()


@plain_arguments
@with_options(PublishOptions)
def publish_records(
    bases: str | Sequence[str] = (),
    atlas: str | Path = "atlas",
    *,
    progress: Progress | None = None,
    options: PublishOptions,
) -> list[BuildReport]:
    """Publish what :func:`work` has done for ``bases`` (all, if none is named): what `index publish` does.

    It is not named ``publish`` because the package ``indexer.publish`` is. The network is not used. Raises AtlasError
    if a base is not in the folder, if ranks do not fit, and if no published model would be left.
    """
    folder, watcher = AtlasFolder(atlas).require_writable(), Watcher(progress)
    work_options = WorkOptions(relation=",".join(RELATIONS), vector_length=options.vector_length)
    names = [bases] if isinstance(bases, str) else list(bases)
    stored: dict[str, StoredBase] = {}
    for stored_base in stored_bases(folder):  # the newest commit first
        stored.setdefault(stored_base.base, stored_base)
    listings = {base: Listing(folder.listing(base)) for base in stored}
    base_of_name = {name.lower(): base for base in stored for name in (base, *listings[base].aliases())}
    base_names = [base_of_name.get(name.lower()) for name in names]
    for name, base_name in zip(names, base_names, strict=True):
        if base_name is None:
            raise AtlasError(
                f"{name} is not in {folder.root}: no shard of it was worked on.",
                f"Run: index work --base {name} --shard 0/1",
            )
    if not stored:
        raise AtlasError(f"There is nothing to publish in {folder.root}.", "Run: index work --base ID --shard 0/1")
    with folder.locked("index publish"):
        remove_leftovers(folder)
        bases_to_publish = [stored[base] for base in dict.fromkeys(base_names or stored) if base]
        finish_removals(folder, [base.base for base in bases_to_publish], watcher.say)
        # All ranks are checked before anything is published.
        ranks = [rank_to_publish(folder, base, options.rank) for base in bases_to_publish]
        return [
            _publish(folder, base, listings[base.base], replace(work_options, rank=rank), watcher)
            for base, rank in zip(bases_to_publish, ranks, strict=True)
        ]


def _publish(
    folder: AtlasFolder, base: StoredBase, listing: Listing, options: WorkOptions, watcher: Watcher
) -> BuildReport:
    build = Build(folder, facts_of_stored(base, listing), options, watcher, listing, asks=False)
    move_records(build.store, base.base, listing.renamed)
    entries = build.plan()
    counts = Counter(entry.status for entry in entries)
    before = published_rank(folder, base.base)
    if before is not None and not counts["indexed"]:
        raise AtlasError(
            f"This publish would take all {before.vectors} vectors of {base.base} out of the atlas: "
            f"no listed model has a record of rank {options.rank} here.",
            Text(
                "Nothing was changed. Bring the records back, or make them again: ",
                Call("build", base.base, rank=options.rank),
            ),
        )
    build.report = replace(
        build.report,
        discovered=counts["indexed"] + counts["skipped"] + counts["failed"],
        unchanged=counts["indexed"],
        skipped=counts["skipped"],
        failed=counts["failed"],
    )
    if counts["listed"]:
        watcher.say(f"{base.base}: {counts['listed']} listed models were not tried yet")
    build.publish(entries, base, "finished")
    return build.finished()
