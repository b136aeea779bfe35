"""The receptive field of a layer: which input positions its outputs depend on, by gradients."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from indexer.profiles.layers import Layers, gradient_of
from indexer.profiles.statistics import Measures, normal, standard_error

COLUMN_DRAWS = 4
QUARTERS = 4


def receptive_fields(
    layers: Layers, inputs: torch.Tensor, chosen: Collection[int], seed: int = 0
) -> dict[int, Measures]:
    """What the outputs of each layer depend on, from one forward pass and a few backward passes per layer.

    ``reach``: the effective number of positions an output looks at (the exponential of an entropy); ``own``: the share
    of its own position; ``start_share``: that of the first quarter of the input. Errors are over sequences.

    M[t, s] = E‖∂(v·h_t)/∂e_s‖² with v normal, pooled over sequences before its rows are normalised to sum 1; t is the
    last position of each quarter, or every position of at most four. Layers that depend on no input are left out.
    """
    leaf = inputs.detach().clone().requires_grad_(True)
    states = layers.states(leaf, chosen)
    positions = layers.by_position(inputs[:1]).shape[1]
    asked = list(range(positions))
    if positions > QUARTERS:
        asked = [(quarter + 1) * positions // QUARTERS - 1 for quarter in range(QUARTERS)]
    first = max(1, positions // QUARTERS)
    found: dict[int, Measures] = {}
    for layer in sorted(chosen):
        # Without the tokens that a stem puts before the patches.
        hidden = states[layer][:, states[layer].shape[1] - positions :]
        rows = torch.stack([_sensitivity(layers, leaf, hidden, [place], seed, place) for place in asked], dim=1)
        drawn = [_sensitivity(layers, leaf, hidden, range(positions), seed, -1 - draw) for draw in range(COLUMN_DRAWS)]
        columns = torch.stack(drawn).mean(dim=0)
        if not float(columns.sum()) > 0:
            continue
        reach, own = _breadth(rows.sum(dim=0)[None], asked)
        reaches, owns = _breadth(rows, asked)
        starts = _normalised(columns)[:, :first].sum(dim=1)
        found[layer] = {
            "reach": (float(reach[0]), standard_error(reaches)),
            "own": (float(own[0]), standard_error(owns)),
            "start_share": (float(_normalised(columns.sum(dim=0))[:first].sum()), standard_error(starts)),
        }
    return found


def _sensitivity(
    layers: Layers, leaf: torch.Tensor, hidden: torch.Tensor, places: Sequence[int], seed: int, draw: int
) -> torch.Tensor:
    """‖∂ Σ_t v_t·h_t / ∂e_s‖² for each sequence and position s, with t over ``places``: (sequences, positions)."""
    picked = list(places)
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
