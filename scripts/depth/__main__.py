"""``python -m scripts.depth --tokenizer FILE``: train the small models and repeat the original experiments S1 to S9.

With the questions that these left open, each with what it says where nothing is true. Every part writes its numbers
(docs/layers.md) as JSON; what exists is not made again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from indexer.profiles.features import DEFAULT, SHARP, Ascent, find_features, original_ascent
from indexer.profiles.layers import Layers, nearest_tokens, patchify
from indexer.profiles.measurement import ProfileRequest, measure
from indexer.profiles.patch_embedding import seeded_patch_embedding
from indexer.profiles.probes import image_probe, random_probe, shipped_images, shipped_text, text_probe
from indexer.profiles.recovery import (
    blank_start,
    criterion,
    high_frequency,
    image_error,
    recover,
    recover_as_original,
    recover_images,
    times_closer,
)
from indexer.profiles.sensitivity import conditioning, position_shares, singular_values
from indexer.profiles.single import MODULES, invert_words, neurons_inside
from indexer.profiles.statistics import normal, seeded_generator, spread_of, standard_error
from scripts.depth.models import DIGITS, HELD_OUT, Models, images, make_convolutional, make_gpt2, make_mixer, make_vit

LAYERS = (1, 2, 4)
NEURONS = tuple(range(32))
MIDDLE = 27  # a patch in the upper half, with neighbours on all sides
SENTENCE = "The value of the parameter is returned as a list of strings."
Row = dict[str, Any]
INPUTS = 12  # images that are reconstructed
NOISE = 0.1  # added to them, so that they lie off the manifold
ENERGY = 0.95  # of the training images, in the subspace that stands for their manifold
JACOBIANS = 4  # inputs
INSIDE = tuple(range(8))  # neurons of a module


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


# ---- the original experiments


def profiles(models: Models) -> Iterator[Row]:
    """The default measures, recovery and certificates of the GPT-2, on text and on random tokens."""
    tokens = models.gpt2.tokenizer
    assert tokens is not None
    for name, subject in (("trained", models.gpt2), ("untrained", models.gpt2_twin)):
        probes = (random_probe(subject.layers), text_probe(shipped_text(), tokens.encode))
        for probe in probes:
            for row in measure(subject.layers, probe, ProfileRequest(recover=True, exact=True))[0]:
                yield {"model": f"GPT-2, {name}", "probe": probe.name, "layer": row.layer, **row.values}
    for name, layers in models.seeing.items():
        probe = image_probe(shipped_images((3, *_side(layers))))
        for row in measure(layers, probe, ProfileRequest(layers=LAYERS))[0]:
            yield {"model": name, "probe": "image", "layer": row.layer, **row.values}


def reconstructions(models: Models) -> Iterator[Row]:
    """S6: images from layers; the share of the error in the first and the last quarter of the rows."""
    for name, layers in models.seeing.items():
        pixels = shipped_images((3, *_side(layers)))
        target = torch.cat([pixels[:6], pixels[-2:]])
        for layer in LAYERS:
            hidden = layers.state(target, layer).detach()
            found = recover_images(layers, layer, hidden, spread_of(hidden).unit, 0)
            error, standard_error, shares = image_error(layers, found, target)
            quarter = len(shares) // 4
            row = {"model": name, "layer": layer, "error": error, "error_se": standard_error,
                   "first quarter": sum(shares[:quarter]), "last quarter": sum(shares[-quarter:]),
                   "high frequency": high_frequency(found - target), "of the input": high_frequency(target)}  # fmt: skip
            if layer == 1:
                plain = recover_as_original(layers, layer, hidden, 0)
                row["seed recipe"] = image_error(layers, plain, target)[0]
            yield row


def neurons(models: Models) -> Iterator[Row]:
    """S2, S3: single neurons over all patches; where the image changed, with blur and jitter and without."""
    for name, layers in models.seeing.items():
        probe = shipped_images((3, *_side(layers)))
        ways: tuple[tuple[str, Ascent], ...] = (
            ("default", DEFAULT), ("without blur", SHARP), ("seed", original_ascent("GPT" in name, False)),
        )  # fmt: skip
        for way, ascent in ways:
            for layer in LAYERS:
                found = find_features(layers, layer, NEURONS, ascent=ascent, seed=0, probe=probe)
                above = sum(one.best_probe is not None and one.activation > one.best_probe for one in found)
                yield {"model": name, "way": way, "layer": layer, **_quarters("rows", [one.change_by_row for one in found]),
                       **_quarters("columns", [one.change_by_column for one in found]),
                       "unchanged": mean([one.unchanged for one in found]),
                       "consistency": mean([one.consistency for one in found]),
                       "above best image": f"{above}/{len(found)}"}  # fmt: skip


def _quarters(name: str, shares: list[tuple[float, ...]]) -> Row:
    """The mean over neurons of the share in the first and the last quarter, and its standard error."""
    quarter = len(shares[0]) // 4
    ends = {"first": [sum(one[:quarter]) for one in shares], "last": [sum(one[-quarter:]) for one in shares]}
    return {f"{which} quarter of {name}": [statistics.mean(one), statistics.stdev(one) / len(one) ** 0.5]
            for which, one in ends.items()}  # fmt: skip


def patches(models: Models) -> Iterator[Row]:
    """S4: all neurons of one patch; how much of the change lies in that patch, before it and behind it."""
    for name, layers in models.seeing.items():
        assert layers.image_shape is not None
        assert layers.patch is not None
        for layer in LAYERS:
            (found,) = find_features(layers, layer, [None], patch=MIDDLE, ascent=SHARP, seed=0)
            low, high = SHARP.start
            noise = torch.rand(layers.image_shape, generator=seeded_generator(0, "features"))
            change = patchify((found.image - (low + (high - low) * noise))[None].double().square(), layers.patch).sum(
                dim=2
            )[0]
            share = change / change.sum()
            entropy = (-share * share.clamp_min(1e-300).log()).sum().exp()
            yield {"model": name, "layer": layer, "own": float(share[MIDDLE]), "before": float(share[:MIDDLE].sum()),
                   "behind": float(share[MIDDLE + 1 :].sum()), "patches": float(entropy)}  # fmt: skip


def sentences(models: Models) -> Iterator[Row]:
    """S7 and S9: a sentence from layers, by every recipe, trained and untrained, and among its own words."""
    for name, subject in (("trained", models.gpt2), ("untrained", models.gpt2_twin)):
        for recipe, restrict, steps in (
            ("default", False, None), ("blank", False, 400), ("seed", False, 500), ("seed", True, 500), ("blank", True, 400),
        ):  # fmt: skip
            _, found = invert_words(subject, SENTENCE, (1, 2, 4), recipe=recipe, restrict=restrict, steps=steps)
            for one in found:
                yield {"model": f"GPT-2, {name}", "recipe": recipe, "own words only": restrict, "layer": one.layer,
                       "right": one.right, "closer_ratio": one.closer_ratio, "output": one.output}  # fmt: skip


def criteria(models: Models) -> Iterator[Row]:
    """S8: the criterion against the share of right tokens, from a blank start, on text; and the seeds' rates."""
    tokens = models.gpt2.tokenizer
    assert tokens is not None
    for name, subject in (("trained", models.gpt2), ("untrained", models.gpt2_twin)):
        layers = subject.layers
        probe = text_probe(shipped_text(), tokens.encode)
        assert probe.ids is not None
        inputs = probe.inputs(layers)
        for layer in (1, 4):
            target = layers.state(inputs, layer).detach()
            unit = spread_of(target).unit
            for steps in (100, 400):
                guess = recover(layers, layer, target, unit, blank_start(layers, target.shape, 0), steps)
                yield _met(name, f"Adam, {steps} steps", layers, layer, inputs, guess, probe.ids)
            for rate in (0.03, 0.3, 3.0):
                guess = recover_as_original(layers, layer, target, 0, 500, rate)
                yield _met(name, f"seed, rate {rate:g}", layers, layer, inputs, guess, probe.ids)


