"""Who is in which cluster: its size, what and whom it holds, its middle, and what its silent members probably are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from query.clusters.methods import OUTLIER
from query.clusters.silhouette import Floats
from query.population import Population, leading_datasets
from query.statistics.neighbours import Integers, members_of

_BLOCK = 1 << 23  # similarities held at a time
_TIE = 1e-12  # two cosines that differ by less are the same sum in another order


@dataclass(frozen=True)
class Member:
    """One model that was clustered. ``dataset``: the one it stands for (``leading_datasets``), or None.

    ``cluster``: -1 for an outlier. ``strength``: how firmly it belongs, 0 to 1 (hdbscan: HDBSCAN's probability;
    kmeans: the cosine with the centre). ``nearest``: an outlier's highest cosine with any other model.
    """

    model_id: int
    model: str
    author: str
    relation: str
    dataset: str | None
    datasets: tuple[str, ...]
    cluster: int
    strength: float
    is_central: bool
    nearest: float | None


@dataclass(frozen=True)
class Cluster:
    """One cluster; counts descend. ``datasets`` counts a model once, under the dataset it stands for.

    ``central``: the member with the highest cosine with the cluster's centre (its mean direction), which is also
    the member with the highest mean cosine with all members; ties by id. ``cohesion``: mean cosine over pairs of
    members, None for one alone. ``documented``: members that name a dataset; ``probably``: the dataset that most
    of them stand for, ``share`` how many of them do; ``undocumented``: the members of which that is a guess.
    """

    cluster: int
    size: int
    datasets: dict[str, int]
    authors: dict[str, int]
    central: str
    cohesion: float | None
    documented: int
    probably: str | None
    share: float | None
    undocumented: tuple[str, ...]
    relations: dict[str, int]


def numbered(found: Integers) -> Integers:
    """The same clusters, numbered from 0 by size, ties by who comes first; -1 stays -1."""
    names, first, sizes = np.unique(found, return_index=True, return_counts=True)
    order = sorted((-size, start, name) for name, start, size in zip(names, first, sizes, strict=True) if name >= 0)
    number = {int(name): rank for rank, (_, _, name) in enumerate(order)} | {OUTLIER: OUTLIER}
    return np.array([number[int(name)] for name in found], dtype=np.intp)


def described(
    kept: Population, points: Floats, found: Integers, strengths: Floats
) -> tuple[tuple[Cluster, ...], tuple[Member, ...]]:
    """All clusters, and all models. ``found``: numbered clusters; ``points``: unit vectors with the same cosines."""
    datasets = leading_datasets(kept.datasets)
    placed = np.flatnonzero(found >= 0)
    groups = [placed[inside] for inside in members_of(found[placed])] if len(placed) else []
    middles = [_middle(points[rows]) for rows in groups]
    clusters = tuple(
        _cluster(kept, datasets, number, rows, int(rows[central]), cohesion)
        for number, (rows, (central, cohesion)) in enumerate(zip(groups, middles, strict=True))
    )
    centrals = {int(rows[central]) for rows, (central, _) in zip(groups, middles, strict=True)}
    nearest = _nearest(points, np.flatnonzero(found < 0))
    members = tuple(
        Member(
            model_id=int(kept.ids[row]),
            model=kept.models[row],
            author=kept.authors[row],
            relation=kept.relations[row],
            dataset=datasets[row],
            datasets=tuple(sorted(kept.datasets[row])),
            cluster=int(found[row]),
            strength=float(np.clip(strengths[row], 0, 1)),
            is_central=row in centrals,
            nearest=nearest.get(row),
        )
        for row in range(len(found))
    )
    return clusters, members


def _cluster(
    kept: Population, datasets: list[str | None], number: int, rows: Integers, central: int, cohesion: float | None
) -> Cluster:
    held = _counted([name for row in rows if (name := datasets[row]) is not None])
    documented = sum(held.values())
    return Cluster(
        cluster=number,
        size=len(rows),
        datasets=held,
        authors=_counted([kept.authors[row] for row in rows]),
        central=kept.models[central],
        cohesion=cohesion,
        documented=documented,
        probably=next(iter(held), None),
        share=next(iter(held.values())) / documented if documented else None,
        undocumented=tuple(kept.models[row] for row in rows if datasets[row] is None),
        relations=_counted([kept.relations[row] for row in rows]),
    )


def _counted(names: Sequence[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda pair: (-pair[1], pair[0])))


def _middle(points: Floats) -> tuple[int, float | None]:
    """Which of a cluster's members is the most central, and the mean cosine over its pairs."""
    total = points.sum(axis=0)
    likeness = points @ total
    central = int(np.flatnonzero(likeness >= likeness.max() - _TIE * len(points))[0])
    count = len(points)
    return central, float((total @ total - count) / (count * (count - 1))) if count > 1 else None


def _nearest(points: Floats, rows: Integers) -> dict[int, float]:
    """For each of ``rows`` the highest cosine with any other model; none where there is no other."""
    if len(points) < 2:
        return {}
    found: dict[int, float] = {}
    step = max(1, _BLOCK // len(points))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        likeness = points[part] @ points.T
        likeness[np.arange(len(part)), part] = -np.inf
        found |= zip(part.tolist(), likeness.max(axis=1).tolist(), strict=True)
    return found
