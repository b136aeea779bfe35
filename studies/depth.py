"""``python -m studies.depth --tokenizer FILE``: train the small models and repeat the original experiments S1 to S9.

Every part writes its numbers (docs/evidence/layers.md) as JSON; what exists is not made again.
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

from indexer.profiles.features import DEFAULT, SHARP, Ascent, find_features, original_ascent
from indexer.profiles.layers import Layers, nearest_tokens, patchify
from indexer.profiles.measurement import ProfileRequest, measure
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
from indexer.profiles.single import invert_words
from indexer.profiles.statistics import seeded_generator, spread_of
from scripts.tiny_models import Models, make_gpt2, make_mixer, make_vit

LAYERS = (1, 2, 4)
NEURONS = tuple(range(32))
MIDDLE = 27  # a patch in the upper half, with neighbours on all sides
SENTENCE = "The value of the parameter is returned as a list of strings."
Row = dict[str, Any]


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


PARTS = (profiles, reconstructions, neurons, patches, sentences, criteria)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.depth", description=__doc__)
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
