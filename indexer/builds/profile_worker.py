"""What a worker does with one model to be profiled: read it, measure it, write its profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.atlas import AtlasFolder
from indexer.builds.free_memory import available_memory
from indexer.builds.worker import what_it_means
from indexer.errors import AtlasError, Failed, ModelError, Skipped
from indexer.names import ModelRef
from indexer.network.session import install_session
from indexer.profiles.asking import ProbeChoice, fitting_probe
from indexer.profiles.layers import States
from indexer.profiles.make import make_profile
from indexer.profiles.measure import Asked
from indexer.profiles.probes import Probe
from indexer.profiles.store import ProfileIdentity, ProfileStore
from indexer.profiles.subject import Source, Subject, read_subject, read_weights
from indexer.profiles.tokens import Tokens
from indexer.profiles.weights import FullWeights


@dataclass(frozen=True)
class Target:
    """One model to be profiled; ``identity`` names its profile."""

    identity: ProfileIdentity
    relation: str
    filenames: tuple[str, ...] | None
    weight_bytes: int

    @property
    def model(self) -> str:
        """Its id."""
        return self.identity.model

    @property
    def source(self) -> Source:
        """Where its files are. Raises Skipped where no model can have this name."""
        return Source(ModelRef.of_atlas(self.model), self.identity.commit, self.filenames, self.relation)


@dataclass(frozen=True)
class Bench:
    """All that a worker needs besides the model: the probe, what is asked, and the base's h_l of the same probe.

    Arrays, not tensors: it travels to other processes. ``memory``: bytes that one model may take.
    """

    atlas: Path
    asked: Asked
    probe_name: str
    inputs: NDArray[Any]
    base: Source
    states: Mapping[int, NDArray[np.float32]]
    tokens: Tokens | None
    choice: ProbeChoice
    device: str
    memory: int | None = None

    @classmethod
    def of(cls, probe: Probe, states: States, **rest: Any) -> Bench:
        """With tensors as arrays."""
        held = probe.ids if probe.ids is not None else probe.pixels
        assert held is not None
        return cls(
            probe_name=probe.name,
            inputs=held.numpy(),
            states={layer: found.detach().cpu().numpy() for layer, found in states.items()},
            **rest,
        )

    @property
    def probe(self) -> Probe:
        """The inputs."""
        held = torch.from_numpy(self.inputs)
        return Probe(self.probe_name, **{"pixels" if held.is_floating_point() else "ids": held})


@dataclass(frozen=True)
class Profiled:
    """What became of one model; ``error`` is None where it has a whole profile now."""

    target: Target
    error: ModelError | None


Told = Callable[[str, int], None]
OTHER_WORDS = "its vocabulary is not the base's: it was asked with its own words, and there is no drift and no cka"


def profile_one(target: Target, bench: Bench, told: Told = lambda what, layer: None) -> Profiled:
    """Profile one model and write what was found, layer by layer. Never raises for a bad model."""
    # One thread for each model: two thread counts give different last bits, and models are what runs in parallel.
    torch.set_num_threads(1)
    install_session()
    try:
        subject = read_subject(
            target.source,
            lambda: base_weights(bench.base),
            device=bench.device,
            tokens=bench.tokens,
            memory=available_memory() if bench.memory is None else bench.memory,
        )
        shared = bench.probe
        probe = fitting_probe(bench.choice, subject, shared, bench.tokens)
        states: States | None = None
        # Not by hash: two vocabularies of one size draw the same ids for other words.
        if probe is shared:
            states = {layer: torch.from_numpy(found).to(bench.device) for layer, found in bench.states.items()}
        else:
            subject = subject.noted(OTHER_WORDS)
        store_profile(bench.atlas, target.identity, subject, probe, bench.asked, states, told)
    except ModelError as error:
        return Profiled(target, error)
    except AtlasError as error:
        return Profiled(target, Skipped("does_not_fit", error.message))
    except OSError as error:
        if error.errno is not None and error.filename is not None and str(error.filename).startswith(str(bench.atlas)):
            raise  # trouble of the atlas, not of the model
        return Profiled(target, what_it_means(error))
    except Exception as error:
        return Profiled(target, what_it_means(error))
    return Profiled(target, None)


def given_up(target: Target, error: ModelError) -> Profiled:
    """What comes of a model whose process died each time."""
    return Profiled(target, error)


def store_profile(
    atlas: Path,
    identity: ProfileIdentity,
    subject: Subject,
    probe: Probe,
    asked: Asked,
    base: States | None = None,
    told: Told = lambda what, layer: None,
) -> States:
    """Measure what is missing and write it, every layer as soon as it is whole; h_l of the probe."""
    store = ProfileStore(AtlasFolder(atlas))
    profile, states = make_profile(
        identity, subject, probe, asked, base=base, earlier=store.find(identity), progress=told, keep=store.write
    )
    store.write(profile)
    return states


@lru_cache(maxsize=1)
def _weights(base: Source) -> FullWeights:
    return read_weights(base)


def base_weights(base: Source) -> FullWeights:
    """All tensors of the base, which adapters are merged into: read once in a process.

    Raises Failed where they cannot be read: another try may work.
    """
    try:
        return _weights(base)
    except Skipped as error:
        raise Failed("base_unreadable", f"its base cannot be read: {error.detail}") from error


def forget_base() -> None:
    """Let go of the base's weights."""
    _weights.cache_clear()
