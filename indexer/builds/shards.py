"""Many processes without a scheduler: each takes its share of the models, one of them publishes in the end.

The shares of a job array that sees one folder need to know nothing of each other: a model belongs to a shard by
its name alone, a record is written by rename, and nobody but ``publish_records`` touches the database.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.builds.bases import check_device, find_base, update_listing
from indexer.builds.build import Build
from indexer.builds.renames import move_records
from indexer.builds.report import BuildOptions, BuildReport, Watcher
from indexer.deltas.stored_base import StoredBase, stored_bases
from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.network.hub import BaseFacts
from indexer.network.session import install_session
from indexer.publish.kept_rank import check_rank, held, rank_to_publish
from indexer.storage.whole_files import remove_leftovers


@dataclass(frozen=True)
class Shard:
    """Share ``number`` (from 0) of ``count``."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "i/n". Raises ValueError that says what is wrong."""
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and 0 < int(count[:9]) <= 1_000_000):
            raise ValueError(f"{text!r} is not of the form i/n, like 0/16")
        if int(number) >= int(count):
            raise ValueError(f"shards count from 0: the last of {count} is {int(count) - 1}/{count}, not {text}")
        return cls(int(number), int(count))

    def holds(self, model: str) -> bool:
        """Whether a model belongs here: each model to exactly one shard of ``count``."""
        return int.from_bytes(hashlib.sha256(model.encode()).digest()[:8], "big") % self.count == self.number

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def work_shard(atlas: str, base: str, shard: Shard, options: BuildOptions, watcher: Watcher) -> BuildReport:
    """Vectorise one shard of a base's listing and publish nothing.

    The first shard to come crawls the Hub and fetches the base while the others wait; where there is a complete
    listing already, it is taken as it is. Raises AtlasError as ``build_bases`` does.
    """
    folder = AtlasFolder(atlas)
    check_device(options.device)
    install_session(say=watcher.say)
    facts = find_base(folder, base)
    check_rank(folder, facts.id, options.rank)
    build = Build(folder, facts, options, watcher)
    with folder.locked(f"index work --base {base} --shard {shard}", wait=True):
        if not build.listing.is_crawled:
            build.check_base()
            update_listing(build, watcher)
        stored = build.stored_base()
    planned = build.plan([model for model in build.selected() if shard.holds(model.id)])
    settled = {one.entry.listed.id: one.entry for one in planned}
    for _ in build.work(planned, stored, settled):
        pass
    return build.finished()


def publish_records(
    atlas: str, bases: Sequence[str], options: BuildOptions, watcher: Watcher, rank: int | None = None
) -> list[BuildReport]:
    """Publish what records and listings of ``bases`` (all, if none is named) say; the network is not asked.

    ``rank`` is that of the records; None takes the atlas's, or that of the records where nothing is published yet
    (``options.rank`` is not asked). Raises AtlasError where a base is not in the folder, where ranks do not fit,
    and where nothing of what is published would be left.
    """
    folder = AtlasFolder(atlas)
    stored: dict[str, StoredBase] = {}
    for one in stored_bases(folder):  # the newest commit first
        stored.setdefault(one.base, one)
    listings = {base: Listing(folder.listing(base)) for base in stored}
    known = {name.lower(): base for base in stored for name in (base, *listings[base].aliases())}
    wanted = [known.get(name.lower()) for name in bases]
    for name, found in zip(bases, wanted, strict=True):
        if found is None:
            raise AtlasError(
                f"{name} is not in {folder.root}: nobody has worked on it.",
                f"Run: index work --base {name} --shard 0/1",
            )
    if not stored:
        raise AtlasError(f"There is nothing to publish in {folder.root}.", "Run: index work --base ID --shard 0/1")
    with folder.locked("index publish"):
        remove_leftovers(folder)
        chosen = [stored[base] for base in dict.fromkeys(wanted or stored) if base]
        ranks = [rank_to_publish(folder, base, rank) for base in chosen]  # all, before anything is published
        return [
            _publish(folder, base, listings[base.base], replace(options, rank=found), watcher)
            for base, found in zip(chosen, ranks, strict=True)
        ]


def _publish(
    folder: AtlasFolder, base: StoredBase, listing: Listing, options: BuildOptions, watcher: Watcher
) -> BuildReport:
    config: dict[str, Any] = dict(base.config)
    facts = BaseFacts(base.base, base.commit, listing.aliases(), config)
    build = Build(folder, facts, options, watcher, listing, asks_hub=False)
    build.superseded = move_records(build.store, base.base, listing.renamed)
    entries = [one.entry for one in build.plan()]
    counts = Counter(entry.status for entry in entries)
    before = held(folder, base.base)
    if before is not None and not counts["indexed"]:
        raise AtlasError(
            f"This publish would take all {before.vectors} vectors of {base.base} out of the atlas: "
            f"no listed model has a record of rank {options.rank} here.",
            f"Nothing was changed. Bring the records back, or make them again: `build({base.base!r}, "
            f"rank={options.rank})`",
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
