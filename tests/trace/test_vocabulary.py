"""Token texts of a base: read from its tokenizer once, then from the user's cache."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import query.questions.trace.words
from indexer.errors import AtlasError
from indexer.profiles.tokenizer import tokenizer_at
from indexer.records.tokens import token_rows
from indexer.sources.registry import ModelRef
from query.questions.trace.evidence import tokenizer_of_model
from query.questions.trace.words import BaseTokenizer

ROWS = 3000


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a tokenizer and nothing else."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model"
    path.mkdir()
    vocabulary = {"<s>": 0, "<mask>": 1} | {f"w{number}": number for number in range(2, ROWS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "<mask>"])
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture
def starts(folder, monkeypatch):
    """How often the tokenizer was started."""
    commits = []

    def started(reference, commit):
        commits.append(commit)
        return tokenizer_at(ModelRef.parse(str(folder)), None)

    monkeypatch.setattr(query.questions.trace.words, "tokenizer_of_model", started)
    return commits


def test_the_tokenizer_is_started_once_for_the_rows_that_an_atlas_holds(starts) -> None:
    rows = token_rows(ROWS).tolist()
    for _ in range(3):
        tokenizer = BaseTokenizer("org/base", "a" * 40, ROWS)
        assert tokenizer.words(rows[2:5]) == [f"w{row}" for row in rows[2:5]]
        assert (tokenizer.special_ids, tokenizer.words([0, 1])) == ((0, 1), ["<s>", "<mask>"])
    assert len(starts) == 1
    other = next(row for row in range(ROWS) if row not in rows)
    assert tokenizer.words([other]) == [f"w{other}"]
    assert tokenizer.encode("w5 w6") == [5, 6]
    assert len(starts) == 2


def test_another_commit_has_texts_of_its_own(starts) -> None:
    BaseTokenizer("org/base", "a" * 40, ROWS)
    BaseTokenizer("org/base", "b" * 40, ROWS)
    assert starts == ["a" * 40, "b" * 40]


def test_a_kept_file_that_was_altered_is_not_used(starts, tmp_path) -> None:
    BaseTokenizer("org/base", "a" * 40, ROWS)
    (file,) = (tmp_path / "cache").rglob("*.safetensors")
    content = bytearray(file.read_bytes())
    offset = content.index(b"w2999")
    content[offset : offset + 2] = b"ev"
    file.write_bytes(content)
    assert BaseTokenizer("org/base", "a" * 40, ROWS).words([2999]) == ["w2999"]
    assert len(starts) == 2


def test_a_model_without_a_tokenizer_is_an_error(folder) -> None:
    (folder / "tokenizer.json").rename(folder / "notes.json")
    with pytest.raises(AtlasError, match="has no tokenizer"):
        tokenizer_of_model(ModelRef.parse(str(folder)), None)


def test_words_are_named_without_torch(folder) -> None:
    code = (
        "import sys; import query.questions.trace.trace; from indexer.sources.registry import ModelRef; "
        f"from indexer.profiles.tokenizer import tokenizer_at; found = tokenizer_at(ModelRef.parse({str(folder)!r}), None); "
        "print(found.words([7]), 'torch' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "['w7'] False"
    assert np.isin(2999, token_rows(ROWS))
