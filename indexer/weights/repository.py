"""A repository at one commit, on the Hub, in the cache or in a folder: its files and how to read them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from huggingface_hub import HfApi, constants, is_offline_mode, try_to_load_from_cache

from indexer.errors import Failed, Skipped
from indexer.names import ModelRef, is_hub_id
from indexer.network.byterange import ByteSource, LocalFile
from indexer.network.hub_errors import as_model_error
from indexer.network.hub_requests import RetryPolicy, fetch_small
from indexer.network.remote_file import RemoteFile
from indexer.network.session import ensure_session
from indexer.untrusted import load_json, shown

_MOST_FILES = 100_000
_MOST_SMALL = 64 << 20  # every reader gives a smaller limit of its own
# If anything useful is in the cache, one of these files is.
_LIKELY = (
    "config.json",
    "adapter_config.json",
    "model.safetensors",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "adapter_model.bin",
)


class Repository(Protocol):
    """The files of one commit, by their paths in the repository or the requested subfolder.

    ``small_bytes`` counts the bytes read by ``read_small``, which refuses files of more than ``most_small`` bytes.
    """

    commit: str | None
    filenames: frozenset[str]
    small_bytes: int
    most_small: int

    def open(self, path: str) -> ByteSource:
        """One file, to be read by ranges."""
        ...

    def read_small(self, path: str, limit: int) -> bytes:
        """The content of one file. Raises Skipped("malformed") if it is longer than ``limit``."""
        ...


class FolderRepository:
    """A local folder: its files and those one level down."""

    def __init__(self, folder: Path, commit: str | None = None) -> None:
        self._folder = folder
        self.commit = commit
        self.small_bytes = 0
        self.most_small = _MOST_SMALL
        try:
            self.filenames = frozenset(_files_below(folder))
        except OSError as error:
            raise Failed("not_found", f"the folder {shown(folder)} cannot be listed: {error.strerror}") from error

    def open(self, path: str) -> ByteSource:
        """One file."""
        return LocalFile(self._folder / path, path)

    def read_small(self, path: str, limit: int) -> bytes:
        """The content of one file."""
        content = _read_small_file(LocalFile(self._folder / path, path), min(limit, self.most_small))
        self.small_bytes += len(content)
        return content


class HubRepository:
    """A repository on the Hub. Files of this commit in the Hugging Face cache are read from there."""

    def __init__(
        self,
        identifier: str,
        commit: str,
        filenames: Iterable[str],
        *,
        subfolder: str = "",
        endpoint: str | None = None,
        retries: RetryPolicy | None = None,
    ) -> None:
        self.commit: str | None = commit
        self.small_bytes = 0
        self.most_small = _MOST_SMALL
        self._identifier = identifier
        self._below = f"{subfolder.strip('/')}/" if subfolder.strip("/") else ""
        self._endpoint = endpoint
        self._retries = retries
        self.filenames = frozenset(name.removeprefix(self._below) for name in filenames if name.startswith(self._below))

    def open(self, path: str) -> ByteSource:
        """One file."""
        return self._cached(path) or RemoteFile(
            self._identifier,
            self._below + path,
            str(self.commit),
            endpoint=self._endpoint,
            retries=self._retries,
        )

    def read_small(self, path: str, limit: int) -> bytes:
        """The content of one file."""
        limit = min(limit, self.most_small)
        if (cached := self._cached(path)) is not None:
            content = _read_small_file(cached, limit)
        else:
            content = fetch_small(
                self._identifier,
                self._below + path,
                str(self.commit),
                limit,
                endpoint=self._endpoint,
                retries=self._retries,
                stay=True,
            )
        self.small_bytes += len(content)
        return content

    def _cached(self, path: str) -> LocalFile | None:
        found = _in_cache(self._identifier, self._below + path, self.commit)
        return LocalFile(found, path) if found else None


def open_repository(
    reference: ModelRef,
    *,
    commit: str | None = None,
    filenames: Sequence[str] | None = None,
    endpoint: str | None = None,
    retries: RetryPolicy | None = None,
) -> Repository:
    """The repository that ``reference`` names, at ``commit`` (by default its revision or main).

    The Hub is asked for commit and file names only if they are not given. With HF_HUB_OFFLINE only the cache is used;
    raises Failed("network") if it holds nothing.
    """
    if reference.folder is not None:
        return FolderRepository(reference.folder / _checked(reference.subfolder))
    if is_offline_mode():
        return _from_cache(reference, commit)
    if commit is None or filenames is None:
        commit, filenames = _ask_hub(reference, commit, endpoint)
    return HubRepository(
        reference.id,
        commit,
        filenames,
        subfolder=str(_checked(reference.subfolder)) if reference.subfolder else "",
        endpoint=endpoint,
        retries=retries,
    )


def open_revision(reference: ModelRef, revision: str, endpoint: str | None, retries: RetryPolicy | None) -> Repository:
    """Another revision of the same repository."""
    return open_repository(replace(reference, revision=revision), endpoint=endpoint, retries=retries)


def read_json_object(repository: Repository, path: str, limit: int) -> dict[str, Any]:
    """A JSON file that must hold an object. Raises Skipped("malformed") if it does not."""
    content = repository.read_small(path, limit)
    try:
        found = load_json(content.decode())
    except ValueError as error:
        raise Skipped("malformed", f"{shown(path)} is not JSON") from error
    if not isinstance(found, dict):
        raise Skipped("malformed", f"{shown(path)} is not a JSON object")
    return found


def _ask_hub(reference: ModelRef, commit: str | None, endpoint: str | None) -> tuple[str, list[str]]:
    ensure_session()
    try:
        found = HfApi(endpoint=endpoint or constants.ENDPOINT).model_info(
            reference.id, revision=commit or reference.revision
        )
    except Exception as error:
        problem = as_model_error(error)
        revision = f" at {shown(reference.revision)}" if reference.revision else ""
        raise type(problem)(problem.reason, f"{reference.id}{revision}: {problem.detail}") from error
    if not found.sha:
        raise Failed("server_error", f"the Hub names no commit of {shown(reference.id)}")
    if found.id != reference.id and is_hub_id(str(found.id)):
        raise Skipped("renamed", f"the model is called {found.id} now")
    return found.sha, [sibling.rfilename for sibling in found.siblings or []]


def _from_cache(reference: ModelRef, commit: str | None) -> FolderRepository:
    below = _checked(reference.subfolder)
    for name in _LIKELY:
        path = str(below / name)
        if found := _in_cache(reference.id, path, commit or reference.revision):
            folder = found.parent
            snapshot = folder.parents[len(below.parts) - 1] if below.parts else folder
            return FolderRepository(folder, snapshot.name)
    raise Failed("network", f"{reference.id} is not in the cache, and HF_HUB_OFFLINE forbids asking the Hub for it")


def _in_cache(identifier: str, path: str, revision: str | None) -> Path | None:
    try:
        found = try_to_load_from_cache(identifier, path, revision=revision)
    except Exception as error:
        raise as_model_error(error) from error
    return Path(found) if isinstance(found, str) else None


def _read_small_file(file: LocalFile, limit: int) -> bytes:
    try:
        if file.size > limit:
            raise Skipped("malformed", f"{shown(file.name)} is longer than the {limit} bytes that are read")
        return bytes(file.read(0, file.size))
    finally:
        file.close()


def _files_below(folder: Path) -> Iterable[str]:
    count = 0
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_file():
            yield entry.name
        elif entry.is_dir() and not entry.name.startswith("."):
            for inner in sorted(os.scandir(entry.path), key=lambda inner: inner.name):
                if inner.is_file():
                    yield f"{entry.name}/{inner.name}"
                count += 1
        count += 1
        if count > _MOST_FILES:
            return


def _checked(subfolder: str) -> Path:
    """The subfolder as a relative path without "..". Raises Skipped("malformed") for others."""
    path = Path(subfolder)
    if path.is_absolute() or ".." in path.parts:
        raise Skipped("malformed", f"{shown(subfolder)} is not a folder inside the repository")
    return path
