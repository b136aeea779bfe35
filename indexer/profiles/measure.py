"""One model against one probe: a row of measures for every layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch

from indexer.errors import Failed
from indexer.profiles.certificate import exact
from indexer.profiles.draws import standard_error
from indexer.profiles.layers import Layers, States, as_used, chosen_layers
from indexer.profiles.likeness import likeness
from indexer.profiles.neighbours import right
from indexer.profiles.pictures import SeedImageRecipe, image_error, recover_images, recover_images_as_seed
from indexer.profiles.probes import Probe
from indexer.profiles.reach import Reach, reaches
from indexer.profiles.readable import Readout, fit_readout
from indexer.profiles.recovery import (
    SeedRecipe,
    blank_start,
    criterion,
    recover,
    recover_as_seed,
    words_as_seed,
    words_of,
)
from indexer.profiles.spread import Spread, spread_of
from indexer.profiles.tolerance import Tolerance, tolerances

# Sequences that gradients of reach are taken of: M is pooled over them.
REACH_SEQUENCES = 8


@dataclass(frozen=True)
class Asked:
    """What is to be measured beside what needs no gradient on the inputs of every step.

    ``shift`` is the σ of the criterion; ``steps`` and ``rate`` override the seeds' recipe.
    """

    recover: bool = False
    exact: bool = False
    seed_recipe: bool = False
    layers: tuple[int, ...] | None = None
    seed: int = 0
    shift: float | None = None
    steps: int | None = None
    rate: float | None = None

    @property
    def names(self) -> list[str]:
        """Which measures these are, for the profile's identity."""
        extra = [name for name, is_asked in (("recover", self.recover), ("exact", self.exact)) if is_asked]
        return ["default", *extra]


@dataclass(frozen=True)
class LayerRow:
    """One layer; None is what was not asked, or says nothing here. ``rows``: the images' error by row of patches."""

    layer: int
    is_constant: bool
    spread: float
    values: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    rows: tuple[float, ...] = ()


@dataclass(frozen=True)
class Measured:
    """The rows, and h_l of the probe by layer, against which fine-tunes are measured."""

    rows: tuple[LayerRow, ...]
    states: States


def measure(
    layers: Layers,
    probe: Probe,
    asked: Asked | None = None,
    *,
    base: States | None = None,
    done: Collection[int] = (),
    progress: Callable[[str, int], None] = lambda what, layer: None,
    keep: Callable[[LayerRow], None] = lambda row: None,
) -> Measured:
    """Profile a model.

    ``base``: h_l of its base on the same probe, for drift and cka. ``done`` are layers that need not be measured;
    ``keep`` is told every row as soon as it is whole. Raises Failed("not_finite") at the first layer whose outputs
    overflow, AtlasError where a layer does not exist.
    """
    asked = asked or Asked()
    chosen = list(asked.layers) if asked.layers is not None else chosen_layers(layers.depth)
    layers.check(chosen)
    work = [layer for layer in chosen if layer not in done]
    rows = []
    if not layers.takes_images and not torch.isfinite(layers.tokens).all():
        raise Failed("not_finite", "its embeddings hold NaN or infinite values")
    with as_used(layers):
        inputs = probe.inputs(layers)
        with torch.no_grad():
            states = layers.states(inputs, chosen)
        _refuse_overflow(states)
        subject = _Subject(layers, probe, inputs, states, asked)
        subject.prepare(work, progress)
        for layer in work:
            progress("layer", layer)
            rows.append(subject.row(layer, None if base is None else base.get(layer)))
            keep(rows[-1])
    return Measured(tuple(rows), states)


def _refuse_overflow(states: States) -> None:
    for layer, hidden in sorted(states.items()):
        if not torch.isfinite(hidden).all():
            raise Failed("not_finite", f"the outputs of layer {layer} hold NaN or infinite values")


