"""The state of MT19937 from single bits of its words: a system of linear equations over GF(2).

Every bit of every word is a sum (modulo 2) of 19,937 bits of state, whatever the seed. Where a factor was moved little,
the leading bits of most of its numbers are known with certainty, and some 20,000 of them determine the state, and with
it all numbers before and after. A few hundred equations more than there are unknowns tell whether the bits are right:
if they are not, half of these fail.

The bits at one place of consecutive words, here the leading one of a float32 uniform number, obey the recurrence of
the generator's characteristic polynomial P (135 terms, degree 19,937). So the leading bits s_0 … s_19936 of words 0 to
19,936 are the unknowns, s_t = ⟨xᵗ mod P, s⟩, and bit k of word t is ⟨g_k xᵗ mod P, s⟩ with a polynomial g_k of its
own. A polynomial is a Python integer, bit i the coefficient of xⁱ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from indexer.deltas.starts.twister import BITS, WORDS, Words, draw, generator, untempered

DEGREE = 19_937
# Equations beyond the unknowns, all of which wrong bits satisfy with a probability of 2⁻⁵⁶⁰.
SPARE = 560

_LEADING = BITS - 1
_SOME_SEED = 5  # of a sequence from which the polynomials are computed; all give the same ones
_LONG_WAY = 100_000  # words from which on a power of x is multiplied, which costs as much as so many single steps
_BYTES = (DEGREE + 8) // 8 // 8 * 8 + 8  # of a row: its coefficients in whole words of 64 bits
_BLOCK = 8  # columns that are eliminated together
_AT_ONCE = 2048  # rows
_SCANNED = 4096  # rows among which pivots of a block are looked for


@dataclass(frozen=True)
class KnownBits:
    """Bits of words: ``times`` (n,) the words before each, ``bits`` (n,) which bit, ``values`` (n,) 0 or 1."""

    times: NDArray[np.int64]
    bits: NDArray[np.int64]
    values: NDArray[np.uint8]


def solve(known: KnownBits) -> Words | None:
    """The values of the state (624, untempered) that words 0 to 623 are made of; None if no state has these bits.

    It takes 30 to 60 seconds on one core, less for bits among the first 19,937 words that are leading ones.
    """
    is_unknown = (known.bits == _LEADING) & (known.times < DEGREE)
    given = known.times[is_unknown]
    value = _integer(np.bincount(given, weights=known.values[is_unknown], minlength=DEGREE) > 0)
    columns = np.setdiff1d(np.arange(DEGREE), given)
    matrix, spare = _system(known, np.flatnonzero(~is_unknown), value, columns)
    if spare < SPARE:
        return None
    unknowns = len(columns)
    pivots, rank = _eliminate(matrix, unknowns)
    word, shift = divmod(unknowns, 64)
    if ((matrix[rank:, word] >> np.uint64(shift)) & np.uint64(1)).any():
        return None
    found = _substitute(matrix, pivots, unknowns)
    state = value | _integer_at(columns, found)
    return untempered(_words(state))


def _system(
    known: KnownBits, rows: NDArray[np.intp], value: int, columns: NDArray[np.intp]
) -> tuple[NDArray[np.uint64], int]:
    """The equations of ``rows`` in the unknowns ``columns``, the right side behind them; and how many are to spare.

    ``value``: the unknowns that are known already.
    """
    width = (len(columns) + 1 + 63) // 64 * 64
    chosen = _unpacked(value)
    parts = []
    for bit in np.unique(known.bits[rows]):
        mine = rows[known.bits[rows] == bit]
        mine = mine[np.argsort(known.times[mine], kind="stable")]
        packed = _functionals(int(bit), known.times[mine].tolist())
        for start in range(0, len(mine), _AT_ONCE):
            of_these = np.unpackbits(packed[start : start + _AT_ONCE], axis=1, bitorder="little")
            right = (of_these & chosen).sum(axis=1) + known.values[mine[start : start + _AT_ONCE]]
            dense = np.zeros((len(of_these), width), np.uint8)
            dense[:, : len(columns)] = of_these[:, columns]
            dense[:, len(columns)] = right & 1
            parts.append(np.packbits(dense, axis=1, bitorder="little"))
    if not parts:
        return np.zeros((0, width // 64), np.uint64), -len(columns)
    matrix = np.concatenate(parts).view(np.uint64)
    # Neighbours are alike, so that pivots among the first rows would be rare.
    return matrix[np.random.default_rng(0).permutation(len(matrix))], len(matrix) - len(columns)


def _functionals(bit: int, times: Sequence[int]) -> NDArray[np.uint8]:
    """(n, bytes) g_bit · xᵗ mod P for ascending times t."""
    polynomial = _characteristic()
    found = np.empty((len(times), _BYTES), np.uint8)
    row, now = _of_bit(bit), 0
    for number, time in enumerate(times):
        if time - now > _LONG_WAY:
            far = (time - now) // _LONG_WAY * _LONG_WAY
            row, now = _reduced(_product(row, _power(far))), now + far
        for _ in range(time - now):
            row <<= 1
            if row >> DEGREE:
                row ^= polynomial
        now = time
        found[number] = np.frombuffer(row.to_bytes(_BYTES, "little"), np.uint8)
    return found


def _eliminate(matrix: NDArray[np.uint64], unknowns: int) -> tuple[list[tuple[int, int]], int]:
    """Bring ``matrix`` into echelon form in place; the pivots, (row, column), and the rank.

    Eight columns at a time by a table of all sums of their pivot rows ("method of the four Russians": Arlazarov,
    Dinic, Kronrod & Faradzhev, 1970).
    """
    rank, pivots = 0, []
    for column in range(0, unknowns, _BLOCK):
        word, shift = divmod(column, 64)
        mask = np.uint64((1 << min(_BLOCK, unknowns - column)) - 1)
        values = ((matrix[rank:, word] >> np.uint64(shift)) & mask).astype(np.uint8)
        chosen = _independent(values[:_SCANNED], int(mask).bit_count())
        if not chosen:
            continue
        count = len(chosen)
        _to_the_top(matrix, rank, [row for row, _ in chosen])
        top = matrix[rank : rank + count, word:]
        # Reduce the pivot rows by each other, so that each has a column of its own.
        own = [(lead, row) for row, (_, lead) in enumerate(chosen)]
        for lead, row in own:
            for other in range(count):
                if other != row and int(top[other, 0]) >> (shift + lead) & 1:
                    top[other] ^= top[row]
        sums = np.zeros((1 << count, matrix.shape[1] - word), np.uint64)
        for row in range(count):
            sums[1 << row : 2 << row] = sums[: 1 << row] ^ top[row]
        rest = matrix[rank + count :]
        below = rest[:, word]
        key = np.zeros(len(rest), np.uint16)
        for lead, row in own:
            key |= (((below >> np.uint64(shift + lead)) & np.uint64(1)) << np.uint64(row)).astype(np.uint16)
        touched = np.flatnonzero(key)
        for start in range(0, len(touched), _AT_ONCE):
            these = touched[start : start + _AT_ONCE]
            rest[these, word:] ^= sums[key[these]]
        pivots += [(rank + row, column + lead) for lead, row in own]
        rank += count
    return pivots, rank


def _independent(values: NDArray[np.uint8], most: int) -> list[tuple[int, int]]:
    """Rows whose values are linearly independent, up to ``most``, each with a bit that its reduced value has."""
    basis: list[tuple[int, int]] = []  # lead and reduced value
    chosen = []
    for row in np.flatnonzero(values).tolist():
        value = int(values[row])
        for lead, vector in basis:
            if value >> lead & 1:
                value ^= vector
        if value:
            lead = (value & -value).bit_length() - 1
            basis.append((lead, value))
            chosen.append((row, lead))
            if len(chosen) == most:
                break
    return chosen


def _to_the_top(matrix: NDArray[np.uint64], start: int, rows: Sequence[int]) -> None:
    """Exchange rows so that ``rows``, counted from ``start``, are the first from there on, in this order."""
    wanted = list(rows)
    for place in range(len(wanted)):
        row = wanted[place]
        if row != place:
            matrix[[start + place, start + row]] = matrix[[start + row, start + place]]
            wanted = [row if one == place else one for one in wanted]
            wanted[place] = place


def _substitute(matrix: NDArray[np.uint64], pivots: Sequence[tuple[int, int]], unknowns: int) -> int:
    """The solution of an echelon form, bit i the unknown i; unknowns without a pivot are 0."""
    found, mask = 0, (1 << unknowns) - 1
    for row, column in sorted(pivots, reverse=True):
        equation = int.from_bytes(matrix[row].tobytes(), "little")
        if (equation & mask & found).bit_count() & 1 != equation >> unknowns & 1:
            found |= 1 << column
    return found


def _words(state: int) -> Words:
    """Words 0 to 623 of the sequence whose leading bits are those of ``state``."""
    polynomial, found = _characteristic(), np.zeros(WORDS, np.uint32)
    for bit in range(32):
        row = _of_bit(bit)
        for time in range(WORDS):
            found[time] |= np.uint32((row & state).bit_count() & 1) << np.uint32(bit)
            row <<= 1
            if row >> DEGREE:
                row ^= polynomial
    return found


@cache
def _characteristic() -> int:
    """P, by the algorithm of Berlekamp (1968) and Massey (1969) from 2 · 19,937 leading bits of any sequence."""
    bits = _bits_of_some_sequence(_LEADING, 2 * DEGREE + 64)
    connection, earlier, length, shift, seen = 1, 1, 0, 1, 0
    for number, bit in enumerate(bits):
        seen = seen << 1 | int(bit)
        if (connection & seen).bit_count() & 1 == 0:
            shift += 1
        elif 2 * length <= number:
            connection, earlier = connection ^ earlier << shift, connection
            length, shift = number + 1 - length, 1
        else:
            connection ^= earlier << shift
            shift += 1
    assert length == DEGREE
    return int(bin(connection)[2:].zfill(DEGREE + 1)[::-1], 2)


@cache
def _of_bit(bit: int) -> int:
    """g_k: with N(s) the polynomial part of P · Σ s_t x^(−t−1), N(bit k) = g_k · N(leading bit) mod P."""
    if bit == _LEADING:
        return 1
    return _reduced(_product(_numerator(bit), _inverse_of_leading()))


@cache
def _inverse_of_leading() -> int:
    """The inverse of N(leading bit) modulo P, by Euclid's algorithm."""
    high, low, of_high, of_low = _characteristic(), _numerator(_LEADING), 0, 1
    while low != 1:
        ahead = high.bit_length() - low.bit_length()
        if ahead >= 0:
            high ^= low << ahead
            of_high ^= of_low << ahead
        if high.bit_length() < low.bit_length():
            high, low, of_high, of_low = low, high, of_low, of_high
    return _reduced(of_low)


