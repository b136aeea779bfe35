"""What `index build`, `add`, `work` and `publish` do: find the base, crawl, plan, build, publish."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from huggingface_hub import constants

from indexer.atlas import AtlasFolder
from indexer.builds.build import Build
from indexer.builds.options import BuildOptions
from indexer.builds.plan import Estimate, Planned, estimate
from indexer.builds.renames import move_records
from indexer.builds.report import BuildReport, Watcher
from indexer.cards.local import local_name, local_row, place_of
from indexer.database.reading import earlier_rows
from indexer.deltas.stored_base import StoredBase, stored_bases
from indexer.errors import AtlasError, BadArgument, ModelError, UnknownRevision, require, unreadable, without_user
from indexer.listing.claims import BY_FOLDER, untyped_relation
from indexer.listing.crawl import crawl
from indexer.listing.listing import Listing
from indexer.listing.questions import CrawlRequest
from indexer.machine import check_device
from indexer.names import ModelRef, is_hub_id, is_local_id, without_address
from indexer.network.hub import BaseFacts, model_row, resolve_base, unknown_model
from indexer.network.session import install_session
from indexer.publish.previous_atlas import check_rank, published_rank, rank_to_publish
from indexer.storage.atomic_files import remove_leftovers


def build_bases(
    atlas: str, names: Sequence[str], options: BuildOptions, dry_run: bool, watcher: Watcher
) -> list[BuildReport]:
    """Build one base after another; each is published before the next begins.

    Raises AtlasError where a base is unknown or published at another rank, or no scheduler answers, all before anything
    is built; where the network is away, or another process writes to the atlas.
    """
    folder = AtlasFolder(atlas)
    _prepare(options, watcher)
    if options.scheduler is not None and not dry_run:
        from indexer.builds.dask_executor import DaskExecutor

        DaskExecutor(options.scheduler).check()
    reports = []
    with folder.locked(f"index build --base {' --base '.join(names)}"):
        remove_leftovers(folder)
        found = [find_base(folder, name) for name in dict.fromkeys(names)]
        for facts in found:
            check_rank(folder, facts.id, options.rank)
        for facts in found:
            build = Build(folder, facts, options, watcher)
            build.asked = {"endpoint": without_user(constants.ENDPOINT), "options": options.as_words()}
            build.check_base()
            was_listed = build.listing.path.exists()
            update_listing(build)
            # A base without listed models is not fetched, and nothing is published for it.
            if not build.listing.models():
                reports.append(build.finished())
            elif dry_run:
                expected = _estimate(build, build.plan())
                build.report.dry_run = expected.as_row()
                watcher.say(expected.sentence)
                reports.append(build.report)
            else:
                reports.append(_run(build, was_listed))
    return reports


def add_model(
    atlas: str, model: str, base: str, options: BuildOptions, watcher: Watcher, name: str | None = None
) -> BuildReport:
    """Add one model, a Hub id or a local folder, to the listing, and build it alone; brings back a removed model.

    ``name``: what the atlas calls a folder, OWNER/NAME; by default ``local:NAME`` after the folder. Its path is not
    stored. Raises AtlasError where it cannot be found or is the base itself, and as ``build_bases`` does.
    """
    folder = AtlasFolder(atlas)
    _prepare(options, watcher)
    reference = ModelRef.parse(model)
    if name is not None and (reference.folder is None or not is_hub_id(name) or "/" not in name):
        why = f"{name!r} is not OWNER/NAME" if reference.folder is not None else f"{model} has a name on the Hub"
        raise AtlasError(f"{why}.", "`name='OWNER/NAME'` is what the atlas calls a folder.")
    with folder.locked("index add"):
        facts = find_base(folder, base)
        build = Build(folder, facts, replace(options, workers=1, retry_failed=True), watcher)
        check_rank(folder, facts.id, options.rank)
        if reference.folder is not None:
            row = local_row(reference, _name_of_folder(reference, name, build.listing))
        else:
            row = _hub_row(reference)
        if row["id"] in facts.ids:
            message = f"{facts.id} is the base itself, not a model tuned from it."
            raise AtlasError(message, "Name one of its fine-tunes.")
        stored = build.stored_base()  # first: nothing is listed for a base that cannot be used
        build.listing.note_base(facts.ids)
        claimed_by = "user" if reference.folder is None else BY_FOLDER
        build.listing.add(row, untyped_relation(row), facts.id, claimed_by)
        chosen = [listed for listed in build.listing.models() if listed.id == row["id"]]
        folders = {} if reference.folder is None else {str(row["id"]): reference.folder}
        return build.run(build.plan(chosen, folders), stored)


def find_base(folder: AtlasFolder, name: str) -> BaseFacts:
    """A base by any of its names: from the Hub, or offline from the atlas.

    Raises AtlasError where neither knows it.
    """
    if not constants.HF_HUB_OFFLINE:
        return resolve_base(name)
    typed = without_address(name).lower()
    for base in stored_bases(folder):
        aliases = Listing(folder.listing(base.base)).aliases()
        if typed in {base.base.lower(), *(alias.lower() for alias in aliases)}:
            return BaseFacts(base.base, base.commit, aliases, dict(base.config))
    raise AtlasError(f"The base {name} is not in this atlas, and HF_HUB_OFFLINE is set.", "Unset it to ask the Hub.")


def update_listing(build: Build) -> None:
    """Crawl the Hub into the listing; an interrupted crawl is resumed. Does nothing offline."""
    if constants.HF_HUB_OFFLINE:
        build.watcher.say("offline: using the listing as it is")
        return
    try:
        _crawl_into(build.listing, build)
    finally:
        build.listing.remove_if_empty()


def _crawl_into(listing: Listing, build: Build) -> None:
    options, watcher = build.options, build.watcher
    request = CrawlRequest(
        ids=build.facts.ids,
        relations=options.relations,
        discover=options.discover,
        descendants=options.descendants,
        since=options.since,
        author=options.author,
    )
    progress, resumed = listing.begin(request)
    if resumed:
        watcher.say("resuming the crawl where it was interrupted")
    gone_before = {model.id for model in listing.models() if model.deleted_at_hub}
    found = 0
    is_complete = not request.is_narrowed
    for page in crawl(request, progress):
        found += listing.append_page(page)
        is_complete = is_complete and not page.is_cut
        watcher.say_progress(f"listing {page.question.what}: {found} new")
    gone = listing.finish(is_complete=is_complete)
    if gone:
        left = [model.id for model in listing.models() if model.deleted_at_hub and model.id not in gone_before]
        gone -= len(build.follow(left))
    if gone:
        watcher.say(f"{gone} models have left the Hub; what the atlas has of them stays")


def _run(build: Build, was_listed: bool) -> BuildReport:
    """Ask whether to go on, and build. Raises AtlasError where the answer is no; nothing is left behind then."""
    # The plan needs the base's commit, so a stored base is opened first. A new one is fetched after the answer.
    base = build.stored_base() if stored_bases(build.folder, build.facts.id) else None
    planned = build.plan()
    is_wanted = False
    try:
        is_wanted = build.watcher.confirmed(_estimate(build, planned))
    finally:
        if not is_wanted and not was_listed:
            build.listing.path.unlink(missing_ok=True)
    if not is_wanted:
        raise AtlasError("Nothing was read.", "Take fewer with `limit`.")
    return build.run(planned, base or build.stored_base())


def _estimate(build: Build, planned: Sequence[Planned]) -> Estimate:
    """What is to be read, and how long that takes at the rate of the atlas's builds so far."""
    statement = "SELECT bytes_read, seconds FROM builds WHERE bytes_read > 0 AND seconds > 0"
    (rows,) = earlier_rows(build.folder.database, ["builds"], [statement]) or ([],)
    seconds = sum(row["seconds"] for row in rows)
    rate = sum(row["bytes_read"] for row in rows) / seconds if seconds else None
    return estimate(planned, *build.base_size(), rate)


