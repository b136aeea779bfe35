"""The study of several bases: crawl, read, publish, ask. ``Results`` is what ``results.json`` contains."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from query import Atlas
from scripts.reproduce.planted import FLAGS, Check, Outcome, check
from scripts.terminal import PROJECT, CommandFailed, Terminal

REPRESENTATIONS = ("seed", "seed_scaled", "input", "output", "delta", "spectrum")
SIDE_BY_SIDE = ("seed", "input")  # the original method, and ours
PACKAGES = (
    "vectors-in-the-wild", "torch", "transformers", "peft", "safetensors", "huggingface_hub", "numpy", "scipy",
    "scikit-learn", "faiss-cpu", "duckdb", "umap-learn", "matplotlib", "pandas",
)  # fmt: skip
ANSWERS = "answers"  # their folder
SOURCES = ("query", "indexer")
KINDS = ("purity", "clusters", "map", "rank", "report")
TIMES = "represented.json"  # below the answers: seconds by representation


@dataclass(frozen=True)
class StudiedBase:
    """One of the seed's bases.

    ``architecture``: the family that stands for it offline, a table of ``scripts/family/plan.toml``.
    ``is_fused``: its checkpoints hold query, key and value as one matrix.
    """

    id: str
    architecture: str
    is_fused: bool = False

    @property
    def family_base(self) -> str:
        """The base model of the family."""
        return f"atlas-demo/tiny-{self.architecture}"


BASES = (
    StudiedBase("bert-base-uncased", "bert"),
    StudiedBase("roberta-base", "roberta"),
    StudiedBase("t5-base", "t5"),
    StudiedBase("gpt2-medium", "gpt2", is_fused=True),
)


@dataclass(frozen=True)
class Question:
    """A command that is asked of one base; ``file`` is what it writes, relative to the study's folder."""

    name: str
    command: str
    file: str | None = None


def questions(studied: StudiedBase, base: str, suffix: str) -> tuple[Question, ...]:
    """Everything that is asked of ``base`` once its vectors are published.

    ``base``: its canonical id. ``suffix``: of the figures, as ``.png``.
    """
    named, stem = f"--base {shlex.quote(base)}", file_stem(base)
    asked = [Question(f"purity-{name}", f"query purity {named} --representation {name}") for name in REPRESENTATIONS]
    asked += [Question(f"clusters-{name}", f"query clusters {named} --representation {name}") for name in SIDE_BY_SIDE]
    asked += [
        _drawn(f"map-{name}", f"query map {named} --representation {name}", f"figures/map-{stem}-{name}{suffix}")
        for name in SIDE_BY_SIDE
    ]
    for of in ("weights", "delta"):
        asked.append(_drawn(f"rank-{of}", f"query rank {named} --of {of}", f"figures/rank-{stem}-{of}{suffix}"))
        if studied.is_fused:
            whole = f"figures/rank-{stem}-{of}-whole{suffix}"
            asked.append(_drawn(f"rank-{of}-whole", f"query rank {named} --of {of} --whole", whole))
    asked.append(_drawn("report", f"query report {named}", f"reports/{stem}.html"))
    return tuple(asked)


def _drawn(name: str, command: str, file: str) -> Question:
    return Question(name, f"{command} --out {shlex.quote(file)}", file)


def file_stem(base: str) -> str:
    """A base's id as part of a file's name."""
    return base.replace("/", "--")


@dataclass(frozen=True)
class Reply:
    """What came of one question: ``answer`` is the command's JSON, ``error`` its last line where it failed."""

    name: str
    command: str
    seconds: float
    answer: Any = None
    file: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Counts:
    """Models found for a base by what became of them; the flagged ones are indexed ones."""

    indexed: int
    skipped: int
    failed: int
    not_tried: int  # listed, and beyond --limit
    copies: int
    duplicates: int
    unrelated: int
    adapters: int
    datasets: int  # named by the indexed models
    authors: int  # of the indexed models
    reasons: Mapping[str, int]  # of what was skipped or failed


@dataclass(frozen=True)
class BaseResults:
    """One base. ``seconds`` by part: training (of its family), build, and each kind of question."""

    seed_base: str
    base: str
    commit: str
    counts: Counts
    bytes_read: int
    check: Check | None  # of what was planted; None on the Hub, where nothing was
    replies: Mapping[str, Reply]
    seconds: Mapping[str, float]

    def answer(self, name: str) -> Any:
        """The answer to a question; None where there is none."""
        reply = self.replies.get(name)
        return None if reply is None else reply.answer


