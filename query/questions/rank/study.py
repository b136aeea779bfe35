"""How the rank of δW, or of W, varies with depth: the mean over models by family and layer, and the law that fits best.

The rank at a threshold is the smallest r for which the r largest singular values contain that share of Σ σ²
(``indexer.records.record``). Each model counts once: copies of the base, unrelated models and duplicates are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from indexer.console.option import Option
from indexer.errors import AtlasError, Call, Text
from query.contract.columns import FAMILY, LAYER, LEFT_OUT, BaseId, Models, Notes
from query.contract.figures import Panels, add_legend, add_title, label
from query.contract.options import Base
from query.contract.registry import question
from query.contract.results import Detail, Doc, Drawn, If, Shown, Spread
from query.models.population import LeftOut
from query.models.sampled import note_on_sampled
from query.questions.rank.fits import Fit, best_fit, fit_forms
from query.questions.rank.values import checked_relations, countable_models, one_model, read_ranks
from query.shared.statistics.authors import (
    FEWEST_AUTHORS,
    MOST_UNITS,
    independent_changes,
    too_few,
    uncertainty,
    units_of,
)
from query.shared.wording import counted, decimal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.contract.results import ThemeName
    from query.models.reader import AtlasReader

SYMBOLS = {"delta": "δW", "weights": "W"}
FEWEST_MODELS = 3  # for an equation: that of one model, or of two, would say nothing of the others
_DIGITS = 6  # width of a rank in a table: ranks up to 9999.9 stay aligned
_NAMES_SHOWN = 3
# Singular values from a Gram matrix are accurate for shares of the energy up to this one
# (``indexer.deltas.svd.spectrum``).
_FINEST_THRESHOLD = 0.9999
# The picture.
PANEL = (2.0, 1.5)  # inches
_SMOOTH = 200  # points of a dashed curve
_DASHES = (0, (4, 3))
_WIDEST_LEGEND = 6.0  # inches: its four entries side by side
_FEED_FORWARD = ("gate", "feedforward1", "feedforward2")
_COLOURED = ("query", "key", "value", "output", *_FEED_FORWARD)  # cross-attention and fused matrices share the colours
KINDS = ("cross", "ssm", "conv", "expert")  # families of other kinds begin with these; each kind has a row


@dataclass(frozen=True)
class FamilyRanks:
    """One family of one stack; every column is by layer, from 0.

    Attributes:
        ranks: the mean over models, None where no model is known or changed.
        spread: the standard deviation over models (n − 1 in the denominator; None for fewer than two).
        counts: the number of models behind both.
        fit: the best of the ``fits`` (:func:`query.questions.rank.fits.best_fit`); both are empty for fewer than
            FEWEST_MODELS models.
        low, high: the ends of the 95 % interval of the mean over authors
            (:func:`query.shared.statistics.authors.uncertainty`); None for fewer than five authors.
    """

    ranks: Annotated[
        tuple[float | None, ...], Doc("Rank by layer, the mean over models; empty where no model changed.")
    ]
    spread: Annotated[tuple[float | None, ...], Doc("Standard deviation over models, by layer.")]
    fit: Annotated[Fit | None, Doc("The equation that fits best.")]
    counts: Annotated[tuple[int, ...], Doc("Number of models, by layer.")]
    fits: Annotated[tuple[Fit, ...], Doc("All equations that were fitted.")]
    low: Annotated[
        tuple[float | None, ...], Doc("Lower end of the 95 % interval of the mean over authors, by layer.")
    ] = ()
    high: Annotated[tuple[float | None, ...], Doc("Upper end of that interval.")] = ()

    @property
    def has_interval(self) -> bool:
        """Whether there are enough authors at some layer."""
        return any(end is not None for end in self.low)

    @property
    def mean(self) -> float | None:
        """The mean over the known layers."""
        ranks = [rank for rank in self.ranks if rank is not None]
        return sum(ranks) / len(ranks) if ranks else None


@dataclass(frozen=True)
class LayerRank:
    """The ranks of one family and layer."""

    family: Annotated[str, FAMILY]
    layer: Annotated[int, LAYER]
    rank: Annotated[
        float | None,
        Doc(
            "Directions that hold the --threshold (by default half) of the energy Σσ² of a matrix, averaged over "
            "models. "
            "Small: a simple change."
        ),
    ]
    spread: Annotated[float | None, Doc("Standard deviation over models.")]
    models: Models
    fitted: Annotated[float | None, Doc("The rank by the equation that fits best.")]


@dataclass(frozen=True, repr=False)
class RankStudy(Drawn):
    """The ranks of one base's models, or of one ``model``, by family and layer.

    Attributes:
        of: "delta" or "weights".
        models: the number of models in the mean.
        lacking: models whose records lack singular values; they are not in the mean.
        left_out: counts of the models that a study never includes.
    """

    ROWS = "ranks"
    SHEET = (
        "base", "model", "measured", "models", "relations", "without_spectra", "best_fits", "all_fits", "by_layer"
    )  # fmt: skip
    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("form", "loo_error", "aicc", "parameters")

    base: BaseId
    of: Annotated[str, Doc("What is measured: delta or weights.")]
    threshold: Annotated[float, Doc("Share of the energy Σσ² that the rank must hold.")]
    models: Models
    families: Annotated[Mapping[str, FamilyRanks], Doc("The ranks of each family.")]
    model: Annotated[str | None, Doc("The one model asked for; empty for all."), If(in_tables=True)]
    relations: Annotated[tuple[str, ...], Doc("The relations asked for; empty for all."), If(in_tables=True)]
    whole: Annotated[bool, Doc("Whether fused matrices were taken whole.")]
    left_out: Annotated[LeftOut, LEFT_OUT]
    lacking: Annotated[tuple[str, ...], Doc("Models whose records lack singular values.")]
    notes: Notes

    @property
    def ranks(self) -> list[LayerRank]:
        """The rows."""
        rows = []
        for name, family in self.families.items():
            depth = range(len(family.ranks))
            fitted = family.fit.at(depth).tolist() if family.fit else [None for _ in depth]
            columns = zip(depth, family.ranks, family.spread, family.counts, fitted, strict=True)
            rows += [LayerRank(name, *row) for row in columns]
        return rows

    @property
    def has_interval(self) -> bool:
        """Whether means have an interval over authors."""
        return any(family.has_interval for family in self.families.values())

    @property
    def mean_rank(self) -> float | None:
        """The mean over families of their means over layers; None if no rank is known."""
        means = [family.mean for family in self.families.values() if family.mean is not None]
        return sum(means) / len(means) if means else None

    @property
    def headline(self) -> str:
        """The mean rank, and the families with the lowest and the highest."""
        means = {name: family.mean for name, family in self.families.items() if family.mean is not None}
        if not means:
            return f"No rank of {SYMBOLS[self.of]} is known for {self.base}."
        low, high = min(means, key=lambda name: means[name]), max(means, key=lambda name: means[name])
        range_text = (
            f", from {decimal(means[low], 1)} ({low}) to {decimal(means[high], 1)} ({high})" if low != high else ""
        )
        return (
            f"{100 * self.threshold:g} % of the energy of {SYMBOLS[self.of]} lies in "
            f"{decimal(self.mean_rank, 1)} directions on average over the layers of "
            f"{self.model or counted(self.models, 'model')}{range_text}."
        )

    @property
    def measured(self) -> Annotated[str, Shown("rank of")]:
        """What has the rank, in words."""
        return SYMBOLS[self.of] + f" at {100 * self.threshold:g} % of the energy"

    @property
    def without_spectra(self) -> Annotated[int, Shown("lacking spectra")]:
        """How many models are ``lacking``."""
        return len(self.lacking)

    @property
    def best_fits(self) -> Annotated[list[dict[str, Any]], Shown("best fit (x = layer)", in_details=False)]:
        """The best form of each family."""
        fits = [(name, family.fit) for name, family in self.families.items() if family.fit]
        return [
            {"family": name, "equation": fit.equation, "loo_error": fit.loo_error, "form": fit.form}
            for name, fit in fits
        ]

    @property
    def all_fits(self) -> Annotated[list[dict[str, Any]], Shown("all fits (x = layer)"), Detail()]:
        """All forms of each family."""
        return [
            {"family": name, "equation": fit.equation, "loo_error": fit.loo_error, "form": fit.form, "aicc": fit.aicc,
             "parameters": fit.parameters}
            for name, family in self.families.items() for fit in family.fits
        ]  # fmt: skip

    @property
    def by_layer(self) -> Annotated[dict[str, list[dict[str, Any]]], Shown(), Spread()]:
        """The mean ranks: a table for the families of each stack, and one for those of cross-attention."""
        panels: dict[str, list[str]] = {}
        for name in self.families:
            stack, _, family_name = name.rpartition(".")
            cross = "cross-attention" if family_name.startswith("cross_") else ""
            title = ", ".join(filter(None, (stack, cross)))
            panels.setdefault(f" ({title})" if title else "", []).append(name)
        return {
            f"mean rank{title}": [
                {"layer": layer}
                | {
                    name.rpartition(".")[2]: "" if rank is None else f"{rank:{_DIGITS}.1f}"
                    for name, rank in zip(names, ranks, strict=True)
                }
                for layer, ranks in enumerate(zip_longest(*(self.families[name].ranks for name in names)))
            ]
            for title, names in panels.items()
        }

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """A panel for each family, all with one scale: its mean with its interval, and the best fit dashed.

        The band is the 95 % interval of the mean over authors; with fewer than five authors, the spread over models.
        Rows: attention, cross-attention, feed-forward and others of each stack. Behind each family, the others of its
        row are grey.
        """
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        by_row: dict[tuple[str, str], list[str]] = {}
        for name in self.families:
            stack, _, bare_name = name.rpartition(".")
            part = "feedforward" if bare_name.startswith(_FEED_FORWARD) else "attention"
            kind = bare_name.partition("_")[0]
            by_row.setdefault((stack, kind if kind in KINDS else part), []).append(name)
        rows = list(by_row.values())
        panels = Panels([len(names) for names in rows], PANEL, theme, ax, margin=(0, 0.8), least=4.0)
        figure, colours = panels.figure, panels.colours
        ranks = {name: np.array(family.ranks, dtype=float) for name, family in self.families.items()}  # None is NaN
        bands = {name: _band(family, self.has_interval) for name, family in self.families.items()}
        highest = max(float(np.nan_to_num(np.fmax(bands[name][1], ranks[name])).max()) for name in ranks)
        for names, row in zip(rows, panels.rows, strict=True):
            for name, panel in zip(names, row, strict=True):
                for other in names:
                    if other != name:
                        panel.plot(ranks[other], color=colours.rest, linewidth=0.8, alpha=0.5, zorder=1)
                family, bare_name = self.families[name], name.rpartition(".")[2]
                if bare_name.partition("_")[0] in KINDS:
                    bare_name = bare_name.partition("_")[2]
                shades = [index for index, prefix in enumerate(_COLOURED) if bare_name.startswith(prefix)]
                colour = colours.palette[(shades or [names.index(name)])[0] % len(colours.palette)]
                layers = np.arange(len(family.ranks))
                panel.fill_between(layers, *bands[name], color=colour, alpha=0.22, linewidth=0, zorder=2)
                mean: dict[str, Any] = {"linewidth": 1.4, "marker": "o", "markersize": 2.2}
                panel.plot(layers, ranks[name], color=colour, zorder=4, **mean)
                panels.title(panel, name, pad=11)
                if family.fit is not None:
                    x = np.linspace(0, layers[-1], _SMOOTH)
                    panel.plot(x, family.fit.at(x), color=colours.ink, linewidth=0.8, linestyle=_DASHES, zorder=5)
                    equation = family.fit.equation.removeprefix("rank ")
                    panel.text(0, 1.03, equation, transform=panel.transAxes, fontsize=6, color=colours.ink)
                panel.set_ylim(0, 1.06 * highest)
                # Every layer, or every second, fourth … of a deep model.
                step = next((step for step in (1, 2, 4, 5, 10) if len(layers) <= 7 * step), 20)
                panel.set_xticks(range(0, len(layers), step))
            row[0].set_ylabel("rank", fontsize=8)
        for panel in panels.rows[-1]:
            panel.set_xlabel("layer x", fontsize=8)

        curve_name = "rank of this family" if self.model else "mean rank of this family"
        handles: list[Any] = [Line2D([], [], color=colours.ink, label=curve_name, **mean)]
        if self.has_interval or any(np.isfinite(band[0]).any() for band in bands.values()):
            band = (
                "95 % interval of the mean, over authors" if self.has_interval else "± standard deviation over models"
            )
            handles.append(Patch(color=colours.ink, alpha=0.22, linewidth=0, label=band))
        if any(family.fit for family in self.families.values()):
            handles.append(Line2D([], [], color=colours.ink, linewidth=0.8, linestyle=_DASHES, label="best fit"))
        if any(len(names) > 1 for names in rows):
            handles.append(
                Line2D([], [], color=colours.rest, linewidth=0.8, alpha=0.5, label="the row's other families")
            )
        legend_columns = 4 if figure.bbox.width / figure.dpi >= _WIDEST_LEGEND else 2
        add_legend(figure, handles, colours, legend_columns)
        base = f"fine-tunes of {label(self.base)}"
        models_text = f"{label(self.model, 48)}\none of the {base}" if self.model else f"{self.models} {base}"
        title = f"Rank of {SYMBOLS[self.of]} at {100 * self.threshold:g} % of the energy\n{models_text}"
        add_title(figure, title, colours)
        return figure


def _band(family: FamilyRanks, is_interval: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The ends of the band around the curve, by layer; NaN where it has no width."""
    if is_interval:
        low, high = (np.array(ends or [None] * len(family.ranks), dtype=float) for ends in (family.low, family.high))
        return low, high
    ranks, spread = (np.array(column, dtype=float) for column in (family.ranks, family.spread))
    return np.maximum(ranks - spread, 0), ranks + spread


