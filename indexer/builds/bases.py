"""What the commands do, without the command line: crawl, plan, build, add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from huggingface_hub import constants

from indexer.atlas import AtlasFolder
from indexer.builds.build import Build
from indexer.builds.plan import Estimate, Planned, estimate
from indexer.builds.report import BuildOptions, BuildReport, Watcher
from indexer.cards.local import local_row
from indexer.cards.local_names import local_name, place_of
from indexer.database.reading import earlier_rows
from indexer.deltas.stored_base import stored_bases
from indexer.errors import AtlasError, ModelError, UnknownRevision, require, unreadable, without_user
from indexer.listing.claims import BY_FOLDER, untyped_relation
from indexer.listing.crawl import crawl
from indexer.listing.listing import Listing
from indexer.listing.questions import CrawlRequest
from indexer.names import ModelRef, is_hub_id, is_local_id, without_address
from indexer.network.hub import BaseFacts, model_row, resolve_base, unknown_model
from indexer.network.session import install_session
from indexer.publish.kept_rank import check_rank
from indexer.storage.whole_files import remove_leftovers


def build_bases(
    atlas: str, names: Sequence[str], options: BuildOptions, dry_run: bool, watcher: Watcher
) -> list[BuildReport]:
    """Build one base after another; each is published before the next is begun.

    Raises AtlasError where a base is unknown or held at another rank, or no scheduler answers, all before anything is
    built; where the network is away, or the atlas is being written to.
    """
    folder = AtlasFolder(atlas)
    check_device(options.device)
    if options.scheduler is not None and not dry_run:
        from indexer.builds.dask_executor import DaskExecutor

        DaskExecutor(options.scheduler).check()
    install_session(say=watcher.say)
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
            update_listing(build, watcher)
            # A base of which nothing is listed is not fetched, and nothing is published of it.
            if not build.listing.models():
                reports.append(build.finished())
            else:
                reports.append(_dry_run(build) if dry_run else _run(build, was_listed))
    return reports


def add_model(
    atlas: str, model: str, base: str, options: BuildOptions, watcher: Watcher, name: str | None = None
) -> BuildReport:
    """Add one model, a Hub id or a local folder, to the listing, and build it alone. A model that was removed is back.

    ``name``: what the atlas calls a folder, OWNER/NAME; by default ``local:NAME`` by the folder's. Its path is kept
    nowhere. Raises AtlasError where it cannot be found or is the base itself, and as ``build_bases`` does.
    """
    folder = AtlasFolder(atlas)
    check_device(options.device)
    install_session(say=watcher.say)
    reference = ModelRef.parse(model)
    if name is not None and (reference.folder is None or not is_hub_id(name) or "/" not in name):
        why = f"{name!r} is not OWNER/NAME" if reference.folder is not None else f"{model} has a name on the Hub"
        raise AtlasError(f"{why}.", "`name='OWNER/NAME'` is what the atlas calls a folder.")
    with folder.locked("index add"):
        facts = find_base(folder, base)
        build = Build(folder, facts, replace(options, workers=1, retry_failed=True), watcher)
        check_rank(folder, facts.id, options.rank)
        row = _row_of(reference, _name_of(reference, name, build.listing))
        if row["id"] in facts.ids:
            message = f"{facts.id} is the base itself, not a model tuned from it."
            raise AtlasError(message, "Name one of its fine-tunes.")
        stored = build.stored_base()  # first: where it can be none, nothing is listed of it
        build.listing.note_base(facts.ids)
        claimed_by = "user" if reference.folder is None else BY_FOLDER
        build.listing.add(row, untyped_relation(row), facts.id, claimed_by)
        chosen = [listed for listed in build.listing.models() if listed.id == row["id"]]
        folders = {} if reference.folder is None else {str(row["id"]): reference.folder}
        return build.run(build.plan(chosen, folders), stored)


def find_base(folder: AtlasFolder, name: str) -> BaseFacts:
    """A base by any of its names: from the Hub, or offline from what the atlas knows.

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


def update_listing(build: Build, watcher: Watcher) -> None:
    """Crawl the Hub into the listing; an interrupted crawl goes on where it stopped. Offline: nothing."""
    if constants.HF_HUB_OFFLINE:
        watcher.say("offline: working from the listing as it is")
        return
    try:
        _crawl_into(build.listing, build, watcher)
    finally:
        build.listing.forget_nothing()


def _crawl_into(listing: Listing, build: Build, watcher: Watcher) -> None:
    options = build.options
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
        watcher.say("going on with the crawl where it was interrupted")
    gone_before = {model.id for model in listing.models() if model.gone}
    found = 0
    is_complete = not request.is_narrowed
    for page in crawl(request, progress):
        found += listing.append_page(page)
        is_complete = is_complete and not page.is_cut
        watcher.say_progress(f"listing {page.question.what}: {found} new")
    gone = listing.finish(is_complete=is_complete)
    if gone:
        left = [model.id for model in listing.models() if model.gone and model.id not in gone_before]
        gone -= len(build.follow(left))
    if gone:
        watcher.say(f"{gone} models have left the Hub; what was learnt of them stays")


def _run(build: Build, was_listed: bool) -> BuildReport:
    """Ask whether to go on, and do. Raises AtlasError where the answer is no; then nothing is left behind."""
    # First, where there is one: the plan goes by its commit. A new one is fetched once the answer is yes.
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


def _dry_run(build: Build) -> BuildReport:
    found = _estimate(build, build.plan())
    build.report.dry_run = found.as_row()
    build.watcher.say(found.sentence)
    return build.report


def _estimate(build: Build, planned: Sequence[Planned]) -> Estimate:
    return estimate(planned, *build.base_size(), rate_so_far(build.folder))


def rate_so_far(folder: AtlasFolder) -> float | None:
    """Bytes a second over all builds of an atlas that read any; None where there is none."""
    statement = "SELECT bytes_read, seconds FROM builds WHERE bytes_read > 0 AND seconds > 0"
    (rows,) = earlier_rows(folder.database, ["builds"], [statement]) or ([],)
    seconds = sum(row["seconds"] for row in rows)
    return sum(row["bytes_read"] for row in rows) / seconds if seconds else None


def _name_of(reference: ModelRef, name: str | None, listing: Listing) -> str | None:
    """What the atlas calls a folder. Raises AtlasError where another model has the name that was asked for."""
    if reference.folder is None:
        return None
    places = {one.id: str(one.row.get("folder", "")) for one in listing.models() if one.claimed_by == BY_FOLDER}
    if name is None:
        return local_name(reference.folder, {one: place for one, place in places.items() if is_local_id(one)})
    others = {one.id for one in listing.models()} - {
        one for one, at in places.items() if at == place_of(reference.folder)
    }
    if name in others:
        raise AtlasError(f"{name} is another model of this atlas.", "Choose another `name`.")
    return name


def _row_of(reference: ModelRef, name: str | None = None) -> dict[str, Any]:
    if reference.folder is not None:
        return local_row(reference, name)
    try:
        return model_row(reference.id, reference.revision)
    except ModelError as error:
        if error.reason == "not_found" and not isinstance(error, UnknownRevision):
            raise unknown_model(reference.id) from error
        raise unreadable(reference.id, error) from error


def check_device(device: str) -> None:
    """Raises AtlasError where torch or the device is not there, before anything is fetched."""
    require("Reading weights", "torch", "transformers")
    if device == "cpu":
        return
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise AtlasError(f"The device {device!r} is not usable here: {reason}.", "Use `device='cpu'`.") from error
