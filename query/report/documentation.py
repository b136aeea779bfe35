"""Which datasets the models name, and who uploaded them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from query.report.markup import Column, code, enumerated, told
from query.report.section import Section, Source, Writer
from query.wording import count, counted, literal, percent, sql

ANCHOR, TITLE = "names", "Datasets and authors"

_MOST = 25
_TOO_MUCH = 0.5  # of all models, by one author


def write(source: Source) -> Section:
    """Counts of both, spellings merged, with the share of the largest author."""
    writer = Writer(ANCHOR, TITLE)
    indexed = source.number("SELECT count(*) FROM models WHERE base = ?")
    if not indexed:
        writer.lack("No model is indexed: there is nothing to count.")
        return writer.done()
    _write_datasets(source, writer, indexed)
    _write_authors(source, writer, indexed)
    return writer.done()


def _write_datasets(source: Source, writer: Writer, indexed: int) -> None:
    documented = source.number("SELECT count(*) FROM models WHERE base = ? AND len(datasets) > 0")
    rows = source.rows(
        "SELECT counts.*, most FROM dataset_counts AS counts JOIN ("
        "  SELECT base, dataset, max(models) AS most FROM ("
        "    SELECT base, dataset, author, count(DISTINCT model_id) AS models FROM fine_tunes "
        "    JOIN model_datasets USING (model_id) WHERE status = 'indexed' AND dataset IS NOT NULL GROUP BY ALL"
        "  ) GROUP BY ALL) USING (base, dataset) WHERE base = ? ORDER BY models DESC, dataset"
    )
    writer.heading("Datasets")
    writer.key_number(
        count(documented), f"of them name a dataset; {counted(len(rows), 'dataset is', 'datasets are')} named"
    )
    if not rows:
        writer.lack(f"None of the {counted(indexed, 'indexed model')} names a dataset.")
        return
    spellings = len({raw for row in rows for raw in row["spellings"]})
    writer.paragraph(
        f"{counted(documented, 'indexed model names', 'indexed models name')} a dataset "
        f"({percent(documented / indexed)} of {indexed:,}); together they name {counted(len(rows), 'dataset')}"
        + (f" in {spellings:,} spellings, which were merged" if spellings > len(rows) else "")
        + ". A model may name several, and a task such as glue/mrpc counts under glue too."
    )
    _write_table(source, writer, rows)
    unusable = source.number(
        "SELECT count(DISTINCT model_id) FROM models JOIN model_datasets USING (model_id) "
        "WHERE base = ? AND dataset IS NULL"
    )
    if unusable:
        writer.paragraph(
            f"{counted(unusable, 'model')} also named something that is no dataset's name; it is not counted."
        )


def _write_table(source: Source, writer: Writer, rows: Sequence[Mapping[str, Any]]) -> None:
    writer.table(
        "Datasets by number of models",
        (
            Column("dataset", "name"), Column("models", "number"), Column("authors", "number"),
            Column("share of its largest author", "number"), Column("as spelt", "name"),
        ),
        [
            (
                told(row["dataset"]), count(row["models"]), count(row["authors"]), percent(row["most"] / row["models"]),
                enumerated(row["spellings"]) if row["spellings"] != [row["dataset"]] else "the same",
            )
            for row in rows
        ],
        most=_MOST,
        everything=sql(f"FROM dataset_counts WHERE base = {literal(source.base)} ORDER BY models DESC"),
    )  # fmt: skip


def _write_authors(source: Source, writer: Writer, indexed: int) -> None:
    rows = source.rows("SELECT * FROM author_counts WHERE base = ? ORDER BY models DESC, author")
    largest = rows[0]["models"] / indexed
    writer.heading("Authors")
    writer.key_number(count(len(rows)), f"authors; the largest uploaded {percent(largest)} of the models")
    name = code(told(rows[0]["author"] or "(none)", 80))
    if len(rows) == 1:
        writer.paragraph("All models are by one author, ", name, ": nothing here can be told from their habits.")
    elif largest > _TOO_MUCH:
        writer.paragraph(
            "One author, ", name, f", uploaded {percent(largest)} of the models: numbers that are not cross-author may "
            "say more of this person's habits than of data.",
        )  # fmt: skip
    else:
        writer.paragraph("The largest author, ", name, f", uploaded {percent(largest)} of the models.")
    writer.table(
        "Authors by number of models",
        (
            Column("author", "name"), Column("models", "number"), Column("share", "number"),
            Column("downloads", "number"),
        ),
        [
            (
                told(row["author"] or "(none)"), count(row["models"]), percent(row["models"] / indexed),
                count(row["downloads"]),
            )
            for row in rows
        ],
        most=_MOST,
        everything=sql(f"FROM author_counts WHERE base = {literal(source.base)} ORDER BY models DESC"),
    )  # fmt: skip
