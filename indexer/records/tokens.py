"""What training did to some rows of the input embeddings: one number for each.

A row gets a gradient only from a batch that contains its token. Decoupled weight decay multiplies all rows by one
factor c. So a row e' of a fine-tune whose token did not occur is c·e up to rounding, where e is the base's row.

The row of a token that occurred may have changed by less than the rounding of its largest numbers, but numbers near
zero are stored with smaller steps. So a row is compared number by number, in units of the last place (ulp) of the dtype
that holds it, with the result of decay on numbers of nearly the same mantissa (``Decay``).

If a language-model head is tied to the embedding, the softmax moves every row, nearly along common directions. Then the
number of a row is the share of its squared change that lies off these directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]
Rows: TypeAlias = "NDArray[np.floating] | torch.Tensor"

# The rows that are read: stripes spread evenly over the vocabulary of the base, with this many rows each. The first is
# twice as long, so that it contains the special tokens of BERT's vocabularies ([MASK] is 103).
STRIPES = 16
ROWS_EACH = 64
FIRST_ROWS = 128

# Codes: 0 for an untouched row, UNSURE for one whose change rounding may hide, MISSING for one that the model does not
# have; otherwise a logarithm: 8 steps an octave from 2^-26, below which float32 shows no change, to 2^5.
UNSURE = 254
MISSING = 255
_LOWEST = -26.0
_STEPS = 8

EXACT, STATISTICAL, FROZEN = "exact", "statistical", "frozen"
KINDS = (EXACT, STATISTICAL, FROZEN)

# The significant bits of a dtype, and the exponent of its smallest normal number.
_DTYPES = {"bfloat16": (8, -126), "float16": (11, -14), "float32": (24, -126)}

# c is the median over this share of the rows: those nearest to a multiple of the base's row.
_AGREEING = 0.1
# Decay leaves at least this share of a weight; if less is left, these are other weights.
_LEAST_SCALE = 0.5
# A row that only decayed is at most this many ulps from c·e, plus this share of the decay: decay is rounded step by
# step, and small steps are rounded away.
_ROUNDING = 4.0
_UNEVEN_DECAY = 0.5
# Rows, and numbers, that show the decay. Neighbours by mantissa on each side; the outermost are left out while they may
# belong to tokens that occurred.
_FEWEST_REFERENCES, _MOST_REFERENCES = 8, 1 << 17
_NEIGHBOURS, _TRIMMED = 8, 3
_BIN_BITS = 16
_BINS = 1 << _BIN_BITS
# A number within this many ulps of its neighbours did not change. In an untouched row a few numbers may lie farther,
# because rounding jumps there.
_CLOSE, _STRAY = 2.0, 2
# What decay leaves of a number depends on its mantissa alone. A step too small to move a row visibly moves only the
# smallest numbers of it (this share), whose ulps are smallest, by less than _CLOSE or fewer than _STRAY of them. So a
# row that looks untouched is unsure if a number strays by more ulps than the others do: the first of these limits that
# at most _MOST_STRAY of the rows exceed in their larger numbers. If those that exceed it are the smallest numbers of
# their rows more often than chance would make them, there were such steps, and nothing is certain.
_SMALLEST, _BY_CHANCE, _MOST_STRAY = 1 / 16, 0.01, 0.01
_FAINT = (0.5, 1.0, _CLOSE)
# Of a float64, which the arithmetic uses.
_MANTISSA_BITS = 52
_SIGN_BIT = np.int64(-(1 << 63))
# A row in which fewer than this share of the numbers changed is unsure.
_VISIBLE = 1 / 8
# Ulps by which every row that moved must differ: successive last steps of a schedule differ by a factor of at most 4.
_CLEAR = 8.0
# Dropout on embeddings leaves some numbers of a row unchanged. If more than this share is unchanged, rounding hides
# changes or a merge dropped them; such rows may be at most this share of those that moved.
_STILL = 0.25
_MOST_FAINT = 0.002
# The common directions in which a tied head moves every row.
_COMMON = 4
_ROWS_AT_ONCE = 4096
# Rows are compared in pieces of this many numbers, which stay in the processor's cache.
_NUMBERS_AT_ONCE = 1 << 16


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
    """The rows that are read of an embedding with ``vocabulary`` rows; all of a small one."""
    if vocabulary <= FIRST_ROWS + (STRIPES - 1) * ROWS_EACH:
        return (range(vocabulary),)
    starts = np.linspace(FIRST_ROWS, vocabulary - ROWS_EACH, STRIPES - 1).astype(int).tolist()
    return (range(FIRST_ROWS), *(range(start, start + ROWS_EACH) for start in starts))


def token_rows(vocabulary: int) -> NDArray[np.int64]:
    """(n,) the numbers of these rows, ascending."""
    return np.concatenate([np.arange(stripe.start, stripe.stop) for stripe in token_stripes(vocabulary)])


@dataclass(frozen=True)
class Decay:
    """The result of weight decay on rows of tokens that did not occur: c·e, and the rounding of every step.

    Each step of decay is rounded by a rule that depends on the mantissa of a number alone, so that numbers of untouched
    rows lie on one curve over the mantissa, which c alone may miss by hundreds of ulps. ``lowest`` and ``highest``: for
    each half of the reference, the offsets in ulps of ``dtype`` of its numbers around each of _BINS mantissas. Empty if
    nothing decayed.
    """

    scale: float
    dtype: str
    lowest: tuple[Floats, ...] = ()
    highest: tuple[Floats, ...] = ()

    def distances(self, rows: Floats, base: Floats, half: int = 0) -> Floats:
        """(n, d) by how many ulps each number lies outside the range of untouched rows."""
        if not self.lowest:
            return np.abs(rows - self.scale * base) / _ulp(base, self.dtype)
        offsets = _offsets(rows, base, self.scale, self.dtype)
        place = _mantissas(base) >> _MANTISSA_BITS - _BIN_BITS
        lowest, highest = self.lowest[half][place], self.highest[half][place]
        lowest -= offsets
        offsets -= highest
        np.maximum(lowest, offsets, out=offsets)
        return np.maximum(offsets, 0.0, out=offsets)


@dataclass(frozen=True)
class JudgedRows:
    """``is_untouched``, ``is_unsure`` (n,); ``clearance`` (n,) ulps; ``visible`` (n,) the share of changed numbers.

    The clearance of an untouched row is 0. ``small`` and ``large`` (n,): by how many ulps one of the smallest numbers
    of a row that looks untouched, and one of the others, lies beyond what decay made of other rows; 0 below a half.
    """

    is_untouched: NDArray[np.bool_]
    is_unsure: NDArray[np.bool_]
    clearance: Floats
    visible: Floats
    small: Floats
    large: Floats


def row_changes(
    rows: Rows, base: Rows, dtype: str = "float32", *, tied: bool = False
) -> tuple[RowChanges, Decay | None] | None:
    """How ``rows`` (n, d) of a fine-tune, whose values fit ``dtype``, changed, and the decay of all of them.

    ``base`` (n, d) as it is stored. ``tied``: the head is tied to the embedding. The decay is None if no row is
    untouched. Returns None for values that are not finite, a base of zeros, and weights that are not those of a
    fine-tune. Works on a few thousand rows at a time, because an embedding may be large.
    """
    (count, width), pieces = base.shape, _pieces(*base.shape)
    squares, is_same = np.zeros(count), np.zeros(count, dtype=np.bool_)
    for piece in pieces:
        mine, theirs = _numbers(rows[piece]), _numbers(base[piece])
        if not (np.isfinite(mine).all() and np.isfinite(theirs).all()):
            return None
        squares[piece] = _row_products(theirs.astype(np.float64))
        is_same[piece] = _same_rows(mine, theirs, dtype)
    is_there = squares > 0  # the row of a padding token may be zero
    if not is_there.any():
        return None
    lengths = np.sqrt(np.where(is_there, squares, np.median(squares[is_there])))
    # The common factor. If enough rows equal the base's, rounded to the same dtype, no decay shows.
    if (is_same * is_there).sum() >= max(1, _AGREEING * is_there.sum() / 10):
        scale = 1.0
        decay: Decay | None = Decay(1.0, dtype)
        others = np.flatnonzero(~is_same)  # the numbers of the same rows are one ulp away at most
        found = judge_rows(rows[others], base[others], Decay(1.0, dtype))
        judged = JudgedRows(is_same.copy(), np.zeros(count, dtype=np.bool_), *(np.zeros(count) for _ in range(4)))
        for every, some in zip(vars(judged).values(), vars(found).values(), strict=True):
            every[others] = some
    else:
        products, own = np.zeros(count), np.zeros(count)
        for piece in pieces:
            mine, theirs = _float64(rows[piece]), _float64(base[piece])
            products[piece], own[piece] = np.einsum("ij,ij->i", mine, theirs), _row_products(mine)
        ratios = products[is_there] / squares[is_there]
        off = np.maximum(own[is_there] / squares[is_there] - ratios**2, 0)  # ‖e' - ratio·e‖² / ‖e‖²
        scale = float(np.median(ratios[np.argsort(off, kind="stable")[: max(1, int(_AGREEING * len(off)))]]))
        if not _LEAST_SCALE < scale < 1 / _LEAST_SCALE:  # also NaN: not a fine-tune of this base
            return None
        decay, reference = _fit_decay(rows, base, scale, dtype, is_there)
        if decay is not None:
            judged = judge_rows(rows, base, decay, reference)

    def sizes(chosen: NDArray[np.intp]) -> Floats:
        """How much these rows changed besides the decay, relative to the base's rows."""
        changes = np.zeros(len(chosen))
        for piece in _pieces(len(chosen), width):
            some = chosen[piece]
            changes[piece] = np.linalg.norm(_float64(rows[some]) - scale * _float64(base[some]), axis=1) / lengths[some]
        return changes

    if decay is None:
        codes = codes_of_sizes(_shares(rows, base, scale, lengths, _pieces(count)) if tied else sizes(np.arange(count)))
        return RowChanges(codes, scale, STATISTICAL, is_share=tied), None
    is_moved = ~judged.is_untouched
    codes = np.zeros(count, dtype=np.uint8)
    if not is_moved.any():
        return RowChanges(codes, scale, FROZEN), decay
    codes[judged.is_unsure] = UNSURE
    may_have_moved, had_small_steps = _strays(judged, width, has_decayed=bool(decay.lowest))
    if dtype == "float32":
        codes[may_have_moved] = UNSURE
    is_sure = is_moved & ~judged.is_unsure
    codes[is_sure] = codes_of_sizes(sizes(np.flatnonzero(is_sure)))
    # The last steps of a schedule that runs to zero move rows less and less. Only if all rows that moved did so
    # clearly, and none moved in its smallest numbers alone, is no other row hidden; and in a narrow dtype the last
    # steps leave no trace in any number of a row. A merge that drops small changes (TIES, DARE) leaves numbers, and
    # even whole rows, of tokens that occurred unchanged.
    is_faint = is_moved & (judged.visible < 1 - _STILL)
    is_certain = (
        dtype == "float32"
        and float(judged.clearance[is_moved].min()) >= _CLEAR
        and is_faint.sum() <= _MOST_FAINT * is_moved.sum()
        and not had_small_steps
    )
    return RowChanges(codes, scale, EXACT if is_certain else STATISTICAL), decay


