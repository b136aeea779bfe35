"""What several studies do with vectors: subtract the centres of groups, and count matches among the nearest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.centre import CENTRED, Centre, centre_of
from indexer.vectors.table import VectorTable

Floats = NDArray[np.float32]


def centred(raw: Floats, groups: Sequence[str], authors: Sequence[str], blocks: int) -> Floats:
    """(n, d) unit blocks less the centre of their group, of unit norm again; as they are if the group has none."""
    found = raw.copy()
    for group in set(groups) & set(CENTRED):
        rows = [row for row, one in enumerate(groups) if one == group]
        centre = Centre({group: centre_of(raw[rows], [authors[row] for row in rows], blocks)})
        found[rows] = centre.centred(raw[rows], group)
    return found


def matches_of_nearest(
    vectors: VectorTable, labels: Sequence[Collection[str]], rows: Sequence[int], candidates: Sequence[int]
) -> list[tuple[float, float]]:
    """For each row with m other candidates of its label: the share of matches among its m nearest, and among all."""
    if not rows:
        return []
    table = vectors.take(rows).similarities(vectors.take(candidates), np.float64)
    found = []
    for place, row in enumerate(rows):
        near = [candidates[column] for column in np.argsort(-table[place], kind="stable") if candidates[column] != row]
        matches = [not set(labels[row]).isdisjoint(labels[other]) for other in near]
        if any(matches):
            found.append((float(np.mean(matches[: sum(matches)])), float(np.mean(matches))))
    return found
