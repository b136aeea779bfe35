"""All profiled models of a base: where the weights changed, where the function did, and who forgets its input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from query.depth.findings import Agreement, DepthFindings, Forgetful
from query.depth.profiled import Profiled, read_profiled
from query.statistics.intervals import spearman

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.reader import AtlasReader
    from query.results import ThemeName

DRAWS = 1000
LEAST_MODELS = 5
_OTHER_PROBE = "profiled with another probe or seed"
# What may hang on where the weights changed; each less the base's own value, where the base has one.
STUDIED = ("drift", "cka", "tolerance", "tolerance_own", "readable", "recovered", "reach", "image_error")
AGAINST_ITSELF = ("drift", "cka")
ERRORS = 4.0  # standard errors that make a loss one
LEAST_LOSS = 0.02
Floats = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class DepthStudy(DepthFindings):
    """A study of all profiles, drawn on request."""

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """Two curves for each model: where the weights changed, and where the function did."""
        from query.depth.study_picture import study_figure

        return study_figure(self, theme, ax)


def depth_study(atlas: AtlasReader, base: str | None = None, *, seed: int = 0) -> DepthStudy:
    """The profiles of all models of a base, compared with how much their weights changed.

    Uses the probe that most of the models were profiled with. Copies, unrelated models and duplicates are left out;
    the notes say how many. Raises AtlasError if fewer than LEAST_MODELS models are left.
    """
    canonical = atlas.base_named(base)
    hint = f"Make them: index profile --base {canonical} --with-untrained --recover"
    profiled = read_profiled(atlas, canonical, subject="fine_tune")
    facts = {
        row["model"]: row
        for row in atlas.rows(
            "SELECT model, author, datasets, CASE WHEN is_unrelated THEN 'unrelated to the base' "
            "WHEN is_copy THEN 'copies of the base' WHEN duplicate_of IS NOT NULL THEN 'repeats of another' END AS why "
            "FROM models WHERE base = ?",
            [canonical],
        )
    }
    why = {one.model: facts[one.model]["why"] if one.model in facts else "indexed no more" for one in profiled}
    counted = _of_one_probe([one for one in profiled if why[one.model] is None])
    chosen = {one.model for one in counted}
    reasons = Counter(reason or _OTHER_PROBE for model, reason in why.items() if model not in chosen)
    left_out = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    notes = (f"left out: {left_out}",) if left_out else ()
    if len(counted) < LEAST_MODELS:
        told = f" ({notes[0]})" if notes else ""
        raise AtlasError(
            f"{len(counted)} of {len(why)} profiled models of {canonical} count, and {LEAST_MODELS} are needed{told}.",
            hint,
        )
    of_base = read_profiled(atlas, canonical, subject="base", probe=counted[0].probe_sha256)
    if not of_base:
        raise AtlasError(f"{canonical} itself has no profile of the same probe.", hint)
    authors = [str(facts[one.model]["author"]) for one in counted]
    datasets = [tuple(facts[one.model]["datasets"]) for one in counted]
    table = _Table(counted, of_base[0], authors, np.random.default_rng(seed))
    return DepthStudy(
        base=canonical,
        probe=counted[0].probe,
        models=len(counted),
        authors=len(set(authors)),
        means=tuple(table.means()),
        agreements=tuple(table.agreements()),
        forgetful=tuple(_forgetful(counted, of_base[0], datasets)),
        data_share=tuple(table.data_shares(datasets)),
        profiles=tuple(counted),
        notes=notes,
    )


def _of_one_probe(models: Sequence[Profiled]) -> list[Profiled]:
    probes: dict[tuple[str, int], list[Profiled]] = {}
    for one in models:
        probes.setdefault((one.probe_sha256, one.seed), []).append(one)
    return max(probes.values(), key=len, default=[])


class _Table:
    """Models by layers, one array for each measure."""

    def __init__(
        self, models: Sequence[Profiled], base: Profiled, authors: Sequence[str], random: np.random.Generator
    ) -> None:
        self.layers = [row["layer"] for row in base.layers]
        self.of_base = {name: _column(base, name, self.layers) for name in STUDIED}
        self.values = {
            name: np.array([_column(one, name, self.layers) for one in models])
            for name in (*STUDIED, "delta", "own_delta")
        }
        self.authors = np.array(authors)
        self.random = random

    def _changes(self, name: str) -> Floats:
        return self.values[name] if name in AGAINST_ITSELF else self.values[name] - self.of_base[name]

    def means(self) -> list[dict[str, Any]]:
        """Mean and standard deviation over models, by layer."""
        rows = []
        for place, layer in enumerate(self.layers):
            row: dict[str, Any] = {"layer": layer}
            for name in (*STUDIED, "delta", "own_delta"):
                found = self.values[name][:, place]
                found = found[~np.isnan(found)]
                if len(found) > 1:
                    row |= {name: float(found.mean()), f"{name}_sd": float(found.std(ddof=1))}
                    if name in self.of_base and not np.isnan(self.of_base[name][place]):
                        row[f"{name}_base"] = float(self.of_base[name][place])
            rows.append(row)
        return rows

    def agreements(self) -> list[Agreement]:
        """By measure: pooled over layers, then layer by layer; then with this layer's own change, pooled."""
        found = []
        for name in STUDIED:
            changes = self._changes(name)
            for of, places in (("delta", [None, *range(len(self.layers))]), ("own_delta", [None])):
                for place in places:
                    one = self._agreement(name, of, changes, place)
                    if one is not None:
                        found.append(one)
        return found

    def _agreement(self, name: str, of: str, changes: Floats, place: int | None) -> Agreement | None:
        chosen = slice(None) if place is None else slice(place, place + 1)
        left, right = self.values[of][:, chosen], changes[:, chosen]
        is_known = ~(np.isnan(left) | np.isnan(right)).any(axis=1)
        if is_known.sum() < LEAST_MODELS or np.ptp(right[is_known]) == 0:
            return None
        left, right, authors = left[is_known], right[is_known], self.authors[is_known]
        rho, low, high = spearman(left, right, authors, self.random, DRAWS)
        layer = None if place is None else self.layers[place]
        return Agreement(name, layer, of, int(is_known.sum()), rho, low, high)

    def data_shares(self, datasets: Sequence[tuple[str, ...]]) -> list[dict[str, Any]]:
        """η² at the last layer over models that name exactly one data set, and what chance gives."""
        named = [place for place, names in enumerate(datasets) if len(names) == 1]
        groups = np.array([datasets[place][0] for place in named])
        rows = []
        for name in STUDIED:
            values = self._changes(name)[named, -1] if named else np.zeros(0)
            is_known = ~np.isnan(values)
            if is_known.sum() < LEAST_MODELS or np.ptp(values[is_known]) == 0:
                continue
            of, known = groups[is_known], values[is_known]
            by_chance = [_eta_squared(self.random.permutation(known), of) for _ in range(DRAWS)]
            observed = _eta_squared(known, of)
            p = (1 + sum(one >= observed for one in by_chance)) / (1 + DRAWS)
            rows.append({"measure": name, "models": len(known), "share": observed,
                         "chance": float(np.mean(by_chance)), "p": p})  # fmt: skip
        return rows


