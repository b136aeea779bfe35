"""The start of an adapter: the seed and the offset in its random numbers from which every factor A was initialised.

Libraries create the factors of a LoRA on the CPU, one module after the other in the order of the network, and draw for
each module A as an ordinary layer, B as an ordinary layer, and A again (``kaiming_uniform_`` with a = √5, so that its
numbers lie between ±1/√inputs). The last numbers become A₀, and B is set to zero. So one offset determines A₀ of every
matrix. Versions of PEFT before 0.6 drew the module's own weights and biases twice before that. With
``init_lora_weights="gaussian"`` (diffusers' scripts) the last numbers are normal with a deviation of 1/rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from indexer.deltas.starts.linear import DEGREE, SPARE, KnownBits, solve
from indexer.deltas.starts.seed_table import LENGTH, SeedTable, centred, is_certain
from indexer.deltas.starts.twister import (
    BITS,
    WORDS,
    Words,
    before,
    draw,
    generator,
    normal,
    normal_words,
    seed_in,
    skip,
    uniform,
    uniform_of_normal,
)

Floats = NDArray[np.float32]
Distribution = Literal["uniform", "normal"]

# Numbers of a factor that are compared if its offset follows from that of another factor.
_COMPARED = 4096
# Standard deviations from which a factor lies at such an offset: a single offset is tested, not 10⁸.
_LIKELY = 6.0
# Modules that may follow a module: modules of a layer are not always in the order of the families.
_NEXT = 12
# Words after a module in which the next module is searched, if it does not follow; and how often that is tried.
_GAP = 1 << 20
_MOST_GAPS = 2
# Words that are drawn to find all modules of one adapter; it takes a second.
_MOST_WORDS = 1 << 28
# Words that are computed at a time on the way back to a seed.
_STEP = 1 << 22
# Modules that are searched in the table before the search of an adapter ends.
_MOST_TRIED = 2
# Numbers outside of ±1 were moved; the distance is hardly informative.
_BOUND = 1.2


@dataclass(frozen=True)
class LoraModule:
    """A module with a factor A (rank, inputs) and a factor B (outputs, rank)."""

    path: str
    rank: int
    inputs: int
    outputs: int

    @property
    def numbers(self) -> int:
        """How many numbers A has."""
        return self.rank * self.inputs


@dataclass(frozen=True)
class Scheme:
    """What a library draws for each module, in this order: weights and biases, factors, the numbers of A₀.

    ``factors``: how often it draws A and B before A₀; ``weights`` and ``biases``: how often the module's own.
    """

    distribution: Distribution
    factors: int = 1
    weights: int = 0
    biases: int = 0

    def words_before(self, module: LoraModule) -> int:
        """How many words come before the numbers of A₀, from the module's first word on."""
        words = self.weights * module.inputs * module.outputs + self.biases * module.outputs
        return words + self.factors * (module.numbers + module.outputs * module.rank)

    def words(self, module: LoraModule) -> int:
        """How many words the numbers of A₀ take."""
        return module.numbers if self.distribution == "uniform" else normal_words(module.numbers)

    def initial_factor(self, words: Words, module: LoraModule) -> Floats:
        """A₀ (rank, inputs) from its words."""
        if self.distribution == "uniform":
            numbers = uniform(words) / np.float32(np.sqrt(module.inputs))
        else:
            numbers = normal(words) / np.float32(module.rank)
        return numbers.reshape(module.rank, module.inputs)


SCHEMES = (
    Scheme("uniform"),  # PEFT, kohya's scripts, torchtune
    Scheme("uniform", 1, 2, 2),  # PEFT before 0.6, of modules with a bias
    Scheme("uniform", 1, 2, 0),  # PEFT before 0.6, of modules without a bias
    Scheme("uniform", 0),  # A alone
    Scheme("uniform", 0, 2, 2),  # loralib
    Scheme("normal"),
)


@dataclass(frozen=True)
class Start:
    """Where the factors of one adapter were drawn.

    ``offset``: how many words of the seed's generator come before A₀ of the first module. ``offsets``: the same for
    every module that was found, by path. ``distance``: ‖A − A₀‖ / ‖A₀‖ over these modules.
    """

    scheme: Scheme
    seed: int
    offset: int
    offsets: Mapping[str, int]
    distance: float


