"""The checksum of the published database, in a small file beside it.

Two files cannot be renamed at once, so ``checksums.json`` is written before the database takes its place, and names
both that of the database that is there and that of the one to come: whenever a publish is killed, the database that is
found is one of the two. An atlas of before has no such file, and its database is checked by reading it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.records.identity import canonical_json
from indexer.regular_files import read_regular
from indexer.storage.atomic_files import write_atomically
from indexer.storage.checksummed_jsonl import add_checksum, has_checksum, parse_checksummed
from indexer.storage.checksums import file_sha256

_MOST_BYTES = 1 << 20

HINT = "run `index rebuild`, which makes it again from listing and records"


def note_coming(folder: AtlasFolder, coming: Path) -> None:
    """``coming`` is to take the database's place: both checksums are good from now on. Raises OSError."""
    rows = [_row(coming)]
    if folder.database.is_file() and damage(folder) is None:
        rows.insert(0, _row(folder.database))
    text = canonical_json({"databases": rows})
    write_atomically(folder.checksums, add_checksum(text))


def damage(folder: AtlasFolder) -> str | None:
    """What is wrong with the database file as a whole, in a sentence; None where nothing is, or nobody noted it."""
    if not folder.checksums.is_file():
        return None
    noted = _noted(folder)
    if not noted:
        return f"{folder.checksums.name} is damaged: {HINT}"
    size = folder.database.stat().st_size
    if size not in {row["bytes"] for row in noted}:
        told = " or ".join(str(row["bytes"]) for row in noted)
        return f"is damaged, or was changed by another program: {size} bytes instead of {told}; {HINT}"
    if _row(folder.database) not in noted:
        return f"is damaged, or was changed by another program: its checksum does not fit; {HINT}"
    return None


def _row(database: Path) -> dict[str, Any]:
    return {"bytes": database.stat().st_size, "sha256": file_sha256(database)}


def _is_noted(row: dict[str, Any]) -> bool:
    return row.keys() == {"bytes", "sha256"} and type(row["bytes"]) is int and isinstance(row["sha256"], str)


def _noted(folder: AtlasFolder) -> list[dict[str, Any]]:
    """The rows of the file; none where it cannot be read."""
    try:
        content = read_regular(folder.checksums, most=_MOST_BYTES)
        rows = parse_checksummed(content)["databases"] if has_checksum(content) else []
        return [row for row in rows if isinstance(row, dict) and _is_noted(row)]
    except (OSError, ValueError, KeyError, TypeError):
        return []
