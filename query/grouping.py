"""What purity and its kin are computed from: vectors, authors, datasets and flags of one base, in one order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from query.purity import PurityResult, purity

if TYPE_CHECKING:
    from query.atlas import Atlas


@dataclass
class Population:
    """All models of a base that have a vector: ``vectors`` (n, d) unit rows, ids ascending, the rest aligned."""

    base: str
    representation: str
    vectors: NDArray[np.float32]
    ids: NDArray[np.int64]
    models: list[str]
    authors: list[str]
    datasets: list[frozenset[str]]
    relations: list[str]
    is_copy: NDArray[np.bool_]
    is_unrelated: NDArray[np.bool_]
    group: list[int | None]
    representative: NDArray[np.bool_]


def population(atlas: Atlas, base: str | None, representation: str = "input") -> Population:
    """Read one base's population. Raises AtlasError where the representation is not published."""
    canonical = atlas.base_named(base)
    vectors = atlas.vectors(canonical, representation)
    rows = {
        row["model_id"]: row
        for row in atlas.rows(
            "SELECT model_id, model, author, relation, datasets, is_copy, is_unrelated, duplicate_group, "
            "duplicate_of FROM models WHERE base = ?",
            [canonical],
        )
    }
    kept = [position for position, model_id in enumerate(vectors.ids) if int(model_id) in rows]
    found = [rows[int(vectors.ids[position])] for position in kept]
    return Population(
        base=canonical,
        representation=representation,
        vectors=vectors.matrix[kept],
        ids=vectors.ids[kept],
        models=[row["model"] for row in found],
        authors=[row["author"] for row in found],
        datasets=[frozenset(row["datasets"]) for row in found],
        relations=[row["relation"] for row in found],
        is_copy=np.array([row["is_copy"] for row in found], dtype=bool),
        is_unrelated=np.array([row["is_unrelated"] for row in found], dtype=bool),
        group=[row["duplicate_group"] for row in found],
        representative=np.array([row["duplicate_of"] is None for row in found], dtype=bool),
    )


def atlas_purity(
    atlas: Atlas,
    base: str | None = None,
    *,
    representation: str = "input",
    k: int | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> PurityResult:
    """Purity of one base of an atlas; see :func:`query.purity.purity`."""
    return purity(population(atlas, base, representation), k=k, draws=draws, seed=seed)
