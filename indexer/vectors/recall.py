"""Recall@10 of candidates followed by exact comparison, against a brute force over every vector.

Recall by score, not by id: a model whose tenth neighbour ties with the eleventh has found as much with either
(Aumüller, Bernhardsson & Faithfull, 2017, "ANN-Benchmarks").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.masks import Masks
from indexer.vectors.segments import Part, Vectors, blocks, rows_of_block

# Results of which the share that is found counts.
AT = 10

# Cosines this near to each other are equal in float32.
TIE = 2e-6

Propose = Callable[[NDArray[np.float32], int], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Questions:
    """Models of the atlas that ask for their neighbours, and how near those are.

    ``ids`` (q,), ``vectors`` (q, d). ``last`` (q,): the similarity of the last of the ``at`` nearest other models.
    """

    ids: NDArray[np.int64]
    vectors: NDArray[np.float32]
    last: NDArray[np.float32]
    at: int


def sample(parts: Sequence[Part], count: int, seed: int) -> Iterator[Vectors]:
    """At most ``count`` vectors drawn without replacement, as copies of a block at a time, in the parts' order."""
    total = sum(len(part.ids) for part in parts)
    drawn = np.sort(np.random.default_rng(seed).choice(total, min(count, total), replace=False))
    start = 0
    for part in parts:
        here = drawn[(drawn >= start) & (drawn < start + len(part.ids))] - start
        rows = rows_of_block(part.length)
        for first in range(0, len(here), rows):
            chosen = here[first : first + rows]
            yield Vectors(part.ids[chosen], part.copied(chosen))
        start += len(part.ids)


def ask(parts: Sequence[Part], count: int, seed: int, masks: Masks | None = None) -> Questions:
    """Draw at most ``count`` questions from the vectors and answer them exactly, in blocks (no id twice in parts)."""
    drawn = list(sample(parts, count, seed))
    ids = np.concatenate([block.ids for block in drawn])
    vectors = np.concatenate([block.matrix for block in drawn])
    at = min(AT, sum(len(part.ids) for part in parts) - 1)
    nearest = np.full((len(ids), at), -np.inf, dtype=np.float32)
    for block in blocks(parts) if at else ():
        cosines = vectors @ block.matrix.T
        if masks is not None:
            cosines /= masks.divisors(vectors, block.ids)
        cosines[ids[:, None] == block.ids[None, :]] = -np.inf
        both = np.concatenate([nearest, cosines], axis=1)
        nearest = np.partition(both, -at, axis=1)[:, -at:]
    return Questions(ids, vectors, nearest.min(axis=1) if at else np.zeros(len(ids), np.float32), at)


def recall(
    questions: Questions, propose: Propose, candidates: int, parts: Sequence[Part], masks: Masks | None = None
) -> float:
    """Share of the nearest that is among ``candidates`` proposed ones, compared exactly; 0 for a lonely model.

    A proposed id that no part knows is worth nothing. A reader asks for more in its place, so that this is at most
    what a reader gets.
    """
    if not questions.at:
        return 0.0
    found = 0
    for model_id, vector, last in zip(questions.ids, questions.vectors, questions.last, strict=True):
        proposed = propose(vector, candidates + 1)
        others = np.sort(proposed[proposed != model_id][:candidates])
        cosines = np.concatenate([part.copied(part.positions(others)) @ vector for part in parts])
        if masks is not None:
            known = np.concatenate([part.ids[part.positions(others)] for part in parts])
            cosines /= masks.divisors(vector[None, :], known)[0]
        found += min(int((cosines >= last - TIE).sum()), questions.at)
    return found / (questions.at * len(questions.ids))
