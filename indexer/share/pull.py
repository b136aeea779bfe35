"""`index pull`: download an atlas from the Hub into a folder, check it, and put it in place at once.

Downloaded files are untrusted until they have been checked, and lie in ``.pull``. A pull that is killed continues from
there. ``atlas.duckdb`` is moved last, so the folder holds no atlas, the previous one, or the new one at any time.
Files are fetched one by one with ``hf_hub_download``, not with ``snapshot_download``, which would fetch everything
before the database says which files belong to the atlas.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import hf_hub_download

from indexer.arguments import plain_arguments
from indexer.atlas import DATABASE, SCHEMA_VERSION, AtlasFolder, file_name
from indexer.builds.report import Progress, Watcher
from indexer.database.gate import admit, remember_admitted, was_admitted
from indexer.database.reading import Reading, remember_published
from indexer.errors import AtlasError
from indexer.network.session import current_session
from indexer.publish.origin import Origin, read_origin, write_origin
from indexer.publish.staging import note_checksum
from indexer.quantities import size_in_words
from indexer.regular_files import regular_status
from indexer.share.contents import CARRIED, PACKED, files_in, named_files
from indexer.share.manifest import ATLAS, NAME, RECORDS, FileEntry, Manifest
from indexer.share.packs import INDEX, LARGEST_INDEX, Pack, decode_index, first_of, is_on_disk, unpack
from indexer.share.repository import (
    Address,
    RemoteCommit,
    our_progress_bars,
    read_commit,
    resolve,
    translated_hub_errors,
)
from indexer.storage.atomic_files import link_or_copy, sync_folder
from indexer.storage.checksums import file_sha256
from indexer.untrusted import printable
from indexer.upkeep.verification import contradiction_in
from indexer.vectors.files import check_file
from indexer.vectors.published import read_published

Say = Callable[[str], None]

# Fetches one file of a commit: (name, path, commit, target folder) → where it lies now.
Fetch = Callable[[str, str, str, Path], Path]

_STAGING = ".pull"
_ADMITTED = "admitted.duckdb"  # in it
# Which files each part of an atlas may hold; the database says which of them belong to it.
_ALLOWED = {
    ATLAS: re.compile(r"atlas\.duckdb|[^/]+\.faiss|(?:lineage|predictions|conversions)/[^/]+"),
    RECORDS: re.compile(r"records/(?:packs\.json|[0-9a-f]{16}\.tar)|(?:listing|bases)/[^/]+"),
}
_ASK = "Ask its publisher, or choose another tag."


@dataclass(frozen=True)
class PullReport:
    """What a pull did; ``fetched_bytes`` came over the network, the rest was there."""

    atlas: str
    repository: str
    commit: str
    generation: int
    models: int
    bases: list[str]
    files: int
    bytes: int
    fetched_files: int
    fetched_bytes: int
    with_records: bool
    seconds: float


@plain_arguments
def pull(
    name: str, atlas: str | Path = "atlas", *, with_records: bool = False, progress: Progress | None = None
) -> PullReport:
    """Fetch the atlas ``name`` (OWNER/NAME[@TAG]) from the Hub into a folder, and check it: what `index pull` does.

    The folder is empty, new, or holds an earlier pull of this atlas. Raises AtlasError if there is no such atlas, it is
    damaged or hostile, or the folder holds something else.
    """
    address, folder = Address.parse(name), AtlasFolder(atlas).require_writable()
    return fetch(folder, address, resolve(address), download, Watcher(progress).say, with_records=with_records)


def fetch(
    folder: AtlasFolder, address: Address, sha: str, fetch_file: Fetch, say: Say, *, with_records: bool = False
) -> PullReport:
    """The same for one commit; ``fetch_file`` fetches one file. Raises AtlasError, and OSError for a full disk."""
    started = time.monotonic()
    remote = read_commit(address, sha)
    manifest = _checked_manifest(remote, with_records)
    entries = {
        entry.path: entry for entry in (manifest.files_of(ATLAS, RECORDS) if with_records else manifest.files_of(ATLAS))
    }
    for entry in entries.values():
        listed_file = remote.files.get(entry.path)
        if listed_file is None:
            raise AtlasError(f"{address} is incomplete: it lacks {entry.path}.", _ASK)
        if listed_file.size != entry.bytes or listed_file.sha256 not in (None, entry.sha256):
            raise AtlasError(f"{address} is incomplete: {entry.path} is not the file that its {NAME} names.", _ASK)
    with folder.locked(f"index pull {address}", wait=True, pulled=True):
        for path in folder.root.glob(".*.tmp"):  # left by a pull that was killed; its lock is held here
            path.unlink(missing_ok=True)
        origin = _own_origin(folder, address)
        # Records that were pulled before stay if they belong to the same commit.
        has_records = with_records or (origin is not None and origin.has_records and origin.commit == sha)
        staging = folder.root / _STAGING
        work = _Pull(folder, staging, remote, fetch_file, say)
        try:
            packs = work.packs(entries)
            files = work.run(manifest, entries, packs)
            paths = {*(entry.path for entry in files), *(path for pack in packs.values() for path in pack.members)}
            new = Origin(address.name, address.revision, sha, work.generation, work.models, has_records)
            _put_in_place(folder, staging, paths, new, with_records=INDEX in entries)
            shutil.rmtree(staging, ignore_errors=True)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise AtlasError(
                f"{error.filename2 or error.filename} is in the way.", "Remove it, and run it again."
            ) from error
        finally:
            # What a later pull can use stays.
            if staging.is_dir() and not any(path.is_file() for path in staging.rglob("*")):
                shutil.rmtree(staging, ignore_errors=True)
    files += [entries[path] for path in packs]
    return PullReport(
        atlas=str(folder.root),
        repository=address.name,
        commit=sha,
        generation=work.generation,
        models=work.models,
        bases=work.bases,
        files=len(files),
        bytes=sum(entry.bytes for entry in files),
        fetched_files=work.fetched_files,
        fetched_bytes=work.fetched_bytes,
        with_records=with_records,
        seconds=round(time.monotonic() - started, 2),
    )


def download(name: str, path: str, sha: str, target: Path) -> Path:
    """Fetch one file into a folder, resuming a download that was cut off."""
    with our_progress_bars():
        hub = current_session().hub
        return Path(hf_hub_download(name, path, repo_type="dataset", revision=sha, local_dir=target, **hub))


def _checked_manifest(remote: RemoteCommit, with_records: bool) -> Manifest:
    """Raise AtlasError, before anything is fetched, if this is not an atlas, or not one that can be pulled."""
    where, manifest = str(remote.address), remote.manifest
    if manifest is None:
        raise AtlasError(
            f"The dataset {where} is not an atlas: it has no {NAME}.", "List the atlases: index pull --list"
        )
    if manifest.schema != SCHEMA_VERSION:
        is_newer = manifest.schema > SCHEMA_VERSION
        raise AtlasError(
            f"{where} has schema {manifest.schema}; this version reads schema {SCHEMA_VERSION}.",
            "Upgrade vectors-in-the-wild." if is_newer else "Ask for a newer push, or choose another tag.",
        )
    for listed in manifest.files_of(*_ALLOWED):
        if not _ALLOWED[listed.part].fullmatch(listed.path):
            raise AtlasError(
                f"{NAME} of {where} names {listed.path}, which is not a file of an atlas.", "Do not use it."
            )
    entry = manifest.file(DATABASE)
    if entry is None or entry.part != ATLAS:
        raise AtlasError(f"{where} is incomplete: it lacks {DATABASE}.", _ASK)
    if with_records and manifest.file(INDEX) is None:
        raise AtlasError(f"{where} was pushed without records.", "Pull it without --with-records, to query it.")
    return manifest


def _own_origin(folder: AtlasFolder, address: Address) -> Origin | None:
    """The origin of the atlas that is there, None for an empty folder.

    Raises AtlasError if the folder holds an atlas of this machine, another pulled one, or something else.
    """
    origin = read_origin(folder)
    if folder.origin.exists():
        if origin is None or origin.repository != address.name:
            repository = origin.repository if origin else "another repository"
            raise AtlasError(f"{folder.root} was pulled from {repository}.", "Choose another --atlas.")
        return origin
    if folder.database.exists() or (folder.listings.is_dir() and any(folder.listings.iterdir())):
        raise AtlasError(f"{folder.root} is an atlas of your own: a pull would replace it.", "Choose another --atlas.")
    if names := sorted(path.name for path in folder.root.iterdir() if path.name not in ("lock", _STAGING)):
        raise AtlasError(f"{folder.root} is not empty ({names[0]}).", "Choose another --atlas.")
    return None


class _Pull:
    """Fetches into ``staging`` the files of one commit, for ``folder``, whose lock is held.

    ``database``: that of the commit after it has passed the gate. After ``run`` this has what the database says:
    ``generation``, ``models`` (how many), ``bases`` and ``base_files``.
    """

    def __init__(self, folder: AtlasFolder, staging: Path, remote: RemoteCommit, fetch_file: Fetch, say: Say) -> None:
        self.folder = folder
        self.staging = staging
        self.database = staging / _ADMITTED
        self.remote = remote
        self.fetch_file = fetch_file
        self.say = say
        self.where = str(remote.address)
        self.fetched_files = self.fetched_bytes = 0
        self.generation = self.models = 0
        self.bases: list[str] = []
        self.base_files: set[str] = set()  # those of the bases at the commits that the database names

    def packs(self, entries: Mapping[str, FileEntry]) -> dict[str, Pack]:
        """The packs of records by path, from their index; none if records are not wanted."""
        index = entries.get(INDEX)
        if index is None:
            return {}
        if index.bytes > LARGEST_INDEX:
            raise AtlasError(f"{INDEX} of {self.where} is larger than {LARGEST_INDEX >> 20} MB.", "Do not use it.")
        source = self.staging / INDEX if self._is_here(index) else self._fetch(index)
        packs = decode_index(source.read_bytes(), self.where)
        for path, pack in packs.items():
            entry = entries.get(path)
            if entry is None:
                raise AtlasError(f"{self.where} is incomplete: it lacks {path}.", _ASK)
            if pack.bytes > entry.bytes:
                raise AtlasError(
                    f"{path} of {self.where} has {entry.bytes:,} bytes, but would unpack to {pack.bytes:,}.",
                    "Do not use it.",
                )
        return packs

    def run(self, manifest: Manifest, entries: Mapping[str, FileEntry], packs: Mapping[str, Pack]) -> list[FileEntry]:
        """Fetch and check; returns the files, except packs, that belong to the atlas."""
        # Members of a pack may lie in the atlas or, after a pull that was killed, in the staging folder.
        roots, new = (self.folder.root, self.staging), dict(packs)
        for path, pack in packs.items():
            if is_on_disk(pack, roots, entries[path]):
                del new[path]
                for member, size in pack.members.items():
                    if first_of(roots, member, size) == self.folder.root / member:
                        (self.staging / member).unlink(missing_ok=True)
        entry, is_admitted = entries[DATABASE], self._is_admitted(entries[DATABASE])
        missing = {path for path, listed in entries.items() if path not in packs and not self._is_here(listed)}
        missing -= {DATABASE} if is_admitted else set()

        sizes = [pack.bytes for pack in new.values()]
        bytes_needed = sum(entries[path].bytes for path in missing) + sum(sizes) + max(sizes, default=0)
        bytes_needed += 0 if is_admitted else entry.bytes
        self.staging.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.staging).free
        if bytes_needed > free:
            raise AtlasError(
                f"The disk is too small: {self.where} needs {size_in_words(bytes_needed)} more at {self.folder.root}, "
                f"and {size_in_words(free)} are free.",
                "Free space, or choose another --atlas; what was fetched stays.",
            )

        # The database says which other files belong to the atlas, and what the FAISS files must hold.
        if DATABASE in missing:
            self._fetch(entry)
        with self._refusing():
            if not is_admitted:
                admit(self.staging / DATABASE, self.database)
                remember_admitted(entry.sha256, self.database)
            named_paths = self._read_database(manifest)
        stems = {file_name(base) for base in self.bases}
        files = []
        for path, listed in entries.items():
            where, _, name = path.rpartition("/")
            if not where:
                belongs = path == DATABASE or path in named_paths
            elif where == "bases":
                belongs = name in self.base_files
            else:
                is_lines = where in (*CARRIED, "listing") and name.endswith(".jsonl")
                belongs = is_lines and name.removesuffix(".jsonl") in stems
            if belongs:
                files.append(listed)
                if path in missing and path != DATABASE:
                    self._fetch(listed)
        with self._refusing(), Reading(self.database) as connection:
            for row in connection.rows("SELECT base, representation FROM representations ORDER BY ALL"):
                published = read_published(connection, row["base"], row["representation"])
                if published is not None:
                    check_file(self.staging, published.file)
        for path, pack in new.items():
            source = self._fetch(entries[path])
            unpack(pack, source, self.staging)
            source.unlink()
        return files

    def _read_database(self, manifest: Manifest) -> set[str]:
        """Read what the atlas consists of; returns the FAISS files that its database names.

        Raises AtlasError if its rows contradict each other, or the manifest lists other files or checksums.
        """
        with Reading(self.database) as connection:
            if problem := contradiction_in(connection):
                raise AtlasError(f"its database contradicts itself: {problem}.")
            checksum_of = named_files(connection)
            for path, sha256 in checksum_of.items():
                entry = manifest.file(path)
                if entry is None or entry.sha256 != sha256 or not path.endswith(".faiss"):
                    raise AtlasError(f"its database names {printable(path, 100)}, which it does not hold.")
            self.generation = connection.rows("SELECT max(generation) AS last FROM atlas_info")[0]["last"] or 0
            self.models = connection.rows("SELECT count(*) AS models FROM models")[0]["models"]
            rows = connection.rows('SELECT base, "commit" FROM bases ORDER BY base')
            self.bases = list(dict.fromkeys(row["base"] for row in rows))
            self.base_files = {self.folder.base(row["base"], row["commit"]).name for row in rows}
        return set(checksum_of)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Errors of a check say which atlas is refused."""
        try:
            yield
        except AtlasError as error:
            raise AtlasError(f"{self.where} is refused: {error.message}", _ASK) from error

    def _is_admitted(self, entry: FileEntry) -> bool:
        """Whether the atlas has what the gate made of this file; the staging folder then gets a link to it."""
        if not was_admitted(entry.sha256, self.folder.database):
            return False
        link_or_copy(self.folder.database, self.database)
        return True

    def _is_here(self, entry: FileEntry) -> bool:
        """Whether a correct file lies in the staging folder, or in the atlas, from where it is linked."""
        staged = self.staging / entry.path
        if _matches(staged, entry):
            return True
        if _matches(self.folder.root / entry.path, entry):
            link_or_copy(self.folder.root / entry.path, staged)
            return True
        return False

    def _fetch(self, entry: FileEntry) -> Path:
        """Fetch a file; if it arrives damaged, once more."""
        for is_last in (False, True):
            with translated_hub_errors(self.where, "read"):
                if entry.bytes:
                    source = self.fetch_file(self.remote.address.name, entry.path, self.remote.sha, self.staging)
                else:  # an empty file costs no request
                    source = self.staging / entry.path
                    source.parent.mkdir(parents=True, exist_ok=True)
                    source.touch()
            self.fetched_files += 1
            self.fetched_bytes += entry.bytes
            if _matches(source, entry):
                return source
            (self.staging / entry.path).unlink(missing_ok=True)
            if not is_last:
                self.say(f"{entry.path} arrived damaged, fetching it again")
        raise AtlasError(
            f"{entry.path} of {self.where} is not the file that its {NAME} names: its checksum does not match.",
            "It was changed on the way or on the Hub: try again later, or ask its publisher.",
        )


