"""The vectors of an atlas as they are, as they were without centres of initialisations, and with other labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.centre import (
    ADAPTER,
    GROUPS,
    Centre,
    GroupCentre,
    centre_of,
    data_vote,
    fewest_votes,
    initialisation_group,
)
from query import Atlas
from query.population import Population, distinct, read_population

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Started:
    """The distinct models of a base, with what the atlas knows of their start; entry i is the same model.

    ``uncentred``: (n, d) vectors from before anything was subtracted. ``groups``: adapter or full. ``norms``: of the
    whole change.
    """

    population: Population
    centre: Centre
    groups: list[str]
    initialisations: list[int | None]
    norms: list[float]
    uncentred: Floats

    @property
    def adapters(self) -> NDArray[np.intp]:
        """Places of the adapters."""
        return np.flatnonzero(np.array(self.groups) == ADAPTER)

    def centred(self, labels: Sequence[str], rows: Sequence[int] | None = None, *, by_start: bool = True) -> Floats:
        """(n, d) vectors of the models at ``rows`` (default: all), as an atlas of these would publish them.

        ``labels``: by model of ``rows``, the data set whose vote it has a share of. ``by_start``: with centres of
        initialisations; without, as it was before there were any.
        """
        chosen = list(range(len(self.groups))) if rows is None else list(rows)
        mine, blocks = self.uncentred[chosen], self.population.blocks
        groups = [self.groups[row] for row in chosen]
        centres = {name: GroupCentre.nothing(blocks, mine.shape[1] // blocks) for name in GROUPS}
        for name in set(groups):
            members = [place for place, group in enumerate(groups) if group == name]
            authors = [self.population.authors[chosen[place]] for place in members]
            centres[name] = centre_of(mine[members], authors, blocks)
        if by_start:
            starts = [self.initialisations[row] for row in chosen]
            for start in {one for one in starts if one is not None}:
                members = [place for place, one in enumerate(starts) if one == start]
                votes = [data_vote([labels[place]]) for place in members]
                if len(set(votes)) >= fewest_votes(votes):
                    name = initialisation_group(start)
                    norms = [self.norms[chosen[place]] for place in members]
                    centres[name] = centre_of(mine[members], votes, blocks, centres[ADAPTER], norms)
        centre = Centre(centres)
        found = np.zeros_like(mine)
        for place, row in enumerate(chosen):
            group = centre.group_of(groups[place], self.initialisations[row])
            found[place] = centre.centred(mine[place : place + 1], group)[0]
        return found


def read_started(atlas: Atlas, base: str) -> Started:
    """Raises AtlasError where the base has no vectors."""
    population = distinct(read_population(atlas, base))
    centre = atlas.centre(base)
    assert centre is not None
    rows = atlas.rows("SELECT model_id, vector_group, initialisation, delta_norm FROM models WHERE base = ?", [base])
    known = {row["model_id"]: row for row in rows}
    groups = [known[one]["vector_group"] for one in population.ids.tolist()]
    starts = [known[one]["initialisation"] for one in population.ids.tolist()]
    norms = [known[one]["delta_norm"] for one in population.ids.tolist()]
    uncentred = np.zeros_like(population.vectors)
    for place, (group, start) in enumerate(zip(groups, starts, strict=True)):
        vector = population.vectors[place : place + 1]
        uncentred[place] = centre.uncentred(vector, centre.group_of(group, start))[0]
    return Started(population, centre, groups, starts, norms, uncentred)