def _met(name: str, way: str, layers: Layers, layer: int, inputs: Any, guess: Any, ids: torch.Tensor) -> Row:
    found, shifted = criterion(layers, layer, inputs, guess, 0, 0.05)
    right = float((nearest_tokens(layers, guess)[..., 0] == ids).double().mean())
    return {"model": f"GPT-2, {name}", "way": way, "layer": layer, "met": float((found < shifted).double().mean()),
            "times nearer": float(times_closer(found, shifted).mean()), "right": right}  # fmt: skip


def _side(layers: Layers) -> tuple[int, int]:
    assert layers.image_shape is not None
    return layers.image_shape[1], layers.image_shape[2]


PARTS = (
    profiles, reconstructions, neurons, patches, sentences, criteria,
    manifold, declines, conditions, modules,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.depth", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".demo/depth"), help="folder of models and numbers")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json, e.g. the demo base's")
    parser.add_argument(
        "--only", nargs="+", choices=[part.__name__ for part in PARTS], help="these parts; default: all"
    )
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    print("ViT", make_vit(out / "tiny-vit"))
    print("GPT-2", make_gpt2(out / "tiny-gpt2", arguments.tokenizer))
    print("mixer", make_mixer(out / "tiny-mixer"))
    print("convolutional", make_convolutional(out / "tiny-convolutional"))
    torch.set_num_threads(1)
    models = Models(out)
    (out / "numbers").mkdir(exist_ok=True)
    for part in PARTS:
        file = out / "numbers" / f"{part.__name__}.json"
        if file.exists() or part.__name__ not in (arguments.only or [part.__name__]):
            continue
        started = time.process_time()
        rows = list(part(models))
        file.write_text(json.dumps({"cpu_seconds": round(time.process_time() - started, 1), "rows": rows}, indent=1))
        print(f"{part.__name__}: {len(rows)} rows, {time.process_time() - started:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
