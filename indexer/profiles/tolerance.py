"""How much noise a layer's output bears before a token of the input is lost.

The best decoder that knows all other tokens takes the candidate whose output lies nearest. Noise σ·n makes it prefer
v to the truth as soon as σ > ‖D_v‖² / (2 n·D_v), where D_v is how far the output moves with v in the token's place.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from indexer.profiles.draws import generator
from indexer.profiles.layers import Layers, States, images_of, patches_of
from indexer.profiles.neighbours import nearest_tokens
from indexer.profiles.spread import Spread

CANDIDATES = 32
PLACES = 3  # tokens of each sequence
DRAWS = 64
RESAMPLES = 200
# Candidates whose outputs differ by less than this share of the noise's unit cannot be told apart.
SAME = 1e-6


@dataclass(frozen=True)
class Tolerance:
    """Noise in units of s_l at which half of the tokens are lost, with its error by bootstrap over tokens.

    ``own`` is the same under noise of the layer's own covariance: white noise spreads over directions that the layer
    never uses, and so does not see rank.
    """

    value: float
    error: float
    own: float
    own_error: float


NONE_AT_ALL = Tolerance(0.0, 0.0, 0.0, 0.0)


def tolerances(
    layers: Layers,
    inputs: torch.Tensor,
    states: States,
    spreads: dict[int, Spread],
    chosen: Collection[int],
    seed: int = 0,
) -> dict[int, Tolerance]:
    """By layer; one forward pass over the candidates gives all of them.

    ``inputs`` (sequences, positions, width) or images; ``states`` are h_l of them. A constant layer has tolerance 0.
    """
    living = [layer for layer in chosen if not spreads[layer].is_constant]
    factors = {layer: _factor(spreads[layer]) for layer in living}
    asked = _candidates(layers, inputs, _places(layers, inputs, seed))
    most = max((len(candidates) for _, _, candidates in asked), default=0)
    # Allocated once: thousands of small tensors kept between large ones that go cost 500 MB of holes in the heap.
    grams = {layer: torch.zeros(len(asked), 2, most, most, dtype=torch.float64) for layer in living}
    for which, (number, place, candidates) in enumerate(asked):
        changed = _changed(layers, inputs[number], place, candidates)
        with torch.no_grad():
            found = layers.states(changed, living)
        for layer in living:
            moved = (found[layer] - states[layer][number]).double()
            grams[layer][which] = _grams(moved, factors[layer])
    return {layer: _tolerance(grams[layer], spreads[layer], seed) if layer in grams else NONE_AT_ALL
            for layer in chosen}  # fmt: skip


def noise_bearable(gram: torch.Tensor, draws: torch.Tensor, smallest: float) -> torch.Tensor:
    """The least over candidates of ‖D_v‖² / (2 n·D_v) for each draw, from the Gram matrices of D and of noise.

    ``gram`` (2, candidates, candidates): D·Dᵀ, then the covariance of n·D. ``draws`` (draws, candidates) standard
    normal. Infinite where no candidate can win, 0 where one is the same as the truth.
    """
    squares = gram[0].diagonal()
    if bool((squares <= smallest).any()):
        return draws.new_zeros(len(draws))
    values, vectors = torch.linalg.eigh(gram[1])
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    along = draws @ root
    return torch.where(along > 0, squares / (2 * along), torch.inf).min(dim=1).values


def _grams(moved: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """D·Dᵀ, then the same under the layer's own covariance: (2, candidates, candidates)."""
    flat = moved.flatten(1)
    own = (moved @ factor.T).flatten(1)
    return torch.stack([flat @ flat.T, own @ own.T])


def _factor(spread: Spread) -> torch.Tensor:
    """A factor F (rank, width) of the covariance C = Fᵀ·F, directions without any left out."""
    values, vectors = torch.linalg.eigh(spread.covariance.double())
    kept = values > values[-1] * 1e-10
    return (vectors[:, kept] * values[kept].sqrt()).T.contiguous()


def _tolerance(grams: torch.Tensor, spread: Spread, seed: int) -> Tolerance:
    """From the Gram matrices of all places (places, 2, candidates, candidates)."""
    draws = torch.randn(DRAWS, CANDIDATES, generator=generator(seed, "tolerance"), dtype=torch.float64)
    white, own = [], []
    for plain, weighted in grams:
        drawn = draws[:, : len(plain)]
        smallest = (SAME * spread.size) ** 2
        white.append(noise_bearable(torch.stack([plain, plain * spread.size**2]), drawn, smallest))
        own.append(noise_bearable(torch.stack([plain, weighted]), drawn, smallest))
    value, error = _median(torch.stack(white), seed)
    own_value, own_error = _median(torch.stack(own), seed)
    return Tolerance(value, error, own_value, own_error)


def _median(found: torch.Tensor, seed: int) -> tuple[float, float]:
    """The median of (tokens, draws), and its standard error by resampling tokens."""
    picked = torch.randint(len(found), (RESAMPLES, len(found)), generator=generator(seed, "bootstrap"))
    medians = torch.stack([found[one].median() for one in picked])
    finite = medians[medians.isfinite()]
    return float(found.median()), float(finite.std()) if len(finite) > 1 else 0.0


def _places(layers: Layers, inputs: torch.Tensor, seed: int) -> torch.Tensor:
    """PLACES positions of each sequence, (sequences, PLACES)."""
    positions = layers.by_position(inputs[:1]).shape[1]
    drawn = torch.rand(len(inputs), positions, generator=generator(seed, "places"))
    return drawn.topk(min(PLACES, positions), dim=1).indices


def _candidates(layers: Layers, inputs: torch.Tensor, places: torch.Tensor) -> list[tuple[int, int, torch.Tensor]]:
    """Which input, which place, and what is nearest to what stands there: (candidates, width), or so many patches."""
    asked = [(number, place) for number, chosen in enumerate(places.tolist()) for place in chosen]
    if layers.patch is not None:
        cut = patches_of(inputs, layers.patch)
        others = cut.flatten(0, 1).unique(dim=0)
        return [(number, place, _nearest_others(others, cut[number, place])) for number, place in asked]
    truths = torch.stack([inputs[number, place] for number, place in asked])
    # All at once: the vocabulary is gone through a single time. The truth itself comes first; another token may have
    # the same embedding, and then nothing can tell them apart.
    near = nearest_tokens(layers, truths, CANDIDATES + 1)[:, 1:]
    return [(*one, layers.tokens[ids]) for one, ids in zip(asked, near, strict=True)]


def _nearest_others(patches: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
    distances = (patches - here).norm(dim=1)
    distances[distances == 0] = torch.inf
    return patches[distances.topk(min(CANDIDATES, len(patches) - 1), largest=False).indices]


def _changed(layers: Layers, one: torch.Tensor, place: int, candidates: torch.Tensor) -> torch.Tensor:
    """One input with each of the candidates at one place: (candidates, …)."""
    if layers.patch is not None and layers.image_shape is not None:
        changed = patches_of(one[None], layers.patch).repeat(len(candidates), 1, 1)
        changed[:, place] = candidates
        return images_of(changed, layers.patch, layers.image_shape)
    changed = one.repeat(len(candidates), 1, 1)
    changed[:, place] = candidates
    return changed
