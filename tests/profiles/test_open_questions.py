"""Conditioning, frequencies, positions, patches and neurons inside a block, on modules whose answers are known."""

from __future__ import annotations

import math

import pytest
import torch

from indexer.errors import AtlasError
from indexer.profiles.features import DEFAULT, SHARP, UNCHANGED, find_features
from indexer.profiles.layers import Layers, patchify
from indexer.profiles.loading import layers_of
from indexer.profiles.patch_embedding import seeded_patch_embedding
from indexer.profiles.probes import random_probe
from indexer.profiles.recovery import high_frequency
from indexer.profiles.sensitivity import conditioning, singular_values
from indexer.profiles.single import neurons_inside
from indexer.profiles.statistics import normal
from indexer.profiles.subject import Subject
from tests.profiles.toy_layers import WIDTH, after, identities, projected, running_sum

SIDE, PATCH = 16, 4
PATCHES = (SIDE // PATCH) ** 2
NUMBERS = 3 * PATCH * PATCH


def seeing(*blocks) -> Layers:
    """Layers on patches of pixels."""
    return Layers(lambda pixels: patchify(pixels, PATCH), list(blocks), patch=PATCH, image_shape=(3, SIDE, SIDE))


# ---- singular values


def test_singular_values_of_linear_maps():
    matrix = normal((WIDTH, WIDTH), 0, "matrix")
    linear = after(lambda hidden: hidden @ matrix, depth=1)
    inputs = random_probe(linear).inputs(linear)[:1]
    assert singular_values(linear, inputs, [1])[1] == pytest.approx(
        torch.linalg.svdvals(matrix.double()).numpy(), rel=1e-4
    )
    assert conditioning(singular_values(identities(), inputs, [3])[3]) == pytest.approx((1.0, WIDTH))
    condition, directions = conditioning(singular_values(projected(8), inputs, [1])[1])
    assert condition is None
    assert directions == pytest.approx(8)
    # A causal sum of 16 positions: position 12 reaches 12, 13, 14 and 15.
    assert singular_values(after(running_sum, 1), inputs, [1], 12)[1].numpy() == pytest.approx(2.0)


@pytest.mark.slow
def test_singular_values_of_a_real_model_against_the_whole_jacobian(vit):
    layers = vit.layers
    image = torch.rand((1, *layers.image_shape), generator=torch.Generator().manual_seed(0))
    values = singular_values(layers, image, [1, 2], 5)
    for layer in (1, 2):
        jacobian = torch.autograd.functional.jacobian(
            lambda pixels, depth=layer: layers.state(pixels, depth).flatten(), image
        )
        part = patchify(jacobian.reshape(-1, *layers.image_shape), PATCH)[:, 5]
        assert values[layer].numpy() == pytest.approx(torch.linalg.svdvals(part.double()).numpy(), rel=1e-3, abs=1e-6)


def test_a_random_matrix_has_the_directions_of_marchenko_and_pastur():
    rows, columns = 2000, 100
    condition, directions = conditioning(torch.linalg.svdvals(normal((rows, columns), 0, "noise").double()))
    ratio = (columns / rows) ** 0.5
    assert condition == pytest.approx((1 + ratio) / (1 - ratio), rel=0.05)
    assert directions == pytest.approx(columns / (1 + columns / rows), rel=0.02)


# ---- frequencies


def test_waves_below_and_above_half_of_the_highest_frequency():
    angles = torch.arange(SIDE) * 2 * math.pi / SIDE
    low, high = (torch.cos(cycles * angles).expand(2, 3, SIDE, SIDE) for cycles in (3, 5))
    assert high_frequency(low + 7) == pytest.approx(0.0, abs=1e-9)
    assert high_frequency(high.transpose(2, 3)) == pytest.approx(1.0)
    assert high_frequency(low + 2 * high) == pytest.approx(0.8)
    assert high_frequency(torch.zeros(1, 3, SIDE, SIDE)) == 0.0
    assert high_frequency(normal((20, 3, 64, 64), 0, "noise")) == pytest.approx(1 - math.pi / 16, abs=0.01)


# ---- features


def test_patches_that_a_neuron_does_not_see_are_unchanged():
    seen = torch.zeros(PATCHES, 1)
    seen[:4] = 1
    layers = seeing(lambda hidden: hidden * seen)
    for ascent in (SHARP, DEFAULT):  # blur alone is no change
        (feature,) = find_features(layers, 1, [0], ascent=ascent)
        assert feature.unchanged <= 1 - 4 / PATCHES
    assert find_features(layers, 1, [0], ascent=SHARP)[0].unchanged == 1 - 4 / PATCHES
    weak = seeing(lambda hidden: hidden * torch.where(seen > 0, 1.0, UNCHANGED / 4))
    (feature,) = find_features(weak, 1, [0], ascent=SHARP)
    assert feature.unchanged == 0  # without a bound on pixels it would be: all of them reach white in the end
    nothing = seeing(lambda hidden: 0 * hidden.detach())
    (feature,) = find_features(nothing, 1, [0], ascent=DEFAULT)
    assert (feature.unchanged, feature.consistency) == (1.0, 0.0)


def test_patches_that_look_alike_are_consistent():
    shared = normal((NUMBERS, 8), 0, "shared")
    (feature,) = find_features(seeing(lambda hidden: hidden @ shared), 1, [0], ascent=SHARP)
    assert feature.consistency > 0.95
    assert feature.unchanged == 0
    own = normal((PATCHES, NUMBERS, 8), 0, "own")
    features = find_features(
        seeing(lambda hidden: torch.einsum("npd,pdk->npk", hidden, own)), 1, range(8), ascent=SHARP
    )
    mean = sum(feature.consistency for feature in features) / 8
    assert abs(mean) < 4 / (8 * PATCHES * (PATCHES - 1) / 2 * NUMBERS) ** 0.5 + 0.01
    # Against pairs of patches in a loop.
    start = 0.45 + 0.1 * torch.rand((3, SIDE, SIDE), generator=_features_generator())
    change = patchify((features[0].image - start)[None], PATCH)[0].double()
    cosines = [
        torch.nn.functional.cosine_similarity(change[i], change[j], dim=0) for i in range(PATCHES) for j in range(i)
    ]
    assert features[0].consistency == pytest.approx(float(torch.stack(cosines).mean()), abs=1e-4)


def _features_generator() -> torch.Generator:
    from indexer.profiles.statistics import seeded_generator

    return seeded_generator(0, "features")


# ---- inside a block


@pytest.fixture(scope="module")
def vit() -> Subject:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, image_size=SIDE,
        patch_size=PATCH, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    return subject(ViTModel(config), config)


@pytest.fixture(scope="module")
def gpt2() -> Subject:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(vocab_size=80, n_embd=48, n_layer=2, n_head=4, n_positions=32, initializer_range=0.2)
    torch.manual_seed(0)
    return subject(GPT2Model(config), config)


def subject(model, config) -> Subject:
    prepared = model.eval().requires_grad_(False)
    prepared.config._attn_implementation = "eager"
    settings = config.to_dict()
    return Subject("tiny", None, prepared, layers_of(prepared, settings, ""), settings)


@pytest.mark.parametrize("name", ["vit", "gpt2"])
def test_neurons_inside_explain_what_a_block_adds(name, request):
    """Both have norms before their parts: h_l − h_{l−1} is the two output matrices times the neurons, plus biases."""
    model_subject = request.getfixturevalue(name)
    layers = model_subject.layers if name == "vit" else seeded_patch_embedding(model_subject.layers)
    image = torch.rand((2, *layers.image_shape), generator=torch.Generator().manual_seed(1))
    weights = model_subject.model.state_dict()
    states = layers.states(image, [0, 1, 2])
    inside = {module: neurons_inside(model_subject, layers, module) for module in ("attention", "mlp")}
    for layer in (1, 2):
        added = torch.zeros_like(states[1])
        for module, inside_layers in inside.items():
            names = {
                "vit": {"attention": "attention.o_proj", "mlp": "mlp.fc2"},
                "gpt2": {"attention": "attn.c_proj", "mlp": "mlp.c_proj"},
            }[name]
            prefix = f"layers.{layer - 1}" if name == "vit" else f"h.{layer - 1}"
            matrix, bias = (weights[f"{prefix}.{names[module]}.{part}"] for part in ("weight", "bias"))
            neurons = inside_layers.state(image, layer)
            assert neurons.shape[-1] == {"vit": (24, 40), "gpt2": (48, 192)}[name][module == "mlp"]
            added += neurons @ (matrix.T if name == "vit" else matrix) + bias
        assert torch.allclose(states[layer] - states[layer - 1], added, atol=1e-5)
    (feature,) = find_features(inside["mlp"], 2, [7], ascent=SHARP)
    hidden = inside["mlp"].state(feature.image[None], 2)[:, -((layers.image_shape[1] // layers.patch) ** 2) :]
    assert feature.activation == pytest.approx(float(hidden[..., 7].mean()), abs=1e-3)
    assert not layers.takes_inputs


def test_a_module_that_does_not_exist(vit):
    with pytest.raises(AtlasError, match="Unknown module 'head'"):
        neurons_inside(vit, vit.layers, "head")
