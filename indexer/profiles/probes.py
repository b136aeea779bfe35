"""What a model is asked with: sequences of tokens, or images."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

import torch

from indexer.errors import AtlasError
from indexer.profiles.draws import generator
from indexer.profiles.layers import Layers

SEQUENCES = 16
TOKENS = 16
FEWEST_TOKENS = 4
MOST_TEXT = 1 << 20

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True)
class Probe:
    """The inputs of one profile: ``ids`` (sequences, tokens), or ``pixels`` (images, channels, height, width)."""

    name: str
    ids: torch.Tensor | None = None
    pixels: torch.Tensor | None = None

    @property
    def sha256(self) -> str:
        """Of what is asked, whatever its name."""
        held = self.ids if self.ids is not None else self.pixels
        assert held is not None
        return hashlib.sha256(f"{tuple(held.shape)}|".encode() + held.contiguous().numpy().tobytes()).hexdigest()

    @property
    def sequences(self) -> int:
        """How many sequences or images."""
        held = self.ids if self.ids is not None else self.pixels
        return 0 if held is None else len(held)

    @property
    def tokens(self) -> int | None:
        """Tokens of a sequence; None for images."""
        return None if self.ids is None else self.ids.shape[1]

    def inputs(self, layers: Layers) -> torch.Tensor:
        """The continuous input. Raises AtlasError where the model lacks one of the ids, or takes something else."""
        if self.pixels is not None:
            if not layers.takes_images:
                raise AtlasError("This model takes words, not images.", "Give `stem='image'` to put patches before it.")
            return self.pixels.to(layers.device)
        assert self.ids is not None
        most = int(self.ids.max())
        if most >= len(layers.tokens):
            raise AtlasError(
                f"The text holds the token {most}; the model knows {len(layers.tokens)}.",
                "Its tokenizer is not its own: another one, or other words.",
            )
        return layers.embed(self.ids)


def fitting_tokens(layers: Layers, wanted: int = TOKENS) -> int:
    """How many tokens a sequence may have: ``wanted``, or less where the model has fewer positions.

    Raises AtlasError where not even FEWEST_TOKENS fit.
    """
    for tokens in range(wanted, FEWEST_TOKENS - 1, -1):
        try:
            with torch.no_grad():
                layers.state(layers.embed(layers.ordinary_ids[:1].expand(1, tokens)), 1)
        except (IndexError, RuntimeError):
            continue
        return tokens
    raise AtlasError(f"The model takes fewer than {FEWEST_TOKENS} tokens at a time.", "Choose another model.")


def random_probe(layers: Layers, sequences: int = SEQUENCES, tokens: int = TOKENS, seed: int = 0) -> Probe:
    """Tokens drawn evenly, special ones left out: a padding id would shift the positions of a RoBERTa."""
    return Probe("random", random_ids(layers, sequences, tokens, seed, "probe"))


def random_ids(layers: Layers, sequences: int, tokens: int, seed: int, measure: str) -> torch.Tensor:
    """Ids (sequences, tokens), drawn evenly from the ordinary ones."""
    places = torch.randint(len(layers.ordinary_ids), (sequences, tokens), generator=generator(seed, measure))
    return layers.ordinary_ids[places]


def text_probe(
    text: str, encode: Callable[[str], Sequence[int]], sequences: int = SEQUENCES, tokens: int = TOKENS
) -> Probe:
    """Windows of ``tokens`` tokens, each from the start of a sentence on, the first ``sequences`` of them.

    Raises AtlasError where the text is too short for one window of at least FEWEST_TOKENS.
    """
    sentences = [sentence for sentence in _SENTENCE.split(text[:MOST_TEXT]) if sentence.strip()]
    windows: list[list[int]] = []
    held: list[int] = []
    for sentence in sentences:
        held += [int(one) for one in encode(sentence if not held else f" {sentence}")]
        if len(held) >= tokens:
            windows.append(held[:tokens])
            held = []
        if len(windows) == sequences:
            break
    if not windows:
        if len(held) < FEWEST_TOKENS:
            raise AtlasError(f"The text gives {len(held)} tokens; a profile needs {FEWEST_TOKENS}.", "Give more text.")
        windows = [held]
    return Probe("text", torch.tensor(windows))


def shipped_text() -> str:
    """The sentences that come with this package."""
    return (files("indexer.profiles") / "sentences.txt").read_text(encoding="utf-8")


def image_probe(pixels: torch.Tensor, name: str = "image") -> Probe:
    """Images (images, channels, height, width) in the model's own range of values."""
    if pixels.ndim != 4 or not len(pixels):
        raise ValueError(f"images have four sizes, not {tuple(pixels.shape)}")
    return Probe(name, pixels=pixels.float())
