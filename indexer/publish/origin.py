"""``pulled.json``: the repository and the commit that a pulled atlas comes from.

As long as the file exists, the atlas is read-only.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass

from indexer.atlas import DEMO, DEMO_FOLDER, AtlasFolder
from indexer.database.connection import published_bases
from indexer.database.reading import Reading
from indexer.errors import WRONG_KINDS, AtlasError, Call, Text
from indexer.listing.exchange import read_exported
from indexer.listing.listing import Listing
from indexer.publish.stored_answers import ANSWERS, exported_answers, write_answers
from indexer.regular_files import read_regular
from indexer.storage.atomic_files import write_atomically
from indexer.storage.checksummed_jsonl import add_checksum, parse_checksummed

_LARGEST = 64 << 10


@dataclass(frozen=True)
class Origin:
    """Where a pulled atlas comes from. ``has_records``: whether its records were pulled, so that it can be built on."""

    repository: str
    revision: str | None
    commit: str
    generation: int
    models: int
    has_records: bool


def read_origin(folder: AtlasFolder) -> Origin | None:
    """Where the atlas was pulled from; None if it was not pulled, or if the file cannot be read."""
    try:
        return Origin(**parse_checksummed(read_regular(folder.origin, most=_LARGEST)))
    except (OSError, *WRONG_KINDS):
        return None


def fetched_again(folder: AtlasFolder, origin: Origin | None, *, with_records: bool) -> str:
    """The command that pulls the atlas again, or copies the one that comes with the program."""
    if origin is not None and origin.repository == DEMO:
        is_copy = folder.root != DEMO_FOLDER
        return f"cp -r {DEMO_FOLDER} {folder.root}" if is_copy else "pip install --force-reinstall ."
    name, revision = (origin.repository, origin.revision) if origin is not None else ("OWNER/NAME", None)
    words = ["index", "pull", f"{name}@{revision}" if revision else name, "--with-records" if with_records else ""]
    return " ".join(word for word in (*words, "--atlas", str(folder.root)) if word)


def write_origin(folder: AtlasFolder, origin: Origin) -> None:
    """Write the file, which makes the atlas read-only. Raises OSError."""
    write_atomically(folder.origin, add_checksum(json.dumps(asdict(origin))))


def adopt(folder: AtlasFolder) -> Origin | None:
    """Make a pulled atlas a local one that can be built on. Returns its origin, or None if it was not pulled.

    Raises AtlasError if it was pulled without its records, because a build would then read every model again.
    """
    if not folder.origin.exists():
        return None
    origin = read_origin(folder.require_writable())
    if origin is not None and origin.repository == DEMO:
        raise AtlasError(
            f"{folder.root} is a copy of the atlas demo, which has no records: it can be asked, but not built on.",
            Text("Make one of your own: ", Call("build", "ID", atlas="DIR")),
        )
    if origin is None or not (origin.has_records and folder.records.is_dir()):
        models = f"its {origin.models:,} models" if origin else "its models"
        raise AtlasError(
            f"{folder.root} was pulled without records: a build would read all {models} again.",
            f"Fetch them first: {fetched_again(folder, origin, with_records=True)}",
        )
    with folder.locked("index build --adopt", pulled=True):
        with Reading(folder.database) as connection:
            bases = [row["base"] for row in published_bases(connection)]
        for base in bases:
            import_lines(folder, base)
        folder.origin.unlink()
    return origin


def import_lines(folder: AtlasFolder, base: str) -> None:
    """Read the files of JSON lines that a base came with into its database, and remove them.

    The caller holds the lock of the writer. Lines that cannot be read are left out.
    """
    listing = Listing(folder.listing(base))
    listing.database.remove()  # of an adoption that was interrupted
    answers = {kind: exported_answers(kind, folder, base)[0] for kind in ANSWERS}
    listing.write(read_exported(folder.exported("listing", base))[0])
    for kind, lines in answers.items():
        write_answers(kind, folder, base, lines)
    for name in ("listing", *(kind.table for kind in ANSWERS)):
        path = folder.exported(name, base)
        path.unlink(missing_ok=True)
        if name != "listing":
            with suppress(OSError):
                path.parent.rmdir()  # unless it has more files
