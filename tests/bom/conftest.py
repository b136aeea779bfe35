"""An atlas with a chain whose licences, data sets and files are known."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

from indexer.atlas import AtlasFolder
from tests.atlas_builder import Model, write_atlas

BASE = "org/base"
FIRST, SECOND, MERGED, PRIVATE = "ann/first", "bob/second", "cyd/merged", "local:secret-project-model"
SHA = {name: f"{number:x}" * 64 for number, name in enumerate((FIRST, SECOND, MERGED, PRIVATE), 10)}


@pytest.fixture
def chain(tmp_path):
    """org/base → ann/first → bob/second, and cyd/merged of both; a private model continued from bob/second."""
    rng = np.random.default_rng(0)
    models = [
        Model(FIRST, rng.normal(size=4), ("glue/mrpc",), licence="cc-by-nc-4.0"),
        Model(SECOND, rng.normal(size=4), ("imdb",), licence="other"),
        Model(MERGED, rng.normal(size=4), (), licence="apache-2.0, mit"),
        Model(PRIVATE, rng.normal(size=4), (), author="local"),
    ]
    folder = write_atlas(tmp_path / "atlas", models, base=BASE)
    with duckdb.connect(str(AtlasFolder(folder).database)) as connection:
        connection.execute("UPDATE bases SET licence = 'gemma', licence_link = 'https://example.org/terms'")
        connection.execute(
            "UPDATE fine_tunes SET licence_name = 'Second licence', licence_link = 'LICENSE' WHERE model = ?", [SECOND]
        )
        for name, sha256 in SHA.items():
            files = [
                {
                    "name": "secret.safetensors" if name == PRIVATE else "model.safetensors",
                    "size": 1000,
                    "sha256": sha256,
                    "format": "safetensors",
                }
            ]
            connection.execute(
                "UPDATE records SET weight_files = ? WHERE model_id = (SELECT model_id FROM fine_tunes WHERE model = ?)",
                [files, name],
            )
        steps = [
            (FIRST, None, "tuned from the base", 0.97),
            (SECOND, FIRST, "continued", 0.93),
            (MERGED, FIRST, "merge", 0.99),
            (MERGED, SECOND, "merge", 0.99),
            (PRIVATE, SECOND, "continued", 0.91),
        ]
        ids = dict(connection.execute("SELECT model, model_id FROM fine_tunes").fetchall())
        for child, parent, kind, probability in steps:
            connection.execute(
                "INSERT INTO lineage SELECT ?, record_key, ?, ?, NULL, .5, .01, 'not declared', 'known', ?, [], 0, "
                "TIMESTAMP '2026-01-01', ? FROM records WHERE model_id = ?",
                [ids[child], ids.get(parent), kind, f"{child} has this evidence", probability, ids[child]],
            )
    return folder