Factor = Callable[[str], Floats]


def find_start(
    modules: Sequence[LoraModule], factor: Factor, table: SeedTable, distribution: Distribution = "uniform"
) -> Start | None:
    """The start of an adapter whose seed is in ``table``; None if it is not found.

    ``modules``: all of them, in the order of the network as far as it is known. ``factor`` returns A (rank, inputs) of
    a path. The search takes a tenth of a second, and 5 ns for each word that was drawn.
    """
    scheme = next(scheme for scheme in SCHEMES if scheme.distribution == distribution)
    for number in range(min(_MOST_TRIED, len(modules))):
        pattern, begins = _pattern(modules[number:], factor, scheme)
        match = table.find(pattern)
        if match is None:
            continue
        # The modules may have been drawn in another order: then only a part of the pattern matches.
        stream = _Stream(match.seed, match.offset)
        for module, begin in zip(modules[number:], begins, strict=False):
            offset = match.offset + begin
            if _score(stream, offset, factor(module.path), module, distribution) > _LIKELY:
                return _start_from(modules, module, factor, match.seed, offset, distribution)
    return None


def _pattern(modules: Sequence[LoraModule], factor: Factor, scheme: Scheme) -> tuple[Floats, list[int]]:
    """The numbers of A of the first modules, with zeros in place of the words between them; and the start of each.

    It contains the modules that begin among its 8,192 numbers.
    """
    parts: list[Floats] = []
    begins: list[int] = []
    length = 0
    for module in modules:
        gap = scheme.words_before(module) if parts else 0
        if length + gap >= LENGTH:
            break
        numbers = as_drawn(factor(module.path), module, scheme.distribution)
        parts += [np.zeros(gap, np.float32), numbers, np.zeros(scheme.words(module) - module.numbers, np.float32)]
        begins.append(length + gap)
        length += gap + scheme.words(module)
    return np.concatenate(parts)[:LENGTH], begins


def solve_start(
    modules: Sequence[LoraModule], factor: Factor, distribution: Distribution = "uniform", most_words: int = 1 << 26
) -> Start | None:
    """The start of an adapter that was moved little, whatever its seed; None if it is not found.

    ``most_words``: how far back from the first module the seed is searched. It takes half a minute for each scheme that
    has enough known bits, and 100 ns a word.
    """
    for scheme in (scheme for scheme in SCHEMES if scheme.distribution == distribution):
        known_bits = _known_bits(modules, factor, scheme)
        state = None if known_bits is None else solve(known_bits)
        if state is None:
            continue
        seed_and_offset = _seed_of(state, most_words)
        if seed_and_offset is None:
            return None
        seed, offset = seed_and_offset
        return _start_from(modules, modules[0], factor, seed, offset, distribution)
    return None


def _seed_of(state: Words, most_words: int) -> tuple[int, int] | None:
    """The seed of a generator whose next 624 words have this state (untempered), and how many words came before."""
    for steps_back in range(0, most_words, _STEP):
        values = before(state, _STEP)
        seed_and_index = seed_in(values)
        if seed_and_index is not None:
            seed, index = seed_and_index
            return seed, steps_back + _STEP - index - WORDS
        state = values[:WORDS]
    return None


def draws_of(start: Start, modules: Sequence[LoraModule]) -> Iterator[tuple[LoraModule, Floats]]:
    """Every module whose offset is known, in the order of the offsets, with its A₀ (rank, inputs)."""
    located = sorted((start.offsets[module.path], module) for module in modules if module.path in start.offsets)
    source, position = generator(start.seed), 0
    for offset, module in located:
        skip(source, offset - position)
        position = offset + start.scheme.words(module)
        yield module, start.scheme.initial_factor(draw(source, position - offset), module)


def as_drawn(a: Floats, module: LoraModule, distribution: Distribution) -> Floats:
    """(rank · inputs,) uniform numbers from −1 to 1: those from which A was made, if training did not move it."""
    if distribution == "normal":
        return uniform_of_normal(a.ravel() * np.float32(module.rank))
    return np.clip(a.ravel() * np.float32(np.sqrt(module.inputs)), -_BOUND, _BOUND)


