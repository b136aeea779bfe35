"""Models that are all by one author: each run counts as an author, so that background and predictions are not empty."""

from __future__ import annotations

import dataclasses

import pytest

from indexer.names import run_name, voters
from query import Atlas
from tests.atlas_builder import block_family, write_atlas


@pytest.mark.parametrize(
    ("model", "run"),
    [
        ("local:bert-checkpoint-500", "local:bert"), ("local:bert-checkpoint-500-final", "local:bert"),
        ("local:runs/a/checkpoint-5", "local:runs/a"), ("me/bert_step12", "me/bert"), ("me/bert-final", "me/bert"),
        ("me/lr3e-5", "me/lr3e-5"), ("me/final", "me"), ("local:run-7", "local:run-7"),
    ],
)  # fmt: skip
def test_checkpoints_of_a_run_are_one_run(model, run):
    assert run_name(model) == run


def test_runs_vote_only_where_all_are_by_one_author():
    assert voters(["a", "a"], ["local:x-checkpoint-1", "local:y"]) == ["local:x", "local:y"]
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
