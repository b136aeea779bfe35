"""How broadly a layer looks: which input positions its outputs hang on, by gradients."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from indexer.profiles.draws import normal, standard_error
from indexer.profiles.layers import Layers, States, gradient_of

COLUMN_DRAWS = 4
QUARTERS = 4


@dataclass(frozen=True)
class Reach:
    """What an output hangs on.

    ``value``: how many positions it looks at (the exponential of an entropy); ``own``: the share of its own position;
    ``columns`` (positions,): the share of every input position; ``start``: that of the first quarter.
    """

    value: float
    error: float | None
    own: float
    own_error: float | None
    start: float
    start_error: float | None
    columns: tuple[float, ...]


def reaches(layers: Layers, inputs: torch.Tensor, chosen: Collection[int], seed: int = 0) -> dict[int, Reach]:
    """By layer, from one forward pass and a few backward ones for each layer.

    M[t, s] = E‖∂(v·h_t)/∂e_s‖² with v normal, pooled over sequences before its rows are brought to sum 1; t is the last
    position of each quarter, or every one of up to four. A layer that hangs on no input has none.
    """
    leaf = inputs.detach().clone().requires_grad_(True)
    states = layers.states(leaf, chosen)
    positions = layers.by_position(inputs[:1]).shape[1]
    found = {layer: _reach(layers, leaf, states, layer, positions, seed) for layer in sorted(chosen)}
    return {layer: one for layer, one in found.items() if one is not None}


def _reach(layers: Layers, leaf: torch.Tensor, states: States, layer: int, positions: int, seed: int) -> Reach | None:
    hidden = states[layer]
    offset = hidden.shape[1] - positions  # tokens that a stem puts before the patches
    asked = list(range(positions)) if positions <= QUARTERS else quarter_ends(positions)
    rows = torch.stack([_looked_at(layers, leaf, hidden, offset, [place], seed, place) for place in asked], dim=1)
    columns = torch.stack(
        [_looked_at(layers, leaf, hidden, offset, range(positions), seed, -1 - draw) for draw in range(COLUMN_DRAWS)]
    ).mean(dim=0)
    if not float(columns.sum()) > 0:
        return None
    value, own = _breadth(rows.sum(dim=0)[None], asked)
    values, owns = _breadth(rows, asked)
    first = max(1, positions // QUARTERS)
    shares = _normalised(columns.sum(dim=0))
    starts = _normalised(columns)[:, :first].sum(dim=1)
    return Reach(
        value=float(value[0]),
        error=standard_error(values),
        own=float(own[0]),
        own_error=standard_error(owns),
        start=float(shares[:first].sum()),
        start_error=standard_error(starts),
        columns=tuple(shares.tolist()),
    )


def quarter_ends(positions: int) -> list[int]:
    """The last position of each quarter, from 0."""
    return [(quarter + 1) * positions // QUARTERS - 1 for quarter in range(QUARTERS)]


def _looked_at(
    layers: Layers, leaf: torch.Tensor, hidden: torch.Tensor, offset: int, places: Sequence[int], seed: int, draw: int
) -> torch.Tensor:
    """‖∂ Σ_t v_t·h_t / ∂e_s‖² for every sequence and position s, t over ``places``: (sequences, positions)."""
    picked = [place + offset for place in places]
    vectors = normal((len(hidden), len(picked), hidden.shape[-1]), seed, f"reach|{draw}", hidden.device)
    gradient = gradient_of((hidden[:, picked] * vectors).sum(), leaf, again=True)
    return layers.by_position(gradient.square()).double().cpu()


def _breadth(rows: torch.Tensor, asked: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of M (n, asked, positions): exp of the rows' entropy and the share of the own position, averaged over rows."""
    shares = _normalised(rows)
    entropy = -(shares * shares.clamp_min(1e-300).log()).sum(dim=-1)
    own = shares[:, range(len(asked)), list(asked)]
    return entropy.exp().mean(dim=1), own.mean(dim=1)


def _normalised(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.sum(dim=-1, keepdim=True).clamp_min(1e-300)
