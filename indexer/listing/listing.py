"""The listing of one base on disk: what the Hub listed for it, and how far the last crawl came.

It lies in the database of the base (``listing.sql``). Each page of a crawl is one transaction, on the disk before the
next page is asked for, so that a crawl that is killed continues from its last page. Damaged rows are left out when the
listing is read, and reported as problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from indexer.errors import WRONG_KINDS, AtlasError, system_errors
from indexer.listing.base_database import base_database, schema
from indexer.listing.listed_models import Line, ListedModel, select, without_earlier
from indexer.listing.listing_tables import RESTORED, CrawlState, ListingTables, Names, Removal
from indexer.sources.cards.modelcard import Licence
from indexer.sources.cards.readme import SENTENCE
from indexer.sources.claims import BY_FOLDER, Claim
from indexer.sources.questions import (
    COPY,
    SOURCE,
    BadRow,
    ClaimedRow,
    CrawlProgress,
    CrawlRequest,
    Page,
    RawRow,
    Rejected,
    Step,
    UnlistedMember,
)
from indexer.sources.registry import is_listed_id, source_of
from indexer.storage.atomic_files import link_or_copy
from indexer.storage.small_database import DamagedDatabase, FileState, SmallTables
from indexer.untrusted import malformed

__all__ = ["ListedModel", "Listing", "select", "without_earlier"]

Answer = TypeVar("Answer")

# A crawl older than this starts over, because it would miss what was uploaded since.
_RESUME_WITHIN_SECONDS = 24 * 3600.0


class Listing:
    """The listing in the database at ``path``, which need not exist yet; read when needed.

    There must be one writer at a time. Raises AtlasError if the file cannot be read or written, and DamagedDatabase if
    it is damaged as a whole. Single rows and pages that are damaged are left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = base_database(path)
        self._models: tuple[FileState, list[ListedModel]] | None = None  # of one state of the file

    def models(self) -> list[ListedModel]:
        """Every model that was ever listed, gone or not, in the order of their first appearance."""
        state = self._state()
        if state is None:
            return []
        if self._models is None or self._models[0] != state:
            self._models = None
            self._models = (state, self._read(ListingTables.models))
        return list(self._models[1])

    def gone(self) -> frozenset[str]:
        """Ids of the models that have left the Hub."""
        return self._read(ListingTables.gone)

    def mirrors(self) -> tuple[str, ...]:
        """Other ids of the base's weights, which the user gave."""
        return tuple(name for name, (step, _) in self._read(ListingTables.steps).items() if step.relation == COPY)

    def copies(self) -> dict[str, str]:
        """Quantised copies and mirrors of models of the family: id in lower case → what it is a copy of."""
        steps = self._read(ListingTables.steps)
        copies = {name: step.of for name, (step, _) in steps.items() if step.relation in ("quantized", COPY)}
        copies |= {model.id: model.parent for model in self.models() if model.relation == "quantized"}
        return {name.lower(): of for name, of in copies.items()}

    def note_mirrors(self, mirrors: Sequence[str], base: str) -> None:
        """Remember other names of the base's weights."""
        mirrors_before = self.mirrors()
        new = [name for name in mirrors if name not in mirrors_before]

        def note(listing: ListingTables) -> None:
            for name in new:
                listing.note_step(name, Step(base, COPY), "")

        if new:
            self._write(note)

    @property
    def is_crawled(self) -> bool:
        """Whether a crawl has finished."""
        crawl = self._read(ListingTables.crawl)
        return crawl is not None and crawl.is_over

    def rejected_rows(self) -> list[BadRow]:
        """Rows that could not be used, in the last complete crawl and since."""
        return [bad for bad, _ in self._read(ListingTables.bad_rows)]

    @property
    def licence(self) -> Licence | None:
        """The licence of the base, by its card."""
        return self._read(ListingTables.licence)

    def ids(self) -> tuple[str, ...]:
        """The ids of the base, the canonical one first."""
        return self._read(ListingTables.ids)

    def lists(self, identifier: str) -> bool:
        """Whether a model of this id is listed."""
        return self._read(lambda listing: listing.row(identifier) is not None)

    def aliases(self) -> tuple[str, ...]:
        """The other ids of the base."""
        return self.ids()[1:]

    def problems(self) -> list[str]:
        """The damage of the file, at most a hundred problems."""
        return self.database.check()

    def as_lines(self) -> list[Line]:
        """The lines that add up to this listing, without its crawl."""
        return self._read(lambda listing: list(listing.lines()))

    def remove_if_empty(self) -> None:
        """Remove the file if it has no rows, no answers and no crawl that could be resumed."""

        def is_empty(tables: SmallTables) -> bool:
            crawl = ListingTables(tables).crawl()
            can_go_on = crawl is not None and not crawl.is_over and crawl.link is not None
            tables_kept = ("models", "bad_rows", "examined", "renamed", "removed", "answers")
            return not can_go_on and not any(tables.execute(f"SELECT 1 FROM {name} LIMIT 1") for name in tables_kept)

        if self.database.exists() and not self.problems() and self.database.read(is_empty):
            self.database.remove()

    def note_base(self, ids: Sequence[str], licence: Licence | None = None) -> None:
        """Remember the base's ids, the canonical one first, and its licence, unless that is not known."""
        ids_before, is_new = self._read(ListingTables.ids), licence not in (None, self.licence)
        if is_new or not ids_before or ids_before[0] != ids[0] or not set(ids) <= set(ids_before):
            self._write(lambda listing: listing.note_base(ids, licence))

    def add(self, row: RawRow, relation: str, parent: str, claimed_by: str = "user") -> None:
        """List one model that no crawl found."""
        claims = {"user": (Claim(relation, claimed_by, parent), "")}
        self._write(lambda listing: listing.see(str(row["id"]), claims, row, datetime.now(UTC)))

    def update_place(
        self, question: str, shown: Iterable[tuple[RawRow, Claim]], not_shown: Iterable[str]
    ) -> tuple[int, int]:
        """Note which models the tree or the source of a ``question`` shows, and which it shows no more (``not_shown``).

        Returns how many are new or have come back, and how many no source shows any more.
        """
        now = datetime.now(UTC)

        def update(listing: ListingTables) -> tuple[int, int]:
            names, gone_before, new, gone = Names(listing), listing.gone(), 0, 0
            for row, claim in shown:
                identifier = str(row["id"])
                if not names.is_removed(identifier):
                    is_new = listing.see(identifier, {question: (claim, "")}, row, now, names=names)
                    new += is_new or identifier in gone_before
            for identifier in not_shown:
                gone += listing.lose(identifier, [question])
            return new, gone

        return self._write(update)

    def note_datasets(self, datasets: Mapping[str, Sequence[str]]) -> None:
        """Remember what the READMEs of listed models name, by id: their rows do not show it."""

        def note(listing: ListingTables) -> None:
            for name, datasets_of_model in datasets.items():
                commit = (listing.row(name) or {}).get("sha")
                listing.complete(name, {"id": name, "sha": commit, SENTENCE: list(datasets_of_model)})

        if datasets:
            self._write(note)

    def renew(self, row: RawRow) -> None:
        """Replace the row of a listed model by a newer one of the Hub."""
        self._write(lambda listing: listing.complete(str(row["id"]), row))

    def rename(self, old: str, row: RawRow | None, new: str) -> None:
        """List the model ``old`` as ``new``, with its claims, unless that is listed already.

        ``row`` is the Hub's row of it; without one it is not listed any more.
        """

        def change(listing: ListingTables) -> None:
            model = listing.model(old)
            if row is not None and model is not None and listing.row(new) is None:
                crawl = listing.crawl()
                claims = {key: (claim, crawl.id if crawl else "") for key, (claim, _) in model.claims.items()}
                claims = claims or {"renamed": (Claim(model.relation, model.claimed_by, model.parent), "")}
                listing.see(new, claims, row, datetime.now(UTC))
            listing.rename(old, new)

        self._write(change)

    def remove(self, removal: Removal) -> None:
        """Take a model out of the listing, and note that it is still to be removed from everything else.

        Crawls ignore it until it is added by name.
        """
        if self.removals.get(removal.model) != removal:
            now = datetime.now(UTC).isoformat()
            self._write(lambda listing: listing.remove(removal.model, now, removal))

    def finish_removal(self, model: str) -> None:
        """Note that nothing is left of a model that was taken out."""
        if model in self.removals:
            self._write(lambda listing: listing.remove(model, listing.removed()[model][0]))

    @property
    def removals(self) -> dict[str, Removal]:
        """Removals that were begun and are not finished, by model."""
        removed = self._read(ListingTables.removed)
        return {name: removal for name, (_, removal) in removed.items() if removal is not None}

    @property
    def removed(self) -> frozenset[str]:
        """Models that the user took out."""
        return frozenset(self._read(ListingTables.removed))

    @property
    def renamed(self) -> dict[str, str]:
        """Old name → new name, of models that are listed under the new one (or that were the base)."""
        return self._read(ListingTables.renamed)

    def begin(self, request: CrawlRequest) -> tuple[CrawlProgress, bool]:
        """Start a crawl, or resume an unfinished one of the same request: its progress, and whether it resumes."""
        now, parameters = datetime.now(UTC), request.as_json()

        def begun(listing: ListingTables) -> tuple[CrawlProgress, bool]:
            crawl = listing.crawl()
            if crawl is not None and not crawl.is_over and crawl.parameters == parameters:
                age = (now - crawl.started).total_seconds()
                if 0 <= age <= _RESUME_WITHIN_SECONDS:
                    return listing.progress(crawl), True
            listing.note_base(request.ids, None)
            crawl = CrawlState(uuid4().hex, now, parameters)
            listing.begin(crawl)
            return listing.progress(crawl), False

        return self._write(begun)

    def append_page(self, page: Page) -> int:
        """Store a page of the current crawl; returns how many models on it are new."""
        now = datetime.now(UTC)

        def stored(listing: ListingTables) -> int:
            crawl, names, new = _current(listing), Names(listing), 0
            for row in page.of(ClaimedRow):
                if not names.is_removed(row.id):
                    claims = {page.question.key: (row.claim, crawl.id)}
                    new += listing.see(row.id, claims, row.row, now, names=names)
            for bad in page.of(BadRow):
                listing.note_bad(replace(bad, seen=now), crawl.id)
            for member in page.of(UnlistedMember):
                listing.note_step(member.id, member.step, crawl.id)
            for rejected in page.of(Rejected):
                listing.note_examined(rejected.kind, rejected.id, rejected.commit, rejected.why)
            listing.note_answered(page.question.key, is_last=page.is_last, is_cut=page.is_cut)
            link = page.next_link
            current, oldest = (page.question.key, page.oldest) if link else (None, None)
            listing.store_crawl(replace(crawl, current=current, link=link, oldest=oldest))
            return new

        return self._write(stored)

    def finish(self, *, is_complete: bool) -> int:
        """End the crawl; returns how many models have gone. ``is_complete``: nothing was narrowed or left out."""
        return self._write(lambda listing: listing.end(_current(listing), is_complete=is_complete))

    def restore(self, models: Iterable[ListedModel], ids: Sequence[str]) -> None:
        """Add ``models``, which the listing lacks; ``ids`` are the base's.

        Restored models have the claim given here until a crawl shows them; those that a complete crawl does not show
        have gone.
        """

        def restored(listing: ListingTables) -> None:
            if not listing.ids():
                listing.note_base(ids, None)
            for model in models:
                claim = Claim(model.relation, model.claimed_by, model.parent)
                key = _restored_key(model, ids[0])
                claims = {} if model.deleted_at_hub else {key: (claim, "")}
                listing.see(model.id, claims, model.row, model.last_seen, first_seen=model.first_seen, was=claim)

        self._write(restored)

    def repair(self) -> None:
        """Write a damaged file again with what can be read of it, stored answers too.

        The damaged file is kept in the same folder under a name that ends in ``.damaged``.
        """
        if not (self.database.exists() and self.problems()):
            return
        copy = self.path.with_name(f"{self.path.name}.damaged")
        with system_errors(partial(self.database.unusable, "copied")):
            link_or_copy(self.path, copy)
        try:
            readable = self._read(lambda listing: {name: list(listing.tables.all(name)) for name in schema().columns})
        except DamagedDatabase:
            readable = {}

        def put(tables: SmallTables) -> None:
            for name, rows in readable.items():
                tables.put_all(name, iter(rows))

        self.database.replace(put)

    def write(self, lines: Iterable[Line]) -> list[str]:
        """Replace the listing by that of exported lines; returns the problems of lines that are left out.

        The answers in its database are kept.
        """
        problems: list[str] = []

        def written(tables: SmallTables) -> None:
            for name in schema().columns:
                if name != "answers":
                    tables.execute(f"DELETE FROM {name}")
            listing = ListingTables(tables)
            names = Names(listing)
            for number, line in enumerate(lines, start=1):
                try:
                    listing.apply(line, names)
                except WRONG_KINDS as error:
                    problems.append(f"line {number} cannot be read: {error}"[:300])

        self.database.write(written)
        return problems

    def _read(self, function: Callable[[ListingTables], Answer]) -> Answer:
        what = f"The listing {self.path} contains values that this program does not write"
        with malformed(lambda why: AtlasError(f"{what} ({why}).", self.database.schema.repair)):
            return self.database.read(lambda tables: function(ListingTables(tables)))

    def _write(self, function: Callable[[ListingTables], Answer]) -> Answer:
        return self.database.write(lambda tables: function(ListingTables(tables)))

    def _state(self) -> FileState | None:
        with system_errors(partial(self.database.unusable, "read")):
            return self.database.state()


def _restored_key(model: ListedModel, base: str) -> str:
    """The question that a restored model counts as shown by: what answers it can also take the model away."""
    if model.claimed_by == BY_FOLDER or not is_listed_id(model.id):
        return "user"
    source = source_of(model.id)
    return RESTORED if source is source_of(base) else f"{SOURCE}{source.scheme}"


def _current(listing: ListingTables) -> CrawlState:
    crawl = listing.crawl()
    if crawl is None or crawl.is_over:
        raise ValueError("no crawl has begun")
    return crawl
