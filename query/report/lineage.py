"""Who was made from whom, as far as the atlas keeps it: kinds of steps, cards that the weights contradict, licences."""

from __future__ import annotations

from query.report.markup import Column, code
from query.report.section import Section, Source, Writer
from query.wording import count, literal, sql

ANCHOR, TITLE = "lineage", "Lineage"

_MOST = 20


def write(source: Source) -> Section:
    """Three tables, or how to ask for lineage."""
    writer = Writer(ANCHOR, TITLE)
    kinds = source.rows(
        "SELECT kind, count(DISTINCT model_id) AS models, count(DISTINCT model_id) FILTER (card = 'confirmed') AS "
        "confirmed, count(DISTINCT model_id) FILTER (card = 'contradicted') AS contradicted "
        "FROM lineage JOIN fine_tunes USING (model_id) WHERE base = ? GROUP BY kind ORDER BY models DESC, kind"
    )
    if not kinds:
        writer.paragraph("This atlas keeps no lineage; to ask for it: ", code(source.command("lineage", "--all")), ".")
        return writer.done()
    writer.paragraph(
        "Which model each was made from, told by a few megabytes of its weights and set beside what its card names."
    )
    writer.table(
        "Steps by kind",
        (
            Column("kind", "name"),
            Column("models", "number"),
            Column("card confirmed", "number"),
            Column("card contradicted", "number"),
        ),
        [(row["kind"], *(count(row[name]) for name in ("models", "confirmed", "contradicted"))) for row in kinds],
        most=_MOST,
        everything=sql("FROM lineage"),
    )
    _write_contradicted(source, writer)
    _write_licences(source, writer)
    return writer.done()


def _write_contradicted(source: Source, writer: Writer) -> None:
    rows = source.rows(
        "SELECT child.model, coalesce(parent.model, child.base) AS parent, kind FROM lineage "
        "JOIN fine_tunes AS child USING (model_id) LEFT JOIN fine_tunes AS parent ON parent.model_id = parent_id "
        "WHERE child.base = ? AND card = 'contradicted' ORDER BY child.model, parent"
    )
    if rows:
        writer.table(
            "Cards that the weights contradict",
            (Column("model", "name"), Column("made from", "name"), Column("kind", "fixed")),
            [(source.model(row["model"]), source.model(row["parent"]), row["kind"]) for row in rows],
            most=_MOST,
            everything=sql("FROM lineage WHERE card = 'contradicted'"),
        )


def _write_licences(source: Source, writer: Writer) -> None:
    rows = source.rows(
        "SELECT model, licence, parent, parent_licence FROM licence_conflicts WHERE base = ? "
        "ORDER BY downloads DESC NULLS LAST, model, parent"
    )
    if rows:
        writer.table(
            "Licences that are not the parent's",
            (
                Column("model", "name"),
                Column("licence", "fixed"),
                Column("made from", "name"),
                Column("its licence", "fixed"),
            ),
            [
                (
                    source.model(row["model"]),
                    row["licence"] or "none",
                    source.model(row["parent"]),
                    row["parent_licence"],
                )
                for row in rows
            ],
            most=_MOST,
            everything=sql(f"FROM licence_conflicts WHERE base = {literal(source.base)}"),
        )
