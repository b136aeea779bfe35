"""A sweep of all 2³² seeds for the start of many adapters at once, on a GPU.

Without a seed set by the user, training begins with one of 2³² seeds, and the adapter is drawn shortly after it: only a
new head, or a number for the order of the data, is drawn before. If training moved the factors too far for
``solve_start``, every seed is tried. The numbers of many seeds are made in parallel, and those at the usual offsets are
multiplied with the first numbers of every adapter's first factor. So a sweep takes hardly longer for many adapters than
for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.deltas.starts.search import FARTHEST
from indexer.deltas.starts.seed_table import centred
from indexer.deltas.starts.start import SCHEMES, Distribution, Factor, LoraModule, Start, as_drawn
from indexer.deltas.starts.twister import MATRIX, SEEDING, SHIFT, WORDS

SEEDS = 1 << 32

# Numbers of a factor that are compared.
_COMPARED = 512
# Standard deviations from which a seed is a candidate, which a further search then checks with 8,192 numbers. Among
# 10¹¹ seeds and offsets, one in 200 adapters has a candidate by chance.
_CANDIDATE = 7.5
# Classes for which a new head may have been drawn.
_MOST_CLASSES = 6
# Memory of a GPU for numbers and scores, and seeds that a processor works on at a time: its caches are small.
_BYTES, _AT_ONCE = 4 << 30, 1 << 12


@dataclass(frozen=True)
class FirstFactor:
    """The first ``numbers`` (n,) of an adapter's first factor A, scaled to unit norm; and their possible offsets."""

    numbers: NDArray[np.float32]
    offsets: tuple[int, ...]


@dataclass
class FirstFactors:
    """A search that finds nothing and notes the first factor of each adapter, for a sweep."""

    noted: list[FirstFactor] = field(default_factory=list)

    def __call__(self, modules: Sequence[LoraModule], factor: Factor, distribution: Distribution) -> Start | None:
        """``modules`` in the order of the network; ``factor`` returns A (rank, inputs) of a path."""
        module = modules[0]
        numbers = centred(as_drawn(factor(module.path), module, distribution)[:_COMPARED])
        schemes = [scheme for scheme in SCHEMES if scheme.distribution == distribution]
        ends = {scheme.words_before(module) + before for scheme in schemes for before in _words_before(module.inputs)}
        offsets = tuple(sorted(offset for offset in ends if offset + len(numbers) <= FARTHEST))
        if offsets and numbers.any():
            self.noted.append(FirstFactor(numbers, offsets))
        return None


def _words_before(width: int) -> Iterator[int]:
    """How many words usually come before an adapter: those of a new head on ``width`` inputs and of one int64 number.

    A head's weights are drawn as those of any layer, and often again with another deviation; so may be its bias.
    """
    for classes in range(_MOST_CLASSES + 1):
        for weights in (classes * width, 2 * classes * width):
            for biases in (0, classes):
                yield weights + biases
                yield weights + biases + 2


def sweep(
    factors: Sequence[FirstFactor],
    device: str | torch.device,
    seeds: range = range(SEEDS),
    on_progress: Callable[[float], None] = lambda share: None,
) -> list[int]:
    """The seeds from which one of ``factors`` may have been drawn, ascending.

    ``on_progress`` is called with the share of the seeds that were tried.
    """
    device = torch.device(device)
    rows = sum(len(factor.offsets) for factor in factors)
    if not rows:
        return []
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    blocks = _weights_of_blocks(factors, device, dtype)
    generator = _generator(device, sorted(blocks), dtype, rows)
    seeds_found: list[int] = []
    for start in range(seeds.start, seeds.stop, generator.at_once):
        scores = torch.zeros(rows, generator.at_once, device=device)
        for block, numbers in generator(start):
            of_factors, weights = blocks[block]
            scores[of_factors] += weights @ numbers.to(dtype)
        count = min(generator.at_once, seeds.stop - start)
        candidates = torch.nonzero((scores > _CANDIDATE).any(dim=0)[:count])
        seeds_found += [start + int(column) for column in candidates.ravel()]
        on_progress((start - seeds.start + count) / len(seeds))
    return seeds_found


class _Generator(Protocol):
    at_once: int

    def __call__(self, first: int) -> Iterator[tuple[int, torch.Tensor]]: ...


