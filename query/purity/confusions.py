"""Which datasets are taken for which: the datasets of neighbours that do not match, compared with chance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from query.purity.labels import Floats, LabelledOrder
from query.statistics.neighbours import Integers

_BLOCK = 1 << 22  # pairs of models in memory at a time


@dataclass(frozen=True)
class Confusion:
    """Two datasets, and how often models of one have neighbours from the other instead of their own.

    ``neighbours``: how many of the neighbours that purity counts for models of ``dataset`` share no dataset with the
    model and name ``taken_for``. ``share``: their share of all neighbours that share no dataset. ``chance``: that share
    for random neighbours. ``back_…``: the same from ``taken_for`` to ``dataset``. ``is_notable``: both shares are above
    chance, as for two datasets with the same text.
    """

    dataset: str
    taken_for: str
    neighbours: int
    share: float
    chance: float
    back_neighbours: int
    back_share: float
    back_chance: float
    is_notable: bool


def confused_pairs(trial: LabelledOrder) -> tuple[Confusion, ...]:
    """All pairs of datasets with any confusion; notable ones first, then by how far both shares exceed chance.

    Counts are pooled over the models of a dataset, and a neighbour counts once for every dataset that it names.
    """
    from scipy.sparse import csr_array

    names = sorted({name for names in trial.labels for name in names})
    number_of = {name: column for column, name in enumerate(names)}
    pairs = [(row, number_of[name]) for row, found in enumerate(trial.labels) for name in found]
    rows, columns = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    # (models, datasets): 1 if the model names the dataset.
    member = csr_array((np.ones(len(pairs)), (rows, columns)), (len(trial.labels), len(names)))
    counts = np.zeros((len(names), len(names)))
    expected = np.zeros_like(counts)
    totals = np.zeros(len(names))
    for rows, missed, others in _misses(trial):
        # (rows, datasets): neighbours and candidates that do not match, by the datasets they name.
        found, open_to = missed @ member, others @ member
        number, choice = missed.sum(axis=1), others.sum(axis=1)
        of = member[rows].T
        totals += of @ number
        counts += of @ found
        expected += of @ (open_to * (number / np.maximum(choice, 1))[:, None])
    totals = np.maximum(totals, 1)
    confusions = []
    for one, other in combinations(range(len(names)), 2):
        there, back = counts[one, other], counts[other, one]
        if there + back:
            confusions.append(
                Confusion(
                    dataset=names[one],
                    taken_for=names[other],
                    neighbours=int(there),
                    share=float(there / totals[one]),
                    chance=float(expected[one, other] / totals[one]),
                    back_neighbours=int(back),
                    back_share=float(back / totals[other]),
                    back_chance=float(expected[other, one] / totals[other]),
                    is_notable=bool(there > expected[one, other] and back > expected[other, one]),
                )
            )

    def lift(pair: Confusion) -> float:
        both = ((pair.share, pair.chance), (pair.back_share, pair.back_chance))
        return min(share / chance if chance > 0 else 0.0 for share, chance in both)

    return tuple(sorted(confusions, key=lambda one: (not one.is_notable, -lift(one), one.dataset, one.taken_for)))


def _misses(trial: LabelledOrder) -> Iterator[tuple[Integers, Floats, Floats]]:
    """Scored models, and (rows, models) which of their neighbours and which of their candidates do not match."""
    matching = trial.matching(trial.sweep_kinds)
    limits = matching if trial.looked_at is None else trial.looked_at
    scored = np.flatnonzero(matching)
    count = len(trial.order)
    is_match = trial.matches(trial.kinds)
    everyone = np.arange(count)
    step = max(1, _BLOCK // count)
    for rows in (scored[start : start + step] for start in range(0, len(scored), step)):
        candidates = trial.excluded[rows, None] != trial.excluded[None, :]
        others = candidates & ~is_match(rows, np.broadcast_to(everyone, candidates.shape))
        near = np.zeros((len(rows), count + 1), dtype=bool)  # the last column stands for no model
        lists = trial.order[rows].astype(np.intp)
        np.put_along_axis(near, lists, everyone < limits[rows, None], axis=1)
        yield rows, (near[:, :count] & others).astype(np.float64), others.astype(np.float64)
