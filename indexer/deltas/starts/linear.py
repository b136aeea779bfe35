"""The state of MT19937 from single bits of its words: a system of linear equations over GF(2).

Every bit of every word is a sum (modulo 2) of 19,937 bits of state, whatever the seed. If a factor was moved little,
the leading bits of most of its numbers are known with certainty, and some 20,000 of them determine the state, and
thereby all numbers before and after. A few hundred equations more than unknowns show whether the bits are right: if
they are wrong, half of these equations fail.

The bits at one position of consecutive words, here the leading bit of a float32 uniform number, obey the recurrence of
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
# Equations beyond the number of unknowns. Wrong bits satisfy all of them with a probability of 2⁻⁵⁶⁰.
SPARE = 560

_LEADING = BITS - 1
_ANY_SEED = 5  # of a sequence from which the polynomials are computed; they are the same for all seeds
_LONG_WAY = 100_000  # from this distance on one product with a power of x costs less than so many single steps
_BYTES = (DEGREE + 8) // 8 // 8 * 8 + 8  # of a row: its coefficients in whole words of 64 bits
_BLOCK = 8  # columns that are eliminated together
_AT_ONCE = 2048  # rows
_ROWS_SCANNED = 4096  # rows among which the pivots of a block are searched


@dataclass(frozen=True)
class KnownBits:
    """Bits of words. ``times`` (n,): the words before each; ``bits`` (n,): which bit; ``values`` (n,): 0 or 1."""

    times: NDArray[np.int64]
    bits: NDArray[np.int64]
    values: NDArray[np.uint8]


def solve(known_bits: KnownBits) -> Words | None:
    """The values of the state (624, untempered) from which words 0 to 623 are made; None if no state has these bits.

    It takes 30 to 60 seconds on one core, and less if more of the bits are leading bits of the first 19,937 words.
    """
    is_unknown = (known_bits.bits == _LEADING) & (known_bits.times < DEGREE)
    leading_times = known_bits.times[is_unknown]
    value = _integer(np.bincount(leading_times, weights=known_bits.values[is_unknown], minlength=DEGREE) > 0)
    columns = np.setdiff1d(np.arange(DEGREE), leading_times)
    matrix, spare = _system(known_bits, np.flatnonzero(~is_unknown), value, columns)
    if spare < SPARE:
        return None
    unknowns = len(columns)
    pivots, rank = _eliminate(matrix, unknowns)
    word, shift = divmod(unknowns, 64)
    if ((matrix[rank:, word] >> np.uint64(shift)) & np.uint64(1)).any():
        return None
    solution = _substitute(matrix, pivots, unknowns)
    state = value | _integer_at(columns, solution)
    return untempered(_words(state))


def _system(
    known_bits: KnownBits, rows: NDArray[np.intp], value: int, columns: NDArray[np.intp]
) -> tuple[NDArray[np.uint64], int]:
    """The equations of ``rows``, and their number minus that of the unknowns.

    ``columns``: the unknowns; the right side is the column after them. ``value``: the other unknowns, which are known.
    """
    width = (len(columns) + 1 + 63) // 64 * 64
    known_values = _unpacked(value)
    parts = []
    for bit in np.unique(known_bits.bits[rows]):
        rows_of_bit = rows[known_bits.bits[rows] == bit]
        rows_of_bit = rows_of_bit[np.argsort(known_bits.times[rows_of_bit], kind="stable")]
        packed = _functionals(int(bit), known_bits.times[rows_of_bit].tolist())
        for start in range(0, len(rows_of_bit), _AT_ONCE):
            coefficients = np.unpackbits(packed[start : start + _AT_ONCE], axis=1, bitorder="little")
            values = known_bits.values[rows_of_bit[start : start + _AT_ONCE]]
            right_side = (coefficients & known_values).sum(axis=1) + values
            dense = np.zeros((len(coefficients), width), np.uint8)
            dense[:, : len(columns)] = coefficients[:, columns]
            dense[:, len(columns)] = right_side & 1
            parts.append(np.packbits(dense, axis=1, bitorder="little"))
    if not parts:
        return np.zeros((0, width // 64), np.uint64), -len(columns)
    matrix = np.concatenate(parts).view(np.uint64)
    # Consecutive rows are similar: without the permutation there would be few pivots among the first rows.
    return matrix[np.random.default_rng(0).permutation(len(matrix))], len(matrix) - len(columns)


def _functionals(bit: int, times: Sequence[int]) -> NDArray[np.uint8]:
    """(n, bytes) g_bit · xᵗ mod P for ascending times t."""
    polynomial = _characteristic()
    functionals = np.empty((len(times), _BYTES), np.uint8)
    row, power = _functional_of_bit(bit), 0
    for number, time in enumerate(times):
        if time - power > _LONG_WAY:
            steps = (time - power) // _LONG_WAY * _LONG_WAY
            row, power = _reduced(_product(row, _power(steps))), power + steps
        for _ in range(time - power):
            row <<= 1
            if row >> DEGREE:
                row ^= polynomial
        power = time
        functionals[number] = np.frombuffer(row.to_bytes(_BYTES, "little"), np.uint8)
    return functionals


def _eliminate(matrix: NDArray[np.uint64], unknowns: int) -> tuple[list[tuple[int, int]], int]:
    """Bring ``matrix`` into echelon form in place. Returns the pivots, (row, column), and the rank.

    Eight columns at a time by a table of all sums of their pivot rows ("method of the four Russians": Arlazarov,
    Dinic, Kronrod & Faradzhev, 1970).
    """
    rank, pivots = 0, []
    for column in range(0, unknowns, _BLOCK):
        word, shift = divmod(column, 64)
        mask = np.uint64((1 << min(_BLOCK, unknowns - column)) - 1)
        values = ((matrix[rank:, word] >> np.uint64(shift)) & mask).astype(np.uint8)
        independent = _independent(values[:_ROWS_SCANNED], int(mask).bit_count())
        if not independent:
            continue
        count = len(independent)
        _move_to_top(matrix, rank, [row for row, _ in independent])
        top = matrix[rank : rank + count, word:]
        # Reduce the pivot rows by each other, so that each has a column of its own.
        leads = [(lead, row) for row, (_, lead) in enumerate(independent)]
        for lead, row in leads:
            for other_row in range(count):
                if other_row != row and int(top[other_row, 0]) >> (shift + lead) & 1:
                    top[other_row] ^= top[row]
        sums = np.zeros((1 << count, matrix.shape[1] - word), np.uint64)
        for row in range(count):
            sums[1 << row : 2 << row] = sums[: 1 << row] ^ top[row]
        rows_below = matrix[rank + count :]
        words_below = rows_below[:, word]
        key = np.zeros(len(rows_below), np.uint16)
        for lead, row in leads:
            key |= (((words_below >> np.uint64(shift + lead)) & np.uint64(1)) << np.uint64(row)).astype(np.uint16)
        changed_rows = np.flatnonzero(key)
        for start in range(0, len(changed_rows), _AT_ONCE):
            changed = changed_rows[start : start + _AT_ONCE]
            rows_below[changed, word:] ^= sums[key[changed]]
        pivots += [(rank + row, column + lead) for lead, row in leads]
        rank += count
    return pivots, rank


def _independent(values: NDArray[np.uint8], most: int) -> list[tuple[int, int]]:
    """Rows whose values are linearly independent, up to ``most``, each with a bit that its reduced value has."""
    basis: list[tuple[int, int]] = []  # lead and reduced value
    rows_and_leads = []
    for row in np.flatnonzero(values).tolist():
        reduced = int(values[row])
        for lead, vector in basis:
            if reduced >> lead & 1:
                reduced ^= vector
        if reduced:
            lead = (reduced & -reduced).bit_length() - 1
            basis.append((lead, reduced))
            rows_and_leads.append((row, lead))
            if len(rows_and_leads) == most:
                break
    return rows_and_leads


def _move_to_top(matrix: NDArray[np.uint64], start: int, rows: Sequence[int]) -> None:
    """Exchange rows so that ``rows``, counted from ``start``, come first from ``start`` on, in this order."""
    order = list(rows)
    for position in range(len(order)):
        row = order[position]
        if row != position:
            matrix[[start + position, start + row]] = matrix[[start + row, start + position]]
            order = [row if source == position else source for source in order]
            order[position] = position


def _substitute(matrix: NDArray[np.uint64], pivots: Sequence[tuple[int, int]], unknowns: int) -> int:
    """The solution of an echelon form, bit i the unknown i; unknowns without a pivot are 0."""
    solution, mask = 0, (1 << unknowns) - 1
    for row, column in sorted(pivots, reverse=True):
        equation = int.from_bytes(matrix[row].tobytes(), "little")
        if (equation & mask & solution).bit_count() & 1 != equation >> unknowns & 1:
            solution |= 1 << column
    return solution


def _words(state: int) -> Words:
    """Words 0 to 623 of the sequence whose leading bits are those of ``state``."""
    polynomial, words = _characteristic(), np.zeros(WORDS, np.uint32)
    for bit in range(32):
        row = _functional_of_bit(bit)
        for time in range(WORDS):
            words[time] |= np.uint32((row & state).bit_count() & 1) << np.uint32(bit)
            row <<= 1
            if row >> DEGREE:
                row ^= polynomial
    return words


@cache
def _characteristic() -> int:
    """P, by the algorithm of Berlekamp (1968) and Massey (1969) from 2 · 19,937 leading bits of any sequence."""
    bits = _bits_of_a_sequence(_LEADING, 2 * DEGREE + 64)
    connection, earlier, length, shift, bits_read = 1, 1, 0, 1, 0
    for number, bit in enumerate(bits):
        bits_read = bits_read << 1 | int(bit)
        if (connection & bits_read).bit_count() & 1 == 0:
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
def _functional_of_bit(bit: int) -> int:
    """g_k: with N(s) the polynomial part of P · Σ s_t x^(−t−1), N(bit k) = g_k · N(leading bit) mod P."""
    if bit == _LEADING:
        return 1
    return _reduced(_product(_numerator(bit), _inverse_of_leading()))


@cache
def _inverse_of_leading() -> int:
    """The inverse of N(leading bit) modulo P, by Euclid's algorithm."""
    high, low, of_high, of_low = _characteristic(), _numerator(_LEADING), 0, 1
    while low != 1:
        degree_difference = high.bit_length() - low.bit_length()
        if degree_difference >= 0:
            high ^= low << degree_difference
            of_high ^= of_low << degree_difference
        if high.bit_length() < low.bit_length():
            high, low, of_high, of_low = low, high, of_low, of_high
    return _reduced(of_low)


def _numerator(bit: int) -> int:
    series = int("".join(map(str, _bits_of_a_sequence(bit, DEGREE).tolist())), 2)
    return _product(series, _characteristic()) >> DEGREE


def _bits_of_a_sequence(bit: int, count: int) -> NDArray[np.uint32]:
    return (draw(generator(_ANY_SEED), count) >> np.uint32(bit)) & np.uint32(1)


@lru_cache(maxsize=64)
def _power(exponent: int) -> int:
    """x^exponent mod P."""
    power = 1
    for digit in bin(exponent)[2:]:
        power = _reduced(_product(power, power))
        if digit == "1":
            power = _reduced(power << 1)
    return power


def _product(first: int, second: int) -> int:
    product, digits = 0, bin(second)[:1:-1]
    exponent = digits.find("1")
    while exponent >= 0:
        product ^= first << exponent
        exponent = digits.find("1", exponent + 1)
    return product


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
    bits: NDArray[np.uint8] = np.unpackbits(
        np.frombuffer(value.to_bytes(_BYTES, "little"), np.uint8), bitorder="little"
    )
    return bits
