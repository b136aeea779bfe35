"""Find the roundings between the base and a checkpoint, so that they do not count as changes by fine-tuning.

A checkpoint may have gone through narrow dtypes and be stored in a wide one. It is compared with the base rounded to
the narrowest dtype that holds all its values, unless another chain of roundings that leads to such values leaves a
clearly smaller delta. A checkpoint that was made from a copy of the base in 4 bits is compared with the base rounded to
these 4 bits (``indexer.deltas.nf4``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from indexer.checkpoints.stored_tensor import dtype_name

Chain = tuple[str, ...]

# From few to many significant bits. Nearly every bfloat16 value is also a float16 value, but not the reverse.
NARROW = (torch.bfloat16, torch.float16, torch.float32)

_SMALLEST_NORMAL = torch.finfo(torch.float16).tiny


def _flushed(values: torch.Tensor) -> torch.Tensor:
    """Rounded to float16 by a processor that flushes subnormal numbers to zero."""
    half = values.to(torch.float16).to(torch.float32)
    return torch.where(half.abs() < _SMALLEST_NORMAL, 0.0, half)


_STEPS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bfloat16": lambda values: values.to(torch.bfloat16).to(torch.float32),
    "float16": lambda values: values.to(torch.float16).to(torch.float32),
    "float16 flushed": _flushed,
}

_ROUNDOFF: Mapping[str, float] = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float16 flushed": 2.0**-11}

# Longer chains give the same values as one of these, because a float16 value rounded to bfloat16 is still a float16
# value, and the reverse.
_INTO_NARROW: tuple[Chain, ...] = (
    ("bfloat16", "float16"),
    ("float16", "bfloat16"),
    ("bfloat16", "float16 flushed"),
    ("float16 flushed", "bfloat16"),
)
# By the narrowest dtype that holds a matrix: chains whose results it holds, the likeliest first.
_CHAINS: Mapping[torch.dtype, tuple[Chain, ...]] = {
    torch.bfloat16: (("bfloat16",), *_INTO_NARROW),
    torch.float16: (("float16",), ("float16 flushed",), *_INTO_NARROW),
    torch.float32: ((), ("bfloat16",), ("float16",), ("float16 flushed",), *_INTO_NARROW),
}

# Chains are compared on this many entries of a matrix. If more than this share of their deltas is zero, rounding may be
# the only change; then up to as many entries that are subnormal in float16 (about one in a thousand) are added.
_SAMPLE = 8192
_MOSTLY_ZERO = 0.5

# By how many standard deviations one chain's delta must be smaller than another's. If no chain is clearly nearer, they
# differ by a small share of the delta.
_CLEAR = 6.0
_FEWEST = 16

# The grids of values to which a base may have been rounded before training, named in records: NF4 with and without
# double quantisation. They are tried if the delta, relative to the base, is about as large as the error of NF4 (.09 of
# normal weights), or larger.
_GRIDS = ("nf4", "nf4 double")
_LEAST_OF_NF4, _MOST_OF_NF4 = 0.03, 1.0
# Entries of a matrix by which a grid is chosen; it must leave less than this share of the delta.
_GRID_SAMPLE = 1 << 16
_MOST_LEFT, _MOST_PLAUSIBLE = 0.7, 0.9
# After this many matrices without a match, no grid is tried any more.
_MOST_TRIES = 6

# (the dtype that the base was rounded to before, or None; one of ``_GRIDS``) → the base's values on it, float32
Grid = Callable[[torch.dtype | None, str], torch.Tensor]
_GridName = tuple[torch.dtype | None, str, Chain]


class RoundingChoice:
    """The roundings behind one checkpoint, estimated as its matrices arrive.

    There is one choice for all matrices with the same stored and narrowest dtypes. It starts with the likeliest chain;
    a clearly smaller delta changes it for the following matrices, and a clearly worse chain is dropped.
    """

    def __init__(self) -> None:
        self._live: dict[tuple[torch.dtype, torch.dtype], Sequence[Chain]] = {}
        self._grid: _GridName | None = None  # that of the last matrix made from one
        self._tries = _MOST_TRIES

    @property
    def widest(self) -> str:
        """The narrowest dtype that holds all values of all matrices so far; "" before the first."""
        names = [narrow for _, narrow in self._live]
        widest = max(names, key=lambda dtype: torch.finfo(dtype).eps ** -1, default=None)
        return dtype_name(widest) if widest else ""

    @property
    def grid(self) -> str:
        """The one of ``_GRIDS`` that the last such matrix was made from; "" if none was."""
        return self._grid[1] if self._grid else ""

    def reference(self, weight: torch.Tensor, base: torch.Tensor, grid: Grid | None = None) -> torch.Tensor:
        """The base's matrix in float32 after the checkpoint's roundings. Do not write to it.

        ``grid`` returns the same rows of the base rounded to 4 bits.
        """
        narrow = narrowest_dtype(weight)
        key = (weight.dtype, narrow)
        live = self._live.get(key) or _CHAINS.get(narrow, _CHAINS[torch.float32])
        if key not in self._live and key == (torch.float16, torch.bfloat16):
            # A bfloat16 model saved as float16 was rounded twice.
            live = sorted(live, key=lambda chain: chain != ("bfloat16", "float16"))
        if len(live) > 1:
            live = _still_possible(live, weight, base)
        self._live[key] = live
        reference = rounded(base.to(torch.float32), live[0])
        return reference if grid is None else self._on_grid(weight, base, reference, grid)

    def _on_grid(self, weight: torch.Tensor, base: torch.Tensor, reference: torch.Tensor, grid: Grid) -> torch.Tensor:
        """``reference``, or the values of a grid if they are clearly nearer to ``weight``.

        Each matrix is judged by itself: copies in 4 bits leave some matrices unrounded.
        """
        if not self._tries:
            return reference
        stride = max(1, weight.numel() // _GRID_SAMPLE)
        values, near = (matrix.flatten()[::stride].to(torch.float32) for matrix in (weight, reference))
        size, remainder = (float(torch.linalg.vector_norm(vector)) for vector in (near, values - near))
        if not _LEAST_OF_NF4 * size <= remainder <= _MOST_OF_NF4 * size:
            return reference
        narrow = narrowest_dtype(weight)
        tails: tuple[Chain, ...] = {torch.bfloat16: (("bfloat16",),), torch.float16: (("float16",),)}.get(
            narrow, ((), ("bfloat16",), ("float16",))
        )
        firsts = {torch.bfloat16: (None,), torch.float16: (None, torch.bfloat16)}.get(
            base.dtype, (torch.bfloat16, torch.float16, None)
        )
        variants = [(first, kind, tail) for first in firsts for kind in _GRIDS for tail in tails]
        if self._grid in variants:
            variants = [self._grid]
        else:
            # The grids differ far less from each other than from the base: if one of them is too far, all are.
            sampled = grid(firsts[-1], _GRIDS[0]).flatten()[::stride]
            if float(torch.linalg.vector_norm(values - sampled)) > _MOST_PLAUSIBLE * remainder:
                self._tries -= self._grid is None
                return reference
        on_grids = {pair: grid(*pair) for pair in dict.fromkeys((first, kind) for first, kind, _ in variants)}
        references = [near, *(rounded(on_grids[variant[:2]].flatten()[::stride], variant[2]) for variant in variants)]
        stacked = torch.stack(references)
        deltas = (values - stacked).square_()
        best = int(deltas.sum(1).argmin())
        is_smaller = float(deltas[best].sum()) < _MOST_LEFT**2 * float(deltas[0].sum())
        if not (best and is_smaller and _is_clearly_nearest(stacked, deltas, best)[0]):
            self._tries -= self._grid is None
            return reference
        self._grid = variants[best - 1]
        return rounded(on_grids[self._grid[:2]], self._grid[2])


def rounded(values: torch.Tensor, chain: Chain) -> torch.Tensor:
    """Float32 ``values`` after the roundings of ``chain``."""
    for step in chain:
        values = _STEPS[step](values)
    return values


def narrowest_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The dtype with the fewest significant bits that holds every value of ``tensor`` exactly."""
    sample = tensor.flatten()[:2048]
    # A significant bit beyond the ten of float16, as most numbers of float32 have, rules out both narrow dtypes.
    if tensor.dtype == torch.float32 and bool((sample[:64].view(torch.int32) & 0x1FFF).any()):
        return tensor.dtype
    for dtype in NARROW:
        if _fits(sample, dtype) and _fits(tensor, dtype):
            return dtype
    return tensor.dtype


