"""Probes: the inputs for profiles, sequences of tokens or images from files or scikit-learn."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from indexer.errors import AtlasError, Call, Text, system_errors
from indexer.profiles.layers import FEWEST_TOKENS, TOKENS, Layers, fitting_tokens
from indexer.profiles.statistics import seeded_generator
from indexer.profiles.tokenizer import IsolatedTokenizer, require_tokenizer
from indexer.regular_files import open_regular, read_regular
from indexer.shared_state import ignored_warnings

if TYPE_CHECKING:
    from indexer.profiles.subject import Subject

_SEQUENCES = 16
_MOST_TEXT = 1 << 20
MOST_BYTES = 64 << 20  # of an image file
_MOST_PIXELS = 1 << 26
DIGITS = 14
HINT = "Give a PNG or JPEG file."
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True)
class Probe:
    """The inputs of one profile: token ids (sequences, tokens), or pixels (images, channels, height, width)."""

    name: str
    values: torch.Tensor

    @property
    def ids(self) -> torch.Tensor | None:
        """The token ids; None for images."""
        return None if self.values.is_floating_point() else self.values

    @property
    def sha256(self) -> str:
        """Checksum of the values, independent of the name."""
        content = self.values.contiguous().numpy().tobytes()
        return hashlib.sha256(f"{tuple(self.values.shape)}|".encode() + content).hexdigest()

    @property
    def sequences(self) -> int:
        """Number of sequences or images."""
        return len(self.values)

    @property
    def tokens(self) -> int | None:
        """Tokens of a sequence; None for images."""
        return None if self.ids is None else self.ids.shape[1]

    def inputs(self, layers: Layers) -> torch.Tensor:
        """The continuous input. Raises AtlasError if the model lacks one of the ids, or takes another kind of input."""
        if self.ids is None:
            if not layers.takes_images:
                raise AtlasError(
                    "This model takes words, not images.",
                    Text("Give ", Call(stem="image"), " to put a patch embedding before it."),
                )
            return self.values.to(layers.device)
        most = int(self.ids.max())
        if most >= len(layers.tokens):
            raise AtlasError(
                f"The text contains token {most}, but the model knows {len(layers.tokens)} tokens.",
                "Its tokenizer belongs to another model: use that one, or other words.",
            )
        return layers.embed(self.ids)


def random_probe(layers: Layers, sequences: int = _SEQUENCES, tokens: int = TOKENS, seed: int = 0) -> Probe:
    """Uniform random tokens without special tokens: a padding id would shift the positions of a RoBERTa."""
    return Probe("random", random_ids(layers, sequences, tokens, seed, "probe"))


def random_ids(layers: Layers, sequences: int, tokens: int, seed: int, measure: str) -> torch.Tensor:
    """Ids (sequences, tokens), drawn uniformly from the ordinary ids."""
    indices = torch.randint(len(layers.ordinary_ids), (sequences, tokens), generator=seeded_generator(seed, measure))
    return layers.ordinary_ids[indices]


def text_probe(text: str, encode: Callable[[str], Sequence[int]], tokens: int = TOKENS) -> Probe:
    """The first windows of ``tokens`` tokens, at most _SEQUENCES. Each begins with a sentence.

    Raises AtlasError if the text is too short for one window of at least FEWEST_TOKENS.
    """
    sentences = [sentence for sentence in _SENTENCE.split(text[:_MOST_TEXT]) if sentence.strip()]
    windows: list[list[int]] = []
    window: list[int] = []
    for sentence in sentences:
        window += [int(token) for token in encode(sentence if not window else f" {sentence}")]
        if len(window) >= tokens:
            windows.append(window[:tokens])
            window = []
        if len(windows) == _SEQUENCES:
            break
    if not windows:
        if len(window) < FEWEST_TOKENS:
            raise AtlasError(
                f"The text gives {len(window)} tokens; a profile needs {FEWEST_TOKENS}.", "Give more text."
            )
        windows = [window]
    return Probe("text", torch.tensor(windows))


def shipped_text() -> str:
    """The sentences that come with this package."""
    return (files("indexer.profiles") / "sentences.txt").read_text(encoding="utf-8")


def image_probe(pixels: torch.Tensor) -> Probe:
    """Images (images, channels, height, width) from 0 to 1."""
    if pixels.ndim != 4 or not len(pixels):
        raise ValueError(f"images have four dimensions, not shape {tuple(pixels.shape)}")
    return Probe("image", pixels.float())


@dataclass(frozen=True)
class ProbeChoice:
    """The probe that a user chose, checked before a model is loaded.

    ``kind``: random, text or image. ``text``, ``images``: files to use instead of those of the package.
    """

    kind: str | None = None
    text: Path | None = None
    images: tuple[Path, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.text is not None and self.kind not in (None, "text"):
            raise AtlasError(f"--text can only be used with --probe text, not {self.kind}.", "Leave one of them out.")
        if self.images and self.kind not in (None, "image"):
            raise AtlasError(f"--image can only be used with --probe image, not {self.kind}.", "Leave one of them out.")

    def name(self, takes_images: bool) -> str:
        """random, text or image; by default one that the model takes."""
        if self.text is not None:
            return "text"
        return self.kind or ("image" if takes_images or self.images else "random")

    @property
    def source(self) -> str:
        """sha256 of the user's own text or images; empty for shipped or random ones."""
        if self.text is not None:
            return hashlib.sha256(self._words().encode()).hexdigest()
        return images_sha256(self.images) if self.images else ""

    def _words(self) -> str:
        """The text. Raises AtlasError if the file cannot be read."""
        if self.text is None:
            return shipped_text()
        unreadable = f"{self.text} cannot be read"
        with (
            system_errors(lambda why: AtlasError(f"{unreadable}: {why}.", "Give a text file.")),
            open_regular(self.text, through_links=True) as file,
        ):
            return file.read(_MOST_TEXT).decode("utf-8", errors="replace")

    def probe(self, subject: Subject) -> Probe:
        """The probe for this model. Raises AtlasError if the two do not fit."""
        layers = subject.layers
        name = self.name(layers.takes_images)
        if layers.takes_images != (name == "image"):
            inputs = "images" if layers.takes_images else "words"
            raise AtlasError(f"{subject.name} takes {inputs}; --probe {name} does not fit.", "Leave --probe out.")
        if name == "image":
            shape = layers.image_shape
            assert shape is not None
            return image_probe(read_images(self.images, shape) if self.images else shipped_images(shape))
        tokens = fitting_tokens(layers, TOKENS)
        if name == "random":
            return random_probe(layers, tokens=tokens, seed=self.seed)
        tokenizer = require_tokenizer(subject.tokenizer, subject.name, "Use --probe random.")
        return text_probe(self._words(), tokenizer.encode, tokens=tokens)


