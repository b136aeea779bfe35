"""Centre, vectors and similarity again, as the documents define them, in plain loops."""

from __future__ import annotations

import numpy as np


def alike(one: np.ndarray, other: np.ndarray) -> float:
    """The mean product of the blocks that both have."""
    both = [matrix for matrix in range(len(one)) if one[matrix].any() and other[matrix].any()]
    return sum(float(one[matrix] @ other[matrix]) for matrix in both) / len(both) if both else 0.0


def centre(blocks: list[np.ndarray], authors: list[str]) -> np.ndarray:
    """A mean of unit blocks: an author has one vote, models that are more alike than most share votes."""
    found = np.zeros(blocks[0].shape) if blocks else np.zeros((0, 0))
    votes = {author: np.zeros(found.shape) for author in sorted(set(authors))}
    counts = {(author, matrix): 0 for author in votes for matrix in range(len(found))}
    for one, author in zip(blocks, authors, strict=True):
        for matrix in range(len(found)):
            counts[author, matrix] += bool(one[matrix].any())
            votes[author][matrix] += one[matrix]
    for author, matrix in counts:
        votes[author][matrix] /= max(counts[author, matrix], 1)
    weights = np.zeros(len(found))
    for one, author in zip(blocks, authors, strict=True):
        found_alike = [alike(one, vote) for other, vote in votes.items() if other != author]
        common = min(max(float(np.quantile(found_alike, 0.1)), 0.0), 0.8) if found_alike else 0.0
        sharing = 1 + sum(max(0.0, (each - common) / (1 - common)) ** 1.5 for each in found_alike)
        for matrix in range(len(found)):
            if one[matrix].any():
                weight = 1 / counts[author, matrix] / sharing
                found[matrix] += weight * one[matrix]
                weights[matrix] += weight
    for matrix in range(len(found)):
        if weights[matrix] > 0:
            found[matrix] *= max(0.0, weights[matrix] - 2) / weights[matrix] ** 2
    return found


def centred(blocks: np.ndarray, middle: np.ndarray) -> np.ndarray:
    found = np.zeros(blocks.shape)
    for matrix, block in enumerate(blocks):
        rest = block - middle[matrix]
        if np.linalg.norm(block) > 0 and np.linalg.norm(rest) > 0:
            found[matrix] = rest / np.linalg.norm(rest)
    return found


def similarity(one: np.ndarray, other: np.ndarray) -> float:
    both = [matrix for matrix in range(len(one)) if one[matrix].any() and other[matrix].any()]
    total = sum(float(one[matrix] @ other[matrix]) for matrix in both)
    few = min(4, len(one))
    if len(both) >= few:
        return total / len(both)
    return total / len(both) * len(both) / few if both else 0.0
