"""Ranks by depth, from checkpoints over HTTP to `query rank`: planted ranks counted by hand, random matrices by theory,
everything else by NumPy's SVD of the files; who counts and who does not; what is told and drawn."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import duckdb
import numpy as np
import pytest
from safetensors.numpy import load_file

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.record import read_record
from query import Atlas
from query.rank import FamilyRanks, RankStudy
from scripts.loopback_hub import LoopbackHub
from tests import rank_world as world
from tests.conftest import Shell
from tests.rank_world import rank_of

FAMILIES = ("query", "key", "value", "output", "feedforward1", "feedforward2")
THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)
DEPTH = 6
KINDS = {
    "org/planted": world.roberta(DEPTH, 96, 192),
    "org/noisy": world.roberta(3, 192, 384),
    "org/gpt": world.gpt2(3, 32),
    "org/t5": world.t5(2, 3, 24, 64),
}
TUNED = {
    "org/planted": ("ann/one", "bob/two", "cyd/three"),
    "org/noisy": ("ann/noise", "bob/noise"),
    "org/gpt": ("ann/gpt", "bob/gpt"),
    "org/t5": ("ann/t5", "bob/t5"),
}

# ---- the planted family: n equal singular values hold half of the energy with the first (n + 1) / 2, n odd.

HALF = {
    "query": lambda layer, member: 3 + 2 * layer,
    "key": lambda layer, member: 4 + member,  # 4, 5, 6: the mean is 5, the standard deviation 1
    "value": lambda layer, member: 2 + layer**2,
    "output": lambda layer, member: 2**layer,
    "feedforward1": lambda layer, member: (layer + 1) ** 2,
}
# σ² = 52 26 11 5 4 2 of 100: 52 | 78 89 | 94 | 98 100
BY_HAND = {0.5: 1, 0.51: 1, 0.53: 2, 0.8: 3, 0.9: 4, 0.95: 5, 0.99: 6}


def planted(member: int):
    def delta(name, shape):
        _, layer, family = name
        rng = np.random.default_rng([member, layer, FAMILIES.index(family)])
        if family == "feedforward2":
            return 1e-2 * world.low_rank(rng, shape, np.sqrt([52, 26, 11, 5, 4, 2]))
        return 1e-2 * world.low_rank(rng, shape, np.ones(2 * HALF[family](layer, member) - 1))

    return delta


# ---- low rank and noise: σ G + Σ θ_i σ√n u_i v_iᵀ, G (m, n) standard normal, m ≤ n; everything below in units of σ√n.

NOISE = 1e-3
SPIKES = {
    "query": (),
    "key": (6.0, 4.0, 3.0, 2.0, 1.5),
    "value": (20.0, 10.0, 5.0),
    "output": (3.0, 0.7),  # one above and one below the threshold of Baik, Ben Arous and Péché
    "feedforward1": (6.0, 4.0, 2.0, 0.6),
    "feedforward2": (),
}


def spiked(member: int):
    def delta(name, shape):
        rng = np.random.default_rng([50 + member, name[1], FAMILIES.index(name[2])])
        spikes = world.low_rank(rng, shape, SPIKES[name[2]]) if SPIKES[name[2]] else 0
        return NOISE * (rng.normal(size=shape) + math.sqrt(max(shape)) * spikes)

    return delta


def outliers(spikes: tuple[float, ...], c: float) -> list[float]:
    """Squared singular values that leave the bulk (Benaych-Georges & Nadakuditi, 2012), c = m/n."""
    return [(1 + spike**2) * (c + spike**2) / spike**2 for spike in spikes if spike > c**0.25]


def predicted_rank(spikes: tuple[float, ...], m: int, n: int, threshold: float) -> float:
    """The rank that theory expects: outliers first, then the top share of Marchenko and Pastur's bulk.

    Σ σ² is m + Σ θ² in the mean. What the outliers do not hold, m − k values of the bulk do, with the density
    √((b − x)(x − a)) / 2πcx between a, b = (1 ∓ √c)²; integrated here in the angle φ, x = (a + b)/2 + (b − a)/2 cos φ.
    """
    c = m / n
    out = sorted(outliers(spikes, c), reverse=True)
    total = m + sum(spike**2 for spike in spikes)
    for rank, held in enumerate(np.cumsum(out), 1):
        if held >= threshold * total:
            return rank
    a, b = (1 - math.sqrt(c)) ** 2, (1 + math.sqrt(c)) ** 2
    angle = (np.arange(200_000) + 0.5) * math.pi / 200_000
    x = (a + b) / 2 + (b - a) / 2 * np.cos(angle)
    density = (b - a) ** 2 / 4 * np.sin(angle) ** 2 / (2 * math.pi * c * x) * math.pi / 200_000
    counts, energies = np.cumsum(density), np.cumsum(density * x)
    assert counts[-1] == pytest.approx(1, abs=1e-6)  # it is a density
    assert energies[-1] == pytest.approx(1, abs=1e-6)  # of mean 1
    share = (threshold * total - sum(out)) / (total - sum(out))
    return len(out) + (m - len(out)) * float(np.interp(share, energies, counts))


# ---- the world: four bases, their fine-tunes, and everything that must not count


def random_change(seed: int):
    def delta(name, shape):
        rng = np.random.default_rng([seed, name[1], len(name[2]), *shape])
        values = 0.02 * np.exp(-np.arange(10) / (2 + name[1]))
        return world.low_rank(rng, shape, values) + 1e-4 * rng.normal(size=shape)

    return delta


def make_store(root: Path) -> dict[str, dict]:
    """Write all checkpoints. What each model's tensors are in the end comes back, adapters merged in."""
    weights: dict[str, dict] = {}
    for base, kind in KINDS.items():
        weights[base] = kind.random(seed=len(base))
        world.save(root / base, kind, weights[base])
        world.describe(root, base, tags=["transformers"])
        change = {"org/planted": planted, "org/noisy": spiked}.get(base, random_change)
        for member, model in enumerate(TUNED[base]):
            weights[model] = kind.changed(weights[base], change(member))
            world.save(root / model, kind, weights[model])
            world.claim(root, model, base, month=member + 1)
    kind, base = KINDS["org/planted"], "org/planted"

    def frozen(name, shape):
        return planted(1)(name, shape) if name[1] >= 2 else np.zeros(shape)

    odd = {
        "eve/copy": weights[base],
        "eve/repeat": weights["ann/one"],
        "eve/other": kind.random(seed=99),
        "eve/frozen": kind.changed(weights[base], frozen),
    }
    for model, tensors in odd.items():
        world.save(root / model, kind, tensors)
        world.claim(root, model, base, month=11)
    weights |= odd
    for model, base, modules in (
        ("dan/lora", "org/planted", {f"roberta.encoder.layer.{i}.attention.self.{part}":
                                     f"encoder.layer.{i}.attention.self.{part}.weight"
                                     for i in range(DEPTH) for part in ("query", "value")}),
        ("dan/gpt-lora", "org/gpt", {f"transformer.h.{i}.attn.c_attn": f"h.{i}.attn.c_attn.weight" for i in range(3)}),
    ):  # fmt: skip
        factors, weights[model] = adapted(KINDS[base], weights[base], modules)
        more = {"fan_in_fan_out": True} if base == "org/gpt" else {}
        world.save_lora(root / model, base, factors, alpha=6, **more)
        world.claim(root, model, base, "adapter", month=5)
    return weights


