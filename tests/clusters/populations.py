"""Populations with clustered_vectors clusters, and how two groupings are compared."""

from __future__ import annotations

import math

import numpy as np

from query.models.population import Population


def population(vectors, datasets=None, authors=None, ids=None, **columns):
    """As the atlas hands it over; columns that a test does not care for get plain values."""
    count = len(vectors)
    vectors = np.asarray(vectors, dtype=np.float64).reshape(count, -1 if count else 3)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = np.arange(1, count + 1) if ids is None else np.asarray(ids)
    authors = authors or [f"author{i}" for i in range(count)]
    plain = {
        "base": "roberta-base",
        "representation": "input",
        "models": [f"{a}/model{i}" for a, i in zip(authors, ids, strict=True)],
        "relations": ["finetune"] * count,
        "is_copy": np.zeros(count, dtype=bool),
        "is_unrelated": np.zeros(count, dtype=bool),
        "group": [None] * count,
        "representative": np.ones(count, dtype=bool),
    }
    return Population(
        vectors=(vectors / np.where(norms == 0, 1, norms)).astype(np.float32),
        ids=ids,
        authors=authors,
        datasets=[frozenset([d] if isinstance(d, str) else d or ()) for d in datasets or [None] * count],
        **(plain | columns),
    )


def clustered_vectors(sizes, outliers=0, dimensions=60, tightness=0.6, seed=0):
    """Vectors around centres (``tightness``: the cosine of two members) that have a little in common, as all
    fine-tunes have, and others in directions of their own; the cluster of each, -1 for those others; shuffled."""
    draw = np.random.default_rng(seed)
    centres = np.linalg.qr(draw.normal(size=(dimensions, dimensions)))[0]
    centres[: len(sizes)] = math.sqrt(0.8) * centres[: len(sizes)] + math.sqrt(0.2) * centres[-1]
    truth = np.array([*np.repeat(np.arange(len(sizes)), sizes), *[-1] * outliers])
    noise = draw.normal(size=(len(truth), dimensions))
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    vectors = math.sqrt(tightness) * centres[truth] + math.sqrt(1 - tightness) * noise
    vectors[truth < 0] = centres[len(sizes) : len(sizes) + outliers]
    order = draw.permutation(len(truth))
    return vectors[order], truth[order]


def partition(ids, labels):
    """Sets of ids that share a label; each outlier for itself."""
    groups = {}
    for identity, label in zip(ids, labels, strict=True):
        groups.setdefault(label if label >= 0 else f"alone {identity}", set()).add(int(identity))
    return {frozenset(group) for group in groups.values()}


def names(truth):
    return [f"set{t}" if t >= 0 else None for t in truth]
