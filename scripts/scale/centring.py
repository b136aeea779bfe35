"""Drawn vectors as an atlas publishes them: blocks of unit norm minus the centre of their group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from indexer.publish.vectors import with_unit_blocks
from indexer.vectors.centre import ADAPTER, FULL, Centre, centre_of, joined_centres
from scripts.scale.population import Floats


def centre_of_drawn(
    drawn: Floats, blocks: int, is_adapter: NDArray[np.bool_], authors: NDArray[np.integer], votes: NDArray[np.bool_]
) -> Centre:
    """The centre of both groups of (n, d) drawn vectors; ``votes`` (n,): which of them it is made of."""
    unit = with_unit_blocks(drawn, blocks)
    names = authors.astype(str)
    groups = ((ADAPTER, np.flatnonzero(is_adapter & votes)), (FULL, np.flatnonzero(~is_adapter & votes)))
    return joined_centres((name, centre_of(unit[rows], names[rows].tolist(), blocks)) for name, rows in groups)


def as_published(drawn: Floats, blocks: int, is_adapter: NDArray[np.bool_], centre: Centre) -> Floats:
    """(n, d) drawn vectors minus the centre of their group, blocks of unit norm again; copies stay zero."""
    unit = with_unit_blocks(drawn, blocks)
    found = np.zeros_like(unit)
    for name, rows in ((ADAPTER, is_adapter), (FULL, ~is_adapter)):
        found[rows] = centre.centred(unit[rows], name)
    return found
