"""Make the atlas that comes with the package (indexer/demo) from an atlas of the demo's models.

It holds what `index push` sends without records: the database, rewritten, and the files of vectors. So it is small, and
says of its models only what a published atlas says.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from indexer.atlas import DEMO, DEMO_FOLDER, AtlasFolder
from indexer.publish.origin import Origin, write_origin
from indexer.share.manifest import ATLAS
from indexer.share.staging import staged
from scripts.readme import BASE
from scripts.terminal import Terminal

MOST_BYTES = 6_000_000
PROFILED = [f"gridsweep/tiny-roberta-exception-types-lr{rate}-s7" for rate in ("1e-4", "3e-4", "1e-3")]
# What makes the atlas, and the answers that are stored in it.
COMMANDS = (
    f"index build --base {BASE} --discover names --spectra",
    "index represent spectrum",
    f"index profile {' '.join(PROFILED)} --base {BASE} --with-untrained --recover",
    f"query lineage --all --base {BASE}",
    f"query predict --undocumented --base {BASE} --store",
)


def make_atlas(run: Terminal) -> AtlasFolder:
    """Build the atlas in the terminal's folder anew, and return it. Raises CommandFailed."""
    shutil.rmtree(run.folder / "atlas", ignore_errors=True)
    for command in COMMANDS:
        run(command)
    return AtlasFolder(run.folder / "atlas")


def ship(atlas: AtlasFolder, folder: Path = DEMO_FOLDER) -> dict[str, int]:
    """Replace the files of ``folder`` by those of the published ``atlas``: bytes by name.

    Raises AtlasError if the atlas cannot be read, and ValueError if it is too large; then ``folder`` stays as it is.
    """
    with staged(atlas, with_records=False) as stage:
        entries = stage.manifest.files_of(ATLAS)
        if (size := sum(entry.bytes for entry in entries)) > MOST_BYTES:
            raise ValueError(f"the atlas has {size:,} bytes, and the package has room for {MOST_BYTES:,}")
        shutil.rmtree(folder, ignore_errors=True)
        for entry in entries:
            (folder / entry.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(stage.sources[entry.path], folder / entry.path)
        counts = stage.manifest.counts
        origin = Origin(
            DEMO, None, stage.manifest.source, stage.manifest.generation, counts["models"], has_records=False
        )
        write_origin(AtlasFolder(folder), origin)
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()
    }
