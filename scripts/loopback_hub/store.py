"""The repository store on disk: which repositories there are, at which revisions, with which files.

``<root>/<owner>/<name>/…`` holds the files of revision ``main``, ``<root>/<owner>/<name>.repo.json``
(optional) what the Hub says of the repository. Everything is looked up again on every request, so a
repository may be changed while the server runs. Names that come from a request are compared with names found
on disk, never joined to a path unseen, and nothing that lies outside the root is listed.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

MAIN = "main"
_PART = r"[A-Za-z0-9_][\w.\-]*"
_REPO_ID = re.compile(f"{_PART}/{_PART}", re.ASCII)
_SETTINGS_SUFFIX = ".repo.json"

# What the Hub's own .gitattributes puts into LFS, and GGUF.
_IN_LFS = re.compile(
    r".*\.(?:7z|arrow|bin|bz2|ckpt|ftz|gguf|gz|h5|joblib|mlmodel|model|msgpack|npy|npz|onnx|ot|parquet|pb|pickle|pkl"
    r"|pt|pth|rar|safetensors|tar|tflite|tgz|wasm|xz|zip|zst)|.*tfevents.*"
)

# A file younger than this may be written again within the same clock tick: its hash is not remembered.
_SETTLED_NS = 200_000_000
_HASH_CHUNK = 1 << 20


class StoreError(Exception):
    """The store on disk violates the contract; the message names the file."""


@dataclass(frozen=True)
class StoredFile:
    """One file of one revision. ``oid`` is git's blob id; of the pointer file, where the file is in LFS.

    ``sha256`` is None for a file that is not in LFS, which is what ``is_lfs`` asks.
    """

    path: str
    location: Path
    size: int
    modified_ns: int
    oid: str
    sha256: str | None = None
    pointer_size: int = 0

    @property
    def is_lfs(self) -> bool:
        """Whether the Hub would answer ``/resolve`` for this file with a redirect."""
        return self.sha256 is not None


@dataclass(frozen=True)
class Revision:
    """The files of one commit, by path in git's order."""

    name: str
    sha: str
    files: dict[str, StoredFile]

    @cached_property
    def folders(self) -> dict[str, str]:
        """Every folder of the tree, with a stand-in for git's tree id."""
        contents: dict[str, list[str]] = {}
        for path, file in self.files.items():
            parts = path.split("/")[:-1]
            for depth in range(1, len(parts) + 1):
                contents.setdefault("/".join(parts[:depth]), []).append(f"{path} {file.oid}")
        return {folder: _sha1("\n".join(lines)) for folder, lines in contents.items()}


