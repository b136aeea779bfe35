"""Measure a model with a probe: a row of measures for every layer, and the profile of all rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.errors import AtlasError, BadArgument, Call, Failed, Text
from indexer.names import MEASURES
from indexer.profiles.layers import Layers, States, eval_mode, nearest_tokens
from indexer.profiles.probes import Probe
from indexer.profiles.recovery import (
    blank_start,
    criterion,
    decode_as_original,
    exact_search,
    fit_readout,
    image_error,
    read_off,
    recover,
    recover_as_original,
    recover_images,
    times_closer,
)
from indexer.profiles.sensitivity import receptive_fields, tolerances
from indexer.profiles.statistics import Measures, accuracy, compare_with_base, spread_of, standard_error
from indexer.profiles.store import Profile, ProfileIdentity
from indexer.profiles.subject import Subject

RECEPTIVE_FIELD_SEQUENCES = 8
_MOST_LAYERS = 1000


# The recipe of the original papers.
ORIGINAL = "original"


def check_recipe(recipe: str, *more: str) -> None:
    """Raise BadArgument unless the recipe is default, original or one of ``more``."""
    recipes = ("default", *more, ORIGINAL)
    if recipe not in recipes:
        raise BadArgument(f"Unknown recipe {recipe!r}.", f"Choose one of {', '.join(recipes)}.")


@dataclass(frozen=True)
class ProfileRequest:
    """The measures in addition to the default ones, and their settings.

    - ``recover``: recovery by descent; ``exact``: the certificate by search.
    - ``recipe``: "default", or "original" for the original papers' method, with other ``steps`` or ``rate`` if given.
    - ``layers``: only these.
    - ``shift``: σ of the criterion.

    Raises AtlasError if these contradict each other.
    """

    recover: bool = False
    exact: bool = False
    recipe: str = "default"
    layers: tuple[int, ...] | None = None
    seed: int = 0
    shift: float | None = None
    steps: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        check_recipe(self.recipe)
        if (self.steps is not None or self.rate is not None) and not self.is_original:
            raise AtlasError(
                "`steps` and `rate` are settings of the original method.", Text("Add ", Call(recipe="original"), ".")
            )

    @property
    def is_original(self) -> bool:
        """Whether the original papers' method is requested."""
        return self.recipe == ORIGINAL

    @property
    def terms(self) -> tuple[str, ...]:
        """The measures and the settings that change numbers, as part of a profile's identity."""
        measures = [name for name in ("recover", "exact") if getattr(self, name)]
        settings = {"shift": self.shift, "steps": self.steps, "rate": self.rate}
        return ("default", *measures, *(f"{name}={value:g}" for name, value in settings.items() if value is not None))