@question(example="rank --base roberta-base --threshold 0.8 --out rank.png")
def rank_by_depth(
    atlas: AtlasReader,
    base: Base = None,
    *,
    threshold: Annotated[
        float, Option("Share of the energy Σ σ² that the rank must hold.", least=0, most=1, is_open=True)
    ] = 0.5,
    of: Annotated[str, Option("Measure δW, or W.", choices=("delta", "weights"))] = "delta",
    model: Annotated[str | None, Option("Only this model.", metavar="MODEL", completes="model")] = None,
    relation: Annotated[
        str | None, Option("Only these relations, e.g. finetune or finetune,adapter.", metavar="NAMES")
    ] = None,
    whole: Annotated[bool, Option("Do not split fused matrices (GPT-2's c_attn).")] = False,
) -> RankStudy:
    """Show how the rank of the change, or of the weights, varies with depth, and the equation that fits best.

    The input embedding is not included, because only the sizes of its rows' changes are known (see `query layers`).

    Returns:
        Mean rank by family and layer over the models of the base, with its spread and the forms that fit it. Copies,
        unrelated models and duplicates do not count, unless it is the one model asked for. Neither do zero deltas
        (matrices that an adapter does not touch, frozen layers); W counts even where it equals the base's. If the rank
        of some model lies beyond the singular values in its record, only models with spectra count and the others are
        lacking: the largest singular values alone give only small ranks, so including those models would bias the mean
        down.

    Raises:
        AtlasError: no model is left.
        ValueError: a threshold outside (0, 1], or another ``of``.
    """
    if not 0 < threshold <= 1 or of not in SYMBOLS:
        raise ValueError(f"no ranks of {of!r} at {threshold}")
    relations = checked_relations(relation)
    if model is None:
        canonical = atlas.base_named(base)
        candidates, left_out = countable_models(atlas, canonical, relations)
        notes = [f"left out: {', '.join(left_out.words())}"] if left_out.words() else []
        notes += note_on_sampled(atlas, canonical, left_out.sampled, "ranks", spectra=True)
    else:
        candidate, canonical, notes = one_model(atlas, model, base)
        candidates, left_out = [candidate], LeftOut()
    matrices, ranks = read_ranks(atlas, canonical, candidates, of=of, threshold=threshold, whole=whole)
    counts: NDArray[np.bool_] = np.asarray(~np.isnan(ranks).any(axis=1))
    if model is None and not counts.all():
        counts &= np.array([row["has_spectra"] for row in candidates], dtype=bool)
    if not counts.any() and model is not None:
        name = candidates[0]["model"]
        raise AtlasError(
            f"The record of {name} does not hold all singular values.",
            Text("Read it again: ", Call("add", name, canonical, spectra=True)),
        )
    if not counts.any():
        raise AtlasError(
            f"None of the {len(candidates)} models of {canonical} has all its singular values in this atlas.",
            Text("Read them: ", Call("build", canonical, spectra=True)),
        )
    changed = np.where(ranks[counts] > 0, ranks[counts], np.nan)  # without zero changes
    if np.isnan(changed).all():
        raise AtlasError(f"{model or 'Every model'} changes no matrix of {canonical}: a zero δW has no rank.", "")
    lacking = tuple(
        candidate["model"] for candidate, is_counted in zip(candidates, counts, strict=True) if not is_counted
    )
    if lacking:
        names = ", ".join(lacking[:_NAMES_SHOWN]) + (" …" if len(lacking) > _NAMES_SHOWN else "")
        lack = "model lacks spectra and does" if len(lacking) == 1 else "models lack spectra and do"
        notes.append(Text(f"{len(lacking)} {lack} not count ({names}): ", Call("build", canonical, spectra=True)))
    if threshold > _FINEST_THRESHOLD:
        notes.append("this close to all of the energy, ranks include rounding errors, except for an adapter's δW")

    authors = np.array([row["author"] for row, is_counted in zip(candidates, counts, strict=True) if is_counted])
    if len(changed) < FEWEST_MODELS:
        number = counted(len(changed), "model")
        notes.append(f"no equation is fitted: it needs at least {FEWEST_MODELS} models, and this is {number}")
    elif (author_count := len(set(authors))) < FEWEST_AUTHORS:
        notes.append(too_few(author_count))
    columns: dict[str, dict[int, Any]] = {}
    owners: dict[str, dict[int, Any]] = {}
    for column, key in zip(changed.T, matrices, strict=True):
        is_known = ~np.isnan(column)
        columns.setdefault(key.family_key, {})[key.layer] = column[is_known]
        owners.setdefault(key.family_key, {})[key.layer] = authors[is_known]
    families = {}
    for family, layers in columns.items():
        depth = range(max(layers) + 1)
        values_by_layer = [layers.get(layer, np.empty(0)) for layer in depth]
        means = tuple(float(values.mean()) if len(values) else None for values in values_by_layer)
        fits = fit_forms(means) if len(changed) >= FEWEST_MODELS else ()
        intervals = [
            mean_interval(values, owners[family].get(layer, ())) for layer, values in enumerate(values_by_layer)
        ]
        families[family] = FamilyRanks(
            ranks=means,
            spread=tuple(float(values.std(ddof=1)) if len(values) > 1 else None for values in values_by_layer),
            fit=best_fit(fits),
            counts=tuple(len(values) for values in values_by_layer),
            fits=fits,
            low=tuple(interval and interval[0] for interval in intervals),
            high=tuple(interval and interval[1] for interval in intervals),
        )
    return RankStudy(
        base=canonical,
        of=of,
        threshold=threshold,
        models=len(changed),
        families=families,
        model=candidates[0]["model"] if model is not None else None,
        relations=relations,
        whole=whole,
        left_out=left_out,
        lacking=lacking,
        notes=tuple(notes),
    )


def mean_interval(values: NDArray[np.float64], authors: Sequence[str]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of ``values`` over their ``authors``; None for fewer than five of them.

    Ranks are positive, so the interval is symmetric for the logarithm of the mean.
    """
    if len(set(authors)) < FEWEST_AUTHORS:
        return None
    units = units_of(list(authors), MOST_UNITS)
    weights = np.bincount(units) / len(values)
    mean = float(values.mean())
    changes = independent_changes(weights, np.bincount(units, values) / len(values), mean)
    return uncertainty(weights, changes).of_loss(mean)
