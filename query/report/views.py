"""Sections from views of the database: names, duplicates, lineage, similar pairs, suspicious claims, all models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from query.report.page import Part, Section, Source, code, enumerated, shorten
from query.report.reasons import claim_in_words
from query.wording import count, counted, day, decimal, literal, percent, sql

_MOST, _MOST_NAMES = 20, 25  # rows of a table
_MOST_MODELS = 2000  # with more rows, browsers scroll badly
_TOO_MUCH = 0.5  # of all models, by one author
_FLAGS = {"is_copy": "copy of the base", "is_unrelated": "unrelated to the base", "is_partly_frozen": "partly frozen"}

Row = dict[str, Any]


@dataclass(frozen=True)
class ViewTable:
    """A table of database rows. ``columns``: (title, kind, cell of a row); ``statement`` selects all rows."""

    columns: tuple[tuple[str, str, Callable[[Row], Part]], ...]
    statement: str
    most: int = _MOST

    def write(self, section: Section, caption: str, rows: list[Row]) -> None:
        """Add the table."""
        section.table(
            caption,
            {title: kind for title, kind, _ in self.columns},
            [[cell(row) for _, _, cell in self.columns] for row in rows],
            most=self.most,
            everything=sql(self.statement),
        )


def names(source: Source) -> Section:
    """The datasets that models name, with spellings merged, and the authors."""
    section = Section("names", "Datasets and authors")
    indexed = source.number("SELECT count(*) FROM models WHERE base = ?")
    if not indexed:
        section.unavailable("No model is indexed, so there is nothing to count.")
        return section
    _datasets(source, section, indexed)
    _authors(source, section, indexed)
    return section


def _datasets(source: Source, section: Section, indexed: int) -> None:
    documented = source.number("SELECT count(*) FROM models WHERE base = ? AND len(datasets) > 0")
    rows = source.rows(
        "SELECT counts.*, most FROM dataset_counts AS counts JOIN ("
        "  SELECT base, dataset, max(models) AS most FROM ("
        "    SELECT base, dataset, author, count(DISTINCT model_id) AS models FROM fine_tunes "
        "    JOIN model_datasets USING (model_id) WHERE status = 'indexed' AND dataset IS NOT NULL GROUP BY ALL"
        "  ) GROUP BY ALL) USING (base, dataset) WHERE base = ? ORDER BY models DESC, dataset"
    )
    section.heading("Datasets")
    section.key_number(
        count(documented), f"of them name a dataset; {counted(len(rows), 'dataset is', 'datasets are')} named"
    )
    if not rows:
        section.unavailable(f"None of the {counted(indexed, 'indexed model')} names a dataset.")
        return
    spellings = len({raw for row in rows for raw in row["spellings"]})
    section.paragraph(
        f"{counted(documented, 'indexed model names', 'indexed models name')} a dataset "
        f"({percent(documented / indexed)} of {indexed:,}); together they name {counted(len(rows), 'dataset')}"
        + (f" in {spellings:,} spellings, which were merged" if spellings > len(rows) else "")
        + ". A model may name several, and a task such as glue/mrpc also counts under glue."
    )
    ViewTable(
        (
            ("dataset", "name", lambda row: shorten(row["dataset"])),
            ("models", "number", lambda row: count(row["models"])),
            ("authors", "number", lambda row: count(row["authors"])),
            ("share of its largest author", "number", lambda row: percent(row["most"] / row["models"])),
            ("as spelt", "name", lambda row: (
                enumerated(row["spellings"]) if row["spellings"] != [row["dataset"]] else "the same"
            )),
        ),
        f"FROM dataset_counts WHERE base = {literal(source.base)} ORDER BY models DESC",
        _MOST_NAMES,
    ).write(section, "Datasets by number of models", rows)  # fmt: skip
    unusable = source.number(
        "SELECT count(DISTINCT model_id) FROM models JOIN model_datasets USING (model_id) "
        "WHERE base = ? AND dataset IS NULL"
    )
    if unusable:
        section.paragraph(
            f"{counted(unusable, 'model')} also named something that is not the name of a dataset; it is not counted."
        )


def _authors(source: Source, section: Section, indexed: int) -> None:
    rows = source.rows("SELECT * FROM author_counts WHERE base = ? ORDER BY models DESC, author")
    largest = rows[0]["models"] / indexed
    section.heading("Authors")
    section.key_number(count(len(rows)), f"authors; the largest uploaded {percent(largest)} of the models")
    name = code(shorten(rows[0]["author"] or "(none)", 80))
    if len(rows) == 1:
        section.paragraph(
            "All models are by one author, ", name, ", so data and the author's habits cannot be separated."
        )
    elif largest > _TOO_MUCH:
        section.paragraph(
            "One author, ", name, f", uploaded {percent(largest)} of the models: numbers that are not cross-author may "
            "reflect this person's habits more than the data.",
        )  # fmt: skip
    else:
        section.paragraph("The largest author, ", name, f", uploaded {percent(largest)} of the models.")
    ViewTable(
        (
            ("author", "name", lambda row: shorten(row["author"] or "(none)")),
            ("models", "number", lambda row: count(row["models"])),
            ("share", "number", lambda row: percent(row["models"] / indexed)),
            ("downloads", "number", lambda row: count(row["downloads"])),
        ),
        f"FROM author_counts WHERE base = {literal(source.base)} ORDER BY models DESC",
        _MOST_NAMES,
    ).write(section, "Authors by number of models", rows)


def duplicates(source: Source) -> Section:
    """Copies of the base, and uploads that repeat an earlier one."""
    section = Section("duplicates", "Copies and duplicates")
    copies = source.rows(
        "SELECT model, author, created, downloads FROM models WHERE base = ? AND is_copy "
        "ORDER BY downloads DESC NULLS LAST, model"
    )
    repeats = source.rows(
        "SELECT model, first_upload, author <> first_author AS by_another, created FROM duplicates WHERE base = ? "
        "ORDER BY first_upload, created, model"
    )
    section.key_number(count(len(copies)), f"{'copy' if len(copies) == 1 else 'copies'} of the base under another name")
    section.key_number(
        count(len(repeats)), f"{'duplicate' if len(repeats) == 1 else 'duplicates'} of an earlier upload"
    )
    section.paragraph(
        "A copy has exactly the weights of the base (apart from rounding), whatever its card says. A duplicate has the "
        "same files as an earlier upload, or a change that is the same in size and direction to within a thousandth."
    )
    base = literal(source.base)
    if copies:
        ViewTable(
            (
                ("model", "name", lambda row: source.model(row["model"])),
                ("author", "name", lambda row: row["author"]),
                ("created", "fixed", lambda row: day(row["created"])),
                ("downloads", "number", lambda row: count(row["downloads"])),
            ),
            f"SELECT model FROM models WHERE is_copy AND base = {base}",
        ).write(section, f"{counted(len(copies), 'copy', 'copies')} of the base", copies)
    if repeats:
        ViewTable(
            (
                ("model", "name", lambda row: source.model(row["model"])),
                ("has the weights of", "name", lambda row: source.model(row["first_upload"])),
                ("uploaded by", "fixed", lambda row: "another author" if row["by_another"] else "the same author"),
                ("created", "fixed", lambda row: day(row["created"])),
            ),
            f"FROM duplicates WHERE base = {base}",
        ).write(section, counted(len(repeats), "duplicate"), repeats)
    if not copies and not repeats:
        section.paragraph("There are no copies and no duplicates among the indexed models.")
    return section


def lineage(source: Source) -> Section:
    """Kinds of steps, cards that the weights contradict, and licences that differ from the parent's."""
    section = Section("lineage", "Lineage")
    kinds = source.rows(
        "SELECT kind, count(DISTINCT model_id) AS models, count(DISTINCT model_id) FILTER (card = 'confirmed') AS "
        "confirmed, count(DISTINCT model_id) FILTER (card = 'contradicted') AS contradicted "
        "FROM lineage JOIN fine_tunes USING (model_id) WHERE base = ? GROUP BY kind ORDER BY models DESC, kind"
    )
    if not kinds:
        section.paragraph(
            "This atlas stores no lineage. To compute it: ", code(source.command("lineage", "--all")), "."
        )
        return section
    section.paragraph(
        "Which model each was made from, according to a few megabytes of its weights, compared with what its card says."
    )
    ViewTable(
        (
            ("kind", "name", lambda row: row["kind"]),
            ("models", "number", lambda row: count(row["models"])),
            ("card confirmed", "number", lambda row: count(row["confirmed"])),
            ("card contradicted", "number", lambda row: count(row["contradicted"])),
        ),
        "FROM lineage",
    ).write(section, "Steps by kind", kinds)
    contradicted = source.rows(
        "SELECT child.model, coalesce(parent.model, child.base) AS parent, kind FROM lineage "
        "JOIN fine_tunes AS child USING (model_id) LEFT JOIN fine_tunes AS parent ON parent.model_id = parent_id "
        "WHERE child.base = ? AND card = 'contradicted' ORDER BY child.model, parent"
    )
    if contradicted:
        ViewTable(
            (
                ("model", "name", lambda row: source.model(row["model"])),
                ("made from", "name", lambda row: source.model(row["parent"])),
                ("kind", "fixed", lambda row: row["kind"]),
            ),
            "FROM lineage WHERE card = 'contradicted'",
        ).write(section, "Cards that the weights contradict", contradicted)
    licences = source.rows(
        "SELECT model, licence, parent, parent_licence FROM licence_conflicts WHERE base = ? "
        "ORDER BY downloads DESC NULLS LAST, model, parent"
    )
    if licences:
        ViewTable(
            (
                ("model", "name", lambda row: source.model(row["model"])),
                ("licence", "fixed", lambda row: row["licence"] or "none"),
                ("made from", "name", lambda row: source.model(row["parent"])),
                ("its licence", "fixed", lambda row: row["parent_licence"]),
            ),
            f"FROM licence_conflicts WHERE base = {literal(source.base)}",
        ).write(section, "Licences that differ from the parent's", licences)
    return section


