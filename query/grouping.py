"""What purity and its kin are computed from: vectors, authors, datasets and flags of one base, in one order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from query.purity import Population, PurityResult, measure_purity

if TYPE_CHECKING:
    from query.atlas import Atlas


def population(atlas: Atlas, base: str | None, representation: str = "input") -> Population:
    """All models of one base that have a vector. Raises AtlasError where the representation is not published."""
    canonical = atlas.base_named(base)
    vectors = atlas.vectors(canonical, representation)
    rows = {
        row["model_id"]: row
        for row in atlas.rows(
            "SELECT model_id, model, author, datasets, is_copy, is_unrelated, duplicate_group, duplicate_of "
            "FROM models WHERE base = ?",
            [canonical],
        )
    }
    kept = [position for position, model_id in enumerate(vectors.ids) if int(model_id) in rows]
    found = [rows[int(vectors.ids[position])] for position in kept]
    return Population(
        vectors=vectors.matrix[kept],
        ids=[row["model_id"] for row in found],
        authors=[row["author"] for row in found],
        datasets=[frozenset(row["datasets"]) for row in found],
        is_copy=[row["is_copy"] for row in found],
        is_unrelated=[row["is_unrelated"] for row in found],
        groups=[row["duplicate_group"] for row in found],
        representatives=[row["duplicate_of"] is None for row in found],
        names=[row["model"] for row in found],
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
    """Purity of one base of an atlas; see :func:`query.purity.measure_purity`."""
    return measure_purity(
        population(atlas, base, representation),
        base=atlas.base_named(base),
        representation=representation,
        k=k,
        draws=draws,
        seed=seed,
    )
