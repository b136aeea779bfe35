"""Measures the depth profile of one model at a time, in whatever process it is called, and writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.atlas import AtlasFolder
from indexer.builds.report import Result
from indexer.builds.worker import classify_error
from indexer.errors import AtlasError, Failed, ModelError, Skipped
from indexer.machine import available_memory
from indexer.network.rate_limit import share_limits
from indexer.network.session import install_session
from indexer.profiles.layers import States
from indexer.profiles.measurement import ProfileRequest, make_profile
from indexer.profiles.probes import Probe, ProbeChoice, matching_probe
from indexer.profiles.store import ProfileIdentity, ProfileStore
from indexer.profiles.subject import FullWeights, Subject, read_subject, read_weights
from indexer.profiles.tokenizer import IsolatedTokenizer
from indexer.records.identity import ModelVersion
from indexer.sources.registry import ModelRef

# Called with a model's id, what was done (``layer`` for a finished layer), and the number of the layer or 0.
OnProgress = Callable[[str, str, int], None]

_OWN_VOCABULARY = "its vocabulary differs from the base's: it was measured with its own tokens, without drift and cka"


@dataclass(frozen=True)
class ProfileUnit:
    """One model to be profiled; ``identity`` is that of its profile."""

    identity: ProfileIdentity
    relation: str
    filenames: tuple[str, ...] | None
    weight_bytes: int

    @property
    def version(self) -> ModelVersion:
        """The model at its commit. Raises Skipped if the name is not valid."""
        model = ModelRef.of_atlas(self.identity.model)
        return ModelVersion(model, self.identity.commit, self.relation, filenames=self.filenames)


@dataclass(frozen=True)
class ProfileWorker:
    """Profiles a model against its base: ``inputs`` of the probe, what to measure, and the base's h_l of that probe.

    Holds arrays, not tensors, because it is sent to other processes. ``memory``: bytes that one model may take.
    """

    atlas: Path
    request: ProfileRequest
    probe_name: str
    inputs: NDArray[Any]
    base: ModelVersion
    states: Mapping[int, NDArray[np.float32]]
    tokenizer: IsolatedTokenizer | None
    choice: ProbeChoice
    device: str
    memory: int | None = None
    on_progress: OnProgress | None = None

    @classmethod
    def of(cls, probe: Probe, states: States, **rest: Any) -> ProfileWorker:
        """From the probe and h_l as tensors."""
        return cls(
            probe_name=probe.name,
            inputs=probe.values.numpy(),
            states={layer: tensor.detach().cpu().numpy() for layer, tensor in states.items()},
            **rest,
        )

    def __call__(self, unit: ProfileUnit) -> Result[ProfileUnit]:
        """Profile one model and write each layer when it is measured. Never raises for a bad model."""
        # One thread for each model: two thread counts give different last bits, and models are what runs in parallel.
        torch.set_num_threads(1)
        install_session()
        share_limits(self.atlas)
        if self.tokenizer is not None:
            self.tokenizer.begin_question()
        try:
            subject = read_subject(
                unit.version,
                lambda: base_weights(self.base),
                device=self.device,
                tokenizer=self.tokenizer,
                memory=available_memory() if self.memory is None else self.memory,
            )
            shared = Probe(self.probe_name, torch.from_numpy(self.inputs))
            probe = matching_probe(self.choice, subject, shared, self.tokenizer)
            states: States | None = None
            # Not by hash: two vocabularies of one size draw the same ids for other words.
            if probe is shared:
                states = {layer: torch.from_numpy(state).to(self.device) for layer, state in self.states.items()}
            else:
                subject = replace(subject, notes=(*subject.notes, _OWN_VOCABULARY))
            store_profile(self.atlas, unit.identity, subject, probe, self.request, states, self.on_progress)
        except ModelError as error:
            return Result(unit, error)
        except AtlasError as error:
            return Result(unit, Skipped("does_not_fit", error.message))
        except Exception as error:
            if isinstance(error, OSError) and str(error.filename or "").startswith(str(self.atlas)):
                raise  # the atlas cannot be written to
            return Result(unit, classify_error(error))
        return Result(unit, None)

    def give_up(self, unit: ProfileUnit, error: ModelError) -> Result[ProfileUnit]:
        """The result of a model whose process died each time."""
        return Result(unit, error)


def store_profile(
    atlas: Path,
    identity: ProfileIdentity,
    subject: Subject,
    probe: Probe,
    request: ProfileRequest,
    base: States | None,
    on_progress: OnProgress | None,
) -> None:
    """Measure what is missing, and write each layer as soon as it is complete."""
    store = ProfileStore(AtlasFolder(atlas))

    def progress(what: str, layer: int) -> None:
        if on_progress is not None:
            on_progress(identity.model, what, layer)

    profile, _ = make_profile(
        identity, subject, probe, request, base=base, earlier=store.find(identity), progress=progress, keep=store.write
    )
    store.write(profile)


@lru_cache(maxsize=1)
def base_weights(base: ModelVersion) -> FullWeights:
    """All tensors of the base, which adapters are merged into; read once in a process.

    Raises Failed if they cannot be read: another try may work.
    """
    try:
        return read_weights(base)
    except Skipped as error:
        raise Failed("base_unreadable", f"its base cannot be read: {error.detail}") from error
