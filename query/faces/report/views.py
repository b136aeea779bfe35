"""The sections made from views of the database: the crawl, names, duplicates, lineage, claims, models."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from typing import Any

from indexer.errors import AtlasError
from query.faces.report.page import Section, Source, enumerated, shorten
from query.faces.report.reasons import REASONS, STATUSES, UNEXPLAINED, claim_in_words
from query.models.reader import PUBLIC_HUB
from query.models.sampled import flags_in_words
from query.shared.wording import count, counted, percent

_BUILDS = 8  # rows, the latest first
_REASONS = 40
_MOST, _MOST_NAMES = 20, 25  # rows of a table
_MOST_MODELS = 2000  # with more rows, browsers scroll badly
_USUAL_RANK = 8


def crawl(source: Source, section: Section) -> dict[str, Any]:
    """Counts by status and reason, bytes, times and versions."""
    by_status = source.rows("SELECT status, count(*) AS models FROM fine_tunes WHERE base = ? GROUP BY status")
    models = {row["status"]: row["models"] for row in by_status}
    total, indexed = sum(models.values()), models.get("indexed", 0)
    section.key_number(count(total), f"models found that claim {source.base}")
    share = percent(indexed / total) if total else "none"
    section.key_number(count(indexed), f"indexed: weights read and compared ({share})")
    section.says.append(
        f"{counted(total, 'model')} of {source.base} {'was' if total == 1 else 'were'} found, and the weights of "
        f"{indexed:,} could be read and compared."
    )
    nothing = None if total else section.unavailable("Nothing was found: no model is listed for this base.")
    (dates,) = source.rows(
        "SELECT min(first_seen) AS first, max(last_seen) AS last, count(*) FILTER (deleted_at_hub) AS deleted "
        "FROM fine_tunes WHERE base = ?"
    )
    statuses = source.table(
        "What became of the models found",
        {"status": "text", "models": "number", "share": "percent", "meaning": "prose"},
        [(name, models[name], models[name] / total, words) for name, words in STATUSES.items() if name in models],
    )
    origins = source.rows(
        "SELECT relation, count(*) AS found, count(*) FILTER (status = 'indexed') AS indexed, "
        "list(claimed_by) AS claims FROM fine_tunes WHERE base = ? GROUP BY relation ORDER BY found DESC, relation"
    )
    for row in origins:
        claims = sorted(Counter(map(claim_in_words, row["claims"])).items(), key=lambda pair: (-pair[1], pair[0]))
        row["claims"] = "; ".join(f"{shorten(words, 60)} ({number:,})" for words, number in claims)
    failures = source.rows("SELECT * FROM failures WHERE base = ? ORDER BY models DESC, status DESC, reason")
    (totals,) = source.rows(
        "SELECT count(*) AS models, sum(bytes_read) AS read, "
        "sum(list_sum(list_transform(weight_files, lambda file: file.size))) AS stored, "
        "count(*) FILTER (\"read\" = 'sample') AS sampled, sum(block_bytes) FILTER (\"read\" = 'sample') AS rest "
        "FROM models WHERE base = ?"
    )
    (atlas,) = source.atlas.rows("SELECT * FROM atlas_info")
    builds = source.rows("SELECT * FROM builds WHERE base = ? ORDER BY build_id DESC")
    latest = {
        name: json.loads(builds[0][name] or "{}") if builds else {} for name in ("spec", "thresholds", "versions")
    }
    columns = {
        "started": "started (UTC)", "seconds": "took", "outcome": "outcome", "discovered": "looked at",
        "indexed": "indexed", "unchanged": "unchanged", "skipped": "skipped", "failed": "failed", "bytes_read": "read",
    }  # fmt: skip
    kinds = {"started": "moment", "seconds": "duration", "outcome": "fixed", "bytes_read": "size"}
    return {
        "nothing": nothing,
        "total": total,
        "seen": dates,
        "statuses": statuses,
        "origins": source.table(
            "How they say they were made",
            {"relation": "text", "found": "number", "indexed": "number", "claimed by": "prose"},
            origins,
        ),
        "failures": source.table(
            "Skipped and failed models by reason",
            {
                "reason": "code", "models": "number", "status": "text", "in plain words": "prose",
                "an example": "model", "details of the example": "prose",
            },
            [
                (
                    row["reason"] or "unknown", row["models"], row["status"],
                    REASONS.get(row["reason"] or "", UNEXPLAINED), row["example_model"],
                    shorten(row["example"] or "", 160),
                )
                for row in failures
            ],
            most=_REASONS,
            everything=source.query("FROM failures WHERE base = ? ORDER BY models DESC"),
        ),
        "read": totals,
        "rejected": source.number("SELECT count(*) FROM rejected_listing_rows WHERE base = ?"),
        "atlas": atlas,
        "commit": source.atlas.base_row(source.base)["commit"],
        "no_build": None if builds else section.unavailable("The atlas has no record of a build of this base."),
        "builds": source.table(
            "Builds, the latest first",
            {title: kinds.get(name, "number") for name, title in columns.items()},
            [[row[name] for name in columns] for row in builds],
            most=_BUILDS,
            everything=source.query("FROM builds WHERE base = ? ORDER BY build_id DESC"),
        ),
        **latest,
    }  # fmt: skip


def names(source: Source, section: Section) -> dict[str, Any]:
    """The datasets that models name, with spellings merged, and the authors."""
    indexed = source.number("SELECT count(*) FROM models WHERE base = ?")
    if not indexed:
        raise AtlasError("No model is indexed, so there is nothing to count.", "")
    documented = source.number("SELECT count(*) FROM models WHERE base = ? AND len(datasets) > 0")
    datasets = source.rows(
        "SELECT counts.*, most FROM dataset_counts AS counts JOIN ("
        "  SELECT base, dataset, max(models) AS most FROM ("
        "    SELECT base, dataset, author, count(DISTINCT model_id) AS models FROM fine_tunes "
        "    JOIN model_datasets USING (model_id) WHERE status = 'indexed' AND dataset IS NOT NULL GROUP BY ALL"
        "  ) GROUP BY ALL) USING (base, dataset) WHERE base = ? ORDER BY models DESC, dataset"
    )
    section.key_number(
        count(documented), f"of them name a dataset; {counted(len(datasets), 'dataset is', 'datasets are')} named"
    )
    unnamed = None
    if not datasets:
        unnamed = section.unavailable(f"None of the {counted(indexed, 'indexed model')} names a dataset.")
    authors = source.rows("SELECT * FROM author_counts WHERE base = ? ORDER BY models DESC, author")
    largest = authors[0]["models"] / indexed
    section.key_number(count(len(authors)), f"authors; the largest uploaded {percent(largest)} of the models")
    return {
        "indexed": indexed,
        "documented": documented,
        "unnamed": unnamed,
        "dataset_count": len(datasets),
        "spellings": len({raw for row in datasets for raw in row["spellings"]}),
        "datasets": source.table(
            "Datasets by number of models",
            {
                "dataset": "name", "models": "number", "authors": "number", "share of its largest author": "percent",
                "as spelt": "name",
            },
            [
                (
                    row["dataset"], row["models"], row["authors"], row["most"] / row["models"],
                    row["spellings"] if row["spellings"] != [row["dataset"]] else "the same",
                )
                for row in datasets
            ],
            most=_MOST_NAMES,
            everything=source.query("FROM dataset_counts WHERE base = ? ORDER BY models DESC"),
        ),
        "unusable": source.number(
            "SELECT count(DISTINCT model_id) FROM models JOIN model_datasets USING (model_id) "
            "WHERE base = ? AND dataset IS NULL"
        ),
        "author_count": len(authors),
        "author": shorten(authors[0]["author"] or "(none)", 80),
        "largest": largest,
        "authors": source.table(
            "Authors by number of models",
            {"author": "name", "models": "number", "share": "percent", "downloads": "number"},
            [
                (row["author"] or "(none)", row["models"], row["models"] / indexed, row["downloads"])
                for row in authors
            ],
            most=_MOST_NAMES,
            everything=source.query("FROM author_counts WHERE base = ? ORDER BY models DESC"),
        ),
    }  # fmt: skip


def duplicates(source: Source, section: Section) -> dict[str, Any]:
    """Copies of the base, and uploads that repeat an earlier one."""
    copies = source.rows(
        "SELECT model, author, created, downloads, copy_evidence FROM models WHERE base = ? AND is_copy "
        "AND coalesce(copy_evidence, '') NOT IN ('untrained', 'unmeasurable') "
        "ORDER BY downloads DESC NULLS LAST, model"
    )
    repeats = source.rows(
        "SELECT model, first_upload, if(author <> first_author, 'another author', 'the same author') AS by_whom, "
        "created FROM duplicates WHERE base = ? ORDER BY first_upload, created, model"
    )
    evidence_in_words = {"sample": "all that was read of it", "checksum": "the checksum of its file"}
    for row in copies:
        row["copy_evidence"] = evidence_in_words.get(row["copy_evidence"], "all its matrices")
    is_partial = any(row["copy_evidence"] == evidence_in_words["sample"] for row in copies)
    section.key_number(count(len(copies)), f"{'copy' if len(copies) == 1 else 'copies'} of the base under another name")
    section.key_number(
        count(len(repeats)), f"{'duplicate' if len(repeats) == 1 else 'duplicates'} of an earlier upload"
    )
    return {
        "copies": source.table(
            f"{counted(len(copies), 'copy', 'copies')} of the base",
            {"model": "model", "author": "name", "created": "fixed", "downloads": "number", "equal in": "fixed"},
            copies,
            most=_MOST,
            everything=source.query(
                "SELECT model FROM models WHERE is_copy AND base = ? "
                "AND coalesce(copy_evidence, '') NOT IN ('untrained', 'unmeasurable')"
            ),
        ),
        "is_partial": is_partial,
        "repeats": source.table(
            counted(len(repeats), "duplicate"),
            {"model": "model", "has the weights of": "model", "uploaded by": "fixed", "created": "fixed"},
            repeats,
            most=_MOST,
            everything=source.query("FROM duplicates WHERE base = ?"),
        ),
    }


def lineage(source: Source, _section: Section) -> dict[str, Any]:
    """Kinds of steps, cards that the weights contradict, and licences that drop terms of the parent's."""
    return {
        "kinds": source.table(
            "Steps by kind",
            {"kind": "name", "models": "number", "card confirmed": "number", "card contradicted": "number"},
            source.rows(
                "SELECT kind, count(DISTINCT model_id) AS models, "
                "count(DISTINCT model_id) FILTER (card = 'confirmed') AS confirmed, "
                "count(DISTINCT model_id) FILTER (card = 'contradicted') AS contradicted "
                "FROM lineage JOIN fine_tunes USING (model_id) WHERE base = ? GROUP BY kind ORDER BY models DESC, kind"
            ),
        ),
        "contradicted": source.table(
            "Cards that the weights contradict",
            {"model": "model", "made from": "model", "kind": "fixed"},
            source.rows(
                "SELECT child.model, coalesce(parent.model, child.base) AS parent, kind FROM lineage "
                "JOIN fine_tunes AS child USING (model_id) "
                "LEFT JOIN fine_tunes AS parent ON parent.model_id = parent_id "
                "WHERE child.base = ? AND card = 'contradicted' ORDER BY child.model, parent"
            ),
            most=_MOST,
            everything=source.query("FROM lineage WHERE card = 'contradicted'"),
        ),
        "licences": source.table(
            "Licences that drop terms of the parent's",
            {"model": "model", "licence": "fixed", "made from": "model", "its licence": "fixed"},
            source.rows(
                "SELECT model, coalesce(nullif(licence, ''), 'none') AS licence, parent, parent_licence "
                "FROM licence_conflicts WHERE base = ? ORDER BY downloads DESC NULLS LAST, model, parent"
            ),
            most=_MOST,
            everything=source.query("FROM licence_conflicts WHERE base = ?"),
        ),
    }


