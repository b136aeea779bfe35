"""Tokens as words: which words and scripts a model met, and which words distinguish it from other models of the base.

The texts of a base's tokens are kept in the user's cache, so that a question about words starts no tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import numpy as np
from numpy.typing import NDArray

from indexer.console.messages import say
from indexer.errors import WRONG_KINDS, AtlasError
from indexer.records.tokens import token_rows
from indexer.sources.registry import ModelRef
from indexer.storage.arrays import arrays_of, as_bytes, checksum
from indexer.storage.checksums import user_cache
from indexer.storage.own_files import read_own, write_own
from indexer.untrusted import printable
from query.contract.results import Doc
from query.questions.trace.evidence import tokenizer_of_model

if TYPE_CHECKING:
    from indexer.profiles.tokenizer import IsolatedTokenizer

_VERSION = "1"  # of the files
_MOST_BYTES = 64 << 20
# With fewer models, the standard deviation is too uncertain; a model is then compared with tokens of its own.
FEWEST_MODELS = 4
# Added to a standard deviation, in ranks from 0 to 1: a token that no other model met would divide by zero.
_SPREAD = 0.05
_SHORTEST = 3  # letters
_WINDOW = 100  # neighbours by number on each side: vocabularies are sorted by how common a token is


# ---- the texts of tokens


class Tokenizer(Protocol):
    """The part of a tokenizer that is used here; see :class:`indexer.profiles.tokenizer.IsolatedTokenizer`."""

    special_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, without special tokens."""

    def words(self, ids: Sequence[int]) -> list[str]:
        """The piece of text that each id stands for."""


class BaseTokenizer:
    """The tokenizer of a base.

    The user's cache has its special tokens, and the texts of the tokens whose rows an atlas contains, by the base's
    commit. The tokenizer itself, which runs in a process of its own, is started only if other tokens are needed.

    Raises AtlasError if the base has no tokenizer or it cannot be read.
    """

    def __init__(self, base: str, commit: str, vocabulary: int) -> None:
        self._base, self._commit = base, commit
        self._tokenizer: IsolatedTokenizer | None = None
        rows = token_rows(vocabulary).tolist()
        self._header = json.dumps([_VERSION, base, commit, vocabulary, len(rows)])
        cached = self._read(len(rows))
        if cached is None:
            tokenizer = self._started()
            special = list(tokenizer.special_ids)
            cached = special, tokenizer.words(special), tokenizer.words(rows)
            arrays = {"texts": np.frombuffer(json.dumps(cached).encode(), dtype=np.uint8)}
            # Without a cache the tokenizer is started again.
            with suppress(OSError, RuntimeError, AtlasError):
                write_own(self._path, as_bytes(arrays, {"checksum": checksum(self._header, arrays)}))
        special, names, texts = cached
        self.special_ids = tuple(special)
        self._texts = dict(zip(special, names, strict=True)) | dict(zip(rows, texts, strict=True))

    def begin_question(self) -> None:
        """From now on the answers belong to another question (see :class:`IsolatedTokenizer`)."""
        if self._tokenizer is not None:
            self._tokenizer.begin_question()

    def words(self, ids: Sequence[int]) -> list[str]:
        """The piece of text that each id stands for."""
        if all(token in self._texts for token in ids):
            return [self._texts[token] for token in ids]
        return self._started().words(ids)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, nothing added."""
        return self._started().encode(text)

    def _started(self) -> IsolatedTokenizer:
        if self._tokenizer is None:
            self._tokenizer = tokenizer_of_model(ModelRef(self._base), self._commit)
        return self._tokenizer

    @property
    def _path(self) -> Path:
        """Raises RuntimeError if the user has no home."""
        return user_cache() / "tokens" / f"{hashlib.sha256(self._header.encode()).hexdigest()[:32]}.safetensors"

    def _read(self, rows: int) -> tuple[list[int], list[str], list[str]] | None:
        """The special ids, their texts and those of the rows; None if they are not cached, or the file was altered."""
        try:
            arrays, texts = arrays_of(read_own(self._path, _MOST_BYTES, say))
            if texts["checksum"] != checksum(self._header, arrays):
                return None
            special, names, pieces = json.loads(arrays["texts"].tobytes())
        except (OSError, RuntimeError, *WRONG_KINDS):
            return None
        is_text = all(isinstance(text, str) for text in (*names, *pieces))
        is_complete = (
            len(names) == len(special) and len(pieces) == rows and all(type(token) is int for token in special)
        )
        return (special, names, pieces) if is_text and is_complete else None


class StoredWords:
    """The words of a base's rows that an atlas keeps, in place of its tokenizer; ``words``: by row, "" for none."""

    special_ids: tuple[int, ...] = ()  # they are no words

    def __init__(self, words: Mapping[int, str]) -> None:
        self._words = words

    def words(self, ids: Sequence[int]) -> list[str]:
        """The word of each id behind a space, as a tokenizer writes whole words; "" for what is none."""
        return [f" {word}" if (word := self._words[token]) else "" for token in ids]