def adapted(kind: world.Kind, weights: dict, modules: dict[str, str]) -> tuple[dict, dict]:
    rng = np.random.default_rng(5)
    factors, merged = {}, {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    transposed = {place.tensor: place.transposed for place in kind.places.values()}
    for module, tensor in modules.items():
        rows, columns = merged[tensor].shape[:: -1 if transposed[tensor] else 1]
        a, b = rng.normal(size=(3, columns)).astype(np.float32), rng.normal(size=(rows, 3)).astype(np.float32)
        factors[module] = (0.05 * a, 0.05 * b)
        change = 2.0 * factors[module][1].astype(np.float64) @ factors[module][0]
        merged[tensor] += change.T if transposed[tensor] else change
    return factors, merged


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("ranks")
    weights = make_store(folder / "store")
    with LoopbackHub(folder / "store") as hub:
        shell = Shell(hub.endpoint, folder, {"HF_HOME": str(folder / "hf")})
        bases = [word for base in KINDS for word in ("--base", base)]
        ran = shell("index", "build", *bases, "--spectra", "--workers", "1")
        assert ran.code == 0, ran.err
        yield SimpleNamespace(folder=folder / "atlas", weights=weights, shell=shell)


@pytest.fixture(scope="module")
def atlas(made) -> Iterator[Atlas]:
    with Atlas(made.folder) as opened:
        yield opened


@pytest.fixture
def own(made, tmp_path) -> AtlasFolder:
    """A copy of the atlas that a test may spoil."""
    shutil.copytree(made.folder, tmp_path / "atlas")
    return AtlasFolder(tmp_path / "atlas")


def forget_spectra(folder: AtlasFolder, condition: str, ranks_above: int = 8) -> None:
    """As if these models had been indexed without --spectra: only ranks up to 8 are known."""
    with duckdb.connect(str(folder.database)) as connection:
        (models,) = connection.execute(f"SELECT list(model_id) FROM fine_tunes WHERE {condition}").fetchone()
        connection.execute("UPDATE records SET has_spectra = false WHERE list_contains(?, model_id)", [models])
        connection.execute("DELETE FROM wholes WHERE list_contains(?, model_id)", [models])
        for percent in (50, 80, 90, 95, 99):
            connection.execute(
                f"UPDATE deltas SET rank_{percent} = CASE WHEN rank_{percent} <= {ranks_above} THEN rank_{percent} END, "
                f"weight_rank_{percent} = NULL WHERE list_contains(?, model_id)",
                [models],
            )


# ---- closed forms


def test_planted_ranks_come_out_as_counted_by_hand(atlas):
    study = atlas.rank("org/planted", relation="finetune")
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
    study = atlas.rank("org/planted", threshold=threshold, relation="finetune")
    assert study.families["feedforward2"].ranks == (float(BY_HAND[threshold]),) * DEPTH
    n = 2 * (3 + 2 * 5) - 1
    assert study.families["query"].ranks[5] == math.ceil(threshold * n)


def test_the_planted_laws_are_the_equations(atlas):
    families = atlas.rank("org/planted", relation="finetune").families
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
    found = np.array([study.families[family].ranks for study in studies])
    if expected <= len(outliers(SPIKES[family], m / n)):
        assert (found == expected).all()
    else:
        assert found.mean() == pytest.approx(expected + 0.5, abs=1)
        assert np.abs(found - expected - 0.5).max() <= 3


@pytest.mark.parametrize("family", FAMILIES)
def test_the_spikes_that_stand_out_are_those_above_the_threshold(atlas, made, family):
    """Where they come out; at and below the threshold (θ ≤ c^¼) a spike drowns in the bulk.

    An outlier's σ varies by up to 1/√n = 0.07 from draw to draw; the bulk's largest by 0.025 about 0.03 below its
    edge 1 + √c (Tracy & Widom). Six draws each.
    """
    n, m = (384, 192) if family.startswith("feed") else (192, 192)
    expected = np.sqrt(outliers(SPIKES[family], m / n))
    drawn = []
    for row in atlas.rows("SELECT record_key FROM models WHERE base = 'org/noisy'"):
        record = read_record(AtlasFolder(made.folder).record(row["record_key"]))
        drawn += [delta.spectrum / (NOISE * math.sqrt(n)) for delta in record.deltas if delta.key.family == family]
    assert len(drawn) == 6
    values = np.array(drawn)[:, : len(expected) + 1]
    np.testing.assert_allclose(values[:, :-1].mean(axis=0), expected, atol=4 / math.sqrt(6 * n))
    np.testing.assert_allclose(values[:, :-1], np.broadcast_to(expected, (6, len(expected))), atol=4.5 / math.sqrt(n))
    assert values[:, -1].mean() == pytest.approx(1 + math.sqrt(m / n) - 0.03, abs=0.05)


# ---- everything against NumPy


def by_numpy(made, base: str, models: list[str], of: str, threshold: float, whole: bool = False) -> dict[str, list]:
    """family → for each layer the ranks of the models that have one."""
    kind, original = KINDS[base], made.weights[base]
    expected: dict[str, dict[int, list[int]]] = {}
    for model in models:
        tuned = made.weights[model]
        tensors = {name: tuned[name].astype(np.float64) - original[name] for name in tuned} if of == "delta" else tuned
        matrices = {name: place.get(tensors) for name, place in kind.places.items()}
        if whole:
            for name, parts in kind.wholes.items():
                for stack, layer, family in list(matrices):
                    if family == parts[0]:
                        matrices[stack, layer, name] = kind.whole(tensors, stack, layer, name)
                matrices = {where: matrix for where, matrix in matrices.items() if where[2] not in parts}
        for (stack, layer, family), matrix in matrices.items():
            layers = expected.setdefault(f"{stack}.{family}" if stack else family, {})
            layers.setdefault(layer, []).extend([rank_of(matrix, threshold)] if np.any(matrix) else [])
    return {family: [layers[layer] for layer in sorted(layers)] for family, layers in expected.items()}


def check(study: RankStudy, expected: dict[str, list]) -> None:
    assert set(study.families) == set(expected)
    for name, layers in expected.items():
        family = study.families[name]
        assert family.counts == tuple(map(len, layers))
        assert family.ranks == tuple(pytest.approx(np.mean(ranks)) if ranks else None for ranks in layers)
        assert family.spread == tuple(
            pytest.approx(np.std(ranks, ddof=1)) if len(ranks) > 1 else None for ranks in layers
        )


EVERYONE = {
    "org/planted": ["ann/one", "bob/two", "cyd/three", "eve/frozen", "dan/lora"],
    "org/gpt": ["ann/gpt", "bob/gpt", "dan/gpt-lora"],
    "org/t5": ["ann/t5", "bob/t5"],
    "org/noisy": ["ann/noise", "bob/noise"],
}


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.99])
@pytest.mark.parametrize("of", ["delta", "weights"])
@pytest.mark.parametrize("base", EVERYONE)
def test_means_spreads_and_counts_against_numpy(atlas, made, base, of, threshold):
    """Full fine-tunes, a frozen one and adapters; from the database and from the records."""
    study = atlas.rank(base, of=of, threshold=threshold)
    check(study, by_numpy(made, base, EVERYONE[base], of, threshold))
    assert study.models == len(EVERYONE[base])
    assert study.lacking == ()


