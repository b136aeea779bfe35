"""Copies of the base, and uploads that repeat another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from query.report.markup import Column
from query.report.section import Section, Source, Writer
from query.wording import count, counted, day, literal, sql

ANCHOR, TITLE = "duplicates", "Copies and duplicates"

_MOST = 20


def write(source: Source) -> Section:
    """Both tables, or that there is none."""
    writer = Writer(ANCHOR, TITLE)
    copies = source.rows(
        "SELECT model, author, created, downloads FROM models WHERE base = ? AND is_copy "
        "ORDER BY downloads DESC NULLS LAST, model"
    )
    repeats = source.rows(
        "SELECT model, first_upload, author <> first_author AS by_another, created FROM duplicates WHERE base = ? "
        "ORDER BY first_upload, created, model"
    )
    writer.key_number(count(len(copies)), f"{'copy' if len(copies) == 1 else 'copies'} of the base under another name")
    writer.key_number(count(len(repeats)), f"{'duplicate' if len(repeats) == 1 else 'duplicates'} of an earlier upload")
    writer.paragraph(
        "A copy has exactly the weights of the base (apart from rounding), whatever its card says. A duplicate has the "
        "same files as an earlier upload, or a change that is the same in size and direction to within a thousandth."
    )
    if copies:
        _write_copies(source, writer, copies)
    if repeats:
        _write_repeats(source, writer, repeats)
    if not copies and not repeats:
        writer.paragraph("There is neither a copy nor a duplicate among the indexed models.")
    return writer.done()


def _write_copies(source: Source, writer: Writer, copies: Sequence[Mapping[str, Any]]) -> None:
    writer.table(
        f"{counted(len(copies), 'copy', 'copies')} of the base",
        (
            Column("model", "name"),
            Column("author", "name"),
            Column("created", "fixed"),
            Column("downloads", "number"),
        ),
        [(source.model(row["model"]), row["author"], day(row["created"]), count(row["downloads"])) for row in copies],
        most=_MOST,
        everything=sql(f"SELECT model FROM models WHERE is_copy AND base = {literal(source.base)}"),
    )


def _write_repeats(source: Source, writer: Writer, repeats: Sequence[Mapping[str, Any]]) -> None:
    writer.table(
        counted(len(repeats), "duplicate"),
        (
            Column("model", "name"), Column("has the weights of", "name"),
            Column("uploaded by", "fixed"), Column("created", "fixed"),
        ),
        [
            (
                source.model(row["model"]), source.model(row["first_upload"]),
                "another author" if row["by_another"] else "the same author", day(row["created"]),
            )
            for row in repeats
        ],
        most=_MOST,
        everything=sql(f"FROM duplicates WHERE base = {literal(source.base)}"),
    )  # fmt: skip
