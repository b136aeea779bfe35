"""The records folder: records by identity, and outcomes that stand in place of records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.errors import Failed, ModelError
from indexer.identity import Identity, canonical_json
from indexer.record import Record, read_identity, read_record, write_record
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
            return _outcome(json.loads(self.folder.outcome(digest).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def discard(self, digest: str) -> None:
        """Forget a record that turned out to be damaged."""
        self.folder.record(digest).unlink(missing_ok=True)

    def digests(self) -> Iterator[str]:
        """Digests of all records, in order of name."""
        for path in sorted(self.folder.records.glob("??/*.safetensors")):
            if not path.name.startswith("."):
                yield path.stem

    def identities(self) -> Iterator[Identity]:
        """Identities of all records, from their headers alone; what cannot be read is passed over."""
        for digest in self.digests():
            try:
                identity = read_identity(self.folder.record(digest))
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if identity.digest == digest:
                yield identity

    def outcomes(self) -> Iterator[Outcome]:
        """All outcomes, in order of name."""
        for path in sorted(self.folder.records.glob("??/*.json")):
            outcome = self.outcome(path.stem)
            if outcome is not None:
                yield outcome


def _outcome(row: dict[str, Any]) -> Outcome:
    return Outcome(identity=Identity.from_row(row.pop("identity")), **row)
