"""All profiled models of a base: where weights and function changed, and which models lose their input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from query.contract.columns import Authors, BaseId, Datasets, ModelId, Models, Notes
from query.contract.figures import Panels, add_legend, add_title, in_rows, label
from query.contract.options import Base
from query.contract.registry import question
from query.contract.results import Detail, Doc, Drawn, Hidden, Shown, ThemeName
from query.models.sampled import SAMPLE
from query.questions.depth.depth import LayerRow, Profiled, difference_error, read_profiled
from query.shared.statistics.authors import FEWEST_AUTHORS, AuthorRuns, spearman, too_few
from query.shared.statistics.neighbours import codes_of
from query.shared.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.models.reader import AtlasReader

# Documentation that several fields share.
_MEASURE = Doc("The column of the first table that is compared with the weight change.")
_DATA_SHARE = Doc(
    "Share of the variance between sweeps (an author's models on one dataset) that their datasets explain, from 0 to 1."
)

_CORRELATIONS = "Spearman within layers, with ‖δW‖ up to the layer"
DRAWS = 1000
_LEAST_MODELS = 5
# Measures that may depend on where the weights changed. All but _AGAINST_BASE are studied as differences to the base's.
_STUDIED = ("drift", "cka", "tolerance", "tolerance_own", "readable", "recovered", "reach", "image_error")
_AGAINST_BASE = ("drift", "cka")
# A loss of input is at least this large, and larger than this many standard errors.
LEAST_LOSS = 0.02
ERRORS = 4.0
# The picture.
PANEL = (1.35, 1.05)  # inches
COLUMNS = 6
_MOST_PANELS = 60
HIGH = 0.95  # quantile
_TIE = 1e-12  # smaller differences come from summing in another order
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Agreement:
    """Spearman's ρ between ‖δW‖/‖W‖ (``delta`` up to this layer, or ``own_delta`` of it alone) and a measure's change.

    Over models at one ``layer``, or within all layers together (None): then each layer's models are ranked separately,
    so a trend over layers that all models share does not count. ``low`` to ``high``: the 95 % interval over authors
    (``query.shared.statistics.authors.spearman``); None if there are fewer than five.
    """

    measure: Annotated[str, _MEASURE]
    layer: Annotated[int | None, Doc("Number of the layer, from 1; empty: within all layers together.")]
    of: Annotated[str, Doc("Which weight change: delta (up to the layer) or own_delta (the layer alone).")]
    models: Models
    rho: Annotated[
        float,
        Doc(
            "Spearman's rank correlation over the models of each layer, from -1 to 1, of the weight change with "
            "the change of the measure."
        ),
    ]
    low: Annotated[float | None, Doc("Lower end of the 95 % interval of rho, over authors.")]
    high: Annotated[float | None, Doc("Upper end of the 95 % interval of rho, over authors.")]


@dataclass(frozen=True)
class InputLoss:
    """A model whose layers from ``layer`` on keep less of their input than the base's, by more than ERRORS errors.

    ``value`` and ``base_value``: ``measure`` at the last layer, of the model and of the base.
    """

    model: ModelId
    measure: Annotated[str, _MEASURE]
    layer: Annotated[int, Doc("The layer from which on it keeps less of its input than the base.")]
    value: Annotated[float, Doc("The measure at the last layer.")]
    base_value: Annotated[float, Doc("The same of the base.")]
    datasets: Datasets
    delta: Annotated[
        float | None, Doc("Norm of the weight changes up to this layer, over the norm of the base's weights.")
    ]


@dataclass(frozen=True)
class DataShare:
    """How much of a measure at the last layer the data sets explain."""

    measure: Annotated[str, Doc("The measure.")]
    models: Annotated[int, Doc("Number of models that name exactly one dataset.")]
    share: Annotated[float, _DATA_SHARE]
    chance: Annotated[float, Doc("The mean of the share over random labels.")]
    p: Annotated[float, Doc("How often randomly shuffled labels score at least as high.")]


@dataclass(frozen=True, repr=False)
class DepthStudy(Drawn):
    """``layers`` has a row for each layer: mean and standard deviation over models of every measure, and the base's.

    ``data_share``: the share of the variance of a measure at the last layer that lies between data sets (η²), with the
    share expected by chance, and p. A sweep (one author, one data set) counts as one model with the mean of its models,
    and permutations move whole sweeps.
    """

    ROWS = "layers"
    FRAME = "profile_rows"
    SHEET = ("means", "correlations", "all_correlations", "losses", "explained")
    TABLE_COLUMNS: ClassVar[Mapping[str, str]] = {
        "95 %": "95 % confidence interval over authors: how far the number could move if other authors had uploaded."
    }
    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("chance", "models", "datasets", "95 %", "drift", "cka", "tolerance_own")

    base: BaseId
    probe: Annotated[str, Doc("Name of the texts or images that were given to the models.")]
    models: Models
    authors: Authors
    layers: Annotated[
        tuple[LayerRow, ...],
        Doc("A row for each layer: mean and standard deviation over models of every measure, and the base's."),
    ]
    agreement: Annotated[
        tuple[Agreement, ...], Doc("Rank correlation of the weight change with the change of each measure.")
    ]
    forgetful: Annotated[tuple[InputLoss, ...], Doc("Models that keep less of their input than the base.")]
    data_share: Annotated[
        tuple[DataShare, ...],
        _DATA_SHARE,
    ]
    profiles: Annotated[tuple[Profiled, ...], Hidden()]
    notes: Notes

    @property
    def headline(self) -> str:
        """How many models there are, and how many lose their input."""
        return (
            f"Of {counted(self.models, 'profiled model')} of {self.base}, by {counted(self.authors, 'author')}, "
            f"{len(self.forgetful)} keep less of their input than the base does."
        )

    @property
    def means(self) -> Annotated[list[dict[str, Any]], Shown("mean (± sd over models)")]:
        """The rows for eighty columns."""
        return [
            {name: row[name] if name == "layer" else f"{row[name]:.2f} ± {row[f'{name}_sd']:.2f}"
             for name in row if name == "layer" or f"{name}_sd" in row}
            for row in self.layers
        ]  # fmt: skip

    @property
    def correlations(self) -> Annotated[list[dict[str, Any]], Shown(_CORRELATIONS, in_details=False)]:
        """Those within all layers together."""
        return self._correlations([one for one in self.agreement if one.layer is None])

    @property
    def all_correlations(self) -> Annotated[list[dict[str, Any]], Shown(_CORRELATIONS), Detail()]:
        """Those of each layer as well."""
        return self._correlations(self.agreement)

    @staticmethod
    def _correlations(agreement: Sequence[Agreement]) -> list[dict[str, Any]]:
        return [
            {"measure": one.measure, "layer": "all" if one.layer is None else one.layer, "rho": one.rho,
             "95 %": "" if one.low is None else f"{one.low:.2f} to {one.high:.2f}"}
            for one in agreement if one.of == "delta"
        ]  # fmt: skip

    @property
    def losses(self) -> Annotated[list[dict[str, Any]], Shown("lose their input")]:
        """Where models keep less of their input than the base."""
        return [
            {"model": one.model, "measure": one.measure, "from layer": one.layer,
             "at the last": f"{one.value:.2f} (base {one.base_value:.2f})", "datasets": ", ".join(one.datasets)}
            for one in self.forgetful
        ]  # fmt: skip

    @property
    def explained(self) -> Annotated[tuple[DataShare, ...], Shown("explained by the data set (η²)")]:
        """What the datasets explain."""
        return self.data_share

    @property
    def profile_rows(self) -> list[dict[str, Any]]:
        """A row for each model and layer with everything; rows of the answer are means over models."""
        return [{"model": one.model, **row} for one in self.profiles for row in one.layers]

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """A small panel for each model, largest drift first: the change of the weights and of the function by layer.

        All panels have the same scales. Models that lose their input have a coloured name.
        """
        from matplotlib.lines import Line2D

        models = sorted(self.profiles, key=lambda profile: -(profile.layers[-1]["drift"] or 0.0))[:_MOST_PANELS]
        panels = Panels(in_rows(len(models), COLUMNS), PANEL, theme, ax, margin=(0.6, 1.0))
        figure, colours = panels.figure, panels.colours
        most_drift = max(row["drift"] or 0 for profile in models for row in profile.layers)
        # A quantile, so that one model that changed far more does not flatten the curves of the others.
        most_delta = float(np.quantile([profile.layers[-1]["delta"] or 0 for profile in models], HIGH)) or 1.0
        forgetful = {loss.model for loss in self.forgetful}
        first = [row[0] for row in panels.rows]
        for profile, panel in zip(models, panels, strict=True):
            layers = [row["layer"] for row in profile.layers]
            for name, scale, curve in (("delta", most_delta, 0), ("drift", most_drift or 1.0, 1)):
                values = np.array([row[name] for row in profile.layers], dtype=float) / scale
                panel.plot(layers, values, color=colours.palette[curve], linewidth=1.3, marker="o", markersize=2)
            panel.set_ylim(-0.05, 1.08)
            panel.set_xticks(layers if len(layers) <= 6 else layers[1::2])
            if panel not in panels.lowest:
                panel.set_xticklabels([])
            panel.set_yticks([0, 1], ["0", "top"] if panel in first else ["", ""])
            panel.tick_params(labelsize=6, length=2)
            colour = colours.palette[4] if profile.model in forgetful else colours.ink
            panels.title(panel, label(profile.model.rpartition("/")[2], 24), 5.5, pad=2, color=colour)
        for panel in first:
            panel.set_ylabel("change", fontsize=6.5, color=colours.ink)
        for panel in panels.lowest:
            panel.set_xlabel("layer", fontsize=6.5, color=colours.ink)
        handles = [
            Line2D([], [], color=colours.palette[0], linewidth=1.3,
                   label=f"weights: ‖δW‖/‖W‖ up to here (top and more: {most_delta:.2g})"),
            Line2D([], [], color=colours.palette[1], linewidth=1.3,
                   label=f"function: drift from the base (top: {most_drift:.2g})"),
        ]  # fmt: skip
        if forgetful:
            handles.append(Line2D([], [], linestyle="", marker="s", color=colours.palette[4], label="loses its input"))
        add_legend(figure, handles, colours, 3, 6.5)
        more = f" (the {_MOST_PANELS} that moved most)" if len(self.profiles) > _MOST_PANELS else ""
        title = (
            f"Where weights and function changed, layer by layer\n{self.models} fine-tunes of {label(self.base)}{more}"
        )
        add_title(figure, title, colours)
        return figure


@question()
def depth_study(atlas: AtlasReader, base: Base = None, *, seed: int = 0) -> DepthStudy:
    """The profiles of all models of a base, compared with how much their weights changed.

    Uses the probe that most of the models were profiled with. Copies, unrelated models and duplicates are left out;
    the notes say how many. Raises AtlasError if fewer than _LEAST_MODELS models are left.
    """
    canonical = atlas.base_named(base)
    hint = f"Make them: index profile --base {canonical} --with-untrained --recover"
    profiled = read_profiled(atlas, canonical, subject="fine_tune")
    facts = {
        row["model"]: row
        for row in atlas.rows(
            "SELECT model, author, datasets, \"read\", CASE WHEN is_unrelated THEN 'unrelated to the base' "
            "WHEN copy_evidence IN ('untrained', 'unmeasurable') THEN 'adapters that changed nothing measurable' "
            "WHEN is_copy THEN 'copies of the base' WHEN duplicate_of IS NOT NULL THEN 'duplicates' "
            "WHEN is_earlier_checkpoint THEN 'earlier checkpoints of a run' END AS reason "
            "FROM models WHERE base = ?",
            [canonical],
        )
    }
    reasons = {
        profile.model: facts[profile.model]["reason"] if profile.model in facts else "no longer indexed"
        for profile in profiled
    }
    by_probe: dict[tuple[str, int], list[Profiled]] = {}
    for profile in profiled:
        if reasons[profile.model] is None:
            by_probe.setdefault((profile.probe_sha256, profile.seed), []).append(profile)
    models = max(by_probe.values(), key=len, default=[])
    chosen = {profile.model for profile in models}
    counts = Counter(
        reason or "profiled with another probe or seed" for model, reason in reasons.items() if model not in chosen
    )
    notes: tuple[str, ...] = ()
    if counts:
        notes = ("left out: " + ", ".join(f"{count} {reason}" for reason, count in counts.most_common()),)
    if len(models) < _LEAST_MODELS:
        reason = f" ({notes[0]})" if notes else ""
        raise AtlasError(
            f"{len(models)} of {len(reasons)} profiled models of {canonical} can be used, and {_LEAST_MODELS} are "
            f"needed{reason}.",
            hint,
        )
    if sampled := sum(facts[profile.model]["read"] == SAMPLE for profile in models):
        which = "all models" if sampled == len(models) else f"{sampled} of {len(models)} models"
        notes += (f"only a sample of rows was read of {which}: their ‖δW‖/‖W‖ are estimates",)
    if (authors_known := len({facts[profile.model]["author"] for profile in models})) < FEWEST_AUTHORS:
        notes += (too_few(authors_known),)
    base_profiles = read_profiled(atlas, canonical, subject="base", probe=models[0].probe_sha256)
    if not base_profiles:
        raise AtlasError(f"{canonical} itself has no profile with the same probe.", hint)
    authors = [str(facts[profile.model]["author"]) for profile in models]
    datasets = [tuple(facts[profile.model]["datasets"]) for profile in models]
    layers = [row["layer"] for row in base_profiles[0].layers]
    base_values = {name: _column(base_profiles[0], name, layers) for name in _STUDIED}
    values = {
        name: np.array([_column(profile, name, layers) for profile in models])
        for name in (*_STUDIED, "delta", "own_delta")
    }
    changes = {name: values[name] - (0 if name in _AGAINST_BASE else base_values[name]) for name in _STUDIED}
    random = np.random.default_rng(seed)
    return DepthStudy(
        base=canonical,
        probe=models[0].probe,
        models=len(models),
        authors=len(set(authors)),
        layers=tuple(_means(layers, values, base_values)),
        agreement=tuple(_agreements(layers, values, changes, np.array(authors))),
        forgetful=tuple(_input_losses(models, base_profiles[0], datasets)),
        data_share=tuple(_data_shares(changes, datasets, authors, random)),
        profiles=tuple(models),
        notes=notes,
    )


def _column(profile: Profiled, name: str, layers: Sequence[int]) -> Floats:
    by_layer = {row["layer"]: row[name] for row in profile.layers}
    return np.array([by_layer.get(layer) for layer in layers], dtype=float)  # NaN for None


def _means(
    layers: Sequence[int], values: Mapping[str, Floats], base_values: Mapping[str, Floats]
) -> Iterator[LayerRow]:
    """Mean and standard deviation over models, by layer, of every measure: ``values`` are (models, layers)."""
    for index, layer in enumerate(layers):
        row: LayerRow = {"layer": layer}
        for name, column in values.items():
            present = column[:, index]
            present = present[~np.isnan(present)]
            if len(present) > 1:
                row |= {name: float(present.mean()), f"{name}_sd": float(present.std(ddof=1))}
                if name in base_values and not np.isnan(base_values[name][index]):
                    row[f"{name}_base"] = float(base_values[name][index])
        yield row


def _agreements(
    layers: Sequence[int],
    values: Mapping[str, Floats],
    changes: Mapping[str, Floats],
    authors: NDArray[Any],
) -> Iterator[Agreement]:
    """By measure: within all layers, then layer by layer; then with this layer's own change, within all layers."""
    indices: list[int | None] = [None, *range(len(layers))]
    for name, change in changes.items():
        for delta_name, index in (*(("delta", index) for index in indices), ("own_delta", None)):
            chosen = slice(None) if index is None else slice(index, index + 1)
            deltas, layer_changes = values[delta_name][:, chosen], change[:, chosen]
            is_known = ~(np.isnan(deltas) | np.isnan(layer_changes)).any(axis=1)
            if is_known.sum() < _LEAST_MODELS or np.ptp(layer_changes[is_known]) == 0:
                continue
            rho, ends = spearman(deltas[is_known], layer_changes[is_known], authors[is_known])
            layer = None if index is None else layers[index]
            yield Agreement(name, layer, delta_name, int(is_known.sum()), rho, *(ends or (None, None)))