def _generator(device: torch.device, blocks: Sequence[int], dtype: torch.dtype, rows: int) -> _Generator:
    """A generator of the numbers of ``blocks``, for as many seeds as fit into memory with ``rows`` scores."""
    if device.type != "cuda" or find_spec("triton") is None:
        return _PlainGenerator(device, blocks)
    from indexer.deltas.starts.kernel import Generator  # imports Triton

    return Generator(device, blocks, _BYTES // (len(blocks) * WORDS * dtype.itemsize + rows * 4), dtype)


def _weights_of_blocks(
    factors: Sequence[FirstFactor], device: torch.device, dtype: torch.dtype
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """By the number of a block of 624 words: rows of the scores, and the weights (rows, 624) of the block's numbers.

    There is a row for each offset of each factor. The weighted sum of random numbers has mean 0 and deviation 1.
    """
    parts: dict[int, list[tuple[int, NDArray[np.float32]]]] = {}
    row = 0
    for factor in factors:
        scaled = factor.numbers * np.float32(np.sqrt(3))  # uniform numbers from −1 to 1 have a variance of 1/3
        for offset in factor.offsets:
            for block in range(offset // WORDS, (offset + len(scaled) - 1) // WORDS + 1):
                begin = offset - block * WORDS
                weights = np.zeros(WORDS, np.float32)
                span = slice(max(0, begin), min(WORDS, begin + len(scaled)))
                weights[span] = scaled[span.start - begin : span.stop - begin]
                parts.setdefault(block, []).append((row, weights))
            row += 1
    return {
        block: (
            torch.tensor([row for row, _ in rows], device=device),
            torch.from_numpy(np.stack([weights for _, weights in rows])).to(device, dtype),
        )
        for block, rows in parts.items()
    }


# ---- MT19937 for many seeds in plain PyTorch, in int32, because PyTorch has few operations on unsigned integers


class _PlainGenerator:
    """As ``indexer.deltas.starts.kernel.Generator``, for any device: 5 to 10 times slower on a GPU."""

    at_once = _AT_ONCE

    def __init__(self, device: torch.device, blocks: Sequence[int]) -> None:
        self._device, self._blocks = device, frozenset(blocks)

    def __call__(self, first: int) -> Iterator[tuple[int, torch.Tensor]]:
        seeds = torch.arange(first, first + self.at_once, dtype=torch.int64, device=self._device)
        state = _seeded(seeds.to(torch.int32))
        for block in range(max(self._blocks) + 1):
            state = _twisted(state)
            if block in self._blocks:
                yield block, _numbers(state)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _shifted(words: torch.Tensor, by: int) -> torch.Tensor:
    """Shifted to the right, with zeros from the left."""
    return (words >> by) & ((1 << 32 - by) - 1)


def _seeded(seeds: torch.Tensor) -> torch.Tensor:
    """(624, n) the first states of (n,) seeds."""
    state = torch.empty(WORDS, len(seeds), dtype=torch.int32, device=seeds.device)
    state[0] = seeds
    for number in range(1, WORDS):
        before = state[number - 1]
        state[number] = (before ^ _shifted(before, 30)) * SEEDING + number
    return state


def _twisted(state: torch.Tensor) -> torch.Tensor:
    """(624, n) the next states. Each third of them depends on the third before it."""
    third = WORDS - SHIFT
    first = state[SHIFT:] ^ _mixed(state[:third], state[1 : third + 1])
    second = first ^ _mixed(state[third : 2 * third], state[third + 1 : 2 * third + 1])
    following = torch.cat([state[2 * third + 1 :], first[:1]])
    return torch.cat([first, second, second[: WORDS - 2 * third] ^ _mixed(state[2 * third :], following)])


def _mixed(upper: torch.Tensor, lower: torch.Tensor) -> torch.Tensor:
    mixed = (upper & _signed(1 << 31)) | (lower & (1 << 31) - 1)
    return _shifted(mixed, 1) ^ (-(mixed & 1) & _signed(int(MATRIX)))


def _numbers(state: torch.Tensor) -> torch.Tensor:
    """(624, n) the uniform numbers from −1 to 1 that are made from the states."""
    words = state ^ _shifted(state, 11)
    words = words ^ ((words << 7) & _signed(0x9D2C5680))
    words = words ^ ((words << 15) & _signed(0xEFC60000))
    words = words ^ _shifted(words, 18)
    return (words & 0xFFFFFF).to(torch.float32) * 2.0**-23 - 1
