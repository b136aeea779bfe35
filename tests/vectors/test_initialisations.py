"""Adapters of shared seeds: alike by their seed before, by their data once their initialisation has its own centre."""

from __future__ import annotations

import dataclasses
import itertools

import duckdb
import numpy as np
import pytest

from indexer.vectors.centre import (
    ADAPTER,
    ALONG_SEED,
    FEW_MODELS,
    FEWEST_VOTES,
    INITIALISATION_SHRINK,
    Centre,
    GroupCentre,
    centre_of,
    initialisation_group,
)
from query import Atlas
from tests.atlas_builder import BASE, Model, publish, unit, write_atlas
from tests.vectors import loops

SHAPE = (6, 64)
CLOSE = 2e-3
RATES = (1.0, 10**0.5, 10.0)


def adapters(datasets: int = 5, seeds: int = 2, each: int = 2, *, said: float = 1.0, rng: int = 0) -> list[Model]:
    """Adapters of every data set and seed by other authors; a seed says twice as much as the data (times ``said``)."""
    draw = np.random.default_rng(rng)
    common, of_seed, of_data = (draw.normal(size=(count, *SHAPE)) for count in (1, seeds, datasets))
    found = []
    for dataset, seed, run in itertools.product(range(datasets), range(seeds), range(each)):
        own = 0.7 * draw.normal(size=SHAPE)
        blocks = unit(common[0] + 2 * of_seed[seed] + said * of_data[dataset] + own)
        name = f"a{len(found)}/d{dataset}-s{seed}-{run}"
        found.append(Model(name, blocks, (f"data-{dataset}",), relation="adapter", initialisation=1 + seed * each))
    return found


def unrecognised(models: list[Model]) -> list[Model]:
    return [dataclasses.replace(one, initialisation=None) for one in models]


def right_triples(folder, models: list[Model]) -> float:
    """How often same data and another seed is more similar than other data and the same seed."""
    with Atlas(folder) as atlas:
        vectors = atlas.index(BASE).vectors()
        blocks = {one.model: vectors.row(number).reshape(SHAPE) for number, one in enumerate(models, 1)}
    right = total = 0
    for asked, mate, other in itertools.permutations(models, 3):
        is_mate = mate.datasets == asked.datasets and mate.initialisation != asked.initialisation
        if is_mate and other.datasets != asked.datasets and other.initialisation == asked.initialisation:
            total += 1
            mine = blocks[asked.model]
            right += loops.similarity(mine, blocks[mate.model]) > loops.similarity(mine, blocks[other.model])
    return right / total


def test_data_decide_and_not_seeds(tmp_path):
    models = adapters()
    assert right_triples(write_atlas(tmp_path / "before", unrecognised(models)), models) < 0.05
    after = write_atlas(tmp_path / "after", models)
    assert right_triples(after, models) > 0.95
    with Atlas(after) as atlas, Atlas(tmp_path / "before") as before:
        assert before.purity(BASE).purity < 0.4
        assert atlas.purity(BASE).purity > 0.9
        assert set(atlas.centre(BASE).groups) == {"adapter", "full", "initialisation 1", "initialisation 3"}


def chances(folder, models: list[Model]) -> list[float]:
    """How far purity is above chance, of all and across authors."""
    with Atlas(folder) as atlas:
        found = atlas.purity(BASE)
        return [one.purity - one.chance for one in (found, found.cross_author)]


@pytest.mark.slow
def test_where_seeds_alone_say_anything_purity_stays_at_chance(tmp_path):
    """Labels dealt at random among adapters of three seeds: nothing may be found."""
    above = []
    for number in range(4):
        models = adapters(datasets=4, seeds=3, each=4, said=0.0, rng=number)
        labels = np.random.default_rng(10 + number).permutation([one.datasets[0] for one in models])
        dealt = [dataclasses.replace(one, datasets=(label,)) for one, label in zip(models, labels, strict=True)]
        above.append(chances(write_atlas(tmp_path / f"{number}", dealt), dealt))
    assert np.abs(np.mean(above, axis=0)).max() < 0.04


