"""Models and bases of the Hub: one is read by ranges, the other is fetched because a file names it."""

from __future__ import annotations

import json

import pytest

from indexer import add
from indexer.errors import AtlasError
from query import Atlas
from tests import checkpoints
from tests.atlas_builder import BASE
from tests.hubs import served
from tests.identify.conftest import KIND, TWIN, tuned
from tests.identify.test_identify import answers, lora


@pytest.mark.slow
def test_a_model_of_the_hub_is_identified(atlas, weights, tmp_path, monkeypatch):
    checkpoints.save(tmp_path / "hub" / "ann" / "new", KIND, tuned(KIND, weights[TWIN]))
    checkpoints.claim(tmp_path / "hub", "ann/new", BASE)
    with served(tmp_path / "hub", monkeypatch):
        (candidate,) = answers(atlas, "ann/new")
        with pytest.raises(AtlasError, match="ann/none"), Atlas(atlas) as opened:
            opened.identify("ann/none")
    assert (candidate.base, candidate.relation) == (TWIN, "fine-tune")


@pytest.mark.slow
def test_a_base_that_an_adapter_names_is_fetched(weights, tmp_path, monkeypatch):
    checkpoints.save(tmp_path / "hub" / "org" / "base", KIND, weights[BASE])
    (tmp_path / "hub" / "org" / "base.repo.json").write_text(json.dumps({"tags": []}))
    with served(tmp_path / "hub", monkeypatch):
        report = add(lora(tmp_path / "style", BASE), atlas=tmp_path / "atlas")
    assert (report.base, report.indexed) == (BASE, 1)
    with Atlas(tmp_path / "atlas") as opened:
        assert opened.rows("SELECT model, base, relation FROM models") == [
            {"model": "local:style", "base": BASE, "relation": "adapter"}
        ]
