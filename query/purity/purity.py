"""Purity: how far the nearest neighbours of a model were tuned on the same datasets.

Arrays in, numbers out: no database, no index, no files. The definition is the "Purity" paragraph of the
design: the candidates C_f of a model f are the other models with a dataset that are neither copies nor
unrelated, one per duplicate group; m_f of them share a dataset with f; purity_f is the share of matches
among the m_f nearest. A model with m_f = 0 is not scored but stays a candidate of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from query.population import Population, components, representatives
from query.purity.confusions import confused_pairs
from query.purity.found import ModelPurity, PurityResult, PurityScore
from query.purity.labels import Floats, LabelledOrder
from query.purity.without import MOST_UNITS, interval
from query.statistics.intervals import TOO_FEW_AUTHORS, units_of
from query.statistics.neighbours import Integers, codes_of, leave_out
from query.statistics.order import neighbour_order
from query.statistics.threads import each

_MANY = 2_000  # models of which a draw takes longer than handing it to a thread
_TIE = 1e-12  # two means that differ by less are the same sum in another order


def purity(
    population: Population,
    *,
    k: int | None = None,
    draws: int = 1000,
    seed: int = 0,
    trees: Integers | None = None,
    confusions: bool = False,
) -> PurityResult:
    """Purity of ``population``, plain and cross-author, with intervals over authors and permutation p-values.

    ``trees``: the family tree of every model of the population; models of one tree are then no candidates of each
    other, and their label sets move as an author's do. ``confusions``: also which datasets are taken for which.
    ``k``: look at the k nearest instead of the m_f nearest (at all candidates where there are fewer).
    Similarities are those of float64, compared in steps of 2^-32 (2.3e-10): far finer than float32, far coarser than
    the noise of summing in another order, so that equal similarities are equal whatever the blocks; ties go to the
    lower id (``query.statistics.order``). Raises ValueError on vectors that are not finite, ids that repeat, columns
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
        authors = codes_of([population.authors[row] for row in rows])
        names = [population.models[row] for row in rows]
        scores = []
        # Leaving out a model's author also leaves out the model, so one table serves both in turn.
        kin = np.arange(len(rows), dtype=np.intp) if trees is None else codes_of(trees[rows].tolist())
        families = authors if trees is None else _joined(authors, kin)
        reach = _reach(labels, authors, families, k)
        order = neighbour_order(population.vectors, rows, population.blocks, reach)
        for form, excluded in enumerate((kin, families)):
            leave_out(order, excluded)
            trial = LabelledOrder(order, excluded, labels, k)
            score = _score(trial, authors, names, draws, np.random.default_rng([seed, form]))
            pairs = confused_pairs(trial) if confusions and score.models else ()
            scores.append(replace(score, confusions=pairs))
    else:
        scores = [PurityScore(0, 0, 0, note="No model has both a vector and a known dataset.")] * 2
    return PurityResult(
        **vars(scores[0]),
        base=population.base,
        representation=population.representation,
        k=k,
        cross_author=scores[1],
    )


def _reach(labels: Sequence[frozenset[str]], authors: Integers, families: Integers, k: int | None) -> Integers:
    """Places of each list that the observed labels look at, at most.

    As many as match, beyond those of the own family, which are left out, and of authors that are taken away.
    """
    holders = Counter(name for names in labels for name in names)
    looked_at = np.array([sum(holders[name] for name in names) for names in labels]) if k is None else k
    away = np.bincount(units_of(authors.tolist(), MOST_UNITS)).max()
    reach: Integers = looked_at + np.bincount(families)[families] + away
    return reach


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
    moves = (trial.permuted(rng) for _ in range(draws))
    at_least = sum(each(lambda kinds: trial.reaches(kinds, observed - _TIE), moves, is_long=len(trial.order) >= _MANY))
    return (1 + at_least) / (1 + draws)
