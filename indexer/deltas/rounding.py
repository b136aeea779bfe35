"""Which roundings lie between the base and a checkpoint: what they did to the weights is no change by fine-tuning.

A checkpoint may have gone through narrow dtypes on its way and be stored in a wide one. Its values tell the narrowest
dtype that holds them all, and the base rounded to that is what they are compared with, unless another chain of
roundings that could have led to such values leaves a clearly smaller delta.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

Chain = tuple[str, ...]

# From few to many significant bits; nearly every bfloat16 value is also a float16 one, and not the reverse.
NARROW = (torch.bfloat16, torch.float16, torch.float32)

_SMALLEST_NORMAL = torch.finfo(torch.float16).tiny

_STEPS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bfloat16": lambda values: values.to(torch.bfloat16).to(torch.float32),
    "float16": lambda values: values.to(torch.float16).to(torch.float32),
    # Where subnormal numbers are flushed to zero, as some processors do.
    "float16 flushed": lambda values: _flushed(_STEPS["float16"](values)),
}

_ROUNDOFF: Mapping[str, float] = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float16 flushed": 2.0**-11}

# Longer chains end where one of these does: a float16 value keeps being one when it is rounded to bfloat16, and a
# bfloat16 value when it is rounded to float16.
_INTO_NARROW: tuple[Chain, ...] = (
    ("bfloat16", "float16"),
    ("float16", "bfloat16"),
    ("bfloat16", "float16 flushed"),
    ("float16 flushed", "bfloat16"),
)
# By the narrowest dtype that holds a matrix: chains whose results fit into it, the likeliest first.
_CHAINS: Mapping[torch.dtype, tuple[Chain, ...]] = {
    torch.bfloat16: (("bfloat16",), *_INTO_NARROW),
    torch.float16: (("float16",), ("float16 flushed",), *_INTO_NARROW),
    torch.float32: ((), ("bfloat16",), ("float16",), ("float16 flushed",), *_INTO_NARROW),
}

# Numbers of a matrix that chains are compared on; where the delta is zero in so large a share of them that rounding
# may be all there is, as many again that float16 holds as subnormal ones, for those are one in a thousand.
_SAMPLE = 8192
_MOSTLY = 0.5

# How many standard deviations a chain's delta must be smaller than another's: no matrix differs from its neighbours by
# chance, and where nothing is clear, the chains differ by a small share of the delta.
_CLEAR = 6.0
_FEWEST = 16


class RoundingChoice:
    """The roundings behind one checkpoint, found as its matrices come by.

    The choice is one for all matrices of a stored dtype and a narrowest dtype: it starts with the likeliest chain, a
    clearly smaller delta changes it for what follows, and a chain that is clearly worse is never looked at again.
    """

    def __init__(self) -> None:
        self._live: dict[tuple[torch.dtype, torch.dtype], Sequence[Chain]] = {}

    @property
    def widest(self) -> str:
        """The narrowest dtype that holds all values of all matrices so far; "" before the first."""
        names = [narrow for _, narrow in self._live]
        widest = max(names, key=lambda dtype: torch.finfo(dtype).eps ** -1, default=None)
        return str(widest).removeprefix("torch.") if widest else ""

    def reference(self, weight: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        """The base's matrix in float32 as the checkpoint's roundings leave it. Not to be written to."""
        key = (weight.dtype, narrowest_dtype(weight))
        live = self._live.get(key) or _chains(*key)
        if len(live) > 1:
            live = _weighed(live, weight, base)
        self._live[key] = live
        return rounded(base.to(torch.float32), live[0])


def rounded(values: torch.Tensor, chain: Chain) -> torch.Tensor:
    """Float32 ``values`` after the roundings of ``chain``."""
    for step in chain:
        values = _STEPS[step](values)
    return values


def narrowest_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The dtype with the fewest significant bits that holds every value of ``tensor`` exactly."""
    sample = tensor.flatten()[:2048]
    for dtype in NARROW:
        if _fits(sample, dtype) and _fits(tensor, dtype):
            return dtype
    return tensor.dtype


