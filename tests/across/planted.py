"""An atlas of several bases whose models moved known words, written straight into its database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np

from indexer.atlas import SCHEMA_VERSION, STORAGE_VERSION
from indexer.database.catalog import empty_database
from indexer.publish.tables import Tables
from indexer.vectors.stored import Vectors
from tests.atlas_builder import BEGAN, Model, _add, insert, insert_base, publish_vectors

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class PlantedBase:
    """A base, the words of its rows, and its models, whose vectors have a number for each word in alphabetical order."""

    name: str
    words: tuple[str, ...]
    models: tuple[Model, ...]


def english(count: int, seed: int = 0) -> list[str]:
    """Different words of five Latin letters."""
    draw = np.random.default_rng(seed)
    words = {"".join(LETTERS[letter] for letter in draw.integers(0, 26, 5)) for _ in range(2 * count)}
    return sorted(words)[:count]


def greek(count: int) -> list[str]:
    """Different words of three Greek letters."""
    return sorted("".join(chr(0x3B1 + (number // 17**place) % 17) for place in range(3)) for number in range(count))


def vector_of(words: Sequence[str], moved: Sequence[str], draw: np.random.Generator, noise: float = 0.3) -> np.ndarray:
    """A vector of a model that moved some words more than others of its base did."""
    vector = noise * draw.normal(size=len(words))
    is_moved = np.isin(words, list(moved))
    vector[is_moved] += 1 + 0.3 * draw.normal(size=int(is_moved.sum()))
    return vector


def family(
    base: str, words: Sequence[str], topics: Sequence[Sequence[str]], each: int = 6, seed: int = 0, authors: int = 8
) -> PlantedBase:
    """``each`` models for every topic, the words that texts of a data set are about, by ``authors`` in turn."""
    draw = np.random.default_rng(seed)
    models = tuple(
        Model(
            f"{base.rpartition('/')[2]}-author{(member + 3 * number) % authors}/set{number}-{member}",
            vector_of(words, topic, draw), (f"data/set{number}",),
        )
        for number, topic in enumerate(topics) for member in range(each)
    )  # fmt: skip
    return PlantedBase(base, tuple(words), models)


def write_bases(folder: Path, bases: Sequence[PlantedBase]) -> Path:
    """The atlas of these bases, with ids from 1 in order."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "atlas.duckdb").write_bytes(empty_database())
    config = {"storage_compatibility_version": STORAGE_VERSION}
    with duckdb.connect(str(folder / "atlas.duckdb"), config=config) as connection:
        connection.execute("BEGIN")
        insert(connection, "atlas_info", [SCHEMA_VERSION, 3, BEGAN, "0.1.0", 1 + sum(len(one.models) for one in bases)])
        first = 1
        for base in bases:
            layers = [{"stack": "", "layers": 6}]
            insert_base(connection, base.name, layers=layers, deltas=["0.query"], words=[*base.words, ""])
            _add(Tables(connection), first, base.models, base.name)
            kept = [(number, one.vector) for number, one in enumerate(base.models, first) if one.vector is not None]
            matrix = np.array([vector for _, vector in kept], dtype=np.float32)
            matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
            vectors = Vectors(np.array([number for number, _ in kept], dtype=np.int64), matrix)
            for name in ("input", "words"):
                publish_vectors(connection, folder, base.name, name, vectors, neighbours=name == "input")
            first += len(base.models)
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT")
    return folder
