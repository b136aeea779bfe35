"""What a study of ranks found: by family and layer, with the law that fits; not how it is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from query.population import LeftOut
from query.rank.fits import Fit, best_fit

if TYPE_CHECKING:
    import pandas

COLUMNS = ("family", "layer", "rank", "spread", "models", "fitted")


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


@dataclass(frozen=True)
class RanksByFamily:
    """The ranks of one base's models, or of one ``model``, by family and layer.

    ``of``: "delta" or "weights". ``models`` are in the mean; ``lacking`` are not, because their records lack
    singular values; ``left_out`` counts those that a study never counts. ``notes`` say so in words.
    """

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

    def to_df(self) -> pandas.DataFrame:
        """The rows as a data frame: family, layer, rank, spread, models, fitted."""
        from query.extras import to_frame

        return to_frame(self.to_rows(), COLUMNS)
