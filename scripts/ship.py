"""Make the atlas that comes with the package (indexer/demo) from an atlas of the demo's models.

It holds what `index push` sends without records: the database, rewritten, and the files of vectors. So it is small, and
says of its models only what a published atlas says.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import duckdb

from indexer.atlas import DATABASE, DEMO, DEMO_FOLDER, STORAGE_VERSION, AtlasFolder
from indexer.database.secure_connection import quoted
from indexer.publish.origin import Origin, write_origin
from indexer.publish.staging import note_checksum
from indexer.share.manifest import ATLAS
from indexer.share.staging import staged
from scripts.child import PROJECT
from scripts.terminal import Terminal

BASE = "atlas-demo/tiny-roberta"
BUILD = f"index build --base {BASE} --discover names --spectra"
MAP = PROJECT / "docs" / "map.png"
MOST_BYTES = 6_000_000
BLOCK_BYTES = 16_384  # the smallest blocks that DuckDB has: the file takes a fifth
SWEEP = [f"gridsweep/tiny-roberta-exception-types-lr{rate}-s7" for rate in ("1e-4", "2e-4", "3e-4", "6e-4", "1e-3")]
# What makes the atlas, and the answers that are stored in it.
COMMANDS = (
    BUILD,
    "index represent spectrum",
    f"index profile {' '.join(SWEEP)} --base {BASE} --with-untrained --recover",
    f"query lineage --all --base {BASE}",
    f"query predict --undocumented --base {BASE} --store",
)


def make_atlas(run: Terminal) -> AtlasFolder:
    """Build the atlas in the terminal's folder anew, and return it. Raises CommandFailed."""
    shutil.rmtree(run.folder / "atlas", ignore_errors=True)
    for command in COMMANDS:
        run(command)
    return AtlasFolder(run.folder / "atlas")


def ship(atlas: AtlasFolder, target: Path = DEMO_FOLDER) -> dict[str, int]:
    """Replace the files in ``target`` by those of the published ``atlas``: bytes by name.

    Raises AtlasError if the atlas cannot be read, and ValueError if it is too large; then nothing is replaced.
    """
    with tempfile.TemporaryDirectory() as temporary, staged(atlas, with_records=False) as stage:
        made, manifest = AtlasFolder(Path(temporary) / DEMO), stage.manifest  # the folder itself is private
        for entry in manifest.files_of(ATLAS):
            (made.root / entry.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(stage.sources[entry.path], made.root / entry.path)
        made.database.unlink()
        _write_in_small_blocks(stage.sources[DATABASE], made.database)
        note_checksum(made, made.database)
        # Without records it cannot be built on: a copy is read-only, too.
        write_origin(
            made, Origin(DEMO, None, manifest.source, manifest.generation, manifest.counts["models"], has_records=False)
        )
        sizes = {
            path.relative_to(made.root).as_posix(): path.stat().st_size
            for path in sorted(made.root.rglob("*"))
            if path.is_file()
        }
        if sum(sizes.values()) > MOST_BYTES:
            raise ValueError(f"the atlas has {sum(sizes.values()):,} bytes; the package has room for {MOST_BYTES:,}")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made.root, target)
    return sizes


def _write_in_small_blocks(database: Path, target: Path) -> None:
    """Copy a database with its comments, views and macros. Usual blocks would be mostly empty: most tables are small."""
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"ATTACH {quoted(database)} AS usual (READ_ONLY)")
        connection.execute(
            f"ATTACH {quoted(target)} AS small (BLOCK_SIZE {BLOCK_BYTES}, STORAGE_VERSION '{STORAGE_VERSION}')"
        )
        connection.execute("COPY FROM DATABASE usual TO small")
        connection.execute("CHECKPOINT small")