def judge_rows(rows: Rows, base: Rows, decay: Decay, reference: Sequence[int] | NDArray[np.intp] = ()) -> JudgedRows:
    """Which rows are explained by ``decay`` of the base's.

    ``reference``: the rows that it was fitted to, alternately of its two halves; each is judged by the other half.
    """
    count = len(base)
    entries, clearance, visible = np.zeros(count), np.zeros(count), np.zeros(count)
    small, large = np.zeros(count), np.zeros(count)
    half = np.zeros(count, dtype=np.intp)
    if len(reference):
        half[reference[::2]] = 1  # the first half is judged by the second
    for piece in _pieces(*base.shape):
        mine, theirs = _float64(rows[piece]), _float64(base[piece])
        for number in np.unique(half[piece]).tolist():
            chosen = np.flatnonzero(half[piece] == number)
            distances = decay.distances(mine[chosen], theirs[chosen], number)
            place, width = chosen + piece.start, distances.shape[1]
            entries[place] = (distances > _CLOSE).sum(axis=1)
            visible[place] = entries[place] / width
            has_moved = entries[place] > _STRAY
            least = min(_STRAY + 1, width)
            clearance[place[has_moved]] = np.partition(distances[has_moved], -least, axis=1)[:, -least]
            some = np.flatnonzero(~has_moved & (distances.max(axis=1) > _FAINT[0]))  # few
            numbers, smallest = np.abs(theirs[chosen[some]]), int(_SMALLEST * width)
            is_small = numbers < np.partition(numbers, smallest, axis=1)[:, smallest, None]
            small[place[some]] = np.where(is_small, distances[some], 0).max(axis=1)
            large[place[some]] = np.where(is_small, 0, distances[some]).max(axis=1)
    is_untouched = entries <= _STRAY
    return JudgedRows(is_untouched, ~is_untouched & (visible < _VISIBLE), clearance, visible, small, large)


