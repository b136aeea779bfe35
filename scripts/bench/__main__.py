"""``python -m scripts.bench [ROW…] [--json FILE] [--work DIR]``: measure, print, and say whether promises are kept."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

# Before any library is loaded: some read these once.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TRANSFORMERS_VERBOSITY": "error"}

# Each row: the module and the function that measure it, ``(work) -> list[Table]``, and what it shows.
ROWS = {
    "reading": ("scripts.bench.reading", "measure", "bytes that a checkpoint costs over HTTP"),
    "memory": ("scripts.bench.memory", "measure", "memory for a checkpoint of 500 MB and for one of 5 GB"),
    "vectors": ("scripts.bench.vectors", "measure", "checkpoint on disk to singular triplets: time and accuracy"),
    "spectra": ("scripts.bench.spectra", "measure", "whole spectra: time and ranks"),
    "profiles": ("scripts.bench.profiles", "measure", "depth profiles at the size of roberta-base"),
    "pipeline": ("scripts.bench.pipeline", "measure", "reading and computing at once, against each alone"),
    "start": ("scripts.bench.asking", "measure_start", "a question from the shell"),
    "search": ("scripts.bench.asking", "measure_search", "a question in process, against bare FAISS"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows asked for (all of them by default); exit 1 if one promise is not kept or one row not measured."""
    listing = "; ".join(f"{name}: {what}" for name, (_, _, what) in ROWS.items())
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=f"Rows. {listing}.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all if none is named")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables there as JSON, too")
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        default=Path(tempfile.gettempdir()) / "vectors-in-the-wild-bench",
        help="where large inputs are made once and kept, 6 GB (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    unknown = [row for row in options.rows if row not in ROWS]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)} (there are {', '.join(ROWS)})")
    return run(options.rows or list(ROWS), options.work, options.json)


def run(names: Sequence[str], work: Path, json_file: Path | None = None) -> int:
    """Measure and print row after row; the JSON is written after each, so that a run cut short leaves what it had."""
    from scripts.bench.machine import this_machine
    from scripts.bench.measure import NotMeasuredError, say

    machine = this_machine()
    print(machine.text(), end="\n\n", flush=True)
    rows: dict[str, dict[str, Any]] = {}
    began = time.monotonic()
    for name in names:
        started = time.monotonic()
        try:
            tables = _measurement(name)(work)
        except NotMeasuredError as error:
            rows[name] = {"not_measured": str(error)}
            print(f"{name}: not measured: {error}", end="\n\n", flush=True)
        except Exception as error:
            # Whatever goes wrong in a row, the others are still worth measuring.
            rows[name] = {"failed": _in_a_line(error)}
            print(f"{name}: failed: {rows[name]['failed']}", end="\n\n", flush=True)
        else:
            rows[name] = {"tables": [table.as_json() for table in tables]}
            print("\n\n".join(table.text() for table in tables), end="\n\n", flush=True)
        rows[name]["seconds"] = round(time.monotonic() - started, 1)
        say(f"{name}: {rows[name]['seconds']:.0f} s of {time.monotonic() - began:.0f} s")
        if json_file:
            found = {"machine": machine.as_json(), "seconds": round(time.monotonic() - began, 1), "rows": rows}
            json_file.write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
    return 0 if all(map(_is_kept, rows.values())) else 1


def _measurement(name: str) -> Callable[[Path], list[Any]]:
    module, function, _ = ROWS[name]
    found: Callable[[Path], list[Any]] = getattr(import_module(module), function)
    return found


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _is_kept(row: dict[str, Any]) -> bool:
    return "tables" in row and all(value for table in row["tables"] for value in table["promises"].values())


if __name__ == "__main__":
    sys.exit(main())