def _name_of_folder(reference: ModelRef, name: str | None, listing: Listing) -> str:
    """What the atlas calls a folder. Raises AtlasError where another model has the name that was asked for."""
    assert reference.folder is not None
    places = {one.id: str(one.row.get("folder", "")) for one in listing.models() if one.claimed_by == BY_FOLDER}
    if name is None:
        return local_name(reference.folder, {one: place for one, place in places.items() if is_local_id(one)})
    same = {one for one, place in places.items() if place == place_of(reference.folder)}
    if name in {one.id for one in listing.models()} - same:
        raise AtlasError(f"{name} is another model of this atlas.", "Choose another `name`.")
    return name


def _hub_row(reference: ModelRef) -> dict[str, Any]:
    try:
        return model_row(reference.id, reference.revision)
    except ModelError as error:
        if error.reason == "not_found" and not isinstance(error, UnknownRevision):
            raise unknown_model(reference.id) from error
        raise unreadable(reference.id, error) from error


def _prepare(options: BuildOptions, watcher: Watcher) -> None:
    """Check the libraries and the device before anything is fetched. Raises AtlasError."""
    require("Reading weights", "torch", "transformers")
    check_device(options.device)
    install_session(say=watcher.say)


# ---- shares of a build: processes that see one folder and need no scheduler


@dataclass(frozen=True)
class Shard:
    """Share ``number`` (from 0) of ``count``. A model belongs to a shard by its name alone."""

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


def work_shard(atlas: str, base: str, shard: Shard, options: BuildOptions, watcher: Watcher) -> BuildReport:
    """Vectorise one shard of a base's listing and publish nothing.

    The first shard crawls the Hub and fetches the base while the others wait; a complete listing that is already there
    is used as it is. Raises AtlasError as ``build_bases`` does.
    """
    folder = AtlasFolder(atlas)
    _prepare(options, watcher)
    facts = find_base(folder, base)
    check_rank(folder, facts.id, options.rank)
    build = Build(folder, facts, options, watcher)
    with folder.locked(f"index work --base {base} --shard {shard}", wait=True):
        if not build.listing.is_crawled:
            build.check_base()
            update_listing(build)
        stored = build.stored_base()
    planned = build.plan([model for model in build.selected() if shard.holds(model.id)])
    settled = {one.entry.listed.id: one.entry for one in planned}
    for _ in build.work(planned, stored, settled):
        pass
    return build.finished()


def publish_records(
    atlas: str, bases: Sequence[str], options: BuildOptions, watcher: Watcher, rank: int | None = None
) -> list[BuildReport]:
    """Publish the records and listings of ``bases`` (all, if none is named), without using the network.

    ``rank`` is that of the records; None takes the atlas's, or that of the records where nothing is published yet
    (``options.rank`` is not used). Raises AtlasError where a base is not in the folder, where ranks do not fit,
    and where no published model would be left.
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
                f"{name} is not in {folder.root}: no shard of it was worked on.",
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
    facts = BaseFacts(base.base, base.commit, listing.aliases(), dict(base.config))
    build = Build(folder, facts, options, watcher, listing, asks_hub=False)
    build.superseded = move_records(build.store, base.base, listing.renamed)
    entries = [one.entry for one in build.plan()]
    counts = Counter(entry.status for entry in entries)
    before = published_rank(folder, base.base)
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
