"""One model asked on the fly: its profile, its input again, what its neurons look for. Nothing is stored.

The one door through which questions reach this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from indexer.errors import AtlasError, ModelError
from indexer.machine import check_device
from indexer.names import ModelRef
from indexer.network.session import as_model_error, install_session
from indexer.profiles.asking import ProbeChoice, checked_asked, fitting_probe, layers_in
from indexer.profiles.features import DEFAULT, SHARP, Feature, find_features, seed_ascent
from indexer.profiles.images import named_images, shipped_images
from indexer.profiles.inversion import Inversion, LayerWords, invert_words
from indexer.profiles.layers import Layers, chosen_layers
from indexer.profiles.make import make_profile
from indexer.profiles.pictures import (
    SeedImageRecipe,
    image_error,
    recover_images,
    recover_images_as_seed,
)
from indexer.profiles.spread import spread_of
from indexer.profiles.stems import image_stem, named_stem
from indexer.profiles.store import Profile, ProfileIdentity
from indexer.profiles.subject import Source, Subject, kept_base, read_subject, read_weights
from indexer.profiles.tokens import needed
from indexer.profiles.weights import FullWeights

__all__ = [
    "Feature",
    "Features",
    "ImageInversion",
    "ImageLayer",
    "Inversion",
    "LayerWords",
    "Reference",
    "features_now",
    "invert_images",
    "invert_text",
    "layers_in",
    "profile_now",
    "read_now",
]

MOST_IMAGES = 6


@dataclass(frozen=True)
class Reference:
    """A model, and the base that an adapter of it is merged into, each with its commit where that is known.

    With a commit the name is an atlas's own, never a folder; so is that of the base.
    """

    model: str
    commit: str | None = None
    relation: str = "finetune"
    base: str | None = None
    base_commit: str | None = None


@dataclass(frozen=True)
class ImageLayer:
    """Images as found from one layer (images, channels, height, width), how far off, and where by row of patches."""

    layer: int
    images: torch.Tensor
    error: float
    rows: tuple[float, ...]


@dataclass(frozen=True)
class ImageInversion:
    """``target`` (images, channels, height, width) from 0 to 1."""

    model: str
    target: torch.Tensor
    layers: tuple[ImageLayer, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Features:
    """Features in the order asked: layer by layer, neuron by neuron."""

    model: str
    features: tuple[Feature, ...]
    notes: tuple[str, ...]


def read_now(reference: Reference, device: str = "cpu") -> Subject:
    """Read and load a model. Raises AtlasError that says why it cannot be."""
    install_session()
    torch.set_num_threads(1)
    check_device(device)

    def base_weights() -> FullWeights:
        assert reference.base is not None
        return read_weights(kept_base(Source(ModelRef.of_atlas(reference.base), reference.base_commit)))

    read = ModelRef.parse if reference.commit is None else ModelRef.of_atlas
    try:
        source = Source(read(reference.model), reference.commit, None, reference.relation)
        return read_subject(source, base_weights if reference.base else None, device=device)
    except (ModelError, AtlasError) as error:
        detail = error.detail if isinstance(error, ModelError) else error.message
        raise AtlasError(f"{reference.model} cannot be asked: {detail}.", "") from error
    except Exception as error:
        known = as_model_error(error)
        raise AtlasError(f"{reference.model} cannot be asked: {known.detail}.", "") from error


def profile_now(
    reference: Reference, *, probe: ProbeChoice | None = None, untrained: bool = False, device: str = "cpu",
    **wishes: Any,
) -> tuple[Profile, Profile | None, Profile | None]:  # fmt: skip
    """The profile of a model that has none, of its base where that is known, and of an untrained twin if asked for."""
    asked = checked_asked(**wishes)
    chosen = probe or ProbeChoice(seed=asked.seed)
    of_base, states, probed, words = None, None, None, None
    if reference.base is not None:
        base = read_now(Reference(reference.base, reference.base_commit), device)
        probed, words = chosen.probe(base), base.tokens
        of_base, states = make_profile(_identity("base", base, reference), base, probed, asked)
    subject = read_now(reference, device)
    shared, probed = probed, fitting_probe(chosen, subject, probed, words) if probed else chosen.probe(subject)
    states = states if probed is shared else None
    profile, _ = make_profile(_identity("fine_tune", subject, reference), subject, probed, asked, base=states)
    if not untrained:
        return profile, of_base, None
    twin = subject.twin(asked.seed, device)
    of_twin, _ = make_profile(_identity("untrained", subject, reference), twin, probed, asked)
    return profile, of_base, of_twin


def _identity(kind: str, subject: Subject, reference: Reference) -> ProfileIdentity:
    return ProfileIdentity(kind, subject.name, subject.commit or "", reference.base or subject.name, "")


def invert_text(
    reference: Reference,
    text: str,
    *,
    layers: Sequence[int] | None = None,
    device: str = "cpu",
    progress: Callable[[int], None] = lambda layer: None,
    **options: Any,
) -> Inversion:
    """The words again, layer by layer; see :func:`indexer.profiles.inversion.invert_words`."""
    subject = read_now(reference, device)
    if subject.layers.takes_images:
        raise AtlasError(f"{subject.name} takes images, not words.", "Give `images=['FILE']`.")
    tokens = needed(subject.tokens, subject.name, "Put its tokenizer.json beside its weights.")
    chosen = _layers(subject.layers, layers)
    return invert_words(subject, tokens, text, chosen, progress=progress, **options)


def invert_images(
    reference: Reference,
    files: Sequence[Path],
    *,
    stem: str | None = None,
    layers: Sequence[int] | None = None,
    recipe: str = "default",
    steps: int | None = None,
    rate: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[int], None] = lambda layer: None,
) -> ImageInversion:
    """Images again, layer by layer: of a vision transformer, or behind an image stem of a language model."""
    checked_asked(recipe=recipe, steps=steps, rate=rate)
    subject = read_now(reference, device)
    seen, notes = _seeing(subject, stem, seed, device)
    shape = seen.image_shape
    assert shape is not None
    probe = named_images(files, shape) if files else shipped_images(shape)
    target = probe.inputs(seen)
    if not files:  # a digit or two, and the photographs
        target = torch.cat([target[:2], target[-2:]])
    found = []
    for layer in _layers(seen, layers):
        progress(layer)
        with torch.no_grad():
            hidden = seen.state(target, layer)
        if recipe == "seed":
            plain = SeedImageRecipe(steps or SeedImageRecipe.steps, rate or SeedImageRecipe.rate)
            images = recover_images_as_seed(seen, layer, hidden, seed, plain)
        else:
            images = recover_images(seen, layer, hidden, spread_of(hidden).unit, seed)
        error = image_error(seen, images, target)
        found.append(ImageLayer(layer, images[:MOST_IMAGES].clamp(0, 1).cpu(), error.value, error.rows))
    return ImageInversion(subject.name, target[:MOST_IMAGES].cpu(), tuple(found), notes)


def features_now(
    reference: Reference,
    *,
    layers: Sequence[int] | None = None,
    neurons: Sequence[int | None] = tuple(range(8)),
    patch: int | None = None,
    stem: str | None = None,
    recipe: str = "default",
    plain: bool = False,
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[int], None] = lambda layer: None,
) -> Features:
    """What neurons look for; ``plain``: without octaves, blur and jitter, as always where one patch is asked about."""
    subject = read_now(reference, device)
    seen, notes = _seeing(subject, stem, seed, device)
    assert seen.image_shape is not None
    is_sharp = plain or patch is not None
    ascent = seed_ascent(seen is not subject.layers, is_sharp) if recipe == "seed" else SHARP if is_sharp else DEFAULT
    probe = shipped_images(seen.image_shape).pixels
    found: list[Feature] = []
    for layer in _layers(seen, layers):
        progress(layer)
        drawn = 999 if recipe == "seed" else seed
        found += find_features(seen, layer, neurons, patch=patch, ascent=ascent, seed=drawn, probe=probe)
    return Features(subject.name, tuple(found), notes)


def _seeing(subject: Subject, stem: str | None, seed: int, device: str) -> tuple[Layers, tuple[str, ...]]:
    """Layers that take images."""
    notes = subject.loaded.notes
    if subject.layers.takes_images:
        if stem is not None:
            raise AtlasError(f"{subject.name} takes images as it is.", "Leave `stem` out.")
        return subject.layers, notes
    if stem is None or stem == "image":
        note = "" if stem else "it takes words: a seeded image stem stands before its layers (`stem='image'`)"
        return image_stem(subject.layers, seed), (*notes, *([note] if note else []))
    return named_stem(subject.layers, read_now(Reference(stem), device).loaded), notes


def _layers(layers: Layers, wanted: Sequence[int] | None) -> list[int]:
    chosen = list(wanted) if wanted else chosen_layers(layers.depth)
    layers.check(chosen)
    return chosen
