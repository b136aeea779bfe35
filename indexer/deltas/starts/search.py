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
# What a process holds during a further search, at most (measured).
SEARCH_BYTES = 700 << 20


class Search(Protocol):
    """Looks for the start of an adapter; None if it is not found."""

    def __call__(self, modules: Sequence[LoraModule], factor: Factor, distribution: Distribution) -> Start | None:
        """``modules`` in the order of the network; ``factor`` gives A (rank, inputs) of a path."""
        ...


def in_usual_seeds(modules: Sequence[LoraModule], factor: Factor, distribution: Distribution) -> Start | None:
    """The start, if it is one of the usual seeds'."""
    return find_start(modules, factor, usual_seeds(), distribution)


@dataclass(frozen=True)
class FurtherSearch:
    """Looks through the usual seeds, then the first ``words`` random numbers of each of ``seeds``, then for any seed.

    ``swept``: seeds that a sweep found; of these the first 65,536 numbers are looked through before.

    The last is by linear algebra and finds adapters that were moved little, of which the seed lies at most ``words``
    before the first factor (``solve_start``). A process holds up to 720 MB in all. It takes 12 ns for each seed and
    word, and half a minute or, for what is not found, two.
    """

    seeds: tuple[int, ...]
    words: int
    swept: tuple[int, ...] = ()

    def __call__(self, modules: Sequence[LoraModule], factor: Factor, distribution: Distribution) -> Start | None:
        """``modules`` in the order of the network; ``factor`` gives A (rank, inputs) of a path."""
        start = in_usual_seeds(modules, factor, distribution)
        for draws in self._tables() if start is None else ():
            start = find_start(modules, factor, _table(draws), distribution)
            if start is not None:
                break
        return start or solve_start(modules, factor, distribution, self.words)

    @property
    def seconds(self) -> float:
        """About how long one adapter takes that is not found."""
        return 120 + 12e-9 * self.words * len(self.seeds)

    def _tables(self) -> Iterator[tuple[Draws, ...]]:
        """The numbers to look through, in parts that are not too large."""
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
    """The table of a further search; if there is only one, all adapters that a process reads share it."""
    return SeedTable(draws)
