"""One model's layers compared with those of its base, an untrained twin, or another model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from indexer.console.option import Option
from indexer.errors import AtlasError, require
from indexer.names import MEASURES
from indexer.sources.registry import ModelRef
from query.contract.columns import ROW_FOR_EACH_LAYER, SEED, BaseId, ModelId, Notes
from query.contract.figures import Panels, add_legend, add_title, in_rows, model_label
from query.contract.options import Base, Model, OptionalModel
from query.contract.registry import Invocation, question
from query.contract.results import Doc, Drawn, ThemeName
from query.models.lookup import version_of
from query.models.resolved import READERS
from query.shared.wording import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from indexer.profiles.single import Profile
    from query.models.reader import AtlasReader

LayerRow = dict[str, Any]
LayerRows = tuple[LayerRow, ...]
_ROW_COLUMNS = (
    "layer",
    *(part for name in MEASURES for part in (name, f"{name}_error")),
    "spread",
    "is_constant",
    "own_delta",
    "delta",
)
_AGAINST = {"base": "its base", "untrained": "an untrained twin"}
SHOWN = ("tolerance", "tolerance_own", "readable", "recovered", "verified", "reach", "cka", "drift", "image_error")
# Panels of the picture.
PANEL = (2.45, 1.8)  # inches
PANELS_IN_A_ROW = 3
# Measure → its title in a picture or on a page, and what its axis counts.
_TOKENS = "share of tokens"
PANELS = {
    "tolerance": ("Noise that hides half of the tokens", "noise / spread of the output"),
    "tolerance_own": ("The same, noise like the output", "noise / spread of the output"),
    "readable": ("Tokens that a linear map reads", _TOKENS),
    "recovered": ("Tokens that descent recovers", _TOKENS),
    "recovered_seed": ("… with the original method", _TOKENS),
    "verified": ("Tokens that exact search recovers", _TOKENS),
    "reach": ("Positions that one output uses", "positions of the input"),
    "image_error": ("Error of recovered images", "error / spread of the pixels"),
    "cka": ("Likeness to the base's layer (CKA)", "1 is the same"),
    "drift": ("Distance from the base's outputs", "distance / their spread"),
    "delta": ("Change of the weights up to here", "‖δW‖ / ‖W‖"),
}
SHARES = ("readable", "recovered", "recovered_seed", "verified", "cka")
# The sentence mentions larger differences than these.
_LEAST_RATIO = 1.2
ERRORS = 2.0  # standard errors
KEPT = 0.95


@dataclass(frozen=True)
class Profiled:
    """One model's layers. ``subject`` is base, fine_tune or untrained; ``layers`` has a row for each, in order."""

    model: str
    base: str
    subject: str
    author: str | None
    probe: str
    probe_sha256: str
    sequences: int | None
    tokens: int | None
    seed: int
    recipe: str
    stack: str
    layers: LayerRows


def read_profiled(
    atlas: AtlasReader, base: str, *, subject: str | None = None, model: str | None = None, probe: str | None = None
) -> list[Profiled]:
    """All profiles that match, newest first. ``probe`` is a sha256."""
    conditions, values = ["base = ?"], [base]
    for name, value in (("subject", subject), ("model", model), ("probe_sha256", probe)):
        if value is not None:
            conditions.append(f"{name} = ?")
            values.append(value)
    rows = atlas.rows(
        "SELECT depth_of_models.*, profiles.sequences, profiles.tokens FROM depth_of_models "
        "JOIN profiles USING (profile_id) "
        f"WHERE {' AND '.join('depth_of_models.' + condition for condition in conditions)} "
        "ORDER BY depth_of_models.made DESC, profile_id DESC, layer",
        values,
    )
    groups: dict[tuple[Any, ...], list[LayerRow]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["subject"], row["probe_sha256"], row["seed"]), []).append(row)
    profiles = []
    for profile_rows in groups.values():
        # Merge profiles of one model and probe: a measure that the newest lacks comes from an earlier profile.
        merged: dict[int, LayerRow] = {}
        for row in profile_rows:
            layer_row = merged.setdefault(row["layer"], dict(row))
            layer_row |= {name: value for name, value in row.items() if layer_row[name] is None}
        facts = {name: profile_rows[0][name] for name in Profiled.__dataclass_fields__ if name != "layers"}
        layers = ({name: merged[layer][name] for name in _ROW_COLUMNS} for layer in sorted(merged))
        profiles.append(Profiled(layers=tuple(layers), **facts))
    return profiles


