"""One generation of an atlas, taken while builds may go on: what is pushed is one state, whole.

The database is copied, the files that it names are linked (they never change; a publish only removes them), and
Parquet and card are written beside them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from indexer.atlas import SCHEMA_VERSION, AtlasFolder
from indexer.database.connection import Connection
from indexer.database.reading import Reading
from indexer.errors import AtlasError
from indexer.regular_files import descriptor_of, open_regular
from indexer.share.contents import CARRIED, WORKED_FROM, files_in, named_files
from indexer.share.manifest import ATLAS, DATA, RECORDS, FileEntry, Manifest
from indexer.share.tables import write_tables, write_vectors
from indexer.storage.checked_files import file_sha256
from indexer.vectors.published import read_published
from indexer.version import __version__

DATABASE = "atlas.duckdb"
# Publishes that may come between copying the database and linking the files it names.
TRIES = 5


@dataclass
class Staged:
    """Files of one generation by their path in the repository; ``manifest`` names all but packs and the card."""

    folder: Path
    manifest: Manifest
    sources: dict[str, Path] = field(default_factory=dict)
    local_models: int = 0
    skipped: int = 0

    def add(self, path: str, source: Path, part: str) -> FileEntry:
        """One more file."""
        entry = FileEntry(path, source.stat().st_size, file_sha256(source), part)
        self.sources[path] = source
        self.manifest = replace(self.manifest, files=(*self.manifest.files, entry))
        return entry


@contextmanager
def staged(atlas: AtlasFolder, *, with_records: bool) -> Iterator[Staged]:
    """What is published now, in a folder that goes when the block ends.

    Raises AtlasError where there is no atlas, another push of it is going on, or a file is missing or damaged.
    """
    folder = atlas.require().root / ".push"
    with _alone(atlas, folder):
        try:
            yield _stage(atlas, folder / "files", with_records)
        finally:
            shutil.rmtree(folder / "files", ignore_errors=True)


@contextmanager
def _alone(atlas: AtlasFolder, folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(exist_ok=True)
        handle = descriptor_of(folder / "lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise AtlasError(
            f"{atlas.root} cannot be written to: {error.strerror}.",
            "A push prepares its files there: copy the atlas to where you may write.",
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(handle).st_nlink:  # the one before us has just taken it away
            raise BlockingIOError
        shutil.rmtree(folder / "files", ignore_errors=True)  # of one that was killed
        yield
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError as error:
        raise AtlasError(f"Another push of {atlas.root} is going on.", "Wait for it to finish.") from error
    finally:
        os.close(handle)


def _stage(atlas: AtlasFolder, folder: Path, with_records: bool) -> Staged:
    for left in reversed(range(TRIES)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            copied = _copied(atlas, folder)
            break
        except FileNotFoundError as error:  # collected meanwhile: a newer generation is there
            if not left:
                name = Path(str(error.filename)).name
                raise AtlasError(f"The file {name} of the atlas is missing.", "Run: index verify") from error
    with Reading(folder / DATABASE) as connection:
        made = Staged(folder, _manifest(connection))
        for path in copied:
            made.add(path, folder / path, ATLAS)
        _check_named(connection, made)
        for path, source in write_tables(connection, folder):
            made.add(path, source, DATA)
        for one in made.manifest.representations:
            published = read_published(connection, one["base"], one["representation"])
            if published is not None and published.segments:
                for path, source in write_vectors(connection, published, folder, folder):
                    made.add(path, source, DATA)
        local, skipped = connection.execute(
            "SELECT count(*) FILTER (author = 'local'), count(*) FILTER (status IN ('skipped', 'failed')) "
            "FROM fine_tunes"
        ).fetchall()[0]
        made.local_models, made.skipped = local, skipped
    for path, source in files_in(atlas, CARRIED):
        made.add(path, source, ATLAS)
    if with_records:
        for path, source in files_in(atlas, WORKED_FROM):
            made.add(path, source, RECORDS)
    return made


def _copied(atlas: AtlasFolder, folder: Path) -> list[str]:
    """The database, copied, and what it names, linked or copied: their paths."""
    with open_regular(atlas.database, through_links=True) as source, (folder / DATABASE).open("xb") as copy:
        shutil.copyfileobj(source, copy, 1 << 22)
    with Reading(folder / DATABASE) as connection:
        named = named_files(connection)
    for one in named:
        target = folder / one.path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.close(descriptor_of(atlas.root / one.path))  # FileNotFoundError, or no regular file
        try:
            os.link(atlas.root / one.path, target, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            shutil.copyfile(atlas.root / one.path, target)
    return [DATABASE, *(one.path for one in named)]


def _check_named(connection: Connection, made: Staged) -> None:
    """What the database says of a file has to be true: nobody could open the atlas otherwise."""
    for one in named_files(connection):
        entry = made.manifest.file(one.path)
        if entry is None or entry.sha256 != one.sha256:
            raise AtlasError(
                f"The file {one.path} is damaged: its checksum does not fit.", "Run `index rebuild` before a push."
            )


def _manifest(connection: Connection) -> Manifest:
    info = connection.rows("SELECT generation, published, tool_version FROM atlas_info")[0]
    bases = connection.rows(
        'SELECT base, "commit", (SELECT count(*) FROM models WHERE models.base = bases.base) AS models '
        "FROM bases ORDER BY base"
    )
    representations = connection.rows(
        "SELECT base, representation, version, rank, length, vectors FROM representations ORDER BY ALL"
    )
    return Manifest(
        generation=int(info["generation"]),
        schema=SCHEMA_VERSION,
        tool=f"vectors-in-the-wild {info['tool_version'] or __version__}",
        published=_moment(info["published"]),
        bases=tuple(bases),
        representations=tuple(representations),
        counts={
            "models": sum(row["models"] for row in bases),
            "listed": _count(connection, "SELECT count(*) FROM fine_tunes"),
            "datasets": _count(connection, "SELECT count(DISTINCT dataset) FROM model_datasets"),
        },
    )


def _count(connection: Connection, statement: str) -> int:
    return int(connection.execute(statement).fetchall()[0][0])


def _moment(moment: Any) -> str:
    return f"{moment.isoformat(timespec='seconds')}Z" if moment is not None else ""
