"""Rows ``start`` and ``search``: how long a question takes, on a synthetic atlas of 10,000 models.

Vectors are of the length of roberta-base's (studies.scale), and all models changed all matrices, so that bare FAISS finds
the same neighbours.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from indexer.vectors.table import VectorTable
from query import Atlas
from scripts.bench.measure import NotMeasuredError, Table, interleaved, made_once, say
from scripts.child import PROJECT, run_module, run_python
from scripts.synthetic.making import BASE, Maker, record_all
from scripts.synthetic.population import EVERY_FAMILY, Population, draw_labels

MODELS = 10_000
SHELL_REPEATS = 7
SEARCH_REPEATS = 21
NEAREST = 10
TIMES_BARE = 1.2
RIVAL = "python -c 'import faiss, duckdb'"
# What decides how the atlas turns out: its records, its tables, its vectors and their index.
CODE = (
    Path(__file__),
    PROJECT / "scripts" / "synthetic",
    PROJECT / "schema.sql",
    *(PROJECT / "indexer" / name for name in ("publish", "vectors", "records")),
)


def ten_thousand(work: Path) -> Path:
    """The folder of the atlas, made if there is none from this code (minutes)."""

    def make(folder: Path) -> None:
        labels = draw_labels(MODELS, 0)
        labels = replace(
            labels,
            changed=np.full(MODELS, EVERY_FAMILY, dtype=np.uint8),
            original=np.arange(MODELS, dtype=np.int32),
            is_adapter=np.zeros(MODELS, dtype=bool),
        )
        maker = Maker(folder / "atlas", Population(labels, 0))
        maker.crawl(range(MODELS))
        record_all(maker, MODELS)
        run_module("indexer", "publish", "--base", BASE, "--atlas", str(maker.folder.root), "--json")

    return made_once(work / f"atlas-{MODELS}", make, CODE) / "atlas"


def measure_start(work: Path) -> list[Table]:
    """Whole commands from the shell, compared with a Python that only imports faiss and duckdb."""
    folder = ten_thousand(work)
    with Atlas(folder) as atlas:
        model = atlas.rows("SELECT model FROM models ORDER BY hash(model) LIMIT 1")[0]["model"]
    similar = ("-m", "query", "similar", model, "--atlas", str(folder))
    # Each command after ``python``, and the seconds it may take.
    commands: dict[str, tuple[tuple[str, ...], float | None]] = {
        RIVAL: (("-c", "import faiss, duckdb"), None),
        "query --help": (("-m", "query", "--help"), 0.15),
        "query similar <indexed id>": (similar, 0.5),
        "query similar --where": ((*similar, "--where", "downloads > 20"), 0.7),
        "query similar --other-authors": ((*similar, "--other-authors"), 0.7),
    }
    say(f"start: {SHELL_REPEATS} repeats of {len(commands)} commands")
    methods = {name: lambda words=words: run_python(*words)[0] for name, (words, _) in commands.items()}
    times = interleaved(methods, SHELL_REPEATS)
    table = Table(
        f"start: a question from the shell, {MODELS:,} models; {SHELL_REPEATS} interleaved repeats, median (range)",
        ["command", "s", "÷ import faiss, duckdb", "bar, s"],
    )
    for name, (_, bar) in commands.items():
        table.add(name, times[name], times[name].ratio_to(times[RIVAL]), "" if bar is None else bar)
        if bar is not None:
            table.promises[f"{name} ≤ {bar} s"] = times[name].median <= bar
    return [table]


def measure_search(work: Path) -> list[Table]:
    """One query in process, compared with bare FAISS and NumPy on the same vectors.

    Raises NotMeasuredError if they do not find the same models: then there is nothing to compare.
    """
    import faiss

    faiss.omp_set_num_threads(1)
    with Atlas(ten_thousand(work)) as atlas:
        index, vectors = atlas.index(BASE), atlas.index(BASE).vectors()
        matrix = np.ascontiguousarray(vectors.matrix)
        bare = faiss.IndexFlatIP(matrix.shape[1])
        bare.add(matrix)
        names = {row["model_id"]: row["model"] for row in atlas.rows("SELECT model_id, model FROM fine_tunes")}

        def by_numpy(place: int) -> set[int]:
            similarities = matrix @ matrix[place]
            best = np.argpartition(-similarities, NEAREST)[:NEAREST]
            return set(vectors.ids[best[np.argsort(-similarities[best])]].tolist())

        ways: dict[str, Callable[[int], object]] = {
            "ours": lambda place: {
                found for found, _ in index.search(VectorTable(matrix[place][None], index.masks.blocks), NEAREST)
            },
            "bare FAISS": lambda place: set(
                vectors.ids[bare.search(matrix[place : place + 1], NEAREST)[1][0]].tolist()
            ),
            "NumPy": by_numpy,
        }
        for place in range(0, len(matrix), len(matrix) // 5):
            found = {name: ask(place) for name, ask in ways.items()}
            if any(one != found["ours"] for one in found.values()):
                raise NotMeasuredError(f"not all find the same models: {found}")
        ways["whole question: Atlas.similar(other_authors=True)"] = lambda place: atlas.similar(
            names[int(vectors.ids[place])], NEAREST, other_authors=True
        )

        def timed(ask: Callable[[int], object]) -> Callable[[], float]:
            places = itertools.count(step=37)  # another model each time

            def once() -> float:
                place = next(places)
                started = time.perf_counter()
                ask(place)
                return time.perf_counter() - started

            return once

        times = interleaved({name: timed(ask) for name, ask in ways.items()}, SEARCH_REPEATS)
    table = Table(
        f"search: one query among {len(matrix):,} vectors of {matrix.shape[1]:,} numbers, one thread; {SEARCH_REPEATS} "
        "interleaved repeats, median (range)",
        ["method", "ms", "÷ bare FAISS"],
    )
    for name, seconds in times.items():
        table.add(name, seconds.times(1000), seconds.ratio_to(times["bare FAISS"]))
    ratio = times["ours"].ratio_to(times["bare FAISS"])
    table.promises[f"within {TIMES_BARE} × bare FAISS"] = ratio.median <= TIMES_BARE
    return [table]
