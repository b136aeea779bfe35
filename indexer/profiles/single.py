"""Computations on one model for a question: its profile, the recovery of its input, the features of its neurons.

Nothing is stored. This is the only module of this folder that `query` imports.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.errors import AtlasError, Call, Failed, ModelError, Text
from indexer.machine import check_device
from indexer.network.hub_errors import model_errors
from indexer.network.session import install_session
from indexer.profiles.features import DEFAULT, SHARP, Feature, find_features, original_ascent
from indexer.profiles.layers import FEWEST_TOKENS, HookedLayers, Layers, fitting_tokens, nearest_tokens
from indexer.profiles.measurement import ORIGINAL, ProfileRequest, check_recipe, make_profile, parse_layers
from indexer.profiles.patch_embedding import borrowed_patch_embedding, seeded_patch_embedding
from indexer.profiles.probes import ProbeChoice, matching_probe, read_images, shipped_images
from indexer.profiles.recovery import (
    blank_start,
    criterion,
    decode_as_original,
    fit_readout,
    high_frequency,
    image_error,
    read_off,
    recover,
    recover_as_original,
    recover_images,
    times_closer,
)
from indexer.profiles.sensitivity import conditioning, singular_values
from indexer.profiles.statistics import spread_of
from indexer.profiles.store import Profile, ProfileIdentity
from indexer.profiles.subject import FullWeights, Subject, download_base, read_subject, read_weights
from indexer.profiles.tokenizer import require_tokenizer
from indexer.records.identity import ModelVersion
from indexer.sources.registry import ModelRef

__all__ = [
    "Feature",
    "ImageLayer",
    "LayerWords",
    "ProfileRequest",
    "check_recipe",
    "invert_images",
    "invert_words",
    "neuron_features",
    "parse_layers",
    "profile_now",
    "read_now",
]

_MOST_IMAGES = 6
MOST_TOKENS = 64
_LINEAR_STEPS = 150
_BLANK_STEPS = 400
# The matrix of a block whose inputs are the neurons of a module: the outputs of the attention heads, or the hidden
# neurons of the MLP after the activation function.
MODULES = {"attention": "output", "mlp": "feedforward2"}
Progress = Callable[[int], None]  # called with each layer before it is computed


@dataclass(frozen=True)
class LayerWords:
    """The input recovered from one layer: the text, the share of right tokens, and the nearest tokens of each.

    ``top``: for each position the nearest tokens, nearest first. ``closer_ratio``: how many times nearer the output of
    the recovered input is than that of a shifted input (the original papers' criterion, which is met above 1).
    ``condition`` and ``directions``: of the Jacobian with respect to the middle token
    (``indexer.profiles.sensitivity.conditioning``).
    """

    layer: int
    output: str
    right: float
    closer_ratio: float | None
    top: tuple[tuple[str, ...], ...]
    condition: float | None = None
    directions: float | None = None


@dataclass(frozen=True)
class ImageLayer:
    """Images recovered from one layer (images, channels, height, width), their error, and its shares by row of patches.

    ``high_frequency``: the share of the squared error at high frequencies. ``condition`` and ``directions``: of the
    Jacobian with respect to the middle patch of the first image (``indexer.profiles.sensitivity.conditioning``).
    """

    layer: int
    images: torch.Tensor
    error: float
    rows: tuple[float, ...]
    high_frequency: float
    condition: float | None = None
    directions: float | None = None


def read_now(version: ModelVersion, device: str = "cpu", *, keep: bool = False) -> Subject:
    """Read and load a model, an adapter merged into its ``parent``. Raises AtlasError with the reason if that fails.

    ``keep``: its weights stay in the Hugging Face cache, for a model that is read again.
    """
    install_session()
    torch.set_num_threads(1)
    check_device(device)

    def base_weights() -> FullWeights:
        assert version.parent is not None
        download_base(version.parent)
        return read_weights(version.parent)

    name = version.model.typed
    try:
        with model_errors():
            if keep:
                download_base(version)
            return read_subject(version, base_weights if version.parent else None, device=device)
    except AtlasError as error:
        raise AtlasError(f"{name} cannot be run: {error.message}", error.hint) from error
    except ModelError as error:
        raise AtlasError(
            f"{name} cannot be run: {error.detail.removeprefix(f'{name}: ')}.",
            "Try again later." if isinstance(error, Failed) else "",
        ) from error


def profile_now(
    version: ModelVersion, request: ProfileRequest, *, untrained: bool = False, device: str = "cpu"
) -> tuple[Profile, Profile | None, Profile | None]:
    """The profiles of a model, of its ``parent`` if that is known, and of an untrained twin if requested."""

    def identity(kind: str, subject: Subject) -> ProfileIdentity:
        base = version.parent.model.id if version.parent else subject.name
        return ProfileIdentity(kind, subject.name, subject.commit or "", base, "")

    choice = ProbeChoice(seed=request.seed)
    of_base, states, shared, base_tokenizer = None, None, None, None
    if version.parent is not None:
        base = read_now(version.parent, device)
        shared, base_tokenizer = choice.probe(base), base.tokenizer
        of_base, states = make_profile(identity("base", base), base, shared, request)
    subject = read_now(version, device)
    probe = matching_probe(choice, subject, shared, base_tokenizer) if shared else choice.probe(subject)
    if probe is not shared:
        states = None
    profile, _ = make_profile(identity("fine_tune", subject), subject, probe, request, base=states)
    if not untrained:
        return profile, of_base, None
    of_twin, _ = make_profile(identity("untrained", subject), subject.twin(request.seed, device), probe, request)
    return profile, of_base, of_twin


def invert_words(
    subject: Subject,
    text: str,
    layers: Sequence[int] | None = None,
    *,
    recipe: str = "default",
    top: int = 1,
    keep: slice = slice(None),
    restrict: bool = False,
    seed: int = 0,
    shift: float | None = None,
    steps: int | None = None,
    rate: float | None = None,
    progress: Progress = lambda layer: None,
) -> tuple[tuple[str, ...], tuple[LayerWords, ...]]:
    """Recover ``text`` from the output of each layer. Returns its tokens, and the words recovered from each layer.

    - ``recipe``: "default": a linear map fitted on random tokens, then a few steps of descent. "blank": descent from
      the mean embedding, which is independent of the text. "original": the original papers' method.
    - ``top``: how many nearest tokens to return for each position.
    - ``keep``: use only these output positions.
    - ``restrict``: recover only tokens of the text.

    Raises AtlasError if the model has no words or no tokenizer, or the text is too short or too long.
    """
    model = subject.layers
    check_recipe(recipe, "blank")
    if model.takes_images:
        raise AtlasError(f"{subject.name} takes images, not words.", Text("Give ", Call(images=["FILE"]), "."))
    tokenizer = require_tokenizer(subject.tokenizer, subject.name, "Put its tokenizer.json next to its weights.")
    layer_numbers, numbers = model.choose(layers), tokenizer.encode(text)
    if len(numbers) < FEWEST_TOKENS:
        raise AtlasError(f"{text[:40]!r} gives {len(numbers)} tokens; {FEWEST_TOKENS} are needed.", "Give a sentence.")
    most = fitting_tokens(model, min(MOST_TOKENS, len(numbers)))
    if len(numbers) > most:
        raise AtlasError(f"The text gives {len(numbers)} tokens; up to {most} are inverted.", "Give a shorter one.")
    ids = torch.tensor([numbers])
    answers: Layers = model
    if restrict:
        excluded = sorted(set(range(len(model.tokens))) - set(numbers))
        answers = Layers(torch.nn.Identity(), model.blocks, vocabulary=model.tokens, special_ids=excluded)
    inputs = model.embed(ids)
    readout = fit_readout(model, layer_numbers, ids.shape[1], seed) if recipe == "default" else {}
    jacobian = singular_values(model, inputs, layer_numbers)
    recovered = []
    for layer in layer_numbers:
        progress(layer)
        with torch.no_grad():
            target = model.state(inputs, layer)
        if recipe == ORIGINAL:
            guess = recover_as_original(model, layer, target, seed, steps, rate, keep)
            words = decode_as_original(answers, guess, top)
        else:
            start = read_off(readout[layer], target) if readout else blank_start(model, target.shape, seed)
            # The spread of a single sentence is a rough estimate of s_l, but it only scales the loss.
            unit = spread_of(target).unit
            count = steps or (_LINEAR_STEPS if readout else _BLANK_STEPS)
            guess = recover(model, layer, target, unit, start, count, keep)
            words = nearest_tokens(answers, guess, top)
        best = words[0, :, 0].cpu()
        right = float((best == ids[0]).double().mean())
        closer = float(times_closer(*criterion(model, layer, inputs, guess, seed, shift))[0])
        nearest = tuple(tuple(tokenizer.words(row.tolist())) for row in words[0])
        text_found = tokenizer.text(best.tolist())
        recovered.append(LayerWords(layer, text_found, right, closer, nearest, *conditioning(jacobian[layer])))
    return tuple(tokenizer.words(numbers)), tuple(recovered)


def invert_images(
    subject: Subject,
    files: Sequence[Path],
    layers: Sequence[int] | None = None,
    *,
    stem: str | None = None,
    recipe: str = "default",
    steps: int | None = None,
    rate: float | None = None,
    seed: int = 0,
    progress: Progress = lambda layer: None,
) -> tuple[torch.Tensor, tuple[ImageLayer, ...], tuple[str, ...]]:
    """Recover images from the output of each layer: targets (images, channels, height, width), layers, notes.

    ``files``: image files, by default images of this package. A language model needs a patch embedding (``stem``).
    """
    request = ProfileRequest(recipe=recipe, steps=steps, rate=rate)
    model, notes = _image_layers(subject, stem, seed)
    shape = model.image_shape
    assert shape is not None
    if files:
        target = read_images(files, shape)
    else:
        shipped = shipped_images(shape)
        target = torch.cat([shipped[:2], shipped[-2:]])  # two digits and two photographs
    target = target.to(model.device)
    recovered = []
    layer_numbers = model.choose(layers)
    jacobian = singular_values(model, target[:1], layer_numbers)
    for layer in layer_numbers:
        progress(layer)
        with torch.no_grad():
            hidden = model.state(target, layer)
        if request.is_original:
            images = recover_as_original(model, layer, hidden, seed, steps, rate)
        else:
            images = recover_images(model, layer, hidden, spread_of(hidden).unit, seed)
        error, _, rows = image_error(model, images, target)
        high = high_frequency(images - target)
        shown = images[:_MOST_IMAGES].clamp(0, 1).cpu()
        recovered.append(ImageLayer(layer, shown, error, rows, high, *conditioning(jacobian[layer])))
    return target[:_MOST_IMAGES].cpu(), tuple(recovered), notes


def neuron_features(
    subject: Subject,
    neurons: Sequence[int | None],
    layers: Sequence[int] | None = None,
    *,
    patch: int | None = None,
    stem: str | None = None,
    recipe: str = "default",
    plain: bool = False,
    module: str = "block",
    seed: int = 0,
    progress: Progress = lambda layer: None,
) -> tuple[tuple[Feature, ...], tuple[str, ...]]:
    """Images to which neurons respond, by layer and neuron (None: all neurons together), and notes.

    ``plain``: without octaves, blur and jitter, as always for a single ``patch``. ``module``: block (its output),
    attention or mlp (``neurons_inside``).
    """
    model, notes = _image_layers(subject, stem, seed)
    takes_words = model is not subject.layers
    if module != "block":
        if 0 in (layers or ()):
            raise AtlasError("Layer 0 has no modules.", f"The layers are 1 to {model.depth}.")
        model = neurons_inside(subject, model, module)
    assert model.image_shape is not None
    is_sharp = plain or patch is not None
    ascent = SHARP if is_sharp else DEFAULT
    check_recipe(recipe)
    if recipe == ORIGINAL:
        ascent = original_ascent(takes_words, is_sharp)
        seed = 999
    probe = shipped_images(model.image_shape)
    features: list[Feature] = []
    for layer in model.choose(layers):
        progress(layer)
        features += find_features(model, layer, neurons, patch=patch, ascent=ascent, seed=seed, probe=probe)
    return tuple(features), notes


def neurons_inside(subject: Subject, layers: HookedLayers, module: str) -> HookedLayers:
    """``layers`` of ``subject`` with the neurons inside a ``module`` (of MODULES) in place of each block's output.

    Raises AtlasError if the architecture does not describe them.
    """
    if module not in MODULES:
        raise AtlasError(f"Unknown module {module!r}.", f"Choose block, {' or '.join(MODULES)}.")
    shapes = {name: tuple(tensor.shape) for name, tensor in subject.model.state_dict().items()}
    modules = {
        matrix.key.layer: subject.model.get_submodule(matrix.tensor.rpartition(".")[0])
        for matrix in load_architecture(str(subject.config.get("model_type"))).locate(shapes, subject.config).matrices
        if (matrix.key.stack, matrix.key.family) == (subject.stack, MODULES[module])
    }
    if sorted(modules) != list(range(layers.depth)):
        raise AtlasError(f"The {module} neurons of {subject.name} cannot be found in every layer.", "Leave it out.")
    inside = copy.copy(layers)
    inside.blocks, inside.takes_inputs = [modules[layer] for layer in sorted(modules)], True
    return inside


def _image_layers(subject: Subject, stem: str | None, seed: int) -> tuple[HookedLayers, tuple[str, ...]]:
    """Layers that take images, and notes."""
    if subject.layers.takes_images:
        if stem is not None:
            raise AtlasError(f"{subject.name} takes images without a stem.", "Leave `stem` out.")
        return subject.layers, subject.notes
    if stem is not None and stem != "image":
        borrowed = read_now(ModelVersion(ModelRef.parse(stem)), str(subject.layers.device))
        return borrowed_patch_embedding(subject.layers, borrowed.model, borrowed.layers), subject.notes
    notes = subject.notes
    if stem is None:
        notes = (
            *notes,
            Text("it takes words, so a seeded patch embedding was put before its layers (", Call(stem="image"), ")"),
        )
    return seeded_patch_embedding(subject.layers, seed), notes