def matching_probe(
    choice: ProbeChoice, subject: Subject, shared: Probe, base_tokenizer: IsolatedTokenizer | None
) -> Probe:
    """``shared``, the base's probe, if its ids mean the same in this model; else a probe of the model's own.

    With another probe than ``shared`` there is no drift, even if the ids are equal.
    """
    if shared.ids is None or subject.layers.takes_images:
        return shared
    ids = shared.ids.unique().tolist()
    if ids[-1] >= len(subject.layers.tokens):
        return choice.probe(subject)
    tokenizer = subject.tokenizer
    if tokenizer is not None and base_tokenizer is not None and tokenizer.words(ids) != base_tokenizer.words(ids):
        return choice.probe(subject)
    return shared


# ---- images, as pixels from 0 to 1


def read_image(path: Path, shape: tuple[int, int, int]) -> torch.Tensor:
    """The middle square of an image file, scaled to ``shape`` (channels, height, width), from 0 to 1.

    Raises AtlasError if it is not an image, or has more than _MOST_PIXELS by its header, which is read first.
    """
    from PIL import Image, UnidentifiedImageError

    too_many = AtlasError(f"{path} has more than {_MOST_PIXELS} pixels.", HINT)
    content = BytesIO(_content(path))
    try:
        # Pillow warns of large images, and refuses still larger images; the limit here is lower.
        with ignored_warnings(category=Image.DecompressionBombWarning), Image.open(content, formats=FORMATS) as image:
            width, height = image.size
            if width * height > _MOST_PIXELS:
                raise too_many
            side = min(width, height)
            box = ((width - side) // 2, (height - side) // 2, (width + side) // 2, (height + side) // 2)
            square = image.convert("L" if shape[0] == 1 else "RGB").resize((shape[2], shape[1]), box=box)
            pixels = np.asarray(square, dtype=np.float32) / 255
    except Image.DecompressionBombError as error:
        raise too_many from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise AtlasError(f"{path} cannot be read as an image ({type(error).__name__}).", HINT) from error
    tensor = torch.from_numpy(pixels)
    return tensor[None] if tensor.ndim == 2 else tensor.permute(2, 0, 1)


def read_images(paths: Sequence[Path], shape: tuple[int, int, int]) -> torch.Tensor:
    """Image files as (images, channels, height, width). Raises AtlasError as ``read_image``, or for a single colour."""
    images = [read_image(path, shape) for path in paths]
    for path, pixels in zip(paths, images, strict=True):
        if not float(pixels.flatten(1).std(dim=1).max()) > 0:
            raise AtlasError(f"{path} has one colour only, so no layer can lose any of it.", "Give another image.")
    return torch.stack(images)


def shipped_images(shape: tuple[int, int, int]) -> torch.Tensor:
    """scikit-learn's digits, and the middle of its two photographs, as (images, *shape)."""
    from sklearn.datasets import load_digits, load_sample_images

    digits = torch.tensor(load_digits().images[:DIGITS] / 16, dtype=torch.float32)[:, None]
    squares = list(digits)
    for image in load_sample_images().images:
        pixels = torch.tensor(np.asarray(image), dtype=torch.float32).permute(2, 0, 1) / 255
        side = min(pixels.shape[1:])
        top, left = (pixels.shape[1] - side) // 2, (pixels.shape[2] - side) // 2
        squares.append(pixels[:, top : top + side, left : left + side])
    images = []
    for square in squares:
        channels = square.mean(dim=0, keepdim=True) if shape[0] == 1 else square.expand(shape[0], -1, -1)
        scaled = torch.nn.functional.interpolate(
            channels[None], size=shape[1:], mode="bilinear", antialias=True, align_corners=False
        )
        images.append(scaled[0].clamp(0, 1))
    return torch.stack(images)


def images_sha256(paths: Sequence[Path]) -> str:
    """sha256 of the files' contents, in order. Raises AtlasError if one cannot be read."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(hashlib.sha256(_content(path)).digest())
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    """The bytes of a regular file. Raises AtlasError if it is something else, or has more than MOST_BYTES."""
    with system_errors(lambda why: AtlasError(f"{path} cannot be read: {why}.", HINT)):
        try:
            return read_regular(path, most=MOST_BYTES, through_links=True)
        except FileNotFoundError as error:
            raise AtlasError(f"There is no file {path}.", HINT) from error
