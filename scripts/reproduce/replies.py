"""Questions asked once: replies are kept beside the atlas for as long as what they stand on stays the same."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from query import Atlas
from scripts.reproduce.bases import Question, file_stem
from scripts.reproduce.results import Reply
from scripts.terminal import PROJECT, CommandFailed, Terminal

ANSWERS = "answers"  # their folder
SOURCES = ("query", "indexer")


def ask_all(run: Terminal, base: str, asked: tuple[Question, ...]) -> dict[str, Reply]:
    """The reply to every question, from an earlier run where nothing has changed since; failures are asked again."""
    state = state_of(run.folder / "atlas", base)
    kept = run.folder / ANSWERS / file_stem(base)
    kept.mkdir(parents=True, exist_ok=True)
    known = {question.name: read(kept / f"{question.name}.json", question, state, run.folder) for question in asked}
    count = sum(reply is not None for reply in known.values())
    print(f"\n{base}: {len(asked)} questions" + (f", {count} of them answered before" if count else ""), flush=True)
    replies = {}
    for question in asked:
        reply = known[question.name] or ask(run, question)
        if reply.error is None and reply is not known[question.name]:
            write(kept / f"{question.name}.json", reply, state)
        replies[question.name] = reply
    return replies


def ask(run: Terminal, question: Question) -> Reply:
    """Ask now. A study that this base has no answer to is an answer too, and does not end the others."""
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
    """A reply in a few words, for the terminal."""
    if reply.error is not None:
        return "no answer"
    told = reply.answer
    if told.get("purity") is not None:
        return f"purity {told['purity']:.2f}, chance {told['chance']:.2f}"
    if "clusters" in told:
        agreement = "" if told["ari"] is None else f", adjusted Rand index with datasets {told['ari']:.2f}"
        return f"{len(told['clusters'])} clusters{agreement}"
    return reply.file or told.get("note") or "answered"


def read(path: Path, question: Question, state: str, folder: Path) -> Reply | None:
    """The reply that is kept, if it is to this very question, of this state, and its file is still there."""
    try:
        stored: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if stored.get("state") != state or stored["reply"]["command"] != question.command:
        return None
    reply = Reply(**stored["reply"])
    return reply if reply.file is None or (folder / reply.file).is_file() else None


def write(path: Path, reply: Reply, state: str) -> None:
    """Keep a reply, by rename."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps({"state": state, "reply": asdict(reply)}), encoding="utf-8")
    beside.replace(path)


def state_of(atlas: Path, base: str) -> str:
    """Changes with the models of a base, what is known of them, their vectors, and the code that is asked."""
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
    """Digest of the sources that answer."""
    digest = hashlib.sha256()
    for package in SOURCES:
        for path in sorted((PROJECT / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
