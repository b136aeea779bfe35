"""A sentence again from each layer's output: what is read, what else it could be, and how near its output lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from indexer.errors import AtlasError
from indexer.profiles.layers import Layers
from indexer.profiles.probes import FEWEST_TOKENS, Probe, fitting_tokens
from indexer.profiles.readable import fit_readout
from indexer.profiles.recovery import (
    SeedRecipe,
    blank_start,
    criterion,
    recover,
    recover_as_seed,
    words_as_seed,
    words_of,
)
from indexer.profiles.spread import spread_of
from indexer.profiles.subject import Subject
from indexer.profiles.tokens import Tokens

RECIPES = ("default", "blank", "seed")
LINEAR_STEPS = 150
BLANK_STEPS = 400
MOST_TOKENS = 64


@dataclass(frozen=True)
class LayerWords:
    """``output`` is what the layer gives back, ``right`` the share of right tokens, ``top`` the nearest for each token.

    ``closer_ratio``: how many times nearer its output lies than that of a shifted input (the seeds' criterion; met
    above 1).
    """

    layer: int
    output: str
    right: float
    closer_ratio: float | None
    top: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Inversion:
    """``words`` are the tokens that went in."""

    model: str
    input: str
    words: tuple[str, ...]
    recipe: str
    layers: tuple[LayerWords, ...]
    notes: tuple[str, ...]


def invert_words(
    subject: Subject,
    tokens: Tokens,
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
    progress: Callable[[int], None] = lambda layer: None,
) -> Inversion:
    """Invert ``text``.

    default: a linear map fitted on random tokens, then a few steps of descent. blank: descent from the mean embedding,
    which knows nothing. seed: the seeds' own descent. ``keep``: only these output positions are seen. ``restrict``:
    the answer is sought among the tokens of the text alone.
    """
    layers = subject.layers
    ids = _ids(layers, tokens, text)
    answers = _restricted(layers, ids) if restrict else layers
    inputs = Probe("text", ids).inputs(layers)
    readout = fit_readout(layers, chosen, ids.shape[1], seed) if recipe == "default" else None
    found = []
    for layer in chosen:
        progress(layer)
        with torch.no_grad():
            target = layers.state(inputs, layer)
        # A sentence alone says little of how far outputs lie apart, but its unit only scales the loss.
        unit = spread_of(target).unit
        if recipe == "seed":
            plain = SeedRecipe(steps or SeedRecipe.steps, rate or SeedRecipe.rate)
            guess = recover_as_seed(layers, layer, target, seed, plain, keep)
            words = words_as_seed(answers, guess, top)
        else:
            start = readout.guess(layer, target) if readout else blank_start(layers, target.shape, seed)
            many = steps or (LINEAR_STEPS if readout else BLANK_STEPS)
            guess = recover(layers, layer, target, unit, start, many, keep)
            words = words_of(answers, guess, top)
        met = criterion(layers, layer, inputs, guess, seed, shift)
        best = words[0, :, 0].cpu()
        found.append(
            LayerWords(
                layer,
                tokens.text(best.tolist()),
                float((best == ids[0]).double().mean()),
                float(met.ratio[0]),
                tuple(tuple(tokens.words(row.tolist())) for row in words[0]),
            )
        )
    return Inversion(
        subject.name, text, tuple(tokens.words(ids[0].tolist())), recipe, tuple(found), subject.loaded.notes
    )


def _ids(layers: Layers, tokens: Tokens, text: str) -> torch.Tensor:
    """Raises AtlasError where the text is too short or too long."""
    ids = tokens.encode(text)
    if len(ids) < FEWEST_TOKENS:
        raise AtlasError(f"{text[:40]!r} gives {len(ids)} tokens; {FEWEST_TOKENS} are needed.", "Give a sentence.")
    most = fitting_tokens(layers, min(MOST_TOKENS, len(ids)))
    if len(ids) > most:
        raise AtlasError(f"The text gives {len(ids)} tokens; up to {most} are inverted.", "Give a shorter one.")
    return torch.tensor([ids])


def _restricted(layers: Layers, ids: torch.Tensor) -> Layers:
    """The same vocabulary, of which only the text's own tokens may be answered."""
    allowed = set(ids.flatten().tolist())
    others = [one for one in range(len(layers.tokens)) if one not in allowed]
    return Layers(lambda inputs: inputs, layers.blocks, vocabulary=layers.tokens, special_ids=others)