def difference_error(row: LayerRow, other: LayerRow, measure: str) -> float:
    """The standard error of the difference of a measure between two models."""
    return float(((row[f"{measure}_error"] or 0) ** 2 + (other[f"{measure}_error"] or 0) ** 2) ** 0.5)


@dataclass(frozen=True, repr=False)
class Depth(Drawn):
    """The measures of a model's layers, and of the layers of the model that it is compared with.

    A row contains the measures with their standard errors, and ``delta``, ‖δW‖ over ‖W‖ up to this layer. None: not
    measured, or not applicable. ``against_layers`` and ``untrained_layers`` are empty if there is no such profile.
    """

    HAS_DETAILS = True
    # The columns of a row, as in the table ``depth_of_models``.
    TABLE_COLUMNS: ClassVar[Mapping[str, str]] = {
        "layer": "Number of the layer, from 1.",
        "tolerance": (
            "Noise on the layer's output at which half of the input's tokens are lost to the best decoder, in "
            "units of the output's own spread. Small: a little noise is enough to hide the input."
        ),
        "tolerance_own": (
            "The same with noise that has the covariance of the layer's output, so that low rank counts too."
        ),
        "readable": "Share of tokens that a linear map recovers from the output at their position, from 0 to 1.",
        "recovered": (
            "Share of tokens that 30 steps of gradient descent on the input recover from the output, from 0 to 1."
        ),
        "verified": (
            "Share of tokens that an exact search recovered, with a certificate, from 0 to 1. It is near 1 everywhere."
        ),
        "reach": (
            "Number of input positions that an output position depends on (exponential of the entropy of "
            "squared gradients)."
        ),
        "cka": (
            "Linear centred kernel alignment with the same layer of the base, from 0 to 1; 1 is the same up to "
            "rotation."
        ),
        "drift": (
            "Distance of the outputs from the base's, over the spread of the base's outputs; 0 means no difference."
        ),
        "image_error": (
            "Distance of the image found from the true one, over the spread of the true one's pixels; 0 is perfect."
        ),
        "delta": "Norm of the weight changes up to this layer, over the norm of the base's weights.",
        "own_delta": "The same for this layer alone.",
    }
    ROWS = "layers"
    TABLE = "measured"
    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("drift", "cka", "tolerance_own", "verified", "reach")

    model: ModelId
    base: BaseId
    against: Annotated[str, Doc("The model compared with: base, untrained, or an id.")]
    probe: Annotated[str, Doc("Name of the texts or images that were given to the model.")]
    sequences: Annotated[int | None, Doc("Number of inputs.")]
    tokens: Annotated[int | None, Doc("Length of the inputs; empty for images.")]
    seed: Annotated[int, SEED]
    recipe: Annotated[str, Doc("How inputs were recovered.")]
    layers: Annotated[LayerRows, ROW_FOR_EACH_LAYER]
    against_layers: Annotated[LayerRows, Doc("The same of the model compared with; empty if it has no such profile.")]
    untrained_layers: Annotated[LayerRows, Doc("The same of an untrained twin; empty if it has no such profile.")]
    sentence: Annotated[str, Doc("How the model differs from the one compared with.")]
    notes: Notes

    @property
    def headline(self) -> str:
        """How it differs from the model that it is compared with."""
        return f"{self.model}: {self.sentence}"

    @property
    def measured(self) -> list[dict[str, Any]]:
        """A row for each layer: the measures that it has, without errors."""
        present = [name for name in SHOWN if any(row[name] is not None for row in self.layers)]
        return [{"layer": row["layer"], **{name: row[name] for name in (*present, "delta")}} for row in self.layers]

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """A small panel for each measure: the model coloured, the other grey, an untrained twin dotted."""
        from matplotlib.lines import Line2D

        names = [name for name in PANELS if any(row.get(name) is not None for row in self.layers)]
        panels = Panels(in_rows(len(names), PANELS_IN_A_ROW), PANEL, theme, ax, margin=(0, 0.95), least=5.0)
        figure, colours = panels.figure, panels.colours
        has_twin = bool(self.untrained_layers) and self.against != "untrained"
        for name, panel in zip(names, panels, strict=True):
            title, axis = PANELS[name]
            panels.title(panel, title, 7.5)
            panel.set_ylabel(axis, fontsize=6.5, color=colours.ink)
            if self.against_layers:
                _draw_curve(panel, self.against_layers, name, colours.rest, "-", 2)
            if has_twin:
                _draw_curve(panel, self.untrained_layers, name, colours.ink, ":", 3)
            _draw_curve(panel, self.layers, name, colours.palette[0], "-", 4)
            low, high = panel.get_ylim()
            panel.set_ylim(*((-0.04, 1.04) if name in SHARES else (min(0, low), high + 0.05 * (high - low))))
            layers = [row["layer"] for row in self.layers]
            step = next((size for size in (1, 2, 3, 4, 6, 8) if len(layers) <= 7 * size), 12)
            panel.set_xticks(layers[step - 1 :: step])
        for panel in panels.lowest:
            panel.set_xlabel("layer", fontsize=8)

        def handle(colour: str, style: Literal["-", ":"], text: str) -> Line2D:
            marker = "o" if style == "-" else ""
            return Line2D(
                [], [], color=colour, linewidth=1.4, linestyle=style, marker=marker, markersize=2.5, label=text
            )

        other = _AGAINST.get(self.against, model_label(self.against))
        if self.model == self.base and self.against == "base":
            other = _AGAINST["untrained"]
        handles = [handle(colours.palette[0], "-", model_label(self.model))]
        if self.against_layers:
            handles.append(handle(colours.rest, "-", other))
        if has_twin and other != _AGAINST["untrained"]:
            handles.append(handle(colours.ink, ":", _AGAINST["untrained"]))
        add_legend(figure, handles, colours, 3)
        probe = f"{self.sequences} × {self.tokens} {self.probe} tokens" if self.tokens else f"{self.sequences} images"
        title = f"What the layers of {model_label(self.model, 60)} keep\nprobe: {probe}; shaded: ± a standard error"
        add_title(figure, title, colours)
        return figure


