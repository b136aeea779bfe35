"""``python -m studies.scale``: make atlases of several sizes, measure what they cost, and print it.

Results are the JSON of a run: ``machine``, rows of ``likeness``, and figures by size of ``atlases``. Tables of them go to the
terminal, and between the markers of docs/evidence/scale.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.bench.measure import this_machine
from scripts.child import PROJECT
from scripts.tables import Rows, aligned, fill, markdown, write_from_run

# Disk space for each model while it is measured.
_BYTES_A_MODEL = 120_000


def main() -> int:
    """Exit 1 if synthetic models are unlike real ones, 2 on wrong use."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.scale",
        description="Make synthetic atlases with the statistics of real ones, and measure what they cost.",
    )
    add = parser.add_argument
    add("--models", type=_counts, default="10000,100000", metavar="N,N",
        help="sizes of atlases (default: %(default)s; 0 for none)")  # fmt: skip
    add("--work", type=Path, metavar="DIR", help="where atlases are made (default: a temporary folder)")
    add("--keep", action="store_true", help="leave them there")
    add("--json", type=Path, metavar="FILE", help="also write the results to this file")
    add("--doc", type=Path, metavar="FILE", help="measure nothing: fill docs/evidence/scale.md from the JSON of a run")
    options = parser.parse_args()
    if options.doc:
        return write_from_run(parser, options.doc, write_document, DOCUMENT)
    with tempfile.TemporaryDirectory(prefix="vectors-in-the-wild-scale-") as temporary:
        work = (options.work or Path(temporary)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        needed = _BYTES_A_MODEL * max([0, *options.models])
        free = shutil.disk_usage(work).free
        if needed > free:
            parser.error(f"{work} has {free / 1e9:.0f} GB free, {needed / 1e9:.0f} are needed: give another --work")
        os.environ["XDG_CACHE_HOME"] = str(work / "cache")  # checks of large files are cached here, not at home
        os.environ["HF_HUB_OFFLINE"] = "1"
        return measure(options, work)


def measure(options: argparse.Namespace, work: Path) -> int:
    """Measure every size, print the tables, and write the results after each size."""
    from studies.scale.likeness import compare_labels, compare_vectors
    from studies.scale.measuring import measure_atlas

    results: dict[str, Any] = {
        "machine": this_machine(),
        "likeness": compare_labels() + compare_vectors(),
        "atlases": {},
    }
    for count in options.models:
        folder = work / f"atlases-{count}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            results["atlases"][str(count)] = measure_atlas(folder, count)
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


# ---- tables

DOCUMENT = PROJECT / "docs" / "evidence" / "scale.md"

# Name, title and unit of every figure, in the order of the table. A title with … belongs to the row above.
MEASURED = (
    ("listing_bytes", "listing", "bytes"),
    ("record_bytes", "records, without factors", "bytes"),
    ("database_bytes", "database", "bytes"),
    ("vectors_bytes", "vectors", "bytes"),
    ("deltas_rows", "rows of deltas", "count"),
    ("neighbours_rows", "rows of neighbours", "count"),
    ("listing_seconds", "writing the listing", "seconds"),
    ("listing_read_seconds", "reading the listing", "seconds"),
    ("records_a_second", "records written a second", "count"),
    *(
        row
        for step, title in (
            ("publish", "publish from nothing"),
            ("nothing", "publish with nothing new"),
            ("add", "publish with 10 models more"),
            ("replace", "publish with 10 at another commit"),
            ("withdraw", "publish with 10 withdrawn"),
        )
        for row in (
            (f"{step}_seconds", title, "seconds"),
            (f"{step}_peak", "… peak memory", "bytes"),
            (f"{step}_rows", "… rows that changed", "count"),
            (f"{step}_neighbours", "… of these in neighbours", "count"),
        )
    ),
    ("shell_stored_seconds", "`query similar ID`, whole process", "seconds"),
    ("shell_where_seconds", "`query similar ID --where`, whole process", "seconds"),
    ("shell_other_authors_seconds", "`query similar ID --other-authors`, whole process", "seconds"),
    ("shell_folder_seconds", "`query similar FOLDER` (read on the fly), whole process", "seconds"),
    *(
        row
        for question, title in (
            ("stored", "stored neighbours"),
            ("search", "search"),
            ("other_authors", "other authors only"),
            ("where", "with a condition"),
        )
        for row in (
            (f"{question}_p50", f"in process: {title}, median", "milliseconds"),
            (f"{question}_p99", "… 99th percentile", "milliseconds"),
            (f"{question}_peak", "… peak memory", "bytes"),
        )
    ),
    ("purity_models", "models that purity scores", "count"),
    ("purity_seconds", "`query purity`, whole process", "seconds"),
    ("purity_peak", "… peak memory", "bytes"),
)


def text(results: Mapping[str, Any]) -> str:
    """Tables for a terminal."""
    tables = {
        "Real and synthetic: labels, and vectors with the same labels": likeness_table(results),
        "What an atlas costs": measured_table(results),
    }
    return "\n\n".join(f"{title}\n{aligned(rows)}" for title, rows in tables.items() if len(rows) > 1)


def write_document(results: Mapping[str, Any], path: Path = DOCUMENT) -> None:
    """Fill every marked part of the document. Raises ValueError if it lacks a marker, or the run a figure."""
    fill(path, sections(results))


def sections(results: Mapping[str, Any]) -> dict[str, str]:
    """The marked parts: Markdown by name. Raises ValueError if the run measured no atlas."""
    if not results["atlases"]:
        raise ValueError("the run measured no atlas")
    machine = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    return {
        "machine": f"Measured by `python -m studies.scale`: {machine}.",
        "likeness": markdown(likeness_table(results)),
        "measured": markdown(measured_table(results)),
    }


def likeness_table(results: Mapping[str, Any]) -> Rows:
    """Real and synthetic figures, with the deviation of the draws and the bound."""
    body = [
        [
            row["meaning"],
            f"{row['low']:.3f}" if row["low"] == row["high"] else f"{row['low']:.3f}–{row['high']:.3f}",
            f"{row['synthetic']:.3f} ± {row['deviation']:.3f}",
            f"± {row['bound']:.2f}",
            "yes" if row["is_like"] else "NO",
        ]
        for row in results["likeness"]
    ]
    return [["", "real", "synthetic (deviation of draws)", "bound", "alike"], *body]


def measured_table(results: Mapping[str, Any]) -> Rows:
    """A column for each size; figures that were measured for none are left out."""
    columns = {f"{int(count):,} models": figures for count, figures in results["atlases"].items()}
    rows = [
        [title, *(shown(figures[name], unit) if name in figures else "" for figures in columns.values())]
        for name, title, unit in MEASURED
    ]
    return [["", *columns], *(row for row in rows if any(row[1:]))]


def shown(value: float | str, unit: str) -> str:
    """A value with its unit, for people."""
    if isinstance(value, str):
        return value
    if unit == "seconds":
        return f"{value:.2g} s" if 0 < value < 0.1 else f"{value:.2f} s" if value < 10 else f"{value:,.0f} s"
    if unit == "milliseconds":
        return f"{value:.3g} ms" if value < 999.5 else f"{value:,.0f} ms"
    if unit == "count":
        return f"{round(value):,}"
    if unit == "share":
        return f"{value:.3f}"
    for prefix in ("B", "KB", "MB", "GB", "TB", "PB"):
        if abs(value) < 999.5 or prefix == "PB":  # three digits of what is more would be 1,000
            break
        value /= 1000
    return f"{value:,.0f} {prefix}" if abs(value) >= 999.5 else f"{value:.3g} {prefix}"


if __name__ == "__main__":
    sys.exit(main())
