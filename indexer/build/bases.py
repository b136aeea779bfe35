"""What the commands do, without the command line: crawl, plan, build, add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from huggingface_hub import constants

from indexer.atlas import AtlasFolder
from indexer.build.build import Build
from indexer.build.plan import estimate
from indexer.build.report import BuildOptions, BuildReport, Watcher
from indexer.cards.local import local_row
from indexer.deltas.stored_base import stored_bases
from indexer.errors import AtlasError, ModelError, UnknownRevision, unreadable
from indexer.listing.claims import untyped_relation
from indexer.listing.crawl import crawl
from indexer.listing.listing import Listing
from indexer.listing.questions import CrawlRequest
from indexer.names import ModelRef
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
        from indexer.build.dask_executor import DaskExecutor

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
            build.check_base()
            update_listing(build, watcher)
            # A base of which nothing is listed is not fetched, and nothing is published of it.
            if not build.listing.models():
                reports.append(build.finished())
            else:
                reports.append(_dry_run(build) if dry_run else _run(build))
    return reports


def add_model(atlas: str, model: str, base: str, options: BuildOptions, watcher: Watcher) -> BuildReport:
    """Add one model, a Hub id or a local folder, to the listing, and build it alone.

    Raises AtlasError where it cannot be found or is the base itself, and as ``build_bases`` does.
    """
    folder = AtlasFolder(atlas)
    check_device(options.device)
    install_session(say=watcher.say)
    reference = ModelRef.parse(model)
    with folder.locked(f"index add {model}"):
        facts = find_base(folder, base)
        build = Build(folder, facts, replace(options, workers=1, retry_failed=True), watcher)
        check_rank(folder, facts.id, options.rank)
        row = _row_of(reference)
        if row["id"] in facts.ids:
            message = f"{facts.id} is the base itself, not a model tuned from it."
            raise AtlasError(message, "Name one of its fine-tunes.")
        stored = build.stored_base()  # first: where it can be none, nothing is listed of it
        build.listing.note_base(facts.ids)
        build.listing.add(row, untyped_relation(row), facts.id)
        chosen = [listed for listed in build.listing.models() if listed.id == row["id"]]
        return build.run(build.plan(chosen), stored)


def find_base(folder: AtlasFolder, name: str) -> BaseFacts:
    """A base by any of its names: from the Hub, or offline from what the atlas knows.

    Raises AtlasError where neither knows it.
    """
    if not constants.HF_HUB_OFFLINE:
        return resolve_base(name)
    for base in stored_bases(folder):
        aliases = Listing(folder.listing(base.base)).aliases()
        if name.lower() in {base.base.lower(), *(alias.lower() for alias in aliases)}:
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


def _run(build: Build) -> BuildReport:
    base = build.stored_base()  # first: the plan goes by its commit
    return build.run(build.plan(), base)


def _dry_run(build: Build) -> BuildReport:
    build.report.dry_run = estimate(build.plan(), *build.base_size())
    return build.report


def _row_of(reference: ModelRef) -> dict[str, Any]:
    if reference.folder is not None:
        return local_row(reference)
    try:
        return model_row(reference.id, reference.revision)
    except ModelError as error:
        if error.reason == "not_found" and not isinstance(error, UnknownRevision):
            raise unknown_model(reference.id) from error
        raise unreadable(reference.id, error) from error


def check_device(device: str) -> None:
    """Raises AtlasError where the device is not there, before anything is fetched."""
    if device == "cpu":
        return
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise AtlasError(f"The device {device!r} is not usable here: {reason}.", "Use --device cpu.") from error