@pytest.mark.parametrize("threshold", [0.5, 0.7])
@pytest.mark.parametrize("of", ["delta", "weights"])
def test_fused_matrices_whole_against_numpy(atlas, made, of, threshold):
    study = atlas.rank("org/gpt", of=of, threshold=threshold, whole=True)
    assert list(study.families) == ["query_key_value", "output", "feedforward1", "feedforward2"]
    check(study, by_numpy(made, "org/gpt", EVERYONE["org/gpt"], of, threshold, whole=True))


def test_two_stacks_and_cross_attention_by_name(atlas):
    families = atlas.rank("org/t5").families
    cross = [f"decoder.cross_{name}" for name in FAMILIES[:4]]
    own = [f"decoder.{name}" for name in FAMILIES]
    assert list(families) == [f"encoder.{name}" for name in FAMILIES] + own[:4] + cross + own[4:]
    assert {len(family.ranks) for name, family in families.items() if name.startswith("encoder")} == {2}
    assert {len(family.ranks) for name, family in families.items() if name.startswith("decoder")} == {3}


@pytest.mark.parametrize("model", ["ann/gpt", "dan/gpt-lora"])
@pytest.mark.parametrize("of", ["delta", "weights"])
def test_one_model_against_numpy(atlas, made, model, of):
    study = atlas.rank(model=model, of=of)
    check(study, by_numpy(made, "org/gpt", [model], of, 0.5))
    assert (study.base, study.model, study.models) == ("org/gpt", model, 1)
    assert all(spread is None for family in study.families.values() for spread in family.spread)