def pairs(source: Source, _section: Section) -> dict[str, Any]:
    """The most similar pairs of models by different authors, without duplicates, which have a section of their own."""
    statement = (
        "SELECT pair.model, pair.neighbour, pair.similarity, pair.datasets, pair.neighbour_datasets "
        "FROM similar_pairs AS pair "
        "JOIN models AS one ON one.base = pair.base AND one.model = pair.model "
        "JOIN models AS other ON other.base = pair.base AND other.model = pair.neighbour "
        "WHERE pair.base = ? AND pair.other_author AND NOT pair.is_repeat AND pair.similarity > 0 "
        "AND NOT one.is_unrelated AND NOT other.is_unrelated "
        "ORDER BY pair.similarity DESC, pair.model, pair.neighbour"
    )
    rows = source.rows(f"SELECT *, count(*) OVER () AS pairs FROM ({statement}) LIMIT {_MOST}")
    if not rows:
        raise AtlasError("No two models by different authors are alike, or none can be compared.", "")
    cells = []
    for row in rows:
        datasets_of_model, datasets_of_neighbour = row["datasets"], row["neighbour_datasets"]
        if shared := [name for name in datasets_of_model if name in datasets_of_neighbour]:
            datasets = f"both {enumerated(shared)}"
        elif datasets_of_model or datasets_of_neighbour:
            datasets = (
                f"{enumerated(datasets_of_model) or 'none named'}; {enumerated(datasets_of_neighbour) or 'none named'}"
            )
        else:
            datasets = "neither names any"
        cells.append((row["model"], row["neighbour"], row["similarity"], datasets))
    return {
        "pairs": source.table(
            "The most similar pairs by different authors",
            {"model": "model", "and": "model", "similarity": "three digits", "datasets that they name": "name"},
            cells,
            everything=source.query(statement),
            total=rows[0]["pairs"],
        )
    }


