"""Sections from views of the database: names, duplicates, lineage, similar pairs, suspicious claims, all models."""

from __future__ import annotations

from typing import Any

from query.report.page import Section, Source, code, enumerated, shorten
from query.report.reasons import claim_in_words
from query.wording import count, counted, decimal, percent

_MOST, _MOST_NAMES = 20, 25  # rows of a table
_MOST_MODELS = 2000  # with more rows, browsers scroll badly
_TOO_MUCH = 0.5  # of all models, by one author
_FLAGS = {"is_copy": "copy of the base", "is_unrelated": "unrelated to the base", "is_partly_frozen": "partly frozen"}


def names(source: Source, section: Section) -> None:
    """The datasets that models name, with spellings merged, and the authors."""
    indexed = source.number("SELECT count(*) FROM models WHERE base = ?")
    if not indexed:
        section.unavailable("No model is indexed, so there is nothing to count.")
        return
    _datasets(source, section, indexed)
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
    section.table(
        "Authors by number of models",
        {"author": "name", "models": "number", "share": "number", "downloads": "number"},
        [
            (shorten(row["author"] or "(none)"), row["models"], percent(row["models"] / indexed), row["downloads"])
            for row in rows
        ],
        most=_MOST_NAMES,
        everything=source.query("FROM author_counts WHERE base = ? ORDER BY models DESC"),
    )


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
    section.table(
        "Datasets by number of models",
        {
            "dataset": "name", "models": "number", "authors": "number", "share of its largest author": "number",
            "as spelt": "name",
        },
        [
            (
                shorten(row["dataset"]), row["models"], row["authors"], percent(row["most"] / row["models"]),
                row["spellings"] if row["spellings"] != [row["dataset"]] else "the same",
            )
            for row in rows
        ],
        most=_MOST_NAMES,
        everything=source.query("FROM dataset_counts WHERE base = ? ORDER BY models DESC"),
    )  # fmt: skip
    unusable = source.number(
        "SELECT count(DISTINCT model_id) FROM models JOIN model_datasets USING (model_id) "
        "WHERE base = ? AND dataset IS NULL"
    )
    if unusable:
        section.paragraph(
            f"{counted(unusable, 'model')} also named something that is not the name of a dataset; it is not counted."
        )


def duplicates(source: Source, section: Section) -> None:
    """Copies of the base, and uploads that repeat an earlier one."""
    copies = source.rows(
        "SELECT model, author, created, downloads FROM models WHERE base = ? AND is_copy "
        "ORDER BY downloads DESC NULLS LAST, model"
    )
    repeats = source.rows(
        "SELECT model, first_upload, if(author <> first_author, 'another author', 'the same author') AS by_whom, "
        "created FROM duplicates WHERE base = ? ORDER BY first_upload, created, model"
    )
    section.key_number(count(len(copies)), f"{'copy' if len(copies) == 1 else 'copies'} of the base under another name")
    section.key_number(
        count(len(repeats)), f"{'duplicate' if len(repeats) == 1 else 'duplicates'} of an earlier upload"
    )
    section.paragraph(
        "A copy has exactly the weights of the base (apart from rounding), whatever its card says. A duplicate has the "
        "same files as an earlier upload, or a change that is the same in size and direction to within a thousandth."
    )
    if copies:
        section.table(
            f"{counted(len(copies), 'copy', 'copies')} of the base",
            {"model": "name", "author": "name", "created": "fixed", "downloads": "number"},
            [(source.model(row["model"]), row["author"], row["created"], row["downloads"]) for row in copies],
            most=_MOST,
            everything=source.query("SELECT model FROM models WHERE is_copy AND base = ?"),
        )
    if repeats:
        section.table(
            counted(len(repeats), "duplicate"),
            {"model": "name", "has the weights of": "name", "uploaded by": "fixed", "created": "fixed"},
            [
                (source.model(row["model"]), source.model(row["first_upload"]), row["by_whom"], row["created"])
                for row in repeats
            ],
            most=_MOST,
            everything=source.query("FROM duplicates WHERE base = ?"),
        )
    if not copies and not repeats:
        section.paragraph("There are no copies and no duplicates among the indexed models.")


def lineage(source: Source, section: Section) -> None:
    """Kinds of steps, cards that the weights contradict, and licences that differ from the parent's."""
    kinds = source.rows(
        "SELECT kind, count(DISTINCT model_id) AS models, count(DISTINCT model_id) FILTER (card = 'confirmed') AS "
        "confirmed, count(DISTINCT model_id) FILTER (card = 'contradicted') AS contradicted "
        "FROM lineage JOIN fine_tunes USING (model_id) WHERE base = ? GROUP BY kind ORDER BY models DESC, kind"
    )
    if not kinds:
        section.paragraph(
            "This atlas stores no lineage. To compute it: ", code(source.command("lineage", "--all")), "."
        )
        return
    section.paragraph(
        "Which model each was made from, according to a few megabytes of its weights, compared with what its card says."
    )
    section.table(
        "Steps by kind",
        {"kind": "name", "models": "number", "card confirmed": "number", "card contradicted": "number"},
        [tuple(row.values()) for row in kinds],
    )
    contradicted = source.rows(
        "SELECT child.model, coalesce(parent.model, child.base) AS parent, kind FROM lineage "
        "JOIN fine_tunes AS child USING (model_id) LEFT JOIN fine_tunes AS parent ON parent.model_id = parent_id "
        "WHERE child.base = ? AND card = 'contradicted' ORDER BY child.model, parent"
    )
    if contradicted:
        section.table(
            "Cards that the weights contradict",
            {"model": "name", "made from": "name", "kind": "fixed"},
            [(source.model(row["model"]), source.model(row["parent"]), row["kind"]) for row in contradicted],
            most=_MOST,
            everything=source.query("FROM lineage WHERE card = 'contradicted'"),
        )
    licences = source.rows(
        "SELECT model, licence, parent, parent_licence FROM licence_conflicts WHERE base = ? "
        "ORDER BY downloads DESC NULLS LAST, model, parent"
    )
    if licences:
        section.table(
            "Licences that differ from the parent's",
            {"model": "name", "licence": "fixed", "made from": "name", "its licence": "fixed"},
            [
                (
                    source.model(row["model"]), row["licence"] or "none", source.model(row["parent"]),
                    row["parent_licence"],
                )
                for row in licences
            ],
            most=_MOST,
            everything=source.query("FROM licence_conflicts WHERE base = ?"),
        )  # fmt: skip


