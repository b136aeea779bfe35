"""What a study of ranks found: by family and layer, with the law that fits; not how it is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from query.population import LeftOut
from query.rank.fits import Fit, best_fit
from query.results import Drawn
from query.wording import counted, decimal

COLUMNS = ("family", "layer", "rank", "spread", "models", "fitted")
DIGITS = 6  # ranks stand one below the other up to 9999.9


@dataclass(frozen=True)
class FamilyRanks:
    """One family of one stack; every column is by layer from 0.

    ``ranks`` is the mean over models, None where no model is known or changed; ``spread`` the standard deviation
    over models (n − 1 in the denominator, None for fewer than two); ``counts`` the number of models in both.
    """

    ranks: tuple[float | None, ...]
    spread: tuple[float | None, ...]
    counts: tuple[int, ...]
    fits: tuple[Fit, ...]

    @property
    def fit(self) -> Fit | None:
        """The form that fits best, see :func:`query.rank.fits.best_fit`."""
        return best_fit(self.fits)

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
    row = asdict(fit)
    return {name: row[name] for name in ("form", "equation", "aic", "loo_error", "aicc", "parameters")}


@dataclass(frozen=True, repr=False)
class RanksByFamily(Drawn):
    """The ranks of one base's models, or of one ``model``, by family and layer.

    ``of``: "delta" or "weights". ``models`` are in the mean; ``lacking`` are not, because their records lack
    singular values; ``left_out`` counts those that a study never counts. ``notes`` say so in words.
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

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON object."""
        return {
            "base": self.base,
            "of": self.of,
            "threshold": self.threshold,
            "models": self.models,
            "families": {name: family.to_dict() for name, family in self.families.items()},
            "model": self.model,
            "relations": list(self.relations),
            "whole": self.whole,
            "left_out": asdict(self.left_out),
            "lacking": list(self.lacking),
            "notes": list(self.notes),
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each family and layer; ``fitted`` is what the best form gives there."""
        rows = []
        for name, family in self.families.items():
            depth = range(len(family.ranks))
            fitted = family.fit.at(depth).tolist() if family.fit else [None for _ in depth]
            columns = zip(depth, family.ranks, family.spread, family.counts, fitted, strict=True)
            rows += [{"family": name} | dict(zip(COLUMNS[1:], row, strict=True)) for row in columns]
        return rows

    @property
    def headline(self) -> str:
        """The mean rank, and between which families it lies."""
        means = {name: _mean(family) for name, family in self.families.items()}
        known = {name: mean for name, mean in means.items() if mean is not None}
        if not known:
            return f"No rank of {SYMBOLS[self.of]} is known of {self.base}."
        low, high = min(known, key=lambda name: known[name]), max(known, key=lambda name: known[name])
        between = (
            f", from {decimal(known[low], 1)} ({low}) to {decimal(known[high], 1)} ({high})" if low != high else ""
        )
        whose = self.model or counted(self.models, "model")
        return (
            f"{100 * self.threshold:g} % of the energy of {SYMBOLS[self.of]} lies in "
            f"{decimal(sum(known.values()) / len(known), 1)} directions on average over the layers of {whose}{between}."
        )

    def table(self, *, details: bool = False) -> dict[str, Any]:
        """The same numbers as ``to_dict``, shorter: the best form of each family (``details``: all), and mean ranks."""
        fits = [
            (name, fit)
            for name, family in self.families.items()
            for fit in (family.fits if details else filter(None, [family.fit]))
        ]
        return {
            "base": self.base,
            **({"model": self.model} if self.model else {}),
            "rank of": SYMBOLS[self.of] + f" at {100 * self.threshold:g} % of the energy",
            "models": self.models,
            **({"relations": list(self.relations)} if self.relations else {}),
            "left out": self.left_out.words() or "none",
            "lacking spectra": len(self.lacking),
            ("all fits" if details else "best fit") + " (x = layer)": [
                {"family": name, "equation": fit.equation, "loo_error": fit.loo_error, "form": fit.form}
                | ({"aicc": fit.aicc, "parameters": fit.parameters} if details else {})
                for name, fit in fits
            ],
            **{f"mean rank{title}": _by_layer(self, names) for title, names in _panels(self).items()},
        }


SYMBOLS = {"delta": "δW", "weights": "W"}


def _mean(family: FamilyRanks) -> float | None:
    known = [rank for rank in family.ranks if rank is not None]
    return sum(known) / len(known) if known else None


def _panels(study: RanksByFamily) -> dict[str, list[str]]:
    """Families that stand side by side: of one stack, cross-attention apart."""
    panels: dict[str, list[str]] = {}
    for name in study.families:
        stack, _, family = name.rpartition(".")
        title = ", ".join(filter(None, (stack, "cross-attention" if family.startswith("cross_") else "")))
        panels.setdefault(f" ({title})" if title else "", []).append(name)
    return panels


def _by_layer(study: RanksByFamily, names: list[str]) -> list[dict[str, Any]]:
    families = {name.rpartition(".")[2]: study.families[name].ranks for name in names}
    return [
        {"layer": layer, **dict(zip(families, map(_rounded, ranks), strict=True))}
        for layer, ranks in enumerate(zip_longest(*families.values()))
    ]


def _rounded(rank: float | None) -> str:
    return "" if rank is None else f"{rank:{DIGITS}.1f}"