class _Stream:
    """The words of a seed, read forwards. Words from ``start`` on can be read again."""

    def __init__(self, seed: int, start: int) -> None:
        self._source = generator(seed)
        skip(self._source, start)
        self._start = start
        self._words: Words = np.zeros(0, np.uint32)

    def forget(self, before: int) -> None:
        """Drop the words before this offset."""
        if before > self._start + len(self._words):
            skip(self._source, before - self._start - len(self._words))
            self._words = self._words[:0]
        else:
            self._words = self._words[before - self._start :]
        self._start = before

    def words(self, offset: int, count: int) -> Words:
        """``count`` words from ``offset`` on."""
        missing = offset + count - self._start - len(self._words)
        if missing > 0:
            self._words = np.concatenate([self._words, draw(self._source, missing)])
        return self._words[offset - self._start : offset - self._start + count]


def _start_from(
    modules: Sequence[LoraModule],
    first: LoraModule,
    factor: Factor,
    seed: int,
    first_offset: int,
    distribution: Distribution,
) -> Start:
    """The start of all modules, from the offset of module ``first``: a module begins where the one before it ends."""
    schemes = [scheme for scheme in SCHEMES if scheme.distribution == distribution]
    offsets = {first.path: first_offset}
    waiting = [module for module in modules if module != first]
    stream, end, gaps = _Stream(seed, first_offset), first_offset + schemes[0].words(first), 0
    while waiting and end - first_offset < _MOST_WORDS:
        candidates = [
            (scheme, module, end + scheme.words_before(module))
            for scheme in schemes
            for module in waiting[:_NEXT]
            if end + scheme.words_before(module) - first_offset < _MOST_WORDS
        ]
        likeliest = _likeliest(stream, candidates, factor)
        if likeliest is not None:
            scheme, module, offset = likeliest
            schemes = [scheme]
        elif gaps < _MOST_GAPS and (gap := _after_gap(stream, end, factor(waiting[0].path), waiting[0], distribution)):
            gaps += 1
            module, offset = waiting[0], gap
        else:
            waiting.pop(0)  # it was drawn before ``first`` or in another way, or was moved too far
            continue
        offsets[module.path] = offset
        waiting.remove(module)
        end = offset + schemes[0].words(module)
        stream.forget(end)
    scheme, begin = schemes[0], first_offset - schemes[0].words_before(first)
    earlier = [module for module in modules if module.path not in offsets]
    while earlier and begin > 0:
        candidates = [
            (scheme, module, begin - scheme.words(module))
            for module in earlier[:_NEXT]
            if begin >= scheme.words(module)
        ]
        likeliest = _likeliest(
            _Stream(seed, max(0, min((offset for *_, offset in candidates), default=0))), candidates, factor
        )
        if likeliest is None:
            break
        _, module, offset = likeliest
        offsets[module.path] = offset
        earlier.remove(module)
        begin = offset - scheme.words_before(module)
    start = Start(scheme, seed, min(offsets.values()), offsets, 0.0)
    squared_distance = squared_norm = 0.0
    for module, initial in draws_of(start, modules):
        squared_distance += float(np.square(factor(module.path) - initial).sum(dtype=np.float64))
        squared_norm += float(np.square(initial).sum(dtype=np.float64))
    return replace(start, distance=float(np.sqrt(squared_distance / squared_norm)))


def _likeliest(
    stream: _Stream, candidates: Sequence[tuple[Scheme, LoraModule, int]], factor: Factor
) -> tuple[Scheme, LoraModule, int] | None:
    """The likeliest of some modules with their offsets; None if none is likely."""
    scored = [
        (_score(stream, offset, factor(module.path), module, scheme.distribution), number)
        for number, (scheme, module, offset) in enumerate(candidates)
    ]
    score, number = max(scored, default=(0.0, 0))
    return candidates[number] if score > _LIKELY else None


def _score(stream: _Stream, offset: int, a: Floats, module: LoraModule, distribution: Distribution) -> float:
    """How many standard deviations the cosine of A with the words at ``offset`` lies above that of random numbers."""
    count = min(_COMPARED, module.numbers)
    expected = as_drawn(a, module, distribution)[:count]
    return float(centred(expected) @ centred(uniform(stream.words(offset, count)))) * float(np.sqrt(count))