def pairs(source: Source, section: Section) -> None:
    """The most similar pairs of models by different authors, without duplicates, which have a section of their own."""
    statement = (
        "SELECT pair.model, pair.neighbour, pair.similarity, pair.datasets, pair.neighbour_datasets "
        "FROM similar_pairs AS pair "
        "JOIN models AS one ON one.base = pair.base AND one.model = pair.model "
        "JOIN models AS other ON other.base = pair.base AND other.model = pair.neighbour "
        "WHERE pair.base = ? AND pair.other_author AND NOT pair.is_repeat "
        "AND NOT one.is_unrelated AND NOT other.is_unrelated "
        "ORDER BY pair.similarity DESC, pair.model, pair.neighbour"
    )
    rows = source.rows(f"SELECT *, count(*) OVER () AS pairs FROM ({statement}) LIMIT {_MOST}")
    if not rows:
        section.unavailable("There are no two comparable models by different authors.")
        return
    section.paragraph(
        "Two people made nearly the same change: usually from the same data, sometimes because one model was tuned "
        "further from the other's, sometimes because it was copied with small changes. Duplicates and unrelated models "
        "are left out; each pair is listed once."
    )
    section.table(
        "The most similar pairs by different authors",
        {"model": "name", "and": "name", "similarity": "number", "datasets that they name": "name"},
        [
            (
                source.model(row["model"]), source.model(row["neighbour"]), decimal(row["similarity"], 3),
                _common(row["datasets"], row["neighbour_datasets"]),
            )
            for row in rows
        ],
        everything=source.query(statement),
        total=rows[0]["pairs"],
    )  # fmt: skip


def _common(mine: list[str], theirs: list[str]) -> str:
    """The datasets that both models name; otherwise those of each."""
    both = [name for name in mine if name in theirs]
    if both:
        return f"both {enumerated(both)}"
    if not mine and not theirs:
        return "neither names any"
    return f"{enumerated(mine) or 'none named'}; {enumerated(theirs) or 'none named'}"


def claims(source: Source, section: Section) -> None:
    """Models that claim the base although their weights contradict it."""
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
        return
    has_adapters = any(row["names_base"] for row in rows)

    def cells(row: dict[str, Any]) -> list[Any]:
        claim = shorten(claim_in_words(row["claimed_by"]), 60)
        cosine = decimal(row["base_cosine"], 3)
        adapter_of = [shorten(row["names_base"] or "", 60)] if has_adapters else []
        name, author = source.model(row["model"]), shorten(row["author"])
        return [name, author, row["relation"], claim, cosine, row["downloads"], *adapter_of]

    section.table(
        f"{counted(len(rows), 'claim')} that the weights contradict",
        {
            "model": "name", "author": "name", "says it is a": "text", "claimed by": "text",
            "cosine with the base": "number", "downloads": "number", **({"adapter of": "name"} if has_adapters else {}),
        },
        [cells(row) for row in rows],
        most=_MOST_NAMES,
        everything=source.query("FROM suspicious_claims WHERE base = ?"),
    )  # fmt: skip


def models(source: Source, section: Section) -> None:
    """Every indexed model, to look up what the sections above mention."""
    rows = source.rows(
        "SELECT model, relation, datasets, licence, downloads, created, is_copy, is_unrelated, is_partly_frozen, "
        "duplicate_of FROM models WHERE base = ? ORDER BY downloads DESC NULLS LAST, model"
    )
    if not rows:
        section.unavailable("No model is indexed, so there is nothing to list.")
        return

    def cells(row: dict[str, Any]) -> list[Any]:
        remarks = [words for flag, words in _FLAGS.items() if row[flag]]
        remarks += ["duplicate"] if row["duplicate_of"] is not None else []
        licence = shorten(row["licence"] or "", 40)
        facts = [row["relation"], row["datasets"], licence, row["downloads"], row["created"]]
        return [source.model(row["model"]), *facts, ", ".join(remarks)]

    section.table(
        "Every indexed model, the most downloaded first",
        {
            "model": "name", "relation": "fixed", "datasets": "name", "licence": "name", "downloads": "number",
            "created": "fixed", "remarks": "prose",
        },
        [cells(row) for row in rows],
        most=_MOST_MODELS,
        everything=source.query("FROM models WHERE base = ?"),
    )  # fmt: skip
