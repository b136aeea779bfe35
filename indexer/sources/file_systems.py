"""What a tree of models needs of the place where it lies: folders one by one, facts of files, ranges of their bytes.

``LocalFiles`` is a folder on this machine; ``indexer.sources.addresses`` has the same for addresses that fsspec knows.
Paths are relative to the place, with ``/``; "" is the place itself. A name that is not UTF-8 has half of a surrogate
pair for each odd byte, as Python decodes file names.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from indexer.errors import AtlasError, Failed
from indexer.network.byterange import ByteSource, LocalFile
from indexer.untrusted import printable

# A model of the Hub in the client's cache, and what lies in it.
CACHED = re.compile(r"models--(?:[\w.\-]+?--)?[\w.\-]+", re.ASCII)
_SECONDS = 19  # characters of a time in ISO 8601, up to its seconds
_SHOWN = 120  # characters of a path in a sentence
# Kinds of problems.
NOT_LISTED = "folders that cannot be listed"
VANISHED = "files and folders that changed or vanished while they were read"
NOT_READ = "files that cannot be opened"
LEADS_OUT = "links that lead out of the tree, not followed"
BROKEN = "links that lead nowhere or in circles, not followed"
NOT_UTF8 = "names that are not UTF-8, read under names without these bytes"


@dataclass(frozen=True)
class FileFacts:
    """The size of a file in bytes, and a ``mark`` that changes with its content: its time, or its ETag."""

    size: int
    mark: str

    def agrees(self, later: FileFacts) -> bool:
        """Whether a file may be as it was. Listings and single answers of a server give times in several ways."""
        if self.size != later.size or self.mark == later.mark:
            return self.size == later.size
        (kind, _, before), (kind_later, _, after) = self.mark.partition(":"), later.mark.partition(":")
        if (kind, kind_later) == ("time", "time"):
            return before[:_SECONDS] == after[:_SECONDS]
        return {kind, kind_later} == {"etag", "time"}


@dataclass(frozen=True)
class TreeFile:
    """A file of a model: its path in the tree, and its facts when it was listed."""

    path: str
    facts: FileFacts


@dataclass
class FolderContent:
    """The names of the files in a folder and of the folders in it; facts are those that the listing gave."""

    files: dict[str, FileFacts | None] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)


@dataclass
class Problems:
    """What could not be read, counted by kind, each with the first of its paths.

    ``unseen``: folders of which it is not known what is in them ("" for the whole place).
    """

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)

    def note(self, kind: str, path: str, *, is_unseen: bool = False, count: int = 1) -> None:
        """One more of a kind."""
        self.counts[kind] = self.counts.get(kind, 0) + count
        self.first.setdefault(kind, path)
        if is_unseen:
            self.unseen.append(path)

    def sentences(self) -> list[str]:
        """A line for each kind."""
        return [
            f"{kind}: {count:,} ({printable(self.first[kind], _SHOWN) or 'the place itself'})"
            for kind, count in sorted(self.counts.items())
        ]

    def hides(self, path: str) -> bool:
        """Whether it is not known what is at a path."""
        return any(not one or path == one or path.startswith(f"{one}/") for one in self.unseen)


@dataclass(frozen=True)
class TrackedRun:
    """The training run that made a model, as a tracking server or its files say.

    ``key``: what tells it from others; ``words``: what the model can be named after, the last ones first; ``settings``:
    its parameters, metrics and tags, untrusted.
    """

    key: str
    words: tuple[str, ...]
    settings: Mapping[str, Any]


class FileSystem(Protocol):
    """A place. ``address``: what identifies it; ``is_remote``: whether reading it waits for a server.

    To add a kind of place, derive a class, and name a function that opens it in ``addresses.PLACES``.
    """

    address: str
    is_remote: bool

    def content(self, path: str, problems: Problems) -> FolderContent:
        """What lies in a folder; nothing, and a problem, if it cannot be listed. Hidden names are left out."""
        ...

    def facts(self, path: str) -> FileFacts:
        """The facts of a file as it is now. Raises Failed."""
        ...

    def open(self, path: str, name: str) -> ByteSource:
        """A file, for reading by ranges; ``name`` is what messages call it. Raises ModelError."""
        ...

    def run_at(self, path: str) -> TrackedRun | None:
        """The run that made the model at a path; None where files beside it say so, if anything does."""
        return None


class LocalFiles(FileSystem):
    """A folder on this machine. Links are followed to files in it, and never out of it.

    In the cache of the Hub's client the files of a model are links to blobs, so a place inside such a folder may also
    open what else belongs to that model. Links to folders are not followed: what lies in the tree is met without them.
    Raises AtlasError if there is no such folder, or it cannot be listed.
    """

    is_remote = False

    def __init__(self, place: Path | str) -> None:
        try:
            self.root = Path(place).expanduser().resolve(strict=True)
            is_folder = self.root.is_dir()
            if is_folder:
                os.scandir(self.root).close()
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "that is not a path"
            shown = printable(str(place), _SHOWN)
            raise AtlasError(f"{shown} cannot be listed: {reason}.", "Give an existing folder to read from.") from error
        if not is_folder:
            raise AtlasError(f"{printable(str(place), _SHOWN)} is a file, not a folder.", "Add it: index add FILE")
        self.address = str(self.root)
        cached = [folder for folder in (self.root, *self.root.parents) if CACHED.fullmatch(folder.name)]
        self.beneath = next((folder for folder in cached if (folder / "snapshots").is_dir()), self.root)
        self._inside = os.path.join(self.beneath, "")  # noqa: PTH118 - paths here are text, for speed

    def _path(self, path: str) -> str:
        return f"{self.root}/{path}" if path else str(self.root)

    def content(self, path: str, problems: Problems) -> FolderContent:
        """What lies in a folder."""
        found = FolderContent()
        folder = self._path(path)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    inner = f"{path}/{entry.name}" if path else entry.name
                    if not entry.name.isascii() and not _is_utf8(entry.name):
                        problems.note(NOT_UTF8, inner)
                    if entry.is_symlink():
                        self._follow(folder, entry.name, inner, found, problems)
                    elif entry.is_dir(follow_symlinks=False):
                        found.folders.append(entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        found.files[entry.name] = None
        except FileNotFoundError:
            problems.note(VANISHED, path, is_unseen=not path)
        except OSError as error:
            kind = VANISHED if error.errno == errno.ENOTDIR else NOT_LISTED
            problems.note(kind, path, is_unseen=kind == NOT_LISTED)
        found.folders.sort()
        return found

    def _follow(self, folder: str, name: str, inner: str, found: FolderContent, problems: Problems) -> None:
        """Add what a link leads to, if that is a file inside."""
        try:
            target = os.path.normpath(os.path.join(folder, os.readlink(os.path.join(folder, name))))  # noqa: PTH115, PTH118
            status = os.lstat(target)
            if stat.S_ISLNK(status.st_mode):  # one link after another
                target = os.path.realpath(target, strict=True)
                status = os.lstat(target)
        except OSError:
            problems.note(BROKEN, inner)
            return
        if not target.startswith(self._inside) and target != str(self.beneath):
            problems.note(LEADS_OUT, inner)
        elif stat.S_ISREG(status.st_mode):
            found.files[name] = FileFacts(status.st_size, str(status.st_mtime_ns))

    def facts(self, path: str) -> FileFacts:
        """The size and the time of a file."""
        try:
            status = Path(self._path(path)).stat()
        except OSError as error:
            raise Failed("not_found", f"it cannot be opened: {error.strerror}") from error
        return FileFacts(status.st_size, str(status.st_mtime_ns))

    def open(self, path: str, name: str) -> LocalFile:
        """A file that no link leads out to."""
        return LocalFile(self._path(path), name, self.beneath)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def in_order(names: Iterable[str]) -> list[str]:
    """Names sorted with numbers by their value: checkpoint-500 before checkpoint-1500."""
    return sorted(names, key=lambda name: [(not part.isdigit(), int(part) if part.isdigit() else 0, part)
                                           for part in re.split(r"(\d{1,18})", name)])  # fmt: skip
