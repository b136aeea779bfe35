"""The null distribution of similarity between unrelated models, per pair of groups.

Recomputed whenever the centre changes.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from indexer.publish.tables import Tables
from indexer.vectors.background import Background
from indexer.vectors.centre import GROUPS
from indexer.vectors.search import VectorIndex

# Largest sample of a group: half a million pairs within a group.
MOST_MODELS = 1_024

Ids = NDArray[np.int64]


def renew_null_similarity(tables: Tables, base: str, representation: str, index: VectorIndex) -> None:
    """Rewrite the distributions of all pairs of groups that have enough pairs of unrelated models.

    Unrelated models are by different authors and name datasets, none in common. Models that name none are skipped,
    because they may share one, and so are copies, models unrelated to the base and duplicates.
    """
    tables.run("DELETE FROM null_similarity WHERE base = ? AND representation = ?", [base, representation])
    rows = tables.rows(
        "SELECT model_id, vector_group, author, datasets FROM models WHERE base = ? AND NOT is_copy "
        "AND NOT is_unrelated AND duplicate_of IS NULL AND len(datasets) > 0 ORDER BY model_id",
        [base],
    )
    facts = {model_id: (author, set(datasets)) for model_id, _, author, datasets in rows}
    samples = {}
    for group in GROUPS:
        ids = np.array([row[0] for row in rows if row[1] == group], dtype=np.int64)
        if len(ids) > MOST_MODELS:  # the same models in every publish of the same models
            seed = int.from_bytes(hashlib.sha256(f"{base}|{group}".encode()).digest()[:8], "little")
            ids = np.sort(np.random.default_rng(seed).choice(ids, MOST_MODELS, replace=False))
        samples[group] = index.rows(ids)
    for place, one in enumerate(GROUPS):
        for other in GROUPS[place:]:
            first, second = samples[one], samples[other]
            if not len(first) or not len(second):
                continue
            counts = _are_unrelated([facts[i] for i in first.ids.tolist()], [facts[i] for i in second.ids.tolist()])
            if one == other:
                counts = np.triu(counts, 1)
            similarities = first.matrix @ second.matrix.T / index.masks.divisors(first.matrix, second.ids)
            found = Background.of(np.clip(similarities[counts], -1.0, 1.0))
            if found is None:
                continue
            count = len(found.shares)
            tables.insert_columns(
                "null_similarity",
                {
                    "base": [base] * count,
                    "representation": [representation] * count,
                    "one_group": [one] * count,
                    "other_group": [other] * count,
                    "pairs": [found.pairs] * count,
                    "similarity": found.similarities,
                    "share": found.shares,
                },
            )


def _are_unrelated(first: list[tuple[str, set[str]]], second: list[tuple[str, set[str]]]) -> NDArray[np.bool_]:
    """(a, b): whether the authors differ and no dataset is the same, from pairs (author, datasets)."""
    from scipy.sparse import csr_array

    names = {name: number for number, name in enumerate({name for _, held in (*first, *second) for name in held})}
    matrices = []
    for models in (first, second):
        pairs = [(row, names[name]) for row, (_, held) in enumerate(models) for name in held]
        places = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        ones = np.ones(len(pairs), np.float32)
        matrices.append(csr_array((ones, (places[0], places[1])), shape=(len(models), len(names))))
    shared = (matrices[0] @ matrices[1].T).toarray() > 0
    authors = [np.array([author for author, _ in models], dtype=object) for models in (first, second)]
    return np.asarray((authors[0][:, None] != authors[1][None, :]) & ~shared)
