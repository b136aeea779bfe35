"""The receptive field of a layer: which input positions its outputs depend on, by gradients."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from indexer.profiles.layers import Layers, gradient_of
from indexer.profiles.statistics import normal, standard_error

COLUMN_DRAWS = 4
QUARTERS = 4


@dataclass(frozen=True)
class ReceptiveField:
    """What the outputs of a layer depend on.

    ``reach``: the effective number of positions an output looks at (the exponential of an entropy); ``own``: the share
    of its own position; ``columns`` (positions,): the share of each input position; ``start``: that of the first
    quarter. Each ``_error`` is a standard error over sequences.
    """

    reach: float
    reach_error: float | None
    own: float
    own_error: float | None
    start: float
    start_error: float | None
    columns: tuple[float, ...]


def receptive_fields(
    layers: Layers, inputs: torch.Tensor, chosen: Collection[int], seed: int = 0
) -> dict[int, ReceptiveField]:
    """The receptive field of each layer, from one forward pass and a few backward passes per layer.

    M[t, s] = E‖∂(v·h_t)/∂e_s‖² with v normal, pooled over sequences before its rows are normalised to sum 1; t is the
    last position of each quarter, or every position of at most four. Layers that depend on no input are left out.
    """
    leaf = inputs.detach().clone().requires_grad_(True)
    states = layers.states(leaf, chosen)
    positions = layers.by_position(inputs[:1]).shape[1]
    found = {layer: _receptive_field(layers, leaf, states[layer], positions, seed) for layer in sorted(chosen)}
    return {layer: one for layer, one in found.items() if one is not None}


def _receptive_field(
    layers: Layers, leaf: torch.Tensor, hidden: torch.Tensor, positions: int, seed: int
) -> ReceptiveField | None:
    offset = hidden.shape[1] - positions  # tokens that a stem puts before the patches
    asked = list(range(positions))
    if positions > QUARTERS:
        asked = [(quarter + 1) * positions // QUARTERS - 1 for quarter in range(QUARTERS)]
    rows = torch.stack([_sensitivity(layers, leaf, hidden, offset, [place], seed, place) for place in asked], dim=1)
    columns = torch.stack(
        [_sensitivity(layers, leaf, hidden, offset, range(positions), seed, -1 - draw) for draw in range(COLUMN_DRAWS)]
    ).mean(dim=0)
    if not float(columns.sum()) > 0:
        return None
    value, own = _breadth(rows.sum(dim=0)[None], asked)
    values, owns = _breadth(rows, asked)
    first = max(1, positions // QUARTERS)
    shares = _normalised(columns.sum(dim=0))
    starts = _normalised(columns)[:, :first].sum(dim=1)
    return ReceptiveField(
        reach=float(value[0]),
        reach_error=standard_error(values),
        own=float(own[0]),
        own_error=standard_error(owns),
        start=float(shares[:first].sum()),
        start_error=standard_error(starts),
        columns=tuple(shares.tolist()),
    )


def _sensitivity(
    layers: Layers, leaf: torch.Tensor, hidden: torch.Tensor, offset: int, places: Sequence[int], seed: int, draw: int
) -> torch.Tensor:
    """‖∂ Σ_t v_t·h_t / ∂e_s‖² for each sequence and position s, with t over ``places``: (sequences, positions)."""
    picked = [place + offset for place in places]
    vectors = normal((len(hidden), len(picked), hidden.shape[-1]), seed, f"reach|{draw}", hidden.device)
    gradient = gradient_of((hidden[:, picked] * vectors).sum(), leaf, keep_graph=True)
    return layers.by_position(gradient.square()).double().cpu()


def _breadth(rows: torch.Tensor, asked: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """From M (n, asked, positions): exp of the rows' entropy, and the share of the own position, averaged over rows."""
    shares = _normalised(rows)
    entropy = -(shares * shares.clamp_min(1e-300).log()).sum(dim=-1)
    own = shares[:, range(len(asked)), list(asked)]
    return entropy.exp().mean(dim=1), own.mean(dim=1)


def _normalised(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.sum(dim=-1, keepdim=True).clamp_min(1e-300)
