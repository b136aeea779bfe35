"""Listings as JSON lines, in which they are pushed, pulled, merged and printed.

A database file by somebody else is not opened. Each line is an object with a checksum and a ``kind``: ``base``,
``model``, ``bad``, ``rejected``, ``unrelated``, ``step``, ``renamed`` or ``removed``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.errors import WRONG_KINDS, AtlasError
from indexer.listing.base_database import schema
from indexer.listing.listed_models import Line, ListedModel
from indexer.listing.listing import Listing
from indexer.listing.listing_tables import ListingTables, Names
from indexer.storage.checksummed_jsonl import LineReader
from indexer.storage.small_database import SmallTables, in_memory

# Later kinds win: a model that one listing rejected and another shows is listed, a rename is known to all, and a model
# that the user took out of one listing stays out.
_JOINING_ORDER = ("base", "step", "rejected", "unrelated", "model", "bad", "renamed", "removed")
_MOST_BYTES = 16 << 30  # of a file


def exported_lines(folder: AtlasFolder, base: str) -> list[Line]:
    """The lines of a base's listing: of its database or, in an atlas that was pulled, of the file it came with.

    Lines that are not valid are left out. Raises AtlasError if it cannot be read.
    """
    path = folder.listing(base)
    return Listing(path).as_lines() if path.exists() else read_exported(folder.exported("listing", base))[0]


def read_exported(path: Path) -> tuple[list[Line], list[str]]:
    """The listing in a file of JSON lines, as lines, and the problems of those that are left out."""
    reader = LineReader(path, _MOST_BYTES)

    def imported(tables: SmallTables) -> list[Line]:
        listing = ListingTables(tables)
        names = Names(listing)
        for number, line in reader:
            try:
                listing.apply(line, names)
            except WRONG_KINDS as error:
                reader.note(number, error)
        return list(listing.lines())

    return in_memory(schema(), imported), reader.problems


def join_listings(folders: Sequence[AtlasFolder], base: str, target: Path) -> tuple[str, ...]:
    """Write one listing of a base from those of several atlases; returns the ids of models that several of them list.

    A missing file is an empty listing. Of a model in several listings the row that was seen last counts, its first
    appearance is the earliest, and it has gone only if no listing shows it any more. Raises AtlasError if a file
    cannot be read or written.
    """
    counted = Counter[str]()
    lines: list[Line] = []
    for folder in folders:
        of_folder = exported_lines(folder, base)
        counted.update(line["id"] for line in of_folder if line["kind"] == "model")
        lines += of_folder
    lines.sort(key=lambda line: (_JOINING_ORDER.index(line["kind"]), str(line.get("seen", ""))))
    joined = Listing(target)
    joined.write(lines)
    return tuple(sorted(model.id for model in joined.models() if counted[model.id] > 1))


def listed_rows(folder: AtlasFolder, base: str | None = None) -> Iterator[dict[str, Any]]:
    """The models of all listings of an atlas, or of one base by any of its ids, as rows.

    Each has ``base``, ``model``, the most trusted claim (``relation``, ``claimed_by``, ``parent``), ``path`` (from the
    base to the model), ``first_seen``, ``last_seen``, ``deleted_at_hub``, ``claims`` by question, and ``row``, the
    fields of the Hub's listing. Raises AtlasError if there is no such listing, or it is damaged.
    """
    paths_by_base: dict[str, Path] = {}
    for path in [*sorted(folder.listings.glob("*.jsonl")), *sorted(folder.listings.glob("*.sqlite"))]:
        paths_by_base[path.stem] = path
    names_of_bases: list[str] = []
    for path in paths_by_base.values():
        ids, models = _read(path)
        names = {name.lower() for identifier in ids for name in (identifier, identifier.rpartition("/")[2])}
        name = ids[0] if ids else path.stem.replace("--", "/", 1)
        names_of_bases.append(name)
        if base is None or base.lower() in names | {name.lower()}:
            for model in models:
                yield _row(name, model)
            if base is not None:
                return
    if base is not None or not paths_by_base:
        lack = "no listing" if base is None else f"no listing of {base}"
        hint = f"It has those of {', '.join(names_of_bases)}." if names_of_bases else "Make one: index build --base ID"
        raise AtlasError(f"{folder.root} has {lack}.", hint)


def _read(path: Path) -> tuple[tuple[str, ...], list[ListedModel]]:
    """The ids of a base, and the models of its listing. Raises AtlasError if it is damaged."""
    if path.suffix == ".sqlite":
        shared_listing = Listing(path)
        if problems := shared_listing.problems():
            raise AtlasError(f"The listing {path} is damaged: {problems[0].rstrip('.')}.", schema().repair)
        return shared_listing.ids(), shared_listing.models()
    lines, problems = read_exported(path)
    if problems:
        raise AtlasError(f"The listing {path} is damaged: {problems[0]}.", "Fetch it again: index pull")

    def read(tables: SmallTables) -> tuple[tuple[str, ...], list[ListedModel]]:
        listing = ListingTables(tables)
        names = Names(listing)
        for line in lines:
            listing.apply(line, names)
        return listing.ids(), listing.models()

    return in_memory(schema(), read)


def _row(base: str, model: ListedModel) -> dict[str, Any]:
    return {
        "base": base,
        "model": model.id,
        "relation": model.relation,
        "claimed_by": model.claimed_by,
        "parent": model.parent,
        "path": [{"relation": relation, "model": name} for relation, name in model.path],
        "first_seen": model.first_seen,
        "last_seen": model.last_seen,
        "deleted_at_hub": model.deleted_at_hub,
        "claims": {question: asdict(claim) for question, (claim, _) in model.claims.items()},
        "row": model.row,
    }
