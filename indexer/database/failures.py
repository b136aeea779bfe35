"""What DuckDB raises, as what this program raises: the one place for it."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from indexer.atlas import mending
from indexer.errors import AtlasError

MENDED_BY = "Make it again: index rebuild"


@contextmanager
def failures_told(path: Path) -> Iterator[None]:
    """Within the block every failure of DuckDB is one of ``as_ours``; ``path`` is the file that is asked."""
    try:
        yield
    except Exception as error:
        ours = as_ours(error, path)
        if ours is error:
            raise
        raise ours from error


def as_ours(error: Exception, path: Path) -> BaseException:
    """What DuckDB raised of the file at ``path``: AtlasError, OSError for a full disk, KeyboardInterrupt for Ctrl-C.

    What is not of DuckDB comes back as it is.
    """
    import duckdb

    if isinstance(error, RuntimeError) and str(error) == "Query interrupted":
        return KeyboardInterrupt()  # so does DuckDB tell of Ctrl-C in the midst of a statement
    if not isinstance(error, duckdb.Error):
        return error
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if isinstance(error, duckdb.InterruptException):
        return KeyboardInterrupt()
    if "No space left on device" in text:
        return OSError(errno.ENOSPC, "No space left on device", str(path))
    if isinstance(error, duckdb.ConnectionException) and "closed" in text:
        return AtlasError("This atlas is closed.", "Open it again: query.Atlas(folder).")
    if isinstance(error, duckdb.OutOfMemoryException):
        return AtlasError(f"{path} needs more memory than there is for it.", "Close other programs, and try again.")
    if isinstance(error, duckdb.IOException) and "Could not set lock on file" in text:
        holder = re.search(r"PID (\d+)", str(error))
        by = f" (process {holder[1]})" if holder else ""
        return AtlasError(f"{path} is open for writing in another program{by}.", "Close it there and try again.")
    if isinstance(error, duckdb.ConversionException | duckdb.OutOfRangeException | duckdb.ConstraintException):
        return AtlasError(f"A value does not fit into {path}: {_sentence(text)}", "Run with --debug, and report it.")
    if isinstance(error, _statements_own()):
        return AtlasError(f"The statement cannot be run: {_sentence(text)}", "See: query sql --help")
    return AtlasError(f"{path} is damaged ({_sentence(text).rstrip('.')}).", mending(path.parent, MENDED_BY))


def _statements_own() -> tuple[type[Exception], ...]:
    """What is wrong with a statement, not with the file."""
    import duckdb

    return (
        duckdb.ParserException,
        duckdb.BinderException,
        duckdb.SyntaxException,
        duckdb.InvalidInputException,
        duckdb.PermissionException,
        duckdb.NotImplementedException,
    )


def _sentence(text: str) -> str:
    return text.partition(" Error: ")[2] or text
