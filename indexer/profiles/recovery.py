"""Recovery of the input from a layer's output: a linear readout, gradient descent, and exact search.

A decoder uses only h_l. The callers compare its answer with the true input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import torch

from indexer.errors import Failed
from indexer.profiles.layers import Layers, gradient_of, nearest_tokens, patchify
from indexer.profiles.probes import random_ids
from indexer.profiles.statistics import normal, standard_error

# The linear readout.
FEWEST_FIT_TOKENS = 2560
TOKENS_PER_WIDTH = 4
RIDGE = 1e-3  # of the mean of the diagonal
# A share of the uncentred second moment, added to the ridge. A constant layer is zero after centring, except for
# float64's rounding errors (1e-16 of that moment times the number of sums), to which no map must be fitted.
_RIDGE_FLOOR = 1e-12
FIT_TOKENS_AT_ONCE = 512  # of one forward pass

# Descent on the input. RATE, _START_NOISE and SHIFT are in units of the embeddings' standard deviation.
STEPS = 30
RATE = 0.1
_START_NOISE = 0.1
SHIFT = 0.35
_IMAGE_STEPS = 150
_IMAGE_RATE = 0.1
_FINAL_SHARE = 0.1  # of the first rate, in the last step
HIGH = 0.25  # cycles a pixel
# The original papers' descent: steps, rate, mean of the start, weight of the loss.
_ORIGINAL_TEXT = (500, 1.0, 0.5, 0.1)
_ORIGINAL_IMAGES = (1000, 1e-3, 0.7, 1.0)
_ORIGINAL_START_NOISE = 0.05

# Exact search.
_SAME_OUTPUT = 1e-3  # relative distance
_SEARCH_STEPS = 50
_CANDIDATES_AT_ONCE = 64
MOST_CANDIDATES = 4096
_SWEEPS = 3


def fit_readout(layers: Layers, chosen: Collection[int], tokens: int, seed: int = 0) -> dict[int, torch.Tensor]:
    """Linear maps from h_l to embeddings: by layer (width + 1, embedding width), the last row the bias.

    Ridge regressions on random sequences of ``tokens`` tokens, with one forward pass for all layers. The tokens are
    random, because a map that was fitted on text would learn which words are likely.

    Raises Failed("not_finite") if outputs overflow.
    """
    width = layers.tokens.shape[1]
    token_count = max(FEWEST_FIT_TOKENS, TOKENS_PER_WIDTH * width)
    ids = random_ids(layers, -(-token_count // tokens), tokens, seed, "readable")
    # For each layer the sums over tokens of hᵀh, hᵀe, h and e.
    sums: dict[int, tuple[torch.Tensor, ...]] = {}
    for batch in ids.split(max(1, FIT_TOKENS_AT_ONCE // tokens)):
        inputs = layers.embed(batch)
        with torch.no_grad():
            states = layers.states(inputs, chosen)
        targets = inputs.reshape(-1, width).double()
        for layer in chosen:
            rows = states[layer].reshape(-1, states[layer].shape[-1]).double()
            if layer not in sums:
                sizes = ((rows.shape[1], rows.shape[1]), (rows.shape[1], width), (rows.shape[1],), (width,))
                sums[layer] = tuple(torch.zeros(size, dtype=torch.float64, device=rows.device) for size in sizes)
            addends = (rows.T @ rows, rows.T @ targets, rows.sum(dim=0), targets.sum(dim=0))
            for total, addend in zip(sums[layer], addends, strict=True):
                total += addend
    # The sums of a layer are freed once its map is computed: those of twelve layers of width 768 take 100 MB.
    maps = {layer: _ridge_regression(sums.pop(layer), ids.numel()) for layer in list(sums)}
    for layer, solved in maps.items():
        if not torch.isfinite(solved).all():
            raise Failed("not_finite", f"the outputs of layer {layer} for random tokens hold NaN or infinite values")
    return maps


def _ridge_regression(sums: tuple[torch.Tensor, ...], count: int) -> torch.Tensor:
    """The map from the sums over ``count`` tokens."""
    products, crossed, rows, targets = sums
    mean, target = rows / count, targets / count
    centred = products - count * torch.outer(mean, mean)
    ridge = RIDGE * centred.diagonal().mean() + _RIDGE_FLOOR * products.diagonal().mean()
    centred.diagonal().add_(ridge.clamp_min(1e-30))
    slope = torch.linalg.solve(centred, crossed - count * torch.outer(mean, target))
    return torch.cat([slope, (target - mean @ slope)[None]]).float()


def read_off(linear_map: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Embeddings (…, embedding width): a map of ``fit_readout`` applied to h_l (…, width)."""
    return hidden.to(linear_map.dtype) @ linear_map[:-1] + linear_map[-1]


def embedding_sd(layers: Layers) -> float:
    """The standard deviation of the vocabulary's numbers about the mean embedding."""
    rows = layers.tokens
    return float((rows - rows.mean(dim=0)).square().mean().sqrt())