def test_an_adapter_has_ranks_where_it_changes_something_and_the_base_weights_elsewhere(atlas, made):
    study = atlas.rank("org/planted", model="dan/lora", threshold=1.0)
    assert study.families["query"].ranks == (3.0,) * DEPTH
    assert study.families["key"].ranks == (None,) * DEPTH
    assert study.families["key"].fit is None
    weights = atlas.rank("org/planted", model="dan/lora", of="weights")
    place = KINDS["org/planted"].places["", 2, "key"]
    assert weights.families["key"].ranks[2] == rank_of(place.get(made.weights["org/planted"]), 0.5)


# ---- who counts


def test_copies_unrelated_models_and_repeats_are_left_out_and_counted(atlas):
    study = atlas.rank("org/planted")
    assert study.to_dict()["left_out"] == {"copies": 1, "unrelated": 1, "duplicates": 1}
    assert "left out: 1 copies of the base, 1 unrelated to the base, 1 duplicates" in study.notes


@pytest.mark.parametrize(("relation", "models"), [("finetune", 4), ("adapter", 1), ("finetune, adapter", 5), (None, 5)])
def test_relations(atlas, relation, models):
    assert atlas.rank("org/planted", relation=relation).models == models


def test_a_mean_is_never_taken_over_the_small_ranks_alone(own):
    """cyd/three lacks spectra, and its ranks up to 8 are known: it does not count anywhere, not even there."""
    forget_spectra(own, "model = 'cyd/three'")
    with Atlas(own.root) as opened:
        study = opened.rank("org/planted", relation="finetune")
        assert study.lacking == ("cyd/three",)
        assert study.models == 3
        assert study.families["feedforward2"].counts == (2, 2, 3, 3, 3, 3)
        assert study.families["key"].ranks == (4.5, 4.5, *[pytest.approx(14 / 3)] * 4)
        assert any("cyd/three" in note and "index build --base org/planted --spectra" in note for note in study.notes)
        view = opened.rows(
            "SELECT layer, models, rank_50 FROM rank_by_depth WHERE base = 'org/planted' AND family = 'feedforward1' "
            "ORDER BY layer"
        )
    assert [row["rank_50"] for row in view] == [(layer + 1) ** 2 for layer in range(DEPTH)]