def _fits(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    return tensor.dtype == dtype or torch.equal(tensor.to(dtype).to(tensor.dtype), tensor)


def _flushed(values: torch.Tensor) -> torch.Tensor:
    return torch.where(values.abs() < _SMALLEST_NORMAL, 0.0, values)


def _chains(stored: torch.dtype, narrow: torch.dtype) -> Sequence[Chain]:
    chains = _CHAINS.get(narrow, _CHAINS[torch.float32])
    if stored == torch.float16 and narrow == torch.bfloat16:
        # A bfloat16 model saved as float16 was rounded twice.
        return sorted(chains, key=lambda chain: chain != ("bfloat16", "float16"))
    return chains


def _weighed(live: Sequence[Chain], weight: torch.Tensor, base: torch.Tensor) -> Sequence[Chain]:
    """The chains that this matrix leaves, the chosen one first."""
    every = max(1, min(weight.numel() // _SAMPLE, weight.shape[0]))
    original, values = (matrix[::every].to(torch.float32).flatten() for matrix in (base, weight))
    left = values - rounded(original, live[0])
    if every > 1 and float((left == 0).float().mean()) > _MOSTLY:
        small = base.to(torch.float32).abs().lt_(_SMALLEST_NORMAL).nonzero()[:_SAMPLE].unbind(1)
        original = torch.cat((original, base[small].to(torch.float32)))
        values = torch.cat((values, weight[small].to(torch.float32)))
    elif _is_beyond_rounding(left, original, live):
        return live
    references = torch.stack([rounded(original, chain) for chain in live])
    if not bool(values.isfinite().all() and references.isfinite().all()):
        return live  # who reads on says what is not finite; what float16 cannot hold was not rounded to it
    deltas = (values - references).square_()
    best = int(deltas.sum(1).argmin())  # of several the first
    best = best if _is_clearly_nearest(references, deltas, best)[0] else 0
    worse = _is_clearly_nearest(references, deltas, best)
    others = [chain for number, chain in enumerate(live) if number != best and not worse[number]]
    return [live[best], *others]


def _is_beyond_rounding(left: torch.Tensor, original: torch.Tensor, live: Sequence[Chain]) -> bool:
    """Whether no chain of ``live`` can be clearly nearer or farther, as what is ``left`` of a sample is too large.

    Two roundings differ by √(2/3) of a unit roundoff of each value at most, root mean square.
    """
    roundoff = max(_ROUNDOFF[step] for chain in live for step in chain)
    noise = (2 / 3) ** 0.5 * roundoff * float(torch.linalg.vector_norm(original))
    return float(torch.linalg.vector_norm(left)) * 2 * _CLEAR > noise * left.numel() ** 0.5


def _is_clearly_nearest(references: torch.Tensor, deltas: torch.Tensor, near: int) -> list[bool]:
    """Whether values are nearer to the one of their ``references`` (k, n) than to each, beyond what chance explains.

    ``deltas`` (k, n) are the squares of what is left. Where two references differ, by d, the share of d that the values
    have gone towards the near one is 1 where they began there and 0 where they began at the other, with a standard
    deviation of (spread of what is left)/‖d‖; nearer are those above ½.
    """
    steps = references - references[near]
    apart = steps != 0
    counts = apart.sum(1)
    length = torch.linalg.vector_norm(steps, dim=1)
    spread = ((deltas[near] * apart).sum(1) / counts.clamp(min=1)).sqrt()
    gain = deltas.sum(1) - deltas[near].sum()  # 2 ‖d‖² (share − ½)
    is_exact = (spread == 0) & (counts > 0)
    is_clear = (gain >= 2 * _CLEAR * length * spread) & (counts >= _FEWEST)
    found: list[bool] = (is_exact | is_clear).tolist()
    return found
