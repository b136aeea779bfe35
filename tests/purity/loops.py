"""Purity word by word as the design has it, in loops; and populations to try it on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest

from indexer.vectors.table import VectorTable
from query.questions.purity.study import purity


@dataclass
class Models:
    """A population as the atlas hands it over; columns that a test does not care for get plain values."""

    vectors: np.ndarray
    datasets: list
    authors: list | None = None
    ids: list | None = None
    is_copy: list | None = None
    is_unrelated: list | None = None
    group: list | None = None
    representative: list | None = None
    models: list | None = None
    base: str = "roberta-base"
    representation: str = field(default="input")
    blocks: int = 0

    def __post_init__(self):
        n = len(self.datasets)
        vectors = np.asarray(self.vectors, dtype=np.float64).reshape(n, -1 if n else 3)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        self.vectors = (vectors / np.where(norms == 0, 1, norms)).astype(np.float32)
        self.datasets = [frozenset({d} if isinstance(d, str) else d) for d in self.datasets]
        self.ids = self.ids if self.ids is not None else list(range(1, n + 1))
        self.authors = self.authors or [f"author{i}" for i in range(n)]
        self.models = self.models or [f"{a}/model{i}" for a, i in zip(self.authors, self.ids, strict=True)]
        self.is_copy = self.is_copy or [False] * n
        self.is_unrelated = self.is_unrelated or [False] * n
        self.group = self.group or [None] * n
        self.representative = self.representative or [True] * n

    @property
    def table(self) -> VectorTable:
        return VectorTable(self.vectors, self.blocks)


def candidates_of(m: Models):
    """(id, vector, author, datasets), one per duplicate group, the group's datasets united."""
    usable = [i for i in range(len(m.ids)) if not m.is_copy[i] and not m.is_unrelated[i]]
    found = []
    for i in usable:
        datasets = set(m.datasets[i])
        if m.group[i] is not None:
            if not m.representative[i]:
                continue
            for j in usable:
                if m.group[j] == m.group[i]:
                    datasets |= m.datasets[j]
        if datasets:
            found.append((m.ids[i], m.vectors[i], m.authors[i], frozenset(datasets)))
    return found


def similarity(a, b):
    """The exact inner product to nine places: equal where it is equal in theory."""
    return round(math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True)), 9)


def similarities_of(found):
    """The similarity of every two by their ids."""
    return {(f[0], g[0]): similarity(f[1], g[1]) for f in found for g in found}


def naive(found, k=None, cross=False, only=None, known=None):
    """Per scored model: (id, author, neighbours, purity, chance), exact fractions. ``known``: similarities by ids."""
    known = similarities_of(found) if known is None else known
    rows = []
    for f in found:
        if only is not None and only not in f[3]:
            continue
        pool = [g for g in found if g[0] != f[0] and not (cross and g[2] == f[2])]
        labels = {only} if only is not None else f[3]
        matching = [g for g in pool if g[3] & labels]
        if not matching:
            continue
        nearest = sorted(pool, key=lambda g: (-known[f[0], g[0]], g[0]))
        nearest = nearest[: len(matching) if k is None else k]
        hits = sum(1 for g in nearest if g[3] & labels)
        rows.append((f[0], f[2], len(nearest), Fraction(hits, len(nearest)), Fraction(len(matching), len(pool))))
    return rows


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None


def same(got, expected):
    if expected is None:
        assert got is None
    else:
        assert got == pytest.approx(float(expected), abs=1e-12)


def check_against_naive(m: Models, k=None):
    result = purity(m, k=k, draws=3)
    found = candidates_of(m)
    known = similarities_of(found)
    for score, cross in ((result, False), (result.cross_author, True)):
        rows = naive(found, k, cross, known=known)
        assert score.models == len(rows)
        assert score.candidates == len(found)
        same(score.purity, mean(r[3] for r in rows))
        same(score.chance, mean(r[4] for r in rows))
        names = sorted({d for f in found for d in f[3]})
        each = {d: naive(found, k, cross, only=d, known=known) for d in names}
        each = {d: rows for d, rows in each.items() if rows}
        assert {r.dataset for r in score.by_dataset} == set(each)
        assert score.datasets == len(each)
        for row in score.by_dataset:
            assert row.models == len(each[row.dataset])
            same(row.purity, mean(r[3] for r in each[row.dataset]))
            same(row.chance, mean(r[4] for r in each[row.dataset]))
        same(score.purity_by_dataset_mean, mean(mean(r[3] for r in rows) for rows in each.values()))
        if not rows:
            assert score.note
            assert (score.ci_low, score.ci_high, score.p_value) == (None, None, None)
        names_of = dict(zip(m.ids, m.models, strict=True))
        assert [r.model for r in score.by_model] == [names_of[r[0]] for r in sorted(rows)]
        for got, expected in zip(score.by_model, sorted(rows), strict=True):
            assert got.neighbours == expected[2]
            same(got.purity, expected[3])
            same(got.chance, expected[4])
    return result


def clusters(per_author, authors, datasets, noise=0.01, seed=0, dim=16):
    """Every author tunes ``per_author`` models on every dataset; vectors lie by dataset."""
    rng = np.random.default_rng(seed)
    centres = np.eye(dim)[: len(datasets)]
    rows = [(d, a) for d in range(len(datasets)) for a in authors for _ in range(per_author)]
    vectors = [centres[d] + noise * rng.standard_normal(dim) for d, _ in rows]
    return Models(vectors, [datasets[d] for d, _ in rows], [a for _, a in rows])
