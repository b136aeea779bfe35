"""One family of models read by several plans of rows: what each costs, and how its answers differ from a full read's.

Results are plain JSON: numbers by name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import indexer
from indexer.console.messages import verbosity
from indexer.records import row_plan, weight_sample
from query import Atlas
from query.models.population import Population, distinct, read_population
from query.questions.purity.study import purity
from query.shared.statistics.likeness import similarities
from scripts.loopback_hub import LoopbackHub
from scripts.reproduce.study import FLAGS, check, endings
from studies.vectors import matches_of_nearest

Json = dict[str, Any]
Table = NDArray[np.floating[Any]]

WEIGHTS = (".safetensors", ".bin")
# Half of the width of a 95 % interval, in standard errors.
Z = 1.96
PERMUTATIONS = 20
EVERYTHING = 1 << 40  # more rows than any matrix has


@dataclass(frozen=True)
class Plan:
    """``rows`` of every matrix, half of them at either end: None for the plan as it ships. ``read``: as of `index build`."""

    rows: int | None = None
    read: str = "sample"

    @property
    def name(self) -> str:
        """As in ``--plans`` and the tables."""
        if self.read == "full":
            return "full"
        return "shipped" if self.rows is None else str(self.rows)


FULL = Plan(EVERYTHING, read="full")
SHIPPED = Plan()
PLANS = (FULL, SHIPPED, *map(Plan, (4, 8, 16, 32, 64)))


@contextmanager
def in_force(plan: Plan) -> Iterator[None]:
    """Put a plan in the place of the shipped one, in this process.

    float16 and bfloat16 get twice the rows, as in the shipped plan. A model whose rounding exceeds its change is read
    further as in the shipped plan.
    """
    constants: Json = {}
    if plan.rows is not None:
        constants = {
            "LEAST_BYTES": 0,
            "LEAST_ROWS": {8: plan.rows, 4: plan.rows, 2: 2 * plan.rows},
            "LEAST_COORDINATES": plan.rows,
        }
    kept = (row_plan.coordinates, weight_sample._positions)
    try:
        with patch.multiple(row_plan, **constants) if constants else nullcontext():
            for function in kept:
                function.cache_clear()
            yield
    finally:
        for function in kept:
            function.cache_clear()


def build(plan: Plan, base: str, folder: Path, hub: LoopbackHub) -> Json:
    """Read a family by a plan into an atlas at ``folder``; what this cost for each full fine-tune that was indexed."""
    hub.reset_log()
    verbosity.quiet = True
    started = time.perf_counter()
    with in_force(plan):
        indexer.build(base, folder, read=plan.read, discover="names", workers=1)
    seconds = time.perf_counter() - started
    with Atlas(folder) as atlas:
        rows = atlas.rows("SELECT model FROM models WHERE base = ? AND relation = 'finetune'", [base])
        ((matrices,),) = atlas.connection.execute(
            "SELECT count(*) / count(DISTINCT model_id) FROM deltas JOIN fine_tunes USING (model_id) WHERE base = ?",
            [base],
        ).fetchall()
    models = {row["model"] for row in rows}
    asked = [
        record
        for record in hub.requests
        if record.role == "cdn" and record.repo_id in models and str(record.filename).endswith(WEIGHTS)
    ]
    return {
        "seconds": seconds,
        "models": len(models),
        "matrices": matrices,
        "bytes": sum(record.body_bytes for record in asked) / len(models),
        "requests": len(asked) / len(models),
    }


# ---- one atlas


def measure(folder: Path, base: str, expected: Json) -> Json:
    """The answers of one atlas."""
    with Atlas(folder) as atlas:
        population = read_population(atlas, base)
        documented = read_population(atlas, base, documented=True)
        predicted = {score.evidence: score.accuracy for score in atlas.evaluate_prediction(base).scores}
        checked = check(expected, endings(atlas, base), is_partial=False)
        return {
            **purities(documented),
            "half of the matrices": purities(half(documented)),
            "predicted": predicted["together"],
            "predicted by vectors": predicted["vectors"],
            "clusters": atlas.clusters(base, draws=1).value("datasets", "ami"),
            "planted": {
                kind["kind"]: [kind["as_expected"], kind["models"]]
                for kind in checked["kinds"]
                if kind["kind"] in (*FLAGS, "ordinary")
            },
            "mismatches": checked["mismatches"],
            **background(distinct(population)),
            "permuted": permuted(documented),
        }


def purities(population: Population) -> Json:
    """Purity of all models, across authors, and of adapters among full fine-tunes by other authors."""
    found = purity(population, draws=1)
    return {
        "purity": found.purity,
        "chance": found.chance,
        "across authors": found.cross_author.purity,
        "adapter to full": adapter_to_full(distinct(population)),
    }


def adapter_to_full(population: Population) -> float | None:
    """Purity of adapters whose candidates are the full fine-tunes by other authors; None without such adapters."""
    scores = []
    for row, (relation, author) in enumerate(zip(population.relations, population.authors, strict=True)):
        if relation == "adapter" and population.datasets[row]:
            others = [
                other
                for other, of in enumerate(population.relations)
                if of == "finetune" and population.authors[other] != author
            ]
            found = matches_of_nearest(population.table, population.datasets, [row], others)
            scores += [share for share, _ in found]
    return float(np.mean(scores)) if scores else None


def half(population: Population) -> Population:
    """The population by every second matrix alone, in the order of the layout."""
    count, width = population.vectors.shape
    vectors = population.vectors.reshape(count, population.blocks, -1)[:, ::2]
    vectors = np.ascontiguousarray(vectors).reshape(count, -1)
    return replace(population, vectors=vectors, blocks=vectors.shape[1] * population.blocks // width)


def background(population: Population) -> Json:
    """Similarities of models by different authors on different data sets."""
    table = similarities(population.vectors, population.vectors, population.blocks)
    apart = [
        float(table[one, other])
        for one in range(len(table))
        for other in range(one)
        if population.authors[one] != population.authors[other]
        and population.datasets[one]
        and population.datasets[other]
        and not population.datasets[one] & population.datasets[other]
    ]
    return {"background 95 %": float(np.quantile(apart, 0.95)), "background 99 %": float(np.quantile(apart, 0.99))}


def permuted(population: Population) -> float:
    """Mean purity with the models' sets of data sets in random order."""
    rng = np.random.default_rng(0)
    population = distinct(population)
    found = [
        purity(replace(population, datasets=[population.datasets[row] for row in order]), draws=1).purity
        for order in (rng.permutation(len(population.ids)) for _ in range(PERMUTATIONS))
    ]
    return float(np.mean(np.array(found, dtype=np.float64)))


