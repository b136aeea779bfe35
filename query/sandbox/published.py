"""The published database as a long-lived reader holds it: opened read-only, with a copy where it is being written."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.atlas import check_schema
from indexer.errors import AtlasError
from query.sandbox.locked import connect_apart

if TYPE_CHECKING:
    import duckdb


class PublishedDatabase:
    """A connection to what was published last.

    Where another program holds the file for writing, a private copy is read instead and ``note`` says so. ``path`` is
    the file that is read. Raises AtlasError where it is damaged, or of another schema.
    """

    def __init__(self, path: Path) -> None:
        import duckdb

        self.path = path
        self.note: str | None = None
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        try:
            self.connection = self._connected(path)
        except duckdb.Error as error:
            self._forget_copy()
            raise AtlasError(
                f"{path} is damaged ({str(error).splitlines()[0]}).", "Make it again: index rebuild"
            ) from error
        try:
            check_schema(self.connection, path)
        except AtlasError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file, and remove the copy."""
        self.connection.close()
        self._forget_copy()

    def _forget_copy(self) -> None:
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def _connected(self, path: Path) -> duckdb.DuckDBPyConnection:
        import duckdb

        try:
            return connect_apart(path)
        except duckdb.IOException as error:
            if "lock" not in str(error).lower():
                raise AtlasError(
                    f"{path} cannot be opened: {str(error).splitlines()[0]}", "Run `index rebuild`."
                ) from error
        self._copy = tempfile.TemporaryDirectory(prefix="atlas-")
        self.path = Path(self._copy.name) / "atlas.duckdb"
        shutil.copyfile(path, self.path)
        self.path.chmod(0o600)
        self.note = "another program has the database open for writing; reading a private copy"
        return connect_apart(self.path)
