"""What a person asks of a profile, checked before anything is loaded, and the probe that follows from it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from indexer.errors import AtlasError, BadArgument
from indexer.profiles.images import images_sha256, named_images, shipped_images
from indexer.profiles.measure import Asked
from indexer.profiles.probes import (
    MOST_TEXT,
    TOKENS,
    Probe,
    fitting_tokens,
    random_probe,
    shipped_text,
    text_probe,
)
from indexer.profiles.subject import Subject
from indexer.profiles.tokens import Tokens, needed
from indexer.regular_files import open_regular

MOST_LAYERS = 1000


@dataclass(frozen=True)
class ProbeChoice:
    """``kind`` is random, text or image; ``text`` and ``images`` are files that take the place of what is shipped."""

    kind: str | None = None
    text: Path | None = None
    images: tuple[Path, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.text is not None and self.kind not in (None, "text"):
            raise AtlasError(f"--text goes with --probe text, not {self.kind}.", "Leave one of them out.")
        if self.images and self.kind not in (None, "image"):
            raise AtlasError(f"--image goes with --probe image, not {self.kind}.", "Leave one of them out.")

    def name(self, takes_images: bool) -> str:
        """random, text or image; by default what the model takes."""
        if self.text is not None:
            return "text"
        return self.kind or ("image" if takes_images or self.images else "random")

    @property
    def source(self) -> str:
        """sha256 of the user's own text or images; empty for what is shipped or drawn."""
        if self.text is not None:
            return hashlib.sha256(self.words().encode()).hexdigest()
        return images_sha256(self.images) if self.images else ""

    def words(self) -> str:
        """The text. Raises AtlasError where the file cannot be read."""
        if self.text is None:
            return shipped_text()
        try:
            with open_regular(self.text, through_links=True) as file:
                return file.read(MOST_TEXT).decode("utf-8", errors="replace")
        except OSError as error:
            raise AtlasError(f"{self.text} cannot be read: {error.strerror}.", "Give a text file.") from error

    def probe(self, subject: Subject) -> Probe:
        """The probe for this model. Raises AtlasError where the two do not fit."""
        layers = subject.layers
        name = self.name(layers.takes_images)
        if layers.takes_images != (name == "image"):
            what = "images" if layers.takes_images else "words"
            raise AtlasError(f"{subject.name} takes {what}; --probe {name} does not fit.", "Leave --probe out.")
        if name == "image":
            assert layers.image_shape is not None
            return named_images(self.images, layers.image_shape) if self.images else shipped_images(layers.image_shape)
        tokens = fitting_tokens(layers, TOKENS)
        if name == "random":
            return random_probe(layers, tokens=tokens, seed=self.seed)
        own = needed(subject.tokens, subject.name, "Use --probe random.")
        return text_probe(self.words(), own.encode, tokens=tokens)


def fitting_probe(choice: ProbeChoice, subject: Subject, shared: Probe, tokens: Tokens | None) -> Probe:
    """``shared`` itself, the base's probe, where its ids mean the same to this model; else one of its own words.

    ``tokens`` are the base's. Against another probe there is no drift, be its ids the same.
    """
    if shared.ids is None or subject.layers.takes_images:
        return shared
    ids = shared.ids.unique().tolist()
    if ids[-1] >= len(subject.layers.tokens):
        return choice.probe(subject)
    if subject.tokens is not None and tokens is not None and subject.tokens.words(ids) != tokens.words(ids):
        return choice.probe(subject)
    return shared


def checked_asked(
    *,
    recover: bool = False,
    exact: bool = False,
    layers: tuple[int, ...] | None = None,
    recipe: str = "default",
    seed: int = 0,
    shift: float | None = None,
    steps: int | None = None,
    rate: float | None = None,
) -> Asked:
    """Raises AtlasError where the wishes contradict each other."""
    if (steps is not None or rate is not None) and recipe != "seed":
        raise AtlasError("`steps` and `rate` belong to the seeds' recipe.", "Add `recipe='seed'`.")
    return Asked(
        recover=recover,
        exact=exact,
        seed_recipe=recipe == "seed",
        layers=layers,
        seed=seed,
        shift=shift,
        steps=steps,
        rate=rate,
    )


def layers_in(text: str | None) -> tuple[int, ...] | None:
    """Numbers as in 1,6,12. Raises AtlasError on anything else."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MOST_LAYERS or not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        raise BadArgument(f"`layers` {text[:40]!r} is no list of layers.", "Write it like 1,6,12.")
    found = tuple(sorted({int(part) for part in parts}))
    if found[0] < 1:
        raise BadArgument("There is no layer 0: that is the input of the first block.", "Layers count from 1.")
    return found
