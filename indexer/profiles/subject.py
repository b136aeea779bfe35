"""One model to be profiled, read from a folder or the Hub."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from huggingface_hub import hf_hub_download

from indexer.errors import Failed, ModelError, Skipped
from indexer.names import ModelRef
from indexer.network.hub_errors import as_model_error
from indexer.network.session import ensure_session
from indexer.profiles.layers import HookedLayers
from indexer.profiles.loading import layers_of, load, load_untrained
from indexer.profiles.tokenizer import IsolatedTokenizer, tokenizer_of
from indexer.profiles.weights import FullWeights, full_weights, merged_weights
from indexer.weights.checkpoint import Checkpoint, open_checkpoint

MOST_PREPROCESSOR = 1 << 20
# Memory that a profile takes in addition to the weights: activations of a probe, and the sums of a regression.
WORKING_BYTES = 256 << 20
Normalisation = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Source:
    """Where a model's files are. Where known, ``commit`` and ``filenames`` save a request to the Hub."""

    reference: ModelRef
    commit: str | None = None
    filenames: tuple[str, ...] | None = None
    relation: str = "finetune"


@dataclass(frozen=True)
class Subject:
    """A model in memory. ``tokenizer`` is None if it has none.

    ``stack`` is "encoder" if it has two stacks (``layers`` are the encoder's), else empty.
    """

    name: str
    commit: str | None
    model: Any
    layers: HookedLayers
    config: Mapping[str, Any]
    stack: str = ""
    notes: tuple[str, ...] = ()
    tokenizer: IsolatedTokenizer | None = None
    normalisation: Normalisation | None = None

    @classmethod
    def of(
        cls,
        loaded: tuple[Any, str],
        name: str,
        config: Mapping[str, Any],
        *,
        commit: str | None = None,
        notes: tuple[str, ...] = (),
        tokenizer: IsolatedTokenizer | None = None,
        normalisation: Normalisation | None = None,
        device: str = "cpu",
    ) -> Subject:
        """From what ``load`` or ``load_untrained`` returned. Raises Skipped if it cannot be profiled."""
        model, stack = loaded
        model = model.to(device).eval().requires_grad_(False)
        special_ids = tokenizer.special_ids if tokenizer else ()
        layers = layers_of(model, config, stack, special_ids=special_ids, normalisation=normalisation)
        if stack:
            notes = (*notes, "the layers of its encoder; those of the decoder also depend on a second input")
        return cls(name, commit, model, layers, config, stack, notes, tokenizer, normalisation)

    def twin(self, seed: int, device: str) -> Subject:
        """The same architecture with fresh weights."""
        return Subject.of(
            load_untrained(self.config, seed),
            f"{self.name} (untrained)",
            self.config,
            commit=self.commit,
            tokenizer=self.tokenizer,
            normalisation=self.normalisation,
            device=device,
        )


def read_subject(
    source: Source,
    base: Callable[[], FullWeights] | None = None,
    *,
    device: str = "cpu",
    tokenizer: IsolatedTokenizer | None = None,
    memory: int | None = None,
) -> Subject:
    """Read and load a model; ``base`` returns the weights that an adapter is merged into.

    ``tokenizer`` is used if the model has none of its own; ``memory``: bytes that the model may take.

    Raises Skipped if these files can never be profiled, Failed if another try may work.
    """
    checkpoint = open_checkpoint(
        source.reference, commit=source.commit, filenames=source.filenames, relation=source.relation
    )
    try:
        # The weights once as stored and once as float32.
        infos = checkpoint.tensors.values()
        needed = sum(info.nbytes + 4 * math.prod(info.shape) for info in infos) + WORKING_BYTES
        if checkpoint.kind == "full" and memory is not None and needed > memory:
            raise Failed("out_of_memory", f"it needs {needed >> 20} MiB of memory, and {memory >> 20} MiB are free")
        if checkpoint.kind != "adapter":
            weights = full_weights(checkpoint)
        elif base is not None:
            weights = merged_weights(checkpoint, base())
        else:
            raise Skipped("adapter_unsupported", "it is an adapter, and its base is not known")
        own = tokenizer_of(checkpoint) or tokenizer
        normalisation = _normalisation(checkpoint)
    finally:
        checkpoint.close()
    return Subject.of(
        load(weights),
        source.reference.id,
        weights.config,
        commit=checkpoint.commit,
        notes=weights.notes,
        tokenizer=own,
        normalisation=normalisation,
        device=device,
    )


def read_weights(source: Source) -> FullWeights:
    """All tensors of a full checkpoint. Raises Skipped and Failed as reading does."""
    checkpoint = open_checkpoint(source.reference, commit=source.commit, filenames=source.filenames)
    try:
        return full_weights(checkpoint)
    finally:
        checkpoint.close()


def download_base(source: Source) -> None:
    """Download a base's weights into the Hugging Face cache, where every later read finds them.

    Raises Skipped and Failed as reading does.
    """
    if source.reference.folder is not None:
        return
    checkpoint = open_checkpoint(source.reference, commit=source.commit, filenames=source.filenames)
    checkpoint.close()
    if not checkpoint.is_remote:
        return
    ensure_session()
    try:
        for file in checkpoint.files:
            hf_hub_download(source.reference.id, file.name, revision=checkpoint.commit)
    except Exception as error:
        raise as_model_error(error) from error


def _normalisation(checkpoint: Checkpoint) -> Normalisation | None:
    """Mean and standard deviation of pixels by channel, if the repository has valid ones."""
    try:
        content = checkpoint.read_small("preprocessor_config.json", MOST_PREPROCESSOR)
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