def narrowest_name(tensor: torch.Tensor) -> str:
    """The name of ``narrowest_dtype``."""
    return dtype_name(narrowest_dtype(tensor))


def _fits(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    return tensor.dtype == dtype or torch.equal(tensor.to(dtype).to(tensor.dtype), tensor)


def _still_possible(live: Sequence[Chain], weight: torch.Tensor, base: torch.Tensor) -> Sequence[Chain]:
    """The chains still possible after this matrix, the chosen one first."""
    stride = max(1, min(weight.numel() // _SAMPLE, weight.shape[0]))
    original, values = (matrix[::stride].to(torch.float32).flatten() for matrix in (base, weight))
    remainder = values - rounded(original, live[0])
    if stride > 1 and remainder.numel() - int(remainder.count_nonzero()) > _MOSTLY_ZERO * remainder.numel():
        small = base.to(torch.float32).abs().lt_(_SMALLEST_NORMAL).nonzero()[:_SAMPLE].unbind(1)
        original = torch.cat((original, base[small].to(torch.float32)))
        values = torch.cat((values, weight[small].to(torch.float32)))
    elif _is_beyond_rounding(remainder, original, live):
        return live
    references = torch.stack([rounded(original, chain) for chain in live])
    if not bool(values.isfinite().all() and references.isfinite().all()):
        return live  # the caller reports values that are not finite; values beyond float16 were not rounded to it
    deltas = (values - references).square_()
    best = int(deltas.sum(1).argmin())  # the first of several
    best = best if _is_clearly_nearest(references, deltas, best)[0] else 0
    worse = _is_clearly_nearest(references, deltas, best)
    possible = [chain for number, chain in enumerate(live) if number != best and not worse[number]]
    return [live[best], *possible]


def _is_beyond_rounding(remainder: torch.Tensor, original: torch.Tensor, live: Sequence[Chain]) -> bool:
    """Whether the ``remainder`` of a sample is so large that no chain of ``live`` can be clearly nearer.

    Two roundings differ by √(2/3) of a unit roundoff of each value at most, root mean square.
    """
    roundoff = max(_ROUNDOFF[step] for chain in live for step in chain)
    noise = (2 / 3) ** 0.5 * roundoff * float(torch.linalg.vector_norm(original))
    return float(torch.linalg.vector_norm(remainder)) * 2 * _CLEAR > noise * remainder.numel() ** 0.5


def _is_clearly_nearest(references: torch.Tensor, deltas: torch.Tensor, near: int) -> list[bool]:
    """For each of the ``references`` (k, n), whether the values are clearly nearer to reference ``near``.

    ``deltas`` (k, n) are the squared remainders. Where two references differ by d, project the values on d: the
    result is 1 if they started at the near one and 0 if at the other, with standard deviation (spread of the
    remainders)/‖d‖. Values above ½ are nearer.
    """
    steps = references - references[near]
    apart = steps != 0
    counts = apart.sum(1)
    length = torch.linalg.vector_norm(steps, dim=1)
    spread = ((deltas[near] * apart).sum(1) / counts.clamp(min=1)).sqrt()
    gain = deltas.sum(1) - deltas[near].sum()  # 2 ‖d‖² (share − ½)
    is_exact = (spread == 0) & (counts > 0)
    is_clear = (gain >= 2 * _CLEAR * length * spread) & (counts >= _FEWEST)
    is_nearer: list[bool] = (is_exact | is_clear).tolist()
    return is_nearer