def pairs(source: Source) -> Section:
    """The most similar pairs of models by different authors, without duplicates, which have a section of their own."""
    section = Section("pairs", "Most similar pairs across authors")
    statement = (
        "SELECT pair.model, pair.neighbour, pair.similarity, pair.datasets, pair.neighbour_datasets "
        "FROM similar_pairs AS pair "
        "JOIN models AS one ON one.base = pair.base AND one.model = pair.model "
        "JOIN models AS other ON other.base = pair.base AND other.model = pair.neighbour "
        "WHERE pair.base = {} AND pair.other_author AND NOT pair.is_repeat "
        "AND NOT one.is_unrelated AND NOT other.is_unrelated "
        "ORDER BY pair.similarity DESC, pair.model, pair.neighbour"
    )
    rows = source.rows(f"SELECT *, count(*) OVER () AS pairs FROM ({statement.format('?')}) LIMIT {_MOST}")
    if not rows:
        section.unavailable("There are no two comparable models by different authors.")
        return section
    section.paragraph(
        "Two people made nearly the same change: usually from the same data, sometimes because one model was tuned "
        "further from the other's, sometimes because it was copied with small changes. Duplicates and unrelated models "
        "are left out; each pair is listed once."
    )
    everything = statement.format(literal(source.base))
    ViewTable(
        (
            ("model", "name", lambda row: source.model(row["model"])),
            ("and", "name", lambda row: source.model(row["neighbour"])),
            ("similarity", "number", lambda row: decimal(row["similarity"], 3)),
            ("datasets that they name", "name", _common),
        ),
        everything,
    ).write(section, "The most similar pairs by different authors", rows)
    section.more_rows(rows[0]["pairs"] - len(rows), sql(everything))
    return section


