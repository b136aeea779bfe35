"""The sensitivity of a layer to its input: the noise that it tolerates, and the positions that it depends on.

Tolerance is the noise on a layer's output at which a token of the input is lost. The best decoder, given all other
tokens, chooses the candidate whose output is nearest. With noise σ·n it prefers v to the truth as soon as
σ > ‖D_v‖² / (2 n·D_v), where D_v is the change of the output when v replaces the token. The receptive field is measured
by gradients.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from indexer.profiles.layers import Layers, States, gradient_of, nearest_tokens, patchify, unpatchify
from indexer.profiles.statistics import Measures, Spread, normal, seeded_generator, standard_error
from indexer.shared_state import ignored_warnings

CANDIDATES = 32
POSITIONS = 3  # positions of each sequence
DRAWS = 64
_RESAMPLES = 200
# Candidates whose outputs differ by less than this share of s_l cannot be distinguished.
SAME = 1e-6
# For the receptive field.
COLUMN_DRAWS = 4
QUARTERS = 4
# For the Jacobian: directions of one forward pass, and the share of σ_1 below which a singular value is rounding.
_DIRECTIONS_AT_ONCE = 64
_SINGULAR = 1e-6


def tolerances(
    layers: Layers,
    inputs: torch.Tensor,
    states: States,
    spreads: dict[int, Spread],
    chosen: Collection[int],
    seed: int = 0,
) -> dict[int, Measures]:
    """The tolerance of each layer: the noise in units of s_l at which half of the tokens are lost.

    ``tolerance`` is for white noise, ``tolerance_own`` for noise of the layer's own covariance. White noise spreads
    over directions that the layer never uses, so it is not sensitive to rank. Errors are by bootstrap over tokens. A
    constant layer has tolerance 0.

    ``inputs``: (sequences, positions, width) or images; ``states``: their h_l. All layers share one forward pass over
    the candidates.
    """
    varying = [layer for layer in chosen if not spreads[layer].is_constant]
    # For each layer a factor F (rank, width) of the covariance C = Fᵀ·F, without directions of zero variance.
    factors = {}
    for layer in varying:
        values, vectors = torch.linalg.eigh(spreads[layer].covariance.double())
        is_kept = values > values[-1] * 1e-10
        factors[layer] = (vectors[:, is_kept] * values[is_kept].sqrt()).T.contiguous()
    probes = _candidates(layers, inputs, seed)
    most_candidates = max((len(candidates) for _, _, candidates in probes), default=0)
    # For each token D·Dᵀ, and the same under the layer's own covariance. They are allocated once: thousands of small
    # tensors between large temporary tensors would fragment 500 MB of the heap.
    grams = {
        layer: torch.zeros(len(probes), 2, most_candidates, most_candidates, dtype=torch.float64) for layer in varying
    }
    for token, (number, position, candidates) in enumerate(probes):
        # One input with each of the candidates at one position.
        original = inputs[number][None] if layers.patch is None else patchify(inputs[number][None], layers.patch)
        changed = original.repeat(len(candidates), 1, 1)
        changed[:, position] = candidates
        if layers.patch is not None and layers.image_shape is not None:
            changed = unpatchify(changed, layers.patch, layers.image_shape)
        with torch.no_grad():
            states_changed = layers.states(changed, varying)
        for layer in varying:
            difference = (states_changed[layer] - states[layer][number]).double()
            flat, projected = difference.flatten(1), (difference @ factors[layer].T).flatten(1)
            grams[layer][token] = torch.stack([flat @ flat.T, projected @ projected.T])
    constant: Measures = {"tolerance": (0.0, 0.0), "tolerance_own": (0.0, 0.0)}
    draws = torch.randn(DRAWS, CANDIDATES, generator=seeded_generator(seed, "tolerance"), dtype=torch.float64)
    measures = dict.fromkeys(chosen, constant)
    for layer, by_token in grams.items():
        size = spreads[layer].size
        white, own_noise = [], []
        for gram, own_gram in by_token:
            draws_of_token = draws[:, : len(gram)]
            white.append(_critical_noise(gram, gram * size**2, draws_of_token, (SAME * size) ** 2))
            own_noise.append(_critical_noise(gram, own_gram, draws_of_token, (SAME * size) ** 2))
        measures[layer] = {
            "tolerance": _median(torch.stack(white), seed),
            "tolerance_own": _median(torch.stack(own_noise), seed),
        }
    return measures


def _critical_noise(gram: torch.Tensor, covariance: torch.Tensor, draws: torch.Tensor, smallest: float) -> torch.Tensor:
    """The minimum over candidates of ‖D_v‖² / (2 n·D_v) for each draw.

    ``gram`` (candidates, candidates): D·Dᵀ; ``covariance``: of n·D; ``draws`` (draws, candidates): standard normal.
    It is infinite if no candidate can win, 0 if one of them cannot be distinguished from the truth.
    """
    squares = gram.diagonal()
    if bool((squares <= smallest).any()):
        return draws.new_zeros(len(draws))
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    along = draws @ root
    return torch.where(along > 0, squares / (2 * along), torch.inf).min(dim=1).values


def _median(values: torch.Tensor, seed: int) -> tuple[float, float]:
    """The median of (tokens, draws), and its standard error by resampling tokens."""
    picked = torch.randint(len(values), (_RESAMPLES, len(values)), generator=seeded_generator(seed, "bootstrap"))
    medians = torch.stack([values[tokens].median() for tokens in picked])
    finite = medians[medians.isfinite()]
    return float(values.median()), float(finite.std()) if len(finite) > 1 else 0.0


def _candidates(layers: Layers, inputs: torch.Tensor, seed: int) -> list[tuple[int, int, torch.Tensor]]:
    """(input, position, candidates) for POSITIONS positions of each input.

    Candidates are the embeddings (candidates, width), or the patches of all inputs, nearest to the true one.
    """
    positions = layers.by_position(inputs[:1]).shape[1]
    draws = torch.rand(len(inputs), positions, generator=seeded_generator(seed, "places"))
    chosen_positions = draws.topk(min(POSITIONS, positions), dim=1).indices
    pairs = [(number, position) for number, chosen in enumerate(chosen_positions.tolist()) for position in chosen]
    if layers.patch is None:
        truths = torch.stack([inputs[number, position] for number, position in pairs])
        # In one call, so that the vocabulary is searched once. The nearest token is the truth itself, or a token with
        # the same embedding.
        near = nearest_tokens(layers, truths, CANDIDATES + 1)[:, 1:]
        return [(*pair, layers.tokens[ids]) for pair, ids in zip(pairs, near, strict=True)]
    patches = patchify(inputs, layers.patch)
    other_patches = patches.flatten(0, 1).unique(dim=0)
    candidates = []
    for number, position in pairs:
        distances = (other_patches - patches[number, position]).norm(dim=1)
        distances[distances == 0] = torch.inf
        nearest = distances.topk(min(CANDIDATES, len(other_patches) - 1), largest=False).indices
        candidates.append((number, position, other_patches[nearest]))
    return candidates


# ---- receptive field


def receptive_fields(
    layers: Layers, inputs: torch.Tensor, chosen: Collection[int], seed: int = 0
) -> dict[int, Measures]:
    """The positions on which the outputs of each layer depend, from one forward and a few backward passes per layer.

    ``reach``: the effective number of positions on which an output depends (the exponential of an entropy); ``own``:
    the share of its own position; ``start_share``: the share of the first quarter of the input. Errors are over
    sequences.

    M[t, s] = E‖∂(v·h_t)/∂e_s‖² with v normal, pooled over sequences before its rows are normalised to sum 1; t is the
    last position of each quarter, or every position of at most four. Layers that depend on no input are left out.
    """
    leaf = inputs.detach().clone().requires_grad_(True)
    states = layers.states(leaf, chosen)
    positions = layers.by_position(inputs[:1]).shape[1]
    output_positions = list(range(positions))
    if positions > QUARTERS:
        output_positions = [(quarter + 1) * positions // QUARTERS - 1 for quarter in range(QUARTERS)]
    first = max(1, positions // QUARTERS)
    fields: dict[int, Measures] = {}
    for layer in sorted(chosen):
        # Without the tokens that a stem adds before the patches.
        hidden = states[layer][:, states[layer].shape[1] - positions :]
        rows = torch.stack(
            [_sensitivity(layers, leaf, hidden, [position], seed, position) for position in output_positions], dim=1
        )
        columns = _column_sums(layers, leaf, hidden, seed)
        if not float(columns.sum()) > 0:
            continue
        reach, own = _breadth(rows.sum(dim=0)[None], output_positions)
        reaches, owns = _breadth(rows, output_positions)
        starts = _normalised(columns)[:, :first].sum(dim=1)
        fields[layer] = {
            "reach": (float(reach[0]), standard_error(reaches)),
            "own": (float(own[0]), standard_error(owns)),
            "start_share": (float(_normalised(columns.sum(dim=0))[:first].sum()), standard_error(starts)),
        }
    return fields


def _column_sums(layers: Layers, leaf: torch.Tensor, hidden: torch.Tensor, seed: int) -> torch.Tensor:
    """Σ_t M[t, s] for each sequence and position s, from independent v_t: (sequences, positions)."""
    positions = range(hidden.shape[1])
    draws = [_sensitivity(layers, leaf, hidden, positions, seed, -1 - draw) for draw in range(COLUMN_DRAWS)]
    return torch.stack(draws).mean(dim=0)


def singular_values(
    layers: Layers, inputs: torch.Tensor, chosen: Collection[int], position: int | None = None
) -> dict[int, torch.Tensor]:
    """For each layer the singular values, descending, of the Jacobian of h_l with respect to one position of an input.

    ``inputs``: (1, positions, width), or one image; ``position``: the position or patch, by default the middle one. The
    other positions are fixed. Columns are exact directional derivatives, from one pass over the directions for all
    layers.
    """
    from torch.autograd import forward_ad

    positions = layers.by_position(inputs).shape[1]
    position = positions // 2 if position is None else position
    rows = inputs if layers.patch is None else patchify(inputs, layers.patch)
    width = rows.shape[2]
    columns: dict[int, list[torch.Tensor]] = {layer: [] for layer in chosen}
    for directions in torch.eye(width, dtype=inputs.dtype, device=inputs.device).split(_DIRECTIONS_AT_ONCE):
        tangent = torch.zeros(len(directions), positions, width, dtype=inputs.dtype, device=inputs.device)
        tangent[:, position] = directions
        if layers.patch is not None and layers.image_shape is not None:
            tangent = unpatchify(tangent, layers.patch, layers.image_shape)
        # torch scripts some of its own derivatives
        with torch.no_grad(), forward_ad.dual_level(), ignored_warnings(category=DeprecationWarning):
            dual = forward_ad.make_dual(inputs.detach().repeat(len(directions), *[1] * (inputs.ndim - 1)), tangent)
            for layer, hidden in layers.states(dual, chosen).items():
                derivative = forward_ad.unpack_dual(hidden).tangent
                columns[layer].append(torch.zeros_like(hidden) if derivative is None else derivative)
    return {
        layer: torch.linalg.svdvals(torch.cat(pieces).flatten(1).double().cpu()) for layer, pieces in columns.items()
    }


def conditioning(values: torch.Tensor) -> tuple[float | None, float]:
    """σ_1/σ_n of singular values σ, None if σ_n is 0 in float32; and their effective number.

    The effective number is (Σ σ²)²/Σ σ⁴, the participation ratio: n if all are equal, k if k are equal and the others
    0.
    """
    squares = values.square()
    first, last = float(values[0]), float(values[-1])
    condition = first / last if last > _SINGULAR * first else None
    return condition, float(squares.sum().square() / squares.square().sum().clamp_min(1e-300))


def _sensitivity(
    layers: Layers, leaf: torch.Tensor, hidden: torch.Tensor, positions: Sequence[int], seed: int, draw: int
) -> torch.Tensor:
    """‖∂ Σ_t v_t·h_t / ∂e_s‖² for each sequence and position s, with t over ``positions``: (sequences, positions)."""
    picked = list(positions)
    vectors = normal((len(hidden), len(picked), hidden.shape[-1]), seed, f"reach|{draw}", hidden.device)
    gradient = gradient_of((hidden[:, picked] * vectors).sum(), leaf, keep_graph=True)
    return layers.by_position(gradient.square()).double().cpu()


def _breadth(rows: torch.Tensor, output_positions: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """From M (n, asked, positions): exp of the rows' entropy, and the share of the own position, averaged over rows."""
    shares = _normalised(rows)
    entropy = -(shares * shares.clamp_min(1e-300).log()).sum(dim=-1)
    own_shares = shares[:, range(len(output_positions)), list(output_positions)]
    return entropy.exp().mean(dim=1), own_shares.mean(dim=1)


def _normalised(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.sum(dim=-1, keepdim=True).clamp_min(1e-300)
