"""Rows ``start`` and ``search``: how long a question takes, on an atlas of 10,000 roberta-base-sized models."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from query import Atlas
from scripts.bench.measure import NotMeasuredError, Table, interleaved, say
from scripts.bench.population import BASE, LENGTH, MODELS, Model, ten_thousand
from scripts.terminal import PROJECT

SHELL_REPEATS = 7
SEARCH_REPEATS = 21
NEAREST = 10
TIMES_BARE = 1.2
RIVAL = "python -c 'import faiss, duckdb'"


@dataclass(frozen=True)
class Command:
    """A command after ``python``, and the seconds it may take."""

    arguments: tuple[str, ...]
    bar: float | None = None


def measure_start(work: Path) -> list[Table]:
    """Whole commands from the shell, compared with a Python that only imports faiss and duckdb."""
    where = ("--atlas", str(ten_thousand(work)))
    similar = ("-m", "query", "similar", Model(MODELS // 2).name, *where)
    commands = {
        RIVAL: Command(("-c", "import faiss, duckdb")),
        "query --help": Command(("-m", "query", "--help"), 0.15),
        "query similar <indexed id>": Command(similar, 0.5),
        "query similar --where": Command((*similar, "--where", "downloads > 5000"), 0.7),
        "query similar --other-authors": Command((*similar, "--other-authors"), 0.7),
    }
    say(f"start: {SHELL_REPEATS} repeats of {len(commands)} commands")
    times = interleaved({name: partial(_seconds_of, command) for name, command in commands.items()}, SHELL_REPEATS)
    table = Table(
        f"start: a question from the shell, {MODELS:,} models of {LENGTH:,} numbers; {SHELL_REPEATS} interleaved "
        "repeats, median (range)",
        ["command", "s", "÷ import faiss, duckdb", "bar, s"],
    )
    for name, command in commands.items():
        bar = command.bar
        table.add(name, times[name], times[name].ratio_to(times[RIVAL]), "" if bar is None else bar)
        if bar is not None:
            table.promises[f"{name} ≤ {bar} s"] = times[name].median <= bar
    return [table]


def _seconds_of(command: Command) -> float:
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled, and so are the rivals
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command.arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        raise NotMeasuredError(f"{' '.join(command.arguments)} ended with exit code {done.returncode}: {said}")
    return seconds


def measure_search(work: Path) -> list[Table]:
    """One query in process, compared with bare FAISS and NumPy on the same vectors; all must find the same models."""
    import faiss

    faiss.omp_set_num_threads(1)
    with Atlas(ten_thousand(work)) as atlas:
        index, vectors = atlas.index(BASE), atlas.index(BASE).vectors()
        matrix = np.ascontiguousarray(vectors.matrix)
        bare = faiss.IndexFlatIP(LENGTH)
        bare.add(matrix)
        names = {row["model_id"]: row["model"] for row in atlas.rows("SELECT model_id, model FROM fine_tunes")}
        ways: dict[str, Callable[[int], set[int]]] = {
            "ours": lambda place: {found for found, _ in index.search(matrix[place], NEAREST)},
            "bare FAISS": lambda place: set(
                vectors.ids[bare.search(matrix[place : place + 1], NEAREST)[1][0]].tolist()
            ),
            "NumPy": lambda place: set(vectors.ids[_nearest(matrix, matrix[place])].tolist()),
        }
        _check(ways)
        asked = "whole question: Atlas.similar(other_authors=True)"
        questions: dict[str, Callable[[int], object]] = ways | {
            asked: lambda place: atlas.similar(names[int(vectors.ids[place])], NEAREST, other_authors=True)
        }
        times = interleaved({name: _timed(ask) for name, ask in questions.items()}, SEARCH_REPEATS)
    table = Table(
        f"search: one query among {MODELS:,} vectors of {LENGTH:,} numbers, one thread; {SEARCH_REPEATS} interleaved "
        "repeats, median (range)",
        ["method", "ms", "÷ bare FAISS"],
    )
    for name, seconds in times.items():
        table.add(name, seconds.times(1000), seconds.ratio_to(times["bare FAISS"]))
    ratio = times["ours"].ratio_to(times["bare FAISS"])
    table.promises[f"within {TIMES_BARE} × bare FAISS"] = ratio.median <= TIMES_BARE
    return [table]


def _timed(ask: Callable[[int], object]) -> Callable[[], float]:
    """Another model each time."""
    places = count()

    def once() -> float:
        place = 37 * next(places)
        started = time.perf_counter()
        ask(place)
        return time.perf_counter() - started

    return once


def _nearest(matrix: np.ndarray[Any, Any], query: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    similarities = matrix @ query
    best = np.argpartition(-similarities, NEAREST)[:NEAREST]
    return best[np.argsort(-similarities[best])]


def _check(ways: dict[str, Callable[[int], set[int]]]) -> None:
    """Raises NotMeasuredError where the ways disagree: then there is nothing to compare."""
    for place in range(0, MODELS, MODELS // 5):
        found = {name: ask(place) for name, ask in ways.items()}
        if len({frozenset(ids) for ids in found.values()}) != 1:
            raise NotMeasuredError(f"not all find the same models: {found}")