def _draw_curve(panel: Any, rows: LayerRows, name: str, colour: str, style: str, order: int) -> None:
    layers = np.array([row["layer"] for row in rows])
    values = np.array([row.get(name) for row in rows], dtype=float)  # NaN for None
    errors = np.array([row.get(f"{name}_error") or 0.0 for row in rows], dtype=float)
    if np.isnan(values).all():
        return
    low, high = values - errors, values + errors
    if name in SHARES:
        low, high = np.clip(low, 0, 1), np.clip(high, 0, 1)
    panel.fill_between(layers, low, high, color=colour, alpha=0.2, linewidth=0, zorder=order)
    marker = "o" if style == "-" else None
    panel.plot(
        layers, values, color=colour, linestyle=style, linewidth=1.4, marker=marker, markersize=2.5, zorder=order
    )


def _command(
    call: Invocation,
    model: OptionalModel = None,
    *,
    against: str,
    study: Annotated[bool, Option("Compare all profiles of a base with the changes of the weights.")] = False,
    base: str | None,
) -> None:
    if (model is None) != study:
        call.refuse("Name a MODEL, or use --study without one.")
    with call.opened() as atlas:
        call.show(atlas.depth_study(base) if model is None else atlas.depth(model, against=against, base=base))


@question(example="depth textattack/roberta-base-MNLI --out depth.png", command=_command)
def depth(
    atlas: AtlasReader,
    model: Model,
    *,
    against: Annotated[str, Option("Model to compare with.", metavar="MODEL|base|untrained")] = "base",
    base: Base = None,
    recover: bool = False,
    exact: bool = False,
    layers: Sequence[int] | None = None,
    recipe: str = "default",
    seed: int = 0,
    device: str = "cpu",
) -> Depth:
    """Show how much of its input each layer of ``model`` keeps, next to how much its weights changed.

    ``model`` may be a base. `index profile` stores profiles; a model without one is measured now and not stored.

    Note:
        ``model``: an indexed id, a base, any other Hub id or a local folder.
        ``against``: base, untrained, or another profiled model.
        ``recover`` and the arguments after it are those of `index profile`, for a model without a profile.

    Raises:
        AtlasError: the model cannot be read, or ``against`` has no profile of the same probe.
    """
    model = str(model)
    profile = _stored(atlas, model, base)
    if profile is None:
        options = {"recover": recover, "exact": exact, "recipe": recipe, "seed": seed}
        options["layers"] = None if layers is None else tuple(layers)
        profile, base_profile, twin, notes = _measured_now(atlas, model, against, base, options, device)
        other = base_profile if against == "base" else twin
    else:
        twin = _newest(atlas, profile.base, subject="untrained", probe=profile.probe_sha256)
        reference = "untrained" if profile.subject == "base" and against == "base" else against
        if reference in _AGAINST:
            other = _newest(atlas, profile.base, subject=reference, probe=profile.probe_sha256)
        else:
            other = _stored(atlas, reference, profile.base)
            if other is None:
                raise AtlasError(f"{against} has no profile in this atlas.", f"Make one: index profile {against}")
            if other.probe_sha256 != profile.probe_sha256:
                other = None
        notes = ()
        if other is None:
            reference_name = _AGAINST.get(against, against)
            hint = f"index profile --base {profile.base} --with-untrained"
            notes = (f"{reference_name} has no profile with the same probe: {hint}",)
    if profile.stack:
        notes = (f"the layers of its {profile.stack}", *notes)
    if any(row["verified"] is not None for row in profile.layers):
        certificate = "verified is a certificate, not a measure of depth: search finds the input nearly everywhere"
        notes = (certificate, *notes)
    statement = 'SELECT "read" FROM models WHERE model = ? AND base = ? AND "read" = \'sample\''
    if atlas.rows(statement, [profile.model, profile.base]):
        notes = (*notes, "a sample of its rows was read: ‖δW‖/‖W‖ are estimates")
    text = "there is nothing to compare it with."
    if other is not None:
        name = _AGAINST.get(other.subject, against) if against in _AGAINST else against
        text = sentence(profile.layers, other.layers, name)
    return Depth(
        model=profile.model if profile.subject != "untrained" else f"{profile.model} (untrained)",
        base=profile.base,
        against=against,
        probe=profile.probe,
        sequences=profile.sequences,
        tokens=profile.tokens,
        seed=profile.seed,
        recipe=profile.recipe,
        layers=profile.layers,
        against_layers=other.layers if other else (),
        untrained_layers=twin.layers if twin else (),
        sentence=text,
        notes=notes,
    )


