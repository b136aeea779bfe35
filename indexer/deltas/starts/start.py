"""The start of an adapter: the seed and the place in its random numbers from which every factor A was initialised.

Libraries create the factors of a LoRA on the CPU, one module after the other in the order of the network, and draw for
each module A as an ordinary layer, B as an ordinary layer, and A again (``kaiming_uniform_`` with a = √5, so that its
numbers lie between ±1/√inputs). The last are those that stay, and B is set to zero. So one place gives all: A₀ of every
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

# Numbers of a factor that are compared when it is looked for near the place of another.
_COMPARED = 4096
# Standard deviations from which a factor lies at the place that another one's gives: one place, not 10⁸.
_LIKELY = 6.0
# Modules that may come next: those of a layer are not always in the order of the families.
_NEXT = 12
# Words after a module in which the next one is looked for, if it does not follow; and how often that is tried.
_GAP = 1 << 20
_MOST_GAPS = 2
# Words that are drawn to find all modules of one adapter: a second's work.
_MOST_WORDS = 1 << 28
# Words that are computed at a time on the way back to a seed.
_STEP = 1 << 22
# Modules that are looked for in the table before an adapter is given up.
_TRIED = 2
# Numbers outside of ±1 were moved; how far says little.
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
    """What a library draws for each module before the numbers of A that stay.

    ``factors``: how often A and B; ``weights`` and ``biases``: how often the module's own weights and biases.
    """

    distribution: Distribution
    factors: int = 1
    weights: int = 0
    biases: int = 0

    def words_before(self, module: LoraModule) -> int:
        """How many words come before the numbers of A that stay, from the module's first word on."""
        own = self.weights * module.inputs * module.outputs + self.biases * module.outputs
        return own + self.factors * (module.numbers + module.outputs * module.rank)

    def words(self, module: LoraModule) -> int:
        """How many words the numbers of A that stay take."""
        return module.numbers if self.distribution == "uniform" else normal_words(module.numbers)

    def drawn(self, words: Words, module: LoraModule) -> Floats:
        """A₀ (rank, inputs) from its words."""
        if self.distribution == "uniform":
            numbers = uniform(words) / np.float32(np.sqrt(module.inputs))
        else:
            numbers = normal(words) / np.float32(module.rank)
        return numbers.reshape(module.rank, module.inputs)


SCHEMES = (
    Scheme("uniform"),  # PEFT, kohya's scripts, torchtune
    Scheme("uniform", 1, 2, 2),  # PEFT before 0.6, of modules with a bias
    Scheme("uniform", 1, 2, 0),  # and of those without one
    Scheme("uniform", 0),  # A alone
    Scheme("uniform", 0, 2, 2),  # loralib
    Scheme("normal"),
)


@dataclass(frozen=True)
class Start:
    """Where the factors of one adapter were drawn.

    ``offset``: how many words of the seed's generator come before A₀ of the first module. ``places``: the same for
    every module that was found, by path. ``distance``: ‖A − A₀‖ / ‖A₀‖ over these.
    """

    scheme: Scheme
    seed: int
    offset: int
    places: Mapping[str, int]
    distance: float


Factor = Callable[[str], Floats]


def find_start(
    modules: Sequence[LoraModule], factor: Factor, table: SeedTable, distribution: Distribution = "uniform"
) -> Start | None:
    """The start of an adapter whose seed is in ``table``; None if it is not found.

    ``modules``: all of them, in the order of the network as far as it is known. ``factor`` gives A (rank, inputs) of a
    path. A tenth of a second, and 5 ns for each word that was drawn.
    """
    scheme = next(one for one in SCHEMES if one.distribution == distribution)
    for number in range(min(_TRIED, len(modules))):
        pattern, offsets = _pattern(modules[number:], factor, scheme)
        found = table.find(pattern)
        if found is None:
            continue
        # The modules may come in another order: then only some of the pattern lie where they should.
        stream = _Stream(found.seed, found.offset)
        for module, offset in zip(modules[number:], offsets, strict=False):
            place = found.offset + offset
            if _score(stream, place, factor(module.path), module, distribution) > _LIKELY:
                return _followed(modules, module, factor, found.seed, place, distribution)
    return None


def _pattern(modules: Sequence[LoraModule], factor: Factor, scheme: Scheme) -> tuple[Floats, list[int]]:
    """The numbers of A of the first modules at their distances from each other, 0 between them; and where each begins.

    As many modules as begin among 8,192 numbers.
    """
    parts: list[Floats] = []
    offsets: list[int] = []
    length = 0
    for module in modules:
        gap = scheme.words_before(module) if parts else 0
        if length + gap >= LENGTH:
            break
        numbers = as_drawn(factor(module.path), module, scheme.distribution)
        parts += [np.zeros(gap, np.float32), numbers, np.zeros(scheme.words(module) - module.numbers, np.float32)]
        offsets.append(length + gap)
        length += gap + scheme.words(module)
    return np.concatenate(parts)[:LENGTH], offsets


