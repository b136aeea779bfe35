"""Whose weights are these: planted rearrangements of a base, and models that have only its shape and its habits."""

from __future__ import annotations

import numpy as np
import pytest

from indexer.deltas.weight_match import LEAST_EFFECT, Arrays, LayerRows, match_weights

LAYERS, WIDTH, HIDDEN, HEADS, ROWS = 5, 96, 256, 4, 16
SHAPES = {"query": (WIDTH, WIDTH), "output": (WIDTH, WIDTH), "up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}
WRITES = ("output", "down")  # into the residual stream


def network(seed):
    """Matrices whose columns and layers have their scales and means in common with those of every other network."""
    rng, habits = np.random.default_rng(seed), np.random.default_rng(99)
    scale, shift = np.exp(0.7 * habits.standard_normal(WIDTH)), 0.3 * habits.standard_normal(WIDTH)
    matrices = {}
    for layer in range(LAYERS):
        for family, (height, width) in SHAPES.items():
            rows = np.exp(0.3 * habits.standard_normal((height, 1)))
            values = rng.standard_normal((height, width))
            matrices[layer, family] = (rows * (values if width != WIDTH else scale * values + shift)).astype(np.float32)
    return Arrays(matrices)


def changed(matrices, kind, strength=0.0, seed=7):
    rng = np.random.default_rng(seed)
    weights = Arrays({key: matrix.copy() for key, matrix in matrices.items()})
    if kind in ("residual", "all", "rotated"):
        turn = np.eye(WIDTH)[rng.permutation(WIDTH)]
        if kind == "rotated":
            turn = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]
        weights = {key: turn @ matrix if key[1] in WRITES else matrix @ turn.T for key, matrix in weights.items()}
    for layer in range(LAYERS) if kind in ("neurons", "all") else ():
        order = rng.permutation(HIDDEN)
        weights[layer, "up"] = weights[layer, "up"][order]
        weights[layer, "down"] = weights[layer, "down"][:, order]
    for layer in range(LAYERS) if kind == "scales" else ():
        scale = np.exp(rng.standard_normal(WIDTH))
        weights[layer, "query"] = weights[layer, "query"] * scale
        weights[layer, "up"] = weights[layer, "up"] * scale
    for key, matrix in weights.items():
        spread = matrix.std()
        if kind == "noise":
            matrix = matrix + strength * spread * rng.standard_normal(matrix.shape)
        elif kind == "pruned":
            matrix = np.where(np.abs(matrix) > np.quantile(np.abs(matrix), strength), matrix, 0)
        elif kind == "rounded":
            largest = np.abs(matrix).max(axis=1, keepdims=True)
            matrix = np.round(matrix / largest * 7) / 7 * largest
        weights[key] = (matrix + 0.003 * spread * rng.standard_normal(matrix.shape)).astype(np.float32)
    return weights


def sample(matrices):
    rng = np.random.default_rng(3)
    return [
        LayerRows(layer, family, matrix[places], places, family not in WRITES)
        for (layer, family), matrix in matrices.items()
        for places in [np.sort(rng.choice(len(matrix), ROWS, replace=False))]
    ]


BASE = network(0)


@pytest.mark.parametrize(
    ("kind", "strength", "statistic"),
    [
        ("trained", 0, "rows"), ("noise", 1, "rows"), ("noise", 2, "rows"), ("pruned", 0.8, "rows"),
        ("rounded", 0, "rows"), ("scales", 0, "columns"), ("neurons", 0, "matched rows"), ("rotated", 0, "angles"),
        ("residual", 0, "sorted rows"), ("all", 0, "sorted rows"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(5))
def test_what_was_rearranged_is_still_recognised(kind, strength, statistic, seed):
    match = match_weights(sample(changed(BASE, kind, strength, seed)), BASE)
    assert match.is_match
    assert match.statistic == statistic, match.effects
    assert not match.moved_layers


@pytest.mark.parametrize("kind", ["trained", "noise", "pruned", "scales", "neurons", "rotated", "all"])
@pytest.mark.parametrize("seed", range(1, 6))
def test_another_network_with_the_same_habits_is_unrelated(kind, seed):
    match = match_weights(sample(changed(network(seed), kind, 0.5, seed)), BASE)
    assert not match.is_match
    assert match.strength < LEAST_EFFECT / 2, match.effects


def test_layers_that_were_moved_and_copied():
    order = [0, 2, 1, 3, 3]
    match = match_weights(sample({key: BASE[order[key[0]], key[1]] for key in BASE}), BASE)
    assert match.is_match
    assert match.moved_layers == {1: 2, 2: 1, 4: 3}


def test_one_layer_is_enough():
    first_layer = Arrays({key: matrix for key, matrix in BASE.items() if key[0] == 0})
    assert match_weights(sample(first_layer), first_layer).is_match
    other = {key: matrix for key, matrix in network(4).items() if key[0] == 0}
    assert not match_weights(sample(other), first_layer).is_match


def test_zeros_are_no_match():
    assert not match_weights(sample({key: np.zeros_like(matrix) for key, matrix in BASE.items()}), BASE).is_match


def test_a_deeper_model_made_of_the_layers_of_a_base():
    # Depth up-scaling (SOLAR, arXiv 2312.15166): the first layers, then once more from the middle on.
    order = [0, 1, 2, 3, 1, 2, 3, 4]
    deeper = Arrays({(layer, family): BASE[old, family] for layer, old in enumerate(order) for family in SHAPES})
    match = match_weights([layer_rows for layer_rows in sample(deeper) if layer_rows.layer in (0, 2, 5, 7)], BASE)
    assert match.is_match
    assert match.statistic == "rows"
    assert match.nearest_layers == {0: 0, 2: 2, 5: 2, 7: 4}
    other = network(6)
    deeper = Arrays({(layer, family): other[old, family] for layer, old in enumerate(order) for family in SHAPES})
    assert not match_weights(
        [layer_rows for layer_rows in sample(deeper) if layer_rows.layer in (0, 2, 5, 7)], BASE
    ).is_match


def test_matrices_of_another_shape_are_no_match():
    wider = [LayerRows(0, "query", np.ones((2, WIDTH + 1), np.float32), np.arange(2))]
    taller = [LayerRows(0, "query", np.ones((2, WIDTH), np.float32), np.array([0, WIDTH]))]
    assert not match_weights(wider, BASE).is_match
    assert not match_weights(taller, BASE).is_match


def test_nothing_to_compare_is_an_error():
    with pytest.raises(ValueError, match="none of the model"):
        match_weights([LayerRows(9, "gate", np.ones((2, WIDTH), np.float32), np.arange(2))], BASE)
    with pytest.raises(ValueError, match="none of the model"):
        match_weights([], BASE)
