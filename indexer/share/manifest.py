"""``atlas.json``: what a shared atlas is and which files it consists of, each with its size and sha256.

It is the last word on a pushed atlas: what it does not name is no part of it. One that is read comes from a stranger.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from indexer.errors import WRONG_KINDS, AtlasError
from indexer.untrusted import SHA256, load_json, printable

NAME = "atlas.json"
FORMAT = 1
LARGEST = 32 << 20
MOST_FILES = 50_000

# Parts of an atlas: the database and what it names; Parquet for other readers; what a build goes on from.
ATLAS, DATA, RECORDS = "atlas", "data", "records"
PARTS = (ATLAS, DATA, RECORDS)

_PATH = re.compile(r"[A-Za-z0-9_][\w.@=+\-]{0,250}(?:/[A-Za-z0-9_][\w.@=+\-]{0,250}){0,3}", re.ASCII)


@dataclass(frozen=True)
class FileEntry:
    """One file: its path in the repository, bytes, sha256 (hex), and the part of the atlas it belongs to."""

    path: str
    bytes: int
    sha256: str
    part: str


@dataclass(frozen=True)
class Manifest:
    """What a pushed atlas is. ``published``: when this generation was made, ISO 8601.

    ``source``: sha256 of the database that was pushed, before it was written anew; "" where that is not said.
    """

    generation: int
    schema: int
    tool: str
    published: str
    bases: tuple[Mapping[str, Any], ...] = ()
    representations: tuple[Mapping[str, Any], ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    files: tuple[FileEntry, ...] = ()
    source: str = ""

    def of(self, *parts: str) -> list[FileEntry]:
        """Its files of these parts."""
        return [one for one in self.files if one.part in parts]

    def file(self, path: str) -> FileEntry | None:
        """The file of that path."""
        return next((one for one in self.files if one.path == path), None)

    @property
    def commits(self) -> dict[str, str]:
        """The commit of each base."""
        return {str(one["base"]): str(one["commit"]) for one in self.bases}

    def encoded(self) -> bytes:
        """As it is written: the same atlas gives the same bytes."""
        told = {"format": FORMAT, **asdict(self)}
        told["files"] = [asdict(one) for one in sorted(self.files, key=lambda one: one.path)]
        return (json.dumps(told, indent=1, ensure_ascii=True) + "\n").encode("ascii")


def parse(content: bytes, where: str) -> Manifest:
    """The manifest that a stranger wrote. Raises AtlasError where it is none, or names what no atlas holds."""
    try:
        told = load_json(content)
        if told["format"] != FORMAT:
            raise AtlasError(
                f"{where} is of format {printable(str(told['format']), 20)}; this version reads {FORMAT}.",
                "Upgrade vectors-in-the-wild.",
            )
        return Manifest(
            generation=_count(told["generation"]),
            schema=_count(told["schema"]),
            tool=printable(str(told["tool"]), 100),
            published=printable(str(told["published"]), 40),
            bases=tuple(_base(one) for one in told["bases"]),
            representations=tuple(dict(one) for one in told["representations"]),
            counts={printable(str(name), 60): _count(number) for name, number in told["counts"].items()},
            files=_files(told["files"]),
            source=printable(str(told.get("source", "")), 64),
        )
    except WRONG_KINDS as error:
        raise AtlasError(
            f"{where} is no {NAME} of an atlas ({type(error).__name__}: {printable(str(error), 100)}).",
            "Ask whoever published it.",
        ) from error


def _files(told: Iterable[Any]) -> tuple[FileEntry, ...]:
    files = tuple(_file(one) for one in told)
    paths = {one.path.lower() for one in files}
    if len(files) > MOST_FILES or len(paths) != len(files):
        raise ValueError("too many files, or one twice")
    return files


def _file(told: Any) -> FileEntry:
    path, size, sha256, part = told["path"], _count(told["bytes"]), told["sha256"], told["part"]
    if not (isinstance(path, str) and is_plain(path)):
        raise ValueError(f"a file named {printable(str(path), 60)!r}")
    if not (isinstance(sha256, str) and SHA256.fullmatch(sha256)) or part not in PARTS:
        raise ValueError(f"{path} without a checksum or of no part")
    return FileEntry(path, size, sha256, part)


def is_plain(path: str) -> bool:
    """Whether it is a path that a pushed atlas may hold: no way out of the folder, nothing hidden."""
    return _PATH.fullmatch(path) is not None


def _base(told: Any) -> dict[str, Any]:
    return {
        "base": printable(str(told["base"]), 200),
        "commit": printable(str(told["commit"]), 80),
        "models": _count(told["models"]),
    }


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise ValueError(f"{printable(str(value), 40)!r} is no count")
    return value
