"""Where in the random numbers of usual seeds a factor begins: one correlation for all seeds and places.

The numbers of a seed are cut into segments, each overlapping the next by half, and segments are added up in groups.
A factor of n numbers with a cosine of c to what it was drawn from stands out of the sum of a group of k by c·√(n/k)
standard deviations, so that a group needs one correlation by fast Fourier transform in place of k. What stands out is
looked at again in each segment of the group by itself.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.deltas.starts.twister import draw, generator, skip, uniform

# Numbers of a factor that are compared, and places of a segment.
LENGTH = 8192
_GROUP = 6
# Standard deviations from which a place of a group is looked at. The sum over a group is as good as normal.
_LOOK_AT = 5.6
# Standard deviations from which a place counts. Of 10⁸ places of random numbers one in 10⁵ tables has one.
CERTAIN = 7.8
_ROWS = 128  # transformed at a time


@dataclass(frozen=True)
class Place:
    """A place in the numbers of a seed: the words before it, and the cosine of the factor with what is there."""

    seed: int
    offset: int
    cosine: float


class Draws(NamedTuple):
    """``words`` random numbers of a seed, after the first ``start``, a multiple of 8,192."""

    seed: int
    words: int
    start: int = 0


class SeedTable:
    """Random numbers of seeds, to be searched. It takes 16 · words / 6 bytes, and 10 ns a word to make."""

    def __init__(self, draws: Sequence[Draws]) -> None:
        # By the seed and the number of the segment in its numbers.
        segments = [
            (seed, number)
            for seed, words, start in draws
            for number in range(start // LENGTH, start // LENGTH + -(-words // LENGTH))
        ]
        groups = -(-len(segments) // _GROUP)
        # Neighbours overlap, so a group has segments that are far from each other.
        self._members: list[list[tuple[int, int]]] = [segments[start::groups] for start in range(groups)]
        # The sums lie where their spectra will be: the table is large, and there is not room for two.
        self._spectra = np.zeros((groups, LENGTH + 1), np.complex64)
        sums = self._spectra.view(np.float32)[:, : 2 * LENGTH]
        at = 0
        for seed, words, start in draws:
            source, count = generator(seed), -(-words // LENGTH)
            skip(source, start)
            before = uniform(draw(source, LENGTH))
            for number in range(count):
                after = uniform(draw(source, LENGTH))
                row = sums[(at + number) % groups]
                row[:LENGTH] += before
                row[LENGTH:] += after
                before = after
            at += count
        deviations = np.sqrt([len(members) / 3 for members in self._members]).astype(np.float32)
        for start in range(0, groups, _ROWS):
            rows = slice(start, start + _ROWS)
            self._spectra[rows] = np.fft.rfft(sums[rows] / deviations[rows, None], axis=1)

    def find(self, pattern: NDArray[np.float32]) -> Place | None:
        """The place at which the numbers of ``pattern`` were drawn; None if at none.

        ``pattern`` (n,): numbers from −1 to 1 as far as they were not moved, at most 8,192 of which are compared; 0 for
        numbers that are not known.
        """
        pattern = pattern[:LENGTH]
        wanted = centred(pattern)
        count = int(np.count_nonzero(wanted))
        if not count:
            return None
        spectrum = np.conj(np.fft.rfft(wanted, 2 * LENGTH))
        best: list[tuple[float, int, int]] = []
        for start in range(0, len(self._spectra), _ROWS):
            found = np.fft.irfft(self._spectra[start : start + _ROWS] * spectrum, 2 * LENGTH, axis=1)[:, :LENGTH]
            peaks = found.argmax(axis=1)
            heights = found[np.arange(len(found)), peaks]
            rows = np.flatnonzero(heights > _LOOK_AT)
            best += [(float(heights[row]), start + int(row), int(peaks[row])) for row in rows]
        for _, group, offset in sorted(best, reverse=True)[:_GROUP]:
            for seed, number in self._members[group]:
                place = number * LENGTH + offset
                cosine = _cosine_at(pattern, seed, place)
                if is_certain(cosine, count):
                    return Place(seed, place, cosine)
        return None


def centred(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """The numbers that are not 0 minus their mean, with unit norm together; zeros if they are all alike."""
    is_known = numbers != 0
    rest = np.where(is_known, numbers - numbers.sum(dtype=np.float64) / max(np.count_nonzero(is_known), 1), 0)
    norm = float(np.linalg.norm(rest))
    found: NDArray[np.float32] = (rest / norm if norm > 0 else np.zeros_like(rest)).astype(np.float32)
    return found


def is_certain(cosine: float, count: int) -> bool:
    """Whether ``count`` numbers with this cosine to random numbers were drawn from them, one place among 10⁸."""
    return cosine * np.sqrt(count) > CERTAIN


def _cosine_at(pattern: NDArray[np.float32], seed: int, offset: int) -> float:
    """The cosine of ``pattern`` with the uniform numbers of a seed after ``offset`` words."""
    source = generator(seed)
    skip(source, offset)
    numbers = uniform(draw(source, len(pattern)))
    return float(centred(pattern) @ centred(np.where(pattern != 0, numbers, 0).astype(np.float32)))


@lru_cache(maxsize=1)
def usual_seeds() -> SeedTable:
    """The table of the seeds that people and tools set (``usual_seeds.toml``): 165 MB, a second to make."""
    groups = tomllib.loads(files("indexer.deltas.starts").joinpath("usual_seeds.toml").read_text(encoding="utf-8"))[
        "seeds"
    ]
    return SeedTable([Draws(seed, group["words"]) for group in groups for seed in group["seeds"]])
