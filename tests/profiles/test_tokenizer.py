"""Untrusted tokenizers give an answer, or an error in bounded memory and time."""

from __future__ import annotations

import gc
import pickle
import resource
import signal
import time
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import nn

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.errors import AtlasError, ModelError
from indexer.profiles import tokenizer as module
from indexer.profiles.layers import Layers
from indexer.profiles.single import invert_words, read_now
from indexer.profiles.tokenizer import IsolatedTokenizer, tokenizer_of
from indexer.records.identity import ModelVersion
from indexer.sources.registry import ModelRef
from tests.profiles.test_vocabulary import saved


def tokenizer(**parts) -> bytes:
    built = Tokenizer(models.WordLevel({"[U]": 0, "a": 1, "b": 2}, unk_token="[U]"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    for name, part in parts.items():
        setattr(built, name, part)
    return built.to_str().encode()


MULTIPLIES = normalizers.Sequence([normalizers.Replace("a", "a" * 1000) for _ in range(5)])
BACKTRACKS = pre_tokenizers.Split(Regex("(x+x+)+y"), "isolated")
SWELLS = decoders.Sequence([decoders.Replace("a", "a" * 1000) for _ in range(4)])


@pytest.mark.parametrize(
    ("parts", "ask"),
    [
        ({"normalizer": MULTIPLIES}, lambda tokenizer: tokenizer.encode("aaaa")),
        ({"pre_tokenizer": BACKTRACKS}, lambda tokenizer: tokenizer.encode("x" * 60 + " a b")),
        pytest.param({"decoder": SWELLS}, lambda tokenizer: tokenizer.words([1, 2]), marks=pytest.mark.slow),
        pytest.param({"decoder": SWELLS}, lambda tokenizer: tokenizer.text([1, 2]), marks=pytest.mark.slow),
    ],
    ids=["normaliser", "regex", "words", "text"],
)
def test_a_tokenizer_takes_bounded_memory_and_time(monkeypatch, parts, ask):
    monkeypatch.setattr(module, "ANSWER_SECONDS", 2.0)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    hostile = IsolatedTokenizer({"tokenizer.json": tokenizer(**parts)})
    for _ in range(2):
        with pytest.raises(AtlasError, match=r"The tokenizer (takes|fails)"):
            ask(hostile)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
    assert time.monotonic() - started < 40


def test_all_answers_to_a_question_have_one_limit(monkeypatch):
    """Each may be quick enough: a file has thousands of texts."""
    monkeypatch.setattr(module, "QUESTION_SECONDS", 1.0)
    slow = IsolatedTokenizer({"tokenizer.json": tokenizer(normalizer=MULTIPLIES)})

    def answer(question, seconds):
        time.sleep(min(0.3, seconds))
        if seconds < 0.3:
            raise TimeoutError
        return []

    monkeypatch.setattr(slow, "_answer", answer)
    slow.encode("a")
    slow.begin_question()
    started = time.monotonic()

    def ask_all():
        for _ in range(100):
            slow.encode("a")

    with pytest.raises(AtlasError, match="more than 1 s for the texts of one question"):
        ask_all()
    assert time.monotonic() - started < 3


def test_the_kernel_limits_memory_and_time():
    """A parent that is stopped, or waits for something else, kills nothing."""
    isolated = IsolatedTokenizer({"tokenizer.json": tokenizer(normalizer=MULTIPLIES)})
    limits = Path(f"/proc/{isolated._process.pid}/limits").read_text()
    rows = {line[:25].strip(): line[25:].split()[0] for line in limits.splitlines()[1:]}
    assert int(rows["Max address space"]) == 4 << 30
    assert int(rows["Max cpu time"]) < 150
    isolated._process.stdin.write(b'{"text": "aaaa", "seconds": 0.5}\n')
    isolated._process.stdin.flush()
    assert isolated._process.wait(10) in (-signal.SIGALRM, -signal.SIGXCPU)
    with pytest.raises(AtlasError, match="The tokenizer takes more than"):
        isolated.encode("a")
    assert isolated.encode("b"), "it is started again"


def test_a_text_that_it_cannot_read_costs_that_text():
    isolated = IsolatedTokenizer({"tokenizer.json": tokenizer()})
    started = isolated._process.pid
    for text in ("a \ud800", "\udcff"):
        with pytest.raises(AtlasError, match=r"A text holds .ud..., half of a surrogate pair"):
            isolated.encode(text)
    assert isolated.encode("a\0b")[0] == 1
    assert isolated.encode("a") == [1]
    assert isolated._process.pid == started


def test_answers_equal_those_of_the_library():
    content = tokenizer()
    expected = Tokenizer.from_str(content.decode())
    isolated = IsolatedTokenizer({"tokenizer.json": content})
    for copy in (isolated, pickle.loads(pickle.dumps(isolated))):
        assert copy.encode("a b\n a c") == expected.encode("a b\n a c").ids == [1, 2, 1, 0]
        assert copy.words([1, 2]) == ["a", "b"]
        assert copy.text([1, 2]) == expected.decode([1, 2])
        assert copy.encode("") == []


def test_its_process_ends_with_it():
    isolated = IsolatedTokenizer({"tokenizer.json": tokenizer()})
    number = isolated._process.pid
    assert Path(f"/proc/{number}").exists()
    del isolated
    gc.collect()
    assert not Path(f"/proc/{number}").exists()


@pytest.mark.slow
def test_older_files_are_read_as_before(tmp_path):
    folder = saved(tmp_path / "model", 80)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c"]
    (folder / "vocab.txt").write_text("\n".join(words))
    isolated = tokenizer_of(open_checkpoint(ModelRef.parse(str(folder))))
    assert isolated.encode("a BC") == [5, 6, 7]
    assert set(isolated.special_ids) == {0, 1, 2, 3, 4}
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text("[" * 100_000)
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be loaded as a tokenizer"):
        tokenizer_of(open_checkpoint(ModelRef.parse(str(folder))))


def test_a_question_about_such_a_model_is_answered_in_one_line(tmp_path):
    folder = saved(tmp_path / "model", 80)
    (folder / "tokenizer.json").write_bytes(tokenizer(pre_tokenizer=BACKTRACKS))
    with pytest.raises(AtlasError, match="The tokenizer fails") as caught:
        invert_words(read_now(ModelVersion(ModelRef.parse(str(folder)))), "x" * 60 + " a b")
    assert "\n" not in str(caught.value)


def test_tokens_that_the_model_lacks_are_named():
    model = Layers(nn.Embedding(9, 4), [nn.Identity()])
    with pytest.raises(AtlasError, match="has 9 tokens, the input has token 12"):
        model.embed(torch.tensor([[1, 12]]))
