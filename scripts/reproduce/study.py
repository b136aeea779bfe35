"""The study of several bases: crawl, read, publish, ask."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from query import Atlas
from scripts.reproduce.bases import REPRESENTATIONS, StudiedBase, questions
from scripts.reproduce.planted import FLAGS, Outcome, check
from scripts.reproduce.replies import ANSWERS, ask_all
from scripts.reproduce.results import BaseResults, Counts, Reply
from scripts.terminal import Terminal

KINDS = ("purity", "clusters", "map", "rank", "report")
TIMES = "represented.json"  # below the answers: seconds by representation


@dataclass(frozen=True)
class Subject:
    """A base to study: where its fine-tunes are looked for, and the family it stands on, if it is one of ours."""

    studied: StudiedBase
    asked_for: str  # the id that is given to --base
    family: Path | None = None


def build(run: Terminal, subject: Subject, limit: int | None) -> str:
    """Crawl and read; returns the base's canonical id. Raises CommandFailed where nothing came of it."""
    words = ["index", "build", "--base", subject.asked_for, "--spectra"]
    words += ["--discover", "names"] if subject.family else []  # some of a family carry no tag
    words += ["--limit", str(limit)] if limit else []
    run(shlex.join(words))
    with Atlas(run.folder / "atlas") as atlas:
        return atlas.base_named(subject.asked_for)


def represent(run: Terminal, bases: Sequence[str]) -> dict[str, float]:
    """Publish every representation that any of the bases lacks; returns the seconds that each took, when it did."""
    path = run.folder / ANSWERS / TIMES
    took = {**_read(path)} if path.is_file() else {}
    with Atlas(run.folder / "atlas") as atlas:
        rows = atlas.rows("SELECT base, representation FROM representations")
    published = {(row["base"], row["representation"]) for row in rows}
    for name in REPRESENTATIONS:
        if any((base, name) not in published for base in bases):
            started = time.monotonic()
            run(f"index represent {name}")
            took[name] = round(time.monotonic() - started, 1)
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(took), encoding="utf-8")
    return took


def study(run: Terminal, subject: Subject, base: str, limit: int | None, suffix: str) -> BaseResults:
    """Ask everything that is asked of one base."""
    replies = ask_all(run, base, questions(subject.studied, base, suffix))
    with Atlas(run.folder / "atlas") as atlas:
        found = outcomes(atlas, base)
        facts = atlas.rows(
            'SELECT bases."commit", sum(bytes_read) AS bytes_read, sum(epoch(finished) - epoch(started)) AS seconds '
            "FROM bases JOIN builds USING (base) WHERE base = ? GROUP BY ALL",
            [base],
        )[0]
        counted = counts(atlas, base, found)
    expected = _read(subject.family / "expected.json") if subject.family else None
    training = {"training": float(_read(subject.family / "family.json")["seconds"])} if subject.family else {}
    return BaseResults(
        seed_base=subject.studied.id,
        base=base,
        commit=facts["commit"],
        counts=counted,
        bytes_read=int(facts["bytes_read"]),
        check=None if expected is None else check(expected, found, is_partial=limit is not None),
        replies=replies,
        seconds=training | {"build": round(facts["seconds"], 1)} | seconds_by_kind(replies),
    )


def outcomes(atlas: Atlas, base: str) -> dict[str, Outcome]:
    """What became of every model that is listed for a base."""
    rows = atlas.rows(
        "SELECT model, status, reason, is_copy AS copy, duplicate_of IS NOT NULL AS duplicate, "
        "is_unrelated AS unrelated FROM fine_tunes LEFT JOIN records USING (model_id) WHERE base = ?",
        [base],
    )
    return {
        row["model"]: Outcome(row["status"], row["reason"], frozenset(flag for flag in FLAGS if row[flag]))
        for row in rows
    }


def counts(atlas: Atlas, base: str, found: Mapping[str, Outcome]) -> Counts:
    """How many of what."""
    statuses = [outcome.status for outcome in found.values()]
    flagged = {flag: sum(flag in outcome.flags for outcome in found.values()) for flag in FLAGS}
    reasons = sorted(outcome.reason for outcome in found.values() if outcome.reason)
    facts = atlas.rows(
        "SELECT count(*) FILTER (relation = 'adapter') AS adapters, count(DISTINCT author) AS authors, "
        "len(list_distinct(flatten(list(datasets)))) AS datasets FROM models WHERE base = ?",
        [base],
    )[0]
    return Counts(
        indexed=statuses.count("indexed"),
        skipped=statuses.count("skipped"),
        failed=statuses.count("failed"),
        not_tried=statuses.count("listed"),
        copies=flagged["copy"],
        duplicates=flagged["duplicate"],
        unrelated=flagged["unrelated"],
        adapters=facts["adapters"],
        datasets=facts["datasets"] or 0,
        authors=facts["authors"],
        reasons={reason: reasons.count(reason) for reason in dict.fromkeys(reasons)},
    )


def seconds_by_kind(replies: Mapping[str, Reply]) -> dict[str, float]:
    """How long the questions of each kind took, when they were asked."""
    return {
        kind: round(sum(reply.seconds for reply in replies.values() if reply.name.partition("-")[0] == kind), 1)
        for kind in KINDS
    }


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