def test_who_counts_is_not_chosen_by_rank(own):
    """Of two models without spectra one is known to the last rank and one is not: neither counts beside bob/gpt."""
    forget_spectra(own, "model IN ('ann/gpt', 'dan/gpt-lora')")
    with Atlas(own.root) as opened:
        assert opened.rank("org/gpt").models == 3  # while every rank is known
    with duckdb.connect(str(own.database)) as connection:
        connection.execute(
            "UPDATE deltas SET rank_50 = NULL WHERE layer = 2 AND family = 'query' "
            "AND model_id = (SELECT model_id FROM fine_tunes WHERE model = 'ann/gpt')"
        )
    with Atlas(own.root) as opened:
        study = opened.rank("org/gpt")
    assert study.models == 1
    assert sorted(study.lacking) == ["ann/gpt", "dan/gpt-lora"]


def test_the_view_does_not_average_the_small_ranks_alone_either(own):
    """key: ann/one 4, eve/frozen 5 (from layer 2 on), bob/two 5 and cyd/three 6, of which the last is not known."""
    forget_spectra(own, "model IN ('bob/two', 'cyd/three')", ranks_above=5)
    with Atlas(own.root) as opened:
        rows = opened.rows(
            "SELECT models, with_spectra, rank_50 FROM rank_by_depth "
            "WHERE base = 'org/planted' AND family = 'key' AND layer = 3"
        )
    assert rows == [{"models": 4, "with_spectra": 3, "rank_50": 4.5}]  # dan/lora changes no key, and has spectra


