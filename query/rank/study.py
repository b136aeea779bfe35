"""How the rank of δW, or of W, moves with depth: the mean over models by family and layer, and the law that fits best.

The rank at a threshold is the smallest r for which the r largest singular values hold that share of Σ σ²
(``indexer.records.record``). Each model counts once: copies of the base, unrelated models and duplicates are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.errors import AtlasError
from query.population import LeftOut
from query.rank.fits import Fit, best_fit, fit_forms
from query.rank.values import Ranks, checked_relations, countable_models, one_model, read_ranks
from query.results import Drawn
from query.wording import counted, decimal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.reader import AtlasReader
    from query.results import ThemeName

COLUMNS = ("family", "layer", "rank", "spread", "models", "fitted")
SYMBOLS = {"delta": "δW", "weights": "W"}
_DIGITS = 6  # width of a rank in a table: ranks up to 9999.9 stay aligned
_NAMES_SHOWN = 3
# Singular values from a Gram matrix are accurate for shares of the energy up to this one
# (``indexer.deltas.svd.spectrum``).
FINEST_THRESHOLD = 0.9999


@dataclass(frozen=True)
class FamilyRanks:
    """One family of one stack; every column is by layer, from 0.

    ``ranks``: the mean over models, None where no model is known or changed. ``spread``: the standard deviation over
    models (n − 1 in the denominator; None for fewer than two). ``counts``: the number of models behind both.
    """

    ranks: tuple[float | None, ...]
    spread: tuple[float | None, ...]
    counts: tuple[int, ...]
    fits: tuple[Fit, ...]

    @property
    def fit(self) -> Fit | None:
        """The best form; see :func:`query.rank.fits.best_fit`."""
        return best_fit(self.fits)

    @property
    def mean(self) -> float | None:
        """The mean over the known layers."""
        known = [rank for rank in self.ranks if rank is not None]
        return sum(known) / len(known) if known else None

    def to_dict(self) -> dict[str, Any]:
        """The documented keys first."""
        return {
            "ranks": list(self.ranks),
            "spread": list(self.spread),
            "fit": _fit_row(self.fit) if self.fit else None,
            "counts": list(self.counts),
            "fits": [_fit_row(fit) for fit in self.fits],
        }


def _fit_row(fit: Fit) -> dict[str, Any]:
    return {name: getattr(fit, name) for name in ("form", "equation", "aic", "loo_error", "aicc", "parameters")}


@dataclass(frozen=True, repr=False)
class RankStudy(Drawn):
    """The ranks of one base's models, or of one ``model``, by family and layer.

    ``of``: "delta" or "weights". ``models`` is how many are in the mean. ``lacking`` names models whose records lack
    singular values, and ``left_out`` counts those that a study never includes; neither are in the mean.
    """

    COLUMNS = COLUMNS
    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("form", "loo_error", "aicc", "parameters")

    base: str
    of: str
    threshold: float
    models: int
    families: Mapping[str, FamilyRanks]
    model: str | None
    relations: tuple[str, ...]
    whole: bool
    left_out: LeftOut
    lacking: tuple[str, ...]
    notes: tuple[str, ...]

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """A panel for each family: its mean with the spread, and the best fit dashed."""
        from query.rank.picture import rank_figure

        return rank_figure(self, theme, ax)

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON object."""
        return super().to_dict() | {"families": {name: family.to_dict() for name, family in self.families.items()}}

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each family and layer; ``fitted`` is the value of the best form there."""
        rows = []
        for name, family in self.families.items():
            depth = range(len(family.ranks))
            fitted = family.fit.at(depth).tolist() if family.fit else [None for _ in depth]
            columns = zip(depth, family.ranks, family.spread, family.counts, fitted, strict=True)
            rows += [{"family": name} | dict(zip(COLUMNS[1:], row, strict=True)) for row in columns]
        return rows

    @property
    def headline(self) -> str:
        """The mean rank, and the families with the lowest and the highest."""
        known = {name: family.mean for name, family in self.families.items() if family.mean is not None}
        if not known:
            return f"No rank of {SYMBOLS[self.of]} is known for {self.base}."
        low, high = min(known, key=lambda name: known[name]), max(known, key=lambda name: known[name])
        between = (
            f", from {decimal(known[low], 1)} ({low}) to {decimal(known[high], 1)} ({high})" if low != high else ""
        )
        return (
            f"{100 * self.threshold:g} % of the energy of {SYMBOLS[self.of]} lies in "
            f"{decimal(sum(known.values()) / len(known), 1)} directions on average over the layers of "
            f"{self.model or counted(self.models, 'model')}{between}."
        )

    def table(self, *, details: bool = False) -> dict[str, Any]:
        """The numbers of ``to_dict``, shorter: the best form of each family (``details``: all forms) and mean ranks."""
        fits: list[dict[str, Any]] = [
            {"family": name, "equation": fit.equation, "loo_error": fit.loo_error, "form": fit.form}
            | ({"aicc": fit.aicc, "parameters": fit.parameters} if details else {})
            for name, family in self.families.items()
            for fit in (family.fits if details else filter(None, [family.fit]))
        ]
        panels: dict[str, list[str]] = {}  # families shown together: those of one stack, cross-attention separately
        for name in self.families:
            stack, _, family_name = name.rpartition(".")
            cross = "cross-attention" if family_name.startswith("cross_") else ""
            title = ", ".join(filter(None, (stack, cross)))
            panels.setdefault(f" ({title})" if title else "", []).append(name)
        return {
            "base": self.base,
            **({"model": self.model} if self.model else {}),
            "rank of": SYMBOLS[self.of] + f" at {100 * self.threshold:g} % of the energy",
            "models": self.models,
            **({"relations": list(self.relations)} if self.relations else {}),
            "left out": self.left_out.words() or "none",
            "lacking spectra": len(self.lacking),
            ("all fits" if details else "best fit") + " (x = layer)": fits,
            **{f"mean rank{title}": self._by_layer(names) for title, names in panels.items()},
        }

    def _by_layer(self, names: list[str]) -> list[dict[str, Any]]:
        families = {name.rpartition(".")[2]: self.families[name].ranks for name in names}
        return [
            {"layer": layer}
            | {name: "" if rank is None else f"{rank:{_DIGITS}.1f}" for name, rank in zip(families, ranks, strict=True)}
            for layer, ranks in enumerate(zip_longest(*families.values()))
        ]


def rank_by_depth(
    atlas: AtlasReader,
    base: str | None = None,
    *,
    threshold: float = 0.5,
    of: str = "delta",
    model: str | None = None,
    relation: str | None = None,
    whole: bool = False,
) -> RankStudy:
    """Mean rank by family and layer over the models of ``base``, with its spread and the forms that fit it.

    Copies, unrelated models and duplicates do not count. Neither do zero deltas (matrices that an adapter does not
    touch, frozen layers); W counts even where it equals the base's. If the rank of some model lies beyond the singular
    values in its record, only models with spectra count (see ``Ranks.comparable``) and the others are lacking.
    ``model``: use this one alone, whatever its flags. ``relation``: only these relations, separated by commas.
    ``whole``: take fused matrices (GPT-2's c_attn) whole instead of split.

    Raises AtlasError if no model is left, and ValueError for a threshold outside (0, 1] or another ``of``.
    """
    if not 0 < threshold <= 1 or of not in ("delta", "weights"):
        raise ValueError(f"no ranks of {of!r} at {threshold}")
    relations = checked_relations(relation)
    if model is None:
        canonical = atlas.base_named(base)
        candidates, left_out = countable_models(atlas, canonical, relations)
        notes = [f"left out: {', '.join(left_out.words())}"] if left_out.words() else []
    else:
        candidate, canonical, notes = one_model(atlas, model, base)
        candidates, left_out = [candidate], LeftOut()
    ranks = read_ranks(atlas, canonical, candidates, of=of, threshold=threshold, whole=whole)
    known, lacking = _known(ranks, canonical, model)
    if lacking:
        names = ", ".join(lacking[:_NAMES_SHOWN]) + (" …" if len(lacking) > _NAMES_SHOWN else "")
        lack = "model lacks spectra and does" if len(lacking) == 1 else "models lack spectra and do"
        notes.append(f"{len(lacking)} {lack} not count ({names}): `build({canonical!r}, spectra=True)`")
    if threshold > FINEST_THRESHOLD:
        notes.append("this close to all of the energy, ranks include rounding errors, except for an adapter's δW")
    return RankStudy(
        base=canonical,
        of=of,
        threshold=threshold,
        models=len(known.values),
        families=_families(known),
        model=candidates[0].model if model is not None else None,
        relations=relations,
        whole=whole,
        left_out=left_out,
        lacking=lacking,
        notes=tuple(notes),
    )


def _known(ranks: Ranks, base: str, model: str | None) -> tuple[Ranks, tuple[str, ...]]:
    """The ranks that count, NaN for zero changes, and the names of models that lack theirs.

    Raises AtlasError if no model is left, or nothing was changed.
    """
    included = ranks.comparable if model is None else ranks.known
    if not included.any() and model is not None:
        name = ranks.candidates[0].model
        raise AtlasError(
            f"The record of {name} does not hold all singular values.",
            f"Read it again: `add({name!r}, {base!r}, spectra=True)`",
        )
    if not included.any():
        raise AtlasError(
            f"None of the {len(ranks.candidates)} models of {base} has all its singular values in this atlas.",
            f"Read them: `build({base!r}, spectra=True)`",
        )
    values = np.where(ranks.values[included] > 0, ranks.values[included], np.nan)
    if np.isnan(values).all():
        raise AtlasError(f"{model or 'Every model'} changes no matrix of {base}: a zero δW has no rank.", "")
    kept = tuple(one for one, is_in in zip(ranks.candidates, included, strict=True) if is_in)
    lacking = tuple(one.model for one, is_in in zip(ranks.candidates, included, strict=True) if not is_in)
    return Ranks(kept, ranks.cells, values), lacking


def _families(ranks: Ranks) -> dict[str, FamilyRanks]:
    """Mean and standard deviation by family and layer; None where there are too few values."""
    columns: dict[str, dict[int, Any]] = {}
    for column, cell in zip(ranks.values.T, ranks.cells, strict=True):
        columns.setdefault(cell.family_key, {})[cell.layer] = column[~np.isnan(column)]
    families = {}
    for name, layers in columns.items():
        found = [layers.get(layer, np.empty(0)) for layer in range(max(layers) + 1)]
        means = tuple(float(one.mean()) if len(one) else None for one in found)
        families[name] = FamilyRanks(
            ranks=means,
            spread=tuple(float(one.std(ddof=1)) if len(one) > 1 else None for one in found),
            counts=tuple(len(one) for one in found),
            fits=fit_forms(means),
        )
    return families
