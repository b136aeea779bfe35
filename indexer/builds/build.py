"""The build of one base: plan what is new or changed, vectorise it, publish."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Any

from indexer.atlas import AtlasFolder
from indexer.builds.build_base import BuildBase
from indexer.builds.condition import matching
from indexer.builds.conversions import find_conversions
from indexer.builds.estimate import Estimate, estimate_of
from indexer.builds.options import WorkOptions
from indexer.builds.plan import NEEDS_BASE, existing_record, move_records, needs_whole_base, plan
from indexer.builds.report import BuildReport, Result, Watcher
from indexer.builds.resources import resources_for
from indexer.builds.unknown_starts import unknown_starts
from indexer.checkpoints.ahead import in_threads
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError, Failed, ModelError, first_error_kept
from indexer.listing.listing import ListedModel, Listing, select, without_earlier
from indexer.listing.parents import Parents, ask_source
from indexer.network.rows import commit_of
from indexer.publish.publish import publish
from indexer.publish.rows import Entry, Publication
from indexer.quantities import size_in_words
from indexer.records.conversion import CONVERSION
from indexer.records.identity import Spec, Thresholds, Unit, canonical_json
from indexer.records.store import RecordStore
from indexer.sources.claims import BY_FOLDER
from indexer.sources.readmes import datasets_of, needs_readme
from indexer.sources.registry import ModelRef, is_listed_id, source_of
from indexer.sources.rows import row_of
from indexer.sources.runs import RUN
from indexer.sources.source import BaseFacts
from indexer.untrusted import printable
from indexer.upkeep.prune import keep_sample_if_enough

if TYPE_CHECKING:
    from indexer.deltas.starts.search import FurtherSearch

# Results are published as they come, so that an interrupted build is useful: at most once in this many seconds, and so
# rarely that publishing takes no more than this share of the time.
PUBLISH_EVERY_SECONDS = 60.0
_PUBLISHING_SHARE = 0.05

# Above this share of failures (skips do not count) the cause is not the models, and the build stops.
_STOP_AFTER_TRIES = 20
_STOP_ABOVE_SHARE = 0.5

# What a build needs and a record may lack, and the messages before and after the build.
_LACKING = {
    "version": ("records of an earlier version", "records that are still of an earlier version, until the next build"),
    "spectra": (
        "records without spectra",
        "records that still have no spectra, until the next `index build --spectra`",
    ),
    "rows": ("records of samples", "records that are still samples, until the next `index build --read full`"),
}

# At most this many requests for the new names of models, even if thousands have left the listing at once.
MOST_ASKED = 200
# READMEs that one build reads, a request each; the others are left for the next.
MOST_READMES = 2_000


class Build:
    """The build of one base. The caller holds the writer's lock."""

    def __init__(
        self,
        folder: AtlasFolder,
        facts: BaseFacts,
        options: WorkOptions,
        watcher: Watcher | None = None,
        listing: Listing | None = None,
        asks: bool = True,
        search: FurtherSearch | None = None,
        places: Mapping[str, ModelRef] | None = None,
        with_hub: bool = True,
    ) -> None:
        """``places``: where models lie that the atlas cannot find by their ids; only these, unless ``with_hub``."""
        self.folder = folder
        self.places = places or {}
        self.with_hub = with_hub
        self.options = options
        self.spec = Spec(rank=options.rank, spectra=options.spectra)
        self.watcher = watcher or Watcher()
        self.base = BuildBase(folder, facts, options, self.watcher.say)
        self.store = RecordStore(folder)
        self.source = source_of(facts.id)
        self.asks = asks and not self.source.offline  # to find the bases of adapters
        self.listing = listing or Listing(folder.listing(facts.id))
        self.asked: dict[str, Any] = {}  # the Hub's address and the command's options, if there is a crawl
        self.report = BuildReport(facts.id, facts.commit, str(folder.root))
        self.questions: set[str] = set()  # that other sources answered for this build
        self.crawl_calls = 0  # questions that a crawl asked of the Hub's API
        self.database_bytes: int | None = None  # known once the workers have their share
        self.search = search  # for the start of adapters that have a record: there is nothing else to do then
        self.renewed: set[str] = set()  # models whose record was written again
        self.started = time.monotonic()
        self.started_at = datetime.now(UTC)

    @property
    def facts(self) -> BaseFacts:
        """What is known of the base."""
        return self.base.facts

    def stored_base(self, *, whole: bool = True) -> StoredBase:
        """The base's block matrices, fetched if the atlas does not have them yet; ``whole``: all of them."""
        stored = self.base.stored(whole=whole)
        self.report.base_commit = self.facts.commit
        return stored

    def base_for(self, planned: Sequence[Entry], stored: StoredBase | None) -> StoredBase:
        """The base's block matrices for these models: some rows do for adapters, as far as their listing tells.

        ``stored``: what the atlas had before they were planned.
        """
        units = [plan.unit for plan in planned if plan.unit is not None]
        if stored is None or (stored.is_sampled and any(needs_whole_base(unit) for unit in units)):
            return self.stored_base()
        return stored

    def selected(self) -> list[ListedModel]:
        """The listed models that the options select."""
        options = self.options
        depth = options.depth if options.descendants else 0
        models = self.listing.models()
        if not self.with_hub:
            models = [
                model for model in models if model.id in self.places or not self.questions.isdisjoint(model.claims)
            ]
        if options.where is not None:
            models = matching(models, self.facts.id, options.where)
        if options.checkpoints != "all" and any(RUN in model.row for model in models):
            models = without_earlier(models, self._unreadable(models))
        return select(
            models, options.limit, options.sort, options.created_since, options.author, options.relations, depth,
            options.relations_of_places,
        )  # fmt: skip

    def _unreadable(self, models: Sequence[ListedModel]) -> set[str]:
        """Those of ``models`` that were skipped at their present commit."""
        commits = {model.id: commit_of(model.row) for model in models}
        skipped = (failure.identity for failure in self.store.failures() if failure.status == "skipped")
        return {key.model for key in skipped if key.base == self.facts.id and commits.get(key.model) == key.commit}

    def plan(
        self, selected: Sequence[ListedModel] | None = None, places: Mapping[str, ModelRef] | None = None
    ) -> list[Entry]:
        """What there is to do for every listed model; the options choose ``selected`` unless it is given.

        ``places``: where models lie that the atlas cannot find by their ids; those of the build by default.
        """
        options = self.options
        models = self.listing.models()
        if selected is None:
            selected = self.selected()
        chosen = {model.id for model in selected}
        asked_length = options.vector_length
        previous = self.base.previous
        if self.options.read == "sample":
            self.spec = replace(self.spec, sample=self.base.shape.is_partial)
        template = Unit(
            model=ModelRef(self.facts.id),
            commit="",
            base=self.facts.id,
            base_commit=self.facts.commit,
            relation="finetune",
            spec=self.spec,
            device=options.device,
            keep_factors=options.keep_factors,
            vector_length=asked_length or (previous.rank.budget if previous.rank is not None else None),
        )
        mirrors = {name.lower(): self.facts.id for name in (*options.same_as, *previous.copies)}
        parents = Parents(
            self.facts.ids,
            models,
            ask_source if self.asks else None,
            self.listing.copies() | mirrors,
            self.base.hashes() if self.asks else (),
        )
        fetches_base = not self.facts.component  # as soon as a model needs it
        planned = plan(
            models, selected, self.store, template, options.retry_failed, parents,
            self.places if places is None else places, fetches_base=fetches_base,
        )  # fmt: skip
        for entry in planned:
            if entry.listed.id in chosen and entry.unit is None:
                if entry.is_unchanged:
                    self.report.unchanged += 1
                elif entry.has_failed:
                    self.report.failed += 1
                else:
                    self.report.skipped += 1
        unknown = {name: named for name, named in parents.unknown.items() if name not in parents.refused}
        if unknown and self.asks:
            model, named = min(unknown.items())
            self.watcher.say(
                f"adapters whose base could not be resolved, treated as adapters of {self.facts.id}: "
                f"{len(unknown)} ({printable(parents.spelling(model), 100)} names {printable(named, 100)})"
            )
        if itself := parents.of_themselves:
            self.watcher.say(
                f"adapters that name themselves as their base, treated as adapters of {self.facts.id}: {len(itself)} "
                f"({printable(parents.spelling(min(itself)), 100)})"
            )
        self.report.discovered = len(chosen)
        for lacking, (what, _) in _LACKING.items():
            if again := sum(entry.lacks == lacking and entry.unit is not None for entry in planned):
                self.watcher.say(f"{what}, to be read again: {again}")
        return planned

    def estimate(self, planned: Sequence[Entry]) -> Estimate:
        """What is to be read, and how long that takes."""
        rate, readmes = self.base.previous.bytes_per_second, min(MOST_READMES, len(self.unread(self.selected())))
        return estimate_of(planned, self.base.shape, str(self.options.read), rate, readmes)

    def unread(self, models: Sequence[ListedModel]) -> list[ListedModel]:
        """Those of ``models`` whose README may name datasets that the listing does not show."""
        return (
            [model for model in models if model.claimed_by != BY_FOLDER and needs_readme(model.row)]
            if self.asks
            else []
        )

    def read_readmes(self, models: Sequence[ListedModel]) -> None:
        """Read the READMEs of ``unread`` models, once for each commit, and note what they name in the listing.

        One that cannot be read now is left for the next build, as are all but the first MOST_READMES.
        """
        wanted = self.unread(models)
        unread = wanted[:MOST_READMES]
        if not unread:
            return
        more = f", {len(wanted) - len(unread):,} more in later builds" if len(wanted) > len(unread) else ""
        self.watcher.say(f"reading {len(unread):,} READMEs for datasets that the listing does not show{more}")
        tasks = [partial(self._datasets_in, model.row) for model in unread]
        names_by_model: dict[str, list[str]] = {}
        problem: str | None = None
        for model, answer in zip(unread, in_threads(tasks, self.options.connections), strict=False):
            if not isinstance(answer, Failed):
                names_by_model[model.id] = answer
                continue
            problem = problem or f"{printable(model.id, 100)}: {answer.detail}"
            if answer.reason in ("network", "rate_limited"):
                break
        self.listing.note_datasets(names_by_model)
        if problem is not None:
            left = len(unread) - len(names_by_model)
            self.watcher.say(f"READMEs that could not be read, left for the next build: {left:,} ({problem})")

    @staticmethod
    def _datasets_in(row: dict[str, Any]) -> list[str] | Failed:
        try:
            return datasets_of(row)
        except Failed as error:
            return error

    def with_listed(self, planned: Sequence[Entry]) -> list[Entry]:
        """The same plan with the models as they are listed now."""
        listed = {model.id: model for model in self.listing.models()}
        return [replace(entry, listed=listed[entry.listed.id]) for entry in planned]

    def run(self, planned: Sequence[Entry], base: StoredBase) -> BuildReport:
        """Do what is planned, and publish now and then. On Ctrl-C what was done is published before it is raised."""
        settled = {one.listed.id: one for one in planned}
        waiting, known = dict(settled), set(settled)  # not yet published; and planned
        due = time.monotonic() + PUBLISH_EVERY_SECONDS
        try:
            for result in chain(
                self.work(planned, base, settled),
                self._work_on_moved(planned, base, settled),
                self._work_with_whole_base(planned, base, settled),
            ):
                waiting[result.unit.model.id] = settled[result.unit.model.id]
                began = time.monotonic()
                if began > due:
                    self.publish(waiting.values(), base, None)
                    waiting.clear()
                    ended = time.monotonic()
                    due = ended + max(PUBLISH_EVERY_SECONDS, (ended - began) / _PUBLISHING_SHARE)
        except BaseException as stop:
            self.report.stopped = "interrupted"
            # Find records that workers wrote after the build had stopped listening.
            for one in planned:
                if one.unit is not None and settled[one.listed.id] is one:
                    found = existing_record(one.unit.identity, self.store)
                    if found is not None:
                        done = replace(one, commit=one.unit.commit, record_key=found.digest, outcome=None)
                        settled[one.listed.id] = done
            with first_error_kept(stop):
                self.publish(settled.values(), base, "stopped")
            raise
        waiting.update({name: entry for name, entry in settled.items() if name not in known})
        self.report.bytes_read += find_conversions(self.folder, base, settled.values(), self.places, self.watcher.say)
        chosen = {model.id for model in self.selected()}
        self.report.conversions = sum(
            entry.outcome is not None and entry.outcome.reason == CONVERSION
            for name, entry in settled.items()
            if name in chosen
        )
        self.publish(waiting.values(), base, "stopped" if self.report.stopped else "finished")
        for lacking, (_, what) in _LACKING.items():
            # Samples count only if this build was to complete them.
            left = [one for one in planned if one.lacks == lacking and (lacking != "rows" or one.unit is not None)]
            if count := sum(settled[one.listed.id] is one for one in left):
                self.watcher.say(f"{what}: {count}")
        if (
            self.report.indexed
            and not self.report.stopped
            and not (self.options.spectra or self.options.read == "full")
        ):
            if freed := keep_sample_if_enough(self.folder, self.facts.id):
                self.watcher.say(
                    f"only some rows of {self.facts.id} are kept: its models are adapters, which need no more "
                    f"({size_in_words(freed)} less)"
                )
        if self.report.indexed and self.search is None:
            with Reading(self.folder.database) as connection:
                if sentence := unknown_starts(connection, self.facts.id):
                    self.watcher.say(sentence)
        return self.report

    def follow(self, names: Sequence[str]) -> dict[str, str]:
        """List renamed models among ``names`` under their new names; returns old name → new name.

        The Hub redirects from the old name to the new one. An old name is noticed when the model is read (its files are
        served from another repository), or when a crawl no longer lists it. A name that the Hub does not know, or
        cannot look up now, stays as it is. A name that leads to the base is removed from the listing.
        """
        return self._follow(self._rows_now(names))

    def _rows_now(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The rows of models, by the names that are asked for, without those that their source does not show now."""
        rows = {}
        listed = [name for name in names if is_listed_id(name) and not source_of(name).offline]
        for name in listed[:MOST_ASKED]:
            with suppress(ModelError):
                rows[name] = row_of(ModelRef.of_atlas(name))
        return rows

    def _follow(self, rows: Mapping[str, dict[str, Any]]) -> dict[str, str]:
        """``follow`` with the rows of the models by their old names."""
        renamed: dict[str, str] = {}
        for old, row in rows.items():
            new = str(row["id"])
            if new != old:
                self.listing.rename(old, None if new in self.facts.ids else row, new)
                renamed[old] = new
        moved = {old: new for old, new in renamed.items() if new not in self.facts.ids}
        move_records(self.store, self.facts.id, moved)
        for old, new in renamed.items():
            self.watcher.say(f"{old} is now called {new}")
        return renamed

    def _follow_commits(self, rows: Mapping[str, dict[str, Any]], commits: Mapping[str, str]) -> list[str]:
        """List models at the head of ``main`` whose commit is gone, as after a force push; returns their names.

        ``commits``: the commits that their source did not have, by name.
        """
        rewritten = []
        for name, commit in commits.items():
            row = rows.get(name, {})
            head = row.get("sha", commit)
            if row.get("id") == name and head != commit:
                self.listing.renew(row)
                rewritten.append(name)
                where = source_of(name).title
                self.watcher.say(f"{name}: {where} has no commit {commit[:10]} any more; main is read ({head[:10]})")
        return rewritten

    def _work_on_moved(
        self, planned: Sequence[Entry], base: StoredBase, settled: dict[str, Entry]
    ) -> Iterator[Result[Unit]]:
        """Work on models that turned out to have a new name, under that name, or another commit in place of theirs."""
        commits = {
            entry.listed.id: entry.unit.commit
            for entry in planned
            if entry.unit is not None and entry.unit.model.is_name
        }
        reasons = {name: outcome.reason for name in commits if (outcome := settled[name].outcome) is not None}
        names = [name for name, reason in reasons.items() if reason in ("renamed", "not_found")]
        if not names:
            return
        rows = self._rows_now(names)
        rewritten = self._follow_commits(rows, {name: commits[name] for name in names if reasons[name] == "not_found"})
        renamed = self._follow(rows)
        wanted = {model.id for model in self.listing.models()} & set(renamed.values()) - set(settled)
        # An old name counts as its new one, and not at all if the new one was planned anyway.
        self.report.skipped -= sum(reasons[name] == "renamed" for name in renamed)
        self.report.failed -= sum(reasons[name] == "not_found" for name in (*renamed, *rewritten))
        discovered = self.report.discovered - len(renamed) + len(wanted)
        wanted |= set(rewritten)
        if not wanted:
            self.report.discovered = discovered
            return
        again = self.plan([model for model in self.listing.models() if model.id in wanted])
        self.report.discovered = discovered
        again = [entry for entry in again if entry.listed.id in wanted]
        settled.update({entry.listed.id: entry for entry in again})
        yield from self.work(again, base, settled)

    def _work_with_whole_base(
        self, planned: Sequence[Entry], base: StoredBase, settled: dict[str, Entry]
    ) -> Iterator[Result[Unit]]:
        """Work again on models that turned out to need whole matrices of a base of which some rows were kept."""
        again = [entry for entry in planned if entry.unit is not None and _lacked_base(settled[entry.listed.id])]
        if not again or self.facts.component or self.report.stopped:
            return
        try:
            whole = self.stored_base()
        except AtlasError as error:
            self.watcher.say(f"{len(again)} models need all of {self.facts.id}: {error.message}")
            return
        self.report.skipped -= len(again)
        yield from self.work(again, whole, settled)

    def finished(self) -> BuildReport:
        """The report so far, with the time elapsed."""
        self.report.seconds = round(time.monotonic() - self.started, 3)
        return self.report

    def work(self, planned: Sequence[Entry], base: StoredBase, settled: dict[str, Entry]) -> Iterator[Result[Unit]]:
        """Do what is planned and publish nothing; after each model ``settled`` (by id) has its new entry."""
        units = [entry.unit for entry in planned if entry.unit is not None]
        self.watcher.started(self.facts.id, len(units))
        if not units:
            return
        from indexer.builds.executor import run_units
        from indexer.builds.worker import RecordWorker, StartWorker  # imports torch
        from indexer.deltas.starts.search import SEARCH_BYTES

        options = self.options
        at_work = SEARCH_BYTES if self.search else 0
        resources = resources_for(units, base, options, self.spec.sample, self.watcher.say, at_work)
        self.database_bytes = resources.database_bytes
        worker = RecordWorker(self.folder.root, base.path, resources)
        if self.search is not None:
            worker = StartWorker(self.folder.root, base.path, resources, self.search)
        if options.scheduler is not None:
            from indexer.builds.dask_executor import DaskExecutor

            running = DaskExecutor(options.scheduler).run(units, worker)
        else:
            running = run_units(units, worker, resources.workers)
        with closing(running) as results:
            for result in results:
                settled[result.unit.model.id] = self._settle(settled[result.unit.model.id], result)
                self.watcher.finished(result)
                yield result
                tried = self.report.indexed + self.report.failed
                if tried >= _STOP_AFTER_TRIES and self.report.failed > _STOP_ABOVE_SHARE * tried:
                    self.report.stopped = f"{self.report.failed} of {tried} models failed"
                    return

    def _settle(self, entry: Entry, result: Result[Unit]) -> Entry:
        report, digest = self.report, result.unit.identity.digest
        report.bytes_read += result.bytes_read
        report.bytes_total += result.bytes_total
        if result.is_unchanged:
            report.unchanged += 1
            return entry
        report.count(result.error)
        if result.error is None:
            if entry.record_key == digest:
                self.renewed.add(result.unit.model.id)
            return Entry(entry.listed, entry.base, result.unit.commit, record_key=digest)
        report.problem = f"{result.unit.model.id}: {result.error.detail.rstrip('.')}"
        if entry.record_key is not None:
            return entry  # the record that was there, without spectra or of an earlier commit, still counts
        return Entry(entry.listed, entry.base, result.unit.commit, outcome=self.store.failure(digest))

    def publish(self, entries: Iterable[Entry], base: StoredBase, outcome: str | None) -> None:
        """Bring the atlas up to date; with an ``outcome`` (finished, stopped) the run is recorded as a build."""
        self.finished()
        entries = list(entries)
        is_news = outcome == "finished" or any(entry.status != "listed" for entry in entries)
        if not is_news and not self.folder.database.exists():
            return  # there is nothing that is not in the listing
        renamed = self.listing.renamed
        publish(
            self.folder,
            [
                Publication(
                    base=base,
                    aliases=self.facts.aliases,
                    entries=[entry for entry in entries if entry.listed.id not in renamed],
                    withdrawn=tuple(renamed),
                    renewed=frozenset(self.renewed),
                    rank=self.options.rank,
                    rejected_rows=[row.as_row() for row in self.listing.rejected_rows()] if outcome else None,
                    build=_build_row(self, outcome) if outcome else None,
                    vector_length=self.options.vector_length,
                    licence=self.listing.licence,
                )
            ],
            say=self.watcher.say,
            memory=self.database_bytes,
        )


def _lacked_base(entry: Entry) -> bool:
    return entry.outcome is not None and entry.outcome.reason == NEEDS_BASE


def _build_row(build: Build, outcome: str) -> dict[str, Any]:
    """The row of the table builds."""
    counts = ("discovered", "indexed", "unchanged", "skipped", "failed", "bytes_read", "bytes_total", "seconds")
    versions = {"python": platform.python_version()}
    for name in ("vectors-in-the-wild", "torch", "transformers", "huggingface_hub", "faiss-cpu", "duckdb", "numpy"):
        try:
            versions[name] = version(name)
        except Exception:  # not installed, or its metadata is damaged
            versions[name] = "unknown"
    return {
        "base_commit": build.report.base_commit,
        "started": build.started_at,
        "finished": datetime.now(UTC),
        "outcome": outcome,
        **{name: getattr(build.report, name) for name in counts},
        "spec": canonical_json(build.spec.as_row() | build.asked),
        "thresholds": canonical_json(asdict(Thresholds())),
        "versions": canonical_json(versions),
    }
