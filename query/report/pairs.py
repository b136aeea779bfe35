"""The most similar pairs of models by different authors."""

from __future__ import annotations

from typing import Any

from query.report.markup import Column, enumerated
from query.report.section import Section, Source, Writer
from query.wording import decimal, literal, sql

ANCHOR, TITLE = "pairs", "Most similar pairs across authors"

_MOST = 20


def statement(base: str) -> str:
    """The pairs of ``base`` (an expression), the most similar first.

    Repeats of an upload are left out: they would fill the table with what the section on duplicates says already.
    """
    return (
        "SELECT pair.model, pair.neighbour, pair.similarity, pair.datasets, pair.neighbour_datasets "
        "FROM similar_pairs AS pair "
        "JOIN models AS one ON one.base = pair.base AND one.model = pair.model "
        "JOIN models AS other ON other.base = pair.base AND other.model = pair.neighbour "
        f"WHERE pair.base = {base} AND pair.other_author AND NOT pair.is_repeat "
        "AND NOT one.is_unrelated AND NOT other.is_unrelated "
        "ORDER BY pair.similarity DESC, pair.model, pair.neighbour"
    )


def write(source: Source) -> Section:
    """The pairs, and what they have in common."""
    writer = Writer(ANCHOR, TITLE)
    rows = source.rows(f"SELECT *, count(*) OVER () AS pairs FROM ({statement('?')}) LIMIT {_MOST}")
    if not rows:
        writer.lack("There are no two comparable models by different authors.")
        return writer.done()
    writer.paragraph(
        "Two people, two uploads, nearly the same change: usually the same data, sometimes a model tuned further from "
        "the other's, sometimes one that was taken over with small changes. Duplicates and unrelated models are left "
        "out; each pair is told once."
    )
    columns = (
        Column("model", "name"), Column("and", "name"), Column("similarity", "number"),
        Column("datasets that they name", "name"),
    )  # fmt: skip
    writer.table("The most similar pairs by different authors", columns, [_pair(source, row) for row in rows])
    writer.rest(rows[0]["pairs"] - len(rows), sql(statement(literal(source.base))))
    return writer.done()


def _pair(source: Source, row: dict[str, Any]) -> tuple[Any, ...]:
    return (source.model(row["model"]), source.model(row["neighbour"]), decimal(row["similarity"], 3), _common(row))


def _common(row: dict[str, Any]) -> str:
    """What both name; else what each names."""
    mine, theirs = row["datasets"], row["neighbour_datasets"]
    both = [name for name in mine if name in theirs]
    if both:
        return f"both {enumerated(both)}"
    if not mine and not theirs:
        return "neither names any"
    return f"{enumerated(mine) or 'none named'}; {enumerated(theirs) or 'none named'}"
