"""``python -m scripts.scale``: make atlases of several sizes, measure what they cost, and print it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scripts.tables import write_from_run

# Disk space for each model while it is measured, and for each vector: segments are written again when they are merged.
_BYTES_A_MODEL, _BYTES_A_VECTOR = 120_000, 40_000


def main() -> int:
    """Exit 1 if synthetic models are unlike real ones, 2 on wrong use."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.scale",
        description="Make synthetic atlases with the statistics of real ones, and measure what they cost.",
    )
    add = parser.add_argument
    add("--models", type=_counts, default="10000,100000", metavar="N,N",
        help="sizes of atlases (default: %(default)s; 0 for none)")  # fmt: skip
    add("--vectors", type=_counts, default="1000000", metavar="N,N",
        help="sizes with vectors only (default: %(default)s; 0 for none)")  # fmt: skip
    add("--work", type=Path, metavar="DIR", help="where atlases are made (default: a temporary folder)")
    add("--keep", action="store_true", help="leave them there")
    add("--json", type=Path, metavar="FILE", help="also write the results to this file")
    add("--doc", type=Path, metavar="FILE", help="measure nothing: fill docs/scale.md from the JSON of a run")
    options = parser.parse_args()
    if options.doc:
        from scripts.scale.report import DOCUMENT, write_document

        return write_from_run(parser, options.doc, write_document, DOCUMENT)
    with tempfile.TemporaryDirectory(prefix="vectors-in-the-wild-scale-") as temporary:
        work = (options.work or Path(temporary)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        needed = max(
            [0, *(_BYTES_A_MODEL * n for n in options.models), *(_BYTES_A_VECTOR * n for n in options.vectors)]
        )
        free = shutil.disk_usage(work).free
        if needed > free:
            parser.error(f"{work} has {free / 1e9:.0f} GB free, {needed / 1e9:.0f} are needed: give another --work")
        os.environ["XDG_CACHE_HOME"] = str(work / "cache")  # checks of large files are cached here, not at home
        os.environ["HF_HUB_OFFLINE"] = "1"
        return measure(options, work)


def measure(options: argparse.Namespace, work: Path) -> int:
    """Measure every size, print the tables, and write the results after each size."""
    from indexer.machine import processors
    from scripts.scale.likeness import compare_labels, compare_vectors
    from scripts.scale.measuring import measure_atlas, measure_vectors
    from scripts.scale.report import text

    results: dict[str, Any] = {
        "machine": {
            "when": datetime.now(UTC).isoformat(timespec="minutes"),
            "processors": str(processors()),
            "load": f"{os.getloadavg()[0]:.1f}",
            "python": platform.python_version(),
            **{package: version(package) for package in ("faiss-cpu", "duckdb", "numpy")},
        },
        "likeness": compare_labels() + compare_vectors(),
        "atlases": {},
        "vectors": {},
    }
    atlases = [("atlases", measure_atlas, count) for count in options.models]
    vectors = [("vectors", measure_vectors, count) for count in options.vectors]
    for name, way, count in [*atlases, *vectors]:
        folder = work / f"{name}-{count}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            results[name][str(count)] = way(folder, count, lambda line: print(line, file=sys.stderr, flush=True))
        finally:
            if not options.keep:
                shutil.rmtree(folder, ignore_errors=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(text(results))
    unlike = [row["meaning"] for row in results["likeness"] if not row["is_like"]]
    if unlike:
        print(f"\nUnlike real ones: {', '.join(unlike)}", file=sys.stderr)
    return 1 if unlike else 0


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers like 10000,100000") from None
    if any(count < 0 or 0 < count < 200 for count in counts):
        raise argparse.ArgumentTypeError("the smallest atlas has 200 models")
    return [count for count in counts if count]


if __name__ == "__main__":
    sys.exit(main())