def test_a_repeat_with_spectra_stands_in_for_its_first_upload_without(own):
    with Atlas(own.root) as opened:
        before = opened.rank("org/planted")
    forget_spectra(own, "model = 'ann/one'")
    with Atlas(own.root) as opened:
        after = opened.rank("org/planted")
    assert after.lacking == ()
    assert after.families == before.families


def test_models_without_spectra_count_where_every_rank_is_known(own):
    """Nobody has spectra, and nobody needs them: at 50 % all ranks of these deltas are within the kept eight."""
    forget_spectra(own, "base = 'org/t5'")
    with Atlas(own.root) as opened:
        study = opened.rank("org/t5")
        assert (study.models, study.lacking) == (2, ())
        with pytest.raises(AtlasError, match="None of the 2 models of org/t5 has all its singular values") as raised:
            opened.rank("org/t5", of="weights")
        assert "index build --base org/t5 --spectra" in raised.value.hint
        with pytest.raises(AtlasError, match="None of the 2 models"):
            opened.rank("org/t5", threshold=0.99)


def test_records_of_the_first_build_without_the_flag_lack_what_other_thresholds_need(made, tmp_path):
    """The real thing: an atlas built without --spectra."""
    ran = made.shell("index", "build", "--base", "org/t5", "--workers", "1", "--atlas", str(tmp_path / "plain"))
    assert ran.code == 0, ran.err
    with Atlas(tmp_path / "plain") as opened:
        (info,) = opened.rows("SELECT bool_or(has_spectra) AS some FROM models")
        assert info["some"] is False
        with pytest.raises(AtlasError, match="all its singular values"):
            opened.rank(threshold=0.995)
        with pytest.raises(AtlasError, match="does not hold all singular values") as raised:
            opened.rank(model="ann/t5", of="weights")
        assert raised.value.hint == "Read it again: index add ann/t5 --base org/t5 --spectra"
    ran = made.shell("index", "add", "ann/t5", "--base", "org/t5", "--spectra", "--atlas", str(tmp_path / "plain"))
    assert ran.code == 0, ran.err
    with Atlas(tmp_path / "plain") as opened:
        check(opened.rank(model="ann/t5", of="weights"), by_numpy(made, "org/t5", ["ann/t5"], "weights", 0.5))
        study = opened.rank(of="weights")
        assert (study.models, study.lacking) == (1, ("bob/t5",))


# ---- what cannot be answered


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": "org/nothing"}, "not a base of this atlas"),
        ({"base": None}, "This atlas holds 4 bases"),
        ({"base": "org/t5", "whole": True}, "org/t5 stores no fused matrices"),
        ({"base": "org/t5", "relation": "adapter"}, "No adapter of org/t5 is indexed"),
        ({"base": "org/t5", "relation": "finetuned"}, "'finetuned' is none of finetune, adapter"),
        ({"base": "org/planted", "model": "eve/copy"}, "eve/copy changes no matrix"),
        ({"base": "org/planted", "model": "eve/copi"}, "closest ids: eve/copy"),
        ({"base": "org/t5", "model": "ann/one"}, "is a fine-tune of org/planted, not of org/t5"),
    ],
)
def test_one_clear_line(atlas, options, message):
    with pytest.raises(AtlasError) as raised:
        atlas.rank(options.pop("base"), **options)
    assert message in raised.value.message
    assert "\n" not in raised.value.message


