"""The position of a factor in the random numbers of usual seeds: one correlation for all seeds and positions.

The numbers of a seed are cut into segments, each overlapping the next by half, and segments are added up in groups.
If a factor of n numbers has a cosine of c with the numbers from which it was drawn, its correlation with the sum of a
group of k segments lies c·√(n/k) standard deviations above the mean. So a group needs one correlation by fast Fourier
transform instead of k. High correlations are computed again for each segment of the group by itself.
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

# Numbers of a factor that are compared, and positions in a segment.
LENGTH = 8192
_GROUP = 6
# Standard deviations from which a position in a group is a candidate. The sum over a group is nearly normal.
_CANDIDATE_FROM = 5.6
# Standard deviations from which a position is accepted. Among 10⁵ tables of 10⁸ positions, one has one by chance.
CERTAIN = 7.8
_ROWS = 128  # transformed at a time


@dataclass(frozen=True)
class Match:
    """A position in the numbers of a seed: the words before it, and the cosine of the factor with the numbers there."""

    seed: int
    offset: int
    cosine: float


class Draws(NamedTuple):
    """``words`` random numbers of a seed, after the first ``start``, a multiple of 8,192."""

    seed: int
    words: int
    start: int = 0


class SeedTable:
    """A searchable table of random numbers of seeds. It takes 16 · words / 6 bytes, and 10 ns a word to make."""

    def __init__(self, draws: Sequence[Draws]) -> None:
        # By the seed and the number of the segment in its numbers.
        segments = [
            (seed, number)
            for seed, words, start in draws
            for number in range(start // LENGTH, start // LENGTH + -(-words // LENGTH))
        ]
        groups = -(-len(segments) // _GROUP)
        # Consecutive segments overlap, so a group has segments that are far from each other.
        self._members: list[list[tuple[int, int]]] = [segments[start::groups] for start in range(groups)]
        # The sums are stored in the memory of their spectra, because the table is large.
        self._spectra = np.zeros((groups, LENGTH + 1), np.complex64)
        sums = self._spectra.view(np.float32)[:, : 2 * LENGTH]
        first_segment = 0
        for seed, words, start in draws:
            source, count = generator(seed), -(-words // LENGTH)
            skip(source, start)
            previous = uniform(draw(source, LENGTH))
            for number in range(count):
                following = uniform(draw(source, LENGTH))
                row = sums[(first_segment + number) % groups]
                row[:LENGTH] += previous
                row[LENGTH:] += following
                previous = following
            first_segment += count
        deviations = np.sqrt([len(members) / 3 for members in self._members]).astype(np.float32)
        for start in range(0, groups, _ROWS):
            rows = slice(start, start + _ROWS)
            self._spectra[rows] = np.fft.rfft(sums[rows] / deviations[rows, None], axis=1)

    def find(self, pattern: NDArray[np.float32]) -> Match | None:
        """The position at which the numbers of ``pattern`` were drawn; None if there is none.

        ``pattern`` (n,): numbers from −1 to 1, unless they were moved; 0 for unknown numbers. At most 8,192 are
        compared.
        """
        pattern = pattern[:LENGTH]
        normalised = centred(pattern)
        count = int(np.count_nonzero(normalised))
        if not count:
            return None
        spectrum = np.conj(np.fft.rfft(normalised, 2 * LENGTH))
        candidates: list[tuple[float, int, int]] = []
        for start in range(0, len(self._spectra), _ROWS):
            correlations = np.fft.irfft(self._spectra[start : start + _ROWS] * spectrum, 2 * LENGTH, axis=1)[:, :LENGTH]
            peaks = correlations.argmax(axis=1)
            heights = correlations[np.arange(len(correlations)), peaks]
            rows = np.flatnonzero(heights > _CANDIDATE_FROM)
            candidates += [(float(heights[row]), start + int(row), int(peaks[row])) for row in rows]
        for _, group, offset in sorted(candidates, reverse=True)[:_GROUP]:
            for seed, number in self._members[group]:
                position = number * LENGTH + offset
                cosine = _cosine_at(pattern, seed, position)
                if is_certain(cosine, count):
                    return Match(seed, position, cosine)
        return None


def centred(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """The nonzero numbers minus their mean, scaled to unit norm; all zeros if they are equal."""
    is_nonzero = numbers != 0
    differences = np.where(
        is_nonzero, numbers - numbers.sum(dtype=np.float64) / max(np.count_nonzero(is_nonzero), 1), 0
    )
    norm = float(np.linalg.norm(differences))
    unit: NDArray[np.float32] = (differences / norm if norm > 0 else np.zeros_like(differences)).astype(np.float32)
    return unit


def is_certain(cosine: float, count: int) -> bool:
    """Whether the cosine of ``count`` numbers with random numbers is too high for chance, among 10⁸ positions."""
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
