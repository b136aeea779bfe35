"""What was crawled, what became of it and why, what was read, when and with which versions."""

from __future__ import annotations

import json
from typing import Any

from query.report.markup import Column, code, told
from query.report.reasons import STATUSES, claim_in_words, reason_in_words
from query.report.section import Section, Source, Writer
from query.wording import (
    count,
    counted,
    day,
    decimal,
    duration,
    literal,
    moment,
    percent,
    size,
    sql,
)  # fmt: skip

ANCHOR, TITLE = "crawl", "What was found, read and left out"

_BUILDS = 8  # that are told, the latest first
_REASONS = 40


def write(source: Source) -> Section:
    """Counts by status and reason, bytes, times and versions."""
    writer = Writer(ANCHOR, TITLE)
    _write_statuses(source, writer)
    _write_reasons(source, writer)
    _write_reading(source, writer)
    _write_builds(source, writer)
    return writer.done()


def _write_statuses(source: Source, writer: Writer) -> None:
    rows = source.rows("SELECT status, count(*) AS models FROM fine_tunes WHERE base = ? GROUP BY status")
    models = {row["status"]: row["models"] for row in rows}
    total = sum(models.values())
    writer.key_number(count(total), f"models found that claim {source.base}")
    writer.key_number(count(models.get("indexed", 0)), f"indexed: weights read and compared ({_share(models, total)})")
    if not total:
        writer.lack("Nothing was found: no model is listed for this base.")
        return
    (seen,) = source.rows(
        "SELECT min(first_seen) AS first, max(last_seen) AS last, count(*) FILTER (deleted_at_hub) AS gone "
        "FROM fine_tunes WHERE base = ?"
    )
    first, last = day(seen["first"]), day(seen["last"])
    writer.paragraph(
        "The Hub was asked for every model that claims this base "
        + (f"on {last}. " if first == last else f"between {first} and {last}. ")
        + f"Each of the {counted(total, 'model')} found ended in one of these ways"
        + (f"; {counted(seen['gone'], 'model has', 'models have')} left the Hub since." if seen["gone"] else ".")
    )
    writer.table(
        "What became of the models found",
        (Column("status"), Column("models", "number"), Column("share", "number"), Column("meaning", "prose")),
        [
            (status, count(models[status]), percent(models[status] / total), meaning)
            for status, meaning in STATUSES.items()
            if status in models
        ],
    )
    _write_origins(source, writer)


def _share(models: dict[str, int], total: int) -> str:
    return percent(models.get("indexed", 0) / total) if total else "none"


def _write_origins(source: Source, writer: Writer) -> None:
    """How they call themselves, and who says that they belong to this base."""
    rows = source.rows(
        "SELECT relation, count(*) AS found, count(*) FILTER (status = 'indexed') AS indexed, "
        "list(claimed_by) AS claims FROM fine_tunes WHERE base = ? GROUP BY relation ORDER BY found DESC, relation"
    )
    writer.table(
        "How they say they were made",
        (Column("relation"), Column("found", "number"), Column("indexed", "number"), Column("claimed by", "prose")),
        [(row["relation"], count(row["found"]), count(row["indexed"]), _claims(row["claims"])) for row in rows],
    )


def _claims(claims: list[str | None]) -> str:
    words = [claim_in_words(claim) for claim in claims]
    counts = sorted({word: words.count(word) for word in words}.items(), key=lambda pair: (-pair[1], pair[0]))
    return "; ".join(f"{told(word, 60)} ({number:,})" for word, number in counts)


def _write_reasons(source: Source, writer: Writer) -> None:
    rows = source.rows("SELECT * FROM failures WHERE base = ? ORDER BY models DESC, status DESC, reason")
    if not rows:
        return
    writer.heading("Why models were left out")
    writer.table(
        "Skipped and failed models by reason",
        (
            Column("reason"), Column("models", "number"), Column("status"), Column("in plain words", "prose"),
            Column("an example", "name"), Column("what was met there", "prose"),
        ),
        [
            (
                code(row["reason"] or "unknown"), count(row["models"]), row["status"], reason_in_words(row["reason"]),
                source.model(row["example_model"]), told(row["example"] or "", 160),
            )
            for row in rows
        ],
        most=_REASONS,
        everything=sql(f"FROM failures WHERE base = {literal(source.base)} ORDER BY models DESC"),
    )  # fmt: skip


def _write_reading(source: Source, writer: Writer) -> None:
    (row,) = source.rows(
        "SELECT count(*) AS models, sum(bytes_read) AS read, sum(block_bytes) AS blocks, "
        "sum(list_sum(list_transform(weight_files, lambda file: file.size))) AS stored FROM models WHERE base = ?"
    )
    if not row["models"]:
        return
    writer.heading("What was read")
    of = f" of the {size(row['stored'])} in their weight files" if row["stored"] else ""
    writer.paragraph(
        f"For the {counted(row['models'], 'indexed model')} {size(row['read'])}{of} were read: only the matrices that "
        "are compared travel, not embeddings, heads or optimiser states."
    )
    bad = source.number("SELECT count(*) FROM rejected_listing_rows WHERE base = ?")
    if bad:
        writer.paragraph(f"{counted(bad, 'row')} of the Hub's listing could not be read.")


def _write_builds(source: Source, writer: Writer) -> None:
    rows = source.rows("SELECT * FROM builds WHERE base = ? ORDER BY build_id DESC")
    (base,) = source.rows('SELECT "commit" FROM bases WHERE base = ?')
    (atlas,) = source.atlas.rows("SELECT * FROM atlas_info")
    writer.heading("When, and with what")
    writer.paragraph(
        f"The atlas is generation {count(atlas['generation'])}, published on {day(atlas['published'])} by "
        f"vectors-in-the-wild {atlas['tool_version']}. Everything was compared with ", source.model(source.base),
        " at commit ", code(base["commit"]), ".",
    )  # fmt: skip
    if not rows:
        writer.lack("No build of this base is on record.")
        return
    titles = ("started (UTC)", "took", "outcome", "looked at", "indexed", "unchanged", "skipped", "failed", "read")
    texts = ("started (UTC)", "outcome")
    writer.table(
        "Builds, the latest first",
        [Column(title, "fixed" if title in texts else "number") for title in titles],
        [_build(row) for row in rows],
        most=_BUILDS,
        everything=sql(f"FROM builds WHERE base = {literal(source.base)} ORDER BY build_id DESC"),
    )
    _write_spec(rows[0], writer)


def _build(row: dict[str, Any]) -> tuple[str, ...]:
    numbers = (count(row[name]) for name in ("discovered", "indexed", "unchanged", "skipped", "failed"))
    return (moment(row["started"]), duration(row["seconds"]), row["outcome"], *numbers, size(row["bytes_read"]))


def _write_spec(build: dict[str, Any], writer: Writer) -> None:
    """What the latest build computed, and its libraries."""
    spec, thresholds = json.loads(build["spec"] or "{}"), json.loads(build["thresholds"] or "{}")
    versions = json.loads(build["versions"] or "{}")
    kept = f"the {spec['rank']} largest singular values and vectors" if "rank" in spec else "its singular vectors"
    words = [f"Of every delta {kept} are kept" + (" and all singular values" if spec.get("spectra") else "")]
    if "unrelated_below" in thresholds:
        words.append(
            "a model is called unrelated where the cosine of its weights with the base's is below "
            f"{decimal(thresholds['unrelated_below'])}"
        )
    writer.paragraph("; ".join(words) + ".")
    if versions:
        names = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        writer.paragraph(f"Versions: {names}.")