def _newest(atlas: AtlasReader, base: str, **conditions: str) -> Profiled | None:
    profiles = read_profiled(atlas, base, **conditions)
    return profiles[0] if profiles else None


def _stored(atlas: AtlasReader, model: str, base: str | None) -> Profiled | None:
    """The stored profile of a base or an indexed model."""
    try:
        canonical = atlas.base_named(model)
    except AtlasError:
        reference = ModelRef.parse(model)
        indexed = atlas.find(reference, base) if reference.is_name else None
        return _newest(atlas, indexed.base, subject="fine_tune", model=indexed.model) if indexed else None
    return _newest(atlas, canonical, subject="base")


def _measured_now(
    atlas: AtlasReader, model: str, against: str, base: str | None, options: dict[str, Any], device: str
) -> tuple[Profiled, Profiled | None, Profiled | None, tuple[str, ...]]:
    """A model without a stored profile, its base, an untrained twin if it is compared with one, and notes."""
    atlas.require_base_elsewhere()
    require("Running a model", *READERS)
    from indexer.profiles.single import ProfileRequest, profile_now

    if against not in _AGAINST:
        raise AtlasError(f"{model} has no profile in this atlas.", f"Make one first: index profile {model}")
    version = version_of(atlas, model, base)
    profile, base_profile, twin = profile_now(
        version, ProfileRequest(**options), untrained=against == "untrained", device=device
    )

    def as_stored(profile: Profile) -> Profiled:
        identity = profile.identity
        return Profiled(
            model=identity.model,
            base=version.parent.model.id if version.parent else identity.model,
            subject=identity.subject,
            author=None,
            probe=identity.probe,
            probe_sha256=profile.probe_sha256,
            sequences=profile.sequences,
            tokens=profile.tokens,
            seed=identity.seed,
            recipe=identity.recipe,
            stack=profile.stack,
            layers=tuple({name: row.get(name) for name in _ROW_COLUMNS} for row in profile.rows()),
        )

    notes = (*profile.notes, "measured now; nothing was stored: index profile keeps it")
    references = [None if measured is None else as_stored(measured) for measured in (base_profile, twin)]
    return as_stored(profile), references[0], references[1], notes