@pytest.mark.slow
def test_a_label_that_often_is_a_seed_in_disguise_is_not_found(tmp_path):
    """Three of five models of a label were made with one seed, and data say nothing."""
    was, now = [], []
    for number in range(3):
        models = adapters(datasets=4, seeds=4, each=5, said=0.0, rng=number)
        draw = np.random.default_rng(5 + number)
        seeds = sorted({one.initialisation for one in models})
        dealt = [
            dataclasses.replace(one, datasets=(f"data-{draw.choice([one.initialisation] * 4 + seeds)}",))
            for one in models
        ]
        was.append(chances(write_atlas(tmp_path / f"before-{number}", unrecognised(dealt)), dealt))
        now.append(chances(write_atlas(tmp_path / f"after-{number}", dealt), dealt))
    assert np.mean(was, axis=0).min() > 0.15
    assert np.mean(now, axis=0).max() < 0.05


@pytest.mark.parametrize("named", [1, 0])
def test_an_initialisation_of_one_data_set_has_no_centre_of_its_own(tmp_path, named):
    """A seed cannot be told from one data set, nor from two models of which one may be on the data of the other."""
    models = adapters(seeds=1, datasets=6, each=1)
    few = [dataclasses.replace(one, initialisation=1 if place < 2 else None) for place, one in enumerate(models)]
    few[1] = dataclasses.replace(few[1], datasets=few[0].datasets if named else ())
    vectors = []
    for name, planted in (("before", unrecognised(few)), ("after", few)):
        with Atlas(write_atlas(tmp_path / name, planted)) as atlas:
            vectors.append(atlas.index(BASE).vectors().matrix)
    np.testing.assert_array_equal(*vectors)


@pytest.mark.parametrize("unnamed", [0, 1])
def test_two_data_sets_are_enough_and_an_author_alone_needs_a_third_vote(tmp_path, unnamed):
    models = adapters(seeds=1, datasets=6, each=1)
    few = [
        dataclasses.replace(one, initialisation=1 if place < 2 + unnamed else None) for place, one in enumerate(models)
    ]
    few[1 + unnamed] = dataclasses.replace(few[1 + unnamed], datasets=() if unnamed else few[1].datasets)
    with Atlas(write_atlas(tmp_path / "atlas", few)) as atlas:
        centre = atlas.centre(BASE)
        assert set(centre.groups) == {"adapter", "full", "initialisation 1"}
        assert (centre.groups["initialisation 1"].votes == 2 + unnamed).all()


def own_centre(members: list[Model], above: np.ndarray) -> np.ndarray:
    """One vote a data set, drawn towards the adapters' centre by half a model."""
    votes = {names: [one.vector for one in members if one.datasets == names] for names in {m.datasets for m in members}}
    assert len(votes) >= FEWEST_VOTES
    weights = [len(blocks) / (len(blocks) + FEW_MODELS) for blocks in votes.values()]
    mean = np.average([np.mean(blocks, axis=0) for blocks in votes.values()], axis=0, weights=weights)
    share = len(members) / (len(members) + INITIALISATION_SHRINK)
    return share * mean + (1 - share) * above


def along_the_seed_counts_less(block: np.ndarray, middle: np.ndarray, above: np.ndarray) -> np.ndarray:
    """Published blocks of an initialisation, one matrix after the other."""
    found = []
    for mine, own, common in zip(block, middle, above, strict=True):
        line = (own - common) / np.linalg.norm(own - common)
        rest = mine - own
        rest = rest - (1 - ALONG_SEED) * (rest @ line) * line
        found.append(rest / np.linalg.norm(rest))
    return np.array(found)


def test_the_distance_of_an_adapter_from_its_start_carries_little_information(tmp_path):
    """Two data sets teach little: their adapters stay near their seed, and were alike by that."""
    draw = np.random.default_rng(0)
    common, of_seed, of_data = (draw.normal(size=(count, *SHAPE)) for count in (1, 2, 5))
    models = []
    for dataset, seed in itertools.product(range(5), range(2)):
        moved = 0.3 if dataset < 2 else 2
        own = 0.4 * draw.normal(size=SHAPE)
        blocks = unit(common[0] + 2 * of_seed[seed] + moved * of_data[dataset] + own)
        models.append(
            Model(
                f"a{len(models)}/d{dataset}-s{seed}",
                blocks,
                (f"data-{dataset}",),
                relation="adapter",
                initialisation=1 + seed,
            )
        )
    assert right_triples(write_atlas(tmp_path / "atlas", models), models) > 0.95


