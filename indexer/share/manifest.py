"""``atlas.json``: describes a shared atlas and lists its files, each with its size and sha256.

A file that it does not list is not part of the atlas. A manifest that is read is untrusted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from indexer.errors import AtlasError
from indexer.untrusted import SHA256, load_json, malformed, printable

NAME = "atlas.json"
FORMAT = 1
LARGEST = 32 << 20
MOST_FILES = 50_000

# Parts of an atlas: the database and the files it names; Parquet for other readers; the inputs of a build.
ATLAS, DATA, RECORDS = "atlas", "data", "records"
PARTS = (ATLAS, DATA, RECORDS)

_PATH = re.compile(r"[A-Za-z0-9_][\w.@=+\-]{0,250}(?:/[A-Za-z0-9_][\w.@=+\-]{0,250}){0,3}", re.ASCII)


@dataclass(frozen=True)
class FileEntry:
    """One file: its path in the repository, bytes, sha256 (hex), and part of the atlas."""

    path: str
    bytes: int
    sha256: str
    part: str


@dataclass(frozen=True)
class Manifest:
    """Describes a pushed atlas. ``published``: when this generation was made, ISO 8601.

    ``source``: sha256 of the database before it was rewritten for the push; "" if unknown.
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

    def files_of(self, *parts: str) -> list[FileEntry]:
        """Its files of these parts."""
        return [entry for entry in self.files if entry.part in parts]

    def file(self, path: str) -> FileEntry | None:
        """The file of that path."""
        return next((entry for entry in self.files if entry.path == path), None)

    @property
    def commits(self) -> dict[str, str]:
        """The commit of each base."""
        return {str(row["base"]): str(row["commit"]) for row in self.bases}

    def encoded(self) -> bytes:
        """The content of the file; the same atlas gives the same bytes."""
        content = {"format": FORMAT, **asdict(self)}
        content["files"] = [asdict(entry) for entry in sorted(self.files, key=lambda entry: entry.path)]
        return (json.dumps(content, indent=1, ensure_ascii=True) + "\n").encode("ascii")


def parse(content: bytes, where: str) -> Manifest:
    """Parse an untrusted manifest. Raises AtlasError if it is not one, or lists what an atlas cannot hold."""
    with malformed(lambda why: AtlasError(f"{where} is not a valid {NAME} ({why}).", "Ask its publisher.")):
        manifest = load_json(content)
        if manifest["format"] != FORMAT:
            raise AtlasError(
                f"{where} is of format {printable(str(manifest['format']), 20)}; this version reads {FORMAT}.",
                "Upgrade vectors-in-the-wild.",
            )
        files: list[FileEntry] = []
        for row in manifest["files"]:
            path, size, sha256, part = row["path"], _count(row["bytes"]), row["sha256"], row["part"]
            if not (isinstance(path, str) and is_plain(path)):
                raise ValueError(f"a file named {printable(str(path), 60)!r}")
            if not (isinstance(sha256, str) and SHA256.fullmatch(sha256)) or part not in PARTS:
                raise ValueError(f"{path} without a valid checksum or part")
            files.append(FileEntry(path, size, sha256, part))
        if len(files) > MOST_FILES or len({entry.path.lower() for entry in files}) != len(files):
            raise ValueError("too many files, or one twice")
        return Manifest(
            generation=_count(manifest["generation"]),
            schema=_count(manifest["schema"]),
            tool=printable(str(manifest["tool"]), 100),
            published=printable(str(manifest["published"]), 40),
            bases=tuple(
                {
                    "base": printable(str(row["base"]), 200),
                    "commit": printable(str(row["commit"]), 80),
                    "models": _count(row["models"]),
                }
                for row in manifest["bases"]
            ),
            representations=tuple(dict(row) for row in manifest["representations"]),
            counts={printable(str(name), 60): _count(number) for name, number in manifest["counts"].items()},
            files=tuple(files),
            source=printable(str(manifest.get("source", "")), 64),
        )


def is_plain(path: str) -> bool:
    """Whether a pushed atlas may hold a file of this path: relative, inside the folder, not hidden."""
    return _PATH.fullmatch(path) is not None


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise ValueError(f"{printable(str(value), 40)!r} is not a count")
    return value
