"""Each kind of change is planted once and read by a real build; trainings are called trainings."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from indexer.atlas import AtlasFolder
from indexer.records.kinds import label
from indexer.records.kinds.label import OF_SKIPPED, TESTS, change_of
from indexer.records.kinds.meanings import MEANINGS
from indexer.records.record import Record
from indexer.records.store import RecordStore
from query.questions.check.policy import _KINDS as OF_POLICIES
from tests.kinds.conftest import KINDS, PLANTED, TRAININGS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def labels(hub):
    ran = hub("query", "sql", "SELECT model, change, change_probability, change_evidence FROM changes", "--json")
    assert ran.code == 0, ran.err
    return {row["model"]: row for row in json.loads(ran.out)}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_changes_are_recognised(labels, name):
    found = labels[f"ann/{name}"]
    assert found["change"] == KINDS[name], found
    assert found["change_evidence"]
    assert found["change_probability"] is None or found["change_probability"] > 0.9


@pytest.mark.parametrize("name", TRAININGS)
def test_trainings_are_trainings(labels, name):
    found = labels[f"bob/{name}"]
    assert found["change"] == "trained", found
    assert found["change_probability"] > 0.9


def test_every_test_has_a_planted_change():
    assert {test.kind for test in TESTS} <= set(KINDS.values())
    assert set(OF_SKIPPED.values()) <= set(MEANINGS)
    assert {test.kind for test in TESTS} - set(OF_POLICIES) == {"adapter merged", "quantised"}  # by their relations


@pytest.mark.parametrize("kind", [test.kind for test in TESTS])
def test_no_other_test_says_so_in_its_place(hub, kind, monkeypatch):
    """Without its test a kind is not recognised, and with one that always says so trainings are not."""
    store = RecordStore(AtlasFolder(hub.folder / "atlas"))
    records = [store.read(digest) for digest in store.digests()]
    of_kind = [record for record in records if KINDS.get(record.identity.model.partition("/")[2]) == kind]
    assert of_kind
    assert {change_of(record).kind for record in of_kind} == {kind}
    monkeypatch.setattr(label, "TESTS", tuple(test for test in TESTS if test.kind != kind))
    assert kind not in {change_of(record).kind for record in of_kind}
    always = tuple(replace(test, half=-1e9) if test.kind == kind else test for test in TESTS)
    monkeypatch.setattr(label, "TESTS", always)
    trained = [record for record in records if record.identity.model.startswith("bob/")]
    assert len(trained) == len(TRAININGS)
    assert {change_of(record).kind for record in trained} == {kind}


def test_the_difference_to_another_network_is_no_noise(hub, monkeypatch):
    store = RecordStore(AtlasFolder(hub.folder / "atlas"))
    ran = hub("query", "sql", "SELECT record_key FROM fine_tunes WHERE model = 'ann/noise'", "--json")
    record = store.read(json.loads(ran.out)[0]["record_key"])
    assert change_of(record).kind == "noise added"
    monkeypatch.setattr(Record, "base_cosine", 0.01)
    assert change_of(record).kind == "trained"


def test_a_reason_says_which_layers(hub, labels):
    assert labels["ann/deeper"]["change_evidence"].endswith("its layers are the base's 0, 1, 2, 3, 2, 3")
    ran = hub("query", "sql", "SELECT model, reason FROM fine_tunes WHERE status = 'skipped' ORDER BY model", "--json")
    assert [(row["model"], row["reason"]) for row in json.loads(ran.out)] == [
        ("ann/deeper", "layers_moved"), ("ann/not-finite", "not_finite"), ("ann/shallower", "layers_moved")
    ]  # fmt: skip


def test_what_shows_a_model_says_it(hub):
    shown = hub("query", "show", "ann/abliterated")
    assert "abliterated (99" in shown.out
    assert "one left direction" in shown.out
    assert "change" not in hub("query", "show", "bob/adamw").out.split("families")[0].split("claims")[0]
    skipped = json.loads(hub("query", "show", "ann/deeper", "--json").out)
    assert (skipped["status"], skipped["change"]) == ("skipped", "layers moved")
    assert "one direction of the residual stream" in hub("query", "help", "abliterated").out
    bill = json.loads(hub("query", "bom", "ann/pruned", "--format", "cyclonedx").out)
    properties = {one["name"]: one["value"] for one in bill["metadata"]["component"]["properties"]}
    assert next(value for name, value in properties.items() if name.endswith("change")).startswith("pruned")


def test_a_check_contradicts_a_fine_tune_that_was_not_trained(hub, tmp_path):
    def claim(model):
        answer = json.loads(hub("query", "check", model, "--json").out)
        return next(one for one in answer["claims"] if one["claim"] == "change")

    assert (claim("ann/abliterated")["measured"], claim("ann/abliterated")["verdict"]) == (
        "abliterated",
        "contradicted",
    )
    assert (claim("ann/pruned")["measured"], claim("ann/pruned")["verdict"]) == ("pruned", "cannot be told")
    assert (claim("bob/adamw")["measured"], claim("bob/adamw")["verdict"]) == ("trained", "agrees")
    policy = tmp_path / "policy.toml"
    policy.write_text('kinds = ["finetune"]\nnot_contradicted = []\n')
    assert hub("query", "check", "ann/pruned", "--policy", policy).code == 1
    assert hub("query", "check", "bob/adamw", "--policy", policy).code == 0
    policy.write_text('kinds = ["finetune", "pruned"]\nnot_contradicted = []\n')
    assert hub("query", "check", "ann/pruned", "--policy", policy).code == 0
