"""A merge whose parents' relatives are nearer to it than they are: only together do the parents explain it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pytest

from query.lineage.candidates import Candidate, Factors, FactorStore
from query.lineage.decide import Judge
from query.lineage.groups import best_group
from query.lineage.links import MERGE
from query.lineage.search import Search, Spending
from query.lineage.thresholds import Limits
from tests.lineage.test_decided import DAY, candidate
from tests.lineage.test_evidence import BASE, added, matrices, parts

WEIGHTS = (0.4, 0.35, 0.25)
RANK = 12


def training(seed: int) -> dict:
    """A change whose energy lies in few directions, as trainings' does, with a little beside them."""
    found = {}
    for name, noise in matrices(seed, 0.002).items():
        random = np.random.default_rng(seed)
        left, right = (random.standard_normal((size, 6)) for size in noise.shape)
        found[name] = (noise + 0.02 * left @ right.T).astype(np.float32)
    return found


PARENTS = [training(seed) for seed in (21, 22, 23)]


def factors(change) -> dict:
    """As a record keeps them: the leading triplets, (u·σ, v)."""
    found = {}
    for name, matrix in change.items():
        u, s, vt = np.linalg.svd(matrix, full_matrices=False)
        found[name] = Factors((u * s)[:, :RANK].astype(np.float32), vt[:RANK].T.astype(np.float32))
    return found


@pytest.fixture(scope="module")
def planted() -> tuple[list[Candidate], FactorStore, dict]:
    """Three parents, and nine blends of two or three of them, each with a training of its own behind it."""
    changes = [added((1, one)) for one in PARENTS]
    for seed in range(9):
        shares = np.random.default_rng(seed).dirichlet((3, 3, 3))
        blend = [(float(share), one) for share, one in zip(shares, PARENTS, strict=True)]
        changes.append(added(*blend, (0.2, training(40 + seed))))
    candidates = [candidate(number + 1, DAY - timedelta(days=9)) for number in range(len(changes))]
    store = FactorStore(None, {})  # type: ignore[arg-type]
    store._held.update({one.model_id: factors(change) for one, change in zip(candidates, changes, strict=True)})
    return candidates, store, {one.model_id: parts(change) for one, change in zip(candidates, changes, strict=True)}


def merge() -> dict:
    return added(*zip(WEIGHTS, PARENTS, strict=True))


def names(found: Sequence[Candidate]) -> set[int]:
    return {one.model_id for one in found}


def test_the_parents_are_the_group_that_leaves_least(planted):
    candidates, store, _ = planted
    m = parts(merge())
    _, fitted = store.fit(candidates, m.deltas)
    assert int(np.argmax(fitted)) > 2  # a blend is nearer than each parent
    group, left = best_group(store, candidates, m.deltas, m.deltas, Limits(most_parents=3))
    assert names(group) == {1, 2, 3}
    assert left < 0.2


def test_a_merge_is_settled_where_blends_took_every_reading(planted):
    candidates, store, read = planted

    def search(**limits) -> Search:
        judge = Judge(candidate(90), parts(merge()), BASE, None, Limits(most_models=2, **limits), dates=True)
        return Search(lambda one: read[one.model_id], judge, store, candidates, Spending())

    verdict = search().run([])
    assert {link.parent.model_id: round(link.coefficient, 3) for link in verdict.links} == dict(
        zip((1, 2, 3), WEIGHTS, strict=True)
    )
    assert {link.kind for link in verdict.links} == {MERGE}
    assert not search(together=0.0).run([]).settled


def test_what_no_group_explains_is_not_read_for(planted):
    candidates, store, read = planted
    judge = Judge(candidate(90), parts(added((1, training(77)))), BASE, None, Limits(most_models=2), dates=True)
    spending = Spending()
    found = Search(lambda one: read[one.model_id], judge, store, candidates, spending)
    assert not found.run([]).links
    assert len(found.readings) <= 2
