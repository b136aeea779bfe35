"""The listing of one base on disk: what the Hub said of its fine-tunes, and how far the last crawl came.

``listing/<base>.jsonl`` is only ever appended to, a page at a time, synced before the next page is asked for.
One JSON object a line, told apart by ``kind``:

- ``model``: a row as it was seen (left out where nothing changed), with what it claims by which question
- ``gone``: questions that used to show a model and no longer do; without any left, it has left the Hub
- ``bad``: a row that could not be used; ``rejected``: an untagged model that is not this base's
- ``removed``: a model that a person took out, and that no crawl brings back
- ``renamed``: a model's old name and the one under which it is listed now
- ``start``, ``page``, ``finish``: a crawl, so that the next one can go on where it stopped
- ``base``: the base's ids

The file is read back by replaying it. A last line cut short by a crash is dropped and overwritten by the next append;
any other line that cannot be read, or whose checksum (``indexer.storage.checksummed_jsonl``) does not fit, is a
problem to report, and costs no other line. When most lines are superseded the file is written again and put in place
by a rename.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from indexer.errors import AtlasError
from indexer.listing.claims import BY_FOLDER, Claim
from indexer.listing.listing_state import (
    RESTORED,
    CrawlState,
    KnownModel,
    Line,
    State,
    bad_line,
    model_line,
    seen_at,
)
from indexer.listing.questions import BadRow, CrawlProgress, CrawlRequest, Page, RawRow
from indexer.listing.selection import ListedModel, select
from indexer.names import is_hub_id
from indexer.regular_files import descriptor_of, open_regular
from indexer.storage.checksummed_jsonl import add_checksum, has_checksum, parse_checksummed

__all__ = ["ListedModel", "Listing", "select"]

# A crawl older than this starts over: what was uploaded since would be missed.
RESUME_WITHIN_SECONDS = 24 * 3600.0

# Written again when this many lines stand for every one that is needed, and there are enough to bother.
SUPERSEDED_FACTOR = 2.5
SUPERSEDED_LINES = 1_000

_MOST_PROBLEMS = 100
_MOST_LINE = 64 << 20  # bytes: an answer of the Hub has fewer


class Listing:
    """The listing at ``path``, which need not exist yet; read when asked about and whenever it has changed.

    One writer at a time. AtlasError is raised where the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state: State | None = None
        self._problems: list[str] = []
        self._length = 0  # bytes up to the end of the last whole line
        self._tail = b""  # a whole line after that whose end alone is damaged: written again by the next append
        self._signature: tuple[int, ...] | None = None

    def models(self) -> list[ListedModel]:
        """Every model that was ever listed, gone or not, in the order they were first seen."""
        return [model.as_listed() for model in self._read().models.values()]

    @property
    def is_crawled(self) -> bool:
        """Whether a crawl has come to its end."""
        crawl = self._read().crawl
        return crawl is not None and crawl.is_over

    def rejected_rows(self) -> list[BadRow]:
        """Rows that could not be used: those of the last complete crawl and since."""
        return [bad for bad, _ in self._read().bad.values()]

    def aliases(self) -> tuple[str, ...]:
        """The other ids of the base."""
        return self._read().ids[1:]

    def problems(self) -> list[str]:
        """Lines of the file that cannot be read, by number; at most a hundred."""
        self._read()
        return list(self._problems)

    def as_lines(self) -> list[Line]:
        """The fewest lines that add up to it."""
        return self._read().as_lines()

    def write(self, lines: Iterable[Line]) -> None:
        """Put these lines in place of what is there."""
        self._write_again(lines)

    def remove_if_empty(self) -> None:
        """Remove the file where it holds nothing but that somebody asked: no row, and no crawl that could go on."""
        state = self._read()
        can_go_on = state.crawl is not None and not state.crawl.is_over and state.crawl.link is not None
        if state.models or state.bad or state.rejected or state.renamed or state.removed or can_go_on or self._problems:
            return
        self.path.unlink(missing_ok=True)
        self._state = None

    def note_base(self, ids: Sequence[str]) -> None:
        """Remember the base's ids, the canonical one first."""
        known = self._read().ids
        if not known or known[0] != ids[0] or not set(ids) <= set(known):
            self._append([{"kind": "base", "ids": list(ids)}])

    def add(self, row: RawRow, relation: str, parent: str, claimed_by: str = "user") -> None:
        """List one model that no crawl brought here."""
        claim = Claim(relation, claimed_by, parent)
        self._append([model_line(str(row["id"]), {"user": claim}, row, "", datetime.now(UTC))])

    def rename(self, old: str, row: RawRow | None, new: str) -> None:
        """List the model ``old`` as ``new``, with its claims, where that is not listed yet.

        ``row`` is what is said of it; without one it is listed no more.
        """
        known = self._read().models.get(old)
        lines: list[Line] = []
        if row is not None and known is not None and new not in self._read().models:
            claims = {key: claim for key, (claim, _) in known.claims.items()} or {"renamed": known.claim}
            crawl = self._read().crawl
            lines.append(model_line(new, claims, row, crawl.id if crawl else "", datetime.now(UTC)))
        self._append([*lines, {"kind": "renamed", "id": old, "to": new}])

    def remove(self, model: str) -> None:
        """List a model no more: crawls that show it are passed over until it is added by name."""
        if model not in self._read().removed:
            self._append([{"kind": "removed", "id": model, "seen": datetime.now(UTC).isoformat()}])

    @property
    def removed(self) -> frozenset[str]:
        """Models that were taken out by name."""
        return frozenset(self._read().removed)

    @property
    def renamed(self) -> dict[str, str]:
        """Old names, of models that are listed under another now (or that were the base), and the new ones."""
        return dict(self._read().renamed)

    def begin(self, request: CrawlRequest) -> tuple[CrawlProgress, bool]:
        """Start a crawl, or go on with an unfinished one of the same request: its progress, and whether."""
        state, now = self._read(), datetime.now(UTC)
        crawl, parameters = state.crawl, request.as_json()
        if crawl is not None and not crawl.is_over and crawl.parameters == parameters:
            age = (now - crawl.started).total_seconds()
            if 0 <= age <= RESUME_WITHIN_SECONDS:
                return state.progress(crawl), True
        line = {"kind": "start", "crawl": uuid4().hex, "seen": now.isoformat(), "parameters": parameters}
        self.note_base(request.ids)
        self._append([line])
        return state.progress(self._crawl()), False

    def append_page(self, page: Page) -> int:
        """Keep a page of the crawl that was begun; how many models on it are new."""
        state, crawl, now = self._read(), self._crawl(), datetime.now(UTC)
        lines: list[Line] = []
        new = 0
        for found in page.rows:
            if found.id in state.removed:
                continue
            name = state.name_of(found.id, found.row)
            known = state.models.get(name)
            new += known is None
            is_news = known is None or (name == found.id and state.merged(name, found.row) != known.row)
            claims = {page.question.key: found.claim}
            lines.append(model_line(found.id, claims, found.row if is_news else None, crawl.id, now))
        lines += [bad_line(seen_at(bad, now), crawl.id) for bad in page.bad]
        for one in page.rejected:
            if state.rejected.get(one.id, ("",))[0] != one.commit:
                lines.append({"kind": "rejected", "id": one.id, "sha": one.commit, "why": one.why})
        lines.append(
            {
                "kind": "page",
                "crawl": crawl.id,
                "question": page.question.key,
                "next": page.next_link,
                "last": page.is_last,
                "cut": page.is_cut,
            }
        )
        self._append(lines)
        return new

    def finish(self, *, is_complete: bool) -> int:
        """End the crawl; how many models have gone. ``is_complete``: nothing was narrowed or left out."""
        crawl, gone = self._crawl(), 0
        lines: list[Line] = []
        if is_complete:
            for identifier, questions in self._read().no_longer_shown().items():
                lines.append({"kind": "gone", "crawl": crawl.id, "id": identifier, "questions": questions})
                gone += len(questions) == len(self._read().models[identifier].claims)
        self._append([*lines, {"kind": "finish", "crawl": crawl.id, "complete": is_complete}])
        self._compact_if_worthwhile()
        return gone

    def _crawl(self) -> CrawlState:
        crawl = self._read().crawl
        if crawl is None or crawl.is_over:
            raise ValueError("no crawl has begun")
        return crawl

    def _read(self) -> State:
        signature = _signature(self.path)
        if self._state is None or signature != self._signature:
            self._state, self._problems, self._length, self._tail = _replay(self.path)
            self._signature = signature
        return self._state

    def _append(self, lines: Iterable[Line]) -> None:
        """Write and sync, then believe: what is not on disk is not in the state either."""
        state, lines = self._read(), list(lines)
        block = self._tail + b"".join(_encoded(line) for line in lines)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(descriptor_of(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
                file.truncate(self._length)
                file.write(block)
                file.flush()
                os.fsync(file.fileno())
            if self._signature is None:
                _sync_folder(self.path.parent)
        except OSError as error:
            raise _unusable(self.path, "written", error) from error
        self._length += len(block)
        self._tail = b""
        self._signature = _signature(self.path)
        for line in lines:
            state.apply(line)

    def _compact_if_worthwhile(self) -> None:
        """Write the file again where most of it is superseded and every line of it can be read."""
        state = self._read()
        needed = state.as_lines()
        if state.lines < SUPERSEDED_LINES or state.lines < SUPERSEDED_FACTOR * len(needed) or self._problems:
            return
        self._write_again(needed)

    def restore(self, models: Iterable[ListedModel], ids: Sequence[str]) -> None:
        """Write the file again with what of it can be read and ``models`` that it lacks; ``ids`` are the base's.

        A damaged file is kept beside it, under a name that ends in ``.damaged``. Until a crawl shows them, restored
        models stand by the claim that they are given here; one that a complete crawl does not show has gone.
        """
        state = self._read()
        lines = state.as_lines()
        if not state.ids:
            lines.insert(0, {"kind": "base", "ids": list(ids)})
        for one in models:
            claim = Claim(one.relation, one.claimed_by, one.parent)
            key = RESTORED if is_hub_id(one.id) and one.claimed_by != BY_FOLDER else "user"
            known = KnownModel(one.id, one.row, one.first_seen, one.last_seen, {} if one.gone else {key: (claim, "")})
            known.last_claim = claim
            lines.append(known.as_line())
        if self._problems:
            kept = self.path.with_name(f"{self.path.name}.damaged")
            kept.unlink(missing_ok=True)
            os.link(self.path, kept)
        self._write_again(lines)

    def _write_again(self, lines: Iterable[Line]) -> None:
        sibling = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with sibling.open("wb") as file:
                for line in lines:
                    file.write(_encoded(line))
                file.flush()
                os.fsync(file.fileno())
            sibling.replace(self.path)
        except OSError as error:
            raise _unusable(self.path, "written", error) from error
        finally:
            sibling.unlink(missing_ok=True)
        _sync_folder(self.path.parent)
        self._state = None


def _signature(path: Path) -> tuple[int, ...] | None:
    """What changes when the file does; None where there is none."""
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


def _replay(path: Path) -> tuple[State, list[str], int, bytes]:
    """The state a file adds up to, what was wrong with its lines, where its last whole line ends, and a line after it.

    That line is one whose end alone is damaged; one that was cut short while it was written is none.
    """
    state, length, tail = State(), 0, b""
    problems: list[str] = []
    try:
        with open_regular(path) as file:
            for number, (line, size, is_whole) in enumerate(_lines_of(file), start=1):
                if size > _MOST_LINE:
                    if not is_whole:
                        break
                    length += size
                    problems.append(f"line {number} has more than {_MOST_LINE:,} bytes")
                    continue
                if not line.endswith(b"\n"):
                    if not has_checksum(line[:-1]):
                        break  # cut short while it was written; the next append overwrites it
                    problems.append(f"line {number} has a damaged end")
                    line = tail = line[:-1] + b"\n"
                else:
                    length += len(line)
                try:
                    state.apply(parse_checksummed(line[:-1]))
                except (ValueError, RecursionError) as error:
                    if len(problems) < _MOST_PROBLEMS:
                        problems.append(f"line {number} cannot be read: {error}"[:300])
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unusable(path, "read", error) from error
    return state, problems, length, tail


def _lines_of(file: BinaryIO) -> Iterator[tuple[bytes, int, bool]]:
    """Each line of a file, its size, and whether it ends; of one that is longer than ours its beginning alone."""
    while line := file.readline(_MOST_LINE + 1):
        size, end = len(line), line
        while len(end) > _MOST_LINE and not end.endswith(b"\n"):
            end = file.readline(_MOST_LINE + 1)
            size += len(end)
        yield line, size, end.endswith(b"\n")


def _encoded(line: Line) -> bytes:
    # ASCII, so that any character of a stranger's can be written, half of a surrogate pair included.
    return add_checksum(json.dumps(line, separators=(",", ":"))) + b"\n"


def _sync_folder(folder: Path) -> None:
    """Make a new name in ``folder`` survive a power cut, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
