"""What training did to some rows of the input embeddings: one number for each.

A row gets a gradient only from a batch that contains its token. Decoupled weight decay multiplies all rows by one
factor c. So a row e' of a fine-tune whose token did not occur is c·e up to rounding, where e is the base's row.

The row of a token that occurred may have changed by less than the rounding of its largest numbers, but numbers near
zero are stored with smaller steps. So a row is compared number by number with the result of decay
(``indexer.records.decay``).

If a language-model head is tied to the embedding, the softmax moves every row, nearly along common directions. Then the
number of a row is the share of its squared change that lies off these directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexer.records.decay import (
    ClassifiedRows,
    Decay,
    Floats,
    Rows,
    as_float64,
    as_numbers,
    classify_rows,
    fit_decay,
    pieces_of,
    stray_rows,
    ulp,
)

# The rows that are read: the first ones, which contain the special tokens of BERT's vocabularies ([MASK] is 103);
# stripes spread evenly over the vocabulary of the base; and one long stripe of common words, so that two bases have
# words in common (``indexer.records.words``). Most vocabularies are sorted by how common a token is, so a stripe at a
# low number has common words of any of them; BERT's first ones are at 1,996. The stripe grows with the vocabulary: a
# large one belongs to a large model, or is of many languages.
FIRST_ROWS = 128
STRIPES = 15
ROWS_EACH = 20
WORDS_FROM = 2_000
FEWEST_WORD_ROWS, MOST_WORD_ROWS = 896, 2_048
_BEFORE_WORDS, _WORD_ROWS = 16, 56  # parts of the vocabulary

# Codes: 0 for an untouched row, UNSURE for one whose change rounding may hide, MISSING for one that the model does not
# have; otherwise a logarithm: 8 steps an octave from 2^-26, below which float32 shows no change, to 2^5.
UNSURE = 254
MISSING = 255
_LOWEST = -26.0
_STEPS = 8

EXACT, STATISTICAL, FROZEN = "exact", "statistical", "frozen"
KINDS = (EXACT, STATISTICAL, FROZEN)

# c is the median over this share of the rows: those nearest to a multiple of the base's row.
_AGREEING = 0.1
# Decay leaves at least this share of a weight; if less is left, these are other weights.
_LEAST_SCALE = 0.5
# Ulps by which every row that moved must differ: successive last steps of a schedule differ by a factor of at most 4.
_CLEAR = 8.0
# Dropout on embeddings leaves some numbers of a row unchanged. If more than this share is unchanged, rounding hides
# changes or a merge dropped them; such rows may be at most this share of those that moved.
_STILL = 0.25
_MOST_FAINT = 0.002
# The common directions in which a tied head moves every row.
_COMMON = 4


@dataclass(frozen=True)
class RowChanges:
    """``codes`` (n,) uint8, the common factor c, and the kind.

    ``kind``: ``exact`` if untouched rows can be distinguished from the others, so that code 0 is certain;
    ``statistical`` if the numbers only make it likely that a token occurred; ``frozen`` if no row moved. ``is_share``:
    the numbers are not sizes but shares of a change, because the head is tied.
    """

    codes: NDArray[np.uint8]
    scale: float
    kind: str
    is_share: bool = False


def token_stripes(vocabulary: int) -> tuple[range, ...]:
    """The rows that are read of an embedding with ``vocabulary`` rows, as ranges that do not touch.

    A small vocabulary is read whole.
    """
    whole_stripes, spread = _whole_and_spread(vocabulary)
    stripes: list[range] = []
    for stripe in sorted([*whole_stripes, *spread], key=lambda stripe: stripe.start):
        if stripes and stripe.start <= stripes[-1].stop:
            stripes[-1] = range(stripes[-1].start, max(stripes[-1].stop, stripe.stop))
        else:
            stripes.append(stripe)
    return tuple(stripes)


def spread_stripes(vocabulary: int) -> NDArray[np.intp]:
    """(n,) the number of the evenly spread stripe that each row of ``token_rows`` is part of.

    -1 for the rows that stand for themselves alone: the first ones and the common words, or all of a small vocabulary.
    """
    whole_stripes, spread = _whole_and_spread(vocabulary)
    of_row = np.full(vocabulary, -1, dtype=np.intp)
    for number, stripe in enumerate(spread):
        of_row[stripe.start : stripe.stop] = number
    for stripe in whole_stripes:
        of_row[stripe.start : stripe.stop] = -1
    return of_row[token_rows(vocabulary)]


def _whole_and_spread(vocabulary: int) -> tuple[list[range], list[range]]:
    common = min(max(vocabulary // _WORD_ROWS, FEWEST_WORD_ROWS), MOST_WORD_ROWS)
    if vocabulary <= FIRST_ROWS + STRIPES * ROWS_EACH + common:
        return [range(vocabulary)], []
    starts = np.linspace(FIRST_ROWS, vocabulary - ROWS_EACH, STRIPES).astype(int).tolist()
    start = max(FIRST_ROWS, min(WORDS_FROM, vocabulary // _BEFORE_WORDS))
    whole = [range(FIRST_ROWS), range(start, start + common)]
    return whole, [range(first, first + ROWS_EACH) for first in starts]


def token_rows(vocabulary: int) -> NDArray[np.int64]:
    """(n,) the numbers of these rows, ascending."""
    return np.concatenate([np.arange(stripe.start, stripe.stop) for stripe in token_stripes(vocabulary)])


def row_changes(
    rows: Rows, base: Rows, dtype: str = "float32", *, tied: bool = False
) -> tuple[RowChanges, Decay | None] | None:
    """How ``rows`` (n, d) of a fine-tune, whose values fit ``dtype``, changed, and the decay of all of them.

    ``base`` (n, d) as it is stored. ``tied``: the head is tied to the embedding. The decay is None if no row is
    untouched. Returns None for values that are not finite, a base of zeros, and weights that are not those of a
    fine-tune. Works on a few thousand rows at a time, because an embedding may be large.
    """
    (count, width), pieces = base.shape, pieces_of(*base.shape)
    squares, is_same = np.zeros(count), np.zeros(count, dtype=np.bool_)
    for piece in pieces:
        row_values, base_values = as_numbers(rows[piece]), as_numbers(base[piece])
        if not (np.isfinite(row_values).all() and np.isfinite(base_values).all()):
            return None
        squares[piece] = _row_products(base_values.astype(np.float64))
        is_same[piece] = _same_rows(row_values, base_values, dtype)
    is_there = squares > 0  # the row of a padding token may be zero
    if not is_there.any():
        return None
    lengths = np.sqrt(np.where(is_there, squares, np.median(squares[is_there])))
    # The common factor. If enough rows equal the base's, rounded to the same dtype, no decay shows.
    if (is_same * is_there).sum() >= max(1, _AGREEING * is_there.sum() / 10):
        scale = 1.0
        decay: Decay | None = Decay(1.0, dtype)
        different = np.flatnonzero(~is_same)  # the numbers of the same rows are one ulp away at most
        classified = classify_rows(rows[different], base[different], Decay(1.0, dtype))
        judged = ClassifiedRows(is_same.copy(), np.zeros(count, dtype=np.bool_), *(np.zeros(count) for _ in range(4)))
        for every, changed_rows in zip(vars(judged).values(), vars(classified).values(), strict=True):
            every[different] = changed_rows
    else:
        products, energies = np.zeros(count), np.zeros(count)
        for piece in pieces:
            row_values, base_values = as_float64(rows[piece]), as_float64(base[piece])
            products[piece], energies[piece] = np.einsum("ij,ij->i", row_values, base_values), _row_products(row_values)
        ratios = products[is_there] / squares[is_there]
        off = np.maximum(energies[is_there] / squares[is_there] - ratios**2, 0)  # ‖e' - ratio·e‖² / ‖e‖²
        scale = float(np.median(ratios[np.argsort(off, kind="stable")[: max(1, int(_AGREEING * len(off)))]]))
        if not _LEAST_SCALE < scale < 1 / _LEAST_SCALE:  # also NaN: not a fine-tune of this base
            return None
        decay, reference = fit_decay(rows, base, scale, dtype, is_there)
        if decay is not None:
            judged = classify_rows(rows, base, decay, reference)

    def sizes(moved_rows: NDArray[np.intp]) -> Floats:
        """How much these rows changed besides the decay, relative to the base's rows."""
        changes = np.zeros(len(moved_rows))
        for piece in pieces_of(len(moved_rows), width):
            row_numbers = moved_rows[piece]
            changes[piece] = (
                np.linalg.norm(as_float64(rows[row_numbers]) - scale * as_float64(base[row_numbers]), axis=1)
                / lengths[row_numbers]
            )
        return changes

    if decay is None:
        codes = codes_of_sizes(
            _shares(rows, base, scale, lengths, pieces_of(count)) if tied else sizes(np.arange(count))
        )
        return RowChanges(codes, scale, STATISTICAL, is_share=tied), None
    is_moved = ~judged.is_untouched
    codes = np.zeros(count, dtype=np.uint8)
    if not is_moved.any():
        return RowChanges(codes, scale, FROZEN), decay
    codes[judged.is_unsure] = UNSURE
    may_have_moved, had_small_steps = stray_rows(judged, width, has_decayed=bool(decay.lowest))
    if dtype == "float32":
        codes[may_have_moved] = UNSURE
    is_sure = is_moved & ~judged.is_unsure
    codes[is_sure] = codes_of_sizes(sizes(np.flatnonzero(is_sure)))
    # The last steps of a schedule that runs to zero move rows less and less. If all rows that moved did so clearly,
    # and none in its smallest numbers alone, no other row can have moved unseen. In a narrow dtype the last steps leave
    # no trace in any number of a row. A merge that drops small changes (TIES, DARE) leaves some numbers, and even whole
    # rows, of tokens that occurred unchanged.
    is_faint = is_moved & (judged.visible < 1 - _STILL)
    is_certain = (
        dtype == "float32"
        and float(judged.clearance[is_moved].min()) >= _CLEAR
        and is_faint.sum() <= _MOST_FAINT * is_moved.sum()
        and not had_small_steps
    )
    return RowChanges(codes, scale, EXACT if is_certain else STATISTICAL), decay


