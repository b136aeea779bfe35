"""The database of one base: its listing and its stored answers, in the tables of ``listing.sql``."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from indexer.storage.small_database import Schema, SmallDatabase

_KIND = 0x57494C44  # of SQLite files, in their header
_VERSION = 1
_REPAIR = (
    "Run `index rebuild`, which keeps what can be read, and then `index build`. If nothing was published yet, remove "
    "the file instead."
)


@cache
def schema() -> Schema:
    """The tables of listing.sql."""
    sql = files("indexer.listing").joinpath("listing.sql").read_text(encoding="utf-8")
    return Schema(sql, _KIND, _VERSION, name="listing", writer="index build", repair=_REPAIR)


def base_database(path: Path) -> SmallDatabase:
    """The database at ``path``, which need not exist yet."""
    return SmallDatabase(path, schema())


def plain(text: str) -> str:
    r"""A text as SQLite can keep it: half of a surrogate pair, which has no UTF-8, becomes its escape (\ud800)."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