# ---- a sampled atlas against the full one


def compare(folder: Path, full: Path, base: str) -> Json:
    """How near the vectors and estimates of one atlas are to those of a full read."""
    with Atlas(folder) as atlas, Atlas(full) as reference:
        mine, theirs = (distinct(read_population(one, base)) for one in (atlas, reference))
        shared = sorted(set(mine.models) & set(theirs.models))
        pair = [one.vectors[[one.models.index(model) for model in shared]] for one in (mine, theirs)]
        above = np.triu_indices(len(shared), 1)
        tables = [similarities(vectors, vectors, mine.blocks)[above] for vectors in pair]
        own = np.diag(similarities(pair[0], pair[1], mine.blocks))
        estimated, exact = (estimates(one, base) for one in (atlas, reference))
    return {
        "correlation": float(np.corrcoef(tables[0], tables[1])[0, 1]),
        "own": [float(np.median(own)), float(own.min())],
        "matrices": calibration([(*estimated[0][key], exact[0][key][0]) for key in estimated[0] if key in exact[0]]),
        "whole models": calibration(
            [(*estimated[1][key], exact[1][key][0]) for key in estimated[1] if key in exact[1]]
        ),
        # σ_1 has no standard error of its own: that of the norm, in proportion.
        "sigma_1": calibration([(*estimated[2][key], exact[2][key][0]) for key in estimated[2] if key in exact[2]]),
    }


def estimates(atlas: Atlas, base: str) -> list[dict[Any, tuple[float, float]]]:
    """Value and standard error: ‖δW‖ of matrices and of models, and σ_1 of matrices."""
    norms, firsts = {}, {}
    for row in atlas.rows(
        "SELECT model, stack, layer, family, norm, norm_error, singular_values[1] AS first "
        "FROM deltas JOIN fine_tunes USING (model_id) WHERE base = ?",
        [base],
    ):
        key = (row["model"], row["stack"], row["layer"], row["family"])
        norms[key] = row["norm"], row["norm_error"]
        firsts[key] = row["first"], row["norm_error"] * row["first"] / row["norm"] if row["norm"] else 0.0
    rows = atlas.rows("SELECT model, delta_norm, delta_norm_error FROM models WHERE base = ?", [base])
    models = {row["model"]: (row["delta_norm"], row["delta_norm_error"]) for row in rows if row["delta_norm"]}
    return [norms, models, firsts]


def calibration(rows: list[tuple[float, float, float]]) -> Json:
    """Of (estimate, standard error, exact) where there is an error: how many 95 % intervals hold the exact value.

    ``bias`` and ``off``: mean and root mean square of (estimate − exact) / exact.
    """
    found = np.array([row for row in rows if row[1] > 0 and row[2] > 0], dtype=np.float64).reshape(-1, 3)
    if not len(found):
        return {"count": 0}
    estimate, error, exact = found.T
    relative = (estimate - exact) / exact
    return {
        "count": len(found),
        "inside": int((np.abs(estimate - exact) <= Z * error).sum()),
        "bias": float(relative.mean()),
        "off": float(np.sqrt(np.square(relative).mean())),
    }


def lineage(folder: Path, full: Path, base: str) -> Json:
    """How many steps (child, parent, kind) of a full atlas another one gives, too; and those from other fine-tunes."""
    answers = []
    for one in (folder, full):
        with Atlas(one) as atlas:
            answers.append(
                {found.model: {(edge.parent, edge.kind) for edge in found.edges} for found in atlas.lineages(base)}
            )
    mine, theirs = answers
    steps = [{(model, *edge) for model, edges in one.items() for edge in edges} for one in answers]
    of_tunes = {step for step in steps[1] if step[1] not in (None, base)}
    return {
        "steps": len(steps[1]),
        "equal": len(steps[0] & steps[1]),
        "from fine-tunes": len(of_tunes),
        "equal from fine-tunes": len(steps[0] & of_tunes),
        "models": len(theirs),
        "equal models": sum(mine.get(model) == edges for model, edges in theirs.items()),
        "differ": sorted(model for model, edges in theirs.items() if mine.get(model) != edges),
    }


def expected_of(family: Path) -> tuple[str, Json]:
    """The base of a family of ``scripts.family``, and how each of its repositories must end."""
    base = json.loads((family / "family.json").read_text(encoding="utf-8"))["base"]
    return base, json.loads((family / "expected.json").read_text(encoding="utf-8"))
