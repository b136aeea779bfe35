"""``python -m scripts.bench [ROW…] [--json FILE] [--work DIR]``: measure, print, and say whether promises are kept."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

# Before any library is loaded: some read these once.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TRANSFORMERS_VERBOSITY": "error"}

# Each row: the module of scripts.bench and the function that measure it, ``(work) -> list[Table]``, and what it shows.
ROWS = {
    "reading": ("reading", "measure_bytes", "bytes that a checkpoint costs over HTTP"),
    "sample": ("reading", "measure_sample", "bytes and seconds of a model, by what is read of it"),
    "vectors": ("vectors", "measure_vectors", "checkpoint on disk to singular triplets: time and accuracy"),
    "spectra": ("vectors", "measure_spectra", "whole spectra: time and ranks"),
    "tree": ("trees", "measure_tree", "a folder of 1,000 LoRAs indexed"),
    "unchanged": ("trees", "measure_unchanged", "a folder of 10,000 adapters in which nothing has changed"),
    "scan": ("trees", "measure_scan", "a folder of 1,000 LoRAs scanned without an atlas"),
    "start": ("asking", "measure_start", "a question from the shell"),
    "search": ("asking", "measure_search", "a question in process, against bare FAISS"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the given rows (default: all); exit 1 if a promise is not kept or a row not measured."""
    listing = "; ".join(f"{name}: {what}" for name, (_, _, what) in ROWS.items())
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=f"Rows. {listing}.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)} (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the tables to this file")
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        default=Path(tempfile.gettempdir()) / "vectors-in-the-wild-bench",
        help="where large inputs are made once and kept, 10 GB (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    unknown = [row for row in options.rows if row not in ROWS]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)} (there are {', '.join(ROWS)})")

    from scripts.bench.measure import NotMeasuredError, say, this_machine

    machine = this_machine()
    print(", ".join(f"{name} {value}" for name, value in machine.items()), end="\n\n", flush=True)
    rows: dict[str, dict[str, Any]] = {}
    began = time.monotonic()
    for name in options.rows or ROWS:
        started = time.monotonic()
        module, function, _ = ROWS[name]
        try:
            tables = getattr(import_module(f"scripts.bench.{module}"), function)(options.work)
        except NotMeasuredError as error:
            rows[name] = {"not_measured": str(error)}
            print(f"{name}: not measured: {error}", end="\n\n", flush=True)
        except Exception as error:  # the other rows are still measured
            rows[name] = {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
            print(f"{name}: failed: {rows[name]['failed']}", end="\n\n", flush=True)
        else:
            rows[name] = {"tables": [table.as_json() for table in tables]}
            print("\n\n".join(table.text() for table in tables), end="\n\n", flush=True)
        rows[name]["seconds"] = round(time.monotonic() - started, 1)
        say(f"{name}: {rows[name]['seconds']:.0f} s of {time.monotonic() - began:.0f} s")
        if options.json:  # after each row, so that an interrupted run leaves its results
            found = {"machine": machine, "seconds": round(time.monotonic() - began, 1), "rows": rows}
            options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
    kept = (
        "tables" in row and all(all(table["promises"].values()) for table in row["tables"]) for row in rows.values()
    )
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
