"""An atlas written straight into its database: made in milliseconds, of any size, as odd as a test wants it.

There are no checkpoints: vectors, flags and ranks are what a test says. Vectors are published by the real publisher.
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
from indexer.database.catalog import empty_database
from indexer.publish.centring import Centring
from indexer.publish.neighbours import renew_neighbours
from indexer.publish.tables import Tables
from indexer.publish.vector_update import renew_null_similarity
from indexer.publish.vectors import PublishedVectors
from indexer.records.identity import Spec
from indexer.records.representations.registry import representation_named
from indexer.vectors.stored import Vectors

BASE = "org/base"
DELTAS = [f"{layer}.{family}" for layer in range(6) for family in ("query", "value")]
BEGAN = datetime(2026, 3, 1, 12)
RECORD_KEY = "e" * 64


@dataclass(frozen=True)
class Model:
    """One model of an atlas.

    ``vector``: None for a model that is not indexed; zeros (or ``is_copy``) make it a copy of the base. Either (d,), as it
    is to be published, or (b, m), uncentred blocks, of which the publisher subtracts the centre if they are full fine-tunes'.
    ``raw``: the spellings of its datasets. ``duplicate_of``: the id of the first upload, which counts from 1.
    ``ranks``: of every delta in the order of ``DELTAS``; 0 where the delta is zero.
    """

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
    licence: str | None = None
    gated: str | None = None
    languages: tuple[str, ...] = ()
    created: datetime | None = None
    is_copy: bool = False
    is_unrelated: bool = False
    is_partly_frozen: bool = False
    base_cosine: float | None = 0.99
    duplicate_of: int | None = None
    ranks: tuple[int, ...] | None = None
    head: tuple[str, int] | None = None
    label_count: int | None = None
    initialisation: int | None = None
    bytes_read: int = 1000

    @property
    def owner(self) -> str:
        return self.author if self.author is not None else self.model.partition("/")[0]

    @property
    def group(self) -> str:
        """What its vector is made of."""
        return "adapter" if self.relation == "adapter" else "full"


def write_atlas(
    folder: Path, models: Sequence[Model], base: str = BASE, representations: Sequence[str] = ("input",),
    builds: Sequence[dict[str, Any]] = (),
) -> Path:  # fmt: skip
    """Publish ``models`` under the ids 1, 2, 3 … in order.

    Every representation has the same vectors, except for a little noise. Similarity is the cosine of whole vectors, except
    where models have blocks, or ranks (then ``DELTAS`` are the blocks).
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "atlas.duckdb").write_bytes(empty_database())
    blocks = next((len(one.vector) for one in models if np.ndim(one.vector) == 2), 0)
    deltas = DELTAS if any(one.ranks for one in models) else [f"{number}.query" for number in range(blocks)]
    config = {"storage_compatibility_version": STORAGE_VERSION}
    with duckdb.connect(str(folder / "atlas.duckdb"), config=config) as connection:
        connection.execute("BEGIN")  # one for all: each row by itself would wait for the disk
        insert(connection, "atlas_info", [SCHEMA_VERSION, 3, BEGAN, "0.1.0", len(models) + 1])
        insert_base(connection, base, layers=[{"stack": "", "layers": 6}], deltas=deltas)
        if blocks:
            publish(connection, folder, models)
        else:
            _add(Tables(connection), 1, models, base)
            for name in representations:
                publish_vectors(connection, folder, base, name, Vectors(*vectors_of(models, name)))
        for number, build in enumerate(builds, start=1):
            _add_build(connection, number, base, build)
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT")
    return folder


def publish(
    connection: duckdb.DuckDBPyConnection, folder: Path, models: Sequence[Model], first: int = 1,
    earlier: Sequence[Model] = (),
) -> bool:  # fmt: skip
    """Add ``models`` with blocks to an atlas of ``BASE``, with ids from ``first``; returns whether the centre moved.

    ``earlier``: all models before, which are read again if the centre moves.
    """
    tables = Tables(connection)
    blocks = len(models[0].vector) if models else 1
    vectors = PublishedVectors(folder, tables, BASE, representation_named("input"), 8, blocks=blocks)
    with vectors.new:
        _add(tables, first, models, BASE)
        for number, model in enumerate(models, first):
            vectors.new.add(number, model.vector.astype(np.float32).ravel())
        centring = Centring(tables, vectors, ())
        if centring.due:
            for number, model in enumerate(earlier, 1):
                vectors.new.add(number, model.vector.astype(np.float32).ravel())
        centring.centre_all()
        change = vectors.publish(())
    if change is not None:
        renew_neighbours(tables, BASE, "input", *change)
        if centring.due:
            renew_null_similarity(tables, BASE, "input", change[0])
    return bool(centring.due)