def _strays(judged: JudgedRows, width: int, *, has_decayed: bool) -> tuple[NDArray[np.bool_], bool]:
    """(n,) which rows that look untouched may have moved; and whether steps moved smallest numbers alone (binomial)."""
    from scipy.special import bdtrc

    if not has_decayed:  # then nothing but a step changes a number
        is_changed = np.maximum(judged.small, judged.large) > 0
        return is_changed, bool(is_changed.any())
    count = max(1, int(judged.is_untouched.sum()))
    limit = next((one for one in _FAINT if (judged.large > one).sum() <= _MOST_STRAY * count), _FAINT[-1])
    is_small, is_large = judged.small > limit, judged.large > limit
    small, large = int(is_small.sum()), int(is_large.sum())
    chance = float(bdtrc(small - 1, small + large, int(_SMALLEST * width) / width)) if small else 1.0
    return is_small | is_large, chance < _BY_CHANCE


def _fit_decay(
    rows: Rows, base: Rows, scale: float, dtype: str, is_there: NDArray[np.bool_]
) -> tuple[Decay | None, NDArray[np.intp]]:
    """The decay, fitted to the rows that nothing else changed, and which rows these are; None if there are too few.

    The rows near the common multiple are the first reference. Rows with numbers outside the range of most of their
    neighbours by mantissa are removed from it until no such row is left.
    """
    from scipy.ndimage import maximum_filter1d, minimum_filter1d, rank_filter

    furthest = np.full(len(base), np.inf)
    for piece in _pieces(*base.shape):
        mine, theirs = _float64(rows[piece]), _float64(base[piece])
        furthest[piece] = (np.abs(mine - scale * theirs) / _ulp(theirs, dtype)).max(axis=1)
    limit = _ROUNDING + _UNEVEN_DECAY * abs(1 - scale) * 2.0 ** _DTYPES[dtype][0]
    reference = np.flatnonzero(is_there & (furthest <= limit))
    most = max(_FEWEST_REFERENCES, _MOST_REFERENCES // base.shape[1])
    if len(reference) > most:
        reference = reference[np.linspace(0, len(reference) - 1, most).astype(np.intp)]
    for _ in range(4):
        if len(reference) < _FEWEST_REFERENCES:
            return None, reference
        offsets, order, near = _by_mantissa(rows[reference], base[reference], scale, dtype)
        values = offsets.ravel()[order]
        low, high = (
            rank_filter(values, rank, 2 * _NEIGHBOURS + 1, mode="nearest") for rank in (_TRIMMED, -1 - _TRIMMED)
        )
        # Numbers of one mantissa are judged alike, by the first of them.
        first = np.maximum.accumulate(np.where(np.diff(near, prepend=-2) > 0, np.arange(len(near)), 0))
        is_beyond = np.empty(len(near), dtype=np.bool_)
        is_beyond[order] = np.maximum(low[first] - values, values - high[first]) > _CLOSE
        beyond = is_beyond.reshape(offsets.shape).sum(axis=1)
        if (beyond <= _STRAY).all():
            break
        reference = reference[beyond <= _STRAY]
    if len(reference) < _FEWEST_REFERENCES:
        return None, reference
    lowest, highest = [], []
    for half in (reference[::2], reference[1::2]):
        offsets, order, near = _by_mantissa(rows[half], base[half], scale, dtype)
        values = offsets.ravel()[order]
        size = 2 * _NEIGHBOURS + 1
        middles = (np.arange(_BINS, dtype=np.int64) * 2 + 1) << _MANTISSA_BITS - _BIN_BITS - 1
        place = np.searchsorted(near, middles).clip(0, len(near) - 1)
        lowest.append(minimum_filter1d(values, size, mode="nearest")[place])
        highest.append(maximum_filter1d(values, size, mode="nearest")[place])
    return Decay(scale, dtype, tuple(lowest), tuple(highest)), reference


def _offsets(rows: Floats, base: Floats, scale: float, dtype: str) -> Floats:
    """(n, d) e' - c·e in ulps of e, positive away from zero."""
    offsets = rows - scale * base
    offsets /= _ulp(base, dtype)
    signs = (base + 0.0).view(np.int64)  # -0.0 counts as positive
    signs &= _SIGN_BIT
    offsets.view(np.int64)[...] ^= signs
    return offsets


def _mantissas(values: Floats) -> NDArray[np.int64]:
    """The stored bits of the mantissas: of a value m · 2^e with 1 ≤ |m| < 2 the number (|m| - 1) · 2^52."""
    return values.view(np.int64) & (1 << _MANTISSA_BITS) - 1


def _by_mantissa(
    rows: Rows, base: Rows, scale: float, dtype: str
) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """The offsets (n, d); the order of all numbers by the mantissas of ``base``, zeros (-1) first; these in order."""
    theirs = _float64(base)
    keys = np.where(theirs == 0, -1, _mantissas(theirs)).ravel()
    # A number of float32 leaves room for its place in the same integer, and integers are sorted in a tenth of the time.
    fraction, place = _MANTISSA_BITS - 23, np.arange(len(keys))
    if len(keys) <= 1 << fraction and not (keys & (1 << fraction) - 1)[keys >= 0].any():
        order = np.sort(keys >> fraction << fraction | place) & (1 << fraction) - 1
    else:
        order = np.argsort(keys, kind="stable")
    return _offsets(_float64(rows), theirs, scale, dtype), order, keys[order]


def _pieces(count: int, width: int = 0) -> list[slice]:
    """``count`` rows in pieces; in small ones if the ``width`` of rows that do not depend on each other is given."""
    step = max(1, _NUMBERS_AT_ONCE // width) if width else _ROWS_AT_ONCE
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _shares(rows: Rows, base: Rows, scale: float, lengths: Floats, pieces: Sequence[slice]) -> Floats:
    """(n,) the share of each row's squared change that lies off the common directions of all rows."""

    def changes() -> Iterator[tuple[slice, Floats]]:
        for piece in pieces:
            yield piece, (_float64(rows[piece]) - scale * _float64(base[piece])) / lengths[piece, None]

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
        left = np.flatnonzero(is_same)
        mine, theirs = rows[left, columns], base[left, columns]
        is_equal = (mine == theirs).all(axis=1)
        left, mine, theirs = left[~is_equal], _float64(mine[~is_equal]), _float64(theirs[~is_equal])
        is_same[left] = (np.abs(mine - theirs) <= 0.5 * _ulp(mine, dtype)).all(axis=1)
    return is_same


def _row_products(rows: Floats) -> Floats:
    """(n,) the squared lengths."""
    return np.einsum("ij,ij->i", rows, rows)


def _numbers(rows: Rows) -> NDArray[np.floating]:
    """Some rows as a NumPy array, also of tensors in bfloat16, which NumPy lacks."""
    return rows if isinstance(rows, np.ndarray) else rows.float().numpy()


def _float64(rows: Rows) -> Floats:
    """Some rows as a new NumPy array of float64."""
    return _numbers(rows).astype(np.float64)


def _ulp(values: Floats, dtype: str) -> Floats:
    """The distance of neighbouring numbers of ``dtype`` at ``values``, which are finite."""
    bits, smallest = _DTYPES[dtype]
    # 2^e has the stored exponent e + 1023 and no mantissa.
    exponents = values.view(np.int64) >> _MANTISSA_BITS
    exponents &= 0x7FF
    np.maximum(exponents, smallest + 1023, out=exponents)
    exponents -= bits - 1
    exponents <<= _MANTISSA_BITS
    return exponents.view(np.float64)


def codes_of_sizes(sizes: NDArray[np.float64]) -> NDArray[np.uint8]:
    """(n,) the codes of sizes that are not 0."""
    steps = np.rint((np.log2(np.maximum(sizes, 2.0**_LOWEST)) - _LOWEST) * _STEPS) + 1
    return np.clip(steps, 1, UNSURE - 1).astype(np.uint8)


def sizes_of(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """(n,) the sizes that codes stand for: 0 for an untouched or unsure row, NaN for a missing one."""
    sizes = np.where((codes == 0) | (codes == UNSURE), 0.0, 2.0 ** ((codes.astype(np.float64) - 1) / _STEPS + _LOWEST))
    return np.where(codes == MISSING, np.nan, sizes)
