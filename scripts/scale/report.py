"""The results of a run as tables: for a terminal, and between the markers of docs/scale.md.

Results are the JSON of a run: ``machine``, rows of ``likeness``, and figures by size of ``atlases`` and of ``vectors``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.child import PROJECT
from scripts.scale.costs import COSTS, LARGE, SIZES, amounts, constants_of, constants_table, limits, shown
from scripts.tables import Rows, aligned, fill, markdown

DOCUMENT = PROJECT / "docs" / "scale.md"

# Name, title and unit of every figure, in the order of the table. A title with … belongs to the row above.
MEASURED = (
    ("listing_bytes", "listing", "bytes"),
    ("record_bytes", "records, without factors", "bytes"),
    ("database_bytes", "database", "bytes"),
    ("vectors_bytes", "vectors", "bytes"),
    ("compressed_bytes", "compressed index", "bytes"),
    ("deltas_rows", "rows of deltas", "count"),
    ("neighbours_rows", "rows of neighbours", "count"),
    ("index_type", "index", "name"),
    ("recall_at_publish", "recall@10, stored at publish", "share"),
    ("recall_at_10", "recall@10 of `similar`, against brute force", "share"),
    ("listing_seconds", "writing the listing", "seconds"),
    ("listing_read_seconds", "reading the listing", "seconds"),
    ("records_a_second", "records written a second", "count"),
    ("write_seconds", "writing vectors and index", "seconds"),
    ("write_peak", "… peak memory", "bytes"),
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
    """The marked parts: Markdown by name. Raises ValueError if the run measured no atlas, or lacks a figure."""
    try:
        constants = constants_of(results["atlases"], results["vectors"])
    except KeyError as missing:
        raise ValueError(f"the run did not measure {missing.args[0]}") from missing
    machine = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    reached = [[what, f"{round(models, -3):,.0f}", advice] for what, models, advice in limits(constants)]
    return {
        "machine": f"Measured by `python -m scripts.scale`: {machine}.",
        "likeness": markdown(likeness_table(results)),
        "measured": markdown(measured_table(results)),
        "constants": markdown(constants_table(constants)),
        "costs": markdown(_costs_table(COSTS, constants)),
        "large": markdown(_costs_table(LARGE, constants)),
        "limits": markdown([["what", "at about … models", "what to do"], *reached]),
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
    columns = {
        f"{int(count):,} {kind}": figures
        for kind, name in (("models", "atlases"), ("vectors", "vectors"))
        for count, figures in results[name].items()
    }
    rows = [
        [title, *(shown(figures[name], unit) if name in figures else "" for figures in columns.values())]
        for name, title, unit in MEASURED
    ]
    return [["", *columns], *(row for row in rows if any(row[1:]))]


def _costs_table(rows: Sequence[tuple[str, str, str]], constants: Mapping[str, float | None]) -> Rows:
    found = [amounts(rows, constants, size) for size in SIZES]
    body = [[what, f"`{formula}`", *(shown(one[what], unit) for one in found)] for what, formula, unit in rows]
    return [["", "formula", *(f"{size:,}" for size in SIZES)], *body]
