"""How well a table of similarities finds models that were tuned on the same data; the same for every method.

The folds are the authors: across authors, a model is compared with, and its data set is voted for by, models of other
authors alone. Equal similarities come in random order, and numbers are means over a few such orders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.centre import ADAPTER, FULL
from query.questions.purity.labels import LabelledOrder, OwnPlaces
from query.questions.purity.study import null_distribution
from query.shared.statistics.neighbours import codes_of, leave_out

Json = dict[str, Any]
Reals = NDArray[np.float64]
Labels = Sequence[frozenset[str]]

TIES = 8  # orders of equal similarities
VOTERS = 5
DRAWS = 1000
MEASURES = (*(f"{form} {key}" for form in ("all", "across") for key in ("purity", "chance", "p_value", "effect")),
            "retrieval", "accuracy", "to_full")  # fmt: skip


@dataclass(frozen=True)
class Table:
    """The similarities of n models, (n, n) float64, by one method; nan where the method cannot compare two models.

    ``seconds`` and ``bytes``: what a model costs on average, without the comparison; None if it was not measured.
    """

    similarity: Reals
    seconds: float | None = None
    bytes: float | None = None

    @property
    def has(self) -> NDArray[np.bool_]:
        """(n,): which models the method can compare with themselves, and so with others."""
        return ~np.isnan(np.diag(self.similarity))


def cosines(vectors: NDArray[np.floating[Any]]) -> Reals:
    """(n, n) from (n, d); nan for vectors of zeros."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit = vectors / np.where(norms > 0, norms, np.nan)
    found: Reals = unit @ unit.T
    return found


def scores(
    table: Table, labels: Labels, authors: Sequence[str], groups: Sequence[str], *, draws: int | None = DRAWS
) -> Json:
    """All measures of one method over the models that it has a similarity for.

    ``draws``: permutations of the labels, for p-values and effects; None as in `query purity`, 0 for none.

    Returns:
        ``models``, MEASURES and costs. ``all purity``, ``across purity`` (authors) and so on are as `query purity`
        defines them; ``to_full``: the share of matches among the m full fine-tunes nearest to an adapter, where m match;
        ``retrieval``: mean average precision of the same data set among other authors' models; ``accuracy``: of a vote
        of the VOTERS nearest models of other authors, the n-th of which has 1/n votes. None where nothing is scored.
    """
    rows = np.flatnonzero(table.has)
    similarity = table.similarity[np.ix_(rows, rows)]
    labels = [labels[row] for row in rows.tolist()]
    authors, groups = ([column[row] for row in rows.tolist()] for column in (authors, groups))
    if not len(rows):
        return dict.fromkeys(MEASURES) | {"models": 0, "seconds": table.seconds, "bytes": table.bytes}
    found: list[Json] = []
    for number, order in enumerate(orders(similarity)):
        one: Json = {}
        owners = codes_of(authors)
        for name, excluded in (("all", np.arange(len(rows))), ("across", owners)):
            score = _purity(order, excluded, owners, labels, 0 if number else draws)
            one |= {f"{name} {key}": value for key, value in score.items()}
        ranked = list(_ranked(order, labels, authors))
        right = [average_precision(matches) for matches, _ in ranked]
        votes = [vote(order[row].tolist(), row, labels, authors) for _, row in ranked]
        one |= {"retrieval": _mean(right), "accuracy": _mean(votes)}
        shares = list(_adapter_to_full(order, labels, groups))
        one["to_full"] = _mean(shares)
        found.append(one)
    mean = {
        key: None
        if value is None or key.endswith(("p_value", "effect"))
        else float(np.mean([one[key] for one in found]))
        for key, value in found[0].items()
    }
    mean |= {key: value for key, value in found[0].items() if key.endswith(("p_value", "effect"))}
    return {"models": len(rows), **mean, "seconds": table.seconds, "bytes": table.bytes}


def orders(similarity: Reals) -> Iterator[NDArray[np.uint16]]:
    """(n, n): for each model all models, nearest first, itself included; several times if there are ties."""
    upper = similarity[np.triu_indices(len(similarity), 1)]
    has_ties = len(np.unique(np.round(upper, 12))) < len(upper)
    rng = np.random.default_rng(0)
    for _ in range(TIES if has_ties else 1):
        tie_break = rng.random(similarity.shape)
        # What cannot be compared comes last, in random order.
        yield np.lexsort((tie_break, -np.nan_to_num(similarity.round(12), nan=-np.inf)), axis=-1).astype(np.uint16)


def average_precision(matches: Sequence[bool]) -> float:
    """The mean, over the places of the matches, of the share of matches up to there (none: nan)."""
    hits = np.flatnonzero(matches)
    return float(np.mean(np.arange(1, len(hits) + 1) / (hits + 1))) if len(hits) else np.nan


def _purity(
    order: NDArray[np.uint16],
    excluded: NDArray[np.intp],
    owners: NDArray[np.intp],
    labels: Labels,
    draws: int | None,
) -> Json:
    lists = order.copy()
    leave_out(lists, excluded)
    trial = LabelledOrder(lists, excluded, list(labels), None, owners=owners)
    _, _, purity, chance = trial.evaluate(trial.sweep_kinds)
    if not len(purity):
        return {"purity": None, "chance": None, "p_value": None, "effect": None}
    found: Json = {"purity": float(purity.mean()), "chance": float(chance.mean()), "p_value": None, "effect": None}
    if draws != 0:
        own = OwnPlaces(lists, excluded, owners)
        leave_out(lists, owners)
        trial = LabelledOrder(lists, owners, list(labels), None, own_places=own)
        null = null_distribution(trial, draws, np.random.default_rng(0))
        found |= {"p_value": null["p_value"], "effect": null["effect"]}
    return found


def _ranked(order: NDArray[np.uint16], labels: Labels, authors: Sequence[str]) -> Iterator[tuple[list[bool], int]]:
    """For each model whose data set another author has: which of their models match, nearest first; and its row."""
    for row, near in enumerate(order.tolist()):
        matches = [bool(labels[other] & labels[row]) for other in near if authors[other] != authors[row]]
        if any(matches):
            yield matches, row


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def vote(near: Sequence[int], row: int, labels: Labels, authors: Sequence[str]) -> float:
    """1 if the nearest models of other authors, voting, name a data set of the model."""
    voters = [other for other in near if authors[other] != authors[row]][:VOTERS]
    votes: dict[str, float] = {}
    for rank, other in enumerate(voters, 1):
        for name in sorted(labels[other]):
            votes[name] = votes.get(name, 0) + 1 / rank
    return float(max(votes, key=lambda name: votes[name]) in labels[row])


def _adapter_to_full(order: NDArray[np.uint16], labels: Labels, groups: Sequence[str]) -> Iterator[float]:
    for row, near in enumerate(order.tolist()):
        if groups[row] == ADAPTER:
            matches = [bool(labels[other] & labels[row]) for other in near if groups[other] == FULL]
            if count := sum(matches):
                yield sum(matches[:count]) / count
