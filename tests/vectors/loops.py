"""Centre, vectors and similarity again, as the documents define them, in plain loops."""

from __future__ import annotations

import numpy as np


def centre(blocks: list[np.ndarray], authors: list[str]) -> np.ndarray:
    """The mean of unit blocks, author by author, times n/(n + 2)."""
    found = np.zeros(blocks[0].shape) if blocks else np.zeros((0, 0))
    for matrix in range(len(found)):
        by_author: dict[str, list[np.ndarray]] = {}
        for one, author in zip(blocks, authors, strict=True):
            if np.linalg.norm(one[matrix]) > 0:
                by_author.setdefault(author, []).append(one[matrix])
        if by_author:
            votes = [np.mean(members, axis=0) for members in by_author.values()]
            found[matrix] = np.mean(votes, axis=0) * len(votes) / (len(votes) + 2)
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