def publish_vectors(
    connection: duckdb.DuckDBPyConnection, folder: Path, base: str, name: str, vectors: Vectors, *,
    stale: tuple[int, ...] = (), neighbours: bool = True,
):  # fmt: skip
    """Add ``vectors`` as they are (those of ``stale`` ids count no more), and bring the neighbours up to date."""
    tables = Tables(connection)
    representation = representation_named(name)
    published = PublishedVectors(folder, tables, base, representation, 8)
    with published.new as new:
        for model_id, vector in zip(vectors.ids.tolist(), vectors.matrix, strict=True):
            new.add(model_id, vector)
        change = published.publish(stale)
    if change is not None and neighbours:
        renew_neighbours(tables, base, name, *change)
    return change


def insert(connection: duckdb.DuckDBPyConnection, table: str, values: Sequence[Any] = (), **columns: Any) -> None:
    """One row: all its values in order, or some columns by name."""
    names = "(" + ", ".join(f'"{name}"' for name in columns) + ")" if columns else ""
    row = list(columns.values()) or list(values)
    connection.execute(f"INSERT INTO {table} {names} VALUES ({', '.join('?' * len(row))})", row)


def insert_base(connection: duckdb.DuckDBPyConnection, base: str, **columns: Any) -> None:
    """A base with these columns; the others are those of a small RoBERTa, or null."""
    usual = {"commit": "c" * 40, "aliases": [], "model_type": "roberta", "architecture": "bert", "block_bytes": 4096}
    insert(connection, "bases", **{"base": base, "layers": [], "deltas": [], "config": "{}"} | usual | columns)


def is_copy(model: Model) -> bool:
    return model.is_copy or (model.vector is not None and not np.any(model.vector))


def vectors_of(models: Sequence[Model], representation: str = "input") -> tuple[np.ndarray, np.ndarray]:
    """Ids and unit vectors as they are published; other representations than ``input`` have noise."""
    kept = [(number, one.vector) for number, one in enumerate(models, start=1)
            if one.vector is not None and not is_copy(one)]  # fmt: skip
    ids = np.array([number for number, _ in kept], dtype=np.int64)
    matrix = np.array([vector for _, vector in kept], dtype=np.float64).reshape(len(kept), -1 if kept else 1)
    if representation != "input":
        matrix = matrix + np.random.default_rng(len(representation)).normal(size=matrix.shape)
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return ids, (matrix / np.where(norms > 0, norms, 1)).astype(np.float32)


def family(groups: int = 3, each: int = 6, dimensions: int = 24, tightness: float = 0.7, seed: int = 0) -> list[Model]:
    """Models around one direction for each dataset, by six authors in turn."""
    draw = np.random.default_rng(seed)
    centres = np.linalg.qr(draw.normal(size=(dimensions, dimensions)))[0]
    models = []
    for place in range(groups):
        for member in range(each):
            noise = draw.normal(size=dimensions)
            vector = np.sqrt(tightness) * centres[place] + np.sqrt(1 - tightness) * noise / np.linalg.norm(noise)
            models.append(
                Model(
                    f"author{(member + place) % 6}/set{place}-{member}", vector, (f"data/set{place}",),
                    ranks=tuple(int(rank) for rank in draw.integers(2, 7, len(DELTAS))),
                    head=("RobertaForSequenceClassification", 2 + place), downloads=100 * place + member,
                )
            )  # fmt: skip
    return models


