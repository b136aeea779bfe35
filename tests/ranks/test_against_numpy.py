"""Ranks by depth against closed forms, theory and NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from safetensors.numpy import load_file

from indexer.atlas import AtlasFolder
from indexer.records.record import read_record
from tests.checkpoints import rank_of
from tests.halves import a_few
from tests.ranks.conftest import (
    BY_HAND,
    DEPTH,
    FAMILIES,
    HALF,
    KINDS,
    NOISE,
    SPIKES,
    THRESHOLDS,
    TUNED,
    by_numpy,
    check,
    outliers,
    predicted_rank,
)


@pytest.mark.slow
def test_known_ranks_come_out_as_counted_by_hand(atlas):
    study = atlas.rank("org/known", relation="finetune")
    assert study.models == 4
    layers = range(DEPTH)
    for family in ("query", "value", "output", "feedforward1"):
        assert study.families[family].ranks == tuple(float(HALF[family](layer, 0)) for layer in layers)
        assert study.families[family].spread == (0.0,) * DEPTH
    # eve/frozen is as bob/two from layer 2 on, and unchanged below: 4, 5, 6 and then 4, 5, 5, 6.
    assert study.families["key"].ranks == (5.0,) * DEPTH
    assert study.families["key"].spread == pytest.approx((1.0,) * 2 + (math.sqrt(2 / 3),) * 4)
    assert study.families["key"].counts == (3, 3, 4, 4, 4, 4)


@pytest.mark.parametrize("threshold", BY_HAND)
def test_every_threshold_counted_by_hand(atlas, threshold):
    """Those of the database's columns, and those that are read from the records."""
    study = atlas.rank("org/known", threshold=threshold, relation="finetune")
    assert study.families["feedforward2"].ranks == (float(BY_HAND[threshold]),) * DEPTH
    n = 2 * (3 + 2 * 5) - 1
    assert study.families["query"].ranks[5] == math.ceil(threshold * n)


def test_the_known_laws_are_the_equations(atlas):
    families = atlas.rank("org/known", relation="finetune").families
    assert {name: family.fit.equation for name, family in families.items()} == {
        "query": "rank ≈ 3 + 2·x",
        "key": "rank ≈ 5",
        "value": "rank ≈ 2 + 1·x²",
        "output": "rank ≈ 1·e^(0.693·x)",
        "feedforward1": "rank ≈ 1·(x+1)^2",
        "feedforward2": "rank ≈ 1",
    }
    assert families["output"].fit.parameters["b"] == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("threshold", [*THRESHOLDS, 0.35])
def test_low_rank_and_noise_as_theory_has_it(atlas, family, threshold):
    """Six draws: their mean within one rank of the prediction (a count is half a rank more), none more than three off."""
    n, m = (384, 192) if family.startswith("feed") else (192, 192)
    expected = predicted_rank(SPIKES[family], m, n, threshold)
    studies = [atlas.rank("org/noisy", model=model, threshold=threshold) for model in TUNED["org/noisy"]]
    ranks = np.array([study.families[family].ranks for study in studies])
    if expected <= len(outliers(SPIKES[family], m / n)):
        assert (ranks == expected).all()
    else:
        assert ranks.mean() == pytest.approx(expected + 0.5, abs=1)
        assert np.abs(ranks - expected - 0.5).max() <= 3


@pytest.mark.parametrize("family", FAMILIES)
def test_the_spikes_that_stand_out_are_those_above_the_threshold(atlas, planted, family):
    """Where they come out; at and below the threshold (θ ≤ c^¼) a spike drowns in the bulk.

    An outlier's σ varies by up to 1/√n = 0.07 from draw to draw; the bulk's largest by 0.025 about 0.03 below its
    edge 1 + √c (Tracy & Widom). Six draws each.
    """
    n, m = (384, 192) if family.startswith("feed") else (192, 192)
    expected = np.sqrt(outliers(SPIKES[family], m / n))
    drawn = []
    for row in atlas.rows("SELECT record_key FROM models WHERE base = 'org/noisy'"):
        record = read_record(AtlasFolder(planted.folder).record(row["record_key"]))
        drawn += [delta.spectrum / (NOISE * math.sqrt(n)) for delta in record.deltas if delta.key.family == family]
    assert len(drawn) == 6
    values = np.array(drawn)[:, : len(expected) + 1]
    np.testing.assert_allclose(values[:, :-1].mean(axis=0), expected, atol=4 / math.sqrt(6 * n))
    np.testing.assert_allclose(values[:, :-1], np.broadcast_to(expected, (6, len(expected))), atol=4.5 / math.sqrt(n))
    assert values[:, -1].mean() == pytest.approx(1 + math.sqrt(m / n) - 0.03, abs=0.05)


