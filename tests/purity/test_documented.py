"""What is read for purity and votes is enough: models without a dataset change nothing, and are left where they are."""

from __future__ import annotations

import numpy as np
import pytest

from query import Atlas
from query.population import Population, read_population, representatives
from query.predict.training_set import LabelledModelReader
from query.purity.study import purity
from tests.atlas_builder import BASE, Model, write_atlas

NUMBERS = np.random.default_rng(5).normal(size=(40, 12))


@pytest.fixture(scope="module")
def atlas(tmp_path_factory):
    """Every third model names a dataset; of two groups of repeats one member does, the first upload or a later one."""
    models = [
        Model(
            f"author{number % 7}/model{number}",
            NUMBERS[number] * (number != 9),  # a copy, though it names a dataset
            datasets=(f"data{number % 4}",) if number % 3 == 0 else (),
            is_unrelated=number == 12,
            duplicate_of={3: 3, 4: 3, 5: 3, 19: 19, 21: 19}.get(number + 1),
        )
        for number in range(40)
    ]
    with Atlas(write_atlas(tmp_path_factory.mktemp("atlas"), models)) as opened:
        yield opened


def test_models_without_a_dataset_change_nothing(atlas):
    few, everyone = read_population(atlas, BASE, documented=True), read_population(atlas, BASE)
    repeats = {2, 3, 4, 18, 20}
    assert {identity - 1 for identity in few.ids.tolist()} == {*range(0, 40, 3), *repeats} - {9}
    assert len(everyone.ids) == 39
    assert _voices(few) == _voices(everyone)
    assert {("author4/model18", ("data2",)), ("author2/model2", ("data3",))} == {
        (model, names) for model, names, _ in _voices(few) if model.endswith(("model18", "model2"))
    }
    assert atlas.purity(draws=50).to_dict(by_model=True) == purity(everyone, draws=50).to_dict(by_model=True)


def test_all_models_that_name_a_dataset_vote(atlas):
    found = LabelledModelReader(atlas).read(BASE)
    assert [(model, tuple(sorted(names))) for model, names in zip(found.models, found.datasets, strict=True)] == [
        (model, names) for model, names, _ in _voices(read_population(atlas, BASE))
    ]


def _voices(population: Population) -> list[tuple[str, tuple[str, ...], list[float]]]:
    """Model, datasets and vector of each that stands for itself or its repeats, where any of these names one."""
    rows, datasets = representatives(population)
    return [
        (population.models[row], tuple(sorted(names)), population.vectors[row].tolist())
        for row, names in zip(rows, datasets, strict=True)
        if names
    ]