def test_what_was_subtracted_can_be_restored():
    draw = np.random.default_rng(1)
    above, own = 0.3 * unit(draw.normal(size=SHAPE)), 0.7 * unit(draw.normal(size=SHAPE))
    own[0] = above[0]  # no centre of its own in this matrix
    votes, group = np.full(SHAPE[0], 3), initialisation_group(7)
    centre = Centre({ADAPTER: GroupCentre(above, votes, 9), group: GroupCentre(own, votes, 3)})
    vectors = unit(draw.normal(size=(4 * SHAPE[0], SHAPE[1]))).reshape(4, *SHAPE)
    vectors[1, 2] = 0
    flat = vectors.reshape(4, -1)
    np.testing.assert_allclose(centre.uncentred(centre.centred(flat, group), group), flat, atol=1e-5)
    drift = draw.normal(size=SHAPE)
    drift[1] = 0  # not known in this matrix
    drifting = Centre(dict(centre.groups) | {group: GroupCentre(own, votes, 3, drift)})
    np.testing.assert_allclose(drifting.uncentred(drifting.centred(flat, group), group), flat, atol=1e-5)
    assert drifting.version != centre.version


def three_rates(rng: int) -> tuple[list[tuple[int, int, float]], np.ndarray]:
    """(data, seed, rate) and blocks (n, b, m): at a high rate all of one seed have moved in a direction of it."""
    draw = np.random.default_rng(rng)
    common, of_seed, further, of_data = (draw.normal(size=(count, *SHAPE)) for count in (1, 2, 2, 5))
    made, blocks = [], []
    for data, seed, rate in itertools.product(range(5), range(2), RATES):
        moved = 4 * np.log10(rate) + 0.2 * draw.normal()
        own = 0.3 * draw.normal(size=SHAPE)
        made.append((data, seed, rate))
        blocks.append(unit(common[0] + 2 * of_seed[seed] + moved * further[seed] + of_data[data] + own))
    return made, np.array(blocks)


def shares_right(with_norms: bool, rng: int) -> float:
    """Triples of the adapters at the low rate, in an atlas of all."""
    made, blocks = three_rates(rng)
    flat = blocks.reshape(len(blocks), -1)
    above = centre_of(flat, [str(place) for place in range(len(flat))], SHAPE[0])
    centres = {ADAPTER: above}
    for seed in range(2):
        mine = [place for place, one in enumerate(made) if one[1] == seed]
        norms = [made[place][2] for place in mine] if with_norms else None
        name = initialisation_group(seed)
        centres[name] = centre_of(flat[mine], [str(made[place][0]) for place in mine], SHAPE[0], above, norms)
    centre = Centre(centres)
    low = {
        (data, seed): centre.centred(flat[place : place + 1], initialisation_group(seed))[0].reshape(SHAPE)
        for place, (data, seed, rate) in enumerate(made)
        if rate == 1
    }
    wins = [
        loops.similarity(block, low[data, 1 - seed]) > loops.similarity(block, low[rival, seed])
        for (data, seed), block in low.items()
        for rival in range(5)
        if rival != data
    ]
    return float(np.mean(wins))


def test_adapters_of_one_rate_are_not_alike_by_how_far_they_moved():
    assert np.mean([shares_right(True, rng) for rng in range(3)]) > 0.95
    assert np.mean([shares_right(False, rng) for rng in range(3)]) < 0.5


