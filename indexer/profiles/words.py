"""The words that the rows of a base's input embedding stand for, according to its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from indexer.errors import AtlasError, Failed, Skipped
from indexer.profiles.tokenizer import tokenizer_of
from indexer.records.tokens import token_rows
from indexer.records.words import plain_word

if TYPE_CHECKING:
    from indexer.checkpoints.checkpoint import Checkpoint


class Tokenizer(Protocol):
    """The part of a tokenizer that is used here; see :class:`indexer.profiles.tokenizer.IsolatedTokenizer`."""

    special_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, without special tokens."""

    def words(self, ids: Sequence[int]) -> list[str]:
        """The piece of text that each id stands for."""


def whole_words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """For each id the word that it stands for, as ``plain_word`` writes it; "" for a piece of a word, a sign, a number.

    A token is a whole word if the tokenizer makes it, and nothing else, of its text behind a space. That holds for
    every kind of tokenizer, whatever mark it has for the beginning or the inside of a word.
    """
    special, words = set(tokenizer.special_ids), []
    for token, text in zip(ids, tokenizer.words(ids), strict=True):
        word = "" if token in special else plain_word(text.strip())
        words.append(word if word and tokenizer.encode(f" {text.strip()}") == [token] else "")
    return words


def words_of_base(checkpoint: Checkpoint, say: Callable[[str], None]) -> list[str]:
    """The words of the rows that are read of the input embedding (``token_rows``); [] without a usable tokenizer.

    ``say`` is called with the reason if the tokenizer cannot be used. Raises AtlasError if it cannot be fetched.
    """
    name = checkpoint.token_embedding
    if name is None:
        return []
    rows = token_rows(checkpoint.tensors[name].shape[0]).tolist()
    try:
        tokenizer = tokenizer_of(checkpoint)
        return [] if tokenizer is None else whole_words(tokenizer, rows)
    except Failed as error:
        raise AtlasError(f"The tokenizer of the base cannot be read: {error.detail}.", "Try again later.") from error
    except (AtlasError, Skipped) as error:
        why = error.message if isinstance(error, AtlasError) else error.detail
        say(f"its models are not compared with those of other bases by words: its tokenizer cannot be used ({why})")
        return []
