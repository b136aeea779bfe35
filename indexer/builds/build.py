"""A build: crawl a base's fine-tunes, vectorise what is new or changed, publish."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from indexer.atlas import AtlasFolder
from indexer.builds.plan import Planned, existing_record, plan
from indexer.builds.renames import follow_renames, move_records
from indexer.builds.report import BuildOptions, BuildReport, Watcher
from indexer.builds.resources import Resources, share_out, workers_for
from indexer.builds.result import Place, Result
from indexer.builds.versions import library_versions
from indexer.deltas.stored_base import StoredBase, stored_bases
from indexer.errors import AtlasError, Failed
from indexer.listing.listing import ListedModel, Listing, select
from indexer.listing.parents import Parents, ask_hub
from indexer.names import ModelRef
from indexer.network.hub import BaseFacts
from indexer.network.rate_limit import limit_bandwidth
from indexer.publish.kept_rank import held
from indexer.publish.publication import Publication
from indexer.publish.publish import publish
from indexer.publish.rows import Entry
from indexer.records.identity import SPECTRA_FORM, SVD_METHOD, Spec, canonical_json
from indexer.records.store import RecordStore
from indexer.records.unit import Unit
from indexer.untrusted import printable

# Results are published as they come, so that an interrupted build is useful: not more often than this many seconds,
# and seldom enough that publishing takes no more than this share of the time.
PUBLISH_EVERY_SECONDS = 60.0
PUBLISHING_SHARE = 0.05

# Past this share of failures (skips do not count) the fault is not the models'.
STOP_AFTER_TRIES = 20
STOP_ABOVE_SHARE = 0.5


class Build:
    """One base's build. The caller holds the writer's lock."""

    def __init__(
        self,
        folder: AtlasFolder,
        facts: BaseFacts,
        options: BuildOptions,
        watcher: Watcher | None = None,
        listing: Listing | None = None,
        asks_hub: bool = True,
    ) -> None:
        self.folder = folder
        self.facts = facts
        self.options = options
        self.watcher = watcher or Watcher()
        self.store = RecordStore(folder)
        self.asks_hub = asks_hub and not constants.HF_HUB_OFFLINE  # what adapters stand on, where the listing lacks it
        self.listing = listing or Listing(folder.listing(facts.id))
        self.superseded: list[str] = []  # records under names that their models no longer have
        self.asked: dict[str, Any] = {}  # of a build that crawls: the Hub's address and the command's options
        self.report = BuildReport(facts.id, facts.commit, str(folder.root))
        self.database_bytes: int | None = None  # known once the memory is shared out
        self.started = time.monotonic()
        self.started_at = datetime.now(UTC)

    @property
    def spec(self) -> Spec:
        """What this build computes."""
        spectra = SPECTRA_FORM if self.options.spectra else False
        return Spec(rank=self.options.rank, spectra=spectra, svd=SVD_METHOD)

    def base_size(self) -> tuple[int, int]:
        """Bytes of the base's block matrices and of one of their numbers, from the header alone if need be."""
        path = self.folder.base(self.facts.id, self.facts.commit)
        if path.is_file() and self._is_whole(stored := StoredBase(path)):
            return stored.block_bytes, stored.item_bytes
        from indexer.deltas.base import open_base, size_of_base

        limit_bandwidth(str(self.folder.root), self.options.bandwidth)
        checkpoint = open_base(self.facts)
        try:
            return size_of_base(checkpoint)
        finally:
            checkpoint.close()

    def check_base(self) -> None:
        """Raises AtlasError where the base can be none, before anything is asked about its fine-tunes."""
        if not stored_bases(self.folder, self.facts.id):
            self.base_size()

    def stored_base(self) -> StoredBase:
        """The base's block matrices, fetched where the atlas does not have them yet.

        A new commit that leaves the weight files as they were (an edited card) is not a new base: the commit
        that the atlas knows stays, and with it every record.
        """
        path = self.folder.base(self.facts.id, self.facts.commit)
        if path.is_file() and self._is_whole(stored := StoredBase(path)):
            return stored
        from indexer.deltas.base import open_base, store_base

        limit_bandwidth(str(self.folder.root), self.options.bandwidth)  # before the first byte: headers count too
        checkpoint = open_base(self.facts)
        try:
            hashes = tuple(facts.sha256 for facts in checkpoint.files)
            for stored in stored_bases(self.folder, self.facts.id):
                if None not in hashes and stored.file_hashes == hashes:
                    self._keep_commit(stored.commit)
                    if self._is_whole(stored):
                        return stored
                    path = stored.path
                    break
            self.watcher.say(f"fetching the block matrices of {self.facts.id}")
            return store_base(checkpoint, self.facts.id, self.facts.commit, path)
        finally:
            checkpoint.close()

    def _is_whole(self, stored: StoredBase) -> bool:
        """Whether its file is as it was written; one that is not is fetched again. Raises AtlasError offline."""
        try:
            stored.check()
        except AtlasError as error:
            if constants.HF_HUB_OFFLINE:
                raise
            self.watcher.say(error.message)
            return False
        return True

    def _keep_commit(self, commit: str) -> None:
        self.facts = replace(self.facts, commit=commit)
        self.report.base_commit = commit

    def selected(self) -> list[ListedModel]:
        """The listed models that the options speak of."""
        options = self.options
        return select(
            self.listing.models(),
            limit=options.limit,
            sort=options.sort,
            since=options.since,
            author=options.author,
            relations=options.relations,
        )

    def plan(
        self, selected: Sequence[ListedModel] | None = None, folders: Mapping[str, Path] | None = None
    ) -> list[Planned]:
        """What there is to do for every listed model; ``selected`` by the options unless given.

        ``folders``: where models of this machine lie, by their ids.
        """
        options = self.options
        models = self.listing.models()
        if selected is None:
            selected = self.selected()
        chosen = {model.id for model in selected}
        template = Unit(
            model=ModelRef(self.facts.id),
            commit="",
            base=self.facts.id,
            base_commit=self.facts.commit,
            relation="finetune",
            spec=self.spec,
            device=options.device,
            keep_factors=options.keep_factors,
            vector_length=self._vector_length(),
        )
        parents = Parents(self.facts.ids, models, ask_hub if self.asks_hub else None)
        planned = plan(models, selected, self.store, template, options.retry_failed, parents, folders)
        for one in planned:
            if one.entry.listed.id in chosen and one.unit is None:
                self._count_settled(one)
        self._tell_unknown(parents)
        self.report.discovered = len(chosen)
        again = sum(one.lacks_spectra and one.unit is not None for one in planned)
        if again:
            self.watcher.say(f"records without spectra, to be read again: {again}")
        return planned

    def _vector_length(self) -> int | None:
        """About how many numbers a vector is to have: as asked for, else as published."""
        asked = self.options.index.budget if self.options.index else None
        found = held(self.folder, self.facts.id)
        return asked or (found.budget if found is not None else None)

    def _tell_unknown(self, parents: Parents) -> None:
        if parents.unknown and self.asks_hub:
            model, named = min(parents.unknown.items())
            self.watcher.say(
                f"adapters that name a base nobody can find, taken as adapters of {self.facts.id}: "
                f"{len(parents.unknown)} ({printable(model, 100)} names {printable(named, 100)})"
            )

    def _count_settled(self, one: Planned) -> None:
        if one.is_unchanged:
            self.report.unchanged += 1
        elif one.has_failed:
            self.report.failed += 1
        else:
            self.report.skipped += 1

    def run(self, planned: Sequence[Planned], base: StoredBase) -> BuildReport:
        """Do what is planned, and publish now and then. Ctrl-C publishes what was done and goes on upwards."""
        settled = {one.entry.listed.id: one.entry for one in planned}
        waiting, known = dict(settled), set(settled)  # what no publish has been told of yet; and what was planned
        due = time.monotonic() + PUBLISH_EVERY_SECONDS
        try:
            for result in chain(self.work(planned, base, settled), self._work_on_renamed(planned, base, settled)):
                waiting[result.unit.model.id] = settled[result.unit.model.id]
                if time.monotonic() > due:
                    due = self._publish_meanwhile(waiting, base)
        except BaseException as stop:
            self.report.stopped = "interrupted"
            self._find_what_was_done(planned, settled)
            try:
                self.publish(settled.values(), base, "stopped")
            except Exception:
                if not isinstance(stop, Exception):
                    raise
                raise stop from None  # on a full disk publishing fails as well: what came first is to be told
            raise
        waiting.update({name: entry for name, entry in settled.items() if name not in known})
        self.publish(waiting.values(), base, "stopped" if self.report.stopped else "finished")
        lacking = sum(settled[one.entry.listed.id] is one.entry for one in planned if one.lacks_spectra)
        if lacking:
            self.watcher.say(f"records that still have no spectra, left to another `index build --spectra`: {lacking}")
        return self.report

    def follow(self, names: Sequence[str]) -> dict[str, str]:
        """What models are called now, of ``names`` those that have another name; listed and kept under that."""
        renamed = follow_renames(self.listing, self.facts.ids, names)
        moved = {old: new for old, new in renamed.items() if new not in self.facts.ids}
        self.superseded += move_records(self.store, self.facts.id, moved)
        for old, new in renamed.items():
            self.watcher.say(f"{old} is called {new} now")
        return renamed

    def _work_on_renamed(
        self, planned: Sequence[Planned], base: StoredBase, settled: dict[str, Entry]
    ) -> Iterator[Result]:
        """Models that reading found under an old name, under their new one."""
        asked = [one.entry.listed.id for one in planned if one.unit is not None]
        reasons = {name: outcome.reason for name in asked if (outcome := settled[name].outcome) is not None}
        names = [name for name, reason in reasons.items() if reason in ("renamed", "not_found")]
        if not names:
            return
        renamed = self.follow(names)
        wanted = {model.id for model in self.listing.models()} & set(renamed.values()) - set(settled)
        # An old name counts as its new one, and not at all where that was looked at anyway.
        self.report.skipped -= sum(reasons[name] == "renamed" for name in renamed)
        self.report.failed -= sum(reasons[name] == "not_found" for name in renamed)
        discovered = self.report.discovered - len(renamed) + len(wanted)
        if not wanted:
            self.report.discovered = discovered
            return
        again = self.plan([model for model in self.listing.models() if model.id in wanted])
        self.report.discovered = discovered
        again = [one for one in again if one.entry.listed.id in wanted]
        settled.update({one.entry.listed.id: one.entry for one in again})
        yield from self.work(again, base, settled)

    def _publish_meanwhile(self, waiting: dict[str, Entry], base: StoredBase) -> float:
        """Publish what is waiting; when to do so again."""
        began = time.monotonic()
        self.publish(waiting.values(), base, None)
        waiting.clear()
        ended = time.monotonic()
        return ended + max(PUBLISH_EVERY_SECONDS, (ended - began) / PUBLISHING_SHARE)

    def _find_what_was_done(self, planned: Sequence[Planned], settled: dict[str, Entry]) -> None:
        """Records that workers wrote and nobody heard of any more."""
        for one in planned:
            if one.unit is not None and settled[one.entry.listed.id] is one.entry:
                found = existing_record(one.unit.identity, self.store)
                if found is not None:
                    done = replace(one.entry, commit=one.unit.commit, record_key=found.digest, outcome=None)
                    settled[one.entry.listed.id] = done

    def finished(self) -> BuildReport:
        """The report as it stands, with the time that went by."""
        self.report.seconds = round(time.monotonic() - self.started, 3)
        return self.report

    def work(self, planned: Sequence[Planned], base: StoredBase, settled: dict[str, Entry]) -> Iterator[Result]:
        """Do what is planned; after each model ``settled`` (by id) says what became of it. Nothing is published."""
        units = [one.unit for one in planned if one.unit is not None]
        self.watcher.started(self.facts.id, len(units), planned)
        if not units:
            return
        from indexer.builds.executor import executor_for  # and torch with it: not where there is nothing to do

        resources = self._resources(base, len(units))
        place = Place(self.folder.root, base.path, resources)
        executor = executor_for(resources.workers, self.options.scheduler)
        with closing(executor.run(units, place)) as results:
            for result in results:
                settled[result.unit.model.id] = self._settle(settled[result.unit.model.id], result)
                self.watcher.finished(result, self.report)
                yield result
                if self._is_hopeless():
                    return

    def _resources(self, base: StoredBase, units: int) -> Resources:
        options = self.options
        workers = workers_for(options.workers, units)
        largest = max(4 * matrix.shape[0] * matrix.shape[1] for matrix in base.layout.matrices)
        found = share_out(workers, base.block_bytes, largest, options.memory, options.bandwidth)
        if found.workers < workers:
            self.watcher.say(f"memory for {found.workers} of {workers} workers")
        return found

    def _settle(self, entry: Entry, result: Result) -> Entry:
        report, digest = self.report, result.unit.identity.digest
        report.bytes_read += result.bytes_read
        report.bytes_total += result.bytes_total
        if result.error is None:
            report.indexed += 1
            return Entry(entry.listed, entry.base, result.unit.commit, record_key=digest)
        if isinstance(result.error, Failed):
            report.failed += 1
        else:
            report.skipped += 1
        report.problem = f"{result.unit.model.id}: {result.error.detail.rstrip('.')}"
        if entry.record_key is not None:
            return entry  # what was there, without spectra or of an earlier commit, is as good as before
        return Entry(entry.listed, entry.base, result.unit.commit, outcome=self.store.outcome(digest))

    def _is_hopeless(self) -> bool:
        """Whether so much fails that going on would only fill the atlas with failures."""
        tried = self.report.indexed + self.report.failed
        if tried < STOP_AFTER_TRIES or self.report.failed <= STOP_ABOVE_SHARE * tried:
            return False
        self.report.stopped = f"{self.report.failed} of {tried} models failed"
        return True

    def publish(self, entries: Iterable[Entry], base: StoredBase, outcome: str | None) -> None:
        """Bring the atlas up to date; with an ``outcome`` (finished, stopped) this run is noted as a build."""
        self.finished()
        entries = list(entries)
        is_told = outcome == "finished" or any(one.status != "listed" for one in entries)
        if not is_told and not self.folder.database.exists():
            return  # nothing was learnt that is not in the listing
        renamed = self.listing.renamed
        publish(
            self.folder,
            [
                Publication(
                    base=base,
                    aliases=self.facts.aliases,
                    entries=[entry for entry in entries if entry.listed.id not in renamed],
                    withdrawn=tuple(renamed),
                    rank=self.options.rank,
                    rejected_rows=[row.as_row() for row in self.listing.rejected_rows()] if outcome else None,
                    build=self._build_row(outcome) if outcome else None,
                    index=self.options.index,
                    thresholds=self.options.thresholds,
                )
            ],
            say=self.watcher.say,
            memory=self.database_bytes,
        )
        while self.superseded:  # now that nothing published names them
            self.store.discard(self.superseded.pop())

    def _build_row(self, outcome: str) -> dict[str, Any]:
        report = self.report
        return {
            "base_commit": report.base_commit,
            "started": self.started_at,
            "finished": datetime.now(UTC),
            "outcome": outcome,
            "discovered": report.discovered,
            "indexed": report.indexed,
            "unchanged": report.unchanged,
            "skipped": report.skipped,
            "failed": report.failed,
            "bytes_read": report.bytes_read,
            "bytes_total": report.bytes_total,
            "seconds": report.seconds,
            "spec": canonical_json(asdict(self.spec) | self.asked),
            "thresholds": canonical_json(asdict(self.options.thresholds)),
            "versions": canonical_json(library_versions()),
        }
