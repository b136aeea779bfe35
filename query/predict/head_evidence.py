"""What config.json says of a head, as evidence for datasets: its kind, how many labels, and their names.

Naive Bayes down a chain: P(head | dataset) = P(kind) · P(number of labels | kind) · P(names | kind, number), each
smoothed towards the same share among all datasets, so that a dataset of which little is known is neither favoured
nor ruled out. Names like LABEL_0 say only their number, and whoever has no head (an adapter) says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from query.predict.sweeps import DatasetRuns, Floats
from query.statistics.neighbours import Booleans, Integers, codes_of

SMOOTHING = 0.5  # sweeps that a dataset is taken to have beyond those it has, of the average kind
_UNSEEN = 0.1  # sweeps that a head never seen before is taken to have among all datasets

_NO_NAME = re.compile(r"(?:label|class|category)?\d*")
_BETWEEN_WORDS = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class Head:
    """The head of a model; ``kind`` is None where nothing is known of it, ``names`` None where they say nothing."""

    kind: str | None = None
    labels: int | None = None
    names: frozenset[str] | None = None


def head_of(
    head_class: str | None, label_count: int | None, label_names: Sequence[str] | None, problem_type: str | None
) -> Head:
    """The head that columns of the models view (or a record's head) describe.

    The kind is the class without the architecture before it, ``ForTokenClassification``, with the problem type
    where that is not the usual one.
    """
    if not head_class:
        return Head()
    kind = head_class[head_class.find("For") :] if "For" in head_class else "no head"
    if problem_type in ("regression", "multi_label_classification"):
        kind += f" {problem_type}"
    names = frozenset(_folded(name) for name in label_names or ())
    return Head(kind, label_count, names if any(not _NO_NAME.fullmatch(name) for name in names) else None)


def _folded(name: str) -> str:
    return _BETWEEN_WORDS.sub("", name.casefold())


@dataclass(frozen=True)
class _Link:
    """One link of the chain. Row x, column v: how far sweep v's members, where they can be compared, match model x."""

    comparable: Floats
    matching: Floats


@dataclass(frozen=True)
class HeadMatches:
    """How the heads of some models (rows) match those of all sweeps, link by link."""

    links: tuple[_Link, ...]
    is_known: Booleans
    has_names: Booleans

    def at(self, places: Integers) -> HeadMatches:
        """Those of some of the models."""
        links = tuple(_Link(link.comparable[places], link.matching[places]) for link in self.links)
        return HeadMatches(links, self.is_known[places], self.has_names[places])

    def recognised(self, allowed: Booleans) -> NDArray[np.float64]:
        """(rows,): how much the label names overlap with those of the sweep that comes closest; NaN without names."""
        names = self.links[-1]
        overlap = np.where(allowed, names.matching / np.maximum(names.comparable, 1e-9), 0)
        return np.where(self.has_names, overlap.max(axis=1, initial=0), np.nan).astype(np.float64)

    def log_ratios(self, allowed: Booleans, sweeps: DatasetRuns) -> NDArray[np.float64]:
        """(rows, answers): ln P(head | dataset) / P(head), from the sweeps ``allowed`` (rows, sweeps) to speak."""
        total = np.zeros((len(allowed), len(sweeps.answers)))
        for link in self.links:
            comparable = allowed * link.comparable
            matching = allowed * link.matching
            average = (matching.sum(axis=1) + _UNSEEN) / (comparable.sum(axis=1) + 2 * _UNSEEN)
            average = average.astype(np.float64)[:, None]
            share = (matching @ sweeps.shares + SMOOTHING * average) / (comparable @ sweeps.shares + SMOOTHING)
            total += np.log(share / average)
        return total


def head_matches(heads: Sequence[Head], rows: Integers, sweeps: DatasetRuns) -> HeadMatches:
    """Compare the heads of ``rows`` with those of every sweep; ``heads`` has an entry for every model."""
    has_kind = [True if head.kind else None for head in heads]
    kinds = [head.kind for head in heads]
    counts = [(head.kind, head.labels) if head.kind else None for head in heads]
    is_named = [(head.kind, head.labels) if head.kind and head.names else None for head in heads]
    names = [(head.kind, head.labels, head.names) if head.kind and head.names else None for head in heads]
    same_kind = _matching(kinds, rows, sweeps)
    return HeadMatches(
        links=(
            _Link(_matching(has_kind, rows, sweeps), same_kind),
            _Link(same_kind, _matching(counts, rows, sweeps)),
            _Link(_matching(is_named, rows, sweeps), _matching(names, rows, sweeps, _overlap)),
        ),
        is_known=np.array([heads[row].kind is not None for row in rows], dtype=bool),
        has_names=np.array([bool(heads[row].kind and heads[row].names) for row in rows], dtype=bool),
    )


def _matching(
    values: Sequence[Hashable | None],
    rows: Integers,
    sweeps: DatasetRuns,
    likeness: Callable[[Sequence[Any]], Floats] | None = None,
) -> Floats:
    """(rows, sweeps): the share of a sweep's members that have the value of the row; nothing matches None.

    ``likeness`` says how alike the distinct values are, from 0 to 1, where that is not just equal or not.
    """
    from scipy.sparse import csr_array

    numbers: dict[Any, int] = {}
    codes = np.array([-1 if value is None else numbers.setdefault(value, len(numbers)) for value in values], np.intp)
    members = np.flatnonzero((sweeps.of_model >= 0) & (codes >= 0))
    sizes = np.bincount(sweeps.of_model[sweeps.of_model >= 0], minlength=len(sweeps.labels))
    sweep = sweeps.of_model[members]
    weights = (1 / sizes[sweep]).astype(np.float32)
    table = csr_array((weights, (codes[members], sweep)), (len(numbers), len(sweeps.labels))).toarray()
    if likeness is not None and numbers:
        table = likeness(list(numbers)) @ table
    nobody = np.zeros((1, len(sweeps.labels)), np.float32)
    shares: Floats = np.concatenate([table, nobody])[codes[rows]]
    return shares


def _overlap(named: Sequence[tuple[str, int | None, frozenset[str]]]) -> Floats:
    """Jaccard's index of the label names of (kind, number, names); 0 where kind or number differ."""
    from scipy.sparse import csr_array

    words = {word: number for number, word in enumerate(sorted({word for *_, names in named for word in names}))}
    row = np.repeat(np.arange(len(named)), [len(names) for *_, names in named])
    column = np.array([words[word] for *_, names in named for word in names], dtype=np.intp)
    incidence = csr_array((np.ones(len(row), np.float32), (row, column)), (len(named), len(words)))
    common = (incidence @ incidence.T).toarray()
    sizes = common.diagonal()
    codes = codes_of([entry[:2] for entry in named])
    overlap: Floats = common / (sizes[:, None] + sizes[None, :] - common) * (codes[:, None] == codes[None, :])
    return overlap