def _after_gap(stream: _Stream, end: int, a: Floats, module: LoraModule, distribution: Distribution) -> int | None:
    """The offset of a module within the words after ``end``; None if it does not occur there."""
    expected = centred(as_drawn(a, module, distribution)[:LENGTH])
    numbers = uniform(stream.words(end, _GAP + len(expected)))
    # Numbers of mean 0 and variance 1/3.
    size = 1 << int(len(numbers) - 1).bit_length()
    product = np.fft.rfft(numbers, size) * np.conj(np.fft.rfft(expected, size))
    scores = np.fft.irfft(product, size)[:_GAP] * np.sqrt(3)
    peak = int(scores.argmax())
    return end + peak if is_certain(float(scores[peak]) / np.sqrt(len(expected)), len(expected)) else None


# A bit of a number is known if the number is this many standard deviations away from the nearest change of the bit.
_KNOWN_FROM = 3.5
# The leading bits of a number that are used; each needs half the movement of the one before it.
_USED_BITS = 6
_SMALLEST_MOVE = 1e-3
# Numbers from which bits are chosen. More numbers would extend over more words, and take longer.
_CHOSEN_FROM = 300_000


def _known_bits(modules: Sequence[LoraModule], factor: Factor, scheme: Scheme) -> KnownBits | None:
    """The 20,497 leading bits that are known best, if the modules were drawn in this way; None if too few are known.

    The distance of a number of A from the number that was drawn is about the movement of its column, which adds to the
    variance of uniform numbers. Columns of large activations move most.
    """
    moves = _moves(modules, factor)
    numbers, times, margins = [], [], []
    offset = count = 0
    for module in modules:
        offset += scheme.words_before(module)
        factor_numbers = as_drawn(factor(module.path), module, scheme.distribution).astype(np.float64)
        numbers.append(factor_numbers)
        times.append(offset + np.arange(len(factor_numbers)))
        margins.append(np.tile(moves[module.inputs], module.rank))
        offset += scheme.words(module)
        count += len(factor_numbers)
        if count > _CHOSEN_FROM:
            break
    unit = (np.concatenate(numbers) + 1) / 2
    word_offsets = np.concatenate(times) - times[0][0]
    move = np.concatenate(margins) / 2  # of numbers from 0 to 1
    bits: list[NDArray[np.float64]] = []
    for bit_count in range(1, _USED_BITS + 1):
        scaled = np.clip(unit, 0, 1 - 1e-9) * (1 << bit_count)
        edge = np.clip(np.round(scaled), 1, (1 << bit_count) - 1) / (1 << bit_count)
        distance = np.abs(unit - edge) / move
        value = np.floor(scaled).astype(np.int64) & 1
        is_known = distance > _KNOWN_FROM
        bits.append(
            np.stack(
                [distance[is_known], word_offsets[is_known], np.full(is_known.sum(), BITS - bit_count), value[is_known]]
            )
        )
    table = np.concatenate(bits, axis=1)
    if table.shape[1] < DEGREE + SPARE:
        return None
    best = table[1:, np.argsort(-table[0], kind="stable")[: DEGREE + SPARE]].astype(np.int64)
    return KnownBits(best[0], best[1], best[2].astype(np.uint8))


def _moves(modules: Sequence[LoraModule], factor: Factor) -> dict[int, NDArray[np.float64]]:
    """By the number of inputs, for each input the movement of the numbers of A, in units of their bound.

    The variance of a column is that of a uniform number, 1/3, plus that of the movement. The mean over the modules of
    one width is used as far as it differs from the mean over all columns by more than chance.
    """
    squares: dict[int, list[Floats]] = {}
    for module in modules:
        squares.setdefault(module.inputs, []).append(np.square(factor(module.path)) * np.float32(module.inputs))
    movements = {}
    for inputs, rows in squares.items():
        stacked = np.concatenate(rows)
        column = stacked.mean(axis=0, dtype=np.float64) - 1 / 3
        overall = max(float(column.mean()), 0.0)
        chance = np.sqrt((1 / 5 - 1 / 9) / len(stacked))
        variance = overall + np.maximum(np.abs(column - overall) - 2 * chance, 0) * np.sign(column - overall)
        movements[inputs] = np.maximum(np.sqrt(np.maximum(variance, overall / 4)), _SMALLEST_MOVE)
    return movements
