"""What `index build` and `index add` do, as functions: find the base, crawl, plan, build, publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

from huggingface_hub import constants

from indexer.arguments import plain_arguments
from indexer.atlas import AtlasFolder
from indexer.builds.build import Build
from indexer.builds.build_base import find_base
from indexer.builds.condition import check_condition
from indexer.builds.estimate import children_sentence, family_tree
from indexer.builds.options import BuildOptions, WorkOptions
from indexer.builds.report import BuildReport, Confirm, Progress, Watcher
from indexer.builds.trees import Trees, list_trees
from indexer.console.options import with_options
from indexer.deltas.stored_base import stored_bases
from indexer.errors import (
    AtlasError,
    BadArgument,
    Call,
    Text,
    require,
    without_user,
)
from indexer.machine import check_device
from indexer.network.session import install_session
from indexer.publish.previous_atlas import check_rank
from indexer.quantities import some_of
from indexer.sources.claims import NO_PATH
from indexer.sources.questions import SOURCE, BadRow, ClaimedRow, CrawlProgress, CrawlRequest, Rejected
from indexer.sources.rows import checked_pages
from indexer.sources.source import BaseFacts, Source
from indexer.storage.atomic_files import remove_leftovers
from indexer.upkeep.removal import finish_removals


@overload
def build(base: str, atlas: str | Path = ..., **options: Any) -> BuildReport: ...
@overload
def build(base: list[str] | tuple[str, ...] = ..., atlas: str | Path = ..., **options: Any) -> list[BuildReport]: ...
@plain_arguments
@with_options(BuildOptions)
def build(
    base: str | list[str] | tuple[str, ...] = (),
    atlas: str | Path = "atlas",
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    options: BuildOptions,
) -> BuildReport | list[BuildReport]:
    """Crawl the fine-tunes of ``base``, read what is new, publish into the folder ``atlas``: what `index build` does.

    Run it again at any time: unchanged models are not read again, failures are.

    ``progress`` is called with a :class:`BuildEvent` for everything that happens. ``confirm`` is called with an
    :class:`Estimate` before anything is read; if it returns False, nothing is.

    Returns the report of the one base, or a list of reports; ``report.stopped`` says why a build did not finish. Each
    base is published before the next begins. Raises AtlasError if a base is unknown or published at another rank, an
    argument is wrong, another process writes to the atlas, or no process can be started to read models.
    """
    watcher, folder = Watcher(progress, confirm), AtlasFolder(atlas).require_writable()
    names = list(base) if isinstance(base, list | tuple) else [base]
    if not names and not options.addresses:
        raise BadArgument("There is no `base`.", "For example: FacebookAI/roberta-base")
    prepare(options, watcher)
    if options.scheduler is not None and not options.dry_run:
        from indexer.builds.dask_executor import DaskExecutor

        DaskExecutor(options.scheduler).connect().close(timeout=5)  # raises before a long crawl

    def fetch(facts: BaseFacts, is_named: bool) -> None:
        if is_named or names:  # not what only a model of another base names
            Build(folder, facts, options, watcher).stored_base(whole=False)

    reports = []
    with folder.locked(f"index build{''.join(f' --base {name}' for name in names)}"):
        remove_leftovers(folder)
        bases = [find_base(folder, name) for name in dict.fromkeys(names)]
        trees = models = None
        if options.addresses:
            trees = Trees(folder, options, watcher)
            bases, models = trees.sorted_models(bases, None if options.dry_run else fetch)
        for facts in bases:
            check_rank(folder, facts.id, options.rank)
        if not options.dry_run:
            finish_removals(folder, [facts.id for facts in bases], watcher.say)
        for facts in bases:
            with_hub = not options.sources or options.hub
            places = models.places(facts.id) if models else None
            build_of_base = Build(folder, facts, options, watcher, places=places, with_hub=with_hub)
            build_of_base.asked = {"endpoint": without_user(constants.ENDPOINT), "options": options.as_words()}
            was_listed = build_of_base.listing.path.exists()
            if with_hub or options.listing_sources or (models and models.of[facts.id]):
                build_of_base.base.check()
            if with_hub:
                update_listing(build_of_base, counts_only=options.dry_run)
            for source in options.listing_sources:
                list_source(build_of_base, source)
            if trees is not None and models is not None:
                list_trees(build_of_base, trees, models.of[facts.id])
            # A base without listed models is not fetched, and nothing is published for it.
            if not build_of_base.listing.models():
                reports.append(build_of_base.finished())
            elif options.dry_run:
                expected = build_of_base.estimate(build_of_base.plan())
                tree, sentences = family_tree(build_of_base.selected(), build_of_base.crawl_calls)
                build_of_base.report.dry_run = expected.as_row() | {
                    "tree": tree,
                    "api_calls": build_of_base.crawl_calls,
                }
                for sentence in (*sentences, expected.sentence, *expected.requests.sentences()):
                    watcher.say(sentence)
                reports.append(build_of_base.report)
            else:
                reports.append(_run(build_of_base, was_listed))
        if trees is not None and not reports:
            raise AtlasError("No model there names a base that can be used.", "Name the bases: --base ID.")
    return reports[0] if isinstance(base, str) else reports


def update_listing(build: Build, *, counts_only: bool = False) -> None:
    """List what descends from the base in its source; an interrupted crawl is resumed. Does nothing offline.

    With ``counts_only`` untagged models whose weights would be compared are only counted.
    """
    options, watcher, listing = build.options, build.watcher, build.listing
    if build.source.offline:
        watcher.say("offline: using the listing as it is")
        return
    request = _request(build)
    pathless = 0  # untagged models that name no base, as transformers 5 saves them
    try:
        progress, resumed = listing.begin(request)
        if resumed:
            watcher.say("resuming the crawl where it was interrupted")
        elif counts := build.source.count_children(request.base):
            most = request.max_questions
            more = f", and models made from those at most {most:,} more (`questions`)" if request.descendants else ""
            watcher.say(children_sentence(request.base, counts, request.relations, request.page_size) + more)
        gone_before = listing.gone()
        models_found, is_complete = 0, not request.is_narrowed
        for page in checked_pages(build.source, request, progress):
            models_found += listing.append_page(page)
            is_complete = is_complete and not page.is_cut
            pathless += sum(rejected.why == NO_PATH for rejected in page.of(Rejected))
            watcher.listed(f"listing {page.question.what}: {models_found} new")
        build.crawl_calls = progress.calls
        if progress.unasked:
            watcher.say(
                f"models made from {progress.unasked:,} models were not looked for: these lie beyond `questions` "
                f"({request.max_questions:,}), `depth` ({request.max_depth}), or {request.max_copies} quantised copies "
                "of one model"
            )
        if pathless:
            watcher.say(
                Text(
                    f"{pathless:,} untagged models name no base: since transformers 5 config.json has no "
                    "_name_or_path; ",
                    Call(discover="weights"),
                    " compares their weights",
                )
            )
        if options.discover == "weights" and "finetune" in options.relations:
            from indexer.builds.weight_discovery import Examination

            examination = Examination(build, progress.compared, counts_only)
            for page in build.source.list_type(examination.model_type, request, progress, examination):
                models_found += listing.append_page(page)
                is_complete = is_complete and not page.is_cut
                watcher.listed(f"listing {page.question.what}: {examination.claimed} with weights like the base's")
            watcher.say(examination.sentence())
        gone = listing.finish(is_complete=is_complete)
        if gone:
            gone_models = sorted(listing.gone() - gone_before)
            gone -= len(build.follow(gone_models))
        if gone:
            watcher.say(f"{gone} models were deleted from {build.source.title}; the atlas keeps what it has of them")
    finally:
        listing.remove_if_empty()


def _request(build: Build) -> CrawlRequest:
    options = build.options
    return CrawlRequest(
        ids=build.facts.ids,
        relations=options.relations,
        discover=options.discover,
        descendants=options.descendants,
        since=options.created_since,
        author=options.author,
        mirrors=build.base.mirrors(build.listing),
        max_questions=options.questions,
        max_depth=options.depth,
        **({"max_candidates": options.max_candidates} if options.max_candidates else {}),
    )


def list_source(build: Build, source: Source) -> None:
    """List what another source than the base's own shows of it; only what it showed before can leave.

    Offline, or if it stops half-way, what is listed stays. Raises AtlasError if it cannot go on.
    """
    question, listing, watcher = f"{SOURCE}{source.scheme}", build.listing, build.watcher
    build.questions.add(question)
    if reason := source.offline:
        watcher.say(f"{source.title} is not asked ({reason}): using the listing as it is")
        return
    request, progress, models_found, is_complete, bad = _request(build), CrawlProgress(), 0, True, list[str]()
    listing.note_base(request.ids, build.base.licence)
    shown: set[str] = set()
    try:
        for page in checked_pages(source, request, progress):
            claimed = {row.id: (row.row, row.claim) for row in page.of(ClaimedRow)}
            models_found += listing.update_place(question, claimed.values(), ())[0]
            shown |= claimed.keys()
            bad += [bad_row.why for bad_row in page.of(BadRow)]
            is_complete = is_complete and not page.is_cut
            watcher.listed(f"listing {page.question.what} on {source.title}: {models_found} new")
        build.crawl_calls += progress.calls
        if bad:
            watcher.say(f"models of {source.title} that cannot be listed: {len(bad):,} ({some_of(bad, 1)})")
        if is_complete and not bad:
            not_shown = [model.id for model in listing.models() if question in model.claims and model.id not in shown]
            if gone := listing.update_place(question, (), not_shown)[1]:
                watcher.say(f"{gone} models are not on {source.title} any more; the atlas keeps what it has of them")
    finally:
        listing.remove_if_empty()


def _run(build: Build, was_listed: bool) -> BuildReport:
    """Ask whether to continue, and build. Raises AtlasError if the answer is no; then nothing is left behind."""
    # The plan needs the base's commit, so a stored base is opened first. A new one is fetched after the answer.
    base = build.stored_base(whole=False) if stored_bases(build.folder, build.facts.id) else None
    planned = build.plan()
    is_wanted = False
    try:
        expected = build.estimate(planned)
        if expected.requests.seconds:
            for sentence in expected.requests.sentences():
                build.watcher.say(sentence)
        is_wanted = build.watcher.confirm(expected)
    finally:
        if not is_wanted and not was_listed:
            build.listing.database.remove()
    if not is_wanted:
        raise AtlasError("Nothing was read.", "Take fewer with `limit`.")
    build.read_readmes(build.selected())
    return build.run(build.with_listed(planned), build.base_for(planned, base))


def prepare(options: WorkOptions, watcher: Watcher) -> None:
    """Check the libraries and the device before anything is fetched. Raises AtlasError."""
    require("Reading weights", "torch", "transformers")
    if options.where is not None:
        check_condition(options.where)
    check_device(options.device)
    install_session(say=watcher.say)
