"""An atlas with something of everything that the page shows, hostile names among it; and atlases of any size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np

from indexer.atlas import SCHEMA_VERSION, STORAGE_VERSION, schema_sql
from indexer.vectors.stored import Vectors
from tests.atlas_builder import BASE, BEGAN, Model, family, publish_vectors, write_atlas
from tests.report.conftest import BUILDS, EVIL, population

OTHER = "org/other-base"
PROFILED, MERGED = 1, 3  # ids


def write_browsed_atlas(folder: Path) -> Path:
    """The report's population, a model for each hostile string, lineage, predictions, a depth profile, backgrounds."""
    reported = [model for model in population() if model.status == "indexed"]
    hostile = [
        replace(
            model,
            model=f"{evil}/{number}{evil}",
            author=evil,
            datasets=(evil,) if evil else (),
            raw=(evil,) if evil else None,
        )
        for number, (model, evil) in enumerate(zip(family(each=5, seed=5), EVIL, strict=True))
    ]
    models = [*reported, *hostile]
    write_atlas(folder, models, builds=BUILDS)
    with duckdb.connect(str(folder / "atlas.duckdb")) as connection:
        connection.execute(
            "UPDATE fine_tunes SET licence = ['mit', 'apache-2.0', NULL][1 + model_id % 3], likes = model_id % 7, "
            "pipeline_tag = ['text-classification', 'fill-mask'][1 + model_id % 2]"
        )
        connection.execute(
            "UPDATE records SET relative_norm = 0.001 * model_id, delta_norm = 0.1 * model_id WHERE NOT is_copy"
        )
        connection.execute(
            "UPDATE deltas SET relative_norm = 0.01 * layer + 0.02 * length(family) / 5, norm = 1 + layer"
        )
        connection.executemany(
            "INSERT INTO null_similarity VALUES (?, 'input', ?, ?, 999, ?, ?, NULL)",
            [
                [BASE, *groups, similarity, share]
                for groups in (("full", "full"), ("adapter", "full"), ("adapter", "adapter"))
                for similarity, share in ((0.95, 0.002), (0.5, 0.1), (-0.5, 0.9))
            ],
        )
        connection.execute(
            "INSERT INTO lineage VALUES "
            "(3, 'e', 1, 'merge', 'linear', 0.4, 0.01, 'confirmed', 'known', 'four matrices agree', [], 9, now(), 0.99), "
            "(3, 'e', 2, 'merge', 'linear', 0.6, 0.01, 'not declared', 'known', ?, [], 9, now(), 0.99), "
            "(1, 'e', NULL, 'tuned from the base', NULL, 1, 0, 'confirmed', 'known', '', [], 9, now(), 0.99)",
            [EVIL[0]],
        )
        connection.execute(
            "INSERT INTO tags VALUES (1, 'pytorch'), (1, ?), (3, 'base_model:merge:far/away')", [EVIL[0]]
        )
        connection.execute(
            "INSERT INTO evaluations VALUES (1, 'text-classification', 'data/set0', ?, NULL, 'test', 'accuracy', 0.91, false)",
            [EVIL[0]],
        )
        connection.execute(
            "INSERT INTO predictions VALUES (2, 'e', 1, 'data/set0', 0.9, 3.5, 0.8, 4, 0.9, 0.4, false, true, ['a/b'], "
            "'input', 10, now()), (2, 'e', 2, ?, 0.1, 0.5, 0.2, 1, 0.1, NULL, true, true, [], 'input', 10, now())",
            [EVIL[0]],
        )
        _profile(connection, 1, "fine_tune", models[PROFILED - 1].model, 0.9)
        _profile(connection, 2, "base", BASE, 1.0)
    return folder


def _profile(connection: duckdb.DuckDBPyConnection, number: int, subject: str, model: str, readable: float) -> None:
    connection.execute(
        "INSERT INTO profiles (profile_id, model_id, base, subject, model, probe, probe_sha256, sequences, tokens, seed, "
        "method, recipe, asked, is_complete, profile_key, made) VALUES (?, ?, ?, ?, ?, 'text', 'p', 8, 16, 0, 'm', "
        "'default', ['default'], true, 'k', ?)",
        [number, PROFILED if subject == "fine_tune" else None, BASE, subject, model, BEGAN],
    )
    for layer in range(1, 7):
        connection.execute(
            "INSERT INTO profile_layers (profile_id, stack, layer, is_constant, tolerance, tolerance_error, readable, "
            "readable_error) VALUES (?, '', ?, false, ?, 0.05, ?, 0.02)",
            [number, layer, 3 - 0.3 * layer, readable - 0.02 * layer],
        )


