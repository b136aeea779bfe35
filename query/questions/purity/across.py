"""Purity across bases: whether a model's nearest models of other bases were tuned on the same data.

The candidates of a model are the models of all other bases. The order is that of ``query.models.across``; everything
else is as in ``query.questions.purity.study``: m_f candidates share a dataset with the model f, and purity_f is the
share of matches among its m_f nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from query.models.across import WordPopulation
from query.questions.purity.result import DatasetPurity, ModelPurity, PurityResult, PurityScore
from query.shared.statistics.authors import (
    FEWEST_AUTHORS,
    MOST_UNITS,
    TOO_FEW_AUTHORS,
    AuthorRuns,
    Floats,
    uncertainty,
    units_of,
)
from query.shared.statistics.neighbours import Booleans, Integers, codes_of, neighbour_order

_DRAWS = 1_000
_MOST_LOOKS = 2e8  # neighbours that all permutations together look at
_FEWEST_DRAWS = 99


@dataclass(frozen=True, eq=False)
class _Trial:
    """``order`` (n, n): all models, nearest first; ``is_candidate`` (n, n): which of a column are candidates of a row.

    ``share`` (kinds, kinds): which sets of datasets have one in common.
    """

    order: Integers
    is_candidate: Booleans
    share: Booleans
    k: int | None

    def scores(
        self, kinds: Integers, is_counted_model: Booleans | None = None
    ) -> tuple[Integers, Integers, Floats, Floats]:
        """The scored models, the neighbours looked at, their purity and chance, for models of these ``kinds`` (n,).

        ``is_counted_model`` (n,): the models that count.
        """
        counts: Booleans = (
            self.is_candidate
            if is_counted_model is None
            else self.is_candidate & np.logical_and.outer(is_counted_model, is_counted_model)
        )
        matches: Booleans = counts & self.share[kinds[:, None], kinds[None, :]]
        matching, pool = matches.sum(axis=1), counts.sum(axis=1)
        scored = np.flatnonzero(matching)
        looked_at = matching[scored] if self.k is None else np.minimum(self.k, pool[scored])
        ordered = self.order[scored]
        is_counted = np.take_along_axis(counts[scored], ordered, axis=1)
        is_counted &= np.cumsum(is_counted, axis=1) <= looked_at[:, None]
        hits = (np.take_along_axis(matches[scored], ordered, axis=1) & is_counted).sum(axis=1)
        return scored, looked_at, hits / looked_at, matching[scored] / pool[scored]

    def excess(self, kinds: Integers) -> float:
        """Mean purity minus mean chance; 0 if no model can be scored."""
        scored, _, purity, chance = self.scores(kinds)
        return float(purity.mean() - chance.mean()) if len(scored) else 0.0


def purity_across(
    population: WordPopulation, *, k: int | None = None, draws: int | None = None, seed: int = 0
) -> PurityResult:
    """Purity of models of several bases among the models of other bases, plain and across authors.

    For p, the sweeps of each base exchange labels among themselves (``AuthorRuns.permuted``), so that no match between
    an author's models of two bases is taken for one of the vectors.

    Raises ValueError for k < 1 or draws < 1.
    """
    if (k is not None and k < 1) or (draws is not None and draws < 1):
        raise ValueError("k and draws must be at least 1")
    rows = np.flatnonzero([bool(names) for names in population.datasets])
    labels = [population.datasets[row] for row in rows.tolist()]
    scores = [PurityScore(0, 0, 0, note="No model has both a vector and a known dataset.")] * 2
    if len(rows):
        table = population.table.take(rows)
        authors = codes_of([population.authors[row] for row in rows.tolist()])
        kinds, sets = codes_of(labels), list(dict.fromkeys(labels))
        share = np.array([[bool(first & second) for second in sets] for first in sets], dtype=bool)
        order = neighbour_order(table).astype(np.intp)
        space, numbers = table.space, range(len(table.space.bases))
        comparable = np.array(
            [[first != second and space.are_comparable(first, second) for second in numbers] for first in numbers],
            dtype=bool,
        )
        is_candidate: Booleans = comparable[table.base[:, None], table.base[None, :]]
        is_candidate &= np.any(table.inputs > 0, axis=1, keepdims=True).T
        names = [population.models[row] for row in rows.tolist()]
        apart: Booleans = is_candidate & np.not_equal.outer(authors, authors)
        scores = [
            _score(_Trial(order, candidates, share, k), kinds, labels, authors, table.base, names, draws, [seed, form])
            for form, candidates in enumerate((is_candidate, apart))
        ]
    return PurityResult(
        **vars(scores[0]), base=population.base, representation=population.representation, k=k, cross_author=scores[1]
    )


def _score(
    trial: _Trial,
    kinds: Integers,
    labels: Sequence[frozenset[str]],
    authors: Integers,
    bases: Integers,
    names: Sequence[str],
    draws: int | None,
    seeds: Sequence[int],
) -> PurityScore:
    scored, looked_at, purity, chance = trial.scores(kinds)
    if not len(scored):
        return PurityScore(0, len(names), 0, note="No dataset has models of two bases that can be compared.")
    by_dataset = []
    for dataset in sorted({name for row in scored.tolist() for name in labels[row]}):
        holds = np.array([dataset in names_of for names_of in labels], dtype=bool)
        of_dataset = replace(trial, share=np.array([[False, False], [False, True]]))
        members, _, values, chances = of_dataset.scores(holds.astype(np.intp))
        if len(members):
            by_dataset.append(DatasetPurity(dataset, len(members), float(values.mean()), float(chances.mean())))
    score = PurityScore(
        models=len(scored),
        candidates=len(names),
        datasets=len(by_dataset),
        purity=float(purity.mean()),
        purity_by_dataset_mean=float(np.mean([row.purity for row in by_dataset])),
        chance=float(chance.mean()),
        authors=len(np.unique(authors[scored])),
        by_dataset=tuple(sorted(by_dataset, key=lambda row: (-row.models, row.dataset))),
        by_model=tuple(
            ModelPurity(names[row], tuple(sorted(labels[row])), int(count), float(value), float(by_chance))
            for row, count, value, by_chance in zip(scored.tolist(), looked_at, purity, chance, strict=True)
        ),
    )
    return replace(
        score, **_interval(trial, kinds, authors, purity, scored), **_null(trial, kinds, authors, bases, draws, seeds)
    )


def _interval(trial: _Trial, kinds: Integers, authors: Integers, purity: Floats, scored: Integers) -> dict[str, Any]:
    """The ends of the 95 % interval, by leaving out each author in turn (``study.interval``), or why there is none."""
    if len(np.unique(authors[scored])) < FEWEST_AUTHORS:
        return {"ci_reason": TOO_FEW_AUTHORS}
    units, mean = units_of(authors.tolist(), MOST_UNITS), float(purity.mean())
    means = [trial.scores(kinds, units != unit)[2] for unit in range(int(units.max()) + 1)]
    if not all(len(values) for values in means):
        return {"ci_reason": TOO_FEW_AUTHORS}
    changes = np.array([mean - float(values.mean()) for values in means])
    low, high = uncertainty(np.bincount(units[scored], minlength=len(means)) / len(scored), changes).of_share(
        mean, len(scored)
    )
    return {"ci_low": low, "ci_high": high}


def _null(
    trial: _Trial, kinds: Integers, authors: Integers, bases: Integers, draws: int | None, seeds: Sequence[int]
) -> dict[str, Any]:
    """How often labels that sweeps exchange within their base score at least as high."""
    rng, observed = np.random.default_rng(seeds), trial.excess(kinds)
    members = [np.flatnonzero(bases == base) for base in np.unique(bases)]
    sweeps = [AuthorRuns(authors[rows], kinds[rows].tolist()) for rows in members]
    looks = max(1, len(kinds) ** 2)
    count = max(_FEWEST_DRAWS, min(_DRAWS, int(_MOST_LOOKS / looks))) if draws is None else draws
    values = np.zeros(count)
    for draw in range(count):
        permuted = kinds.copy()
        for rows, runs in zip(members, sweeps, strict=True):
            permuted[rows] = runs.permuted(np.array(runs.labels, dtype=np.intp), rng)[runs.of_model]
        values[draw] = trial.excess(permuted)
    reached, spread = int((values >= observed - 1e-12).sum()), float(values.std())
    return {
        "p_value": (1 + reached) / (1 + count),
        "permutations": count,
        "reached": reached,
        "effect": (observed - float(values.mean())) / spread if spread > 0 else None,
    }
