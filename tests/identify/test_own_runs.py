"""Models that are all by one author: each run counts as an author, so that background and predictions are not empty."""

from __future__ import annotations

import dataclasses
import shutil
from contextlib import closing

import duckdb
import pytest

from indexer.names import voters
from query import Atlas
from tests.atlas_builder import block_family, write_atlas


def test_models_vote_for_themselves_only_where_all_are_by_one_author():
    assert voters(["a", "a"], ["local:x", "local:y"]) == ["local:x", "local:y"]
    assert voters(["a", "b"], ["local:x", "local:y"]) == ["a", "b"]
    assert voters([], []) == []


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    made = block_family(0, adapters=0)
    models = [
        dataclasses.replace(model, author="local", model=f"local:run-{number}") for number, model in enumerate(made)
    ]
    return write_atlas(tmp_path_factory.mktemp("own") / "atlas", models)


@pytest.mark.slow
def test_one_persons_models_have_a_background_and_predictions(own):
    with Atlas(own) as atlas:
        near = atlas.similar("local:run-0", k=3)
        assert near.neighbours[0].background is not None
        assert near.neighbours[0].background_pairs > 200
        prediction = atlas.predict("local:run-0")
        (own_dataset,) = atlas.show("local:run-0")["datasets"]
        assert prediction.best.dataset == own_dataset
        assert len(prediction.voters) > 3
        assert any("each run counts as an author" in note for note in prediction.notes)
        assert atlas.evaluate_prediction().models == 60


@pytest.mark.slow
def test_other_checkpoints_of_its_run_do_not_vote_on_a_model(own, tmp_path):
    """Whatever they are called."""
    folder = shutil.copytree(own, tmp_path / "atlas")
    with Atlas(folder) as atlas:
        (nearest,) = [voter.model for voter in atlas.predict("local:run-0").voters[:1]]
    with closing(duckdb.connect(str(folder / "atlas.duckdb"))) as connection:
        connection.execute(
            "UPDATE records SET run_group = 1 WHERE model_id IN "
            "(SELECT model_id FROM fine_tunes WHERE model IN ('local:run-0', $1))",
            [nearest],
        )
    with Atlas(folder) as atlas:
        prediction = atlas.predict("local:run-0")
        assert prediction.voters
        assert nearest not in {voter.model for voter in prediction.voters}
