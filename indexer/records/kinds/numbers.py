"""Changes of single numbers: pruned, quantised, noise added."""

from __future__ import annotations

import numpy as np

from indexer.records.kinds.change import Subject, Test
from indexer.records.signs import Signs

# One matrix in so many decides, those with the strongest sign, as a tool may leave some as they are.
_TOP = 8
_ALL_CONSTANT = 0.99


def _weights(subject: Subject) -> np.ndarray:
    """(K,) each matrix's share of all numbers; 0 for one that holds a single number."""
    sizes = np.array([float(np.prod(delta.shape)) for delta in subject.record.deltas])
    return np.where(subject.signs.column("constant") > _ALL_CONSTANT, 0.0, sizes / sizes.sum())


def _zeros(subject: Subject) -> float:
    """The share of numbers that are 0 where the base's are not. Training leaves none, and float16 loses tiny ones."""
    return float(_weights(subject) @ subject.signs.column("zeros"))


def _pruned_in_words(subject: Subject) -> str:
    zeros = subject.signs.column("zeros")
    where = f"in {(zeros > 0).sum()} of {len(zeros)} matrices"
    return f"{_zeros(subject):.2%} of numbers are zero where the base's are not, {where}"


def _coarseness(signs: Signs) -> np.ndarray:
    """(K,) how surely each matrix lies on a grid: groups of numbers with equal steps, or rows of few numbers."""
    is_changed = signs.column("change") > 0
    fewer = np.clip(1.0 - signs.column("distinct"), 0.0, 1.0)
    return np.where(is_changed, np.maximum(signs.column("grid"), fewer), 0.0)


def _on_grid(subject: Subject) -> float:
    coarse = np.where(subject.signs.column("constant") > _ALL_CONSTANT, 0.0, _coarseness(subject.signs))
    return float(np.sort(coarse)[-max(1, len(coarse) // _TOP) :].mean())


def _quantised_in_words(subject: Subject) -> str:
    coarse = _coarseness(subject.signs)
    distinct = subject.signs.column("distinct")[coarse > 0.5]
    fewer = f"; a row has {np.median(distinct):.0%} of the distinct numbers of the base's" if len(distinct) else ""
    return f"{(coarse > 0.5).sum()} of {len(coarse)} matrices lie on a grid of at most 256 steps in each group{fewer}"


def _flatness(signs: Signs) -> np.ndarray:
    """(K,) the share of each change that is like independent numbers, by the median of its spectrum, less rounding.

    1 for independent numbers of one variance, by the law of Marchenko and Pastur.
    """
    tail = np.minimum(signs.column("tail"), 1.0) - np.minimum(signs.column("rounding"), 1.0)
    return np.where(signs.column("change") > 0, np.maximum(tail, 0.0), 0.0)


def _noise(subject: Subject) -> float:
    # The difference of two independent networks is flat as well.
    return 0.0 if subject.is_unrelated else float(np.median(_flatness(subject.signs)))


def _noise_in_words(subject: Subject) -> str:
    signs = subject.signs
    largest = np.sqrt(np.median(signs.column("edge")))
    return (
        f"the spectrum of the changes is flat: by its median, {_noise(subject):.0%} of their energy is that of "
        f"independent numbers, and its largest singular value is {largest:.2f} times theirs"
    )


PRUNED = Test("pruned", _zeros, _pruned_in_words, 1e-4, 2e-5)
QUANTISED = Test("quantised", _on_grid, _quantised_in_words, 0.3, 0.05)
NOISE = Test("noise added", _noise, _noise_in_words, 0.6, 0.05)