def solve_start(
    modules: Sequence[LoraModule], factor: Factor, distribution: Distribution = "uniform", most_words: int = 1 << 26
) -> Start | None:
    """The start of an adapter that was moved little, whatever its seed; None if it is not found.

    ``most_words``: how far back from the first module the seed is looked for. Half a minute for each scheme that has
    enough known bits, and 100 ns a word.
    """
    for scheme in (one for one in SCHEMES if one.distribution == distribution):
        known = _known_bits(modules, factor, scheme)
        state = None if known is None else solve(known)
        if state is None:
            continue
        found = _seed_before(state, most_words)
        if found is None:
            return None
        seed, offset = found
        return _followed(modules, modules[0], factor, seed, offset, distribution)
    return None


def _seed_before(state: Words, most_words: int) -> tuple[int, int] | None:
    """The seed of a generator whose next 624 words have this state (untempered), and how many words came before."""
    for passed in range(0, most_words, _STEP):
        values = before(state, _STEP)
        found = seed_in(values)
        if found is not None:
            seed, place = found
            return seed, passed + _STEP - place - WORDS
        state = values[:WORDS]
    return None


def draws_of(start: Start, modules: Sequence[LoraModule]) -> Iterator[tuple[LoraModule, Floats]]:
    """A₀ (rank, inputs) of every module whose place is known, in the order of the places."""
    chosen = sorted((start.places[one.path], one) for one in modules if one.path in start.places)
    source, now = generator(start.seed), 0
    for place, module in chosen:
        skip(source, place - now)
        now = place + start.scheme.words(module)
        yield module, start.scheme.drawn(draw(source, now - place), module)


def as_drawn(a: Floats, module: LoraModule, distribution: Distribution) -> Floats:
    """(rank · inputs,) the uniform numbers from −1 to 1 that A would have been made of, had training not moved it."""
    if distribution == "normal":
        return uniform_of_normal(a.ravel() * np.float32(module.rank))
    return np.clip(a.ravel() * np.float32(np.sqrt(module.inputs)), -_BOUND, _BOUND)


class _Stream:
    """The words of a seed, read forwards; those from ``start`` on can be read again."""

    def __init__(self, seed: int, start: int) -> None:
        self._source = generator(seed)
        skip(self._source, start)
        self._start = start
        self._words: Words = np.zeros(0, np.uint32)

    def forget(self, before: int) -> None:
        """Drop the words before this place."""
        if before > self._start + len(self._words):
            skip(self._source, before - self._start - len(self._words))
            self._words = self._words[:0]
        else:
            self._words = self._words[before - self._start :]
        self._start = before

    def words(self, place: int, count: int) -> Words:
        """``count`` words from ``place`` on."""
        missing = place + count - self._start - len(self._words)
        if missing > 0:
            self._words = np.concatenate([self._words, draw(self._source, missing)])
        return self._words[place - self._start : place - self._start + count]


def _followed(
    modules: Sequence[LoraModule],
    first: LoraModule,
    factor: Factor,
    seed: int,
    offset: int,
    distribution: Distribution,
) -> Start:
    """The start of all modules, given that of one: each begins where the one before it in the network ends."""
    schemes = [one for one in SCHEMES if one.distribution == distribution]
    places = {first.path: offset}
    waiting = [one for one in modules if one != first]
    stream, end, gaps = _Stream(seed, offset), offset + schemes[0].words(first), 0
    while waiting and end - offset < _MOST_WORDS:
        near = [
            (scheme, module, end + scheme.words_before(module))
            for scheme in schemes
            for module in waiting[:_NEXT]
            if end + scheme.words_before(module) - offset < _MOST_WORDS
        ]
        best = _best(stream, near, factor)
        if best is not None:
            scheme, module, place = best
            schemes = [scheme]
        elif gaps < _MOST_GAPS and (gap := _after_gap(stream, end, factor(waiting[0].path), waiting[0], distribution)):
            gaps += 1
            module, place = waiting[0], gap
        else:
            waiting.pop(0)  # it comes before the first, was moved too far, or was not drawn like the others
            continue
        places[module.path] = place
        waiting.remove(module)
        end = place + schemes[0].words(module)
        stream.forget(end)
    scheme, begin = schemes[0], offset - schemes[0].words_before(first)
    before = [one for one in modules if one.path not in places]
    while before and begin > 0:
        near = [(scheme, one, begin - scheme.words(one)) for one in before[:_NEXT] if begin >= scheme.words(one)]
        best = _best(_Stream(seed, max(0, min((place for *_, place in near), default=0))), near, factor)
        if best is None:
            break
        _, module, place = best
        places[module.path] = place
        before.remove(module)
        begin = place - scheme.words_before(module)
    start = Start(scheme, seed, min(places.values()), places, 0.0)
    moved = drawn = 0.0
    for module, initial in draws_of(start, modules):
        moved += float(np.square(factor(module.path) - initial).sum(dtype=np.float64))
        drawn += float(np.square(initial).sum(dtype=np.float64))
    return replace(start, distance=float(np.sqrt(moved / drawn)))