EVERYONE = {
    "org/known": ["ann/one", "bob/two", "cyd/three", "eve/frozen", "dan/lora"],
    "org/gpt": ["ann/gpt", "bob/gpt", "dan/gpt-lora"],
    "org/t5": ["ann/t5", "bob/t5"],
    "org/noisy": ["ann/noise", "bob/noise"],
}


@pytest.mark.parametrize("threshold", a_few([0.7, 0.5, 0.99], 1))
@pytest.mark.parametrize("of", ["delta", "weights"])
@pytest.mark.parametrize("base", EVERYONE)
def test_means_spreads_and_counts_against_numpy(atlas, planted, base, of, threshold):
    """Full fine-tunes, a frozen one and adapters; from the database and from the records."""
    study = atlas.rank(base, of=of, threshold=threshold)
    check(study, by_numpy(planted, base, EVERYONE[base], of, threshold))
    assert study.models == len(EVERYONE[base])
    assert study.lacking == ()


@pytest.mark.parametrize("threshold", [0.5, 0.7])
@pytest.mark.parametrize("of", ["delta", "weights"])
def test_fused_matrices_whole_against_numpy(atlas, planted, of, threshold):
    study = atlas.rank("org/gpt", of=of, threshold=threshold, whole=True)
    assert list(study.families) == ["query_key_value", "output", "feedforward1", "feedforward2"]
    check(study, by_numpy(planted, "org/gpt", EVERYONE["org/gpt"], of, threshold, whole=True))


def test_two_stacks_and_cross_attention_by_name(atlas):
    families = atlas.rank("org/t5").families
    cross = [f"decoder.cross_{name}" for name in FAMILIES[:4]]
    decoder = [f"decoder.{name}" for name in FAMILIES]
    assert list(families) == [f"encoder.{name}" for name in FAMILIES] + decoder[:4] + cross + decoder[4:]
    assert {len(family.ranks) for name, family in families.items() if name.startswith("encoder")} == {2}
    assert {len(family.ranks) for name, family in families.items() if name.startswith("decoder")} == {3}


@pytest.mark.parametrize("model", ["ann/gpt", "dan/gpt-lora"])
@pytest.mark.parametrize("of", ["delta", "weights"])
def test_one_model_against_numpy(atlas, planted, model, of):
    study = atlas.rank(model=model, of=of)
    check(study, by_numpy(planted, "org/gpt", [model], of, 0.5))
    assert (study.base, study.model, study.models) == ("org/gpt", model, 1)
    assert all(spread is None for family in study.families.values() for spread in family.spread)


def test_an_adapter_has_ranks_where_it_changes_something_and_the_base_weights_elsewhere(atlas, planted):
    study = atlas.rank("org/known", model="dan/lora", threshold=1.0)
    assert study.families["query"].ranks == (3.0,) * DEPTH
    assert study.families["key"].ranks == (None,) * DEPTH
    assert study.families["key"].fit is None
    weights = atlas.rank("org/known", model="dan/lora", of="weights")
    matrix = KINDS["org/known"].places["", 2, "key"]
    assert weights.families["key"].ranks[2] == rank_of(matrix.get(planted.weights["org/known"]), 0.5)


# ---- the demo's kind of family, trained and not made by hand


def test_the_file_that_was_served_is_the_truth(planted):
    """``planted.weights`` is what lies in the store: nothing above compares a thing with itself."""
    tuned = load_file(planted.folder.parent / "store" / "bob/two" / "model.safetensors")
    for name, tensor in planted.weights["bob/two"].items():
        np.testing.assert_array_equal(tuned[name], tensor)