class _Subject:
    """What is known of one model while its layers are measured."""

    def __init__(self, layers: Layers, probe: Probe, inputs: torch.Tensor, states: States, asked: Asked) -> None:
        self.layers, self.probe, self.inputs, self.states, self.asked = layers, probe, inputs, states, asked
        self.spreads: dict[int, Spread] = {layer: spread_of(hidden) for layer, hidden in states.items()}
        self.tolerances: dict[int, Tolerance] = {}
        self.reaches: dict[int, Reach] = {}
        self.readout: Readout | None = None

    def prepare(self, work: Sequence[int], progress: Callable[[str, int], None]) -> None:
        """What one forward pass gives for all layers."""
        if not work:
            return
        progress("noise", 0)
        self.tolerances = tolerances(self.layers, self.inputs, self.states, self.spreads, work, self.asked.seed)
        if not self.layers.takes_images:
            progress("linear map", 0)
            self.readout = fit_readout(self.layers, work, self.probe.tokens or 1, self.asked.seed)
        progress("reach", 0)
        living = [layer for layer in work if not self.spreads[layer].is_constant]
        if living:
            self.reaches = reaches(self.layers, self.inputs[:REACH_SEQUENCES], living, self.asked.seed)

    def row(self, layer: int, base: torch.Tensor | None) -> LayerRow:
        """Everything asked of one layer."""
        self.values: dict[str, float] = {}
        self.errors: dict[str, float] = {}
        rows: tuple[float, ...] = ()
        spread = self.spreads[layer]
        self._without_gradient(layer, base)
        if self.layers.takes_images:
            rows = self._images(layer) if self.asked.recover or self.asked.seed_recipe else ()
        else:
            self._words(layer)
        return LayerRow(layer, spread.is_constant, spread.size, self.values, self.errors, rows)

    def _note(self, name: str, value: float | torch.Tensor, error: float | None = None) -> None:
        if isinstance(value, torch.Tensor):
            error = standard_error(value)
            value = float(value.double().mean())
        self.values[name] = value
        if error is not None:
            self.errors[name] = error

    def _without_gradient(self, layer: int, base: torch.Tensor | None) -> None:
        tolerance = self.tolerances[layer]
        self._note("tolerance", tolerance.value, tolerance.error)
        self._note("tolerance_own", tolerance.own, tolerance.own_error)
        if self.readout is not None and self.probe.ids is not None:
            guess = words_of(self.layers, self.readout.guess(layer, self.states[layer]))[..., 0]
            self._note("readable", right(guess, self.probe.ids))
        if layer in self.reaches:
            found = self.reaches[layer]
            self._note("reach", found.value, found.error)
            self._note("own", found.own, found.own_error)
            self._note("start_share", found.start, found.start_error)
        against = None if base is None or spread_of(base).is_constant else likeness(self.states[layer], base)
        if against is not None:
            self._note("drift", against.drift, against.drift_error)
            if not self.spreads[layer].is_constant:  # a constant is like and unlike anything
                self._note("cka", against.cka, against.cka_error)

    def _words(self, layer: int) -> None:
        ids, target = self.probe.ids, self.states[layer]
        assert ids is not None
        unit, seed = self.spreads[layer].unit, self.asked.seed
        if self.asked.recover:
            guess = recover(self.layers, layer, target, unit, blank_start(self.layers, target.shape, seed))
            self._note("recovered", right(words_of(self.layers, guess)[..., 0], ids))
            if not self.spreads[layer].is_constant:
                met = criterion(self.layers, layer, self.inputs, guess, seed, self.asked.shift)
                self._note("closer", met.is_met)
                self._note("closer_ratio", met.ratio)
        if self.asked.seed_recipe:
            recipe = SeedRecipe(self.asked.steps or SeedRecipe.steps, self.asked.rate or SeedRecipe.rate)
            guess = recover_as_seed(self.layers, layer, target, seed, recipe)
            self._note("recovered_seed", right(words_as_seed(self.layers, guess)[..., 0], ids))
        if self.asked.exact and self.readout is not None:
            found, certified = exact(self.layers, layer, target, unit, self.readout)
            self._note("verified", right(found, ids) * certified.cpu().double())

    def _images(self, layer: int) -> tuple[float, ...]:
        target = self.states[layer]
        if self.asked.seed_recipe:
            recipe = SeedImageRecipe(self.asked.steps or SeedImageRecipe.steps, self.asked.rate or SeedImageRecipe.rate)
            found = recover_images_as_seed(self.layers, layer, target, self.asked.seed, recipe)
        else:
            found = recover_images(self.layers, layer, target, self.spreads[layer].unit, self.asked.seed)
        error = image_error(self.layers, found, self.inputs)
        self._note("image_error", error.value, error.error)
        return error.rows