def _best(
    stream: _Stream, near: Sequence[tuple[Scheme, LoraModule, int]], factor: Factor
) -> tuple[Scheme, LoraModule, int] | None:
    """The likeliest of some modules and places; None if none is likely."""
    scored = [
        (_score(stream, place, factor(module.path), module, scheme.distribution), number)
        for number, (scheme, module, place) in enumerate(near)
    ]
    score, number = max(scored, default=(0.0, 0))
    return near[number] if score > _LIKELY else None


def _score(stream: _Stream, place: int, a: Floats, module: LoraModule, distribution: Distribution) -> float:
    """How many standard deviations the cosine of A with the words at ``place`` lies above that of random numbers."""
    count = min(_COMPARED, module.numbers)
    expected = as_drawn(a, module, distribution)[:count]
    return float(centred(expected) @ centred(uniform(stream.words(place, count)))) * float(np.sqrt(count))


def _after_gap(stream: _Stream, end: int, a: Floats, module: LoraModule, distribution: Distribution) -> int | None:
    """The place of a module within the words after ``end``; None if it is not there."""
    expected = centred(as_drawn(a, module, distribution)[:LENGTH])
    numbers = uniform(stream.words(end, _GAP + len(expected)))
    # Numbers of mean 0 and variance 1/3.
    size = 1 << int(len(numbers) - 1).bit_length()
    product = np.fft.rfft(numbers, size) * np.conj(np.fft.rfft(expected, size))
    found = np.fft.irfft(product, size)[:_GAP] * np.sqrt(3)
    best = int(found.argmax())
    return end + best if is_certain(float(found[best]) / np.sqrt(len(expected)), len(expected)) else None


# Standard deviations by which a number lies away from where a bit of it changes, so that the bit is known.
_KNOWN_FROM = 3.5
# The leading bits of a number that are used; each needs half the movement of the one before it.
_USED_BITS = 6
_SMALLEST_MOVE = 1e-3
# Numbers from which bits are chosen: more of them lie far apart, and take longer.
_CHOSEN_FROM = 300_000


def _known_bits(modules: Sequence[LoraModule], factor: Factor, scheme: Scheme) -> KnownBits | None:
    """The 20,497 leading bits that are known best, if the modules were drawn in this way; None if too few are known.

    A number of A lies away from the one that was drawn by about the movement of its column, which shows as variance
    above that of uniform numbers; columns of large activations move most.
    """
    moves = _moves(modules, factor)
    numbers, times, margins = [], [], []
    place = taken = 0
    for module in modules:
        place += scheme.words_before(module)
        drawn = as_drawn(factor(module.path), module, scheme.distribution).astype(np.float64)
        numbers.append(drawn)
        times.append(place + np.arange(len(drawn)))
        margins.append(np.tile(moves[module.inputs], module.rank))
        place += scheme.words(module)
        taken += len(drawn)
        if taken > _CHOSEN_FROM:
            break
    unit = (np.concatenate(numbers) + 1) / 2
    when = np.concatenate(times) - times[0][0]
    move = np.concatenate(margins) / 2  # of numbers from 0 to 1
    found: list[NDArray[np.float64]] = []
    for used in range(1, _USED_BITS + 1):
        scaled = np.clip(unit, 0, 1 - 1e-9) * (1 << used)
        edge = np.clip(np.round(scaled), 1, (1 << used) - 1) / (1 << used)
        distance = np.abs(unit - edge) / move
        value = np.floor(scaled).astype(np.int64) & 1
        near = distance > _KNOWN_FROM
        found.append(np.stack([distance[near], when[near], np.full(near.sum(), BITS - used), value[near]]))
    table = np.concatenate(found, axis=1)
    if table.shape[1] < DEGREE + SPARE:
        return None
    best = table[1:, np.argsort(-table[0], kind="stable")[: DEGREE + SPARE]].astype(np.int64)
    return KnownBits(best[0], best[1], best[2].astype(np.uint8))


def _moves(modules: Sequence[LoraModule], factor: Factor) -> dict[int, NDArray[np.float64]]:
    """By the number of inputs, for each input how far numbers of A were moved, in units of their bound.

    The variance of a column is that of a uniform number, 1/3, plus that of the movement. The mean over the modules of
    one width is taken as far as it differs from the mean over all columns by more than chance.
    """
    squares: dict[int, list[Floats]] = {}
    for module in modules:
        squares.setdefault(module.inputs, []).append(np.square(factor(module.path)) * np.float32(module.inputs))
    found = {}
    for inputs, rows in squares.items():
        stacked = np.concatenate(rows)
        column = stacked.mean(axis=0, dtype=np.float64) - 1 / 3
        overall = max(float(column.mean()), 0.0)
        chance = np.sqrt((1 / 5 - 1 / 9) / len(stacked))
        variance = overall + np.maximum(np.abs(column - overall) - 2 * chance, 0) * np.sign(column - overall)
        found[inputs] = np.maximum(np.sqrt(np.maximum(variance, overall / 4)), _SMALLEST_MOVE)
    return found
