"""The original papers' finding on a small trained GPT-2, and why their interpretation does not hold."""

from __future__ import annotations

import pytest
import torch

from indexer.profiles.layers import nearest_tokens
from indexer.profiles.measurement import ProfileRequest, measure
from indexer.profiles.probes import shipped_text, text_probe
from indexer.profiles.recovery import blank_start, criterion, recover
from indexer.profiles.single import invert_words, read_now
from indexer.profiles.statistics import spread_of
from indexer.records.identity import ModelVersion
from indexer.sources.registry import ModelRef

pytestmark = pytest.mark.study


@pytest.fixture(scope="module")
def gpt2(family, tmp_path_factory):
    from scripts.tiny_models import make_gpt2

    folder = tmp_path_factory.mktemp("small") / "gpt2"
    torch.set_num_threads(1)
    make_gpt2(folder, family / "atlas-demo" / "tiny-roberta" / "tokenizer.json")
    return read_now(ModelVersion(ModelRef.parse(str(folder))))


def test_the_criterion_is_met_and_the_words_are_wrong_and_a_linear_start_gives_them_back(gpt2):
    probe = text_probe(shipped_text(), gpt2.tokenizer.encode)
    layers, inputs = gpt2.layers, probe.inputs(gpt2.layers)
    target = layers.state(inputs, 4).detach()
    guess = recover(layers, 4, target, spread_of(target).unit, blank_start(layers, target.shape, 0), 100)
    guess_distances, shifted_distances = criterion(layers, 4, inputs, guess, 0, 1 / 20)
    assert (guess_distances < shifted_distances).all()
    assert (nearest_tokens(layers, guess)[..., 0] == probe.ids).double().mean() < 0.6
    _, words = invert_words(gpt2, "The value of the parameter is returned as a list.", [1])
    assert words[0].right >= 0.95


def test_an_untrained_twin_is_easier_to_invert(gpt2):
    probe = text_probe(shipped_text(), gpt2.tokenizer.encode)
    request = ProfileRequest(recover=True, layers=(4,))
    (trained, *_), (untrained, *_) = (
        measure(subject.layers, probe, request)[0] for subject in (gpt2, gpt2.twin(0, "cpu"))
    )
    assert untrained.values["recovered"] >= trained.values["recovered"] + 0.5
