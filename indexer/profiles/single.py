"""Questions about one model, answered on the fly: its profile, its input again, what its neurons respond to.

Nothing is stored. This is the only module of this folder that `query` imports.
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
from indexer.network.hub_errors import as_model_error
from indexer.network.session import install_session
from indexer.profiles.features import DEFAULT, SHARP, Feature, find_features, original_ascent
from indexer.profiles.images import borrowed_patch_embedding, read_images, seeded_patch_embedding, shipped_images
from indexer.profiles.layers import FEWEST_TOKENS, Layers, chosen_layers, fitting_tokens, nearest_tokens
from indexer.profiles.measure import ProfileRequest, canonical_recipe, make_profile, parse_layers
from indexer.profiles.probes import ProbeChoice, matching_probe
from indexer.profiles.recovery import (
    ORIGINAL_IMAGES,
    ORIGINAL_TEXT,
    blank_start,
    criterion,
    decode_as_original,
    fit_readout,
    image_error,
    recover,
    recover_as_original,
    recover_images,
)
from indexer.profiles.statistics import spread_of
from indexer.profiles.store import Profile, ProfileIdentity
from indexer.profiles.subject import Source, Subject, download_base, read_subject, read_weights
from indexer.profiles.tokenizer import IsolatedTokenizer, require_tokenizer
from indexer.profiles.weights import FullWeights

__all__ = [
    "Feature",
    "ImageLayer",
    "LayerWords",
    "ProfileRequest",
    "Reference",
    "canonical_recipe",
    "features_now",
    "invert_images",
    "invert_text",
    "invert_words",
    "parse_layers",
    "profile_now",
    "read_now",
]

MOST_IMAGES = 6
MOST_TOKENS = 64
LINEAR_STEPS = 150
BLANK_STEPS = 400
Notes = tuple[str, ...]


def _no_progress(layer: int) -> None:
    pass


@dataclass(frozen=True)
class Reference:
    """A model, and the base that its adapter is merged into, each with its commit if that is known.

    With a commit, the model's name is an id from an atlas and never a folder. The base's name always is one.
    """

    model: str
    commit: str | None = None
    relation: str = "finetune"
    base: str | None = None
    base_commit: str | None = None


@dataclass(frozen=True)
class LayerWords:
    """What one layer gives back: the text, the share of right tokens, and for each token the ``top`` nearest ones.

    ``closer_ratio``: how many times nearer its output lies than that of a shifted input (the original papers'
    criterion, which is met above 1).
    """

    layer: int
    output: str
    right: float
    closer_ratio: float | None
    top: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ImageLayer:
    """Images found from one layer (images, channels, height, width), their error, and its shares by row of patches."""

    layer: int
    images: torch.Tensor
    error: float
    rows: tuple[float, ...]


def read_now(reference: Reference, device: str = "cpu") -> Subject:
    """Read and load a model. Raises AtlasError that says why it cannot be read."""
    install_session()
    torch.set_num_threads(1)
    check_device(device)

    def base_weights() -> FullWeights:
        assert reference.base is not None
        base = Source(ModelRef.of_atlas(reference.base), reference.base_commit)
        download_base(base)
        return read_weights(base)

    parse = ModelRef.parse if reference.commit is None else ModelRef.of_atlas
    try:
        source = Source(parse(reference.model), reference.commit, None, reference.relation)
        return read_subject(source, base_weights if reference.base else None, device=device)
    except AtlasError as error:
        raise AtlasError(f"{reference.model} cannot be run: {error.message}", error.hint) from error
    except Exception as error:
        known = error if isinstance(error, ModelError) else as_model_error(error)
        raise AtlasError(f"{reference.model} cannot be run: {known.detail}.", "") from error


def profile_now(
    reference: Reference, request: ProfileRequest, *, untrained: bool = False, device: str = "cpu"
) -> tuple[Profile, Profile | None, Profile | None]:
    """The profiles of a model, of its base if that is known, and of an untrained twin if asked for."""
    choice = ProbeChoice(seed=request.seed)
    of_base, states, shared, base_tokenizer = None, None, None, None
    if reference.base is not None:
        base = read_now(Reference(reference.base, reference.base_commit), device)
        shared, base_tokenizer = choice.probe(base), base.tokenizer
        of_base, states = make_profile(_identity("base", base, reference), base, shared, request)
    subject = read_now(reference, device)
    probe = matching_probe(choice, subject, shared, base_tokenizer) if shared else choice.probe(subject)
    if probe is not shared:
        states = None
    profile, _ = make_profile(_identity("fine_tune", subject, reference), subject, probe, request, base=states)
    if not untrained:
        return profile, of_base, None
    twin = subject.twin(request.seed, device)
    of_twin, _ = make_profile(_identity("untrained", subject, reference), twin, probe, request)
    return profile, of_base, of_twin


def _identity(kind: str, subject: Subject, reference: Reference) -> ProfileIdentity:
    return ProfileIdentity(kind, subject.name, subject.commit or "", reference.base or subject.name, "")


def invert_text(
    reference: Reference,
    text: str,
    *,
    layers: Sequence[int] | None = None,
    device: str = "cpu",
    **options: Any,
) -> tuple[str, tuple[str, ...], tuple[LayerWords, ...], Notes]:
    """The words again, layer by layer: the model's name, the tokens of ``text``, the layers, and notes.

    ``options`` are those of :func:`invert_words`.
    """
    subject = read_now(reference, device)
    if subject.layers.takes_images:
        raise AtlasError(f"{subject.name} takes images, not words.", "Give `images=['FILE']`.")
    tokenizer = require_tokenizer(subject.tokenizer, subject.name, "Put its tokenizer.json next to its weights.")
    words, found = invert_words(subject, tokenizer, text, _checked_layers(subject.layers, layers), **options)
    return subject.name, words, found, subject.loaded.notes


def invert_words(
    subject: Subject,
    tokenizer: IsolatedTokenizer,
    text: str,
    chosen: Sequence[int],
    *,
    recipe: str = "default",
    top: int = 1,
    keep: slice = slice(None),
    restrict: bool = False,
    seed: int = 0,
    shift: float | None = None,
    steps: int | None = None,
    rate: float | None = None,
    progress: Callable[[int], None] = _no_progress,
) -> tuple[tuple[str, ...], tuple[LayerWords, ...]]:
    """Recover ``text`` from the output of each layer: its tokens, and what each layer gives back.

    ``recipe`` default: a linear map fitted on random tokens, then a few steps of descent. blank: descent from the mean
    embedding, which knows nothing. original: the original papers' method. ``keep``: use only these output positions.
    ``restrict``: answer only with tokens of the text.

    Raises AtlasError if the text is too short or too long.
    """
    layers, recipe = subject.layers, canonical_recipe(recipe, "blank")
    numbers = tokenizer.encode(text)
    if len(numbers) < FEWEST_TOKENS:
        raise AtlasError(f"{text[:40]!r} gives {len(numbers)} tokens; {FEWEST_TOKENS} are needed.", "Give a sentence.")
    most = fitting_tokens(layers, min(MOST_TOKENS, len(numbers)))
    if len(numbers) > most:
        raise AtlasError(f"The text gives {len(numbers)} tokens; up to {most} are inverted.", "Give a shorter one.")
    ids = torch.tensor([numbers])
    answers: Layers = layers
    if restrict:
        others = sorted(set(range(len(layers.tokens))) - set(numbers))
        answers = Layers(torch.nn.Identity(), layers.blocks, vocabulary=layers.tokens, special_ids=others)
    inputs = layers.embed(ids)
    readout = fit_readout(layers, chosen, ids.shape[1], seed) if recipe == "default" else None
    found = []
    for layer in chosen:
        progress(layer)
        with torch.no_grad():
            target = layers.state(inputs, layer)
        if recipe == "seed":
            guess = recover_as_original(layers, layer, target, seed, ORIGINAL_TEXT.changed(steps, rate), keep)
            words = decode_as_original(answers, guess, top)
        else:
            start = readout.guess(layer, target) if readout else blank_start(layers, target.shape, seed)
            # The spread of a single sentence is a rough estimate of s_l, but it only scales the loss.
            unit = spread_of(target).unit
            guess = recover(
                layers, layer, target, unit, start, steps or (LINEAR_STEPS if readout else BLANK_STEPS), keep
            )
            words = nearest_tokens(answers, guess, top)
        met = criterion(layers, layer, inputs, guess, seed, shift)
        best = words[0, :, 0].cpu()
        found.append(
            LayerWords(
                layer,
                tokenizer.text(best.tolist()),
                float((best == ids[0]).double().mean()),
                float(met.ratio[0]),
                tuple(tuple(tokenizer.words(row.tolist())) for row in words[0]),
            )
        )
    return tuple(tokenizer.words(numbers)), tuple(found)


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
    progress: Callable[[int], None] = _no_progress,
) -> tuple[str, torch.Tensor, tuple[ImageLayer, ...], Notes]:
    """Images again, layer by layer: the model's name, the targets (images, channels, height, width), layers, notes.

    The model is a vision transformer, or a language model behind a patch embedding (``stem``).
    """
    request = ProfileRequest(recipe=recipe, steps=steps, rate=rate)
    subject = read_now(reference, device)
    seeing, notes = _image_layers(subject, stem, seed, device)
    shape = seeing.image_shape
    assert shape is not None
    if files:
        target = read_images(files, shape)
    else:
        shipped = shipped_images(shape)
        target = torch.cat([shipped[:2], shipped[-2:]])  # two digits and two photographs
    target = target.to(seeing.device)
    found = []
    for layer in _checked_layers(seeing, layers):
        progress(layer)
        with torch.no_grad():
            hidden = seeing.state(target, layer)
        if request.is_original:
            images = recover_as_original(seeing, layer, hidden, seed, ORIGINAL_IMAGES.changed(steps, rate))
        else:
            images = recover_images(seeing, layer, hidden, spread_of(hidden).unit, seed)
        error = image_error(seeing, images, target)
        found.append(ImageLayer(layer, images[:MOST_IMAGES].clamp(0, 1).cpu(), error.value, error.rows))
    return subject.name, target[:MOST_IMAGES].cpu(), tuple(found), notes


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
    progress: Callable[[int], None] = _no_progress,
) -> tuple[str, tuple[Feature, ...], Notes]:
    """Images that neurons respond to: the model's name, features by layer and neuron, and notes.

    ``plain``: without octaves, blur and jitter, as always for a single ``patch``.
    """
    subject = read_now(reference, device)
    seeing, notes = _image_layers(subject, stem, seed, device)
    assert seeing.image_shape is not None
    is_sharp = plain or patch is not None
    ascent = SHARP if is_sharp else DEFAULT
    if canonical_recipe(recipe) == "seed":
        ascent = original_ascent(seeing is not subject.layers, is_sharp)
        seed = 999
    probe = shipped_images(seeing.image_shape)
    found: list[Feature] = []
    for layer in _checked_layers(seeing, layers):
        progress(layer)
        found += find_features(seeing, layer, neurons, patch=patch, ascent=ascent, seed=seed, probe=probe)
    return subject.name, tuple(found), notes


def _image_layers(subject: Subject, stem: str | None, seed: int, device: str) -> tuple[Layers, Notes]:
    """Layers that take images, and notes."""
    notes = subject.loaded.notes
    if subject.layers.takes_images:
        if stem is not None:
            raise AtlasError(f"{subject.name} takes images without a stem.", "Leave `stem` out.")
        return subject.layers, notes
    if stem is None:
        notes = (*notes, "it takes words, so a seeded patch embedding was put before its layers (`stem='image'`)")
    if stem is None or stem == "image":
        return seeded_patch_embedding(subject.layers, seed), notes
    return borrowed_patch_embedding(subject.layers, read_now(Reference(stem), device).loaded), notes


def _checked_layers(layers: Layers, wanted: Sequence[int] | None) -> list[int]:
    chosen = list(wanted) if wanted else chosen_layers(layers.depth)
    layers.check(chosen)
    return chosen