def _data_shares(
    changes: Mapping[str, Floats],
    datasets: Sequence[tuple[str, ...]],
    authors: Sequence[str],
    random: np.random.Generator,
) -> Iterator[DataShare]:
    """η² at the last layer over sweeps that name exactly one data set, and its mean over permutations."""
    named = [row for row, names in enumerate(datasets) if len(names) == 1]
    for name, change in changes.items():
        rows = [row for row in named if not np.isnan(change[row, -1])]
        values = change[rows, -1]
        if len(rows) < _LEAST_MODELS or np.ptp(values) == 0:
            continue
        runs = AuthorRuns(codes_of([authors[row] for row in rows]), [datasets[row][0] for row in rows])
        if not 1 < len(set(runs.labels)) < len(runs.labels):
            continue  # every sweep has a data set of its own, or all have one
        sweep_means = np.bincount(runs.of_model, weights=values) / runs.sizes
        label_codes = codes_of(runs.labels)
        observed = float(eta_squared(sweep_means, label_codes[None, :])[0])
        permuted = eta_squared(sweep_means, runs.permuted(label_codes, random, DRAWS))
        p = (1 + int((permuted >= observed - _TIE).sum())) / (1 + DRAWS)
        yield DataShare(name, len(rows), observed, float(permuted.mean()), p)


