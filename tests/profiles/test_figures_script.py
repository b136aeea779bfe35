"""The figures of the docs, computed by SciPy, against `query depth --study` on the same atlas."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from query import Atlas
from scripts.depth import figures
from scripts.depth.figures import adjusted, correlations, explained, forgetful, population
from tests.profiles.profiled import profiled_atlas


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return profiled_atlas(tmp_path_factory.mktemp("figures"))


@pytest.mark.slow
def test_both_give_the_same(folder, monkeypatch):
    monkeypatch.setattr(figures, "DRAWS", 100)
    found = population(folder)
    with Atlas(folder) as atlas:
        study = atlas.depth_study()
    theirs = {(one.measure, one.layer or "all"): one for one in study.agreements if one.of == "delta"}
    mine = {(row["measure"], row["layer"]): row for row in correlations(found)}
    assert set(mine) == set(theirs) & set(mine)
    assert len(mine) >= 20
    for key, row in mine.items():
        assert row["rho"] == pytest.approx(theirs[key].rho, abs=1e-9)
        # Two bootstraps of six authors: their ends lie near each other.
        assert row["low"] == pytest.approx(theirs[key].low, abs=0.25)
    assert [row["model"] for row in forgetful(found)] == [one.model for one in study.forgetful]


def test_what_explains_the_loss_is_found(folder, monkeypatch):
    """The made-up loss depends on the learning rate alone."""
    monkeypatch.setattr(figures, "DRAWS", 100)
    found = population(folder)
    random = np.random.default_rng(0)
    last = found.tables["recovered"][:, -1]
    training = {
        model: {
            "rate": float(np.exp(-10 * loss)),
            "steps": int(random.integers(10, 100)),
            "dataset": f"d{number % 3}",
            "is_adapter": False,
        }
        for number, (model, loss) in enumerate(zip(found.models, last, strict=True))
    }
    expected = explained(found, training)
    assert expected["rho(recovered, rate)"]["rho"] == pytest.approx(-1)
    assert abs(expected["rho(recovered, length)"]["rho"]) < 0.6
    assert expected["adjusted R2 of recovered"]["rate"] == pytest.approx(1)
    assert expected["adjusted R2 of recovered"]["length"] < 0.4


def test_the_adjusted_share_is_that_of_scikit_learn():
    random = np.random.default_rng(1)
    columns, values = random.normal(size=(40, 3)), random.normal(size=40)
    plain = LinearRegression().fit(columns, values).score(columns, values)
    assert adjusted(values, columns) == pytest.approx(1 - (1 - plain) * 39 / 36)
