"""`python -m scripts.depth.figures`: which models lose information about their input, and what explains it.

The numbers of docs/layers.md for the demo, from SQL by SciPy and NumPy alone: an independent check of
`query depth --study`, which must give the same.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

MEASURES = ("drift", "cka", "tolerance", "tolerance_own", "readable", "recovered", "reach")
BETWEEN = ("drift", "cka")  # already compare a model with its base: nothing is subtracted
DRAWS = 1000
ERRORS = 4.0  # standard errors that count as a loss
LEAST_LOSS = 0.02
Floats = NDArray[np.float64]

_ROWS = """
SELECT model, any_value(one.author) AS author, layer, any_value(delta) AS delta, {columns}
FROM depth_of_models AS one JOIN models USING (model_id, base, model)
WHERE subject = 'fine_tune' AND probe_sha256 = ? AND seed = 0 AND NOT is_copy AND NOT is_unrelated
    AND duplicate_of IS NULL
GROUP BY model, layer ORDER BY model, layer
"""
# A model may have several profiles of one probe, with different measures.
_BASE = """
SELECT layer, {columns} FROM depth_of_models WHERE subject = 'base' AND probe_sha256 = ? GROUP BY layer ORDER BY layer
"""


@dataclass(frozen=True)
class Population:
    """Tables (models, layers) and values of the base (layers,) by column; errors have the suffix ``_error``."""

    models: tuple[str, ...]
    authors: NDArray[Any]
    layers: tuple[int, ...]
    tables: Mapping[str, Floats]
    base: Mapping[str, Floats]


def population(atlas: Path) -> Population:
    """The profiles of the probe with the most models. Raises ValueError if there are none."""
    every = [part for name in MEASURES for part in (name, f"{name}_error")]
    columns = ", ".join(f"any_value({name}) AS {name}" for name in every)
    with duckdb.connect(str(atlas / "atlas.duckdb"), read_only=True) as connection:
        most = connection.execute(
            "SELECT probe_sha256 FROM profiles WHERE subject = 'fine_tune' GROUP BY ALL ORDER BY count(*) DESC LIMIT 1"
        ).fetchone()
        if most is None:
            raise ValueError(f"{atlas} has no depth profiles: index profile --with-untrained --recover")
        rows = connection.execute(_ROWS.format(columns=columns), most).fetch_df()
        base = connection.execute(_BASE.format(columns=columns), most).fetch_df()
    models = tuple(dict.fromkeys(rows["model"]))
    layers = tuple(int(layer) for layer in base["layer"])

    def table(name: str) -> Floats:
        return rows.pivot(index="model", columns="layer", values=name).loc[list(models)].to_numpy(dtype=float)

    return Population(
        models=models,
        authors=rows.drop_duplicates("model").set_index("model").loc[list(models)]["author"].to_numpy(dtype=str),
        layers=layers,
        tables={name: table(name) for name in (*every, "delta")},
        base={name: base[name].to_numpy(dtype=float) for name in every},
    )


def correlations(found: Population) -> list[dict[str, Any]]:
    """Spearman's ρ of each measure's change with ‖δW‖/‖W‖ up to the layer, over all layers and at each."""
    random = np.random.default_rng(0)
    result = []
    for name in MEASURES:
        change = found.tables[name] - (0 if name in BETWEEN else found.base[name])
        for place in (None, *range(len(found.layers))):
            chosen = slice(None) if place is None else slice(place, place + 1)
            left, right = found.tables["delta"][:, chosen], change[:, chosen]
            if np.isnan(right).any() or np.ptp(right) == 0:
                continue
            low, high = interval(lambda rows, a=left, b=right: rho(a[rows], b[rows]), found.authors, random)
            result.append({"measure": name, "layer": "all" if place is None else found.layers[place],
                         "rho": rho(left, right), "low": low, "high": high})  # fmt: skip
    return result


def rho(left: Floats, right: Floats) -> float:
    """Spearman's, by SciPy."""
    return float(spearmanr(left.ravel(), right.ravel()).statistic)


