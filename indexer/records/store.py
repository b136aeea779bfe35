"""The records folder: records by identity, and outcomes that stand in place of records."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.errors import Failed, ModelError
from indexer.records.identity import SPECTRA_FORM, Identity, canonical_json
from indexer.records.record import Record, read_identity, read_record, write_record
from indexer.regular_files import read_regular
from indexer.whole_files import write_atomically

# A failure is tried again at the next build, but after several in a row only once this long has passed.
PATIENCE = 3
BACK_OFF_SECONDS = 3600.0


@dataclass(frozen=True)
class Outcome:
    """Why there is no record: ``status`` is skipped or failed."""

    identity: Identity
    status: str
    reason: str
    detail: str
    attempts: int
    when: str

    @property
    def seconds_since(self) -> float:
        """Seconds since the last attempt."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.when)).total_seconds()

    @property
    def is_due(self) -> bool:
        """Whether a failure should be tried by this build."""
        wait = BACK_OFF_SECONDS * 2 ** min(self.attempts - PATIENCE, 8) if self.attempts >= PATIENCE else 0.0
        return self.status == "failed" and self.seconds_since >= wait


@dataclass(frozen=True)
class Kept:
    """A record on disk, without what it holds; ``made`` is a time in ISO 8601."""

    digest: str
    identity: Identity
    made: str


def standing(records: Iterable[Kept], commit: str | None) -> Kept | None:
    """Which of one model's records speaks for it: one of ``commit``, with spectra if there is one, else the newest."""

    def worth(one: Kept) -> tuple[bool, bool, str, bool, str]:
        is_present, has_spectra = one.identity.commit == commit, one.identity.spec.spectra == SPECTRA_FORM
        return is_present, is_present and has_spectra, one.made, has_spectra, one.digest

    return max(records, key=worth, default=None)


class RecordStore:
    """Records and outcomes of one atlas, each file written by rename."""

    def __init__(self, folder: AtlasFolder) -> None:
        self.folder = folder

    def has(self, digest: str) -> bool:
        """Whether a record is there (its content is checked when it is read)."""
        return self.folder.record(digest).is_file()

    def read(self, digest: str) -> Record:
        """Read one record; raises AtlasError where it is missing or altered."""
        return read_record(self.folder.record(digest))

    def write(self, record: Record) -> None:
        """Keep a record; an outcome that stood in its place goes."""
        digest = record.identity.digest
        write_record(record, self.folder.record(digest))
        self.folder.outcome(digest).unlink(missing_ok=True)

    def write_outcome(self, identity: Identity, error: ModelError) -> Outcome:
        """Keep the reason why there is no record, counting attempts."""
        before = self.outcome(identity.digest)
        outcome = Outcome(
            identity=identity,
            status="failed" if isinstance(error, Failed) else "skipped",
            reason=error.reason,
            detail=error.detail,
            attempts=(before.attempts if before else 0) + 1,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        write_atomically(self.folder.outcome(identity.digest), canonical_json(asdict(outcome)).encode())
        return outcome

    def outcome(self, digest: str) -> Outcome | None:
        """The outcome in place of a record, None where there is none or it cannot be read."""
        try:
            return _outcome(json.loads(read_regular(self.folder.outcome(digest))))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def discard(self, digest: str) -> None:
        """Forget a record that turned out to be damaged; what is no file is left to whoever put it there."""
        with suppress(IsADirectoryError, PermissionError):
            self.folder.record(digest).unlink(missing_ok=True)

    def digests(self) -> Iterator[str]:
        """Digests of all records, in order of name."""
        for path in sorted(self.folder.records.glob("??/*.safetensors")):
            if not path.name.startswith("."):
                yield path.stem

    def identities(self) -> Iterator[Identity]:
        """Identities of all records, from their headers alone; what cannot be read is passed over."""
        return (one.identity for one in self.kept())

    def kept(self, besides: Collection[str] = frozenset()) -> Iterator[Kept]:
        """All records but those of these digests, from their headers alone; what cannot be read is passed over."""
        for digest in self.digests():
            if digest in besides:
                continue
            try:
                identity, made = read_identity(self.folder.record(digest))
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if identity.digest == digest:
                yield Kept(digest, identity, made)

    def outcomes(self) -> Iterator[Outcome]:
        """All outcomes, in order of name."""
        for path in sorted(self.folder.records.glob("??/*.json")):
            outcome = self.outcome(path.stem)
            if outcome is not None:
                yield outcome


def _outcome(row: dict[str, Any]) -> Outcome:
    return Outcome(identity=Identity.from_row(row.pop("identity")), **row)