def _common(row: Row) -> str:
    """The datasets that both models name; otherwise those of each."""
    mine, theirs = row["datasets"], row["neighbour_datasets"]
    both = [name for name in mine if name in theirs]
    if both:
        return f"both {enumerated(both)}"
    if not mine and not theirs:
        return "neither names any"
    return f"{enumerated(mine) or 'none named'}; {enumerated(theirs) or 'none named'}"


def claims(source: Source) -> Section:
    """Models that claim the base although their weights contradict it."""
    section = Section("claims", "Suspicious claims")
    rows = source.rows("SELECT * FROM suspicious_claims WHERE base = ? ORDER BY downloads DESC NULLS LAST, model")
    section.key_number(count(len(rows)), "whose weights contradict the base that they claim")
    unknown = source.number("SELECT count(*) FROM models WHERE base = ? AND verified IS NULL")
    section.paragraph(
        "Fine-tuning moves weights very little: the cosine between a fine-tune's weights and its base's is close to 1. "
        "If it is close to 0, the model was trained from scratch or from another base, whatever its card says."
        + (f" For {counted(unknown, 'model')} this cannot be checked (adapters hold only a change)." if unknown else "")
    )
    if not rows:
        section.paragraph("No indexed model contradicts its claim.")
        return section
    adapters: tuple[tuple[str, str, Callable[[Row], Part]], ...] = (
        ("adapter of", "name", lambda row: shorten(row["names_base"] or "", 60)),
    )
    ViewTable(
        (
            ("model", "name", lambda row: source.model(row["model"])),
            ("author", "name", lambda row: shorten(row["author"])),
            ("says it is a", "text", lambda row: row["relation"]),
            ("claimed by", "text", lambda row: shorten(claim_in_words(row["claimed_by"]), 60)),
            ("cosine with the base", "number", lambda row: decimal(row["base_cosine"], 3)),
            ("downloads", "number", lambda row: count(row["downloads"])),
            *(adapters if any(row["names_base"] for row in rows) else ()),
        ),
        f"FROM suspicious_claims WHERE base = {literal(source.base)}",
        _MOST_NAMES,
    ).write(section, f"{counted(len(rows), 'claim')} that the weights contradict", rows)
    return section


