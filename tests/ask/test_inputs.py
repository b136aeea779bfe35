"""Moments of the inputs of matrices, against NumPy on the whole matrices, and for every kind of model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5Model,
    ViTConfig,
    ViTModel,
)

from indexer.errors import AtlasError
from indexer.profiles import inputs
from indexer.profiles.inputs import read_base
from indexer.profiles.whitening import Whitener
from indexer.records.identity import ModelVersion
from indexer.records.row_plan import coordinates
from indexer.records.sketch import DRAW, tensor_sketch
from indexer.sources.registry import ModelRef
from scripts.loopback_hub import LoopbackHub
from tests.hubs import use_endpoint

LENGTH = 64
WORDS = [f"w{number}" for number in range(90)]
KEYS = ["0.query", "0.output", "1.query", "1.key", "1.feedforward1", "1.feedforward2"]
SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}


def texts(seed: int, words: slice, count: int = 12) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS[words], random.integers(3, 14))) for _ in range(count)]


def folder_version(path: Path) -> ModelVersion:
    return ModelVersion(ModelRef.parse(str(path)))


REFERENCE, ASKED = texts(0, slice(None), 30), texts(1, slice(10, 30))
ALL_TOKENS = inputs.Budget(200, 40, 512)  # all tokens of these


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Writes a model of a class and its tokenizer, whose words are tokens."""

    def write(kind, config):
        torch.manual_seed(0)
        path = tmp_path_factory.mktemp(kind.__name__)
        kind(config).eval().save_pretrained(path)
        vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3} | {word: 4 + n for n, word in enumerate(WORDS)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
        tokenizer.save(str(path / "tokenizer.json"))
        return path

    return write


@pytest.fixture(scope="module")
def roberta(folder):
    return folder(RobertaModel, RobertaConfig(vocab_size=94, max_position_embeddings=40, **SMALL))


@pytest.fixture(scope="module")
def gpt2(folder):
    return folder(GPT2Model, GPT2Config(vocab_size=94, n_positions=32, n_embd=256, n_layer=1, n_head=4))


def vector(path, keys=KEYS, budget=ALL_TOKENS) -> np.ndarray:
    base = read_base(folder_version(path), keys, LENGTH)
    whitening, _ = base.reference([base.encode(REFERENCE)], 1, budget=ALL_TOKENS)
    return base.blocks([base.encode(ASKED)], whitening, budget=budget)[0]


def by_numpy(states, key: str, width: int, columns=None) -> np.ndarray:
    """The same block from the inputs (tokens, width) of both sets of texts, with whole matrices."""

    def power(matrix, exponent, least=0.0):
        values, vectors = np.linalg.eigh(matrix)
        return (vectors * np.maximum(values, least) ** exponent) @ vectors.T

    reference, asked = (state if columns is None else state[:, columns] for state in states)
    moments = [inputs_of_set.T @ inputs_of_set / len(inputs_of_set) for inputs_of_set in (reference, asked)]
    ridge = 0.01 * np.linalg.eigvalsh(moments[0])[-1]
    white = power(moments[0] + ridge * np.eye(len(moments[0])), -0.5)
    roots = [power(white @ moment @ white, 0.5) for moment in moments]
    values, vectors = np.linalg.eigh(roots[1] - roots[0])
    full_vectors = np.zeros((width, len(values)))
    full_vectors[np.arange(width) if columns is None else columns] = vectors
    return tensor_sketch(full_vectors, full_vectors, values, f"{DRAW}{key}", LENGTH)


def cosine(first, second) -> float:
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


def ids_of(text_set, start=(0,), end=(2,)):
    return [[*start, *(4 + WORDS.index(word) for word in text.split()), *end] for text in text_set]


def test_roberta_against_numpy(roberta):
    model = RobertaModel.from_pretrained(roberta).eval()
    blocks = dict(zip(KEYS, vector(roberta), strict=True))
    for layer in (0, 1):
        states = []
        for text_set in (REFERENCE, ASKED):
            with torch.no_grad():  # one text at a time, so that nothing is padded
                outputs = [model(torch.tensor([ids]), output_hidden_states=True) for ids in ids_of(text_set)]
            states.append(np.concatenate([output.hidden_states[layer][0].double().numpy() for output in outputs]))
        for family in ("query", "key"):
            if (key := f"{layer}.{family}") in blocks:
                assert cosine(blocks[key], by_numpy(states, key, 48)) > 0.999
    assert np.linalg.norm(vector(roberta), axis=1) == pytest.approx(np.ones(len(KEYS)))


def test_gpt2_on_the_coordinates_that_its_vectors_have(gpt2):
    columns = coordinates((256, 256), True)
    assert columns is not None
    model = GPT2Model.from_pretrained(gpt2).eval()
    states = []
    for text_set in (REFERENCE, ASKED):
        with torch.no_grad():
            rows = [model.h[0].ln_1(model(torch.tensor([ids]), output_hidden_states=True).hidden_states[0])[0]
                    for ids in ids_of(text_set)]  # fmt: skip
        states.append(torch.cat(rows).double().numpy())
    keys = ["0.query", "0.value"]
    for key, block in zip(keys, vector(gpt2, keys), strict=True):
        assert cosine(block, by_numpy(states, key, 256, columns)) > 0.999


def test_padding_and_batches_change_nothing(roberta, monkeypatch):
    expected = vector(roberta)
    monkeypatch.setattr(inputs, "BATCH_TOKENS", 1)
    assert vector(roberta) == pytest.approx(expected, abs=1e-3)


def test_few_inputs_give_what_moments_give(roberta, monkeypatch):
    """Fewer inputs than a matrix has are compared without its moment; wide matrices always, with inputs evenly spaced."""
    expected = vector(roberta)
    monkeypatch.setattr(inputs, "WIDEST", 16)
    rows = vector(roberta)
    assert rows == pytest.approx(expected, abs=1e-5)  # there are less than 512 inputs
    fewer = vector(roberta, budget=inputs.Budget(200, 40, 60))
    assert np.mean([cosine(expected_block, block) for expected_block, block in zip(expected, fewer, strict=True)]) > 0.6


def test_rows_and_moments_are_two_ways_to_one_sketch(roberta):
    """Of n inputs of a matrix with more, the products among the inputs give what the moment gives."""
    base = read_base(folder_version(roberta), KEYS, LENGTH)
    whitening, _ = base.reference([base.encode(REFERENCE)], 1, budget=ALL_TOKENS)
    (group,) = {base._groups[key] for key in ("0.query", "0.query")}
    white = Whitener(whitening.values[group], whitening.vectors[group], whitening.ridges[group])
    rows = np.random.default_rng(0).standard_normal((40, 48)).astype(np.float32) @ white.vectors @ white.vectors.T
    few, many = (np.zeros((1, len(KEYS), LENGTH), np.float32) for _ in range(2))
    base._compare(group, [rows], white, few)
    base._compare(group, [np.concatenate([rows, rows])], white, many)  # more than 48
    for key, few_block, many_block in zip(KEYS, few[0], many[0], strict=True):
        if base._groups[key] == group:
            assert cosine(few_block, many_block) > 0.9999
            assert np.linalg.norm(few_block) == pytest.approx(np.linalg.norm(many_block), rel=1e-3)


def test_sets_together_give_what_each_gives_alone(roberta, monkeypatch):
    """Texts of several sets share batches; a set without texts, and one with fewer inputs than a matrix has, are there."""
    base = read_base(folder_version(roberta), KEYS, LENGTH)
    sets = [base.encode(text_set) for text_set in (REFERENCE, ASKED, REFERENCE[:2], [], ASKED[::2])]
    counts: list[int] = []
    whitening, blocks_together = base.reference(sets, 1, counts.append)
    assert sum(counts) == sum(min(len(encoded), inputs.OF_A_SET.texts) for encoded in sets)
    blocks_alone = np.concatenate([base.blocks([encoded], whitening, budget=inputs.OF_A_SET) for encoded in sets[1:]])
    assert blocks_together[1:] == pytest.approx(blocks_alone, abs=1e-3)
    moments_alone, _ = base.reference(sets[:1], 1)
    # Other sets do not move the moments of the reference.
    assert moments_alone.roots == pytest.approx(whitening.roots, abs=1e-3)


def test_a_budget_limits_texts_tokens_and_inputs(roberta):
    """Texts are evenly spaced ones, cut with their ends kept; the inputs of wide matrices are spread over all of them."""
    base = read_base(folder_version(roberta), KEYS, LENGTH)
    encoded = base.encode([f"w{number} " * 12 for number in range(10)])
    (texts, ends, wide_ends) = base._texts([encoded, encoded[:2]], inputs.Budget(3, 6, 7))
    assert (ends.tolist(), wide_ends.tolist()) == ([18, 30], [7, 14])
    assert [list(text.ids) for text in texts[:3]] == [[0, *[4 + number] * 4, 2] for number in (0, 3, 6)]
    assert [len(text.wide) for text in texts] == [3, 2, 2, 4, 3]
    assert sorted(text.start for text in texts) == [0, 6, 12, 18, 24]


def test_the_same_texts_as_the_reference_say_nothing_else(roberta):
    base = read_base(folder_version(roberta), KEYS, LENGTH)
    encoded = base.encode(REFERENCE)
    whitening, _ = base.reference([encoded], 1, budget=ALL_TOKENS)
    near = base.blocks([encoded], whitening)
    assert np.isfinite(near).all()  # the rest is rounding
    assert base.rates(encoded).sum() == pytest.approx(1)
    assert max(map(len, base.encode(["w1 " * 500]))) <= 40


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_other_kinds_of_models(folder, kind):
    if kind == "bert":
        path, keys = folder(BertModel, BertConfig(vocab_size=94, max_position_embeddings=32, **SMALL)), KEYS
    else:
        sizes = {"d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4}
        path = folder(T5Model, T5Config(vocab_size=94, decoder_start_token_id=1, **sizes))
        keys = ["encoder.0.query", "encoder.1.feedforward2", "decoder.0.value", "decoder.1.cross_key"]
    vectors = vector(path, keys)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(keys)))


