"""The figures of a measurement: what there is to measure, in which unit, and those that were measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Value = int | float | str


def _bytes(value: Value) -> str:
    number = float(value)
    *smaller, unit = "B", "KB", "MB", "GB", "TB", "PB"
    for one in smaller:
        if abs(number) < 999.5:  # what three digits show as 1,000 is one of the next unit
            unit = one
            break
        number /= 1000
    return f"{number:,.0f} {unit}" if abs(number) >= 999.5 else f"{number:.3g} {unit}"


def _seconds(value: Value) -> str:
    number = float(value)
    return f"{number:.2f} s" if number < 10 else f"{number:,.0f} s"


def _milliseconds(value: Value) -> str:
    number = float(value)
    return f"{number:.3g} ms" if number < 999.5 else f"{number:,.0f} ms"


UNITS: dict[str, Callable[[Value], str]] = {
    "bytes": _bytes,
    "seconds": _seconds,
    "milliseconds": _milliseconds,
    "count": lambda value: f"{round(float(value)):,}",
    "share": lambda value: f"{float(value):.3f}",
    "name": str,
}


@dataclass(frozen=True)
class Measured:
    """One thing to measure."""

    what: str
    unit: str


# In the order of the table.
MEASURED: dict[str, Measured] = {
    "listing_bytes": Measured("listing", "bytes"),
    "record_bytes": Measured("records, without factors", "bytes"),
    "database_bytes": Measured("database", "bytes"),
    "vectors_bytes": Measured("vectors", "bytes"),
    "compressed_bytes": Measured("compressed index", "bytes"),
    "deltas_rows": Measured("rows of deltas", "count"),
    "neighbours_rows": Measured("rows of neighbours", "count"),
    "index_type": Measured("index", "name"),
    "recall_at_publish": Measured("recall@10, stored at publish", "share"),
    "recall_at_10": Measured("recall@10 of `similar`, against brute force", "share"),
    "listing_seconds": Measured("writing the listing", "seconds"),
    "listing_read_seconds": Measured("reading the listing", "seconds"),
    "records_a_second": Measured("records written a second", "count"),
    "write_seconds": Measured("writing vectors and index", "seconds"),
    "write_peak": Measured("… peak memory", "bytes"),
    "publish_seconds": Measured("publish from nothing", "seconds"),
    "publish_peak": Measured("… peak memory", "bytes"),
    "nothing_seconds": Measured("publish with nothing new", "seconds"),
    "nothing_peak": Measured("… peak memory", "bytes"),
    "nothing_rows": Measured("… rows that changed", "count"),
    "nothing_neighbours": Measured("… of these in neighbours", "count"),
    "add_seconds": Measured("publish with 10 models more", "seconds"),
    "add_peak": Measured("… peak memory", "bytes"),
    "add_rows": Measured("… rows that changed", "count"),
    "add_neighbours": Measured("… of these in neighbours", "count"),
    "replace_seconds": Measured("publish with 10 at another commit", "seconds"),
    "replace_peak": Measured("… peak memory", "bytes"),
    "replace_rows": Measured("… rows that changed", "count"),
    "replace_neighbours": Measured("… of these in neighbours", "count"),
    "withdraw_seconds": Measured("publish with 10 withdrawn", "seconds"),
    "withdraw_peak": Measured("… peak memory", "bytes"),
    "withdraw_rows": Measured("… rows that changed", "count"),
    "withdraw_neighbours": Measured("… of these in neighbours", "count"),
    "shell_stored_seconds": Measured("`query similar ID`, whole process", "seconds"),
    "shell_where_seconds": Measured("`query similar ID --where`, whole process", "seconds"),
    "shell_other_authors_seconds": Measured("`query similar ID --other-authors`, whole process", "seconds"),
    "shell_folder_seconds": Measured("`query similar FOLDER` (read on the fly), whole process", "seconds"),
    "stored_p50": Measured("in process: stored neighbours, median", "milliseconds"),
    "stored_p99": Measured("… 99th percentile", "milliseconds"),
    "stored_peak": Measured("… peak memory", "bytes"),
    "search_p50": Measured("in process: search, median", "milliseconds"),
    "search_p99": Measured("… 99th percentile", "milliseconds"),
    "search_peak": Measured("… peak memory", "bytes"),
    "other_authors_p50": Measured("in process: other authors only, median", "milliseconds"),
    "other_authors_p99": Measured("… 99th percentile", "milliseconds"),
    "other_authors_peak": Measured("… peak memory", "bytes"),
    "where_p50": Measured("in process: with a condition, median", "milliseconds"),
    "where_p99": Measured("… 99th percentile", "milliseconds"),
    "where_peak": Measured("… peak memory", "bytes"),
    "filtered_p50": Measured("in process: one model in a hundred allowed, median", "milliseconds"),
    "filtered_p99": Measured("… 99th percentile", "milliseconds"),
    "purity_models": Measured("models that purity scores", "count"),
    "purity_seconds": Measured("`query purity`, whole process", "seconds"),
    "purity_peak": Measured("… peak memory", "bytes"),
}


@dataclass
class Figures:
    """What was measured of one atlas, by the keys of MEASURED."""

    values: dict[str, Value] = field(default_factory=dict)

    def put(self, name: str, value: Value) -> None:
        """Keep a figure. Raises KeyError for one that is not in MEASURED."""
        if name not in MEASURED:
            raise KeyError(name)
        self.values[name] = value

    def shown(self, name: str) -> str:
        """For people; empty where it was not measured."""
        return UNITS[MEASURED[name].unit](self.values[name]) if name in self.values else ""


def table(columns: Mapping[str, Figures]) -> list[list[str]]:
    """Head and rows of text; a figure that no column has is left out."""
    names = [name for name in MEASURED if any(name in figures.values for figures in columns.values())]
    parents = _with_parents(names)
    return [["", *columns]] + [
        [MEASURED[name].what, *(figures.shown(name) for figures in columns.values())] for name in parents
    ]


def _with_parents(names: Sequence[str]) -> list[str]:
    """A row that begins with … stands under the row it belongs to, or not at all."""
    kept: list[str] = []
    everything = list(MEASURED)
    for name in names:
        place = everything.index(name)
        while MEASURED[everything[place]].what.startswith("…"):
            place -= 1
        if everything[place] in names:
            kept.append(name)
    return kept


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table for a terminal or a pipe."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The same for a document."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
