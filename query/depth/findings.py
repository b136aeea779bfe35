"""What a study of all profiles found; not how it is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from query.depth.profiled import Profiled
from query.extras import to_frame
from query.results import Drawn
from query.wording import counted

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Agreement:
    """Spearman's ρ between ‖δW‖/‖W‖ (``delta`` up to this layer, or ``own_delta`` of it alone) and a measure's change.

    Over models at one ``layer``, or all layers together (None); ``low`` to ``high`` is the 95 % interval by bootstrap
    over authors.
    """

    measure: str
    layer: int | None
    of: str
    models: int
    rho: float
    low: float
    high: float


@dataclass(frozen=True)
class Forgetful:
    """A model whose last layers give less of their input away than the base's, by more than four standard errors."""

    model: str
    measure: str
    layer: int
    value: float
    base_value: float
    datasets: tuple[str, ...]
    delta: float | None


@dataclass(frozen=True, repr=False)
class DepthFindings(Drawn):
    """``means`` has a row for each layer: mean and standard deviation over models of every measure, and the base's.

    ``data_share``: the share of the variance of each measure at the last layer that data sets tell (η²), with the share
    expected by chance.
    """

    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("chance", "models", "datasets", "95 %", "drift", "cka", "tolerance_own")

    base: str
    probe: str
    models: int
    authors: int
    means: tuple[dict[str, Any], ...]
    agreements: tuple[Agreement, ...]
    forgetful: tuple[Forgetful, ...]
    data_share: tuple[dict[str, Any], ...]
    profiles: tuple[Profiled, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the profiles themselves."""
        return {
            "base": self.base,
            "probe": self.probe,
            "models": self.models,
            "authors": self.authors,
            "layers": list(self.means),
            "agreement": [vars(one) for one in self.agreements],
            "forgetful": [vars(one) | {"datasets": list(one.datasets)} for one in self.forgetful],
            "data_share": list(self.data_share),
            "notes": list(self.notes),
        }

    @property
    def headline(self) -> str:
        """How many there are, and how many forget."""
        return (
            f"Of {counted(self.models, 'profiled model')} of {self.base}, by {counted(self.authors, 'author')}, "
            f"{len(self.forgetful)} give less of their input away than the base does."
        )

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each layer: means over models, their standard deviations, and the base's."""
        return [dict(row) for row in self.means]

    def table(self, *, details: bool = False) -> dict[str, Any]:
        """The same for eighty columns; ``details``: agreement layer by layer as well."""
        pooled = [one for one in self.agreements if one.of == "delta" and (details or one.layer is None)]
        return {
            "mean (± sd over models)": [_shown(row) for row in self.means],
            "Spearman with ‖δW‖ up to the layer": [
                {"measure": one.measure, "layer": "all" if one.layer is None else one.layer, "rho": one.rho,
                 "95 %": f"{one.low:.2f} to {one.high:.2f}"}
                for one in pooled
            ],
            "forget their input": [
                {"model": one.model, "measure": one.measure, "from layer": one.layer,
                 "at the last": f"{one.value:.2f} (base {one.base_value:.2f})", "datasets": ", ".join(one.datasets)}
                for one in self.forgetful
            ],
            "told by the data set (η²)": list(self.data_share),
        }  # fmt: skip

    def to_df(self) -> pandas.DataFrame:
        """A row for each model and layer with everything."""
        return to_frame([{"model": one.model, **row} for one in self.profiles for row in one.layers])


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: row[name] if name == "layer" else f"{row[name]:.2f} ± {row[f'{name}_sd']:.2f}"
        for name in row
        if name == "layer" or f"{name}_sd" in row
    }
