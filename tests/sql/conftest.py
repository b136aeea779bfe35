"""The database that is asked, made once, and a secret that nobody may read."""

from __future__ import annotations

import hashlib
import os

import duckdb
import pytest

from query.questions.sql import asked_condition

SECRET = "the secret of another file"


def state(folder):
    """Every file of a folder with its bytes, and every name of the working directory."""
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return files, sorted(os.listdir())


def check_condition(database, where, view="models"):
    """The ids of the rows of a view that satisfy a condition."""
    return asked_condition(database, where, view).model_ids()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """An atlas's folder: a database, a vector file beside it, and an unrelated file."""
    root = tmp_path_factory.mktemp("atlas")
    path = root / "atlas.duckdb"
    with duckdb.connect(str(path), config={"storage_compatibility_version": "v1.4.0"}) as connection:
        connection.execute("CREATE TABLE facts (model_id INTEGER, author VARCHAR, downloads BIGINT)")
        connection.execute("INSERT INTO facts SELECT i, 'author' || i % 7, i * 10 FROM range(1000) t(i)")
        connection.execute("CREATE VIEW models AS SELECT * FROM facts")
        connection.execute("CREATE MACRO nearest(k) AS TABLE SELECT * FROM facts WHERE model_id < k")
        connection.execute("CHECKPOINT")
    (root / "roberta-base.input.0123.faiss").write_bytes(os.urandom(2000))
    (root / "secret.csv").write_text(f"word\n{SECRET}\n")
    return root


@pytest.fixture(scope="session")
def database(folder):
    return folder / "atlas.duckdb"
