"""How far the outputs of a layer lie apart: the unit of noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# A layer whose outputs differ by less than this share of their size says nothing of its input.
CONSTANT = 1e-6
# Single positions with massive activations must not decide what the noise looks like.
MOST_SPREAD = 4.0


@dataclass(frozen=True)
class Spread:
    """``size`` is s_l: the median over positions of the rms deviation from the mean over the probe.

    ``mean`` (width,); ``covariance`` (width, width) of the centred activations, those of more than MOST_SPREAD · s_l
    shortened to that; scaled so that noise of this covariance has the rms s_l.
    """

    size: float
    is_constant: bool
    mean: torch.Tensor
    covariance: torch.Tensor

    @property
    def unit(self) -> float:
        """``size``, or 1 where the layer is constant: nothing is divided by zero."""
        return 1.0 if self.is_constant else self.size


def spread_of(hidden: torch.Tensor) -> Spread:
    """The spread of h_l (sequences, positions, width)."""
    rows = hidden.detach().reshape(-1, hidden.shape[-1])
    mean = rows.mean(dim=0)
    centred = rows - mean
    deviation = centred.square().mean(dim=1).sqrt()
    size = float(deviation.median())
    rms = float(rows.square().mean().sqrt())
    is_constant = not size > CONSTANT * rms
    shortened = centred * (MOST_SPREAD * size / deviation.clamp_min(1e-30)).clamp_max(1.0)[:, None]
    covariance = shortened.T @ shortened
    power = float(covariance.diagonal().mean())
    covariance = covariance * (size**2 / power) if power > 0 else covariance
    return Spread(0.0 if is_constant else size, is_constant, mean, covariance)
