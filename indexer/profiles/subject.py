"""One model to be profiled: read from a folder or the Hub, ready to be asked."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from indexer.atlas import file_name
from indexer.errors import Failed, ModelError, Skipped
from indexer.names import ModelRef
from indexer.profiles.hooked import HookedLayers
from indexer.profiles.loading import LoadedModel, load, untrained
from indexer.profiles.tokens import Tokens, tokens_of
from indexer.profiles.weights import FullWeights, full_weights, merged_weights
from indexer.storage.checksums import user_cache
from indexer.weights.checkpoint import Checkpoint, open_checkpoint

MOST_PREPROCESSOR = 1 << 20
# What a profile takes beside the weights: activations of a probe, and the sums of a regression.
WORKING_BYTES = 256 << 20
Normalisation = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Source:
    """Where a model's files are: ``commit`` and ``filenames`` save asking the Hub where they are known."""

    reference: ModelRef
    commit: str | None = None
    filenames: tuple[str, ...] | None = None
    relation: str = "finetune"


@dataclass(frozen=True)
class Subject:
    """A model in memory. ``tokens`` is None where it has no tokenizer, ``stack`` "encoder" where it has two stacks."""

    name: str
    commit: str | None
    loaded: LoadedModel
    tokens: Tokens | None
    normalisation: Normalisation | None

    @property
    def layers(self) -> HookedLayers:
        """Its layers."""
        return self.loaded.layers

    def noted(self, note: str) -> Subject:
        """With one note more."""
        return replace(self, loaded=replace(self.loaded, notes=(*self.loaded.notes, note)))

    def twin(self, seed: int, device: str) -> Subject:
        """The same architecture with fresh weights."""
        special = self.tokens.special_ids if self.tokens else ()
        made = untrained(self.loaded.config, seed, device=device, special_ids=special, normalisation=self.normalisation)
        return replace(self, name=f"{self.name} (untrained)", loaded=made)


def read_subject(
    source: Source,
    base: Callable[[], FullWeights] | None = None,
    *,
    device: str = "cpu",
    tokens: Tokens | None = None,
    conversion: Callable[[], str | None] | None = None,
    memory: int | None = None,
) -> Subject:
    """Read and load a model; ``base`` gives the weights that an adapter is merged into.

    ``tokens`` stand in for its own where it has none; ``memory``: bytes that it may take.

    Raises Skipped where these files can never be profiled, Failed where another try may work.
    """
    checkpoint = open_checkpoint(
        source.reference,
        commit=source.commit,
        filenames=source.filenames,
        relation=source.relation,
        conversion=conversion,
    )
    try:
        _check_memory(checkpoint, memory)
        if checkpoint.kind == "adapter":
            if base is None:
                raise Skipped("adapter_unsupported", "it is an adapter, and its base is not known")
            weights = merged_weights(checkpoint, base())
        else:
            weights = full_weights(checkpoint)
        own = tokens_of(checkpoint) or tokens
        normalisation = _normalisation(checkpoint)
    finally:
        checkpoint.close()
    special = own.special_ids if own else ()
    loaded = load(weights, device=device, special_ids=special, normalisation=normalisation)
    return Subject(source.reference.id, checkpoint.commit, loaded, own, normalisation)


def read_weights(source: Source) -> FullWeights:
    """All tensors of a full checkpoint. Raises Skipped and Failed as reading does."""
    checkpoint = open_checkpoint(source.reference, commit=source.commit, filenames=source.filenames)
    try:
        return full_weights(checkpoint)
    finally:
        checkpoint.close()


def kept_base(source: Source) -> Source:
    """A base's full weights in the user's cache, fetched once; a local folder as it is.

    Raises Skipped and Failed as reading does.
    """
    if source.reference.folder is not None or source.commit is None:
        return source
    folder = user_cache() / "weights" / f"{file_name(source.reference.id)}@{source.commit}"
    if not (folder / "model.safetensors").is_file():
        checkpoint = open_checkpoint(source.reference, commit=source.commit, filenames=source.filenames)
        try:
            if not checkpoint.is_remote:
                return source  # it lies in a cache already
            _keep(checkpoint, folder)
        except OSError as error:
            raise Failed("not_kept", f"{folder} cannot be written to: {error.strerror}") from error
        finally:
            checkpoint.close()
    return Source(ModelRef(source.reference.id, folder=folder))


def _keep(checkpoint: Checkpoint, folder: Path) -> None:
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        full_weights(checkpoint).write(temporary)
        for name in ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "preprocessor_config.json"):
            content = checkpoint.read_beside(name, 64 << 20)
            if content is not None:
                (temporary / name).write_bytes(content)
        if not folder.exists():
            temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_memory(checkpoint: Checkpoint, memory: int | None) -> None:
    """Raises Failed where the weights, once as stored and once as float32, are more than there is."""
    stored = sum(info.nbytes for info in checkpoint.tensors.values())
    numbers = sum(math.prod(info.shape) for info in checkpoint.tensors.values())
    needed = stored + 4 * numbers + WORKING_BYTES
    if checkpoint.kind == "full" and memory is not None and needed > memory:
        raise Failed("out_of_memory", f"it takes {needed >> 20} MiB, and {memory >> 20} MiB are free")


def _normalisation(checkpoint: Checkpoint) -> Normalisation | None:
    """Mean and standard deviation of pixels by channel, where the repository says them."""
    try:
        content = checkpoint.read_beside("preprocessor_config.json", MOST_PREPROCESSOR)
        said: Any = json.loads(content or b"null")
    except (ModelError, ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    found: list[Any] = [said.get("image_mean"), said.get("image_std")]
    for values in found:
        are_numbers = isinstance(values, list) and all(
            type(one) in (int, float) and math.isfinite(one) for one in values
        )
        if not are_numbers or not 1 <= len(values) <= 64:
            return None
    if any(one <= 0 for one in found[1]):
        return None
    return [float(one) for one in found[0]], [float(one) for one in found[1]]