def _numerator(bit: int) -> int:
    series = int("".join(map(str, _bits_of_some_sequence(bit, DEGREE).tolist())), 2)
    return _product(series, _characteristic()) >> DEGREE


def _bits_of_some_sequence(bit: int, count: int) -> NDArray[np.uint32]:
    return (draw(generator(_SOME_SEED), count) >> np.uint32(bit)) & np.uint32(1)


@lru_cache(maxsize=64)
def _power(exponent: int) -> int:
    """x^exponent mod P."""
    found = 1
    for digit in bin(exponent)[2:]:
        found = _reduced(_product(found, found))
        if digit == "1":
            found = _reduced(found << 1)
    return found


def _product(first: int, second: int) -> int:
    found, digits = 0, bin(second)[:1:-1]
    place = digits.find("1")
    while place >= 0:
        found ^= first << place
        place = digits.find("1", place + 1)
    return found


def _reduced(polynomial: int) -> int:
    """The remainder modulo P."""
    divisor = _characteristic()
    while (above := polynomial.bit_length() - 1 - DEGREE) >= 0:
        polynomial ^= divisor << above
    return polynomial


def _integer(bits: NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def _integer_at(columns: NDArray[np.intp], value: int) -> int:
    """The integer that has bit i of ``value`` at ``columns[i]``."""
    packed = np.frombuffer(value.to_bytes(len(columns) // 8 + 1, "little"), np.uint8)
    bits = np.zeros(DEGREE, bool)
    bits[columns] = np.unpackbits(packed, count=len(columns), bitorder="little").astype(bool)
    return _integer(bits)


def _unpacked(value: int) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = np.unpackbits(
        np.frombuffer(value.to_bytes(_BYTES, "little"), np.uint8), bitorder="little"
    )
    return found