def interval(
    statistic: Callable[[NDArray[np.int64]], float], authors: NDArray[Any], random: np.random.Generator
) -> tuple[float, float]:
    """95 % by drawing whole authors again."""
    names = np.unique(authors)
    members = [np.flatnonzero(authors == name) for name in names]
    drawn = [
        statistic(np.concatenate([members[one] for one in random.integers(len(names), size=len(names))]))
        for _ in range(DRAWS)
    ]
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def forgetful(found: Population) -> list[dict[str, Any]]:
    """Models of whose last layer descent finds less than of the base's, by more than ERRORS standard errors."""
    mine, theirs = found.tables["recovered"][:, -1], found.base["recovered"][-1]
    error = np.hypot(
        np.nan_to_num(found.tables["recovered_error"][:, -1]), np.nan_to_num(found.base["recovered_error"][-1])
    )
    lost = np.flatnonzero(theirs - mine > np.maximum(ERRORS * error, LEAST_LOSS))
    return [
        {"model": found.models[one], "recovered": mine[one], "base": theirs,
         "readable": found.tables["readable"][one, -1]}
        for one in lost[np.argsort(mine[lost])]
    ]  # fmt: skip


def explained(found: Population, training: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Over full fine-tunes: ρ of the last layer's measure with rate and length, and the adjusted R² of regressions."""
    kept = [
        place for place, model in enumerate(found.models) if model in training and not training[model]["is_adapter"]
    ]
    runs = [training[found.models[place]] for place in kept]
    rate, steps = (np.log([one[name] for one in runs])[:, None] for name in ("rate", "steps"))
    sets = sorted({one["dataset"] for one in runs})
    data = np.array([[one["dataset"] == name for name in sets[1:]] for one in runs], dtype=float)
    random = np.random.default_rng(0)
    result: dict[str, Any] = {"models": len(kept)}
    for name in ("recovered", "drift"):
        values = found.tables[name][kept, -1]
        for what, column in (("rate", rate), ("length", steps)):
            low, high = interval(lambda rows, a=column, b=values: rho(a[rows], b[rows]), found.authors[kept], random)
            result[f"rho({name}, {what})"] = {"rho": rho(column, values), "low": low, "high": high}
        result[f"adjusted R2 of {name}"] = {
            "data": adjusted(values, data), "rate": adjusted(values, rate), "length": adjusted(values, steps),
            "rate, length and data": adjusted(values, np.hstack([rate, steps, data])),
        }  # fmt: skip
    return result


def adjusted(values: Floats, columns: Floats) -> float:
    """Adjusted R² of least squares on ``columns`` (n, k) and a constant."""
    design = np.hstack([np.ones((len(values), 1)), columns])
    left = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    whole = values - values.mean()
    freedom = len(values) - np.linalg.matrix_rank(design)
    return float(1 - (left @ left / freedom) / (whole @ whole / (len(values) - 1)))


def trainings(family: Path) -> dict[str, dict[str, Any]]:
    """How the models of the demo's family were trained."""
    from scripts.family.plan import load_plan

    said = json.loads((family / "family.json").read_text(encoding="utf-8"))
    plan = load_plan(said["size"], said["architecture"])
    measured = said["measured"]
    return {
        run.model: {
            "rate": run.learning_rate,
            "steps": measured[run.model]["steps"],
            "dataset": run.dataset,
            "is_adapter": run.adapter is not None,
        }
        for run in plan.runs
        if "steps" in measured.get(run.model, {})
    }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.depth.figures", description=__doc__)
    parser.add_argument("--atlas", type=Path, default=Path(".demo/atlas"), help="with profiles (--recover)")
    parser.add_argument("--family", type=Path, help="the family it was made of: what its runs say")
    arguments = parser.parse_args(words)
    found = population(arguments.atlas)
    result = {
        "models": len(found.models),
        "base recovered by layer": found.base["recovered"].tolist(),
        "correlations": correlations(found),
        "forgetful": forgetful(found),
    }
    if arguments.family is not None:
        result["explained"] = explained(found, trainings(arguments.family))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
