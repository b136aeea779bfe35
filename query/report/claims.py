"""Models that claim the base while their weights contradict it."""

from __future__ import annotations

from query.report.markup import Column, told
from query.report.reasons import claim_in_words
from query.report.section import Section, Source, Writer
from query.wording import count, counted, decimal, literal, sql

ANCHOR, TITLE = "claims", "Suspicious claims"

_MOST = 25


def write(source: Source) -> Section:
    """The models, with the cosine that speaks against them."""
    writer = Writer(ANCHOR, TITLE)
    rows = source.rows("SELECT * FROM suspicious_claims WHERE base = ? ORDER BY downloads DESC NULLS LAST, model")
    writer.key_number(count(len(rows)), "whose weights contradict the base that they claim")
    silent = source.number("SELECT count(*) FROM models WHERE base = ? AND verified IS NULL")
    writer.paragraph(
        "Fine-tuning moves weights very little: the cosine between a fine-tune's weights and its base's is close to 1. "
        "Where it is close to 0 the model was trained from scratch or from another base, whatever its card says."
        + (f" Of {counted(silent, 'model')} the weights cannot say (adapters hold only a change)." if silent else "")
    )
    if not rows:
        writer.paragraph("No indexed model contradicts its claim.")
        return writer.done()
    adapters = [Column("adapter of", "name")] if any(row["names_base"] for row in rows) else []
    writer.table(
        f"{counted(len(rows), 'claim')} that the weights contradict",
        (
            Column("model", "name"), Column("author", "name"), Column("says it is a"), Column("claimed by"),
            Column("cosine with the base", "number"), Column("downloads", "number"), *adapters,
        ),
        [
            (
                source.model(row["model"]), told(row["author"]), row["relation"],
                told(claim_in_words(row["claimed_by"]), 60),
                decimal(row["base_cosine"], 3), count(row["downloads"]),
                *(told(row["names_base"] or "", 60) for _ in adapters),
            )
            for row in rows
        ],
        most=_MOST,
        everything=sql(f"FROM suspicious_claims WHERE base = {literal(source.base)}"),
    )  # fmt: skip
    return writer.done()