def write_many(folder: Path, count: int, dimensions: int = 24, seed: int = 0) -> Path:
    """An atlas of ``count`` models in some two hundred groups, by SQL: it says nothing, and is made in seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(seed)
    with duckdb.connect(
        str(folder / "atlas.duckdb"), config={"storage_compatibility_version": STORAGE_VERSION}
    ) as connection:
        connection.execute(schema_sql())
        connection.execute("CREATE TEMP MACRO drawn(i, what, below) AS (hash(i, what) % below)::INTEGER")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO atlas_info VALUES (?, 1, ?, 'test', ?)", [SCHEMA_VERSION, BEGAN, count + 1])
        connection.execute("INSERT INTO bases (base, \"commit\", aliases) VALUES (?, 'c', [])", [BASE])
        connection.execute(
            "INSERT INTO fine_tunes (model_id, model, base, author, status, relation, downloads, likes, licence, created, "
            "pipeline_tag) SELECT i, format('author{}/roberta-base-finetuned-set{}-{}', drawn(i, 0, 4000), drawn(i, 1, 200), i), "
            "?, format('author{}', drawn(i, 0, 4000)), 'indexed', CASE WHEN drawn(i, 2, 9) = 0 THEN 'adapter' ELSE 'finetune' END, "
            "floor(exp(drawn(i, 3, 1000) / 90.0)), drawn(i, 4, 50), ['mit', 'apache-2.0', NULL, 'cc-by-4.0'][1 + drawn(i, 5, 4)], "
            "TIMESTAMP '2022-01-01' + to_hours(drawn(i, 6, 35000)), 'text-classification' "
            "FROM range(1, ? + 1) AS found(i)",
            [BASE, count],
        )
        connection.execute(
            "INSERT INTO records (model_id, record_key, relative_norm) SELECT i, 'k', 0.001 + (drawn(i, 7, 1000)) / 9000.0 "
            "FROM range(1, ? + 1) AS found(i)",
            [count],
        )
        connection.execute(
            "INSERT INTO model_datasets SELECT i, format('data/set{}', drawn(i, 1, 200)), NULL, 'x', 'card' "
            "FROM range(1, ? + 1) AS found(i) WHERE drawn(i, 8, 3) > 0",
            [count],
        )
        connection.execute(
            "INSERT INTO deltas (model_id, stack, layer, family, out_features, in_features, norm, relative_norm, energy, "
            "singular_values, rank_50) SELECT i, '', layer, 'query', 8, 8, 1, 0.01, 0.5 + (drawn(i, 0, 400)) / 1000.0, [1.0], "
            "1 + drawn(i, layer, 8) FROM range(1, ? + 1) AS found(i), range(4) AS layers(layer)",
            [count],
        )
        connection.execute(
            "INSERT INTO neighbours SELECT 'input', i, n, 1 + (i + n * 7) % ?, 0.9 - n / 20.0 "
            "FROM range(1, ? + 1) AS found(i), range(1, 11) AS ranks(n)",
            [count, count],
        )
        groups = np.array([row[0] for row in connection.execute(
            "SELECT drawn(i, 1, 200) FROM range(1, ? + 1) AS found(i)", [count]
        ).fetchall()])  # fmt: skip
        matrix = draw.normal(size=(200, dimensions))[groups] + 0.5 * draw.normal(size=(count, dimensions))
        matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
        vectors = Vectors(np.arange(1, count + 1, dtype=np.int64), matrix.astype(np.float32))
        publish_vectors(connection, folder, BASE, "input", vectors, neighbours=False)
        connection.execute("COMMIT")
    return folder


def indexed(folder: Path) -> list[str]:
    with duckdb.connect(str(folder / "atlas.duckdb"), read_only=True) as connection:
        return [row[0] for row in connection.execute("SELECT model FROM models ORDER BY model_id").fetchall()]


__all__ = ["OTHER", "Model", "indexed", "write_browsed_atlas", "write_many"]