def _shares(rows: Rows, base: Rows, scale: float, lengths: Floats, pieces: Sequence[slice]) -> Floats:
    """(n,) the share of each row's squared change that lies off the common directions of all rows."""

    def changes() -> Iterator[tuple[slice, Floats]]:
        for piece in pieces:
            yield piece, (as_float64(rows[piece]) - scale * as_float64(base[piece])) / lengths[piece, None]

    gram = sum(change.T @ change for _, change in changes())
    directions = np.linalg.eigh(gram)[1][:, -_COMMON:]
    shares = np.zeros(len(lengths))
    for piece, change in changes():
        squared = np.maximum(np.einsum("ij,ij->i", change, change), 1e-300)
        shares[piece] = 1 - np.square(change @ directions).sum(axis=1) / squared
    return np.maximum(shares, 2.0**-20)


def _same_rows(rows: NDArray[np.floating], base: NDArray[np.floating], dtype: str) -> NDArray[np.bool_]:
    """(n,) whether all numbers of a row are the base's, rounded to ``dtype``."""
    is_same = np.ones(len(rows), dtype=np.bool_)
    for columns in (slice(0, 32), slice(32, None)):  # most rows that differ do so in the first columns
        row_numbers = np.flatnonzero(is_same)
        row_values, base_values = rows[row_numbers, columns], base[row_numbers, columns]
        is_equal = (row_values == base_values).all(axis=1)
        row_numbers, row_values, base_values = (
            row_numbers[~is_equal],
            as_float64(row_values[~is_equal]),
            as_float64(base_values[~is_equal]),
        )
        is_same[row_numbers] = (np.abs(row_values - base_values) <= 0.5 * ulp(row_values, dtype)).all(axis=1)
    return is_same


def _row_products(rows: Floats) -> Floats:
    """(n,) the squared lengths."""
    return np.einsum("ij,ij->i", rows, rows)


def codes_of_sizes(sizes: NDArray[np.float64]) -> NDArray[np.uint8]:
    """(n,) the codes of sizes that are not 0."""
    steps = np.rint((np.log2(np.maximum(sizes, 2.0**_LOWEST)) - _LOWEST) * _STEPS) + 1
    return np.clip(steps, 1, UNSURE - 1).astype(np.uint8)


def sizes_of(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """(n,) the sizes that codes stand for: 0 for an untouched or unsure row, NaN for a missing one."""
    sizes = np.where((codes == 0) | (codes == UNSURE), 0.0, 2.0 ** ((codes.astype(np.float64) - 1) / _STEPS + _LOWEST))
    return np.where(codes == MISSING, np.nan, sizes)