@dataclass(frozen=True)
class Repository:
    """One repository: its id, the settings of its ``.repo.json``, and the folders of its revisions."""

    id: str
    settings: dict[str, Any]
    folder: Path
    store: Store = field(repr=False, compare=False)

    def get(self, key: str, default: Any = None) -> Any:
        """A setting, or ``default`` where it is absent (an explicit null stays null)."""
        return self.settings.get(key, default)

    @property
    def old_ids(self) -> list[str]:
        """Ids that it once had."""
        listed = self.get("old_ids")
        return [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []

    @property
    def described(self) -> dict[str, dict[str, Any]]:
        """The settings of every revision except ``main``, by name."""
        revisions = self.get("revisions") or {}
        if not isinstance(revisions, dict) or not all(isinstance(each, dict) for each in revisions.values()):
            raise StoreError(f"{self.id}{_SETTINGS_SUFFIX}: revisions must map names to objects")
        return revisions

    def revision(self, name: str = MAIN) -> Revision | None:
        """The revision of that branch, ref or commit, or None."""
        main = self._read(MAIN, self.folder, self.get("sha"))
        if name in (MAIN, "refs/heads/main", main.sha):
            return main
        for known, described in self.described.items():
            if name == known or name == described.get("sha") or re.fullmatch(r"[0-9a-f]{40}", name):
                folder = self.store.revision_folder(self, described)
                if folder is None:
                    raise StoreError(f"{self.id}{_SETTINGS_SUFFIX}: revision {known!r} has no folder in the store")
                revision = self._read(known, folder, described.get("sha"))
                if name in (known, revision.sha):
                    return revision
        return None

    def _read(self, name: str, folder: Path, sha: Any) -> Revision:
        files = {file.path: file for file in self.store.files_below(folder)}
        if not isinstance(sha, str):
            sha = _sha1("\n".join([self.id, name, *(f"{path} {file.oid}" for path, file in files.items())]))
        return Revision(name, sha, files)


class Store:
    """All repositories below one folder. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        if not self.root.is_dir():
            raise StoreError(f"{root} is not a folder")
        self._lock = threading.Lock()
        self._files: dict[tuple[str, str], tuple[tuple[int, ...], StoredFile]] = {}
        self._settings: dict[Path, tuple[tuple[int, ...], dict[str, Any]]] = {}

    def repository(self, repo_id: str) -> Repository | None:
        """The repository with exactly this id, or None."""
        if not _REPO_ID.fullmatch(repo_id):
            return None
        owner, name = repo_id.split("/")
        # Compared with names found on disk, not opened: file systems that ignore case must not invent ids.
        if owner not in self._names(self.root):
            return None
        if f"{name}{_SETTINGS_SUFFIX}" in self._names(self.root / owner):
            return self._with_settings(owner, name)
        return next((found for found in self._owned(owner) if found.id == repo_id), None)

    def renamed(self, old_id: str) -> Repository | None:
        """The repository that once had this id."""
        for repository in self.repositories():
            if old_id in repository.old_ids:
                return repository
        return None

    def repositories(self) -> Iterator[Repository]:
        """Every repository, by id."""
        for owner in sorted(self._names(self.root)):
            yield from self._owned(owner)

    def _owned(self, owner: str) -> Iterator[Repository]:
        folder = self.root / owner
        entries = self._names(folder)
        names = {entry.removesuffix(_SETTINGS_SUFFIX) for entry in entries if entry.endswith(_SETTINGS_SUFFIX)}
        result = (self._with_settings(owner, name) for name in names if _REPO_ID.fullmatch(f"{owner}/{name}"))
        found = [repository for repository in result if repository is not None]
        revision_folders = {
            self.revision_folder(repository, described)
            for repository in found
            for described in repository.described.values()
        }
        for name in entries - names:
            bare = folder / name
            if _REPO_ID.fullmatch(f"{owner}/{name}") and bare.is_dir() and bare not in revision_folders:
                found.append(Repository(f"{owner}/{name}", {}, bare, self))
        yield from sorted(found, key=lambda repository: repository.id)

    def _with_settings(self, owner: str, name: str) -> Repository | None:
        folder = self.root / owner
        try:
            settings = self._read_settings(folder / f"{name}{_SETTINGS_SUFFIX}")
        except FileNotFoundError:
            return None  # removed since the folder was read
        return Repository(f"{owner}/{name}", settings, folder / name, self)

    def _names(self, folder: Path) -> set[str]:
        try:
            return {entry.name for entry in os.scandir(folder) if self._is_inside(entry)}
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def _is_inside(self, entry: os.DirEntry[str]) -> bool:
        return not entry.is_symlink() or Path(entry.path).resolve().is_relative_to(self.root)

    def revision_folder(self, repository: Repository, described: dict[str, Any]) -> Path | None:
        """Where a revision's files lie: below the root or next to its ``.repo.json``; None if neither."""
        relative = described.get("folder")
        if not isinstance(relative, str) or not relative:
            return None
        for start in (self.root, repository.folder.parent):
            folder = (start / relative).resolve()
            if folder.is_relative_to(self.root) and folder != self.root and folder.is_dir():
                return folder
        return None

    def files_below(self, folder: Path) -> Iterator[StoredFile]:
        """Every regular file below ``folder``, in git's order; links that leave the root are not there."""
        real = folder.resolve()
        found: dict[str, str] = {}
        pending = [("", str(real))] if real.is_relative_to(self.root) else []
        while pending:
            below, current = pending.pop()
            try:
                entries = [entry for entry in os.scandir(current) if self._is_inside(entry)]
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append((f"{below}{entry.name}/", entry.path))
                elif entry.is_file():
                    # No link leads to this folder, so there is none to follow but the entry itself.
                    is_link = entry.is_symlink()
                    found[f"{below}{entry.name}"] = os.path.realpath(entry.path) if is_link else entry.path
        for path in sorted(found, key=os.fsencode):
            try:
                yield self._describe(path, found[path])
            except FileNotFoundError:
                continue  # removed since the folder was read

    def _describe(self, path: str, location: str) -> StoredFile:
        place = Path(location)
        status = place.stat()
        signature = _signature(status)
        with self._lock:
            known = self._files.get((path, location))
        if known is not None and known[0] == signature:
            return known[1]
        is_lfs = is_in_lfs(path.rsplit("/", 1)[-1])
        digest, size = _hash_file(place, status.st_size, is_lfs)
        if is_lfs:
            pointer = lfs_pointer(digest, size)
            file = StoredFile(path, place, size, status.st_mtime_ns, blob_id(pointer), digest, len(pointer))
        else:
            file = StoredFile(path, place, size, status.st_mtime_ns, oid=digest)
        if _is_settled(status):
            with self._lock:
                self._files[path, location] = signature, file
        return file

    def _read_settings(self, path: Path) -> dict[str, Any]:
        status = path.stat()
        signature = _signature(status)
        with self._lock:
            known = self._settings.get(path)
        if known is not None and known[0] == signature and _is_settled(status):
            return known[1]
        try:
            settings = json.loads(path.read_bytes())
        except ValueError as error:
            if known is not None:
                return known[1]  # caught while it was being written
            raise StoreError(f"{path.name} is not JSON: {error}") from error
        if not isinstance(settings, dict):
            raise StoreError(f"{path.name} must hold a JSON object")
        with self._lock:
            self._settings[path] = (signature, settings)
        return settings


class JoinedStore:
    """The repositories below all of ``roots``, each served from where it lies. Thread-safe.

    Raises StoreError if a root is not a folder, or an id (old ones included) is in two of them.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self.stores = [Store(root) for root in roots]
        if len(roots) > 1:
            self._refuse_clashes()

    def _refuse_clashes(self) -> None:
        found: dict[str, Store] = {}
        for store in self.stores:
            for repository in store.repositories():
                for name in {repository.id, *repository.old_ids}:
                    other = found.setdefault(name, store)
                    if other is not store:
                        raise StoreError(f"{name} stands both in {other.root} and in {store.root}")

    def repository(self, repo_id: str) -> Repository | None:
        """The repository with exactly this id, or None."""
        return next(filter(None, (store.repository(repo_id) for store in self.stores)), None)

    def renamed(self, old_id: str) -> Repository | None:
        """The repository that once had this id."""
        return next(filter(None, (store.renamed(old_id) for store in self.stores)), None)

    def repositories(self) -> Iterator[Repository]:
        """Every repository, by id."""
        return heapq.merge(*(store.repositories() for store in self.stores), key=lambda one: one.id.split("/"))


def is_repo_id(text: str) -> bool:
    """Whether it is an owner/name that the Hub accepts."""
    return _REPO_ID.fullmatch(text) is not None


def is_in_lfs(name: str) -> bool:
    """Whether the Hub's own .gitattributes put a file of this name into LFS."""
    return _IN_LFS.fullmatch(name) is not None


def lfs_pointer(sha256: str, size: int) -> bytes:
    """The pointer file that git holds in place of a file in LFS."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def blob_id(data: bytes) -> str:
    """Git's id of a file with this content."""
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data), usedforsecurity=False).hexdigest()


def hub_time(moment: datetime) -> str:
    """A moment of UTC as the Hub writes it."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _is_settled(status: os.stat_result) -> bool:
    ages = (time.time_ns() - status.st_mtime_ns, time.time_ns() - status.st_ctime_ns)
    return not any(0 <= age <= _SETTLED_NS for age in ages)


def _hash_file(location: Path, size: int, is_lfs: bool) -> tuple[str, int]:
    """The sha256 of a file in LFS or git's blob id of any other, and the size that was hashed."""
    digest = hashlib.sha256() if is_lfs else hashlib.sha1(f"blob {size}\0".encode())
    with location.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK):
            digest.update(chunk)
        return digest.hexdigest(), file.tell()


def _sha1(text: str) -> str:
    return hashlib.sha1(text.encode("utf-8", "surrogateescape")).hexdigest()
