"""The texts of a base's tokens, kept in the user's cache so that a question about words starts no tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from indexer.errors import WRONG_KINDS, AtlasError
from indexer.names import ModelRef
from indexer.records.tokens import token_rows
from indexer.storage.arrays import checksum, read_arrays, write_arrays
from indexer.storage.checksums import user_cache
from query.trace.evidence import tokenizer_of_model

if TYPE_CHECKING:
    from indexer.profiles.tokenizer import IsolatedTokenizer

_VERSION = "1"  # of the files
_MOST_BYTES = 64 << 20


class Tokenizer(Protocol):
    """What is asked of a tokenizer; see :class:`indexer.profiles.tokenizer.IsolatedTokenizer`."""

    special_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, nothing added."""

    def words(self, ids: Sequence[int]) -> list[str]:
        """The piece of text that each id stands for."""


class BaseTokenizer:
    """The tokenizer of a base.

    The special tokens, and the texts of the tokens whose rows an atlas holds, are kept in the user's cache, by the
    base's commit. The tokenizer itself, which runs in a process of its own, is started for other questions.

    Raises AtlasError if the base has no tokenizer or it cannot be read.
    """

    def __init__(self, base: str, commit: str, vocabulary: int) -> None:
        self._base, self._commit = base, commit
        self._tokenizer: IsolatedTokenizer | None = None
        rows = token_rows(vocabulary).tolist()
        self._header = json.dumps([_VERSION, base, commit, vocabulary, len(rows)])
        found = self._read(len(rows))
        if found is None:
            tokenizer = self._started()
            special = list(tokenizer.special_ids)
            found = special, tokenizer.words(special), tokenizer.words(rows)
            arrays = {"texts": np.frombuffer(json.dumps(found).encode(), dtype=np.uint8)}
            # Without a cache the tokenizer is started again.
            with suppress(OSError, RuntimeError, AtlasError):
                write_arrays(self._path, arrays, {"checksum": checksum(self._header, arrays)})
        special, names, texts = found
        self.special_ids = tuple(special)
        self._texts = dict(zip(special, names, strict=True)) | dict(zip(rows, texts, strict=True))

    def words(self, ids: Sequence[int]) -> list[str]:
        """The piece of text that each id stands for."""
        if all(one in self._texts for one in ids):
            return [self._texts[one] for one in ids]
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
        """The special ids, their texts and those of the rows; None if they are not kept, or the file was altered."""
        try:
            arrays, texts = read_arrays(self._path, _MOST_BYTES)
            if texts["checksum"] != checksum(self._header, arrays):
                return None
            special, names, pieces = json.loads(arrays["texts"].tobytes())
        except (OSError, RuntimeError, *WRONG_KINDS):
            return None
        is_text = all(isinstance(one, str) for one in (*names, *pieces))
        is_whole = len(names) == len(special) and len(pieces) == rows and all(type(one) is int for one in special)
        return (special, names, pieces) if is_text and is_whole else None
