"""An atlas with planted vectors and facts, made without a single checkpoint: for what is asked of a published atlas."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import duckdb
import numpy as np
from numpy.typing import NDArray

from indexer.atlas import SCHEMA_VERSION, STORAGE_VERSION
from indexer.vectors.segments import Vectors
from tests.empty_database import empty_database
from tests.planted_vectors import publish_vectors

BASE = "org/base"


@dataclass(frozen=True)
class Planted:
    """One model; a ``vector`` of zeros makes it a copy of the base."""

    model: str
    vector: NDArray[np.float64]
    datasets: tuple[str, ...] = ()
    author: str | None = None
    relation: str = "finetune"
    downloads: int | None = 0
    licence: str | None = None
    gated: str | None = None
    languages: tuple[str, ...] = ()
    created: datetime | None = None
    partly_frozen: bool = False
    unrelated: bool = False
    duplicate_of: int | None = None
    label_count: int | None = None


def plant_atlas(folder: Path, models: list[Planted], base: str = BASE) -> Path:
    """Publish ``models`` as an atlas; their ids are 1, 2, 3 … in order. Neighbours are found by brute force."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = np.array([model.vector for model in models], dtype=np.float64).reshape(len(models), -1)
    norms = np.linalg.norm(raw, axis=1)
    ids = np.flatnonzero(norms) + 1
    unit = (raw[ids - 1] / norms[ids - 1, None]).astype(np.float32)
    config = {"storage_compatibility_version": STORAGE_VERSION}
    (folder / "atlas.duckdb").write_bytes(empty_database())
    with duckdb.connect(str(folder / "atlas.duckdb"), config=config) as connection:
        connection.execute("BEGIN")  # one for all: each row by itself would wait for the disk
        connection.execute("INSERT INTO atlas_info VALUES (?, 1, NULL, 'test', ?)", [SCHEMA_VERSION, len(models) + 1])
        connection.execute("INSERT INTO bases (base, \"commit\", aliases) VALUES (?, 'c', [])", [base])
        publish_vectors(connection, folder, base, "input", Vectors(ids.astype(np.int64), unit), neighbours=False)
        first = {model.duplicate_of for model in models}
        for number, model in enumerate(models, 1):
            group = model.duplicate_of or (number if number in first else None)
            _insert(connection, number, model, base, is_copy=not norms[number - 1], group=group)
        rows = []
        for place, number in enumerate(ids):
            cosines = unit @ unit[place]
            near = [int(row) for row in np.argsort(-cosines, kind="stable") if row != place][:50]
            rows += [(int(number), rank, int(ids[row]), float(cosines[row])) for rank, row in enumerate(near, 1)]
        connection.execute(
            "INSERT INTO neighbours SELECT 'input', unnest(?::INTEGER[]), unnest(?::INTEGER[]), unnest(?::INTEGER[]), "
            "unnest(?::FLOAT[])",
            [list(column) for column in zip(*rows, strict=True)] or [[]] * 4,
        )
        connection.execute("COMMIT")
    return folder


def _insert(
    connection: duckdb.DuckDBPyConnection, number: int, model: Planted, base: str, *, is_copy: bool, group: int | None
) -> None:
    author = model.author if model.author is not None else model.model.partition("/")[0]
    connection.execute(
        "INSERT INTO fine_tunes (model_id, model, base, author, status, relation, downloads, licence, gated, languages, "
        "created) VALUES (?, ?, ?, ?, 'indexed', ?, ?, ?, ?, ?, ?)",
        [number, model.model, base, author, model.relation, model.downloads, model.licence, model.gated,
         list(model.languages), model.created],
    )  # fmt: skip
    connection.execute(
        "INSERT INTO records (model_id, record_key, is_copy, is_unrelated, is_partly_frozen, duplicate_group, "
        "duplicate_of, label_count) VALUES (?, 'k', ?, ?, ?, ?, ?, ?)",
        [number, is_copy, model.unrelated, model.partly_frozen, group, model.duplicate_of,
         model.label_count],
    )  # fmt: skip
    for dataset in model.datasets:
        connection.execute("INSERT INTO model_datasets VALUES (?, ?, NULL, ?, 'card')", [number, dataset, dataset])