@dataclass(frozen=True)
class Results:
    """The whole study: ``source`` is the Hub's address, or what stood in its place."""

    source: str
    size: str | None
    limit: int | None
    bases: tuple[BaseResults, ...]
    represent_seconds: Mapping[str, float]  # to publish each representation, of all bases together
    purity_figure: str
    versions: Mapping[str, str] = field(default_factory=lambda: versions())

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=True) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Of Python and of the packages that numbers depend on; those that are not installed are left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


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


def ask_all(run: Terminal, base: str, asked: tuple[Question, ...]) -> dict[str, Reply]:
    """The reply to every question. Replies of earlier runs are reused while nothing changed; failures are asked again."""
    state = state_of(run.folder / "atlas", base)
    kept = run.folder / ANSWERS / file_stem(base)
    kept.mkdir(parents=True, exist_ok=True)
    known = {
        question.name: read_reply(kept / f"{question.name}.json", question, state, run.folder) for question in asked
    }
    count = sum(reply is not None for reply in known.values())
    print(f"\n{base}: {len(asked)} questions" + (f", {count} of them answered before" if count else ""), flush=True)
    replies = {}
    for question in asked:
        reply = known[question.name] or ask(run, question)
        if reply.error is None and reply is not known[question.name]:
            write_reply(kept / f"{question.name}.json", reply, state)
        replies[question.name] = reply
    return replies


def ask(run: Terminal, question: Question) -> Reply:
    """Run the command. If it fails, the error is the reply, and the other questions are still asked."""
    if question.file:
        (run.folder / question.file).parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    try:
        answer, error = run.ask(f"{question.command} --json"), None
    except CommandFailed as failure:
        answer, error = None, failure.said or str(failure)
    seconds = round(time.monotonic() - started, 1)
    file = question.file if error is None else None
    reply = Reply(question.name, question.command, seconds, answer, file, error)
    print(f"{gist(reply)} ({seconds:.0f} s)", flush=True)
    return reply


def gist(reply: Reply) -> str:
    """A short summary of a reply, for the terminal."""
    if reply.error is not None:
        return "no answer"
    answer = reply.answer
    if answer.get("purity") is not None:
        return f"purity {answer['purity']:.2f}, chance {answer['chance']:.2f}"
    if "clusters" in answer:
        agreement = "" if answer["ari"] is None else f", adjusted Rand index with datasets {answer['ari']:.2f}"
        return f"{len(answer['clusters'])} clusters{agreement}"
    return reply.file or answer.get("note") or "answered"


def read_reply(path: Path, question: Question, state: str, folder: Path) -> Reply | None:
    """The stored reply, if it has the same command and state, and its file still exists."""
    try:
        stored: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if stored.get("state") != state or stored["reply"]["command"] != question.command:
        return None
    reply = Reply(**stored["reply"])
    return reply if reply.file is None or (folder / reply.file).is_file() else None


def write_reply(path: Path, reply: Reply, state: str) -> None:
    """Store a reply, by rename."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"state": state, "reply": asdict(reply)}), encoding="utf-8")
    part.replace(path)


def state_of(atlas: Path, base: str) -> str:
    """A digest of the models of a base, their metadata and vectors, and the code that answers."""
    with Atlas(atlas) as opened:
        models = opened.rows(
            "SELECT model, record_key, status, reason, author, relation, datasets, is_copy, is_unrelated, duplicate_of "
            "FROM fine_tunes LEFT JOIN (SELECT model_id, datasets FROM models) USING (model_id) "
            "LEFT JOIN (SELECT model_id, is_copy, is_unrelated, duplicate_of FROM records) USING (model_id) "
            "WHERE base = ? ORDER BY model",
            [base],
        )
        vectors = opened.rows(
            "SELECT representation, segment, faiss_sha256 FROM internal.segments WHERE base = ? ORDER BY ALL", [base]
        )
    return hashlib.sha256(json.dumps([models, vectors, code()], default=str).encode()).hexdigest()


@cache
def code() -> str:
    """A digest of the source code that answers."""
    digest = hashlib.sha256()
    for package in SOURCES:
        for path in sorted((PROJECT / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
