"""Every indexed model, at the end of the page: what the sections above speak of, to look up."""

from __future__ import annotations

from typing import Any

from query.report.markup import Column, enumerated, told
from query.report.section import Section, Source, Writer
from query.wording import count, day, literal, sql

ANCHOR, TITLE = "models", "All models"

_MOST = 2000  # rows: beyond, a browser scrolls badly
_KINDS = {"is_copy": "copy of the base", "is_unrelated": "unrelated to the base", "is_partly_frozen": "partly frozen"}


def write(source: Source) -> Section:
    """One table, by downloads."""
    writer = Writer(ANCHOR, TITLE)
    rows = source.rows(
        "SELECT model, relation, datasets, licence, downloads, created, is_copy, is_unrelated, is_partly_frozen, "
        "duplicate_of FROM models WHERE base = ? ORDER BY downloads DESC NULLS LAST, model"
    )
    if not rows:
        writer.lack("No model is indexed: there is none to list.")
        return writer.done()
    writer.table(
        "Every indexed model, the most downloaded first",
        (
            Column("model", "name"),
            Column("relation", "fixed"),
            Column("datasets", "name"),
            Column("licence", "name"),
            Column("downloads", "number"),
            Column("created", "fixed"),
            Column("remarks", "prose"),
        ),
        [
            (
                source.model(row["model"]),
                row["relation"],
                enumerated(row["datasets"]),
                told(row["licence"] or "", 40),
                count(row["downloads"]),
                day(row["created"]),
                _remarks(row),
            )
            for row in rows
        ],
        most=_MOST,
        everything=sql(f"FROM models WHERE base = {literal(source.base)}"),
    )
    return writer.done()


def _remarks(row: dict[str, Any]) -> str:
    remarks = [words for flag, words in _KINDS.items() if row[flag]]
    return ", ".join(remarks + (["duplicate"] if row["duplicate_of"] is not None else []))
