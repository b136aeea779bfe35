"""Single bits of an atlas's files turned over, as a failing disk does it: how many of them `index verify` finds.

As a command, over an atlas that is copied first: python -m tests.flips ATLAS [FLIPS]
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.upkeep.verification import verify


def files_by_kind(atlas: AtlasFolder) -> dict[str, list[Path]]:
    """Every file of an atlas, but for the lock, by what it is."""
    root = atlas.root
    kinds = {
        "database": [atlas.database],
        "listing": sorted(root.glob("listing/*.sqlite")),
        "base": sorted(root.glob("bases/*.safetensors")),
        "record": sorted(root.glob("records/*/*.safetensors")),
        "outcome": sorted(root.glob("records/*/*.json")),
        "profile": sorted(root.glob("profiles/*/*.safetensors")),
        "faiss": sorted(root.glob("*.faiss")),
        "checksums": sorted(root.glob("checksums.json")),
    }
    named = {path for paths in kinds.values() for path in paths} | {root / "lock"}
    named |= set(root.glob("profiles/*/*.run.json"))  # how long a run took: no answer rests on it
    others = [path for path in root.rglob("*") if path.is_file() and path not in named]
    assert others == [], others
    return {kind: paths for kind, paths in kinds.items() if paths}


def flip(path: Path, position: int, bit: int) -> None:
    """Turn one bit over; size and times stay."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(position)
        (value,) = file.read(1)
        file.seek(position)
        file.write(bytes([value ^ (1 << bit)]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def flipped(paths: list[Path], count: int, seed: str) -> Iterator[tuple[Path, int, int]]:
    """One bit at a time, anywhere in the files; each is as before again when the next comes."""
    chance = random.Random(seed)
    for _ in range(count):
        path = chance.choice(paths)
        position, bit = chance.randrange(path.stat().st_size), chance.randrange(8)
        flip(path, position, bit)
        try:
            yield path, position, bit
        finally:
            flip(path, position, bit)


def what_verify_says(atlas: AtlasFolder) -> list[str] | None:
    """What it tells of, None where it ends with anything but a sentence."""
    try:
        return [f"{one.kind} {one.what}: {one.problem}" for one in verify(atlas)]
    except AtlasError as error:
        return [str(error)]
    except Exception:
        return None


def main() -> None:
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(sys.argv[1], Path(folder) / "atlas")
        atlas = AtlasFolder(Path(folder) / "atlas")
        assert what_verify_says(atlas) == []
        for kind, paths in files_by_kind(atlas).items():
            answers = [what_verify_says(atlas) for _ in flipped(paths, count, kind)]
            print(f"{kind}: {sum(bool(answer) for answer in answers)} of {count}", flush=True)


if __name__ == "__main__":
    main()
