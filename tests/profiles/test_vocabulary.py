"""Fine-tunes with another vocabulary than their base: measured with their own words, without drift and CKA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models

from indexer.atlas import AtlasFolder
from indexer.builds.profile_worker import ProfileUnit, ProfileWorker
from indexer.errors import AtlasError
from indexer.profiles.measurement import ProfileRequest
from indexer.profiles.probes import ProbeChoice, text_probe
from indexer.profiles.store import Profile, ProfileIdentity, ProfileStore
from indexer.profiles.subject import Subject, read_subject
from indexer.records.identity import ModelVersion
from indexer.sources.registry import ModelRef

WORDS = 80


def saved(folder: Path, words: int, tokens: list[str] | None = None) -> Path:
    """A BERT of two layers with this many words, and a tokenizer if ``tokens`` are given."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=words
    )
    BertModel(config).save_pretrained(folder)
    if tokens is not None:
        numbers = {word: number for number, word in enumerate(tokens)}
        Tokenizer(models.WordLevel(numbers, unk_token=tokens[0])).save(str(folder / "tokenizer.json"))
    return folder


class LocalUnit(ProfileUnit):
    """A model in a folder; models of an atlas are always Hub ids."""

    @property
    def version(self) -> ModelVersion:
        return ModelVersion(ModelRef.parse(self.identity.model), None, self.relation)


def read(folder: Path) -> Subject:
    return read_subject(ModelVersion(ModelRef.parse(str(folder))))


def profiled(base: Subject, model: Path, atlas: Path) -> Profile:
    probe = ProbeChoice().probe(base)
    states = base.layers.states(probe.inputs(base.layers), [1, 2])
    worker = ProfileWorker.of(
        probe, states, atlas=atlas, request=ProfileRequest(), base=ModelVersion(ModelRef.parse(str(model))), tokenizer=base.tokenizer,
        choice=ProbeChoice(), device="cpu",
    )  # fmt: skip
    unit = LocalUnit(ProfileIdentity("fine_tune", str(model), "", "base", ""), "finetune", None, 0)
    assert worker(unit).error is None
    return ProfileStore(AtlasFolder(atlas)).read(unit.identity.digest)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Subject:
    return read(saved(tmp_path_factory.mktemp("base"), WORDS, [f"w{number}" for number in range(WORDS)]))


def test_added_words_change_nothing(base, tmp_path):
    profile = profiled(base, saved(tmp_path / "more", WORDS + 3), tmp_path)
    assert profile.notes == ()
    assert (profile.values["drift"] >= 0).all()


@pytest.mark.parametrize(
    ("words", "tokens"),
    [(WORDS - 40, None), (WORDS, [f"w{number}" for number in reversed(range(WORDS))])],
    ids=["fewer words", "other words"],
)
def test_another_vocabulary_leaves_drift_open_and_keeps_tolerance(base, tmp_path, words, tokens):
    profile = profiled(base, saved(tmp_path / "other", words, tokens), tmp_path)
    assert "vocabulary" in profile.notes[0]
    assert not {"drift", "cka"} & set(profile.values)
    assert (profile.values["tolerance"] > 0).all()
    assert (profile.values["readable"] >= 0).all()


def test_a_text_that_is_too_short():
    def lengths(text: str) -> list[int]:
        return [len(word) for word in text.split()]

    with pytest.raises(AtlasError, match=r"gives 2 tokens; a profile needs 4"):
        text_probe("two words", lengths)
    with pytest.raises(AtlasError, match=r"gives 0 tokens"):
        text_probe("", lengths)
