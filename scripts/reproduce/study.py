"""The study of several bases: crawl, read, publish, ask. Results are plain JSON (``results.json``)."""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from query import Atlas
from scripts.terminal import CommandFailed, Terminal

REPRESENTATIONS = ("seed", "seed_scaled", "input", "output", "delta", "spectrum")
SIDE_BY_SIDE = ("seed", "input")  # the original method, and ours
FLAGS = ("copy", "duplicate", "unrelated")
ORDINARY = "Tuned from the base, whatever its card and its files look like."
TRIED = ("indexed", "skipped", "failed")

Json = dict[str, Any]


class StudiedBase(NamedTuple):
    """A base of the original study, and the architecture of the family that replaces it offline.

    ``is_fused``: its checkpoints store query, key and value as one matrix.
    """

    id: str
    architecture: str
    is_fused: bool = False


BASES = (
    StudiedBase("bert-base-uncased", "bert"),
    StudiedBase("roberta-base", "roberta"),
    StudiedBase("t5-base", "t5"),
    StudiedBase("gpt2-medium", "gpt2", is_fused=True),
)


def questions(base: str, is_fused: bool) -> dict[str, tuple[str, str | None]]:
    """Everything that is asked of a published base: command, and the file it writes in the study's folder, by name."""
    stem = base.replace("/", "--")
    asked: dict[str, tuple[str, str | None]] = {}
    for name in REPRESENTATIONS:
        asked[f"purity-{name}"] = f"query purity --representation {name}", None
    for name in SIDE_BY_SIDE:
        asked[f"clusters-{name}"] = f"query clusters --representation {name}", None
    for name in SIDE_BY_SIDE:
        asked[f"map-{name}"] = f"query map --representation {name}", f"figures/map-{stem}-{name}.png"
    for of in ("weights", "delta"):
        asked[f"rank-{of}"] = f"query rank --of {of}", f"figures/rank-{stem}-{of}.png"
        if is_fused:
            asked[f"rank-{of}-whole"] = f"query rank --of {of} --whole", f"figures/rank-{stem}-{of}-whole.png"
    asked["report"] = "query report", f"reports/{stem}.html"
    return {
        name: (f"{command} --base {shlex.quote(base)}" + (f" --out {shlex.quote(file)}" if file else ""), file)
        for name, (command, file) in asked.items()
    }


def build(run: Terminal, asked_for: str, limit: int | None, *, is_family: bool) -> str:
    """Crawl and read; returns the base's canonical id. Raises CommandFailed."""
    words = ["index", "build", "--base", asked_for, "--spectra"]
    words += ["--discover", "names"] if is_family else []  # some models of a family have no tag
    words += ["--limit", str(limit)] if limit else []
    run(shlex.join(words))
    with Atlas(run.folder / "atlas") as atlas:
        return atlas.base_named(asked_for)


def represent(run: Terminal, bases: Sequence[str]) -> list[str]:
    """Publish every representation that one of the bases lacks; returns their names."""
    with Atlas(run.folder / "atlas") as atlas:
        rows = atlas.rows("SELECT base, representation FROM representations")
    published = {(row["base"], row["representation"]) for row in rows}
    missing = [name for name in REPRESENTATIONS if any((base, name) not in published for base in bases)]
    for name in missing:
        run(f"index represent {name}")
    return missing


def study_base(run: Terminal, studied: StudiedBase, base: str, family: Path | None, limit: int | None) -> Json:
    """Ask all questions about one base, count its models, and check what was planted in its ``family``."""
    asked = questions(base, studied.is_fused)
    print(f"\n{base}: {len(asked)} questions", flush=True)
    replies = {name: ask(run, command, file) for name, (command, file) in asked.items()}
    with Atlas(run.folder / "atlas") as atlas:
        found = endings(atlas, base)
        ((models,), (work,)) = (
            atlas.rows(statement, [base])
            for statement in (
                "SELECT count(*) FILTER (relation = 'adapter') AS adapters, count(DISTINCT author) AS authors, "
                "len(list_distinct(flatten(list(datasets)))) AS datasets FROM models WHERE base = ?",
                'SELECT bases."commit", sum(bytes_read) AS bytes_read '
                "FROM bases JOIN builds USING (base) WHERE base = ? GROUP BY ALL",
            )
        )
    checked = None
    if family:
        expected = json.loads((family / "expected.json").read_text(encoding="utf-8"))
        checked = check(expected, found, is_partial=limit is not None)
    rows = found.values()
    statuses = Counter(row["status"] for row in rows)
    return {
        "original_base": studied.id,
        "base": base,
        "commit": work["commit"],
        "bytes_read": int(work["bytes_read"]),
        "counts": {
            **{name: statuses[name] for name in TRIED},
            "not_tried": statuses["listed"],
            **{flag: sum(bool(row[flag]) for row in rows) for flag in FLAGS},
            **models,
            "reasons": dict(sorted(Counter(row["reason"] for row in rows if row["reason"]).items())),
        },
        "check": checked,
        "replies": replies,
    }


