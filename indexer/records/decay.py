"""What weight decay alone does to the rows of an embedding, and which rows it explains.

A row is compared number by number, in units of the last place (ulp) of the dtype that holds it, with the result of
decay on numbers of nearly the same mantissa. ``indexer.records.tokens`` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]
Rows: TypeAlias = "NDArray[np.floating] | torch.Tensor"

# The significant bits of a dtype, and the exponent of its smallest normal number.
_DTYPES = {"bfloat16": (8, -126), "float16": (11, -14), "float32": (24, -126)}

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
# The result of decay depends on the mantissa of a number alone. A step too small to move a row visibly moves only the
# smallest numbers of it (this share), whose ulps are smallest, by less than _CLOSE or fewer than _STRAY of them. So a
# row that looks untouched is unsure if a number strays by more ulps than the others do: the first of these limits that
# at most _MOST_STRAY of the rows exceed in their larger numbers. If those that exceed it are the smallest numbers of
# their rows more often than chance would make them, there were such steps, and nothing is certain.
_SMALLEST, _BY_CHANCE, _MOST_STRAY = 1 / 16, 0.01, 0.01
_FAINT = (0.5, 1.0, _CLOSE)
# Bits of the mantissa of a float64, which the arithmetic uses.
_MANTISSA_BITS = 52
_SIGN_BIT = np.int64(-(1 << 63))
# A row in which fewer than this share of the numbers changed is unsure.
_VISIBLE = 1 / 8
_ROWS_AT_ONCE = 4096
# Rows are compared in pieces of this many numbers, which stay in the processor's cache.
_NUMBERS_AT_ONCE = 1 << 16


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
            return np.abs(rows - self.scale * base) / ulp(base, self.dtype)
        offsets = _offsets(rows, base, self.scale, self.dtype)
        bins = _mantissas(base) >> _MANTISSA_BITS - _BIN_BITS
        lowest, highest = self.lowest[half][bins], self.highest[half][bins]
        lowest -= offsets
        offsets -= highest
        np.maximum(lowest, offsets, out=offsets)
        return np.maximum(offsets, 0.0, out=offsets)


@dataclass(frozen=True)
class ClassifiedRows:
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


def classify_rows(
    rows: Rows, base: Rows, decay: Decay, reference: Sequence[int] | NDArray[np.intp] = ()
) -> ClassifiedRows:
    """Which rows are explained by ``decay`` of the base's.

    ``reference``: the rows that it was fitted to, alternately of its two halves; each is judged by the other half.
    """
    count = len(base)
    entries, clearance, visible = np.zeros(count), np.zeros(count), np.zeros(count)
    small, large = np.zeros(count), np.zeros(count)
    half = np.zeros(count, dtype=np.intp)
    if len(reference):
        half[reference[::2]] = 1  # the first half is judged by the second
    for piece in pieces_of(*base.shape):
        row_values, base_values = as_float64(rows[piece]), as_float64(base[piece])
        for number in np.unique(half[piece]).tolist():
            row_numbers = np.flatnonzero(half[piece] == number)
            distances = decay.distances(row_values[row_numbers], base_values[row_numbers], number)
            positions, width = row_numbers + piece.start, distances.shape[1]
            entries[positions] = (distances > _CLOSE).sum(axis=1)
            visible[positions] = entries[positions] / width
            has_moved = entries[positions] > _STRAY
            least = min(_STRAY + 1, width)
            clearance[positions[has_moved]] = np.partition(distances[has_moved], -least, axis=1)[:, -least]
            faint = np.flatnonzero(~has_moved & (distances.max(axis=1) > _FAINT[0]))  # few
            numbers, smallest = np.abs(base_values[row_numbers[faint]]), int(_SMALLEST * width)
            is_small = numbers < np.partition(numbers, smallest, axis=1)[:, smallest, None]
            small[positions[faint]] = np.where(is_small, distances[faint], 0).max(axis=1)
            large[positions[faint]] = np.where(is_small, 0, distances[faint]).max(axis=1)
    is_untouched = entries <= _STRAY
    return ClassifiedRows(is_untouched, ~is_untouched & (visible < _VISIBLE), clearance, visible, small, large)


def stray_rows(judged: ClassifiedRows, width: int, *, has_decayed: bool) -> tuple[NDArray[np.bool_], bool]:
    """(n,) which rows that look untouched may have moved; and whether steps moved smallest numbers alone (binomial)."""
    from scipy.special import bdtrc

    if not has_decayed:  # then nothing but a step changes a number
        is_changed = np.maximum(judged.small, judged.large) > 0
        return is_changed, bool(is_changed.any())
    count = max(1, int(judged.is_untouched.sum()))
    limit = next((value for value in _FAINT if (judged.large > value).sum() <= _MOST_STRAY * count), _FAINT[-1])
    is_small, is_large = judged.small > limit, judged.large > limit
    small, large = int(is_small.sum()), int(is_large.sum())
    chance = float(bdtrc(small - 1, small + large, int(_SMALLEST * width) / width)) if small else 1.0
    return is_small | is_large, chance < _BY_CHANCE


def fit_decay(
    rows: Rows, base: Rows, scale: float, dtype: str, is_there: NDArray[np.bool_]
) -> tuple[Decay | None, NDArray[np.intp]]:
    """The decay, fitted to the rows that nothing else changed, and which rows these are; None if there are too few.

    The rows near the common multiple are the first reference. Rows with numbers outside the range of most of their
    neighbours by mantissa are removed from it until no such row is left.
    """
    from scipy.ndimage import maximum_filter1d, minimum_filter1d, rank_filter

    furthest = np.full(len(base), np.inf)
    for piece in pieces_of(*base.shape):
        row_values, base_values = as_float64(rows[piece]), as_float64(base[piece])
        furthest[piece] = (np.abs(row_values - scale * base_values) / ulp(base_values, dtype)).max(axis=1)
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
        nearest = np.searchsorted(near, middles).clip(0, len(near) - 1)
        lowest.append(minimum_filter1d(values, size, mode="nearest")[nearest])
        highest.append(maximum_filter1d(values, size, mode="nearest")[nearest])
    return Decay(scale, dtype, tuple(lowest), tuple(highest)), reference


def _offsets(rows: Floats, base: Floats, scale: float, dtype: str) -> Floats:
    """(n, d) e' - c·e in ulps of e, positive away from zero."""
    offsets = rows - scale * base
    offsets /= ulp(base, dtype)
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
    base_values = as_float64(base)
    keys = np.where(base_values == 0, -1, _mantissas(base_values)).ravel()
    # A number of float32 leaves room for its place in the same integer, and integers are sorted in a tenth of the time.
    fraction, positions = _MANTISSA_BITS - 23, np.arange(len(keys))
    if len(keys) <= 1 << fraction and not (keys & (1 << fraction) - 1)[keys >= 0].any():
        order = np.sort(keys >> fraction << fraction | positions) & (1 << fraction) - 1
    else:
        order = np.argsort(keys, kind="stable")
    return _offsets(as_float64(rows), base_values, scale, dtype), order, keys[order]


def pieces_of(count: int, width: int = 0) -> list[slice]:
    """``count`` rows in pieces; in small ones if the ``width`` of rows that do not depend on each other is given."""
    step = max(1, _NUMBERS_AT_ONCE // width) if width else _ROWS_AT_ONCE
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def as_numbers(rows: Rows) -> NDArray[np.floating]:
    """Some rows as a NumPy array, also of tensors in bfloat16, which NumPy lacks."""
    return rows if isinstance(rows, np.ndarray) else rows.float().numpy()


def as_float64(rows: Rows) -> Floats:
    """Some rows as a new NumPy array of float64."""
    return as_numbers(rows).astype(np.float64)


def ulp(values: Floats, dtype: str) -> Floats:
    """The distance of neighbouring numbers of ``dtype`` at ``values``, which are finite."""
    bits, smallest = _DTYPES[dtype]
    # 2^e has the stored exponent e + 1023 and no mantissa.
    exponents = values.view(np.int64) >> _MANTISSA_BITS
    exponents &= 0x7FF
    np.maximum(exponents, smallest + 1023, out=exponents)
    exponents -= bits - 1
    exponents <<= _MANTISSA_BITS
    return exponents.view(np.float64)