def block_family(
    seed: int, datasets: int = 5, authors: int = 6, each: int = 2, adapters: int = 1, shape: tuple[int, int] = (6, 24)
) -> list[Model]:
    """Models with blocks: a part that all share, one that a group shares, one of their data set, and their own."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=shape)
    of_group = {relation: rng.normal(size=shape) for relation in ("finetune", "adapter")}
    of_data = [rng.normal(size=shape) for _ in range(datasets)]
    models = []
    for dataset in range(datasets):
        for author in range(authors):
            for run in range(each + adapters):
                relation = "finetune" if run < each else "adapter"
                blocks = 1.5 * common + of_group[relation] + of_data[dataset] + 0.7 * rng.normal(size=shape)
                if relation == "adapter":
                    blocks[rng.permutation(shape[0])[: shape[0] // 3]] = 0
                name = f"a{author}/d{dataset}-{run}"
                models.append(Model(name, unit(blocks), (f"data-{dataset}",), relation=relation))
    return models


def unit(blocks: np.ndarray) -> np.ndarray:
    """Each row divided by its norm; rows of zeros stay."""
    norms = np.linalg.norm(blocks, axis=1, keepdims=True)
    return np.divide(blocks, norms, out=np.zeros_like(blocks), where=norms > 0)


def _add(tables: Tables, first: int, models: Sequence[Model], base: str) -> None:
    """Write the rows of ``models``, with ids from ``first``: of each table at once, or each row takes a millisecond."""
    rows: dict[str, list[dict[str, Any]]] = {"fine_tunes": [], "model_datasets": [], "records": [], "deltas": []}
    originals = {model.duplicate_of for model in models}
    for number, model in enumerate(models, first):
        rows["fine_tunes"].append({
            "model_id": number, "model": model.model, "base": base, "author": model.owner, "commit": "d" * 40,
            "status": model.status, "reason": model.reason, "detail": model.detail, "relation": model.relation,
            "claimed_by": model.claimed_by, "created": model.created or BEGAN - timedelta(days=number),
            "licence": model.licence, "gated": model.gated, "languages": list(model.languages),
            "downloads": model.downloads, "first_seen": BEGAN, "last_seen": BEGAN,
            "record_key": RECORD_KEY if model.status == "indexed" else None,
        })  # fmt: skip
        rows["model_datasets"] += [
            {"model_id": number, "dataset": name, "raw": spelt, "source": "card"}
            for name, spelt in zip(model.datasets, model.raw or model.datasets, strict=True)
        ]
        if model.status != "indexed":
            continue
        head, labels = model.head or (None, model.label_count)
        rows["records"].append({
            "model_id": number, "record_key": RECORD_KEY, "initialisation": model.initialisation,
            "verified": None if model.relation == "adapter" else not model.is_unrelated,
            "base_cosine": model.base_cosine, "is_copy": is_copy(model), "is_unrelated": model.is_unrelated,
            "is_partly_frozen": model.is_partly_frozen, "bytes_read": model.bytes_read, "block_bytes": 4096,
            "duplicate_of": model.duplicate_of,
            "duplicate_group": model.duplicate_of or (number if number in originals else None), "head_class": head,
            "label_count": labels, "vector_group": model.group,
            "weight_files": [{"name": "model.safetensors", "size": 5000, "sha256": None, "format": "safetensors"}],
        })  # fmt: skip
        for name, rank in zip(DELTAS, model.ranks or (), strict=model.ranks is not None):
            layer, family_name = name.split(".")
            rows["deltas"].append({
                "model_id": number, "stack": "", "layer": int(layer), "family": family_name, "out_features": 48,
                "in_features": 48, "norm": float(rank > 0), "relative_norm": 0.01, "energy": 1.0,
                "singular_values": [1.0], "rank_50": rank,
            })  # fmt: skip
    for table, of_table in rows.items():
        tables.insert(table, of_table)


def _add_build(connection: duckdb.DuckDBPyConnection, number: int, base: str, build: dict[str, Any]) -> None:
    spec = Spec().as_row()
    plain = {
        "base_commit": "c" * 40, "started": BEGAN, "finished": BEGAN, "outcome": "finished", "seconds": 12.0,
        "spec": json.dumps(spec), "thresholds": json.dumps({"unrelated_below": 0.3}),
        "versions": json.dumps({"numpy": "2.4.6"}),
    }  # fmt: skip
    insert(connection, "builds", build_id=number, base=base, **(plain | build))
