"""``pulled.json``: which commit of which repository a pulled atlas is.

While it is there, nobody writes to the atlas.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from indexer.atlas import AtlasFolder
from indexer.errors import WRONG_KINDS, AtlasError
from indexer.regular_files import read_regular
from indexer.share.manifest import Manifest
from indexer.storage.sealed import sealed, unsealed
from indexer.storage.whole_files import write_atomically

_LARGEST = 64 << 10


@dataclass(frozen=True)
class Origin:
    """Where a pulled atlas comes from; ``commit`` is the repository's, ``has_records`` whether a build can go on."""

    repository: str
    revision: str | None
    commit: str
    generation: int
    models: int
    has_records: bool

    @classmethod
    def of(cls, repository: str, revision: str | None, commit: str, manifest: Manifest, has_records: bool) -> Origin:
        """Of what is being pulled."""
        models = manifest.counts.get("models", 0)
        return cls(repository, revision, commit, manifest.generation, models, has_records)


def read_origin(folder: AtlasFolder) -> Origin | None:
    """Where the atlas was pulled from; None for one of this machine, or where that cannot be read."""
    try:
        return Origin(**unsealed(read_regular(folder.origin, most=_LARGEST)))
    except (OSError, *WRONG_KINDS):
        return None


def write_origin(folder: AtlasFolder, origin: Origin) -> None:
    """Note it: from now on the atlas is read-only. Raises OSError."""
    write_atomically(folder.origin, sealed(json.dumps(asdict(origin))))


def adopt(folder: AtlasFolder) -> Origin | None:
    """Make a pulled atlas one of this machine, to be built on; what it was, None where it was never pulled.

    Raises AtlasError where it came without the records that a build goes on from: every model would be read again.
    """
    if not folder.origin.exists():
        return None
    origin = read_origin(folder)
    if origin is None or not (origin.has_records and folder.records.is_dir()):
        name = origin.repository if origin else "OWNER/NAME"
        models = f"its {origin.models:,} models" if origin else "its models"
        raise AtlasError(
            f"{folder.root} was pulled without records: a build would read all {models} again.",
            f"Fetch them first: index pull {name} --with-records --atlas {folder.root}",
        )
    with folder.locked("index build --adopt", pulled=True):
        folder.origin.unlink()
    return origin
