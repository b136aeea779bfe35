"""Random numbers of many seeds on a GPU, by a Triton kernel: for a sweep of all seeds.

A program makes the numbers of 32 seeds at a time, whose states are adjacent in memory. It is faster than the same in
PyTorch, because the states of all programs that run at once fit into the cache of the GPU.
"""

# ruff: noqa: ANN001, ANN202
from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl

# Seeds of a program, words that it makes at a time (a divisor of 624), programs for each multiprocessor, and warps of
# each: the fastest on an H100.
_SEEDS, _WORDS, _PROGRAMS, _WARPS = 32, 16, 4, 4


@triton.jit
def _generate(states, numbers, slots, first, count, blocks, rounds, SEEDS: tl.constexpr, WORDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write numbers from −1 to 1 of ``count`` seeds from ``first`` on, of each block that has a slot."""
    program = tl.program_id(0)
    state = states + program.to(tl.int64) * 624 * SEEDS
    lanes, offsets = tl.arange(0, SEEDS), tl.arange(0, WORDS)
    for number in range(rounds):
        columns = (number * tl.num_programs(0) + program) * SEEDS + lanes
        value = (first + columns).to(tl.uint32)
        for row in range(624):
            tl.store(state + row * SEEDS + lanes, value)
            value = (value ^ (value >> 30)) * 1812433253 + (row + 1).to(tl.uint32)  # type: ignore[attr-defined]
        tl.debug_barrier()  # a value is read by other threads than the one that wrote it
        for block in range(blocks):
            slot = tl.load(slots + block)
            for begin in range(0, 624, WORDS):
                rows = begin + offsets
                following = tl.where(rows == 623, 0, rows + 1)
                distant = tl.where(rows >= 227, rows - 227, rows + 397)
                upper = tl.load(state + rows[:, None] * SEEDS + lanes[None, :])
                lower = tl.load(state + following[:, None] * SEEDS + lanes[None, :])
                mixed = (upper & 0x80000000) | (lower & 0x7FFFFFFF)
                word = tl.load(state + distant[:, None] * SEEDS + lanes[None, :]) ^ (mixed >> 1)
                word = word ^ tl.where((mixed & 1) != 0, 0x9908B0DF, 0).to(tl.uint32)
                tl.debug_barrier()
                tl.store(state + rows[:, None] * SEEDS + lanes[None, :], word)
                tl.debug_barrier()
                if slot >= 0:
                    word = word ^ (word >> 11)
                    word = word ^ ((word << 7) & 0x9D2C5680)
                    word = word ^ ((word << 15) & 0xEFC60000)
                    word = word ^ (word >> 18)
                    uniform = (word & 0xFFFFFF).to(tl.float32) * 1.1920928955078125e-07 - 1.0
                    cells = (slot.to(tl.int64) * 624 + rows[:, None]) * count + columns[None, :]
                    tl.store(numbers + cells, uniform.to(numbers.dtype.element_ty))


class Generator:
    """Makes the random numbers of ``at_once`` seeds, in the given ``blocks`` of 624 words (ascending)."""

    def __init__(self, device: torch.device, blocks: Sequence[int], most: int, dtype: torch.dtype) -> None:
        """``most``: seeds of a call, unless every program works only once. ``dtype``: of the numbers."""
        self._programs = _PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count
        of_a_round = self._programs * _SEEDS
        self._rounds = max(1, most // of_a_round)
        self.at_once = self._rounds * of_a_round
        self._blocks, self._block_count = list(blocks), blocks[-1] + 1
        slots = torch.full((self._block_count,), -1, dtype=torch.int32)
        slots[self._blocks] = torch.arange(len(blocks), dtype=torch.int32)
        self._slots = slots.to(device)
        self._states = torch.empty(self._programs * 624 * _SEEDS, dtype=torch.int32, device=device).view(torch.uint32)
        self._numbers = torch.empty(len(blocks), 624, self.at_once, dtype=dtype, device=device)

    def __call__(self, first: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Each block and its numbers (624, at_once) from −1 to 1, of the seeds from ``first`` on."""
        with torch.cuda.device(self._numbers.device):
            _generate[(self._programs,)](
                self._states, self._numbers, self._slots, first, self.at_once, self._block_count, self._rounds,
                SEEDS=_SEEDS, WORDS=_WORDS, num_warps=_WARPS,
            )  # fmt: skip
        yield from zip(self._blocks, self._numbers, strict=True)
