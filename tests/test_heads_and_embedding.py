"""``query layers``: the change by attention head and of the input embedding, against the checkpoints themselves."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from indexer.records.tokens import EXACT, codes_of_sizes, token_rows
from query import Atlas
from query.questions.heads import changes_by_head
from query.questions.layers import embedding_of
from query.questions.trace.evidence import TokenEvidence
from tests import tiny_hub
from tests.tiny_hub import BASE, SIZES, add_model, indexed, make_store

HEADS = SIZES["num_attention_heads"]
LOUD = 2  # the head of which one model's query, value and output change most
ROWS = (5, 6, 7, 40)  # of the embedding that it changes


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """An atlas with a model that is loud in one head, one whose heads are alike, and their store."""
    import torch
    from transformers import RobertaForSequenceClassification, RobertaModel

    root = tmp_path_factory.mktemp("heads") / "store"
    make_store(root)
    width = SIZES["hidden_size"] // HEADS
    for name, loudness in (("ann/loud", 20.0), ("ann/alike", 1.0)):
        model = RobertaForSequenceClassification.from_pretrained(root / "ann" / "glue-0")
        model.roberta.load_state_dict(RobertaModel.from_pretrained(root / BASE).state_dict(), strict=False)
        torch.manual_seed(3)
        with torch.no_grad():
            for layer in model.roberta.encoder.layer:
                attention = layer.attention.self
                for matrix in (attention.query.weight, attention.value.weight, layer.attention.output.dense.weight):
                    is_output = matrix is layer.attention.output.dense.weight
                    # Rank 3, so that what the record keeps is all of it.
                    left, right = torch.randn(48, 3), torch.randn(3, 48)
                    part = (right.T if is_output else left)[LOUD * width : (LOUD + 1) * width]
                    part *= loudness
                    matrix += 1e-3 * left @ right
            for place, row in enumerate(ROWS):
                model.roberta.embeddings.word_embeddings.weight[row] *= 1 + 0.01 * (place + 1)
        add_model(root, name, model, dataset="glue")
    model.roberta.load_state_dict(RobertaModel.from_pretrained(root / BASE).state_dict(), strict=False)
    add_model(root, "eve/untouched", model, dataset=None)
    with indexed(root) as shell, Atlas(shell.folder / "atlas") as atlas:
        yield atlas, shell


@pytest.mark.parametrize("name", ["ann/loud", "ann/alike"])
def test_norms_by_head_are_those_of_the_checkpoint(asked, name):
    atlas, shell = asked
    base, tuned = (load_file(shell.store / one / "model.safetensors") for one in (BASE, name))
    found = atlas.layers(name, heads=True)
    assert len(found.heads) == 2 * 3  # key did not change
    for one in found.heads:
        inner = "attention.output.dense" if one.family == "output" else f"attention.self.{one.family}"
        key = f"encoder.layer.{one.layer}.{inner}.weight"
        change = tuned[f"roberta.{key}"] - base[key]
        change = (change.T if one.family == "output" else change).reshape(HEADS, -1).astype(np.float64)
        expected = np.linalg.norm(change, axis=1)
        assert one.norms == pytest.approx(expected, rel=2e-3)
        shares = expected**2 / (expected**2).sum()
        assert one.effective == pytest.approx(1 / (shares**2).sum(), rel=1e-2)
        assert (one.p_value < 0.01) == (name == "ann/loud")
        assert 2 < one.chance < HEADS
    if name == "ann/loud":
        assert {int(np.argmax(one.norms)) for one in found.heads} == {LOUD}
        assert {row["largest"] for row in found.table()} == {LOUD}
        assert "In 6 of 6 attention matrices the change is concentrated in a few heads" in found.headline
        assert "(p ≤ .05; 0.3 expected by chance)" in found.headline


def test_heads_that_mean_nothing(asked):
    """Random changes: p is at most .05 about one time in twenty."""
    from dataclasses import replace

    from indexer.records.store import RecordStore

    atlas, _ = asked
    (row,) = atlas.rows("SELECT record_key FROM models WHERE model = 'ann/loud'")
    record = RecordStore(atlas.folder).read(row["record_key"])
    rng = np.random.default_rng(0)

    def drawn(delta):
        u, v = (np.linalg.qr(rng.normal(size=(48, len(delta.s))))[0].astype(np.float16) for _ in range(2))
        return replace(delta, u=u, v=v)

    records = [replace(record, deltas=tuple(map(drawn, record.deltas[:6]))) for _ in range(40)]
    values = [one.p_value for each in records for one in changes_by_head(each, {"num_attention_heads": HEADS})]
    assert len(values) >= 100
    assert np.mean(np.array(values) <= 0.05) == pytest.approx(0.05, abs=0.05)
    assert np.mean(values) == pytest.approx(0.5, abs=0.1)
    assert changes_by_head(record, {}) == changes_by_head(record, {"num_attention_heads": 5}) == ()
    assert len(changes_by_head(record, {"text_config": {"num_attention_heads": HEADS}})) == 6


def test_the_embedding_is_that_of_the_checkpoint(asked):
    atlas, shell = asked
    base, tuned = (load_file(shell.store / one / "model.safetensors") for one in (BASE, "ann/loud"))
    rows = base["embeddings.word_embeddings.weight"].astype(np.float64)
    change = tuned["roberta.embeddings.word_embeddings.weight"] - rows
    lengths = np.linalg.norm(rows, axis=1)
    relative = change / np.where(lengths > 0, lengths, 1)[:, None]
    found = atlas.layers("ann/loud").embedding
    assert found.rows == SIZES["vocab_size"]
    assert found.share_moved == len(ROWS) / len(rows)
    assert found.change == pytest.approx(float(np.sqrt(np.square(relative).sum(axis=1).mean())), rel=0.05)
    assert found.decay == pytest.approx(1.0)
    assert "Of 64 rows of the input embedding 6.2\u00a0% moved" in atlas.layers("ann/loud").headline
    untouched = atlas.layers("bob/glue-1").embedding
    assert untouched.change == untouched.share_moved == 0


def test_the_error_of_the_embedding_is_that_of_stripes():
    rng = np.random.default_rng(1)
    ids = token_rows(4096)
    misses = []
    for _ in range(60):
        # Rows of one stretch of the vocabulary move alike; some move several times as far as others.
        level = np.exp(np.repeat(rng.normal(size=64), 64) / 2)
        rows = rng.normal(size=(4096, 12)) * (level * np.exp(rng.normal(size=4096) / 2))[:, None] * 1e-3
        sizes = np.linalg.norm(rows, axis=1)
        evidence = TokenEvidence(EXACT, ids, codes_of_sizes(sizes[ids]), False, 1.0, 4096, 4096, None, None)
        found = embedding_of(evidence)
        misses.append((found.change - np.sqrt(np.square(sizes).mean())) / found.change_error)
    assert np.mean(np.abs(misses) < 2) > 0.8
    assert np.mean(np.abs(misses) < 0.5) < 0.7  # it is not far too large either


def test_no_size_is_printed_where_only_shares_are_known():
    codes = np.full(64, 100, dtype=np.uint8)
    assert embedding_of(None) is None
    assert embedding_of(TokenEvidence(EXACT, np.arange(64), codes, True, 1.0, 64, 64, None, None)) is None


def test_what_is_printed(asked):
    _, shell = asked
    ran = shell("query", "layers", "ann/loud", "--heads", "--json")
    as_json = json.loads(ran.out)
    assert {"norms", "effective", "chance", "p_value", "family", "layer"} <= set(as_json["heads"][0])
    assert as_json["embedding"]["rows"] == 64
    assert "effective" in shell("query", "layers", "ann/loud", "--heads").out
    ran = shell("query", "layers", "eve/untouched", "--heads")
    assert (ran.code, ran.out) == (1, "")
    assert "cannot be split by head: no attention matrix changed" in ran.err
    assert json.loads(shell("query", "layers", "ann/loud", "--json").out)["heads"] == []


def test_a_sample_of_rows_has_no_heads(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_hub, "SIZES", SIZES | {"hidden_size": 256, "intermediate_size": 512})
        make_store(tmp_path / "store", 1)
        with indexed(tmp_path / "store") as shell, Atlas(shell.folder / "atlas") as atlas:
            found = atlas.layers("ann/glue-0", heads=True)
            # The output matrix is split by columns, all of which were read; other heads lie between the two stripes.
            assert {one.family for one in found.heads} == {"output"}