def _column(one: Profiled, name: str, layers: Sequence[int]) -> Floats:
    by_layer = {row["layer"]: row[name] for row in one.layers}
    found = [by_layer.get(layer) for layer in layers]
    return np.array([np.nan if value is None else value for value in found], dtype=float)


def _eta_squared(values: Floats, groups: NDArray[Any]) -> float:
    """The share of the variance that lies between groups."""
    whole = ((values - values.mean()) ** 2).sum()
    between = sum(
        (groups == name).sum() * (values[groups == name].mean() - values.mean()) ** 2 for name in np.unique(groups)
    )
    return float(between / whole) if whole > 0 else 0.0


def _forgetful(models: Sequence[Profiled], base: Profiled, datasets: Sequence[tuple[str, ...]]) -> list[Forgetful]:
    """Worst first, each by the measure that says most."""
    found = []
    theirs = {row["layer"]: row for row in base.layers}
    for one, names in zip(models, datasets, strict=True):
        for measure in ("recovered", "readable", "image_error"):
            lost = [row for row in one.layers if _is_lost(row, theirs.get(row["layer"]), measure)]
            if lost and lost[-1] is one.layers[-1]:
                last, other = one.layers[-1], theirs[one.layers[-1]["layer"]]
                found.append(Forgetful(one.model, measure, _from(one, lost), last[measure], other[measure],
                                       names, last["delta"]))  # fmt: skip
                break
    return sorted(found, key=lambda one: one.value - one.base_value)


def _from(one: Profiled, lost: Sequence[dict[str, Any]]) -> int:
    """The layer from which on all are lost."""
    first = one.layers[-1]["layer"]
    for row in reversed(one.layers):
        if row not in lost:
            break
        first = row["layer"]
    return int(first)


def _is_lost(row: dict[str, Any], base: dict[str, Any] | None, measure: str) -> bool:
    if base is None or row[measure] is None or base[measure] is None:
        return False
    error = ((row[f"{measure}_error"] or 0) ** 2 + (base[f"{measure}_error"] or 0) ** 2) ** 0.5
    loss = base[measure] - row[measure] if measure != "image_error" else row[measure] - base[measure]
    return bool(loss > max(ERRORS * error, LEAST_LOSS))
