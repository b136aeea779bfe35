"""The page of a scan: one file of HTML, which fetches nothing and names no folder above the places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment

from indexer.console.output import cell_text
from indexer.console.page import page_environment, shorten
from indexer.quantities import size_in_words
from indexer.scans.report import UNKNOWN, Scan

_MOST_ROWS = 1000  # of a table
# What the tables are about, for readers who did not run the scan.
_ABOUT = {
    "kinds": "What is there.",
    "bases": "The models that others were made from, and how that is known.",
    "unrelated": "Models whose weights contradict what their files say.",
    "not checked: base not here": "Models that name a base of which the weights were not at hand.",
    "broken": "Files that are damaged, cut short, hold numbers that are not finite, or cannot be reached.",
    "untrained": "Models that are as if they had never been trained.",
    "runs": "Checkpoints that belong together, each run with its steps.",
    "duplicates": "Models that repeat another, which is kept. Distances are those of the changes, over the larger one.",
    "licences": "As cards and the metadata of files state them.",
    "left out": "What is no model that can be read.",
}
_NUMBERS = ("models", "bytes", "earlier_bytes", "count", "checkpoints", "first_step", "last_step", "distance", "step",
            "probability")  # fmt: skip
_COLUMNS = ("model", "kind", "bytes", "base", "probability", "verdict", "step", "licence")


@cache
def _environment() -> Environment:
    return page_environment(__package__ or "")


def page(scan: Scan) -> str:
    """The whole page. All text of files is escaped."""
    tables = scan.tables()
    models = [
        {name: size_in_words(row[name]) if name == "bytes" else row[name] for name in _COLUMNS}
        for row in scan.to_rows()
    ]  # fmt: skip
    names = {
        "models": f"{len(scan.models):,}",
        "bytes": size_in_words(scan.bytes),
        "bases": f"{len([row for row in scan.bases if row['base'] != UNKNOWN]):,}",
        "unrelated": f"{len(scan.unrelated):,}",
        "broken": f"{len(scan.broken):,}",
        "untrained": f"{len(scan.untrained):,}",
        "there twice": f"{len(scan.exact):,}",
    }
    return (
        _environment()
        .get_template("scan.html")
        .render(
            scan=scan,
            numbers=names,
            tables=[
                (title, _ABOUT.get(title, ""), _table(rows)) for title, rows in tables.items()
            ],
            models=_table(models) if models else None,
        )
    )  # fmt: skip


def _table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A table for the template (``table.html``)."""
    columns = [(name.replace("_", " "), "number" if name in _NUMBERS else "name") for name in rows[0]]
    cells = [
        [(style, shorten(cell_text(value)) or "–") for (_, style), value in zip(columns, row.values(), strict=True)]
        for row in rows[:_MOST_ROWS]
    ]
    return {
        "caption": "",  # the heading of the section says it
        "columns": columns,
        "rows": cells,
        "more": len(rows) - len(cells),
        "everything": "index scan PLACE --json",
    }