def models(source: Source) -> Section:
    """Every indexed model, to look up what the sections above mention."""
    section = Section("models", "All models")
    rows = source.rows(
        "SELECT model, relation, datasets, licence, downloads, created, is_copy, is_unrelated, is_partly_frozen, "
        "duplicate_of FROM models WHERE base = ? ORDER BY downloads DESC NULLS LAST, model"
    )
    if not rows:
        section.unavailable("No model is indexed, so there is nothing to list.")
        return section

    def remarks(row: Row) -> str:
        found = [words for flag, words in _FLAGS.items() if row[flag]]
        return ", ".join(found + (["duplicate"] if row["duplicate_of"] is not None else []))

    ViewTable(
        (
            ("model", "name", lambda row: source.model(row["model"])),
            ("relation", "fixed", lambda row: row["relation"]),
            ("datasets", "name", lambda row: enumerated(row["datasets"])),
            ("licence", "name", lambda row: shorten(row["licence"] or "", 40)),
            ("downloads", "number", lambda row: count(row["downloads"])),
            ("created", "fixed", lambda row: day(row["created"])),
            ("remarks", "prose", remarks),
        ),
        f"FROM models WHERE base = {literal(source.base)}",
        _MOST_MODELS,
    ).write(section, "Every indexed model, the most downloaded first", rows)
    return section
