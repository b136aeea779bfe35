"""Where models of trees lie, and what was known of them when the trees were listed last (``trees.sql``).

Nothing of it is pushed, exported or published. Without paths only hashes of them are kept: a build that names the tree
again finds its models by these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.errors import WRONG_KINDS
from indexer.sources.tree_rows import TreeFacts
from indexer.storage.small_database import Schema, SmallDatabase, SmallTables
from indexer.untrusted import load_json

_KIND = 0x54524545  # of SQLite files, in their header
_VERSION = 1
_REPAIR = "Remove the file: the next `index build --from` lists the trees again."
QUESTION = "tree:"  # how the questions of trees begin in ``claims`` of a listing


@cache
def _schema() -> Schema:
    sql = files("indexer.listing").joinpath("trees.sql").read_text(encoding="utf-8")
    return Schema(sql, _KIND, _VERSION, name="list of trees", writer="index build", repair=_REPAIR)


@dataclass(frozen=True)
class KnownTree:
    """A tree; see ``trees.sql``."""

    tree: str
    address: str | None
    author: str
    seen: str
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def question(self) -> str:
        """Its name among the questions that show a listed model."""
        return f"{QUESTION}{self.tree}"


@dataclass(frozen=True)
class KnownPlace:
    """A model of a tree; see ``trees.sql``."""

    place: str
    path: str | None
    model: str
    fingerprint: str
    facts: TreeFacts
    tried: str = ""
    is_here: bool = True


class KnownTrees:
    """The trees of an atlas. Raises AtlasError if the file cannot be read or written."""

    def __init__(self, folder: AtlasFolder) -> None:
        self.database = SmallDatabase(folder.trees, _schema())

    def trees(self) -> list[KnownTree]:
        """All trees, in the order in which they were first listed."""

        def read(tables: SmallTables) -> list[KnownTree]:
            rows = tables.all("trees")
            return [KnownTree(tree, address, author, seen, _counts(text)) for tree, address, author, seen, text in rows]

        return self.database.read(read)

    def places(self) -> dict[str, dict[str, KnownPlace]]:
        """By tree, the models that were ever found in it, by their places."""

        def read(tables: SmallTables) -> dict[str, dict[str, KnownPlace]]:
            by_tree: dict[str, dict[str, KnownPlace]] = {}
            for tree, place, path, model, fingerprint, facts, tried, is_here in tables.all("places"):
                try:
                    known = KnownPlace(place, path and json.loads(path), model, fingerprint, _facts(facts), tried,
                                       bool(is_here))  # fmt: skip
                except WRONG_KINDS:
                    continue
                by_tree.setdefault(tree, {})[place] = known
            return by_tree

        return self.database.read(read)

    def note(self, tree: KnownTree, places: Iterable[KnownPlace], *, without_paths: bool = False) -> None:
        """Store a tree and what changed of its models; ``without_paths``: forget those of all."""

        def write(tables: SmallTables) -> None:
            if without_paths:
                rows = list(tables.all("places", "WHERE tree = ? AND path IS NOT NULL", (tree.tree,)))
                tables.put_all("places", ((*row[:2], None, *row[3:]) for row in rows))
            address = None if without_paths else tree.address
            tables.put("trees", tree.tree, address, tree.author, tree.seen, json.dumps(dict(tree.counts)))
            tables.put_all("places", (_row(tree.tree, known, without_paths) for known in places))

        self.database.write(write)


def _row(tree: str, known: KnownPlace, without_paths: bool) -> tuple[Any, ...]:
    path = None if without_paths or known.path is None else json.dumps(known.path)
    facts = json.dumps(asdict(known.facts), separators=(",", ":"))
    return tree, known.place, path, known.model, known.fingerprint, facts, known.tried, int(known.is_here)


def _facts(text: str) -> TreeFacts:
    facts = load_json(text)
    return TreeFacts(str(facts["version"]), tuple((str(what), str(name)) for what, name in facts["named"]),
                     str(facts["relation"]))  # fmt: skip


def _counts(text: str) -> dict[str, int]:
    try:
        counts = load_json(text)
        return {str(name): int(count) for name, count in counts.items()}
    except WRONG_KINDS:
        return {}
