"""The records folder: records by identity, and outcomes that stand in place of records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.errors import WRONG_KINDS, AtlasError, Failed, ModelError
from indexer.records.identity import SPECTRA_FORM, Identity, canonical_json
from indexer.records.record import Record, read_identity, read_record, write_record
from indexer.regular_files import read_regular
from indexer.storage.atomic_files import write_atomically
from indexer.storage.checksummed_jsonl import add_checksum, parse_checksummed

# A failure is tried again at the next build, but after several in a row only once this long has passed.
PATIENCE = 3
BACK_OFF_SECONDS = 3600.0

_MOST_ATTEMPTS = 10**6
_MOST_BYTES = 1 << 20  # of an outcome, which takes some hundred


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
        """Seconds since the last attempt; below zero where the clock was set back since."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.when)).total_seconds()

    @property
    def is_due(self) -> bool:
        """Whether a failure should be tried by this build."""
        wait = BACK_OFF_SECONDS * 2 ** min(self.attempts - PATIENCE, 8) if self.attempts >= PATIENCE else 0.0
        # A time that is still to come says nothing: waiting for it could take for ever.
        return self.status == "failed" and not 0 <= self.seconds_since < wait


@dataclass(frozen=True)
class Kept:
    """A record on disk, without what it holds; ``made`` is a time in ISO 8601."""

    digest: str
    identity: Identity
    made: str


def standing(records: Iterable[Kept], commit: str | None) -> Kept | None:
    """Which of one model's records speaks for it: one of ``commit``, with spectra if there is one, else the newest.

    One that knows what an adapter stands on comes before those that do not.
    """

    def worth(one: Kept) -> tuple[bool, bool, bool, str, bool, str]:
        is_present, has_spectra = one.identity.commit == commit, one.identity.spec.spectra == SPECTRA_FORM
        knows = is_present and one.identity.parent != ""
        return is_present, knows, is_present and has_spectra, one.made, has_spectra, one.digest

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
            attempts=min((before.attempts if before else 0) + 1, _MOST_ATTEMPTS),
            when=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        write_atomically(self.folder.outcome(identity.digest), add_checksum(canonical_json(asdict(outcome))))
        return outcome

    def outcome(self, digest: str) -> Outcome | None:
        """The outcome in place of a record, None where there is none or it cannot be read."""
        try:
            return self.checked_outcome(digest)
        except (OSError, AtlasError):
            return None

    def checked_outcome(self, digest: str) -> Outcome:
        """The outcome in place of a record. Raises OSError, and AtlasError where it is damaged."""
        try:
            found = _outcome(parse_checksummed(read_regular(self.folder.outcome(digest), most=_MOST_BYTES)))
            if found.identity.digest != digest:
                raise ValueError("it is that of another model")
            return found
        except WRONG_KINDS as error:
            raise AtlasError(
                f"What stands in place of the record {digest} is damaged: {str(error)[:200]}.",
                "Run `index rebuild`, which forgets it, and then `index build`, which tries the model again.",
            ) from error

    def discard(self, digest: str) -> None:
        """Forget a record that turned out to be damaged; what is no file is left to whoever put it there."""
        with suppress(IsADirectoryError, PermissionError):
            self.folder.record(digest).unlink(missing_ok=True)

    def discard_outcome(self, digest: str) -> None:
        """Forget what stands in place of a record, where that is damaged."""
        self.folder.outcome(digest).unlink(missing_ok=True)

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
        for digest in self.outcome_digests():
            outcome = self.outcome(digest)
            if outcome is not None:
                yield outcome

    def outcome_digests(self) -> Iterator[str]:
        """Digests of all outcomes, in order of name."""
        for path in sorted(self.folder.records.glob("??/*.json")):
            if not path.name.startswith("."):
                yield path.stem


def _outcome(row: dict[str, Any]) -> Outcome:
    """What a file says. Raises one of ``WRONG_KINDS`` where it is not what this program writes."""
    found = Outcome(identity=Identity.from_row(row.pop("identity")), **row)
    texts = (found.reason, found.detail, found.when, found.identity.model, found.identity.commit, found.identity.base)
    if not all(isinstance(text, str) for text in texts) or found.status not in ("skipped", "failed"):
        raise ValueError("not an outcome")
    if type(found.attempts) is not int or not 0 < found.attempts <= _MOST_ATTEMPTS:
        raise ValueError("not a number of attempts")
    if datetime.fromisoformat(found.when).tzinfo is None:
        raise ValueError("a time without a zone")
    return found
