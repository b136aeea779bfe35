"""`index pull`: an atlas from the Hub becomes a folder, checked as a stranger's and read-only.

What was fetched stays when a pull is killed, and is not fetched again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.network.session import our_progress_bars
from indexer.publish.origin import Origin, read_origin
from indexer.quantities import size_in_words
from indexer.regular_files import regular_status
from indexer.share.address import Address
from indexer.share.arrival import (
    Arrived,
    check_database,
    check_manifest,
    check_vectors,
    put_in_place,
)
from indexer.share.manifest import ATLAS, RECORDS, FileEntry, Manifest
from indexer.share.packs import INDEX, LARGEST_INDEX, Pack, decode_index, first_of, unpack
from indexer.share.repository import Remote, atlas_at, failures_told, resolve
from indexer.share.staging import DATABASE
from indexer.storage.atomic_files import link_or_copy
from indexer.storage.checksums import file_sha256

Say = Callable[[str], None]

# Fetches one file of a commit: (name, path, commit, folder to put it in) → where it lies now.
Fetch = Callable[[str, str, str, Path], Path]

STAGING = ".pull"


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

    def as_row(self) -> dict[str, Any]:
        """For the command line."""
        return asdict(self)


def pull(folder: AtlasFolder, text: str, say: Say, *, with_records: bool = False) -> PullReport:
    """Fetch the atlas that ``text`` names into a folder: an empty or a new one, or that of an earlier pull.

    Raises AtlasError where there is no such atlas, it is damaged or not what it says, or the folder holds another.
    """
    address = Address.parse(text)
    sha = resolve(address)
    return fetch(folder, address, sha, download, say, with_records=with_records)


def fetch(
    folder: AtlasFolder, address: Address, sha: str, how: Fetch, say: Say, *, with_records: bool = False
) -> PullReport:
    """The same of one commit; ``how`` fetches a file. Raises AtlasError, and OSError for a full disk."""
    started = time.monotonic()
    remote, manifest = atlas_at(address, sha)
    check_manifest(manifest, str(address))
    wanted = manifest.of(ATLAS, RECORDS) if with_records else manifest.of(ATLAS)
    if with_records and manifest.file(INDEX) is None:
        raise AtlasError(f"{address} was pushed without records.", "Pull it without --with-records, to ask it.")
    _check_offered(remote, wanted, str(address))
    with folder.locked(f"index pull {address}", wait=True, pulled=True):
        _require_place(folder, address)
        has_records = with_records or _keeps_records(folder, remote)
        work = _Pulling(folder, remote, manifest, how, say)
        try:
            arrived, files = work.run(wanted, has_records)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise AtlasError(
                f"{error.filename2 or error.filename} is in the way.", "Remove it, and run it again."
            ) from error
        finally:
            work.forget_if_empty()
    return PullReport(
        atlas=str(folder.root),
        repository=address.name,
        commit=sha,
        generation=arrived.generation,
        models=arrived.models,
        bases=arrived.bases,
        files=len(files),
        bytes=sum(one.bytes for one in files),
        fetched_files=work.fetched_files,
        fetched_bytes=work.fetched_bytes,
        with_records=with_records,
        seconds=round(time.monotonic() - started, 2),
    )


def download(name: str, path: str, sha: str, target: Path) -> Path:
    """Fetch one file into a folder, going on where an earlier try stopped. Raises what goes wrong."""
    with our_progress_bars():
        return Path(hf_hub_download(name, path, repo_type="dataset", revision=sha, local_dir=target))


class _Pulling:
    """One pull into ``folder``, whose lock is held."""

    def __init__(self, folder: AtlasFolder, remote: Remote, manifest: Manifest, how: Fetch, say: Say) -> None:
        self.folder = folder
        self.remote = remote
        self.manifest = manifest
        self.how = how
        self.say = say
        self.where = str(remote.address)
        self.staging = folder.root / STAGING
        self.fetched_files = self.fetched_bytes = 0

    def run(self, wanted: Iterable[FileEntry], has_records: bool) -> tuple[Arrived, list[FileEntry]]:
        """Fetch, check, put in place: what the database says of itself, and the files that belong to it."""
        entries = {one.path: one for one in wanted}
        packs = self._packs(entries)
        new = {path: pack for path, pack in packs.items() if not self._is_unpacked(pack, entries[path])}
        missing = {path for path, one in entries.items() if path not in packs and not self._is_here(one)}
        sizes = [pack.bytes for pack in new.values()]
        self._require_room(sum(entries[path].bytes for path in missing) + sum(sizes) + max(sizes, default=0))
        if DATABASE in missing:
            self._fetch(entries[DATABASE])
        arrived = check_database(self.staging, self.manifest, self.where)
        files = [one for one in entries.values() if arrived.has(one.path)]
        for one in files:
            if one.path in missing - {DATABASE}:
                self._fetch(one)
        check_vectors(self.staging, self.where)
        for path, pack in new.items():
            source = self._fetch(entries[path])
            unpack(pack, source, self.staging)
            source.unlink()
        paths = {*(one.path for one in files), *(path for pack in packs.values() for path in pack.members)}
        address = self.remote.address
        origin = Origin(
            address.name, address.revision, self.remote.sha, arrived.generation, arrived.models, has_records
        )
        put_in_place(self.folder, self.staging, paths, origin, with_records=INDEX in entries)
        shutil.rmtree(self.staging, ignore_errors=True)
        return arrived, [*files, *(entries[path] for path in packs)]

    def forget_if_empty(self) -> None:
        """What came to nothing leaves nothing; what was fetched stays."""
        if self.staging.is_dir() and not any(path.is_file() for path in self.staging.rglob("*")):
            shutil.rmtree(self.staging, ignore_errors=True)

    def _packs(self, entries: Mapping[str, FileEntry]) -> dict[str, Pack]:
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
                raise AtlasError(f"{self.where} is not whole: it lacks {path}.", "Ask whoever published it.")
            if pack.bytes > entry.bytes:
                raise AtlasError(
                    f"{path} of {self.where} has {entry.bytes:,} bytes, and would unpack to {pack.bytes:,}.",
                    "Do not use it.",
                )
        return packs

    def _is_unpacked(self, pack: Pack, entry: FileEntry) -> bool:
        """Whether its members lie in the atlas or, of a pull that was killed, in the staging folder."""
        roots = (self.folder.root, self.staging)
        if not pack.is_at(roots, entry.bytes, entry.sha256):
            return False
        for path, size in pack.members.items():
            if first_of(roots, path, size) == self.folder.root / path:
                (self.staging / path).unlink(missing_ok=True)
        return True

    def _is_here(self, one: FileEntry) -> bool:
        """Whether a file lies in the staging folder as it should be, or in the atlas, from where it is taken over."""
        staged = self.staging / one.path
        if _fits(staged, one):
            return True
        if _fits(self.folder.root / one.path, one):
            link_or_copy(self.folder.root / one.path, staged)
            return True
        return False

    def _fetch(self, one: FileEntry) -> Path:
        """Fetch a file; where it is not what it should be, once more."""
        for is_last in (False, True):
            with failures_told(self.where, "read"):
                if one.bytes:
                    source = self.how(self.remote.address.name, one.path, self.remote.sha, self.staging)
                else:  # which nobody need be asked for
                    source = self.staging / one.path
                    source.parent.mkdir(parents=True, exist_ok=True)
                    source.touch()
            self.fetched_files += 1
            self.fetched_bytes += one.bytes
            if _fits(source, one):
                return source
            (self.staging / one.path).unlink(missing_ok=True)
            if not is_last:
                self.say(f"{one.path} arrived damaged, and is fetched again")
        raise AtlasError(
            f"{one.path} of {self.where} is not what its atlas.json says: its checksum does not fit.",
            "It was changed on the way or on the Hub: try again later, or ask whoever published it.",
        )

    def _require_room(self, needed: int) -> None:
        self.staging.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.staging).free
        if needed > free:
            raise AtlasError(
                f"The disk is too small: {self.where} needs {size_in_words(needed)} more at {self.folder.root}, "
                f"and {size_in_words(free)} are free.",
                "Free space, or choose another --atlas; what was fetched stays.",
            )


def _fits(path: Path, one: FileEntry) -> bool:
    """Whether it is a regular file of that size and checksum."""
    try:
        return regular_status(path).st_size == one.bytes and file_sha256(path) == one.sha256
    except OSError:
        return False


def _check_offered(remote: Remote, wanted: Iterable[FileEntry], where: str) -> None:
    """What the manifest names must be what the Hub would serve: else nothing need be fetched to know it."""
    for one in wanted:
        there = remote.files.get(one.path)
        if there is None:
            raise AtlasError(f"{where} is not whole: it lacks {one.path}.", "Ask whoever published it.")
        if there.size != one.bytes or there.sha256 not in (None, one.sha256):
            raise AtlasError(
                f"{where} is not whole: {one.path} is not the file that its atlas.json names.",
                "Ask whoever published it, or choose another tag.",
            )


def _require_place(folder: AtlasFolder, address: Address) -> None:
    """Raises AtlasError where the folder holds an atlas of this machine, another pulled one, or something else."""
    origin = read_origin(folder)
    if folder.origin.exists() and (origin is None or origin.repository != address.name):
        there = origin.repository if origin else "another repository"
        raise AtlasError(f"{folder.root} was pulled from {there}.", "Choose another --atlas.")
    if folder.origin.exists():
        return
    if folder.database.exists() or (folder.listings.is_dir() and any(folder.listings.iterdir())):
        raise AtlasError(f"{folder.root} is an atlas of your own: a pull would replace it.", "Choose another --atlas.")
    if others := sorted(path.name for path in folder.root.iterdir() if path.name not in ("lock", STAGING)):
        raise AtlasError(f"{folder.root} is not empty ({others[0]}).", "Choose another --atlas.")


def _keeps_records(folder: AtlasFolder, remote: Remote) -> bool:
    """Whether the records that were pulled before belong to this commit, too."""
    origin = read_origin(folder)
    return origin is not None and origin.has_records and origin.commit == remote.sha