def test_the_drift_is_a_regression_on_the_log_of_the_norm_within_data_sets():
    made, blocks = three_rates(0)
    flat = blocks.reshape(len(blocks), -1)
    above = centre_of(flat, ["all"] * len(flat), SHAPE[0])
    mine = [place for place, one in enumerate(made) if one[1] == 0]
    norms = [made[place][2] for place in mine]
    found = centre_of(flat[mine], [str(made[place][0]) for place in mine], SHAPE[0], above, norms)
    wanted = np.zeros(SHAPE)
    for data in range(5):
        for rate in RATES:
            wanted += np.log(rate / 10**0.5) * blocks[made.index((data, 0, rate))]
    np.testing.assert_allclose(found.drift, wanted, atol=1e-5)
    alone = centre_of(flat[mine], [str(place) for place in mine], SHAPE[0], above, norms)
    assert not alone.drift.any()  # one model of each: nobody can tell the data from how far they moved
    fewer = mine[:-1]  # nine models beyond the first of each data set, one too few
    assert not centre_of(flat[fewer], [str(made[place][0]) for place in fewer], SHAPE[0], above, norms[:-1]).drift.any()


def test_in_small_initialisations_models_are_not_alike_by_labels_that_say_nothing():
    """Two models of each label differ in how far they moved, and in nothing that goes with the label."""
    found = []
    for rng in range(8):
        draw = np.random.default_rng(rng)
        flat = unit(draw.normal(size=(8, *SHAPE))).reshape(8, -1)
        norms, labels = np.exp(draw.normal(size=8)), [f"{place // 2}" for place in range(8)]
        above = centre_of(flat, [str(place) for place in range(8)], SHAPE[0])
        group = initialisation_group(1)
        centre = Centre({ADAPTER: above, group: centre_of(flat, labels, SHAPE[0], above, norms)})
        blocks = centre.centred(flat, group).reshape(8, *SHAPE)
        same = [loops.similarity(blocks[one], blocks[one + 1]) for one in range(0, 8, 2)]
        other = [
            loops.similarity(blocks[one], blocks[two]) for one in range(8) for two in range(one) if one // 2 != two // 2
        ]
        found.append(np.mean(same) - np.mean(other))
    assert abs(np.mean(found)) < 0.04


def test_models_that_come_later_are_centred_like_those_before_and_vectors_follow_their_centre(tmp_path):
    everyone = adapters(datasets=6, seeds=2, each=1, rng=2)
    everyone = [dataclasses.replace(one, initialisation=1 + number % 2) for number, one in enumerate(everyone)]
    everyone[2:4] = [dataclasses.replace(one, datasets=everyone[0].datasets) for one in everyone[2:4]]
    single = everyone[4]  # the third of its initialisation: until then that is of one data set
    first, later = everyone[:4], everyone[4:]
    folder = write_atlas(tmp_path / "atlas", first)
    said: list[str] = []
    with Atlas(folder) as atlas:
        assert set(atlas.centre(BASE).groups) == {"adapter", "full"}
    with duckdb.connect(str(folder / "atlas.duckdb")) as connection:
        publish(connection, folder, [single], 5, said)  # a quarter more adapters: their centre stays
    assert len(said) == 1
    assert "of 1 initialisations moves" in said[0]
    above = loops.centre([one.vector for one in first], [one.owner for one in first])
    with Atlas(folder) as atlas:
        np.testing.assert_allclose(atlas.centre(BASE).groups["adapter"].blocks, above, atol=CLOSE)
        mine = [one for one in everyone[:5] if one.initialisation == single.initialisation]
        middle = own_centre(mine, above)
        vectors = atlas.index(BASE).vectors()
        for number, one in enumerate(everyone[:5], 1):
            wanted = along_the_seed_counts_less(one.vector, middle, above) if one in mine else None
            wanted = loops.centred(one.vector, above) if wanted is None else wanted
            np.testing.assert_allclose(vectors.row(number).reshape(SHAPE), wanted, atol=3 * CLOSE)
    with duckdb.connect(str(folder / "atlas.duckdb")) as connection:
        publish(connection, folder, later[1:], 6, said)
    again = write_atlas(tmp_path / "again", everyone)
    with Atlas(folder) as atlas, Atlas(again) as fresh:
        assert set(atlas.centre(BASE).groups) == set(fresh.centre(BASE).groups)
        np.testing.assert_allclose(
            atlas.index(BASE).vectors().matrix, fresh.index(BASE).vectors().matrix, atol=5 * CLOSE
        )