def _matches(path: Path, entry: FileEntry) -> bool:
    """Whether it is a regular file of that size and checksum."""
    try:
        return regular_status(path).st_size == entry.bytes and file_sha256(path) == entry.sha256
    except OSError:
        return False


def _put_in_place(
    folder: AtlasFolder, staging: Path, paths: Collection[str], origin: Origin, *, with_records: bool
) -> None:
    """Move those of ``paths`` that lie in ``staging`` into the atlas, the database last. Raises OSError.

    Until all are there the origin says that records are missing, because a partial download must not be built on.
    Then files that this atlas does not hold are removed: FAISS files that the previous database does not name either,
    lineage, predictions, and ``with_records`` what a build would continue from. The caller holds the lock.
    """
    before: set[str] = set()
    if folder.database.is_file():
        with suppress(AtlasError, OSError), Reading(folder.database) as connection:
            before = set(named_files(connection))
    write_origin(folder, replace(origin, has_records=False))
    for path in paths:
        source, target = staging / path, folder.root / path
        if path != DATABASE and source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            source.replace(target)
    note_checksum(folder, staging / _ADMITTED)
    folder.database.with_name(f"{DATABASE}.wal").unlink(missing_ok=True)  # it belonged to the previous one
    (staging / _ADMITTED).replace(folder.database)
    remember_published(folder.database)
    sync_folder(folder.root)
    for old in folder.root.glob("*.faiss"):
        if old.name not in before and old.name not in paths:
            old.unlink(missing_ok=True)
    for path, source in files_in(folder, (*CARRIED, "listing", "bases", *PACKED) if with_records else CARRIED):
        if path not in paths:
            source.unlink(missing_ok=True)
    # Left by an adoption that was interrupted; what was pulled takes its place.
    for base in folder.listings.glob("*.sqlite*"):
        base.unlink(missing_ok=True)
    if origin.has_records:
        write_origin(folder, origin)
