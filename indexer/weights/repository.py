"""A repository at one commit, on the Hub, in the cache or in a folder: its files and how to read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, is_offline_mode, try_to_load_from_cache

from indexer.errors import Failed, Skipped
from indexer.names import ModelRef, folders_root, is_hub_id
from indexer.network.byterange import ByteSource, LocalFile
from indexer.network.hub_errors import as_model_error
from indexer.network.hub_requests import RetryPolicy, fetch_small
from indexer.network.remote_file import RemoteFile
from indexer.network.session import current_session, ensure_session
from indexer.regular_files import files_below
from indexer.untrusted import LFS_PULL, is_lfs_pointer, load_json, shown

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


class Repository:
    """The files of one commit, by their paths in the repository or the requested subfolder.

    They are read from ``folder``; without one from the Hub, or from the Hugging Face cache if they are there.
    ``beneath``: a folder that no link in ``folder`` may lead out of.
    ``small_bytes`` counts the bytes read by ``read_small``, which refuses files of more than ``most_small`` bytes.
    """

    def __init__(
        self,
        name: str,
        commit: str | None,
        filenames: Iterable[str],
        *,
        folder: Path | None = None,
        subfolder: str = "",
        retries: RetryPolicy | None = None,
        most_small: int | None = None,
        beneath: Path | None = None,
    ) -> None:
        below = f"{subfolder}/" if subfolder else ""
        self.commit = commit
        self.filenames = frozenset(path.removeprefix(below) for path in filenames if path.startswith(below))
        self.small_bytes = 0
        self.most_small = _MOST_SMALL if most_small is None else most_small
        self._name = name
        self._folder, self._beneath = folder, beneath
        self._below = below
        self._retries = retries

    def open(self, path: str) -> ByteSource:
        """One file, to be read by ranges."""
        return self._local(path) or RemoteFile(self._name, self._below + path, str(self.commit), retries=self._retries)

    def read_small(self, path: str, limit: int) -> bytes:
        """The content of one file. Raises Skipped("malformed") if it is longer than ``limit``."""
        limit = min(limit, self.most_small)
        file = self._local(path)
        if file is None:
            content = fetch_small(
                self._name, self._below + path, str(self.commit), limit, retries=self._retries, stay=True
            )
        else:
            if file.size > limit:
                raise Skipped("malformed", f"{shown(file.name)} is longer than the {limit} bytes that are read")
            with closing(file):
                content = bytes(file.read(0, file.size))
        self.small_bytes += len(content)
        return content

    def read_beside(self, folder: str, name: str, limit: int) -> bytes | None:
        """A small file of ``folder`` ("" or "name/"), else of the repository; None if neither has it."""
        for path in dict.fromkeys((folder + name, name)):
            if path in self.filenames:
                return self.read_small(path, limit)
        return None

    def read_json(self, path: str, limit: int) -> dict[str, Any]:
        """A JSON file that must hold an object.

        Raises Skipped: ``malformed`` if it does not, ``corrupt_file`` if it is a Git LFS pointer.
        """
        content = self.read_small(path, limit)
        if is_lfs_pointer(content):
            raise Skipped("corrupt_file", f"{shown(path)} is a Git LFS pointer, not the file it points to{LFS_PULL}")
        try:
            found = load_json(content.decode())
        except ValueError as error:
            raise Skipped("malformed", f"{shown(path)} is not JSON") from error
        if not isinstance(found, dict):
            raise Skipped("malformed", f"{shown(path)} is not a JSON object")
        return found

    def _local(self, path: str) -> LocalFile | None:
        if self._folder is not None:
            return LocalFile(self._folder / path, path, self._beneath)
        found = _in_cache(self._name, self._below + path, self.commit)
        return LocalFile(found, path) if found else None


def open_repository(
    reference: ModelRef,
    *,
    commit: str | None = None,
    filenames: Sequence[str] | None = None,
    retries: RetryPolicy | None = None,
    most_small: int | None = None,
) -> Repository:
    """The repository that ``reference`` names, at ``commit`` (by default its revision or main).

    The Hub is asked for commit and file names only if they are not given. With HF_HUB_OFFLINE only the cache is used;
    raises Failed("network") if it holds nothing. ``most_small``: the most bytes of a file that is read at once.
    """
    below = Path(reference.subfolder)
    if below.is_absolute() or ".." in below.parts:
        raise Skipped("malformed", f"{shown(reference.subfolder)} is not a folder inside the repository")
    folder = None if reference.folder is None else reference.folder / below
    if folder is None and is_offline_mode():
        folder, commit = _in_cache_only(reference, commit, below)
    if folder is not None:
        commit = None if reference.folder else commit
        beneath = folders_root() if reference.folder else None
        try:
            names = files_below(folder, beneath)
        except OSError as error:
            raise Failed("not_found", f"the folder {shown(folder)} cannot be listed: {error.strerror}") from error
        return Repository(reference.id, commit, names, folder=folder, most_small=most_small, beneath=beneath)
    if commit is None or filenames is None:
        commit, filenames = _ask_hub(reference, commit)
    return Repository(
        reference.id, commit, filenames, subfolder="/".join(below.parts), retries=retries, most_small=most_small
    )


def _ask_hub(reference: ModelRef, commit: str | None) -> tuple[str, list[str]]:
    """The commit and the file names. Raises ModelError."""
    ensure_session()
    try:
        found = HfApi(**current_session().hub).model_info(reference.id, revision=commit or reference.revision)
    except Exception as error:
        problem = as_model_error(error)
        revision = f" at {shown(reference.revision)}" if reference.revision else ""
        raise type(problem)(problem.reason, f"{reference.id}{revision}: {problem.detail}") from error
    if not found.sha:
        raise Failed("server_error", f"the Hub names no commit of {shown(reference.id)}")
    if found.id != reference.id and is_hub_id(str(found.id)):
        raise Skipped("renamed", f"the model is called {found.id} now")
    return found.sha, [sibling.rfilename for sibling in found.siblings or []]


def _in_cache_only(reference: ModelRef, commit: str | None, below: Path) -> tuple[Path, str]:
    """The folder of the model in the cache, and its commit. Raises Failed("network") if it is not there."""
    for name in _LIKELY:
        if found := _in_cache(reference.id, str(below / name), commit or reference.revision):
            snapshot = found.parents[len(below.parts)]
            return found.parent, snapshot.name
    raise Failed("network", f"{reference.id} is not in the cache, and HF_HUB_OFFLINE forbids asking the Hub for it")


def _in_cache(identifier: str, path: str, revision: str | None) -> Path | None:
    try:
        found = try_to_load_from_cache(identifier, path, revision=revision)
    except Exception as error:
        raise as_model_error(error) from error
    return Path(found) if isinstance(found, str) else None
