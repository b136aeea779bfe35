"""``python -m scripts.bench [ROW…] [--json FILE] [--work DIR]``: measure, print, and say whether promises are kept."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path

# Before any numerical library is loaded: some read these once.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

# Each row: the module and the function that measure it, ``(work) -> list[Table]``, and what it shows.
ROWS = {
    "reading": ("scripts.bench.reading", "measure", "bytes and memory that a checkpoint costs over HTTP"),
    "vectors": ("scripts.bench.vectors", "measure", "checkpoint on disk to singular triplets: time and accuracy"),
    "spectra": ("scripts.bench.spectra", "measure", "whole spectra: time and ranks"),
    "pipeline": ("scripts.bench.pipeline", "measure", "reading and computing at once, against each alone"),
    "start": ("scripts.bench.asking", "measure_start", "a question from the shell"),
    "search": ("scripts.bench.asking", "measure_search", "a question in process, against bare FAISS"),
}


def main() -> int:
    """Measure the rows asked for (all of them by default); exit 1 if a promise is not kept."""
    listing = "; ".join(f"{name}: {what}" for name, (_, _, what) in ROWS.items())
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=f"Rows. {listing}.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all if none is named")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables there as JSON, too")
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        default=Path(tempfile.gettempdir()) / "vectors-in-the-wild-bench",
        help="where large inputs are made once and kept (default: %(default)s)",
    )
    options = parser.parse_args()
    unknown = [row for row in options.rows if row not in ROWS]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)} (there are {', '.join(ROWS)})")
    results = {}
    for row in options.rows or ROWS:
        module, function, _ = ROWS[row]
        tables = getattr(import_module(module), function)(options.work)
        results[row] = [table.as_json() for table in tables]
        print("\n\n".join(table.text() for table in tables), end="\n\n", flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False))
    kept = all(value for tables in results.values() for table in tables for value in table["promises"].values())
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