def eta_squared(values: Floats, groups: NDArray[np.intp]) -> Floats:
    """(draws,) the share of the variance of ``values`` (n,) that lies between the ``groups`` (draws, n)."""
    centred = values - values.mean()
    total = float(centred @ centred)
    if not total:
        return np.zeros(len(groups))
    kinds = int(groups.max()) + 1
    cells = (groups + kinds * np.arange(len(groups))[:, None]).ravel()
    shape = (len(groups), kinds)
    sums = np.bincount(cells, np.tile(centred, len(groups)), kinds * len(groups)).reshape(shape)
    sizes = np.bincount(cells, minlength=kinds * len(groups)).reshape(shape)
    return np.asarray((sums**2 / np.maximum(sizes, 1)).sum(axis=1) / total)


def _input_losses(models: Sequence[Profiled], base: Profiled, datasets: Sequence[tuple[str, ...]]) -> list[InputLoss]:
    """Models that lose their input up to the last layer, worst first; the first measure that shows it counts."""
    base_rows = {row["layer"]: row for row in base.layers}

    def is_lost(row: LayerRow, measure: str) -> bool:
        other = base_rows.get(row["layer"])
        if other is None or row[measure] is None or other[measure] is None:
            return False
        loss = other[measure] - row[measure]
        if measure == "image_error":
            loss = -loss
        return bool(loss > max(ERRORS * difference_error(row, other, measure), LEAST_LOSS))

    losses = []
    for profile, names in zip(models, datasets, strict=True):
        last = profile.layers[-1]
        for measure in ("recovered", "readable", "image_error"):
            if is_lost(last, measure):
                intact = [row["layer"] for row in profile.layers if not is_lost(row, measure)]
                first = next(row["layer"] for row in profile.layers if not intact or row["layer"] > intact[-1])
                base_value = base_rows[last["layer"]][measure]
                losses.append(InputLoss(profile.model, measure, first, last[measure], base_value, names, last["delta"]))
                break
    return sorted(losses, key=lambda loss: loss.value - loss.base_value)
