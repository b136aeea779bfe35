"""An atlas written straight into its database: made in milliseconds, of any size, as odd as a test wants it.

No checkpoint stands behind it: vectors, flags and ranks are what a test says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from indexer.atlas import SCHEMA_VERSION, STORAGE_VERSION
from indexer.vectors.segments import Vectors
from tests.empty_database import empty_database
from tests.planted_vectors import publish_vectors

BASE = "org/paper-base"
DELTAS = [f"{layer}.{family}" for layer in range(6) for family in ("query", "value")]
BEGAN = datetime(2026, 3, 1, 12)


@dataclass(frozen=True)
class Paper:
    """One model. ``vector`` None: a copy of the base, or not indexed. ``raw``: spellings of its datasets."""

    model: str
    vector: Any = None
    datasets: tuple[str, ...] = ()
    raw: tuple[str, ...] | None = None
    author: str | None = None
    relation: str = "finetune"
    claimed_by: str | None = "tag"
    status: str = "indexed"
    reason: str | None = None
    detail: str | None = None
    downloads: int | None = 10
    is_copy: bool = False
    is_unrelated: bool = False
    base_cosine: float | None = 0.99
    duplicate_of: int | None = None  # place of the first upload in the list
    ranks: tuple[int, ...] | None = None  # of every delta, in the order of DELTAS; 0 where it is zero
    head: tuple[str, int] | None = None
    bytes_read: int = 1000


def write_atlas(
    folder: Path, models: Sequence[Paper], base: str = BASE, representations: Sequence[str] = ("input",),
    builds: Sequence[dict[str, Any]] = (),
) -> Path:  # fmt: skip
    """Publish ``models`` under ids from 1; every representation holds the same vectors, but for a little noise."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "atlas.duckdb").write_bytes(empty_database())
    connection = duckdb.connect()
    connection.execute(f"ATTACH '{folder / 'atlas.duckdb'}' AS atlas (storage_version '{STORAGE_VERSION}')")
    connection.execute("USE atlas")
    connection.execute("BEGIN")  # one for all: each row by itself would wait for the disk
    _insert(connection, "atlas_info", [[SCHEMA_VERSION, 3, BEGAN, "0.1.0", len(models) + 1]])
    layers = [{"stack": "", "layers": 6}]
    _insert(connection, "bases", [[base, "c" * 40, [], "roberta", "bert", layers, DELTAS, 4096, "{}"]])
    for number, model in enumerate(models, start=1):
        _add(connection, number, model, base, models)
    for name in representations:
        _publish(connection, folder, name, models, base)
    for number, build in enumerate(builds, start=1):
        _build(connection, number, base, build)
    connection.execute("COMMIT")
    connection.execute("CHECKPOINT atlas")
    connection.close()
    return folder


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: list[list[Any]]) -> None:
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def _put(connection: duckdb.DuckDBPyConnection, table: str, **row: Any) -> None:
    names = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))


def _add(connection: duckdb.DuckDBPyConnection, number: int, model: Paper, base: str, models: Sequence[Paper]) -> None:
    created = BEGAN - timedelta(days=number)
    _put(
        connection, "fine_tunes", model_id=number, model=model.model, base=base, author=author_of(model),
        commit="d" * 40, status=model.status, reason=model.reason, detail=model.detail, relation=model.relation,
        claimed_by=model.claimed_by, created=created, downloads=model.downloads, first_seen=BEGAN, last_seen=BEGAN,
    )  # fmt: skip
    raw = model.raw or model.datasets
    _insert(
        connection, "model_datasets",
        [[number, name, None, spelt, "card"] for name, spelt in zip(model.datasets, raw, strict=True)],
    )  # fmt: skip
    if model.status != "indexed":
        return
    group = number if any(other.duplicate_of == number - 1 for other in models) else None
    _put(
        connection, "records", model_id=number, record_key="e" * 64,
        verified=None if model.relation == "adapter" else not model.is_unrelated, base_cosine=model.base_cosine,
        is_copy=model.is_copy, is_unrelated=model.is_unrelated, bytes_read=model.bytes_read, block_bytes=4096,
        duplicate_of=None if model.duplicate_of is None else model.duplicate_of + 1,
        duplicate_group=group if model.duplicate_of is None else model.duplicate_of + 1,
        head_class=model.head[0] if model.head else None, label_count=model.head[1] if model.head else None,
        weight_files=[{"name": "model.safetensors", "size": 5000, "sha256": None, "format": "safetensors"}],
    )  # fmt: skip
    if model.ranks is not None:
        for name, rank in zip(DELTAS, model.ranks, strict=True):
            layer, family = name.split(".")
            _put(
                connection, "deltas", model_id=number, stack="", layer=int(layer), family=family, out_features=48,
                in_features=48, norm=float(rank > 0), relative_norm=0.01, energy=1.0, singular_values=[1.0],
                rank_50=rank,
            )  # fmt: skip


def author_of(model: Paper) -> str:
    return model.author if model.author is not None else model.model.partition("/")[0]


def vectors_of(models: Sequence[Paper], representation: str = "input") -> tuple[np.ndarray, np.ndarray]:
    """Ids and unit vectors as published; other representations than the first are noisier."""
    kept = [(number, model.vector) for number, model in enumerate(models, start=1) if model.vector is not None]
    ids = np.array([number for number, _ in kept], dtype=np.int64)
    matrix = np.array([vector for _, vector in kept], dtype=np.float64).reshape(len(kept), -1 if kept else 1)
    if representation != "input":
        matrix = matrix + np.random.default_rng(len(representation)).normal(size=matrix.shape)
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return ids, (matrix / np.where(norms > 0, norms, 1)).astype(np.float32)


def _publish(
    connection: duckdb.DuckDBPyConnection, folder: Path, name: str, models: Sequence[Paper], base: str
) -> None:
    publish_vectors(connection, folder, base, name, Vectors(*vectors_of(models, name)))


def _build(connection: duckdb.DuckDBPyConnection, number: int, base: str, build: dict[str, Any]) -> None:
    spec = {"format": 1, "rank": 8, "spectra": False, "svd": "block-krylov-1"}
    plain = {
        "base_commit": "c" * 40, "started": BEGAN, "finished": BEGAN, "outcome": "finished", "seconds": 12.0,
        "spec": json.dumps(spec), "thresholds": json.dumps({"unrelated_below": 0.3}),
        "versions": json.dumps({"numpy": "2.4.6"}),
    }  # fmt: skip
    _put(connection, "builds", build_id=number, base=base, **(plain | build))


def family(groups: int = 3, each: int = 6, dimensions: int = 24, tightness: float = 0.7, seed: int = 0) -> list[Paper]:
    """Models around one direction for each dataset, by six authors in turn."""
    draw = np.random.default_rng(seed)
    centres = np.linalg.qr(draw.normal(size=(dimensions, dimensions)))[0]
    models = []
    for place in range(groups):
        for member in range(each):
            noise = draw.normal(size=dimensions)
            vector = np.sqrt(tightness) * centres[place] + np.sqrt(1 - tightness) * noise / np.linalg.norm(noise)
            models.append(
                Paper(
                    f"author{(member + place) % 6}/set{place}-{member}", vector, (f"data/set{place}",),
                    ranks=tuple(int(rank) for rank in draw.integers(2, 7, len(DELTAS))),
                    head=("RobertaForSequenceClassification", 2 + place), downloads=100 * place + member,
                )
            )  # fmt: skip
    return models
