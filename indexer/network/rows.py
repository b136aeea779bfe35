"""The commit and the file names in a row of the Hub's listing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def commit_of(row: Mapping[str, Any]) -> str | None:
    """The commit that a listing row names, or None."""
    sha = row.get("sha")
    return sha if isinstance(sha, str) and 7 <= len(sha) <= 64 and sha.isascii() and sha.isalnum() else None


def filenames_in(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The file names that a row lists, in either spelling; () if it lists none."""
    return listed_filenames(row) or ()


def listed_filenames(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The same, but None if the row does not list files at all, unlike an empty repository's."""
    siblings = row.get("siblings")
    if not isinstance(siblings, list):
        return None
    names = [entry.get("rfilename") if isinstance(entry, dict) else entry for entry in siblings]
    return tuple(name for name in names if isinstance(name, str))
