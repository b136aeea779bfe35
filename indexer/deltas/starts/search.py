"""Searches for the start of an adapter: among the usual seeds, and further."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from indexer.deltas.starts.seed_table import LENGTH, Draws, SeedTable, usual_seeds
from indexer.deltas.starts.start import Distribution, Factor, LoraModule, Start, find_start, solve_start

# Words of a seed that a sweep looks through.
FARTHEST = 1 << 16
# Words of one table of a further search: 180 MB.
_AT_ONCE = 1 << 26
# The most memory of a process during a further search (measured).
SEARCH_BYTES = 700 << 20


class Search(Protocol):
    """Looks for the start of an adapter; None if it is not found."""

    def __call__(self, modules: Sequence[LoraModule], factor: Factor, distribution: Distribution) -> Start | None:
        """``modules`` in the order of the network; ``factor`` returns A (rank, inputs) of a path."""
        ...


def in_usual_seeds(modules: Sequence[LoraModule], factor: Factor, distribution: Distribution) -> Start | None:
    """The start, if it has one of the usual seeds; else None."""
    return find_start(modules, factor, usual_seeds(), distribution)


@dataclass(frozen=True)
class FurtherSearch:
    """Searches the usual seeds, then the first ``words`` random numbers of each of ``seeds``, then any seed.

    ``swept``: seeds that a sweep found; their first 65,536 numbers are searched before ``seeds``.

    The last search uses linear algebra and finds adapters that were moved little, if the seed lies at most ``words``
    before the first factor (``solve_start``). A process takes up to 720 MB. The search takes 12 ns for each seed and
    word, and half a minute, or two minutes if nothing is found.
    """

    seeds: tuple[int, ...]
    words: int
    swept: tuple[int, ...] = ()

    def __call__(self, modules: Sequence[LoraModule], factor: Factor, distribution: Distribution) -> Start | None:
        """``modules`` in the order of the network; ``factor`` returns A (rank, inputs) of a path."""
        start = in_usual_seeds(modules, factor, distribution)
        for draws in self._tables() if start is None else ():
            start = find_start(modules, factor, _table(draws), distribution)
            if start is not None:
                break
        return start or solve_start(modules, factor, distribution, self.words)

    @property
    def seconds(self) -> float:
        """About how long an unsuccessful search takes."""
        return 120 + 12e-9 * self.words * len(self.seeds)

    def _tables(self) -> Iterator[tuple[Draws, ...]]:
        """The random numbers to search, in parts of at most ``_AT_ONCE`` words."""
        yield from _parts(self.swept, FARTHEST)
        yield from _parts(self.seeds, self.words)


def _parts(seeds: Sequence[int], words: int) -> Iterator[tuple[Draws, ...]]:
    part: list[Draws] = []
    room, most = _AT_ONCE, -(-words // LENGTH) * LENGTH
    for seed in seeds:
        start = 0
        while start < most:
            count = min(most - start, room)
            part.append(Draws(seed, count, start))
            start, room = start + count, room - count
            if not room:
                yield tuple(part)
                part, room = [], _AT_ONCE
    if part:
        yield tuple(part)


@lru_cache(maxsize=1)
def _table(draws: tuple[Draws, ...]) -> SeedTable:
    """The table of a further search. If there is only one, all adapters of a process share it."""
    return SeedTable(draws)
