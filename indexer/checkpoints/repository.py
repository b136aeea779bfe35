"""The files of one model at one commit, from any source: bounded reads of small files and of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from indexer.errors import Skipped
from indexer.network.byterange import ByteSource
from indexer.network.retries import RetryPolicy
from indexer.sources.registry import ModelRef, check_readable
from indexer.sources.rows import errors_of
from indexer.sources.source import Source, Version
from indexer.untrusted import LFS_PULL, is_lfs_pointer, load_json, shown

_MOST_SMALL = 64 << 20  # every reader gives a smaller limit of its own


class Repository:
    """The files of a ``version``, by their paths in the repository or the requested subfolder.

    ``small_bytes`` counts the bytes read by ``read_small``, which refuses files of more than ``most_small`` bytes.
    """

    def __init__(self, version: Version, source: Source, most_small: int | None = None) -> None:
        self.commit = version.commit
        self.filenames = version.names
        self.lacking = version.lacking
        self.small_bytes = 0
        self.most_small = _MOST_SMALL if most_small is None else most_small
        self._version, self._source = version, source

    def open(self, path: str) -> ByteSource:
        """One file, to be read by ranges."""
        with errors_of(self._source):
            return self._version.open(path)

    def read_small(self, path: str, limit: int) -> bytes:
        """The content of one file. Raises Skipped("malformed") if it is longer than ``limit``."""
        with errors_of(self._source):
            content = self._version.read(path, min(limit, self.most_small))
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
            value = load_json(content.decode())
        except ValueError as error:
            raise Skipped("malformed", f"{shown(path)} is not JSON") from error
        if not isinstance(value, dict):
            raise Skipped("malformed", f"{shown(path)} is not a JSON object")
        return value


def open_repository(
    reference: ModelRef,
    *,
    commit: str | None = None,
    filenames: Sequence[str] | None = None,
    retries: RetryPolicy | None = None,
    most_small: int | None = None,
) -> Repository:
    """The repository that ``reference`` names, at ``commit`` (by default its revision or the newest).

    The source is asked for the commit and the ``filenames`` only if they are None. ``most_small``: the most bytes of a
    file that is read at once. Raises ModelError.
    """
    subfolder = Path(reference.subfolder)
    if subfolder.is_absolute() or ".." in subfolder.parts:
        raise Skipped("malformed", f"{shown(reference.subfolder)} is not a folder inside the repository")
    if commit is None:
        check_readable(reference)
    source = reference.source
    with errors_of(source):
        version = source.open(reference, commit=commit, filenames=filenames, retries=retries)
    return Repository(version, source, most_small)
