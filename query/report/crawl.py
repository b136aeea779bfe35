"""What was crawled, what became of it and why, what was read, when and with which versions."""

from __future__ import annotations

import json
from collections import Counter

from query.report.page import Section, Source, code, shorten
from query.report.reasons import REASONS, STATUSES, UNEXPLAINED, claim_in_words
from query.wording import count, counted, day, decimal, duration, moment, percent, size

_BUILDS = 8  # rows, the latest first
_REASONS = 40


def crawl(source: Source, section: Section) -> None:
    """Counts by status and reason, bytes, times and versions."""
    _statuses(source, section)
    failures = source.rows("SELECT * FROM failures WHERE base = ? ORDER BY models DESC, status DESC, reason")
    if failures:
        section.heading("Why models were left out")
        section.table(
            "Skipped and failed models by reason",
            {
                "reason": "text", "models": "number", "status": "text", "in plain words": "prose",
                "an example": "name", "details of the example": "prose",
            },
            [
                (
                    code(row["reason"] or "unknown"), row["models"], row["status"],
                    REASONS.get(row["reason"] or "", UNEXPLAINED), source.model(row["example_model"]),
                    shorten(row["example"] or "", 160),
                )
                for row in failures
            ],
            most=_REASONS,
            everything=source.query("FROM failures WHERE base = ? ORDER BY models DESC"),
        )  # fmt: skip
    (read,) = source.rows(
        "SELECT count(*) AS models, sum(bytes_read) AS read, "
        "sum(list_sum(list_transform(weight_files, lambda file: file.size))) AS stored FROM models WHERE base = ?"
    )
    if read["models"]:
        section.heading("What was read")
        of = f" of the {size(read['stored'])} in their weight files" if read["stored"] else ""
        section.paragraph(
            f"For the {counted(read['models'], 'indexed model')} {size(read['read'])}{of} were read: only the matrices "
            "that are compared, not embeddings, heads or optimiser states."
        )
        rejected = source.number("SELECT count(*) FROM rejected_listing_rows WHERE base = ?")
        if rejected:
            section.paragraph(f"{counted(rejected, 'row')} of the Hub's listing could not be read.")
    _builds(source, section)


def _statuses(source: Source, section: Section) -> None:
    rows = source.rows("SELECT status, count(*) AS models FROM fine_tunes WHERE base = ? GROUP BY status")
    models = {row["status"]: row["models"] for row in rows}
    total, indexed = sum(models.values()), models.get("indexed", 0)
    share = percent(indexed / total) if total else "none"
    section.key_number(count(total), f"models found that claim {source.base}")
    section.key_number(count(indexed), f"indexed: weights read and compared ({share})")
    if not total:
        section.unavailable("Nothing was found: no model is listed for this base.")
        return
    (seen,) = source.rows(
        "SELECT min(first_seen) AS first, max(last_seen) AS last, count(*) FILTER (deleted_at_hub) AS deleted "
        "FROM fine_tunes WHERE base = ?"
    )
    first, last = day(seen["first"]), day(seen["last"])
    section.paragraph(
        "The Hub was searched for every model that claims this base "
        + (f"on {last}. " if first == last else f"between {first} and {last}. ")
        + f"Each of the {counted(total, 'model')} found ended in one of these ways"
        + (f"; {counted(seen['deleted'], 'model has', 'models have')} left the Hub since." if seen["deleted"] else ".")
    )
    section.table(
        "What became of the models found",
        {"status": "text", "models": "number", "share": "number", "meaning": "prose"},
        [
            (status, models[status], percent(models[status] / total), meaning)
            for status, meaning in STATUSES.items()
            if status in models
        ],
    )
    origins = source.rows(
        "SELECT relation, count(*) AS found, count(*) FILTER (status = 'indexed') AS indexed, "
        "list(claimed_by) AS claims FROM fine_tunes WHERE base = ? GROUP BY relation ORDER BY found DESC, relation"
    )
    section.table(
        "How they say they were made",
        {"relation": "text", "found": "number", "indexed": "number", "claimed by": "prose"},
        [(row["relation"], row["found"], row["indexed"], _claims(row["claims"])) for row in origins],
    )


def _claims(claims: list[str | None]) -> str:
    counts = sorted(Counter(map(claim_in_words, claims)).items(), key=lambda pair: (-pair[1], pair[0]))
    return "; ".join(f"{shorten(words, 60)} ({number:,})" for words, number in counts)


def _builds(source: Source, section: Section) -> None:
    rows = source.rows("SELECT * FROM builds WHERE base = ? ORDER BY build_id DESC")
    (base,) = source.rows('SELECT "commit" FROM bases WHERE base = ?')
    (atlas,) = source.atlas.rows("SELECT * FROM atlas_info")
    section.heading("When, and with what")
    section.paragraph(
        f"The atlas is generation {count(atlas['generation'])}, published on {day(atlas['published'])} by "
        f"vectors-in-the-wild {atlas['tool_version']}. Everything was compared with ", source.model(source.base),
        " at commit ", code(base["commit"]), ".",
    )  # fmt: skip
    if not rows:
        section.unavailable("The atlas has no record of a build of this base.")
        return
    counts = ("discovered", "indexed", "unchanged", "skipped", "failed")
    section.table(
        "Builds, the latest first",
        {
            "started (UTC)": "fixed", "took": "number", "outcome": "fixed", "looked at": "number", "indexed": "number",
            "unchanged": "number", "skipped": "number", "failed": "number", "read": "number",
        },
        [
            (
                moment(row["started"]), duration(row["seconds"]), row["outcome"], *(row[name] for name in counts),
                size(row["bytes_read"]),
            )
            for row in rows
        ],
        most=_BUILDS,
        everything=source.query("FROM builds WHERE base = ? ORDER BY build_id DESC"),
    )  # fmt: skip
    spec, thresholds, versions = (json.loads(rows[0][name] or "{}") for name in ("spec", "thresholds", "versions"))
    kept = f"the {spec['rank']} largest singular values and vectors" if "rank" in spec else "the singular vectors"
    words = [f"Of every delta {kept} are kept" + (" and all singular values" if spec.get("spectra") else "")]
    if "unrelated_below" in thresholds:
        words.append(
            "a model is called unrelated if the cosine of its weights with the base's is below "
            f"{decimal(thresholds['unrelated_below'])}"
        )
    section.paragraph("; ".join(words) + ".")
    if versions:
        names = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        section.paragraph(f"Versions: {names}.")