def blank_start(layers: Layers, shape: torch.Size, seed: int) -> torch.Tensor:
    """A start that is independent of the input: the mean embedding plus a little noise."""
    noise = normal((shape[0], shape[1], layers.tokens.shape[1]), seed, "start", layers.device)
    return layers.tokens.mean(dim=0) + _START_NOISE * embedding_sd(layers) * noise


def recover(
    layers: Layers, layer: int, target: torch.Tensor, unit: float, start: torch.Tensor, steps: int = STEPS,
    keep: slice = slice(None),
) -> torch.Tensor:  # fmt: skip
    """Embeddings (sequences, positions, width) whose h_l is close to ``target``, by Adam on the L1 distance.

    ``unit``: s_l; ``keep``: the positions of the output that are compared.
    """
    rate = RATE * embedding_sd(layers)
    return _adam(lambda guess: (layers.state(guess, layer) - target)[:, keep] / unit, start, rate, steps)


def recover_images(layers: Layers, layer: int, target: torch.Tensor, unit: float, seed: int) -> torch.Tensor:
    """Pixels whose h_l is close to ``target``, by Adam on the L1 distance, from grey.

    Pixels are clamped to 0 and 1 after the last step only.
    """
    assert layers.image_shape is not None
    start = 0.5 + 0.03 * normal((len(target), *layers.image_shape), seed, "start", target.device)
    guess = _adam(lambda guess: (layers.state(guess, layer) - target) / unit, start, _IMAGE_RATE, _IMAGE_STEPS)
    return guess.clamp(0, 1)


def _adam(
    residual: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor, rate: float, steps: int
) -> torch.Tensor:
    """Minimise the mean absolute residual of each input, with a cosine schedule."""
    guess = start.detach().clone().requires_grad_(True)
    optimizer = torch.optim.Adam([guess], lr=rate)
    for step in range(steps):
        schedule = _FINAL_SHARE + (1 - _FINAL_SHARE) * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.param_groups[0]["lr"] = rate * schedule
        guess.grad = gradient_of(residual(guess).abs().mean(dim=(1, 2)).sum(), guess)
        optimizer.step()
    return guess.detach()


def recover_as_original(
    layers: Layers, layer: int, target: torch.Tensor, seed: int,
    steps: int | None = None, rate: float | None = None, keep: slice = slice(None),
) -> torch.Tensor:  # fmt: skip
    """Embeddings or pixels by the original papers' method; if it diverges, the last finite guess is returned.

    It starts from normal numbers and takes plain gradient steps on weight · ‖h − h*‖₁; the rate falls linearly to a
    tenth. ``steps`` and ``rate`` replace those of _ORIGINAL_TEXT or _ORIGINAL_IMAGES.
    """
    default_steps, default_rate, start_mean, weight = _ORIGINAL_IMAGES if layers.takes_images else _ORIGINAL_TEXT
    steps, rate = steps or default_steps, rate or default_rate
    shape = layers.image_shape or (target.shape[1], layers.tokens.shape[1])
    guess = start_mean + _ORIGINAL_START_NOISE * normal((len(target), *shape), seed, "start", target.device)
    for step in range(steps):
        leaf = guess.requires_grad_(True)
        loss = weight * (layers.state(leaf, layer) - target)[:, keep].abs().sum()
        schedule = 1 - (1 - _FINAL_SHARE) * step / steps
        guess = leaf.detach() - schedule * rate * gradient_of(loss, leaf)
        if not torch.isfinite(guess).all():
            return leaf.detach()
    return guess


def decode_as_original(layers: Layers, embeddings: torch.Tensor, count: int = 1) -> torch.Tensor:
    """The original papers' decoding: the largest entries of e·W⁺, W the vocabulary (tokens, width)."""
    rows = layers.tokens.double()
    ordinary = layers.ordinary_ids.to(rows.device)
    weights = torch.linalg.lstsq(rows.T @ rows, embeddings.reshape(-1, rows.shape[1]).double().T).solution
    scores = rows[ordinary] @ weights
    nearest = ordinary[scores.topk(min(count, len(ordinary)), dim=0).indices.T]
    return nearest.reshape(*embeddings.shape[:-1], -1)


