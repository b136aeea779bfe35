"""A certificate: the tokens themselves, found by search, and shown to give the same output.

Decoders without a bottleneck send different prompts to different outputs almost surely (SipIt, arXiv 2510.15511), so
this succeeds nearly everywhere and says nothing of depth.
"""

from __future__ import annotations

import torch

from indexer.profiles.layers import Layers
from indexer.profiles.neighbours import nearest_tokens
from indexer.profiles.readable import Readout
from indexer.profiles.recovery import recover, words_of

SAME = 1e-3
STEPS = 50
AT_ONCE = 64
MOST_TRIED = 4096
SWEEPS = 3


def exact(
    layers: Layers, layer: int, target: torch.Tensor, unit: float, readout: Readout
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids (sequences, positions) and whether each sequence is certified (sequences,).

    From the linear guess and a few steps; then causal models are searched token by token, others repaired.
    """
    guess = recover(layers, layer, target, unit, readout.guess(layer, target), STEPS)
    ids = words_of(layers, guess)[..., 0]
    certified = _distances(layers, layer, layers.embed(ids), target) < SAME
    search = _in_order if layers.is_causal(target.shape[1]) else _repaired
    for number in range(len(ids)):
        if not certified[number]:
            ids[number] = search(layers, layer, target[number : number + 1], guess[number], ids[number])
    return ids, _distances(layers, layer, layers.embed(ids), target) < SAME


def _distances(layers: Layers, layer: int, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """‖h_l − target‖ / ‖target‖ by sequence."""
    with torch.no_grad():
        found = layers.state(inputs, layer)
    return (found - target).flatten(1).norm(dim=1) / target.flatten(1).norm(dim=1).clamp_min(1e-30)


def _in_order(layers: Layers, layer: int, target: torch.Tensor, guess: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Token by token: an output hangs only on the tokens up to its own, so each can be settled for good."""
    found = ids[:0]
    for place in range(len(ids)):
        order = nearest_tokens(layers, guess[place], min(MOST_TRIED, len(layers.ordinary_ids)))
        best, least = order[0], torch.inf
        for some in order.split(AT_ONCE):
            tried = torch.cat([found.expand(len(some), -1), some[:, None]], dim=1)
            with torch.no_grad():
                reached = layers.state(layers.embed(tried), layer)[:, -1]
            wanted = target[0, place]
            distances = (reached - wanted).norm(dim=1) / wanted.norm().clamp_min(1e-30)
            nearest = int(distances.argmin())
            if float(distances[nearest]) < least:
                best, least = some[nearest], float(distances[nearest])
            if least < SAME:
                break
        found = torch.cat([found, best[None]])
    return found


def _repaired(layers: Layers, layer: int, target: torch.Tensor, guess: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Position by position the best of the nearest candidates, the others as they are, a few times over."""
    found = ids.clone()
    for _ in range(SWEEPS):
        before = found.clone()
        for place in range(len(ids)):
            candidates = torch.cat([found[place][None], nearest_tokens(layers, guess[place], AT_ONCE)])
            tried = found.repeat(len(candidates), 1)
            tried[:, place] = candidates
            distances = _distances(layers, layer, layers.embed(tried), target)
            found[place] = candidates[int(distances.argmin())]
        if float(_distances(layers, layer, layers.embed(found[None]), target)) < SAME or torch.equal(before, found):
            break
    return found