def test_a_base_on_the_hub_is_downloaded_once(roberta, tmp_path, monkeypatch):
    """Each question with other texts reads the base again."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    shutil.copytree(roberta, tmp_path / "store" / "me" / "base")
    (tmp_path / "store" / "me" / "base.repo.json").write_text(json.dumps({"sha": "a" * 40}))
    with LoopbackHub(tmp_path / "store") as hub:
        use_endpoint(monkeypatch, hub.endpoint)
        read_base(ModelVersion.of_atlas("me/base", "a" * 40), KEYS, LENGTH)
        hub.reset_log()
        read_base(ModelVersion.of_atlas("me/base", "a" * 40), KEYS, LENGTH)
        assert not [request for request in hub.requests if "safetensors" in str(request)]


def test_unknown_words_are_no_tokens(roberta):
    base = read_base(folder_version(roberta), KEYS, LENGTH)
    assert not base.has_tokens(base.encode(["☃ unheard", ""]))
    assert base.has_tokens(base.encode(["☃", WORDS[0]]))


def test_what_cannot_run_has_one_line(folder, roberta):
    with pytest.raises(AtlasError, match="takes images"):
        read_base(folder_version(folder(ViTModel, ViTConfig(image_size=16, patch_size=8, **SMALL))), [], LENGTH)
    with pytest.raises(AtlasError, match=r"has no matrix 5\.query"):
        read_base(folder_version(roberta), ["5.query"], LENGTH)
    (roberta / "tokenizer.json").rename(roberta / "away")
    try:
        with pytest.raises(AtlasError, match="has no tokenizer"):
            read_base(folder_version(roberta), KEYS, LENGTH)
    finally:
        (roberta / "away").rename(roberta / "tokenizer.json")


@pytest.mark.parametrize(("before", "worth", "during"), [(8, 48, 3), (1, 48, 3), (8, 512, 3), (1, 512, 1)])
def test_a_pass_has_no_more_threads_than_the_quota(roberta, monkeypatch, before, worth, during):
    base, threads = read_base(folder_version(roberta), KEYS, LENGTH), []
    monkeypatch.setattr(inputs, "processors", lambda: 3)
    monkeypatch.setattr(inputs, "WORTH_THREADS", worth)
    usual = torch.get_num_threads()
    torch.set_num_threads(before)
    try:
        base.reference([base.encode(REFERENCE)], 1, lambda count: threads.append(torch.get_num_threads()))
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(usual)
    assert set(threads) == {during}
