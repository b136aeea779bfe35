"""The listing of one base on disk: what the Hub listed for it, and how far the last crawl came.

``listing/<base>.jsonl`` is only appended to, a page at a time, and synced before the next page is asked for. Each line
is a JSON object with a checksum and a ``kind``:

- ``model``: a row as it was seen (left out if nothing changed), and its claim by the question that showed it
- ``gone``: questions that used to show a model and no longer do; a model without any has left the Hub
- ``bad``: a row that could not be used; ``rejected``: an untagged model that is not a fine-tune of this base;
  ``unrelated``: one that is not, by its weights
- ``removed``: a model that the user took out, and that no crawl brings back; what of it is still to be removed
- ``renamed``: a model's old name and the one under which it is listed now
- ``start``, ``page``, ``finish``: a crawl, so that the next one can be resumed where it stopped
- ``step``: a model of the family that is not listed (a quantised copy, a mirror), its parent, and the relation to it
- ``base``: the base's ids, and the licence of its card

The file is read by replaying it. A last line cut short by a crash is dropped and overwritten by the next append. Any
other line that cannot be read, or whose checksum is wrong, is reported as a problem, and the other lines still count.
When most lines are superseded, the file is written again and put in place by a rename.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from indexer.cards.readme import SENTENCE
from indexer.errors import AtlasError
from indexer.listing.listed_models import Line, ListedModel, select
from indexer.listing.listing_state import (
    RESTORED,
    CrawlState,
    Removal,
    State,
    bad_line,
    base_line,
    model_line,
    removed_line,
    step_line,
)
from indexer.regular_files import descriptor_of, open_regular
from indexer.sources.claims import BY_FOLDER, Claim
from indexer.sources.questions import (
    COPY,
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
from indexer.sources.registry import is_listed_id
from indexer.storage.atomic_files import link_or_copy, replacing, sync_file, sync_folder
from indexer.storage.checksummed_jsonl import add_checksum, parse_checksummed

__all__ = ["ListedModel", "Listing", "select"]

# A crawl older than this starts over, because it would miss what was uploaded since.
_RESUME_WITHIN_SECONDS = 24 * 3600.0

# The file is written again when it has this many lines for each one needed, and at least this many in all.
_SUPERSEDED_FACTOR = 2.5
SUPERSEDED_LINES = 1_000

# Later kinds win: a model that one listing rejected and another shows is listed, a rename is known to all, and a model
# that the user took out of one listing stays out.
_JOINING_ORDER = ("base", "step", "rejected", "unrelated", "model", "bad", "renamed", "removed")

_MOST_PROBLEMS = 100
_MOST_LINE = 64 << 20  # bytes; an answer of the Hub is shorter


class Listing:
    """The listing at ``path``, which need not exist yet; read when needed and again whenever it has changed.

    There must be one writer at a time. Raises AtlasError if the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state: State | None = None
        self._problems: list[str] = []
        self._length = 0  # bytes up to the end of the last complete line
        self._tail = b""  # a line after that with a damaged end, written again by the next append
        self._signature: tuple[int, ...] | None = None
        self._models: tuple[tuple[int, int], list[ListedModel]] | None = None  # with their paths, of one state

    def models(self) -> list[ListedModel]:
        """Every model that was ever listed, gone or not, in the order of their first appearance."""
        state = self._read()
        if self._models is None or self._models[0] != (id(state), state.lines):
            models = [replace(model, path=state.path_of(model.id)) for model in state.models.values()]
            self._models = ((id(state), state.lines), models)
        return list(self._models[1])

    def mirrors(self) -> tuple[str, ...]:
        """Other ids of the base's weights, which the user gave."""
        return tuple(name for name, (step, _) in self._read().steps.items() if step.relation == COPY)

    def copies(self) -> dict[str, str]:
        """Quantised copies and mirrors of models of the family: id in lower case → what it is a copy of."""
        state = self._read()
        found = {name: step.of for name, (step, _) in state.steps.items() if step.relation in ("quantized", COPY)}
        found |= {model.id: model.parent for model in state.models.values() if model.relation == "quantized"}
        return {name.lower(): of for name, of in found.items()}

    def note_mirrors(self, mirrors: Sequence[str], base: str) -> None:
        """Remember other names of the base's weights."""
        new = [name for name in mirrors if name not in self.mirrors()]
        if new:
            self._append([step_line(name, Step(base, COPY), "") for name in new])

    @property
    def is_crawled(self) -> bool:
        """Whether a crawl has finished."""
        crawl = self._read().crawl
        return crawl is not None and crawl.is_over

    def rejected_rows(self) -> list[BadRow]:
        """Rows that could not be used, in the last complete crawl and since."""
        return [bad for bad, _ in self._read().bad.values()]

    @property
    def licence(self) -> str | None:
        """The licence of the base, by its card."""
        return self._read().licence

    def aliases(self) -> tuple[str, ...]:
        """The other ids of the base."""
        return self._read().ids[1:]

    def problems(self) -> list[str]:
        """Lines of the file that cannot be read, by number; at most a hundred."""
        self._read()
        return list(self._problems)

    def as_lines(self) -> list[Line]:
        """The shortest list of lines that adds up to this listing."""
        return self._read().as_lines()

    def remove_if_empty(self) -> None:
        """Remove the file if it has no rows and no crawl that could be resumed."""
        state = self._read()
        can_go_on = state.crawl is not None and not state.crawl.is_over and state.crawl.link is not None
        kept = (state.models, state.bad, *state.rejected.values(), state.renamed, state.removed, self._problems)
        if can_go_on or any(kept):
            return
        self.path.unlink(missing_ok=True)
        self._state = None

    def note_base(self, ids: Sequence[str], licence: str | None = None) -> None:
        """Remember the base's ids, the canonical one first, and its licence, unless that is not known."""
        known, is_new = self._read().ids, licence not in (None, self._read().licence)
        if is_new or not known or known[0] != ids[0] or not set(ids) <= set(known):
            self._append([base_line(ids, licence)])

    def add(self, row: RawRow, relation: str, parent: str, claimed_by: str = "user") -> None:
        """List one model that no crawl found."""
        claim = Claim(relation, claimed_by, parent)
        self._append([model_line(str(row["id"]), {"user": claim}, row, "", datetime.now(UTC))])

    def note_datasets(self, datasets: Mapping[str, Sequence[str]]) -> None:
        """Remember what the READMEs of listed models name, by id: their rows do not show it."""
        lines = []
        for name, named in datasets.items():
            model = self._read().models[name]
            row = {"id": name, "sha": model.row.get("sha"), SENTENCE: list(named)}
            lines.append(model.as_line() | {"claims": {}, "row": row})
        self._append(lines)

    def renew(self, row: RawRow) -> None:
        """Replace the row of a listed model by a newer one of the Hub."""
        known = self._read().models[str(row["id"])]
        self._append([known.as_line() | {"claims": {}, "row": row}])

    def rename(self, old: str, row: RawRow | None, new: str) -> None:
        """List the model ``old`` as ``new``, with its claims, unless that is listed already.

        ``row`` is the Hub's row of it; without one it is not listed any more.
        """
        known = self._read().models.get(old)
        lines: list[Line] = []
        if row is not None and known is not None and new not in self._read().models:
            claims = {key: claim for key, (claim, _) in known.claims.items()}
            claims = claims or {"renamed": Claim(known.relation, known.claimed_by, known.parent)}
            crawl = self._read().crawl
            lines.append(model_line(new, claims, row, crawl.id if crawl else "", datetime.now(UTC)))
        self._append([*lines, {"kind": "renamed", "id": old, "to": new}])

    def remove(self, removal: Removal) -> None:
        """Take a model out of the listing, and note that it is still to be removed from everything else.

        Crawls ignore it until it is added by name.
        """
        if self._read().removals.get(removal.model) != removal:
            self._append([removed_line(removal.model, datetime.now(UTC).isoformat(), removal)])

    def finish_removal(self, model: str) -> None:
        """Note that nothing is left of a model that was taken out."""
        state = self._read()
        if model in state.removals:
            self._append([removed_line(model, state.removed[model])])

    @property
    def removals(self) -> dict[str, Removal]:
        """Removals that were begun and are not finished, by model."""
        return dict(self._read().removals)

    @property
    def removed(self) -> frozenset[str]:
        """Models that the user took out."""
        return frozenset(self._read().removed)

    @property
    def renamed(self) -> dict[str, str]:
        """Old name → new name, of models that are listed under the new one (or that were the base)."""
        return dict(self._read().renamed)

    def begin(self, request: CrawlRequest) -> tuple[CrawlProgress, bool]:
        """Start a crawl, or resume an unfinished one of the same request: its progress, and whether it resumes."""
        state, now = self._read(), datetime.now(UTC)
        crawl, parameters = state.crawl, request.as_json()
        if crawl is not None and not crawl.is_over and crawl.parameters == parameters:
            age = (now - crawl.started).total_seconds()
            if 0 <= age <= _RESUME_WITHIN_SECONDS:
                return state.progress(crawl), True
        line = {"kind": "start", "crawl": uuid4().hex, "seen": now.isoformat(), "parameters": parameters}
        self.note_base(request.ids)
        self._append([line])
        return state.progress(self._crawl()), False

    def append_page(self, page: Page) -> int:
        """Store a page of the current crawl; returns how many models on it are new."""
        state, crawl, now = self._read(), self._crawl(), datetime.now(UTC)
        lines: list[Line] = []
        new = 0
        for found in page.of(ClaimedRow):
            if found.id in state.removed:
                continue
            name = state.name_of(found.id, found.row)
            known = state.models.get(name)
            new += known is None
            is_news = known is None or (name == found.id and state.merged(name, found.row) != known.row)
            claims = {page.question.key: found.claim}
            lines.append(model_line(found.id, claims, found.row if is_news else None, crawl.id, now))
        lines += [bad_line(replace(bad, seen=now), crawl.id) for bad in page.of(BadRow)]
        lines += [step_line(one.id, one.step, crawl.id) for one in page.of(UnlistedMember)]
        for one in page.of(Rejected):
            before = state.rejected[one.kind].get(one.id)
            if before is None or before[0] != one.commit:
                lines.append({"kind": one.kind, "id": one.id, "sha": one.commit, "why": one.why})
        lines.append(
            {
                "kind": "page",
                "crawl": crawl.id,
                "question": page.question.key,
                "next": page.next_link,
                "last": page.is_last,
                "cut": page.is_cut,
                "oldest": page.oldest,
            }
        )
        self._append(lines)
        return new

    def finish(self, *, is_complete: bool) -> int:
        """End the crawl; returns how many models have gone. ``is_complete``: nothing was narrowed or left out."""
        crawl, gone = self._crawl(), 0
        lines: list[Line] = []
        if is_complete:
            for identifier, questions in self._read().no_longer_shown().items():
                lines.append({"kind": "gone", "crawl": crawl.id, "id": identifier, "questions": questions})
                gone += len(questions) == len(self._read().models[identifier].claims)
        self._append([*lines, {"kind": "finish", "crawl": crawl.id, "complete": is_complete}])
        state = self._read()
        needed = state.as_lines()
        is_worthwhile = state.lines >= SUPERSEDED_LINES and state.lines >= _SUPERSEDED_FACTOR * len(needed)
        if is_worthwhile and not self._problems:  # a damaged file stays as it is
            self.write(needed)
        return gone

    def _crawl(self) -> CrawlState:
        crawl = self._read().crawl
        if crawl is None or crawl.is_over:
            raise ValueError("no crawl has begun")
        return crawl

    def _read(self) -> State:
        """The state that the lines of the file add up to, read again if the file has changed."""
        signature = _signature(self.path)
        if self._state is not None and signature == self._signature:
            return self._state
        state, problems, length, tail, number = State(), list[str](), 0, b"", 0
        try:
            with suppress(FileNotFoundError), open_regular(self.path) as file:
                while line := file.readline(_MOST_LINE + 1):
                    number, size, end = number + 1, len(line), line
                    while len(end) > _MOST_LINE and not end.endswith(b"\n"):  # of a long line only the start is kept
                        end = file.readline(_MOST_LINE + 1)
                        size += len(end)
                    if size > _MOST_LINE and end.endswith(b"\n"):
                        length += size
                        problems.append(f"line {number} has more than {_MOST_LINE:,} bytes")
                        continue
                    if end.endswith(b"\n"):
                        length += size
                    elif size <= _MOST_LINE and _is_whole(line[:-1]):
                        problems.append(f"line {number} has a damaged end")
                        line = tail = line[:-1] + b"\n"
                    else:
                        break  # cut short by a crash; the next append overwrites it
                    try:
                        state.apply(parse_checksummed(line[:-1]))
                    except (ValueError, RecursionError) as error:
                        if len(problems) < _MOST_PROBLEMS:
                            problems.append(f"line {number} cannot be read: {error}"[:300])
        except OSError as error:
            raise _unusable(self.path, "read", error) from error
        self._state, self._problems, self._length, self._tail, self._models = state, problems, length, tail, None
        self._signature = signature
        return state

    def _append(self, lines: Iterable[Line]) -> None:
        """Write and sync, then change the state: what is not on disk is not in the state."""
        state, lines = self._read(), list(lines)
        block = self._tail + b"".join(_encoded(line) for line in lines)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(descriptor_of(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
                file.truncate(self._length)
                file.write(block)
                file.flush()
                sync_file(file.fileno())
            if self._signature is None:
                sync_folder(self.path.parent)
        except OSError as error:
            raise _unusable(self.path, "written", error) from error
        self._length += len(block)
        self._tail = b""
        self._signature = _signature(self.path)
        for line in lines:
            state.apply(line)

    def restore(self, models: Iterable[ListedModel], ids: Sequence[str]) -> None:
        """Write the file again with its readable lines and with ``models``, which it lacks; ``ids`` are the base's.

        A damaged file is kept in the same folder under a name that ends in ``.damaged``. Restored models have the claim
        given here until a crawl shows them; those that a complete crawl does not show have gone.
        """
        state = self._read()
        lines = state.as_lines()
        if not state.ids:
            lines.insert(0, {"kind": "base", "ids": list(ids)})
        for one in models:
            claim = Claim(one.relation, one.claimed_by, one.parent)
            key = RESTORED if is_listed_id(one.id) and one.claimed_by != BY_FOLDER else "user"
            lines.append(replace(one, claims={} if one.deleted_at_hub else {key: (claim, "")}).as_line())
        if self._problems:
            kept = self.path.with_name(f"{self.path.name}.damaged")
            try:
                link_or_copy(self.path, kept)
            except OSError as error:
                raise _unusable(kept, "written", error) from error
        self.write(lines)

    def write(self, lines: Iterable[Line]) -> None:
        """Replace the whole file by these lines."""
        try:
            with replacing(self.path) as file:
                file.writelines(_encoded(line) for line in lines)
            sync_folder(self.path.parent)
        except OSError as error:
            raise _unusable(self.path, "written", error) from error
        self._state = None


def join_listings(paths: Sequence[Path], target: Path) -> tuple[str, ...]:
    """Write one listing of those at ``paths``; returns the ids of models that several of them contain.

    A missing file is an empty listing. Of a model in several listings the row that was seen last counts, its first
    appearance is the earliest, and it has gone only if no listing shows it any more. Raises AtlasError if a file
    cannot be read or written.
    """
    listings = [Listing(path) for path in paths]
    counted = Counter(model.id for one in listings for model in one.models())
    lines = sorted(
        (line for one in listings for line in one.as_lines()),
        key=lambda line: (_JOINING_ORDER.index(line["kind"]), str(line.get("seen", ""))),
    )
    Listing(target).write(lines)
    return tuple(sorted(model for model, count in counted.items() if count > 1))


def _is_whole(line: bytes) -> bool:
    """Whether a line without its end is an object with its checksum."""
    try:
        parse_checksummed(line)
    except (ValueError, RecursionError):
        return False
    return True


def _signature(path: Path) -> tuple[int, ...] | None:
    """A value that changes when the file does; None without a file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, "read", error) from error
    return status.st_ino, status.st_size, status.st_mtime_ns


def _unusable(path: Path, verb: str, error: OSError) -> AtlasError:
    return AtlasError(
        f"The listing {path} cannot be {verb}: {error.strerror}.", "Check its permissions and the free space."
    )


def _encoded(line: Line) -> bytes:
    # ASCII, so that any text from the Hub can be written, lone surrogates included.
    return add_checksum(json.dumps(line, separators=(",", ":"))) + b"\n"