def criterion(
    layers: Layers, layer: int, inputs: torch.Tensor, guess: torch.Tensor, seed: int, shift: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The original papers' criterion (4) by sequence: ‖O(e_g) − O(e)‖₁ and ‖O(e′) − O(e)‖₁ with e′ = e + N(0, σ).

    It is met if the first is smaller than the second. ``shift``: σ, by default SHIFT times the embeddings' standard
    deviation (about 1/20 for GPT-2).
    """
    sigma = SHIFT * embedding_sd(layers) if shift is None else shift
    shifted = inputs + sigma * normal(tuple(inputs.shape), seed, "shift", inputs.device)
    with torch.no_grad():
        truth, guess_state, shifted_state = (layers.state(values, layer) for values in (inputs, guess, shifted))
    distances = [(state - truth).abs().sum(dim=(1, 2)).cpu() for state in (guess_state, shifted_state)]
    return distances[0], distances[1]


def times_closer(guess_distances: torch.Tensor, shifted_distances: torch.Tensor) -> torch.Tensor:
    """How many times nearer the guess's output is than the shifted input's, from the distances of ``criterion``."""
    return (shifted_distances / guess_distances.clamp_min(1e-30)).double()


def image_error(
    layers: Layers, guess: torch.Tensor, truth: torch.Tensor
) -> tuple[float, float | None, tuple[float, ...]]:
    """‖a_g − a‖ / ‖a − mean‖ over images (images, channels, height, width), its standard error, and shares.

    The shares are those of the rows of patches in the squared error.
    """
    assert layers.patch is not None
    squared_error = (guess - truth).double().square()
    squared_deviation = (truth - truth.mean(dim=(2, 3), keepdim=True)).double().square()
    errors = (squared_error.flatten(1).sum(dim=1) / squared_deviation.flatten(1).sum(dim=1).clamp_min(1e-30)).sqrt()
    across = squared_error.shape[3] // layers.patch
    rows = patchify(squared_error, layers.patch).sum(dim=(0, 2)).reshape(-1, across).sum(dim=1)
    shares = tuple((rows / rows.sum().clamp_min(1e-300)).tolist())
    return float(errors.mean()), standard_error(errors), shares


def high_frequency(pixels: torch.Tensor) -> float:
    """The share of high frequencies in the energy of images (images, channels, height, width) minus their means.

    These are frequencies above a quarter cycle a pixel, half of the highest. For white noise it is the share of such
    frequencies, about 1 − π/16 = .80.
    """
    power = torch.fft.fft2(pixels.double()).abs().square()
    power[..., 0, 0] = 0
    height, width = pixels.shape[2:]
    down, across = (torch.fft.fftfreq(side, device=pixels.device) for side in (height, width))
    is_high = torch.hypot(down[:, None], across[None, :]) > HIGH
    return float(power[..., is_high].sum() / power.sum().clamp_min(1e-300))


def exact_search(
    layers: Layers, layer: int, target: torch.Tensor, unit: float, linear_map: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find tokens that give the same output: ids (sequences, positions), and whether each sequence is certified.

    It starts from the linear readout (``linear_map``) and a few steps of descent. Then causal models are searched token
    by token, others repaired position by position. Decoders without a bottleneck map different prompts to different
    outputs almost surely (SipIt, arXiv 2510.15511), so the search nearly always succeeds and does not measure depth.
    """
    guess = recover(layers, layer, target, unit, read_off(linear_map, target), _SEARCH_STEPS)
    ids = nearest_tokens(layers, guess)[..., 0]
    certified = _distances(layers, layer, layers.embed(ids), target) < _SAME_OUTPUT
    search = _search_in_order if layers.is_causal(target.shape[1]) else _repair
    for number in range(len(ids)):
        if not certified[number]:
            ids[number] = search(layers, layer, target[number : number + 1], guess[number], ids[number])
    return ids, _distances(layers, layer, layers.embed(ids), target) < _SAME_OUTPUT


def _distances(layers: Layers, layer: int, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """‖h_l − target‖ / ‖target‖ by sequence."""
    with torch.no_grad():
        hidden = layers.state(inputs, layer)
    return (hidden - target).flatten(1).norm(dim=1) / target.flatten(1).norm(dim=1).clamp_min(1e-30)


def _search_in_order(
    layers: Layers, layer: int, target: torch.Tensor, guess: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Token by token: an output depends only on the tokens up to its own, so each token is decided once."""
    decided = ids[:0]
    for position in range(len(ids)):
        order = nearest_tokens(layers, guess[position], min(MOST_CANDIDATES, len(layers.ordinary_ids)))
        best, least = order[0], torch.inf
        for candidates in order.split(_CANDIDATES_AT_ONCE):
            sequences = torch.cat([decided.expand(len(candidates), -1), candidates[:, None]], dim=1)
            with torch.no_grad():
                outputs = layers.state(layers.embed(sequences), layer)[:, -1]
            expected = target[0, position]
            distances = (outputs - expected).norm(dim=1) / expected.norm().clamp_min(1e-30)
            nearest = int(distances.argmin())
            if float(distances[nearest]) < least:
                best, least = candidates[nearest], float(distances[nearest])
            if least < _SAME_OUTPUT:
                break
        decided = torch.cat([decided, best[None]])
    return decided


def _repair(layers: Layers, layer: int, target: torch.Tensor, guess: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The best of the nearest candidates at each position with the others fixed, in a few sweeps."""
    best = ids.clone()
    for _ in range(_SWEEPS):
        before = best.clone()
        for position in range(len(ids)):
            candidates = torch.cat([best[position][None], nearest_tokens(layers, guess[position], _CANDIDATES_AT_ONCE)])
            sequences = best.repeat(len(candidates), 1)
            sequences[:, position] = candidates
            distances = _distances(layers, layer, layers.embed(sequences), target)
            best[position] = candidates[int(distances.argmin())]
        is_same = float(_distances(layers, layer, layers.embed(best[None]), target)) < _SAME_OUTPUT
        if is_same or torch.equal(before, best):
            break
    return best
