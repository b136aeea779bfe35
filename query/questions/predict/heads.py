"""The head in config.json as evidence for datasets: its kind, its number of labels, and their names.

Naive Bayes by the chain rule: P(head | dataset) = P(kind) · P(number of labels | kind) · P(names | kind, number). Each
factor is smoothed towards the share among all datasets, so that a dataset with few models is neither favoured nor ruled
out. If the names are generic, like LABEL_0, only their number counts. A model without a head, such as an adapter, has
no evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from query.models.population import Head
from query.questions.predict.dataset_runs import DatasetRuns
from query.shared.statistics.neighbours import Booleans, Floats, Integers, codes_of

SMOOTHING = 0.5  # average sweeps added to those of each dataset
_UNSEEN = 0.1  # added to the number of sweeps, among all datasets, with a head like this one


class HeadMatches:
    """How the heads of ``rows`` match those of all sweeps.

    Args:
        heads: the head of every model.
        rows: indices of models.
        sweeps: the sweeps among all models.

    Attributes:
        is_known: (rows,) whether anything is known about the head.
    """

    def __init__(self, heads: Sequence[Head], rows: Integers, sweeps: DatasetRuns) -> None:
        self._sweeps = sweeps
        self.is_known: Booleans = np.array([heads[row].kind is not None for row in rows], dtype=bool)
        self._has_names = np.array([bool(heads[row].kind and heads[row].names) for row in rows], dtype=bool)
        has_kind = [True if head.kind else None for head in heads]
        kinds = [head.kind for head in heads]
        counts = [(head.kind, head.labels) if head.kind else None for head in heads]
        is_named = [(head.kind, head.labels) if head.kind and head.names else None for head in heads]
        names = [(head.kind, head.labels, head.names) if head.kind and head.names else None for head in heads]
        same_kind = _matching(kinds, rows, sweeps)
        # For each factor, two (rows, sweeps): the shares of a sweep's members that can be compared, and that match.
        self._links = (
            (_matching(has_kind, rows, sweeps), same_kind),
            (same_kind, _matching(counts, rows, sweeps)),
            (_matching(is_named, rows, sweeps), _matching(names, rows, sweeps, _jaccard)),
        )

    def recognised(self, indices: Integers, allowed: Booleans) -> NDArray[np.float64]:
        """(indices,): the largest overlap of the label names with those of a sweep; NaN without names."""
        comparable, matching = (share[indices] for share in self._links[-1])
        overlap = np.where(allowed, matching / np.maximum(comparable, 1e-9), 0)
        return np.where(self._has_names[indices], overlap.max(axis=1, initial=0), np.nan).astype(np.float64)

    def log_ratios(self, indices: Integers, allowed: Booleans) -> NDArray[np.float64]:
        """(indices, answers): ln P(head | dataset) / P(head), from the sweeps ``allowed`` (indices, sweeps)."""
        shares = self._sweeps.shares
        total = np.zeros((len(allowed), shares.shape[1]))
        for link in self._links:
            comparable, matching = (allowed * share[indices] for share in link)
            average = (matching.sum(axis=1) + _UNSEEN) / (comparable.sum(axis=1) + 2 * _UNSEEN)
            average = average.astype(np.float64)[:, None]
            share = (matching @ shares + SMOOTHING * average) / (comparable @ shares + SMOOTHING)
            total += np.log(share / average)
        return total


def _matching(
    values: Sequence[Hashable | None],
    rows: Integers,
    sweeps: DatasetRuns,
    similarity: Callable[[Sequence[Any]], Floats] | None = None,
) -> Floats:
    """(rows, sweeps): the share of a sweep's members that have the value of the row; None matches nothing.

    ``similarity``: a function for the similarity of the distinct values, from 0 to 1; by default 1 if they are equal.
    """
    from scipy.sparse import csr_array

    numbers: dict[Any, int] = {}
    codes = np.array([-1 if value is None else numbers.setdefault(value, len(numbers)) for value in values], np.intp)
    members = np.flatnonzero((sweeps.of_model >= 0) & (codes >= 0))
    sweep = sweeps.of_model[members]
    weights = (1 / sweeps.sizes[sweep]).astype(np.float32)
    table = csr_array((weights, (codes[members], sweep)), (len(numbers), len(sweeps.labels))).toarray()
    if similarity is not None and numbers:
        table = similarity(list(numbers)) @ table
    no_match = np.zeros((1, len(sweeps.labels)), np.float32)
    return np.concatenate([table, no_match])[codes[rows]]


def _jaccard(heads: Sequence[tuple[str, int | None, frozenset[str]]]) -> Floats:
    """Jaccard's index of the label names of (kind, number, names); 0 if kind or number differ."""
    from scipy.sparse import csr_array

    words = {word: number for number, word in enumerate(sorted({word for *_, names in heads for word in names}))}
    row = np.repeat(np.arange(len(heads)), [len(names) for *_, names in heads])
    column = np.array([words[word] for *_, names in heads for word in names], dtype=np.intp)
    incidence = csr_array((np.ones(len(row), np.float32), (row, column)), (len(heads), len(words)))
    shared_counts = (incidence @ incidence.T).toarray()
    sizes = shared_counts.diagonal()
    codes = codes_of([entry[:2] for entry in heads])
    return shared_counts / (sizes[:, None] + sizes[None, :] - shared_counts) * (codes[:, None] == codes[None, :])
