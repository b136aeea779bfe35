"""Questions that the original experiments left open, each with what it says where nothing is true (docs/layers.md)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from indexer.profiles.features import SHARP, find_features
from indexer.profiles.layers import Layers
from indexer.profiles.patch_embedding import seeded_patch_embedding
from indexer.profiles.probes import random_probe, shipped_images, shipped_text, text_probe
from indexer.profiles.recovery import recover_images
from indexer.profiles.sensitivity import conditioning, position_shares, singular_values
from indexer.profiles.single import MODULES, neurons_inside
from indexer.profiles.statistics import normal, spread_of, standard_error
from scripts.depth.models import DIGITS, HELD_OUT, Models, images

LAYERS = (1, 2, 4)
INPUTS = 12  # images that are reconstructed
NOISE = 0.1  # added to them, so that they lie off the manifold
ENERGY = 0.95  # of the training images, in the subspace that stands for their manifold
JACOBIANS = 4  # inputs
INSIDE = tuple(range(8))  # neurons of a module
Row = dict[str, Any]


def manifold(models: Models) -> Iterator[Row]:
    """Are reconstructions nearer to the training images than the input? Noisy held-out digits; untrained as the null."""
    pixels, classes = images()
    learnt = pixels[HELD_OUT:][classes[HELD_OUT:] < DIGITS].flatten(1).double()
    centre = learnt.mean(dim=0)
    values, directions = torch.linalg.eigh((learnt - centre).T @ (learnt - centre))
    count = int((values.flip(0).cumsum(0) < ENERGY * values.sum()).sum()) + 1
    subspace = directions[:, -count:]
    held = pixels[:HELD_OUT][classes[:HELD_OUT] < DIGITS][:INPUTS]
    inputs = (held + NOISE * normal(tuple(held.shape), 0, "manifold")).clamp(0, 1)
    for name, layers in models.seeing.items():
        if layers.image_shape != tuple(inputs.shape[1:]) or "GPT" in name:
            continue  # it was not trained on images
        for layer in LAYERS:
            hidden = layers.state(inputs, layer).detach()
            found = recover_images(layers, layer, hidden, spread_of(hidden).unit, 0)
            yield {"model": name, "layer": layer, "dimensions": count, **kept_parts(found, inputs, centre, subspace)}


def kept_parts(found: torch.Tensor, inputs: torch.Tensor, centre: torch.Tensor, subspace: torch.Tensor) -> Row:
    """How much of the part on, and of the part off, an affine subspace a reconstruction keeps, and how far off it lies.

    With x − centre = on + off, ``kept_on`` = ⟨found − centre, on⟩/‖on‖² and ``kept_off`` likewise: 1 and 1 if nothing is
    lost, 1 and 0 for the projection. ``distance`` is ‖off of found‖/‖off of x‖, below 1 if it is nearer to the subspace
    than the input; ``distance_by_chance`` the same for an error of the same size in a random direction. Each with its
    standard error over images. ``centre`` (d,), ``subspace`` (d, k) with orthonormal columns.
    """
    given, back = (one.flatten(1).double() - centre for one in (inputs, found))
    on = given @ subspace @ subspace.T
    off = given - on
    left = back - back @ subspace @ subspace.T
    size = off.square().sum(dim=1)
    error = (back - given).square().sum(dim=1)
    outside = 1 - subspace.shape[1] / subspace.shape[0]
    measures = {
        "kept_on": (back * on).sum(dim=1) / on.square().sum(dim=1),
        "kept_off": (back * off).sum(dim=1) / size,
        "distance": (left.square().sum(dim=1) / size).sqrt(),
        "distance_by_chance": (1 + outside * error / size).sqrt(),
        "error": (error / given.square().sum(dim=1)).sqrt(),
    }
    measures["difference"] = measures["kept_on"] - measures["kept_off"]
    return {name: [float(one.mean()), standard_error(one)] for name, one in measures.items()}


def declines(models: Models) -> Iterator[Row]:
    """S5: do the shares of positions decline linearly? A causal sum, an untrained GPT-2, and the trained one."""
    sums = Layers(nn.Embedding.from_pretrained(normal((512, 32), 0, "sum")), [lambda hidden: hidden.cumsum(dim=1)])
    yield {"model": "causal sum", "probe": "random", "layer": 1, **decline(sums, random_probe(sums).inputs(sums), 1)}
    tokens = models.gpt2.tokenizer
    assert tokens is not None
    for name, subject in (("trained", models.gpt2), ("untrained", models.gpt2_twin)):
        behind_stem = seeded_patch_embedding(subject.layers)
        assert behind_stem.image_shape is not None
        probes = [
            ("random", subject.layers, random_probe(subject.layers).inputs(subject.layers)),
            ("text", subject.layers, text_probe(shipped_text(), tokens.encode).inputs(subject.layers)),
            ("images", behind_stem, shipped_images(behind_stem.image_shape)),
        ]
        for probe, layers, inputs in probes:
            for layer in LAYERS:
                yield {"model": f"GPT-2, {name}", "probe": probe, "layer": layer, **decline(layers, inputs, layer)}


def decline(layers: Layers, inputs: torch.Tensor, layer: int) -> Row:
    """How the share of a position (``position_shares``) falls with it: share ∝ (T − s)^p, s from 0, by least squares.

    ``power``: p, 1 for a causal sum, 0 without a lean, above 1 if it is steeper. ``power_rest``: the same without the
    first position. ``first``: its share, in units of the mean share. Each with its standard error over inputs.
    """
    shares = position_shares(layers, inputs, layer)
    positions = shares.shape[1]
    remaining = (positions - torch.arange(positions, dtype=torch.float64)).log()

    def power(part: slice) -> torch.Tensor:
        x = remaining[part] - remaining[part].mean()
        return (shares[:, part].clamp_min(1e-300).log() @ x) / x.square().sum()

    found = {"power": power(slice(None)), "power_rest": power(slice(1, None)), "first": shares[:, 0] * positions}
    return {name: [float(one.mean()), standard_error(one)] for name, one in found.items()}


def conditions(models: Models) -> Iterator[Row]:
    """The conditioning of layers at one position; an untrained twin, and a random matrix of the same shape, as nulls."""
    tokens = models.gpt2.tokenizer
    assert tokens is not None
    asked = [(name, layers, shipped_images(layers.image_shape)) for name, layers in models.seeing.items()
             if layers.image_shape is not None]  # fmt: skip
    for name, subject in (("trained", models.gpt2), ("untrained", models.gpt2_twin)):
        inputs = text_probe(shipped_text(), tokens.encode).inputs(subject.layers)
        asked.append((f"GPT-2, {name}, words", subject.layers, inputs))
    for name, layers, inputs in asked:
        chosen = inputs[:: max(1, len(inputs) // JACOBIANS)][:JACOBIANS]
        values = [singular_values(layers, one[None], LAYERS) for one in chosen]
        for layer in LAYERS:
            found = [conditioning(one[layer]) for one in values]
            finite = [condition for condition, _ in found if condition is not None]
            count = len(values[0][layer])
            noise = normal((layers.state(inputs[:1], layer).numel(), count), 0, "jacobian").double()
            yield {"model": name, "layer": layer, "of": count,
                   "condition": statistics.geometric_mean(finite) if finite else None,
                   "directions": statistics.mean(directions for _, directions in found),
                   "of a random matrix": conditioning(torch.linalg.svdvals(noise))}  # fmt: skip


def modules(models: Models) -> Iterator[Row]:
    """What the ascent on a neuron leaves as it is, and how alike patches become; of blocks, attention and the MLP.

    Without blur and jitter, which move all patches. Untrained twins are the null.
    """
    asked = [(name, "block", layers) for name, layers in models.seeing.items()]
    for name, subject in (
        ("ViT", models.vit), ("ViT, untrained", models.vit_twin),
        ("GPT-2 behind a stem", models.gpt2), ("GPT-2 untrained, behind a stem", models.gpt2_twin),
    ):  # fmt: skip
        seeing = subject.layers if subject.layers.takes_images else seeded_patch_embedding(subject.layers)
        asked += [(name, module, neurons_inside(subject, seeing, module)) for module in MODULES]
    for name, module, layers in asked:
        assert layers.image_shape is not None
        probe = shipped_images(layers.image_shape)
        for layer in (LAYERS[0], LAYERS[-1]):
            found = find_features(layers, layer, INSIDE, ascent=SHARP, seed=0, probe=probe)
            quarter = len(found[0].change_by_row) // 4
            above = sum(one.best_probe is not None and one.activation > one.best_probe for one in found)
            yield {"model": name, "module": module, "layer": layer,
                   "first quarter of rows": mean([sum(one.change_by_row[:quarter]) for one in found]),
                   "unchanged": mean([one.unchanged for one in found]),
                   "consistency": mean([one.consistency for one in found]),
                   "above best image": f"{above}/{len(found)}"}  # fmt: skip


def mean(values: list[float]) -> list[float]:
    """The mean and its standard error."""
    return [statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5]