def ask(run: Terminal, command: str, file: str | None) -> Json:
    """Run a command. If it fails, the error is the reply, and the study continues."""
    if file:
        (run.folder / file).parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    try:
        answer, error = run.ask(f"{command} --json"), None
    except CommandFailed as failure:
        answer, error = None, failure.said or str(failure)
    seconds = round(time.monotonic() - started, 1)
    summary = file or "answered"
    if error is not None:
        summary = "no answer"
    elif answer.get("purity") is not None:
        summary = f"purity {answer['purity']:.2f}, chance {answer['chance']:.2f}"
    elif "clusters" in answer:
        summary = f"{len(answer['clusters'])} clusters"
    print(f"{summary} ({seconds:.0f} s)", flush=True)
    return {"command": command, "seconds": seconds, "answer": answer, "file": None if error else file, "error": error}


def endings(atlas: Atlas, base: str) -> dict[str, dict[str, Any]]:
    """Status, reason and FLAGS of each model that an atlas lists."""
    rows = atlas.rows(
        "SELECT model, status, reason, is_copy AS copy, duplicate_of IS NOT NULL AS duplicate, "
        "is_unrelated AS unrelated FROM fine_tunes LEFT JOIN records USING (model_id) WHERE base = ?",
        [base],
    )
    return {row["model"]: row for row in rows}


def check(expected: Mapping[str, Json], found: Mapping[str, Mapping[str, Any]], *, is_partial: bool) -> Json:
    """Compare every repository of a family with what the atlas says of it.

    Args:
        expected: ``expected.json``: model → outcome, reason, flag, why.
        found: of ``endings``.
        is_partial: with --limit, a model that was not tried is not a mismatch.
    """
    kinds: dict[str, Json] = {}
    mismatches = []
    not_tried = 0
    for model, row in sorted(expected.items()):
        one = found.get(model, {"status": "not listed", "reason": None})
        # expected.json is of a build with --no-descendants that refuses DoRA.
        if row.get("found_by") == "descendants" or row.get("reason") == "adapter_unsupported":
            row = {**row, "outcome": "indexed", "reason": None}
        if is_partial and row["outcome"] in TRIED and one["status"] not in TRIED:
            not_tried += 1
            continue
        flags = [flag for flag in FLAGS if one.get(flag)]
        # An ordinary model must have no flag.
        is_right = (
            one["status"] == row["outcome"]
            and row["reason"] in (None, one["reason"])
            and (row["flag"] in flags if row["flag"] else not flags)
        )
        name = row["flag"] or ("ordinary" if row["outcome"] == "indexed" else row["reason"] or row["outcome"])
        why = ORDINARY if name == "ordinary" else row["why"]
        kind = kinds.setdefault(name, {"kind": name, "models": 0, "as_expected": 0, "why": why})
        kind["models"] += 1
        kind["as_expected"] += is_right
        if not is_right:
            wanted = " ".join(filter(None, (row["outcome"], row["reason"], row["flag"])))
            ended = " ".join(filter(None, (one["status"], one["reason"], *flags)))
            mismatches.append({"model": model, "expected": wanted, "found": ended, "why": row["why"]})
    commonest = sorted(kinds.values(), key=lambda kind: (-kind["models"], kind["kind"]))
    return {"kinds": commonest, "mismatches": mismatches, "not_tried": not_tried}
