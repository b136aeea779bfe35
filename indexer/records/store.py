"""The records folder: for each identity a record, or a failure that says why there is no record."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from indexer.atlas import AtlasFolder, with_records
from indexer.errors import WRONG_KINDS, AtlasError, Failed, ModelError
from indexer.records.identity import RECORD_VERSION, Identity, canonical_json
from indexer.records.record import Record, read_identity, read_record, write_record
from indexer.regular_files import read_regular
from indexer.storage.atomic_files import write_atomically
from indexer.storage.checksummed_jsonl import add_checksum, parse_checksummed
from indexer.untrusted import malformed

# A failure is tried again at the next build, but after several in a row only once this long has passed.
PATIENCE = 3
BACK_OFF_SECONDS = 3600.0

# The number of this reader. A version that can read models that earlier ones skipped has a larger number; then every
# skipped model is tried once more.
READER = 2

_MOST_ATTEMPTS = 10**6
_MOST_BYTES = 1 << 20  # of a failure, which takes some hundred


@dataclass(frozen=True)
class FailureRecord:
    """Why there is no record: ``status`` is skipped or failed. ``reader``: the READER that tried."""

    identity: Identity
    status: str
    reason: str
    detail: str
    attempts: int
    when: str
    reader: int

    @property
    def age(self) -> float:
        """Seconds since it was written; negative if the clock was set back meanwhile."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.when)).total_seconds()

    @property
    def is_due(self) -> bool:
        """Whether a failure should be tried by this build."""
        wait = BACK_OFF_SECONDS * 2 ** min(self.attempts - PATIENCE, 8) if self.attempts >= PATIENCE else 0.0
        # A time in the future is ignored, because waiting for it might never end.
        return self.status == "failed" and not 0 <= self.age < wait


@dataclass(frozen=True)
class RecordHeader:
    """The identity of a record on disk; ``made`` is a time in ISO 8601."""

    digest: str
    identity: Identity
    made: str


def current_record(records: Iterable[RecordHeader], commit: str | None) -> RecordHeader | None:
    """The record of a model that is published: one of ``commit`` if there is one, and the newest of several.

    Preferred are, in this order, a record of today's version, one that knows the base of its adapter, one with spectra,
    and a full one.
    """

    def worth(header: RecordHeader) -> tuple[bool, bool, bool, bool, bool, str, bool, str]:
        is_present, spec = header.identity.commit == commit, header.identity.spec
        is_current = is_present and spec.version == RECORD_VERSION
        knows = is_present and header.identity.parent != ""
        is_full = is_present and not spec.sample
        return (
            is_present,
            is_current,
            knows,
            is_present and spec.spectra,
            is_full,
            header.made,
            spec.spectra,
            header.digest,
        )

    return max(records, key=worth, default=None)


class RecordStore:
    """Records and failures of one atlas, each file written by rename."""

    def __init__(self, folder: AtlasFolder) -> None:
        self.folder = folder

    def has(self, digest: str) -> bool:
        """Whether a record exists. Its content is checked when it is read."""
        return self.folder.record(digest).is_file()

    def read(self, digest: str) -> Record:
        """Read one record; raises AtlasError if it is missing or altered, or the atlas came without records."""
        if self.folder.origin.exists() and not self.has(digest):
            raise AtlasError("This needs records, which this atlas does not have.", with_records(self.folder))
        return read_record(self.folder.record(digest))

    def write(self, record: Record) -> None:
        """Write a record, and delete a failure of the same identity."""
        digest = record.identity.digest
        write_record(record, self.folder.record(digest))
        self.folder.failure(digest).unlink(missing_ok=True)

    def write_failure(self, identity: Identity, error: ModelError) -> FailureRecord:
        """Store the reason why there is no record, and count the attempts."""
        before = self.failure(identity.digest)
        failure = FailureRecord(
            identity=identity,
            status="failed" if isinstance(error, Failed) else "skipped",
            reason=error.reason,
            detail=error.detail,
            attempts=min((before.attempts if before else 0) + 1, _MOST_ATTEMPTS),
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            reader=READER,
        )
        write_atomically(self.folder.failure(identity.digest), add_checksum(canonical_json(asdict(failure))))
        return failure

    def failure(self, digest: str) -> FailureRecord | None:
        """The stored failure; None if there is none or it cannot be read."""
        try:
            return self.checked_failure(digest)
        except (OSError, AtlasError):
            return None

    def checked_failure(self, digest: str) -> FailureRecord:
        """The stored failure. Raises OSError, or AtlasError if it is damaged."""
        hint = "Run `index rebuild`, which deletes it, and then `index build`, which tries the model again."
        with malformed(lambda why: AtlasError(f"The stored failure {digest} is damaged: {why}.", hint)):
            row = parse_checksummed(read_regular(self.folder.failure(digest), most=_MOST_BYTES))
            identity = Identity.from_row(row.pop("identity"), f"The stored failure {digest}")
            failure = FailureRecord(identity=identity, **row)
            texts = (failure.reason, failure.detail, failure.when, identity.model, identity.commit, identity.base)
            if not all(isinstance(text, str) for text in texts) or failure.status not in ("skipped", "failed"):
                raise ValueError("not a failure record")
            if type(failure.reader) is not int:
                raise ValueError("not the number of a reader")
            if type(failure.attempts) is not int or not 0 < failure.attempts <= _MOST_ATTEMPTS:
                raise ValueError("not a number of attempts")
            if datetime.fromisoformat(failure.when).tzinfo is None:
                raise ValueError("a time without a zone")
            if identity.digest != digest:
                raise ValueError("it belongs to a different model")
            return failure

    def discard(self, digest: str) -> None:
        """Delete a damaged record. Anything that is not a regular file is left in place."""
        with suppress(IsADirectoryError, PermissionError):
            self.folder.record(digest).unlink(missing_ok=True)

    def discard_failure(self, digest: str) -> None:
        """Delete a damaged failure."""
        self.folder.failure(digest).unlink(missing_ok=True)

    def digests(self) -> Iterator[str]:
        """Digests of all records, in order of name."""
        for path in sorted(self.folder.records.glob("??/*.safetensors")):
            if not path.name.startswith("."):
                yield path.stem

    def headers(self, excluded: Collection[str] = frozenset()) -> Iterator[RecordHeader]:
        """All records except those ``excluded`` by digest, from their headers alone; unreadable ones are skipped."""
        for digest in self.digests():
            header = None if digest in excluded else self.header(digest)
            if header is not None:
                yield header

    def header(self, digest: str) -> RecordHeader | None:
        """One record from its header alone; None if there is none that can be read."""
        try:
            identity, created = read_identity(self.folder.record(digest))
        except (OSError, AtlasError, *WRONG_KINDS):
            return None
        return RecordHeader(digest, identity, created) if identity.digest == digest else None

    def failures(self) -> Iterator[FailureRecord]:
        """All failures, in order of name."""
        stored = (self.failure(digest) for digest in self.failure_digests())
        yield from (failure for failure in stored if failure is not None)

    def failure_digests(self) -> Iterator[str]:
        """Digests of all failures, in order of name."""
        for path in sorted(self.folder.records.glob("??/*.json")):
            if not path.name.startswith("."):
                yield path.stem