# ---- words and scripts


@dataclass(frozen=True)
class Word:
    """A word that sets the model apart: ``score``, a z-score; ``tokens``, the ids of its spellings."""

    word: Annotated[str, Doc("A word that the model met.")]
    score: Annotated[float, Doc("How far the row moved compared with those of other models: a z-score.")]
    tokens: Annotated[list[int], Doc("Ids of the tokens.")]


@dataclass(frozen=True)
class Script:
    """How many tokens that were met are in a script; ``script``: as in the names of Unicode, or "other"."""

    script: Annotated[str, Doc("A script of Unicode.")]
    tokens: Annotated[int, Doc("Number of the tokens that were met.")]


def distinctive_scores(ranks: NDArray[np.float64], other_ranks: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """(n,) z-scores of a model's ``ranks`` (n,) among ``other_ranks`` (m, n), or else among its own neighbouring rows.

    NaN where a row is missing or was not met.
    """
    if other_ranks is not None and len(other_ranks) >= FEWEST_MODELS:
        with np.errstate(invalid="ignore"):
            mean, spread = np.nanmean(other_ranks, axis=0), np.nanstd(other_ranks, axis=0)
        scores = (ranks - mean) / (spread + _SPREAD)
    else:
        ranks_or_zero = np.where(np.isnan(ranks), 0.0, ranks)
        sums, squares = (np.concatenate([[0.0], np.cumsum(ranks_or_zero**power)]) for power in (1, 2))
        indices = np.arange(len(ranks))
        start, stop = np.maximum(indices - _WINDOW, 0), np.minimum(indices + _WINDOW + 1, len(ranks))
        mean = (sums[stop] - sums[start]) / (stop - start)
        spread = np.sqrt(np.maximum((squares[stop] - squares[start]) / (stop - start) - mean**2, 0))
        scores = (ranks_or_zero - mean) / (spread + _SPREAD)
    return np.where(ranks > 0, scores, np.nan)


def words_of(ids: NDArray[np.int64], pieces: Sequence[str], scores: NDArray[np.float64], count: int) -> list[Word]:
    """The ``count`` words with the highest scores, whole words before pieces of words; letters only."""
    spellings: dict[str, list[tuple[float, int, bool]]] = {}
    starts_with_space = any(piece.startswith(" ") for piece in pieces)
    for number, piece, score in zip(ids.tolist(), pieces, scores.tolist(), strict=True):
        word = piece.strip().removeprefix("##").casefold()
        if np.isnan(score) or score <= 0 or len(word) < _SHORTEST or not word.isalpha():
            continue
        is_whole = piece.startswith(" ") if starts_with_space else not piece.startswith("##")
        spellings.setdefault(word, []).append((score, number, is_whole))
    rows = [
        (
            any(is_whole for *_, is_whole in group),
            max(score for score, *_ in group),
            word,
            sorted(number for _, number, _ in group),
        )
        for word, group in spellings.items()
    ]
    rows.sort(key=lambda row: (not row[0], -row[1], row[2]))
    return [Word(printable(word, 60), round(score, 2), tokens) for _, score, word, tokens in rows[:count]]


def scripts_of(pieces: Sequence[str]) -> list[Script]:
    """The scripts of the pieces with a letter, the most common first."""
    counts: Counter[str] = Counter()
    for piece in pieces:
        letter = next((character for character in piece if character.isalpha()), None)
        if letter is not None:
            name = unicodedata.name(letter, "OTHER").split()[0].split("-")[0]
            counts[name.lower()] += 1
    return [Script(name, number) for name, number in counts.most_common()]
