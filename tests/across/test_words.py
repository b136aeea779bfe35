"""Words of vocabularies, and the vectors made of them."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from indexer.errors import AtlasError
from indexer.names import DeltaKey
from indexer.profiles.words import whole_words
from indexer.records.identity import Identity, Spec
from indexer.records.record import DeltaRecord, Record, TokenChanges
from indexer.records.representations.words import WORDS, different_words
from indexer.records.tokens import MISSING, UNSURE, token_rows
from indexer.records.words import largest_of_words, plain_word, squared_ranks

TEXTS = [
    "The storage of the ipod is small, and the ipod is white.",
    "A history of storage: what the museum keeps, the museum shows.",
    "history repeats the museum of white ipods",
] * 4


class LocalTokenizer:
    """Answers as the product's tokenizer does, without a process of its own."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.special_ids = tuple(one for one, token in tokenizer.get_added_tokens_decoder().items() if token.special)

    def encode(self, text):
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def words(self, ids):
        return [self._tokenizer.decode([one], skip_special_tokens=False) for one in ids]


def byte_level(prefix: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>"], show_progress=False)
    )
    return tokenizer


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[CLS]"], show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=60, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    )
    return tokenizer


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Museum", "museum"), ("CAFÉ", "cafe"), ("Straße", "strasse"), ("μουσείο", "μουσειο"), ("博", "博"), ("no", ""),
        ("ab3", ""), ("##ing", ""), ("", ""), ("aβγ", ""), ("don't", ""), ("x" * 41, ""), ("ﬁne", "fine"), ("שלום", "שלום"),
    ],
)  # fmt: skip
def test_a_plain_word(text, word):
    assert plain_word(text) == word
    assert plain_word(word) == word  # what is stored is checked by this
    assert unicodedata.is_normalized("NFKD", word)


@pytest.mark.parametrize("make", [lambda: byte_level(True), lambda: byte_level(False), wordpiece, unigram])
def test_whole_words_of_every_kind_of_tokenizer(make):
    made = make()
    tokenizer = LocalTokenizer(made)
    ids = list(range(made.get_vocab_size()))
    words = whole_words(tokenizer, ids)
    assert {"storage", "ipod"} <= set(words)
    for token, word in zip(ids, words, strict=True):
        raw = made.id_to_token(token)
        if word:
            # Behind a space it is this token and no other, so that it is no piece of a longer word.
            assert made.encode(f" {tokenizer.words([token])[0].strip()}", add_special_tokens=False).ids == [token]
        if raw.startswith("##") or token in tokenizer.special_ids:
            assert word == ""


def test_the_largest_value_of_the_tokens_of_a_word():
    values = np.array([0.2, 0.9, np.nan, 0.1, 0.4, np.nan])
    words, largest = largest_of_words(values, ["the", "the", "the", "", "museum", "lost"])
    assert words == ["museum", "the"]
    np.testing.assert_array_equal(largest, [0.4, 0.9])


def test_squared_ranks_by_counting():
    codes = np.array([0, 7, 7, UNSURE, 9, MISSING, 3], np.uint8)
    moved = [3, 7, 7, 9]
    expected = [0, *[((sum(one < code for one in moved) + (sum(one == code for one in moved) + 1) / 2) / 4) ** 2
                     for code in (7, 7)], 0, 1.0, np.nan, (1 / 4) ** 2]  # fmt: skip
    np.testing.assert_allclose(squared_ranks(codes), expected)


ROWS = 64
NAMES = tuple(f"{'abcdefgh'[number % 8]}{'ijklmnop'[number // 8]}x" if number % 3 else "" for number in range(ROWS))


def record_of(codes: np.ndarray, rows: int = ROWS, **changes) -> Record:
    identity = Identity("ann/model", "c" * 40, "org/base", "d" * 40, "finetune", Spec())
    tokens = TokenChanges(codes.astype(np.uint8), 1.0, rows, rows, "exact", False)
    delta = DeltaRecord(DeltaKey.parse("0.query"), (2, 2), 1.0, 1.0, 0.0, np.ones(1, np.float32))
    return replace(Record(identity, (delta,)), tokens=tokens, **changes)


def test_a_vector_has_a_number_for_each_word_whatever_the_learning_rate():
    codes = np.random.default_rng(0).integers(0, 120, ROWS)
    chosen = WORDS.with_words(NAMES)
    assert chosen.is_held_by(record_of(codes))
    vector = chosen.vector(record_of(codes))
    assert len(vector) == chosen.length == len(different_words(NAMES)) == len(set(NAMES) - {""})
    assert np.linalg.norm(vector) == pytest.approx(1)
    assert vector.sum() == pytest.approx(0, abs=1e-5)
    faster = chosen.vector(record_of(np.where(codes > 0, codes + 40, 0)))
    np.testing.assert_allclose(vector, faster, atol=1e-6)
    words = list(different_words(NAMES))
    best = NAMES[int(np.argmax(np.where(np.array(NAMES) == "", -1, codes)))]
    assert words[int(vector.argmax())] == best


def test_models_without_words_have_none():
    codes = np.random.default_rng(0).integers(1, 120, ROWS)
    assert not WORDS.is_held_by(record_of(codes))  # the words of the base are not known
    chosen = WORDS.with_words(NAMES)
    only_pieces = np.where(np.array(NAMES) == "", codes, 0)
    assert not chosen.is_held_by(record_of(only_pieces))
    assert not chosen.is_held_by(replace(record_of(codes), tokens=None))
    with pytest.raises(AtlasError, match="has no 'words' vector: adapters"):
        chosen.vector(record_of(only_pieces))
    assert len(token_rows(ROWS)) == ROWS


def test_a_missing_row_counts_as_the_mean():
    codes = np.random.default_rng(3).integers(1, 120, ROWS)
    codes[50:] = MISSING
    chosen = WORDS.with_words(NAMES)
    vector, words = chosen.vector(record_of(codes)), different_words(NAMES)
    lost = [place for place, word in enumerate(words) if word in NAMES[50:] and word not in NAMES[:50]]
    assert len(lost) > 5
    assert not vector[lost].any()