@pytest.mark.parametrize("options", [{"threshold": 0}, {"threshold": 1.1}, {"of": "both"}])
def test_wrong_arguments_of_the_library(atlas, options):
    with pytest.raises(ValueError, match="no ranks of"):
        atlas.rank("org/t5", **options)


def test_a_flagged_model_can_be_asked_for_and_says_what_it_is(atlas):
    assert atlas.rank("org/planted", model="eve/other").notes == ("it is unrelated to the base",)
    assert "it is a duplicate" in atlas.rank("org/planted", model="eve/repeat").notes
    copy = atlas.rank("org/planted", model="eve/copy", of="weights")
    assert copy.notes == ("it is a copy of the base",)
    assert copy.families["query"].ranks[0] is not None


def test_an_atlas_of_the_first_schema_is_told_to_be_rebuilt(own):
    with duckdb.connect(str(own.database)) as connection:
        connection.execute("UPDATE atlas_info SET schema_version = 1")
    with Atlas(own.root) as opened:
        assert opened.purity("org/planted").models == 0  # other questions are answered
        with pytest.raises(AtlasError, match="earlier version") as raised:
            opened.rank("org/t5")
        assert "index rebuild" in raised.value.hint


def test_a_damaged_record_is_named(own):
    with Atlas(own.root) as opened:
        (row,) = opened.rows("SELECT record_key FROM models WHERE model = 'ann/t5'")
        path = own.record(row["record_key"])
        path.write_bytes(path.read_bytes()[:-10])
        assert opened.rank("org/t5").models == 2  # the database knows
        with pytest.raises(AtlasError, match=path.stem[:12]):
            opened.rank("org/t5", threshold=0.7)


# ---- the database


def test_the_view_agrees_with_the_study(atlas):
    rows = atlas.rows("SELECT * FROM rank_by_depth WHERE base = 'org/gpt'")
    for percent in (50, 80, 90, 95, 99):
        for of, column in (("delta", f"rank_{percent}"), ("weights", f"weight_rank_{percent}")):
            studies = [atlas.rank("org/gpt", threshold=percent / 100, of=of, whole=whole) for whole in (False, True)]
            families = studies[1].families | studies[0].families
            assert {(row["family"], row["layer"]): row[column] for row in rows} == {
                (name, layer): pytest.approx(rank)
                for name, family in families.items()
                for layer, rank in enumerate(family.ranks)
            }


def test_all_columns_have_comments(atlas):
    """Tables of ranks, as every other."""
    rows = atlas.rows(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE table_name IN ('deltas', 'wholes', 'records') "
        "AND comment IS NULL"
    )
    assert rows == []


# ---- what is told


def test_json_has_the_documented_keys_first(made):
    ran = made.shell("query", "rank", "--base", "org/planted", "--threshold", "0.8", "--of", "weights", "--json")
    assert ran.code == 0, ran.err
    told = ran.json
    assert list(told)[:5] == ["base", "of", "threshold", "models", "families"]
    assert (told["base"], told["of"], told["threshold"], told["models"]) == ("org/planted", "weights", 0.8, 5)
    family = told["families"]["query"]
    assert list(family)[:3] == ["ranks", "spread", "fit"]
    assert list(family["fit"])[:4] == ["form", "equation", "aic", "loo_error"]
    assert family["fit"]["equation"] in {fit["equation"] for fit in family["fits"]}
    assert len(family["ranks"]) == len(family["spread"]) == len(family["counts"]) == DEPTH
    assert "left out: 1 copies" in ran.err


