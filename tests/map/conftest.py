"""The atlas of the maps that are tested."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from query import Atlas
from query.questions.map.model_map import model_map
from tests.atlas_builder import BASE, Model, write_atlas
from tests.database import execute

RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(3, 32))
SVG = "{http://www.w3.org/2000/svg}"


def near(group, scale=0.4):
    return CENTRES[group] + scale * RNG.normal(size=32)


def time(day):
    return datetime.datetime(2024, 1, day)


MODELS = [
    Model("ann/one", near(0), ("glue", "glue/mrpc"), downloads=5, licence="mit", created=time(1), languages=("en",)),
    Model("ann/two", near(0), ("glue/mrpc",), downloads=50_000, licence="mit", created=time(3), languages=("en", "fr")),
    Model("bob/three", near(0), ("glue/mrpc", "imdb"), downloads=0, gated="auto", relation="adapter", label_count=2),
    Model("bob/four", near(1), ("imdb",), downloads=120, licence="apache-2.0", is_partly_frozen=True),
    Model("bob/five", near(1), ("imdb",), downloads=None, created=time(9)),
    Model("cyd/six", near(1), (), downloads=7, licence="mit"),
    Model("cyd/seven", near(2), ("squad",), downloads=3, relation="adapter"),
    Model("dan/eight", near(2), ("imdb",), downloads=1),
    Model("dan/copy", np.zeros(32), ("squad",)),
    Model("dan/stranger", RNG.normal(size=32), ("squad",), is_unrelated=True),
    Model("eve/one-again", CENTRES[0], ("snli",), duplicate_of=1),
]
KEPT = [model.model for model in MODELS[:8]]
DRAWN = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".html": b"<!doctype html>", ".parquet": b"PAR1"}


def pca(atlas, **options):
    return model_map(atlas, BASE, **({"method": "pca"} | options))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_atlas(tmp_path_factory.mktemp("map") / "atlas", MODELS)
    # MODELS does not say when.
    execute(folder / "atlas.duckdb", "UPDATE fine_tunes SET created = NULL WHERE created >= '2026-01-01'")
    return folder


@pytest.fixture(scope="module")
def atlas(folder):
    with Atlas(folder) as opened:
        yield opened
