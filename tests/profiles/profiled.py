"""An atlas with made-up profiles, written straight into its database."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np

from tests.atlas_builder import BASE, family, write_atlas

LAYERS = 4
BASE_RECOVERED = (1.0, 0.98, 0.95, 0.9)


def profiled_atlas(folder: Path, seed: int = 0) -> Path:
    """18 models of 6 authors. ``delta`` is drawn; drift follows it exactly, recovered falls with it, readable does not.

    Models of set0 lose input: at their last layer, .3 less is recovered.
    """
    models = family()
    write_atlas(folder, models)
    random = np.random.default_rng(seed)
    with duckdb.connect(str(folder / "atlas.duckdb")) as connection:
        connection.execute("BEGIN")
        for number, model in enumerate(models, start=1):
            size = float(random.uniform(0.02, 0.2))
            connection.execute("DELETE FROM deltas WHERE model_id = ?", [number])
            for layer in range(LAYERS):
                for name in ("query", "value"):
                    connection.execute(
                        "INSERT INTO deltas (model_id, stack, layer, family, out_features, in_features, norm, "
                        "relative_norm, energy, singular_values) VALUES (?, '', ?, ?, 48, 48, 1, ?, 1, [1.0])",
                        [number, layer, name, size],
                    )
            lost = 0.3 if model.datasets == ("data/set0",) else 0.0
            rows = [
                {"drift": size * (layer + 1), "cka": 1 - size * (layer + 1) / 2, "tolerance": 3 - size, "reach": 1 + size,
                 "recovered": BASE_RECOVERED[layer] - (lost if layer == LAYERS - 1 else 0) - size / 10,
                 "readable": float(random.uniform(0.98, 1.0))}
                for layer in range(LAYERS)
            ]  # fmt: skip
            put(connection, number, "fine_tune", model.model, number, rows)
        base = [
            {"tolerance": 3.0, "reach": 1.0, "recovered": BASE_RECOVERED[layer], "readable": 1.0}
            for layer in range(LAYERS)
        ]
        put(connection, 100, "base", BASE, None, base)
        put(connection, 101, "untrained", BASE, None, [row | {"recovered": 1.0} for row in base])
        connection.execute("COMMIT")
    return folder


def put(connection, profile_id: int, subject: str, model: str, model_id: int | None, rows: list[dict]) -> None:
    connection.execute(
        "INSERT INTO profiles (profile_id, model_id, base, subject, model, probe, probe_sha256, sequences, tokens, seed, "
        "method, recipe, asked, is_complete, profile_key, made) VALUES (?, ?, ?, ?, ?, 'random', 'p', 16, 16, 0, "
        "'depth-1', 'default', ['default'], true, ?, TIMESTAMP '2026-01-01')",
        [profile_id, model_id, BASE, subject, model, f"{profile_id:064x}"],
    )
    for layer, row in enumerate(rows, start=1):
        values = row | {f"{name}_error": 0.005 for name in row}
        names = ", ".join(values)
        marks = ", ".join("?" * len(values))
        connection.execute(
            f"INSERT INTO profile_layers (profile_id, stack, layer, is_constant, {names}) VALUES (?, '', ?, false, {marks})",
            [profile_id, layer, *values.values()],
        )
