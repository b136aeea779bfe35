"""Rows ``start`` and ``search``: how long a question takes, on an atlas of 10,000 roberta-base-sized models."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from indexer.atlas import STORAGE_VERSION, AtlasFolder, schema_sql
from indexer.publishing.neighbours import nearest
from indexer.vectors import Vectors, open_index, search, write_vectors
from indexer.words import FAMILIES, DeltaKey
from scripts.bench.measure import Table, Timing, interleaved, say

PROJECT = Path(__file__).resolve().parents[2]
BASE = "FacebookAI/roberta-base"
MODELS, LENGTH, GROUPS = 10_000, 72 * 57, 200
REPEATS = 7


def measure_start(work: Path) -> list[Table]:
    """Whole commands from the shell, each beside a Python that only imports faiss and duckdb."""
    atlas = _atlas(work)
    python = [sys.executable]
    query = [*python, "-m", "query"]
    commands = {
        "python -c 'import faiss, duckdb'": [*python, "-c", "import faiss, duckdb"],
        "query --help": [*query, "--help"],
        "query similar <indexed id>": [*query, "similar", "user5/m5", "--atlas", str(atlas)],
        "query similar --where": [*query, "similar", "user5/m5", "--atlas", str(atlas), "--where", "downloads > 5000"],
        "query similar --other-authors": [*query, "similar", "user5/m5", "--atlas", str(atlas), "--other-authors"],
    }
    bars = {
        "query --help": 0.15,
        "query similar <indexed id>": 0.5,
        "query similar --where": 0.7,
        "query similar --other-authors": 0.7,
    }
    timings = {name: Timing() for name in commands}
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}

    def run(name: str) -> Callable[[], None]:
        def once() -> None:
            started = time.perf_counter()
            subprocess.run(commands[name], env=environment, capture_output=True, check=True)
            timings[name].seconds.append(time.perf_counter() - started)

        return once

    interleaved({name: run(name) for name in commands}, REPEATS)
    rival = timings["python -c 'import faiss, duckdb'"]
    table = Table(
        f"start: a question from the shell, {MODELS:,} models of {LENGTH:,} numbers",
        ["command", "seconds", "spread", "÷ import faiss, duckdb", "bar"],
    )
    for name, timing in timings.items():
        table.add(name, timing.median, timing.spread, timing.ratio_to(rival), bars.get(name, ""))
        if name in bars:
            table.promises[f"{name} ≤ {bars[name]} s"] = timing.median <= bars[name]
    return [table]


def measure_search(work: Path) -> list[Table]:
    """One query in process, beside bare FAISS on the same vectors."""
    import faiss

    faiss.omp_set_num_threads(1)
    folder = AtlasFolder(_atlas(work))
    vectors, file = _vectors(), _file(folder)
    ours = open_index(folder.root, file)
    bare = faiss.IndexFlatIP(LENGTH)
    bare.add(vectors.matrix)
    timings = {"ours": Timing(), "bare FAISS": Timing(), "NumPy": Timing()}
    queries = iter(range(10_000))

    def timed(name: str, ask: Callable[[np.ndarray[Any, Any]], object]) -> Callable[[], None]:
        def once() -> None:
            query = vectors.matrix[next(queries)]
            started = time.perf_counter()
            ask(query)
            timings[name].seconds.append(time.perf_counter() - started)

        return once

    methods = {
        "ours": timed("ours", lambda query: search(ours, query, 10)),
        "bare FAISS": timed("bare FAISS", lambda query: bare.search(query[None, :], 10)),
        "NumPy": timed("NumPy", lambda query: np.argpartition(-(vectors.matrix @ query), 10)[:10]),
    }
    interleaved(methods, 21)
    ratio = timings["ours"].ratio_to(timings["bare FAISS"])
    table = Table(
        f"search: one query among {MODELS:,} vectors of {LENGTH:,} numbers, one thread",
        ["method", "ms", "÷ bare FAISS"],
    )
    for name, timing in timings.items():
        table.add(name, 1000 * timing.median, timing.ratio_to(timings["bare FAISS"]))
    table.promises["within 1.2 × bare FAISS"] = ratio <= 1.2
    return [table]


def _vectors() -> Vectors:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(GROUPS, LENGTH)).astype(np.float32)
    matrix = centres[rng.integers(0, GROUPS, MODELS)] + rng.normal(size=(MODELS, LENGTH)).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    return Vectors(np.arange(1, MODELS + 1), matrix)


def _file(folder: AtlasFolder) -> Any:
    return write_vectors(folder.root, BASE, "input", _vectors())


def _atlas(work: Path) -> Path:
    """A synthetic atlas in the real schema, made once."""
    import duckdb

    folder = AtlasFolder(work / f"atlas-{MODELS}")
    if folder.database.exists():
        return folder.root
    say(f"making an atlas of {MODELS:,} synthetic models (once)")
    folder.root.mkdir(parents=True, exist_ok=True)
    vectors, file = _vectors(), _file(folder)
    ids = vectors.ids.tolist()
    keys = [DeltaKey("", layer, family) for layer in range(12) for family in FAMILIES if family in _BERT]
    near = list(zip(*nearest(vectors, 50), strict=True))
    unfinished = folder.database.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    with duckdb.connect(str(unfinished), config={"storage_compatibility_version": STORAGE_VERSION}) as connection:
        connection.execute(schema_sql())
        connection.execute("INSERT INTO atlas_info VALUES (1, 1, now()::TIMESTAMP, 'bench', ?)", [MODELS + 1])
        _insert(connection, "bases", base=[BASE], commit=["0" * 40], aliases=[["roberta-base"]], deltas=[list(map(str, keys))])
        _insert(
            connection, "fine_tunes", model_id=ids, model=[f"user{i % 700}/m{i}" for i in ids], base=[BASE] * MODELS,
            author=[f"user{i % 700}" for i in ids], status=["indexed"] * MODELS, relation=["finetune"] * MODELS,
            downloads=ids, record_key=["0"] * MODELS,
        )  # fmt: skip
        _insert(connection, "records", model_id=ids, record_key=["0"] * MODELS)
        _insert(
            connection, "model_datasets", model_id=ids, dataset=[f"data-{i % GROUPS}" for i in ids],
            raw=["x"] * MODELS, source=["tag"] * MODELS,
        )  # fmt: skip
        connection.execute(
            "INSERT INTO deltas BY NAME SELECT model_id, '' AS stack, layer, family, 768 AS out_features, "
            "768 AS in_features, 1 AS norm, 0.01 AS relative_norm, 0.6 AS energy, [1.0, 0.9] AS singular_values "
            "FROM fine_tunes, range(12) AS layers(layer), (SELECT unnest(?) AS family)",
            [list(_BERT)],
        )
        _insert(
            connection, "neighbours", representation=["input"] * len(near[0]), model_id=near[0], rank=near[1],
            neighbour_id=near[2], similarity=near[3],
        )  # fmt: skip
        _insert(
            connection, "representations", base=[BASE], representation=["input"], version=[1], rank=[8],
            length=[LENGTH], vectors=[MODELS], per_delta=[True], faiss_file=[file.name], faiss_sha256=[file.sha256],
            faiss_bytes=[file.size], factory=["IDMap2,Flat"],
        )  # fmt: skip
    unfinished.rename(folder.database)
    return folder.root


_BERT = ("query", "key", "value", "output", "feedforward1", "feedforward2")


def _insert(connection: Any, table: str, **columns: Any) -> None:
    import pyarrow

    connection.register("incoming", pyarrow.table(columns))
    connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
    connection.unregister("incoming")