def claims(source: Source, section: Section) -> dict[str, Any]:
    """Models that claim the base although their weights contradict it."""
    rows = source.rows("SELECT * FROM suspicious_claims WHERE base = ? ORDER BY downloads DESC NULLS LAST, model")
    section.key_number(count(len(rows)), "whose weights contradict the base that they claim")
    columns = {
        "model": "model", "author": "name", "says it is a": "text", "claimed by": "text",
        "cosine with the base": "three digits", "downloads": "number",
    }  # fmt: skip
    if has_adapters := any(row["names_base"] for row in rows):
        columns["adapter of"] = "name"
    table_rows = []
    for row in rows:
        claim = shorten(claim_in_words(row["claimed_by"]), 60)
        cells = [row["model"], row["author"], row["relation"], claim, row["base_cosine"], row["downloads"]]
        table_rows.append([*cells, *([shorten(row["names_base"] or "", 60)] if has_adapters else [])])
    return {
        "unknown": source.number("SELECT count(*) FROM models WHERE base = ? AND verified IS NULL"),
        "claims": source.table(
            f"{counted(len(rows), 'claim')} that the weights contradict",
            columns,
            table_rows,
            most=_MOST_NAMES,
            everything=source.query("FROM suspicious_claims WHERE base = ?"),
        ),
    }