def parse_layers(text: str | None) -> tuple[int, ...] | None:
    """Layer numbers written like 1,6,12. Raises AtlasError for any other text."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > _MOST_LAYERS or not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        raise BadArgument(f"`layers` {text[:40]!r} is not a valid list of layers.", "Write it like 1,6,12.")
    layers = tuple(sorted({int(part) for part in parts}))
    if layers[0] < 1:
        raise BadArgument("There is no layer 0: that is the input of the first block.", "Layers count from 1.")
    return layers


@dataclass(frozen=True)
class LayerRow:
    """The measures of one layer and their standard errors, without those that were not requested or do not apply."""

    layer: int
    is_constant: bool
    spread: float
    values: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)

    def add(self, measures: Measures) -> None:
        """Add measures with their errors."""
        for name, (value, error) in measures.items():
            self.values[name] = value
            if error is not None:
                self.errors[name] = error

    def add_mean(self, name: str, values: torch.Tensor) -> None:
        """Add a measure that has a value for each sequence."""
        self.add({name: (float(values.double().mean()), standard_error(values))})


def measure(
    layers: Layers,
    probe: Probe,
    request: ProfileRequest | None = None,
    *,
    base: States | None = None,
    done: Collection[int] = (),
    progress: Callable[[str, int], None] = lambda what, layer: None,
    keep: Callable[[LayerRow], None] = lambda row: None,
) -> tuple[list[LayerRow], States]:
    """Profile a model. Returns the rows of its layers, and h_l of the probe by layer, to compare fine-tunes with.

    - ``base``: h_l of its base for the same probe, for drift and cka.
    - ``done``: layers that are not measured again.
    - ``progress`` is called with the name of each step and its layer (0 for all layers).
    - ``keep`` is called with every row as soon as it is complete.

    Raises Failed("not_finite") at the first layer whose
    outputs overflow, AtlasError if a layer does not exist.
    """
    request = request or ProfileRequest()
    numbers = layers.choose(request.layers)
    work = [layer for layer in numbers if layer not in done]
    if not layers.takes_images and not torch.isfinite(layers.tokens).all():
        raise Failed("not_finite", "its embeddings hold NaN or infinite values")
    with eval_mode(layers):
        inputs = probe.inputs(layers)
        with torch.no_grad():
            states = layers.states(inputs, numbers)
        for layer, hidden in sorted(states.items()):
            if not torch.isfinite(hidden).all():
                raise Failed("not_finite", f"the outputs of layer {layer} hold NaN or infinite values")
        if not work:
            return [], states
        # Measures that share a forward pass are computed for all layers at once.
        spreads = {layer: spread_of(hidden) for layer, hidden in states.items()}
        progress("noise", 0)
        tolerance = tolerances(layers, inputs, states, spreads, work, request.seed)
        readout: dict[int, torch.Tensor] = {}
        if not layers.takes_images:
            progress("linear map", 0)
            readout = fit_readout(layers, work, probe.tokens or 1, request.seed)
        progress("reach", 0)
        varying = [layer for layer in work if not spreads[layer].is_constant]
        fields: dict[int, Measures] = {}
        if varying:
            fields = receptive_fields(layers, inputs[:RECEPTIVE_FIELD_SEQUENCES], varying, request.seed)
        rows = []
        for layer in work:
            progress("layer", layer)
            hidden, spread = states[layer], spreads[layer]
            row = LayerRow(layer, spread.is_constant, spread.size)
            row.add(tolerance[layer])
            if probe.ids is not None:
                guess = nearest_tokens(layers, read_off(readout[layer], hidden))[..., 0]
                row.add_mean("readable", accuracy(guess, probe.ids))
            row.add(fields.get(layer, {}))
            if base is not None and layer in base:
                row.add(compare_with_base(hidden, base[layer]))
            if probe.ids is not None:
                _add_recovered_words(row, layers, probe.ids, hidden, spread.unit, request, readout[layer])
            elif request.recover or request.is_original:
                if request.is_original:
                    images = recover_as_original(layers, layer, hidden, request.seed, request.steps, request.rate)
                else:
                    images = recover_images(layers, layer, hidden, spread.unit, request.seed)
                value, error, _ = image_error(layers, images, inputs)
                row.add({"image_error": (value, error)})
            rows.append(row)
            keep(row)
    return rows, states


def _add_recovered_words(
    row: LayerRow,
    layers: Layers,
    ids: torch.Tensor,
    target: torch.Tensor,
    unit: float,
    request: ProfileRequest,
    linear_map: torch.Tensor,
) -> None:
    """Add the requested measures of the tokens recovered by descent and by search."""
    layer, seed = row.layer, request.seed
    if request.recover:
        guess = recover(layers, layer, target, unit, blank_start(layers, target.shape, seed))
        row.add_mean("recovered", accuracy(nearest_tokens(layers, guess)[..., 0], ids))
        if not row.is_constant:
            guess_distances, shifted_distances = criterion(layers, layer, layers.embed(ids), guess, seed, request.shift)
            row.add_mean("closer", guess_distances < shifted_distances)
            row.add_mean("closer_ratio", times_closer(guess_distances, shifted_distances))
    if request.is_original:
        guess = recover_as_original(layers, layer, target, seed, request.steps, request.rate)
        row.add_mean("recovered_seed", accuracy(decode_as_original(layers, guess)[..., 0], ids))
    if request.exact:
        words, certified = exact_search(layers, layer, target, unit, linear_map)
        row.add_mean("verified", accuracy(words, ids) * certified.cpu().double())


def make_profile(
    identity: ProfileIdentity,
    subject: Subject,
    probe: Probe,
    request: ProfileRequest,
    *,
    base: States | None = None,
    earlier: Profile | None = None,
    progress: Callable[[str, int], None] = lambda what, layer: None,
    keep: Callable[[Profile], None] = lambda profile: None,
) -> tuple[Profile, States]:
    """Measure the layers that the profile ``earlier`` of an interrupted run lacks.

    Also returns h_l of the probe, to compare fine-tunes with. ``keep`` is called with the complete layers after each
    layer, so that an interrupted run loses none. Raises Failed if activations overflow.
    """
    started = time.process_time()
    rows: list[LayerRow] = []
    for row in [] if earlier is None else earlier.rows():
        values = {name: row[name] for name in MEASURES if row[name] is not None}
        errors = {name: row[f"{name}_error"] for name in MEASURES if row[f"{name}_error"] is not None}
        rows.append(LayerRow(row["layer"], row["is_constant"], row["spread"], values, errors))
    done = [row.layer for row in rows]

    def profile(is_complete: bool) -> Profile:
        rows.sort(key=lambda row: row.layer)
        columns = _columns([row.values for row in rows])
        return Profile(
            identity=identity,
            layers=np.array([row.layer for row in rows], dtype=np.int64),
            is_constant=np.array([row.is_constant for row in rows], dtype=bool),
            values=columns | {"spread": np.array([row.spread for row in rows], dtype=np.float32)},
            errors=_columns([row.errors for row in rows]),
            is_complete=is_complete,
            stack=subject.stack,
            probe_sha256=probe.sha256,
            sequences=probe.sequences,
            tokens=probe.tokens,
            device=str(subject.layers.device),
            threads=torch.get_num_threads(),
            cpu_seconds=time.process_time() - started + (earlier.cpu_seconds if earlier else 0.0),
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            notes=subject.notes,
        )

    def keep_row(row: LayerRow) -> None:
        rows.append(row)
        keep(profile(is_complete=False))

    _, states = measure(subject.layers, probe, request, base=base, done=done, progress=progress, keep=keep_row)
    return profile(is_complete=True), states


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, NDArray[np.float32]]:
    """A column for each measure of any row, with NaN in rows that lack it."""
    return {
        name: np.array([row.get(name, np.nan) for row in rows], dtype=np.float32)
        for name in MEASURES
        if any(name in row for row in rows)
    }
