"""The words and scripts of the tokens that a model met, and which words set it apart from other models of the base."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexer.untrusted import printable

if TYPE_CHECKING:
    from query.trace.vocabulary import Tokenizer

# Fewer models give no standard deviation worth dividing by; a model is then compared with tokens of its own.
FEWEST_MODELS = 4
# Added to a standard deviation, in ranks from 0 to 1: a token that no other model met would divide by zero.
_SPREAD = 0.05
_SHORTEST = 3  # letters
_WINDOW = 100  # neighbours by number on each side: vocabularies are sorted by how common a token is
_AT_ONCE = 20_000  # pieces asked of the tokenizer at a time


@dataclass(frozen=True)
class Word:
    """A word that sets the model apart: ``score``, a z-score; ``tokens``, the ids of its spellings."""

    word: str
    score: float
    tokens: list[int]


@dataclass(frozen=True)
class Script:
    """How many tokens that were met are in a script; ``script``: as in the names of Unicode, or "other"."""

    script: str
    tokens: int


def distinctive_scores(ranks: NDArray[np.float64], others: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """(n,) z-scores of a model's ``ranks`` (n,) among the ``others`` (m, n), or else among its own neighbouring rows.

    NaN where a row is missing or was not met.
    """
    if others is not None and len(others) >= FEWEST_MODELS:
        with np.errstate(invalid="ignore"):
            mean, spread = np.nanmean(others, axis=0), np.nanstd(others, axis=0)
        scores = (ranks - mean) / (spread + _SPREAD)
    else:
        known = np.where(np.isnan(ranks), 0.0, ranks)
        sums, squares = (np.concatenate([[0.0], np.cumsum(known**power)]) for power in (1, 2))
        place = np.arange(len(ranks))
        start, stop = np.maximum(place - _WINDOW, 0), np.minimum(place + _WINDOW + 1, len(ranks))
        mean = (sums[stop] - sums[start]) / (stop - start)
        spread = np.sqrt(np.maximum((squares[stop] - squares[start]) / (stop - start) - mean**2, 0))
        scores = (known - mean) / (spread + _SPREAD)
    found: NDArray[np.float64] = np.where(ranks > 0, scores, np.nan)
    return found


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token."""
    return [piece for start in range(0, len(ids), _AT_ONCE) for piece in tokenizer.words(ids[start : start + _AT_ONCE])]


def words_of(ids: NDArray[np.int64], pieces: Sequence[str], scores: NDArray[np.float64], count: int) -> list[Word]:
    """The ``count`` words with the highest scores, whole words before pieces of words; letters only."""
    found: dict[str, list[tuple[float, int, bool]]] = {}
    starts_with_space = any(piece.startswith(" ") for piece in pieces)
    for number, piece, score in zip(ids.tolist(), pieces, scores.tolist(), strict=True):
        word = piece.strip().removeprefix("##").casefold()
        if np.isnan(score) or score <= 0 or len(word) < _SHORTEST or not word.isalpha():
            continue
        is_whole = piece.startswith(" ") if starts_with_space else not piece.startswith("##")
        found.setdefault(word, []).append((score, number, is_whole))
    rows = [
        (any(whole for *_, whole in one), max(score for score, *_ in one), word, sorted(number for _, number, _ in one))
        for word, one in found.items()
    ]
    rows.sort(key=lambda row: (not row[0], -row[1], row[2]))
    return [Word(printable(word, 60), round(score, 2), tokens) for _, score, word, tokens in rows[:count]]


def scripts_of(pieces: Sequence[str]) -> list[Script]:
    """The scripts of the pieces that hold a letter, the most common first."""
    counts: Counter[str] = Counter()
    for piece in pieces:
        letter = next((one for one in piece if one.isalpha()), None)
        if letter is not None:
            name = unicodedata.name(letter, "OTHER").split()[0].split("-")[0]
            counts[name.lower()] += 1
    return [Script(name, number) for name, number in counts.most_common()]
