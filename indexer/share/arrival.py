"""What has been fetched of an atlas is a stranger's until it was looked at; then it takes its place, all at once.

``atlas.duckdb`` is the one pointer, as in a publish: everything else is put in place before it. Killed at any point,
the folder holds no atlas yet, the one before, or the new one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from indexer.atlas import SCHEMA_VERSION, AtlasFolder
from indexer.database.reading import Reading
from indexer.errors import AtlasError
from indexer.publish.database_checksum import note_coming
from indexer.regular_files import regular_status
from indexer.share.contents import Named, named_files
from indexer.share.manifest import Manifest
from indexer.share.origin import Origin, write_origin
from indexer.share.staging import DATABASE
from indexer.vectors.files import check_file
from indexer.vectors.published import read_published


def check_schema(manifest: Manifest, where: str) -> None:
    """Raises AtlasError where this version cannot read such an atlas; asked before anything is fetched."""
    if manifest.schema == SCHEMA_VERSION:
        return
    is_newer = manifest.schema > SCHEMA_VERSION
    raise AtlasError(
        f"{where} has schema {manifest.schema}; this version reads schema {SCHEMA_VERSION}.",
        "Upgrade vectors-in-the-wild." if is_newer else "Ask for a newer push, or choose another tag.",
    )


def check_arrival(staging: Path, manifest: Manifest, where: str) -> None:
    """Look at what lies in ``staging`` without running anything of it.

    The database must be what schema.sql makes and name only files of the manifest, every FAISS file what the database
    says of it. Raises AtlasError.
    """
    with Reading(staging / DATABASE) as connection:
        _check_names(named_files(connection), manifest, where)
        for row in connection.rows("SELECT base, representation FROM representations ORDER BY ALL"):
            published = read_published(connection, row["base"], row["representation"])
            for file in published.files if published is not None else ():
                check_file(staging, file)


def _check_names(named: Iterable[Named], manifest: Manifest, where: str) -> None:
    for one in named:
        entry = manifest.file(one.path)
        if entry is None or entry.sha256 != one.sha256:
            raise AtlasError(
                f"{where} is not whole: its database names {one.path}, which it does not hold.",
                "Ask whoever published it.",
            )


def put_in_place(folder: AtlasFolder, staging: Path, paths: Iterable[str], origin: Origin) -> None:
    """Move the files from ``staging`` into the atlas, the database last. Raises OSError.

    FAISS files that neither the new database nor the one before names go. The caller holds the lock.
    """
    before = _names_before(folder)
    write_origin(folder, origin)  # first of all: what is half there is nobody's to build on
    rest = [path for path in paths if path != DATABASE]
    for path in rest:
        target = folder.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        (staging / path).replace(target)
    note_coming(folder, staging / DATABASE)
    (staging / DATABASE).replace(folder.database)
    handle = os.open(folder.root, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    for old in folder.root.glob("*.faiss"):
        if old.name not in before and old.name not in rest:
            old.unlink(missing_ok=True)


def _names_before(folder: AtlasFolder) -> set[str]:
    if not folder.database.is_file():
        return set()
    with suppress(AtlasError, OSError), Reading(folder.database) as connection:
        return {one.path for one in named_files(connection)}
    return set()


def take_over(source: Path, target: Path) -> None:
    """The same content under another name: linked where the file system can, else copied. Raises OSError."""
    regular_status(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target)
