"""Random draws, and statistics of hidden states: spread, standard errors, comparison with the base's."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

# The value of each measure and its standard error (None if it has none), by name.
Measures = dict[str, tuple[float, float | None]]

# A layer whose outputs differ by less than this share of their size is constant.
_CONSTANT = 1e-6
# Activations beyond this many s_l are shortened, so that a few massive ones do not decide the noise's covariance.
_MOST_SPREAD = 4.0


def seeded_generator(seed: int, measure: str) -> torch.Generator:
    """A fresh generator for one (seed, measure), so that every layer and every model gets the same draws.

    The global generator is never used: numbers must not depend on other draws.
    """
    digest = hashlib.sha256(f"{seed}|{measure}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


def normal(shape: tuple[int, ...], seed: int, measure: str, device: torch.device | None = None) -> torch.Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=seeded_generator(seed, measure)).to(device or "cpu")


def standard_error(values: torch.Tensor) -> float | None:
    """The standard error of a mean over sequences; None for fewer than two."""
    numbers = values.double()
    return None if len(numbers) < 2 else float(numbers.std(unbiased=True) / len(numbers) ** 0.5)


def accuracy(guess: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The share of right tokens in each sequence: (sequences,)."""
    return (guess.cpu() == ids.cpu()).double().mean(dim=1)


@dataclass(frozen=True)
class Spread:
    """The spread of the outputs of a layer: the unit of noise.

    ``size``: s_l, the median over positions of the rms deviation from the mean over the probe. ``covariance``
    (width, width): that of the centred activations, each shortened to at most _MOST_SPREAD · s_l, scaled so
    that noise of this covariance has the rms s_l.
    """

    size: float
    is_constant: bool
    covariance: torch.Tensor

    @property
    def unit(self) -> float:
        """``size``, or 1 for a constant layer, so that it can be a divisor."""
        return 1.0 if self.is_constant else self.size


def spread_of(hidden: torch.Tensor) -> Spread:
    """The spread of h_l (sequences, positions, width)."""
    rows = hidden.detach().reshape(-1, hidden.shape[-1])
    centred = rows - rows.mean(dim=0)
    deviation = centred.square().mean(dim=1).sqrt()
    size = float(deviation.median())
    rms = float(rows.square().mean().sqrt())
    is_constant = not size > _CONSTANT * rms
    shortened = centred * (_MOST_SPREAD * size / deviation.clamp_min(1e-30)).clamp_max(1.0)[:, None]
    covariance = shortened.T @ shortened
    power = float(covariance.diagonal().mean())
    covariance = covariance * (size**2 / power) if power > 0 else covariance
    return Spread(0.0 if is_constant else size, is_constant, covariance)


def compare_with_base(hidden: torch.Tensor, base: torch.Tensor) -> Measures:
    """Drift and CKA of h_l (sequences, positions, width) with the base's, with jackknife errors over sequences.

    ``drift`` = ‖h − h_base‖ / ‖h_base − mean‖; ``cka`` = linear CKA (Kornblith et al., 2019, arXiv 1905.00414).
    Empty if the shapes differ or the base's layer is constant; without ``cka`` if the model's own layer is constant.
    """
    if hidden.shape != base.shape or spread_of(base).is_constant:
        return {}
    states, base_states = hidden.double(), base.double()
    squared_distances = (states - base_states).square().sum(dim=(1, 2))
    squared_norms = (base_states - base_states.mean(dim=(0, 1))).square().sum(dim=(1, 2))
    if not float(squared_norms.sum()) > 0:
        return {}
    drift = float((squared_distances.sum() / squared_norms.sum()).sqrt())
    if torch.equal(hidden, base):
        return {"drift": (0.0, 0.0), "cka": (1.0, 0.0)}
    drifts = ((squared_distances.sum() - squared_distances) / (squared_norms.sum() - squared_norms)).sqrt()
    measures: Measures = {"drift": (drift, _jackknife(drifts))}
    if spread_of(hidden).is_constant:
        return measures
    grams = [rows @ rows.T for rows in (tensor.reshape(-1, tensor.shape[-1]) for tensor in (states, base_states))]
    cka_without = []
    positions = hidden.shape[1]
    for number in range(len(hidden)):
        is_kept = torch.ones(len(grams[0]), dtype=torch.bool)
        is_kept[number * positions : (number + 1) * positions] = False
        cka_without.append(_cka(*(gram[is_kept][:, is_kept] for gram in grams)))
    return measures | {"cka": (_cka(*grams), _jackknife(torch.tensor(cka_without)))}


def _cka(left: torch.Tensor, right: torch.Tensor) -> float:
    """Linear CKA from the Gram matrices of the rows, which need not be centred."""
    centred = [gram - gram.mean(dim=0) - gram.mean(dim=1, keepdim=True) + gram.mean() for gram in (left, right)]
    sizes = centred[0].norm() * centred[1].norm()
    return float((centred[0] * centred[1]).sum() / sizes) if float(sizes) > 0 else 0.0


def _jackknife(values: torch.Tensor) -> float | None:
    """The standard error from the values with one sequence left out."""
    count = len(values)
    if count < 2:
        return None
    return float((values - values.mean()).square().sum().mul((count - 1) / count).sqrt())
