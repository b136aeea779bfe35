"""Which database files were found to be exactly what schema.sql makes: remembered, as comparing costs more than asking.

Only a whole comparison without a difference is remembered, in the user's own cache (``indexer.storage.checksums``),
by all that changes when a file does. That holds the time of its last change (``ctime``), which no program can set back:
a file of the same size, number and modification time that somebody put there instead is compared again. So is one that
changed a moment ago, as two changes within a tick of the clock look alike.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from time import time as clock

from indexer.atlas import schema_sql
from indexer.database.catalog import Found, definitions
from indexer.regular_files import regular_status
from indexer.storage.checksums import is_checked, note_checked, stamp_of

# Raised when the comparison looks at more than it did: what an earlier one found is then worth nothing.
COMPARISON = 1

# Ticks of file systems are this long at most.
_SETTLED_SECONDS = 3.0

Stamp = list[int | str]


def stamp_now(path: Path) -> Stamp | None:
    """What a comparison of the file is remembered by; None where it is not to be remembered."""
    import duckdb

    try:
        status = regular_status(path)
    except OSError:
        return None
    if clock() - status.st_ctime < _SETTLED_SECONDS:
        return None
    compared = f"{COMPARISON} {duckdb.__version__} {schema_sql()}"
    digest = hashlib.sha256(compared.encode()).hexdigest()
    return [*stamp_of(status, digest), status.st_dev, status.st_ctime_ns]


def remembered(path: Path, before: Stamp | None) -> Found | None:
    """What comparing would find in a file that was ``before`` when it was opened; None where that is not known."""
    if before is None or stamp_now(path) != before or not is_checked(path.absolute(), before):
        return None
    return Found((), tuple(one for one in definitions() if one.kind == "macro"))


def remember(path: Path, before: Stamp | None, found: Found) -> None:
    """Keep that nothing differs, where nothing does, and the file is still what it was ``before`` it was opened."""
    if before is not None and not found.problems and not found.other_views and stamp_now(path) == before:
        note_checked(path.absolute(), before)
