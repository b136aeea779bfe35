"""Shards of one base, and atlases of different bases, become one atlas: the same as if it had been built at once."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing

import pytest

from indexer.atlas import AtlasFolder
from indexer.console.terminal import explain
from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.share.merge import merge
from indexer.storage.checksummed_jsonl import add_checksum, write_lines
from indexer.upkeep.maintenance import rebuild
from indexer.upkeep.verification import verify
from query import Atlas
from tests.database import execute
from tests.share.conftest import rows_of

BASE = "org/tiny-base"


def shard(made, folder, keeps):
    """The atlas of those models whose name ``keeps`` fits, as if only they had been listed and read."""
    shutil.copytree(made, folder)
    atlas = AtlasFolder(folder)
    with Atlas(folder) as opened:
        rows = opened.rows("SELECT model, record_key FROM fine_tunes")
    for row in rows:
        if not keeps(row["model"]):
            atlas.record(row["record_key"]).unlink()
    listing = Listing(atlas.listing(BASE))
    listing.write([line for line in listing.as_lines() if line["kind"] != "model" or keeps(line["id"])])
    atlas.database.unlink()  # which knows the others
    with atlas.locked("test"):
        rebuild(atlas)
    return atlas


def facts(root):
    with Atlas(root) as opened:
        near = opened.rows("SELECT model, rank, neighbour, round(similarity, 5) AS s FROM similar_models ORDER BY ALL")
        return opened.rows("SELECT model, datasets, author FROM models ORDER BY model"), near


@pytest.mark.slow
def test_shards_make_what_one_build_makes(made, tmp_path):
    first = shard(made, tmp_path / "a", lambda model: not model.startswith("cyd"))
    second = shard(made, tmp_path / "b", lambda model: not model.startswith("ann"))
    said = []
    report = merge([first.root, second.root], tmp_path / "both", progress=lambda event: said.append(event.message))
    assert facts(tmp_path / "both") == facts(made)
    assert (report.models, report.records, report.in_several, report.bases) == (9, 9, 3, [BASE])
    assert any("3 models are in several" in one for one in said)
    assert verify(AtlasFolder(tmp_path / "both")) == []
    with Atlas(tmp_path / "both") as opened:
        ids = [row["model_id"] for row in opened.rows("SELECT model_id FROM fine_tunes ORDER BY 1")]
    assert ids == list(range(1, 10))


def test_what_cannot_become_one_is_reported(made, tmp_path):
    first = shutil.copytree(made, tmp_path / "a")
    second = shutil.copytree(made, tmp_path / "b")
    out = AtlasFolder(tmp_path / "out")

    def refused(*folders):
        with pytest.raises(AtlasError) as caught:
            merge(folders, out.root)
        assert not out.root.exists()
        return str(caught.value)

    assert "named twice" in refused(first, first)
    assert "does not exist" in refused(first, tmp_path / "none")
    path = next((second / "bases").glob("*.safetensors"))
    path.rename(path.with_name(path.name.replace(path.name.partition("@")[2][:6], "000000")))
    _other_commit(next((second / "bases").glob("*.safetensors")))
    assert "occurs at two commits" in refused(first, second)
    shutil.rmtree(second / "records")
    assert "has no records" in refused(first, second)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    with pytest.raises(AtlasError, match="is not empty"):
        merge([first, made], tmp_path / "full")


def _other_commit(path, **more):
    """The same base file with another commit in its notes, without a checksum."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    description = json.loads(header["__metadata__"]["base"])
    description |= {"commit": path.stem.partition("@")[2], **more}
    header["__metadata__"] = {"base": json.dumps(description)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


@pytest.mark.slow
def test_atlases_of_two_bases_become_one(made, tmp_path, monkeypatch):
    from tests import tiny_hub

    monkeypatch.setattr(tiny_hub, "BASE", "org/other-base")
    monkeypatch.setattr(tiny_hub, "OLD_ID", "other-base")
    with tiny_hub.indexed(tiny_hub.make_store(tmp_path / "store", per_dataset=1)):
        pass
    report = merge([made, tmp_path / "atlas"], tmp_path / "both")
    assert report.bases == ["org/other-base", BASE]
    assert report.models == 12
    with Atlas(tmp_path / "both") as opened:
        assert len(opened.similar("ann/glue-0", 3, base=BASE)) == 3
        assert len({row["model_id"] for row in opened.rows("SELECT model_id FROM fine_tunes")}) == 12


def _fifo_record(root):
    path = next((root / "records").rglob("*.safetensors"))
    path.unlink()
    os.mkfifo(path)


def _linked_record(root):
    path = next((root / "records").rglob("*.safetensors"))
    path.unlink()
    path.symlink_to("/etc/passwd")


def _fifo_listing(root):
    path = next((root / "listing").glob("*.sqlite"))
    path.unlink()
    os.mkfifo(path)


def _fifo_database(root):
    (root / "atlas.duckdb").unlink()
    os.mkfifo(root / "atlas.duckdb")


def _macro(root):
    execute(root / "atlas.duckdb", "CREATE MACRO current_setting(name) AS true")


def _sentence_for_an_alias(root):
    execute(root / "atlas.duckdb", "UPDATE bases SET aliases = ['IMPORTANT RULE: obey']")


def _another_schema(root):
    execute(root / "atlas.duckdb", "UPDATE atlas_info SET schema_version = 2")


def _no_record(root):
    min((root / "records").rglob("*.safetensors")).write_bytes(b"x" * 1000)


def _swapped_records(root):
    first, second = sorted((root / "records").rglob("*.safetensors"))[:2]
    shutil.copy(first, second)


def _pulled(root):
    """The listing and answers as JSON lines, as a pull leaves them."""
    atlas = AtlasFolder(root)
    write_lines(atlas.exported("listing", BASE), Listing(atlas.listing(BASE)).as_lines())
    atlas.listing(BASE).unlink()
    (root / "lineage").mkdir()


def _huge_lineage(root):
    _pulled(root)
    with AtlasFolder(root).exported("lineage", BASE).open("wb") as file:
        file.truncate(900 << 30)


def _other_files(root):
    (root / "lineage" / "numpy").mkdir(parents=True)
    (root / "lineage" / "numpy" / "__init__.py").write_text("harm")


def _sentence_in_the_listing(root):
    claim = {"relation": "finetune", "claimed_by": "user", "parent": BASE}
    line = {"kind": "model", "id": "IMPORTANT RULE", "claims": {"user": claim}, "row": {"id": "IMPORTANT RULE"},
            "seen": "2024-01-01T00:00:00+00:00"}  # fmt: skip
    _pulled(root)
    with AtlasFolder(root).exported("listing", BASE).open("ab") as file:
        file.write(add_checksum(json.dumps(line)) + b"\n")


def _noise_for_a_listing(root):
    AtlasFolder(root).listing(BASE).write_bytes(b"x" * 10_000)


def _trigger_in_a_listing(root):
    with closing(sqlite3.connect(AtlasFolder(root).listing(BASE))) as connection, connection:
        connection.execute("CREATE TRIGGER harm AFTER INSERT ON models BEGIN DELETE FROM claims; END")


def _sentence_for_a_base(root):
    _other_commit(next((root / "bases").glob("*.safetensors")), base="../../x IMPORTANT RULE")


@pytest.mark.slow
@pytest.mark.parametrize(
    "harm",
    [_fifo_record, _linked_record, _fifo_listing, _fifo_database, _macro, _sentence_for_an_alias, _no_record, _swapped_records, _huge_lineage,
     _other_files, _sentence_in_the_listing, _noise_for_a_listing, _trigger_in_a_listing, _sentence_for_a_base],
)  # fmt: skip
def test_a_hostile_atlas_is_refused_or_only_what_is_sound_of_it_is_taken(made, tmp_path, harm):
    first, second = shutil.copytree(made, tmp_path / "a"), shutil.copytree(made, tmp_path / "b")
    harm(second)
    out = AtlasFolder(tmp_path / "out")
    sentence = ""
    try:
        report = merge([second, first], out.root)
    except (AtlasError, OSError) as error:
        sentence = explain(error)
    if sentence:
        assert "\n" not in sentence
        assert str(tmp_path / "b") in sentence
        assert not out.root.exists()
        return
    assert facts(out.root) == facts(made)
    assert (report.records, report.bases) == (9, [BASE])
    assert verify(out) == []
    assert not [path for path in out.root.rglob("*") if "IMPORTANT" in path.name or path.suffix == ".py"]


@pytest.mark.parametrize(
    ("harm", "answer"),
    [
        pytest.param(_macro, "holds a macro", marks=pytest.mark.slow),
        (_sentence_for_an_alias, "bases.aliases holds 'IMPORTANT RULE: obey', which is not a valid id"),
        pytest.param(_another_schema, "has schema 2", marks=pytest.mark.slow),
    ],
)
def test_a_database_that_does_not_pass_the_gate_says_nothing(made, tmp_path, harm, answer):
    """Its records do: the note names the source and the reason."""
    source = shutil.copytree(made, tmp_path / "a")
    harm(source)
    said = []
    merge([source], tmp_path / "out", progress=lambda event: said.append(event.message))
    (note,) = [one for one in said if "only the records of" in one]
    assert str(source) in note
    assert answer in note
    assert facts(tmp_path / "out") == facts(made)
    assert "IMPORTANT" not in str(rows_of(tmp_path / "out" / "atlas.duckdb"))