def test_csv_and_data_frame_have_a_row_for_each_family_and_layer(made, atlas):
    ran = made.shell("query", "rank", "--base", "org/t5", "--format", "csv")
    header, *rows = ran.out.splitlines()
    assert header == "family,layer,rank,spread,models,fitted"
    assert len(rows) == 6 * 2 + 10 * 3
    frame = atlas.rank("org/t5").to_df()
    assert list(frame.columns) == header.split(",")
    assert frame[(frame.family == "decoder.cross_query") & (frame.layer == 1)].models.item() == 2


def test_table_out_and_notes(made, tmp_path):
    ran = made.shell("query", "rank", "--base", "org/t5", "--out", str(tmp_path / "ranks.svg"))
    assert ran.code == 0, ran.err
    assert "mean rank (decoder, cross-attention)" in ran.out
    assert "rank ≈ " in ran.out
    assert (tmp_path / "ranks.svg").read_text().startswith("<?xml")
    ran = made.shell("query", "rank", "--base", "org/t5", "--out", str(tmp_path / "ranks.gif"))
    assert ran.code == 1
    assert "none of .png, .svg, .pdf" in ran.err


def test_same_atlas_same_answer(atlas):
    assert json.dumps(atlas.rank("org/gpt").to_dict()) == json.dumps(atlas.rank("org/gpt").to_dict())


# ---- the picture


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("base", "panels"), [("org/planted", 6), ("org/gpt", 6), ("org/t5", 16)])
def test_a_panel_for_each_family_with_its_line_band_and_equation(atlas, base, panels, theme):
    study = atlas.rank(base)
    figure = study.figure(theme)
    shown = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title(loc="left") for axes in shown] == list(study.families)
    assert len(shown) == panels
    for axes, family in zip(shown, study.families.values(), strict=True):
        lines = {line.get_marker(): line for line in axes.lines}
        np.testing.assert_allclose(lines["o"].get_ydata(), family.ranks)
        assert family.fit.equation.endswith(axes.texts[0].get_text())
        assert axes.get_ylim()[1] >= max(
            rank + spread for rank, spread in zip(family.ranks, family.spread, strict=True)
        )
        assert len(axes.collections) == 1
    assert len({axes.get_ylim() for axes in shown}) == 1


def test_hostile_names_are_drawn_as_they_are(atlas, tmp_path):
    """A $ is no formula, and a control character is spelt out."""
    study = atlas.rank("org/t5")
    hostile = RankStudy(**(vars(study) | {"base": "a/$\\frac{", "model": "b/$x_{1}$\x1b[2J\u202e"}))
    hostile.write(tmp_path / "hostile.svg")
    drawn = (tmp_path / "hostile.svg").read_text()
    assert "$\\frac{" in drawn
    assert "\x1b" not in drawn
    assert "\u202e" not in drawn


def test_holes_one_layer_and_no_fit_can_be_drawn(tmp_path):
    from query.population import LeftOut
    from query.ranking.fits import fit_forms

    def family(*ranks):
        spread = tuple(None if rank is None else 1.0 for rank in ranks)
        return FamilyRanks(ranks, spread, tuple(int(rank is not None) for rank in ranks), fit_forms(ranks))

    families = {
        "query": family(None, 3.0, None, 5.0), "gate_feedforward1": family(None, None), "output": family(7.0),
    }  # fmt: skip
    study = RankStudy("a/b", "delta", 0.5, 1, families, None, (), False, LeftOut(), (), ())
    study.write(tmp_path / "few.png")
    assert (tmp_path / "few.png").stat().st_size > 5000


# ---- the demo's kind of family, trained and not planted


def test_the_file_that_was_served_is_the_truth(made):
    """``made.weights`` is what lies in the store: nothing above compares a thing with itself."""
    tuned = load_file(made.folder.parent / "store" / "bob/two" / "model.safetensors")
    for name, tensor in made.weights["bob/two"].items():
        np.testing.assert_array_equal(tuned[name], tensor)
