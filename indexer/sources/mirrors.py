"""Names under which a base's weights are on the Hub again without a tag that says so (``mirrors.toml``)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any


def known_mirrors(ids: Iterable[str]) -> tuple[str, ...]:
    """Ids that stand for the same weights as one of ``ids``, in 16 or 4 bits; they need not exist."""
    table = _table()
    mirrors: dict[str, None] = {}
    for identifier in ids:
        owner, _, name = identifier.lower().partition("/")
        if name and owner in table["owners"]:
            stems = table["names"].get(identifier.lower(), [identifier.partition("/")[2]])
            mirrors |= {f"{table['mirror']}/{stem}{ending}": None for stem in stems for ending in table["endings"]}
    return tuple(mirrors)


@cache
def _table() -> dict[str, Any]:
    table = tomllib.loads(files("indexer.sources").joinpath("mirrors.toml").read_text(encoding="utf-8"))
    table["owners"] = {owner.lower() for owner in table["owners"]}
    table["names"] = {name.lower(): stems for name, stems in table["names"].items()}
    return table
