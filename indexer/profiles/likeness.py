"""A layer against the same layer of the base, on the same probe."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Likeness:
    """``drift`` = ‖h − h_base‖ / ‖h_base − mean‖; ``cka`` = linear CKA (Kornblith et al., 2019, arXiv 1905.00414)."""

    drift: float
    drift_error: float | None
    cka: float
    cka_error: float | None


def likeness(hidden: torch.Tensor, base: torch.Tensor) -> Likeness | None:
    """Of h_l (sequences, positions, width) and the base's; None where their shapes differ or the base's is constant."""
    if hidden.shape != base.shape:
        return None
    left, right = hidden.double(), base.double()
    moved = (left - right).square().sum(dim=(1, 2))
    whole = (right - right.mean(dim=(0, 1))).square().sum(dim=(1, 2))
    if not float(whole.sum()) > 0:
        return None
    drift = float((moved.sum() / whole.sum()).sqrt())
    if torch.equal(hidden, base):
        return Likeness(0.0, 0.0, 1.0, 0.0)
    grams = [one.reshape(-1, one.shape[-1]) @ one.reshape(-1, one.shape[-1]).T for one in (left, right)]
    without = []
    each = hidden.shape[1]
    for number in range(len(hidden)):
        kept = torch.ones(len(grams[0]), dtype=torch.bool)
        kept[number * each : (number + 1) * each] = False
        without.append(_cka(*(gram[kept][:, kept] for gram in grams)))
    drifts = ((moved.sum() - moved) / (whole.sum() - whole)).sqrt()
    return Likeness(drift, _jackknife(drifts), _cka(*grams), _jackknife(torch.tensor(without)))


def _cka(left: torch.Tensor, right: torch.Tensor) -> float:
    """From the Gram matrices of the rows, not yet centred."""
    centred = [gram - gram.mean(dim=0) - gram.mean(dim=1, keepdim=True) + gram.mean() for gram in (left, right)]
    sizes = centred[0].norm() * centred[1].norm()
    return float((centred[0] * centred[1]).sum() / sizes) if float(sizes) > 0 else 0.0


def _jackknife(without: torch.Tensor) -> float | None:
    """The standard error from the values with one sequence left out."""
    count = len(without)
    if count < 2:
        return None
    return float((without - without.mean()).square().sum().mul((count - 1) / count).sqrt())
