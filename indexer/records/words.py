"""Words: what the tokens of different vocabularies have in common.

Two bases share no rows of their embeddings and no numbering of tokens, but a row that moved belongs to a token, and
many tokens are words. Models of two bases are compared over the words that both bases have.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from indexer.records.tokens import MISSING, UNSURE

Floats = NDArray[np.float64]

LONGEST_WORD = 40
# Shorter ones are mostly pieces of words, unless the script has no cases: a Chinese character may be a word.
_SHORTEST_WORD = 3


def plain_word(text: str) -> str:
    """``text`` in lower case and without accents; "" if it is not a word: letters of one script, three or more.

    One letter is enough in a script without cases. Accents are removed because uncased vocabularies have none.
    """
    if len(text) > LONGEST_WORD:
        return ""
    letters = [
        character
        for character in unicodedata.normalize("NFKD", text.casefold())
        if not unicodedata.combining(character)
    ]
    word = "".join(letters)
    if not word.isalpha() or len({script_of(letter) for letter in word}) != 1:
        return ""
    return word if len(word) >= _SHORTEST_WORD or unicodedata.category(word[0]) == "Lo" else ""


def script_of(letter: str) -> str:
    """The script of a letter, from its name in Unicode: "latin", "greek", "cjk"; "other" if it has no name."""
    return unicodedata.name(letter, "OTHER").split()[0].split("-")[0].lower()


def largest_of_words(values: Floats, words: Sequence[str]) -> tuple[list[str], Floats]:
    """The different words, sorted, and of the ``values`` (n,) of the tokens of each the largest.

    Tokens without a word and values that are NaN do not count; a word has no entry if none of its tokens has a value.
    """
    numbers = {word: number for number, word in enumerate(sorted(set(words) - {""}))}
    of_token = np.array([numbers.get(word, -1) for word in words], dtype=np.intp)
    counts = (of_token >= 0) & ~np.isnan(values)
    largest = np.full(len(numbers), -np.inf)
    np.maximum.at(largest, of_token[counts], values[counts])
    has_value = largest > -np.inf
    return [word for word, known in zip(numbers, has_value.tolist(), strict=True) if known], largest[has_value]


def squared_ranks(codes: NDArray[np.uint8]) -> Floats:
    """(n,) the squared rank of each row among the rows that moved, from 0 to 1; equal codes share one.

    0 for an untouched or unsure row, NaN for a missing one.
    """
    sizes = np.where(codes == UNSURE, 0, codes)
    has_moved = (sizes > 0) & (codes != MISSING)
    _, number, counts = np.unique(sizes[has_moved], return_inverse=True, return_counts=True)
    ranks = np.where(codes == MISSING, np.nan, 0.0)
    ranks[has_moved] = ((np.cumsum(counts) - (counts - 1) / 2) / max(counts.sum(), 1))[number] ** 2
    return ranks
