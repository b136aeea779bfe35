"""An atlas of planted, uncentred blocks, published the way a publish does it: centre, similarity and background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
from numpy.typing import NDArray

from indexer.atlas import SCHEMA_VERSION, STORAGE_VERSION
from indexer.publish.centring import Centring
from indexer.publish.neighbours import NeighbourTable
from indexer.publish.null_similarity import renew_null_similarity
from indexer.publish.tables import Tables
from indexer.publish.vectors import PublishedVectors, UncentredVectors
from indexer.records.representation import representation_named
from tests.empty_database import empty_database

BASE = "org/base"


@dataclass(frozen=True)
class Tuned:
    """One model: uncentred ``blocks`` (b, m), zero where a matrix was left alone."""

    model: str
    blocks: NDArray[np.float64]
    datasets: tuple[str, ...] = ()
    group: str = "full"
    unrelated: bool = False
    duplicate_of: int | None = None
    initialisation: int | None = None

    @property
    def author(self) -> str:
        return self.model.partition("/")[0]


def plant(folder: Path, models: Sequence[Tuned], blocks: int | None = None) -> Path:
    """Publish ``models`` as an atlas; their ids are 1, 2, 3 … in order."""
    folder.mkdir(parents=True, exist_ok=True)
    count = blocks or (len(models[0].blocks) if models else 1)
    config = {"storage_compatibility_version": STORAGE_VERSION}
    (folder / "atlas.duckdb").write_bytes(empty_database())
    with duckdb.connect(str(folder / "atlas.duckdb"), config=config) as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO atlas_info VALUES (?, 1, NULL, 'test', ?)", [SCHEMA_VERSION, len(models) + 1])
        deltas = [f"{number}.query" for number in range(count)]
        connection.execute(
            "INSERT INTO bases (base, \"commit\", aliases, deltas) VALUES (?, 'c', [], ?)", [BASE, deltas]
        )
        publish(connection, folder, models, 1)
        connection.execute("COMMIT")
    return folder


def publish(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    models: Sequence[Tuned],
    first: int,
    said: list[str] | None = None,
) -> None:
    """Add ``models`` with ids from ``first``."""
    tables = Tables(connection)
    say = (said if said is not None else []).append
    for number, model in enumerate(models, first):
        _insert(connection, number, model)
    vectors = PublishedVectors(folder, tables, BASE, representation_named("input"), 8, say)
    with UncentredVectors(folder, BASE, "input") as uncentred:
        for number, model in enumerate(models, first):
            uncentred.add(number, model.blocks.astype(np.float32).ravel(), model.group, len(model.blocks))
        writer, moved = Centring(tables, vectors, say).centred(uncentred, np.zeros(0, np.int64))
    change = vectors.change(writer, (), is_anew=moved)
    if change is not None:
        NeighbourTable(tables, BASE, "input").change(change.index, change.added, change.removed)
        if moved:
            renew_null_similarity(tables, BASE, "input", change.index)


def _insert(connection: duckdb.DuckDBPyConnection, number: int, model: Tuned) -> None:
    relation = "adapter" if model.group == "adapter" else "finetune"
    connection.execute(
        "INSERT INTO fine_tunes (model_id, model, base, author, status, relation, record_key) "
        "VALUES (?, ?, ?, ?, 'indexed', ?, 'k')",
        [number, model.model, BASE, model.author, relation],
    )
    connection.execute(
        "INSERT INTO records (model_id, record_key, is_copy, is_unrelated, vector_group, duplicate_group, duplicate_of, "
        "initialisation) VALUES (?, 'k', ?, ?, ?, ?, ?, ?)",
        [
            number, not model.blocks.any(), model.unrelated, model.group, model.duplicate_of, model.duplicate_of,
            model.initialisation,
        ],
    )  # fmt: skip
    for dataset in model.datasets:
        connection.execute("INSERT INTO model_datasets VALUES (?, ?, NULL, ?, 'card')", [number, dataset, dataset])


def family(
    seed: int, datasets: int = 5, authors: int = 6, each: int = 2, adapters: int = 1, shape=(6, 24)
) -> list[Tuned]:
    """Models with a part that all share, one that a group shares, one of their data set, and their own."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=shape)
    of_group = {group: rng.normal(size=shape) for group in ("full", "adapter")}
    of_data = [rng.normal(size=shape) for _ in range(datasets)]
    found = []
    for dataset in range(datasets):
        for author in range(authors):
            for run in range(each + adapters):
                group = "full" if run < each else "adapter"
                blocks = 1.5 * common + of_group[group] + of_data[dataset] + 0.7 * rng.normal(size=shape)
                if group == "adapter":
                    blocks[rng.permutation(shape[0])[: shape[0] // 3]] = 0
                found.append(Tuned(f"a{author}/d{dataset}-{run}", unit(blocks), (f"data-{dataset}",), group))
    return found


def unit(blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(blocks, axis=1, keepdims=True)
    return np.divide(blocks, norms, out=np.zeros_like(blocks), where=norms > 0)
