"""A record that is damaged, or no longer the best of its model, costs nobody else anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from huggingface_hub import constants

from indexer.builds import profiling, worker
from indexer.builds.commands import build
from indexer.builds.plan import move_records
from indexer.builds.shards import publish_records
from indexer.builds.worker import RecordWorker
from indexer.errors import AtlasError
from indexer.records.identity import ModelVersion, Spec, Unit
from indexer.records.store import RecordStore
from indexer.sources.registry import ModelRef
from indexer.upkeep.maintenance import rebuild, represent
from indexer.upkeep.verification import verify
from query import Atlas
from tests.tiny_hub import BASE, SIZES, add_model, describe, served_shell

MODEL = "ann/glue-0"


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def record_of(atlas, model=MODEL):
    return next(record for record in RecordStore(atlas).headers() if record.identity.model == model)


def damage(path):
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def test_a_damaged_record_of_a_parent_fails_its_adapter_alone(atlas, monkeypatch):
    parent = record_of(atlas)
    damage(atlas.record(parent.digest))

    def vectorise(unit, *_, parent_record, **__):
        return parent_record(unit.parent)

    monkeypatch.setattr(worker, "vectorise", vectorise)
    monkeypatch.setattr(worker, "_base_matrices", lambda *_: None)
    identity = parent.identity
    unread_parent = ModelVersion(ModelRef(identity.model), identity.commit, "finetune")
    unit = Unit(ModelRef("eve/lora"), "c", identity.base, identity.base_commit, "adapter", Spec(), parent=unread_parent)
    result = RecordWorker(atlas.root, atlas.base(identity.base, identity.base_commit))(unit)
    assert result.error.reason == "parent_damaged"
    assert MODEL in result.error.detail
    assert "checksum does not match" in result.error.detail
    assert RecordStore(atlas).failure(unit.identity.digest).status == "failed"


def test_a_damaged_record_of_a_renamed_model_does_not_stop_a_build(atlas):
    old, other = record_of(atlas), record_of(atlas, "bob/glue-1")
    damage(atlas.record(old.digest))
    store = RecordStore(atlas)
    move_records(store, BASE, {MODEL: "new/name", "bob/glue-1": "other/name"})
    assert not store.has(replace(old.identity, model="new/name").digest)
    assert store.has(replace(other.identity, model="other/name").digest)


def test_a_model_whose_record_is_damaged_is_not_indexed_without_a_vector(atlas):
    """A new representation reads all records."""
    record = atlas.record(record_of(atlas).digest)
    intact = record.read_bytes()
    damage(record)
    said = []
    represent(atlas, "output", say=said.append)
    assert any(MODEL in text and "skipped, not published" in text for text in said)
    with Atlas(atlas.root) as opened:
        row = opened.rows("SELECT status, reason, record_key FROM fine_tunes WHERE model = ?", [MODEL])
        assert row == [{"status": "skipped", "reason": "does_not_fit", "record_key": None}]
        assert [len(opened.vectors(BASE, name)) for name in ("input", "output")] == [8, 8]
        assert opened.rows("SELECT 1 FROM records") == [{"1": 1}] * 8
    assert {problem.kind for problem in verify(atlas)} == {"record"}
    record.write_bytes(intact)
    assert [problem.kind for problem in verify(atlas)] == ["record"]  # not in the database
    publish_records((), atlas.root)
    assert verify(atlas) == []
    with Atlas(atlas.root) as opened:
        assert len(opened.vectors(BASE, "output")) == 9


def test_a_superseded_record_stays_for_readers_of_the_former_generation(atlas, offline):
    """As FAISS files do: it goes with the publish after the one that names a better one."""
    store = RecordStore(atlas)
    old = store.read(record_of(atlas).digest)
    better = replace(
        old,
        identity=replace(old.identity, spec=replace(old.identity.spec, sample="")),
        created="2099-01-01T00:00:00+00:00",
    )
    worse = replace(old, identity=replace(old.identity, spec=replace(old.identity.spec, sample="a plan")))
    store.discard(old.identity.digest)
    store.write(worse)
    rebuild(atlas, force=True)
    with Atlas(atlas.root) as reader:
        (row,) = reader.rows("SELECT record_key FROM models WHERE model = ?", [MODEL])
        assert row["record_key"] == worse.identity.digest
        store.write(better)
        build(BASE, atlas.root, workers=1)
        assert store.has(row["record_key"])  # this reader may still ask for it
    assert verify(atlas) == []
    build(BASE, atlas.root, workers=1)
    assert not store.has(row["record_key"])
    assert store.has(better.identity.digest)
    assert verify(atlas) == []


def test_a_profile_on_a_full_disk_reports_the_first_error(atlas, monkeypatch):
    def full(self):
        self.is_new = True
        raise OSError(28, "No space left on device", "the first")

    def second(*_, **__):
        raise AtlasError("the second", "")

    monkeypatch.setattr(profiling._Profiling, "run", full)
    monkeypatch.setattr(profiling, "publish", second)
    with pytest.raises(OSError, match="the first"):
        profiling.profile_base(atlas, BASE, [], profiling.ProfileOptions())


@pytest.mark.slow
def test_an_atlas_of_copies_alone_verifies(tmp_path):
    import torch
    from transformers import RobertaConfig, RobertaForSequenceClassification, RobertaModel

    config = RobertaConfig(**SIZES)
    base, store = RobertaModel(config), tmp_path / "store"
    base.save_pretrained(store / BASE)
    describe(store, BASE, tags=["transformers", "roberta"])
    model = RobertaForSequenceClassification(config)
    with torch.no_grad():
        model.roberta.load_state_dict(base.state_dict(), strict=False)
    add_model(store, "ann/copy", model, dataset="glue")
    with served_shell(store, tmp_path) as shell:
        assert shell("index", "build", "--base", BASE).code == 0
        for words in (("verify", "--strict"), ("rebuild",), ("verify", "--strict")):
            assert shell("index", *words).code == 0, words