def sentence(rows: Sequence[LayerRow], against: Sequence[LayerRow], name: str) -> str:
    """How a model's layers differ from those of ``name`` ("its base"), in a sentence; larger things first."""
    other_rows = {row["layer"]: row for row in against}

    def differs(measure: str, is_different: Callable[[float, float], bool]) -> tuple[int, float, float] | None:
        """The layer from which on all layers differ by more than chance, and both values at the last layer."""
        first, value, other_value = None, 0.0, 0.0
        for row in rows:
            other = other_rows.get(row["layer"])
            if other is None or row[measure] is None or other[measure] is None:
                return None
            value, other_value = row[measure], other[measure]
            is_beyond_chance = abs(value - other_value) > ERRORS * difference_error(row, other, measure)
            if not (is_beyond_chance and is_different(value, other_value)):
                first = None
            elif first is None:
                first = row["layer"]
        return None if first is None else (first, value, other_value)

    same = [row["layer"] for row in itertools.takewhile(lambda row: row.get("drift") == 0, rows)]
    if same and len(same) == len(rows):
        return "every layer gives exactly what its base gives."
    clauses = [f"up to layer {same[-1]} it gives exactly what its base gives"] if same else []

    readable = [row["readable"] for row in rows]
    if all(value is not None for value in readable):
        lost = differs("readable", lambda value, other_value: value < other_value)
        if min(readable) >= KEPT:
            clauses.append("keeps its input to the end: a linear map recovers it from every layer")
        elif lost is not None:
            layer, value, other_value = lost
            clauses.append(
                f"from layer {layer} on a linear map recovers less ({percent(value)} at the last; "
                f"{name} {percent(other_value)})"
            )
        else:
            clauses.append(f"a linear map recovers {percent(readable[-1])} of the tokens from its last layer")
    lost = differs("recovered", lambda value, other_value: value < other_value - 0.05)
    if lost is not None:
        layer, value, other_value = lost
        fewer = f"from layer {layer} on descent finds fewer tokens"
        clauses.append(f"{fewer} ({percent(value)} at the last; {name} {percent(other_value)})")

    lower = differs("tolerance", lambda value, other_value: value * _LEAST_RATIO < other_value)
    change = lower or differs("tolerance", lambda value, other_value: value > other_value * _LEAST_RATIO)
    if change is not None:
        layer, value, other_value = change
        ratio = max(value, other_value) / max(min(value, other_value), 1e-9)
        amount = f"{ratio:.1f}× {'less' if lower else 'more'} noise"
        clauses.append(f"from layer {layer} on up to {amount} is needed to lose a token than in {name}")
    higher = differs("reach", lambda value, other_value: value > other_value * _LEAST_RATIO)
    change = higher or differs("reach", lambda value, other_value: value * _LEAST_RATIO < other_value)
    if change is not None:
        layer, value, other_value = change
        how = "more positions" if higher else "fewer positions"
        clauses.append(f"from layer {layer} on it depends on {how} ({value:.1f} at the last; {name} {other_value:.1f})")
    return ("; ".join(clauses) or f"no layer differs from {name} by more than chance") + "."
