"""Records, bases and databases of another version: kept, and said so in one line."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from indexer.atlas import AtlasFolder
from indexer.builds.plan import plan
from indexer.deltas import stored_base
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError
from indexer.listing.listing import ListedModel
from indexer.records import identity as identities
from indexer.records import store as stores
from indexer.records.identity import RECORD_VERSION, Identity, OtherVersion, Spec, Unit
from indexer.records.record import Record, read_record, write_record
from indexer.records.store import RecordHeader, RecordStore, current_record
from indexer.share.merge import merge
from indexer.sources.registry import ModelRef
from indexer.upkeep.maintenance import rebuild
from indexer.upkeep.verification import verify
from query import Atlas
from tests.database import execute, read_rows
from tests.test_record import make_record

NEWER = RECORD_VERSION + 1
SAID = "records of another version, kept but not published until `index build` reads their models again"


def of_version(record: Record, version: Any) -> Record:
    spec = dataclasses.replace(record.identity.spec, version=version)
    return dataclasses.replace(record, identity=dataclasses.replace(record.identity, spec=spec))


@pytest.mark.parametrize("version", [NEWER, 10**30, 0, -1, None, "1", True, 1.0, [1]])
def test_a_record_of_another_version_is_not_read_and_says_so(tmp_path, version):
    path = tmp_path / "r.safetensors"
    write_record(of_version(make_record(), version), path)
    with pytest.raises(
        OtherVersion, match=r"The record r\.safetensors is of record version .*; this program reads"
    ) as raised:
        read_record(path)
    assert raised.value.hint == (
        "Upgrade." if version in (NEWER, 10**30) else "Run `index build`, which reads the model again."
    )


def planned_of(store: RecordStore, version: int):
    now = datetime.now(UTC)
    spec = Spec(version=version)
    unit = Unit(ModelRef("a/b"), "c" * 40, "org/base", "d" * 40, "finetune", spec)
    listed = ListedModel("a/b", {"id": "a/b", "sha": "c" * 40}, "finetune", "tag", "org/base", now, now, False)
    (planned,) = plan([listed], [listed], store, unit, retry_failed=False)
    return planned


def stored(store: RecordStore, version: int) -> str:
    identity = Identity("a/b", "c" * 40, "org/base", "d" * 40, "finetune", Spec(version=version))
    record = dataclasses.replace(make_record(), identity=identity, created=f"2026-01-0{3 - version}")
    store.write(record)
    return identity.digest


def test_a_record_of_an_earlier_version_is_kept_until_its_model_is_read_again(tmp_path, monkeypatch):
    store = RecordStore(AtlasFolder(tmp_path / "atlas"))
    for module in (identities, stores):
        monkeypatch.setattr(module, "RECORD_VERSION", 2)
    earlier = stored(store, 1)
    planned = planned_of(store, 2)
    assert planned.unit is not None
    assert (planned.record_key, planned.status, planned.lacks) == (earlier, "indexed", "version")
    now = stored(store, 2)  # with an earlier date
    planned = planned_of(store, 2)
    assert (planned.unit, planned.record_key, planned.lacks) == (None, now, "")
    headers = [RecordHeader(one.digest, one.identity, one.made) for one in store.headers()]
    assert current_record(headers, "c" * 40).digest == now


def test_of_a_record_of_a_later_version_nothing_is_used_and_its_model_is_read(tmp_path):
    store = RecordStore(AtlasFolder(tmp_path / "atlas"))
    later = stored(store, NEWER)
    planned = planned_of(store, RECORD_VERSION)
    assert planned.unit is not None
    assert (planned.record_key, planned.status) == (None, "listed")
    assert store.header(later) is None
    assert store.has(later)


def make_later(atlas: AtlasFolder, model: str) -> str:
    """Give a model's record a later version, in place."""
    ((key,),) = read_rows(atlas.database, f"SELECT record_key FROM fine_tunes WHERE model = '{model}'")
    store = RecordStore(atlas)
    write_record(of_version(store.read(key), NEWER), atlas.record(key))
    return key


def test_a_rebuild_keeps_records_of_another_version_and_names_their_number(atlas):
    key = make_later(atlas, "ann/glue-0")
    content = atlas.record(key).read_bytes()
    assert [one.problem for one in verify(atlas) if "record version" in one.problem]
    said: list[str] = []
    rebuild(atlas, say=said.append)
    assert [one for one in said if "of another version" in one] == [f"{SAID}: 1"]
    assert atlas.record(key).read_bytes() == content
    assert read_rows(atlas.database, "SELECT status FROM fine_tunes WHERE model = 'ann/glue-0'") == [("listed",)]
    with Atlas(atlas.root) as opened:
        assert opened.similar("bob/glue-1", 3)


@pytest.mark.slow
def test_an_atlas_whose_records_are_all_of_another_version_is_rebuilt_without_them(atlas):
    for (model,) in read_rows(atlas.database, "SELECT model FROM models"):
        make_later(atlas, model)
    said: list[str] = []
    rebuild(atlas, say=said.append)
    assert f"{SAID}: 9" in said
    assert read_rows(atlas.database, "SELECT DISTINCT status FROM fine_tunes") == [("listed",)]
    assert len(list(RecordStore(atlas).digests())) == 9


def describe_base(atlas: AtlasFolder, **changes: Any) -> StoredBase:
    """The stored base with another description; its checksum is not corrected."""
    (path,) = atlas.bases.glob("*.safetensors")
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"]["base"] = json.dumps(json.loads(header["__metadata__"]["base"]) | changes)
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    return StoredBase(path)


@pytest.mark.parametrize("version", [NEWER, None, "1"])
def test_a_base_of_another_version_is_refused_in_one_line(atlas, version):
    base = describe_base(atlas, version=version)
    with pytest.raises(OtherVersion, match="block matrices of org/tiny-base is of record version"):
        base.description  # noqa: B018
    with pytest.raises(AtlasError, match="missing, damaged or of another version"):
        rebuild(atlas)
    assert any(one.kind == "base" for one in verify(atlas))


def test_a_base_of_an_earlier_version_is_described_but_not_compared_with(atlas, monkeypatch):
    (path,) = atlas.bases.glob("*.safetensors")
    StoredBase(path).check()
    for module in (identities, stored_base):
        monkeypatch.setattr(module, "RECORD_VERSION", RECORD_VERSION + 1)
    base = StoredBase(path)
    assert base.layout.matrices
    with pytest.raises(OtherVersion, match=f"are of record version {RECORD_VERSION}; this program compares") as raised:
        base.check()
    assert raised.value.hint == "Run `build('org/tiny-base')`, which fetches them again."


@pytest.mark.slow
def test_foreign_records_and_schemas_are_merged_or_left_out_in_one_line(atlas, tmp_path):
    make_later(atlas, "ann/glue-0")
    said: list[str] = []
    merge([atlas.root], tmp_path / "merged", progress=lambda event: said.append(event.message))
    assert [one for one in said if "of another version" in one] == [f"{SAID}: 1"]
    for change in ("ALTER TABLE representations DROP COLUMN budget", "ALTER TABLE fine_tunes DROP COLUMN private"):
        execute(atlas.database, change)
    execute(atlas.database, "UPDATE atlas_info SET schema_version = 11")
    merge([atlas.root], tmp_path / "again")
    assert read_rows(AtlasFolder(tmp_path / "again").database, "SELECT count(*) FROM models") == [(8,)]
    with pytest.raises(AtlasError, match="has schema 11; this version reads schema") as raised:
        Atlas(atlas.root)
    assert "\n" not in raised.value.message
