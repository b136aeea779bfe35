"""Purity: how far the nearest neighbours of a model were tuned on the same datasets.

Arrays in, numbers out: no database, no index, no files. The definition is the "Purity" paragraph of the
design: the candidates C_f of a model f are the other models with a dataset that are neither copies nor
unrelated, one per duplicate group; m_f of them share a dataset with f; purity_f is the share of matches
among the m_f nearest. A model with m_f = 0 is not scored but stays a candidate of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from query.population import Population, components, representatives
from query.purity.labels import DatasetPurity, Floats, LabelledOrder
from query.purity.without import interval
from query.statistics.intervals import TOO_FEW_AUTHORS, too_few
from query.statistics.neighbours import Integers, codes_of, leave_out, neighbour_order

_TIE = 1e-12  # two means that differ by less are the same sum in another order


@dataclass(frozen=True)
class ModelPurity:
    """One scored model: ``neighbours`` is how many were looked at (m_f, or k)."""

    model: str
    datasets: tuple[str, ...]
    neighbours: int
    purity: float
    chance: float


@dataclass(frozen=True)
class PurityScore:
    """Purity in one of its two forms. Undefined numbers are None, and ``note`` says why.

    ``models`` and ``datasets`` count what was scored: models with at least one match among their candidates,
    and the datasets (rows of ``by_dataset``) on which at least one model could be scored. ``candidates``
    counts the models that took part as possible neighbours, ``authors`` those of scored models. ``p_value`` is
    (1 + #≥)/(1 + draws). ``ci_reason``: None, or ``too_few_authors`` where there is no interval for that reason.
    """

    models: int
    candidates: int
    datasets: int
    purity: float | None = None
    purity_by_dataset_mean: float | None = None
    chance: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    ci_reason: str | None = None
    p_value: float | None = None
    by_dataset: tuple[DatasetPurity, ...] = ()
    note: str = ""
    authors: int = 0
    by_model: tuple[ModelPurity, ...] = field(default=(), repr=False)

    @property
    def interval_note(self) -> str:
        """Why there is no interval, as a sentence; empty where there is one, or no purity either."""
        return too_few(self.authors) if self.ci_reason == TOO_FEW_AUTHORS else ""


@dataclass(frozen=True)
class PurityResult(PurityScore):
    """Purity of one base in one representation; ``cross_author`` is the same among other authors' models."""

    base: str = ""
    representation: str = ""
    k: int | None = None
    cross_author: PurityScore = PurityScore(0, 0, 0)

    def to_dict(self, *, by_model: bool = False) -> dict[str, Any]:
        """The documented JSON object; the rows of single models only on request."""
        result: dict[str, Any] = {"base": self.base, "representation": self.representation, "k": self.k}
        result |= _numbers(self)
        result["cross_author"] = _numbers(self.cross_author) | {"by_dataset": _rows(self.cross_author.by_dataset)}
        result["by_dataset"] = _rows(self.by_dataset)
        return result | ({"by_model": _rows(self.by_model)} if by_model else {})


def _numbers(score: PurityScore) -> dict[str, Any]:
    names = [field.name for field in fields(PurityScore) if field.name not in ("by_dataset", "by_model")]
    return {name: getattr(score, name) for name in names}


def _rows(rows: Sequence[DatasetPurity] | Sequence[ModelPurity]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def purity(
    population: Population, *, k: int | None = None, draws: int = 1000, seed: int = 0, trees: Integers | None = None
) -> PurityResult:
    """Purity of ``population``, plain and cross-author, with intervals over authors and permutation p-values.

    ``trees``: the family tree of every model of the population; models of one tree are then no candidates of each
    other, and their label sets move as an author's do.
    ``k``: look at the k nearest instead of the m_f nearest (at all candidates where there are fewer).
    Similarities are computed in float64 and compared in steps of 2^-32 (2.3e-10): far finer than float32, far
    coarser than the noise of summing in another order, so that equal similarities are equal whatever the
    blocks; ties go to the lower id. Raises ValueError on vectors that are not finite, ids that repeat, columns
    of different lengths, k < 1 or draws < 1.

    Interval: 95 %, from how purity moves when each author in turn is taken away (``query.purity.without``); none
    where scored models are of fewer than five authors.

    p, plain: the label sets are permuted freely among the candidates. p, cross-author: models of one author
    with one label set (a sweep) are never independent, so they move as one and keep a common label set, and
    an author's list of label sets moves as a whole to another author with a list of the same length, where it
    meets that author's sweeps in random order. These moves form a group, every list stays one author's, and
    no list has to be cut or stretched to fit; so the test is exact for "which labels an author's sweeps carry
    has nothing to do with where their vectors lie", whatever the sizes of the sweeps and however alike the
    vectors of one author. Compared is purity minus chance: a popular dataset that lands on a large sweep
    raises both. (With the plain permutation chance is constant, and this is purity itself.)
    """
    if (k is not None and k < 1) or draws < 1:
        raise ValueError("k and draws must be at least 1")
    rows, datasets = representatives(population)
    labels = [names for names in datasets if names]
    rows = rows[[bool(names) for names in datasets]]
    if len(rows):
        order = neighbour_order(population.vectors, rows)
        authors = codes_of([population.authors[row] for row in rows])
        names = [population.models[row] for row in rows]
        scores = []
        # Leaving out a model's author also leaves out the model, so one table serves both in turn.
        alone = np.arange(len(rows), dtype=np.intp)
        kin = alone if trees is None else codes_of(trees[rows].tolist())
        families = authors if trees is None else _joined(authors, kin)
        for form, excluded in enumerate((kin, families)):
            leave_out(order, excluded)
            trial = LabelledOrder(order, excluded, labels, k)
            scores.append(_score(trial, authors, names, draws, np.random.default_rng([seed, form])))
    else:
        scores = [PurityScore(0, 0, 0, note="No model has both a vector and a known dataset.")] * 2
    return PurityResult(
        **vars(scores[0]),
        base=population.base,
        representation=population.representation,
        k=k,
        cross_author=scores[1],
    )


def _joined(authors: Integers, kin: Integers) -> Integers:
    """Groups of models that an author or a family tree joins, over others or not."""
    first: dict[int, int] = {}
    pairs = [(row, first.setdefault(int(author), row)) for row, author in enumerate(authors)]
    root: dict[int, int] = {}
    pairs += [(row, root.setdefault(int(tree), row)) for row, tree in enumerate(kin)]
    return components(range(len(authors)), pairs)


def _score(
    trial: LabelledOrder, authors: Integers, names: Sequence[str], draws: int, rng: np.random.Generator
) -> PurityScore:
    """Everything that is said of one trial as observed."""
    scored, neighbours, purity, chance = trial.evaluate(trial.sweep_kinds)
    if not len(scored):
        return PurityScore(0, len(names), 0, note=_why_nothing(trial, authors))
    by_dataset = sorted(trial.dataset_scores(), key=lambda row: (-row.models, row.dataset))
    ends = interval(trial, authors, scored, purity)
    return PurityScore(
        models=len(scored),
        candidates=len(names),
        datasets=len(by_dataset),
        purity=float(purity.mean()),
        purity_by_dataset_mean=float(np.mean([row.purity for row in by_dataset])),
        chance=float(chance.mean()),
        ci_low=ends[0] if ends else None,
        ci_high=ends[1] if ends else None,
        ci_reason=None if ends else TOO_FEW_AUTHORS,
        authors=len(np.unique(authors[scored])),
        p_value=_p_value(trial, float((purity - chance).mean()), draws, rng),
        by_dataset=tuple(by_dataset),
        note=_caution(trial, chance),
        by_model=tuple(
            ModelPurity(names[f], tuple(sorted(trial.labels[f])), int(looked), float(p), float(c))
            for f, looked, p, c in zip(scored, neighbours, purity, chance, strict=True)
        ),
    )


def _why_nothing(trial: LabelledOrder, authors: Integers) -> str:
    if len(authors) == 1:
        return "Only one model has both a vector and a known dataset."
    if len(set(trial.excluded.tolist())) == len(authors):
        return "No two models share a dataset."
    if len(set(authors.tolist())) == 1:
        return "All models with a known dataset are by one author."
    return "No dataset has models by two authors."


def _caution(trial: LabelledOrder, chance: Floats) -> str:
    """What a reader must know before quoting the numbers."""
    if chance.min() == 1.0:
        return "Every candidate of every scored model matches it: purity is 1 whatever the vectors are."
    ways = trial.sweeps.ways
    return f"Only {ways} ways to exchange the labels: p cannot be below {1 / ways:.2g}." if ways < 20 else ""


def _p_value(trial: LabelledOrder, observed: float, draws: int, rng: np.random.Generator) -> float:
    at_least = 0
    for _ in range(draws):
        _, _, purity, chance = trial.evaluate(trial.permuted(rng))
        at_least += float((purity - chance).mean()) >= observed - _TIE
    return (1 + at_least) / (1 + draws)