def models(source: Source, _section: Section) -> dict[str, Any]:
    """Every indexed model, to look up models that the sections above mention."""
    rows = source.rows(
        "SELECT model, relation, datasets, licence, downloads, created, is_copy, is_unrelated, is_partly_frozen, "
        "copy_evidence, duplicate_of FROM models WHERE base = ? ORDER BY downloads DESC NULLS LAST, model"
    )
    if not rows:
        raise AtlasError("No model is indexed, so there is nothing to list.", "")
    table_rows = []
    for row in rows:
        remarks = [*flags_in_words(row), *(["duplicate"] if row["duplicate_of"] is not None else [])]
        licence = shorten(row["licence"] or "", 40)
        facts = [row["model"], row["relation"], row["datasets"], licence, row["downloads"], row["created"]]
        table_rows.append([*facts, ", ".join(remarks)])
    return {
        "models": source.table(
            "Every indexed model, the most downloaded first",
            {
                "model": "model", "relation": "fixed", "datasets": "name", "licence": "name", "downloads": "number",
                "created": "fixed", "remarks": "prose",
            },
            table_rows,
            most=_MOST_MODELS,
            everything=source.query("FROM models WHERE base = ?"),
        )
    }  # fmt: skip


def method(source: Source, _section: Section) -> dict[str, Any]:
    """The commands that make this page, then the caveats."""
    options = source.crawled.options
    if options is None:  # an atlas that does not store them: use the options that its builds imply
        rows = source.rows("SELECT spec FROM builds WHERE base = ? ORDER BY build_id DESC LIMIT 1")
        spec = json.loads(rows[0]["spec"] or "{}") if rows else {}
        rank = str(spec.get("rank", _USUAL_RANK))
        options = (
            *(("--rank", rank) if rank != str(_USUAL_RANK) else ()),
            *(["--spectra"] if spec.get("spectra") else []),
        )
    published = source.rows("SELECT representation FROM representations WHERE base = ? ORDER BY representation")
    others = [row["representation"] for row in published if row["representation"] != "input"]
    endpoint = source.crawled.endpoint
    lines = [
        "pip install -c constraints.txt '.[studies]'    # in the folder of the project",
        *([f"export HF_ENDPOINT={shlex.quote(endpoint)}"] if endpoint != PUBLIC_HUB else []),
        " ".join(["index build --base", shlex.quote(source.base), *map(shlex.quote, options)]),
        *(f"index represent {shlex.quote(name)}" for name in others),
        source.command("report", f"--seed {source.seed} --out report.html"),
        "",
        "# its parts, in more detail and as JSON",
        *(source.command(name, "--json") for name in ("purity", "clusters", "rank", "predict --evaluate")),
        source.command("map", f"--seed {source.seed} --out map.html"),
    ]
    # Similarities with adapters rest on fewer matrices.
    (adapters,) = source.rows(
        "SELECT count(*) AS models, min(share) AS least, median(share) AS middle FROM ("
        "  SELECT model_id, count(*) FILTER (norm > 0) / len(any_value(deltas)) AS share "
        "  FROM deltas JOIN models USING (model_id) JOIN bases USING (base) "
        "  WHERE base = ? AND relation = 'adapter' GROUP BY model_id HAVING share > 0)"
    )
    return {"commands": "\n".join(lines), "adapters": adapters}
