"""The centre of full fine-tunes on atlases that are lopsided, tiny, or of one data set; adapters have none.

A centre must not take away what models of the same data share. So purity and the nearest model are compared with those
without a centre, and similarities with those in a larger atlas.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import numpy as np
import pytest
from scipy.stats import spearmanr

from indexer.vectors.centre import FULL, Centre, centre_of
from indexer.vectors.table import VectorTable
from query import Atlas
from query.questions.similar import moving_notes
from tests.atlas_builder import BASE, Model, publish, write_atlas

BLOCKS, LENGTH = 6, 64
COMMON, DATA = 0.3, 0.15  # shares of a block that all models have, and those of one data set
WORSE = 0.02


def family(rng: np.random.Generator, labels: Sequence[int], common: float = COMMON) -> np.ndarray:
    """(n, b · m) blocks of models with these data sets."""
    shape = (BLOCKS, LENGTH)
    base, data = unit_blocks(rng.normal(size=shape)), unit_blocks(rng.normal(size=(max(labels) + 1, *shape)))
    noise = unit_blocks(rng.normal(size=(len(labels), *shape)))
    blocks = np.sqrt(common) * base + np.sqrt(DATA) * data[list(labels)] + np.sqrt(1 - common - DATA) * noise
    return unit_blocks(blocks).reshape(len(labels), -1).astype(np.float32)


def unit_blocks(blocks: np.ndarray) -> np.ndarray:
    return blocks / np.linalg.norm(blocks, axis=-1, keepdims=True)


def centred(raw: np.ndarray) -> np.ndarray:
    """With the centre of these models, each by another author."""
    return Centre({FULL: centre_of(raw, [str(number) for number in range(len(raw))], BLOCKS)}).centred(raw, FULL)


def similarities(vectors: np.ndarray) -> np.ndarray:
    table = VectorTable(vectors, BLOCKS)
    return np.asarray(table.similarities(table, np.float64))


def scores(vectors: np.ndarray, labels: Sequence[int]) -> tuple[float, float]:
    """Purity, and the share of models whose nearest is of their data set, of those for which one exists."""
    found, pure, nearest = similarities(vectors), [], []
    for one, label in enumerate(labels):
        others = sorted((other for other in range(len(labels)) if other != one), key=lambda other: -found[one, other])
        matches = [labels[other] == label for other in others]
        if any(matches):
            pure.append(np.mean(matches[: sum(matches)]))
            nearest.append(matches[0])
    return float(np.mean(pure)), float(np.mean(nearest))


def change(labels: Sequence[int], draws: int) -> np.ndarray:
    """How much the centre adds to purity and to the nearest, on average over draws."""
    found = []
    for draw in range(draws):
        raw = family(np.random.default_rng(draw), labels)
        found.append(np.subtract(scores(centred(raw), labels), scores(raw, labels)))
    return np.mean(found, axis=0)


def lopsided(models: int, share: float) -> list[int]:
    """One data set with this share of the models, the others in pairs."""
    many = round(models * share)
    return [0] * many + [1 + place // 2 for place in range(models - many)]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_data_set_of_many_of_the_models_is_not_subtracted(share):
    assert change(lopsided(20, share), 12).min() > -WORSE


@pytest.mark.slow
@pytest.mark.parametrize("models", [10, 20, 40])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_neither_is_it_in_smaller_and_larger_atlases(models, share):
    assert change(lopsided(models, share), 40).min() > -WORSE


@pytest.mark.parametrize("labels", [[0, 0], [0, 0, 1, 1], [0, 0, 1, 2], [0, 0, 1, 1, 2, 2, 3, 3]], ids=str)
def test_the_centre_of_a_tiny_atlas_finds_no_less(labels):
    assert len(set(labels)) == 1 or change(labels, 40).min() > -WORSE
    for draw in range(10):
        raw = family(np.random.default_rng(draw), labels)
        before, after = similarities(raw), similarities(centred(raw))
        if len(labels) <= 2:
            np.testing.assert_allclose(after, before, atol=1e-6)


@pytest.mark.parametrize("models", [4, 8, 16])
@pytest.mark.parametrize("labels", ["one data set", "pairs"])
def test_neighbours_keep_their_order_in_a_small_atlas(models, labels):
    found = []
    for draw in range(20):
        data = [0] * models if labels == "one data set" else [place // 2 for place in range(models)]
        raw = family(np.random.default_rng(draw), data)
        before, after = similarities(raw), similarities(centred(raw))
        others = ~np.eye(models, dtype=bool)
        found += [spearmanr(before[one][others[one]], after[one][others[one]])[0] for one in range(models)]
    assert np.mean(found) > 0.6


def test_of_many_data_sets_the_centre_finds_more_than_without():
    assert change([place // 4 for place in range(40)], 8)[0] > 0.01


@pytest.mark.slow
def test_where_data_leave_nothing_in_the_weights_the_centre_finds_nothing():
    """Labels at random, in lopsided atlases too; no label is read, so nothing else could be."""
    for labels in ([place // 4 for place in range(20)], lopsided(20, 0.8), lopsided(10, 0.5)):
        chance = np.mean([
            (labels.count(label) - 1) / (len(labels) - 1) for label in labels if labels.count(label) > 1
        ])  # fmt: skip
        found = []
        for draw in range(150):
            rng = np.random.default_rng(draw)
            raw = family(rng, labels)
            found.append(scores(centred(raw), rng.permutation(labels).tolist())[0] - chance)
        assert abs(np.mean(found)) < 3.5 * np.std(found) / np.sqrt(len(found))


def largest_error(raw: np.ndarray, labels: Sequence[int], size: int) -> float:
    """What a publish says of the first models of a family: 1.5 by the votes or the data sets."""
    votes = centre_of(raw[:size], [str(number) for number in range(size)], BLOCKS).votes
    return float(np.mean(1.5 / np.maximum(np.minimum(votes, len(set(labels[:size]))), 2)))


@pytest.mark.parametrize("order", ["random", "one data set after the other"])
@pytest.mark.parametrize("common", [0.1, 0.3, 0.6])
def test_more_models_move_a_similarity_by_no_more_than_is_stated(order, common):
    beyond, pairs = 0, 0
    for draw in range(3):
        rng = np.random.default_rng(draw)
        labels = rng.integers(6, size=40).tolist()
        if order != "random":
            labels.sort()
        raw = family(rng, labels, common)
        sizes = (2, 3, 5, 8, 12, 20, 40)
        found = {size: similarities(centred(raw[:size])) for size in sizes}
        for place, size in enumerate(sizes):
            above = np.triu_indices(size, 1)
            for larger in sizes[place + 1 :]:
                moved = np.abs(found[larger][:size, :size][above] - found[size][above])
                beyond += int((moved > largest_error(raw, labels, size)).sum())
                pairs += len(moved)
    assert beyond <= 0.001 * pairs


def models_of(raw: np.ndarray, labels: Sequence[int], relation: str, prefix: str) -> list[Model]:
    return [
        Model(f"{prefix}{number}/m", block.reshape(BLOCKS, LENGTH), (f"data-{label}",), relation=relation)
        for number, (block, label) in enumerate(zip(raw, labels, strict=True))
    ]


@pytest.mark.slow
def test_what_an_atlas_states_covers_what_publishing_more_does(tmp_path):
    """Of two full fine-tunes, of one and an adapter, and of two adapters, which nothing moves."""
    rng = np.random.default_rng(1)
    labels = [place % 6 for place in range(24)]
    raw = family(rng, [*labels, *labels])
    full, adapters = models_of(raw[:24], labels, "finetune", "f"), models_of(raw[24:], labels, "adapter", "a")
    folder = write_atlas(tmp_path / "atlas", [*full[:5], *adapters[:5]])

    def stated() -> dict[tuple[str, str], tuple[float, float]]:
        with Atlas(folder) as atlas:
            return {
                (one.model, near.model): (near.similarity, near.similarity_error)
                for one in (*full[:5], *adapters[:5])
                for near in atlas.similar(one.model, 50)
            }

    before = stated()
    with duckdb.connect(str(folder / "atlas.duckdb")) as connection:
        publish(connection, folder, [*full[5:], *adapters[5:]], 11, [*full[:5], *adapters[:5]])
    after = stated()
    for (one, other), (similarity, error) in before.items():
        kinds = {one[0], other[0]}
        assert abs(after[one, other][0] - similarity) <= error + 1e-5
        assert after[one, other][1] <= error
        if kinds == {"a"}:
            assert (after[one, other][0], error) == (pytest.approx(similarity, abs=1e-6), 0)
        elif kinds == {"f"}:
            assert error == pytest.approx(1.5 / 5, rel=0.05)
        else:
            assert error == pytest.approx(1.5 / 5 / 2, rel=0.05)
    moved = [abs(after[key][0] - before[key][0]) for key in before if key[0][0] == key[1][0] == "f"]
    assert max(moved) > 0.02


def test_a_large_error_is_noted():
    assert moving_notes(0.0) == moving_notes(0.29) == ()
    (note,) = moving_notes(0.375)
    assert "up to 0.38 as models are added" in note


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("models", [2, 4, 8, 16])
def test_adapters_are_compared_as_if_nothing_were_subtracted(tmp_path, share, models):
    labels = lopsided(models, share)
    raw = family(np.random.default_rng(models), labels)
    full = models_of(family(np.random.default_rng(9), [0, 1, 2, 3, 4, 5]), [0, 1, 2, 3, 4, 5], "finetune", "f")
    with Atlas(write_atlas(tmp_path / "atlas", [*models_of(raw, labels, "adapter", "a"), *full])) as atlas:
        vectors = atlas.index(BASE).rows(np.arange(1, models + 1))
    np.testing.assert_allclose(similarities(vectors.matrix), similarities(raw), atol=2e-3)
