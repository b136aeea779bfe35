"""A push: one complete state, one commit, a tag. Existing files are not sent again; newer atlases are not lost."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import duckdb
import pytest
import yaml

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.share.manifest import parse
from indexer.upkeep.maintenance import represent
from tests.database import execute
from tests.share.conftest import NAME, is_whole, pushed_files, rows_of


def head(hub):
    return hub.datasets.find(NAME).refs["main"]


def commits(hub):
    return [one["summary"] for one in hub.datasets.find(NAME).commits.values()]


def test_everything_is_there_at_once_and_tagged(ann, atlas, tmp_path):
    report = ann.push(atlas)
    files = pushed_files(ann.hub)
    assert commits(ann.hub) == ["initial commit", "Generation 1: 9 models"]
    assert ann.hub.datasets.find(NAME).refs["refs/tags/g1"] == head(ann.hub) == report.commit
    assert is_whole(ann.hub)
    for path in atlas.root.glob("*.faiss"):
        assert files[path.name] == path.read_bytes()
    (tmp_path / "pushed.duckdb").write_bytes(files["atlas.duckdb"])
    assert rows_of(tmp_path / "pushed.duckdb") == rows_of(atlas.database)
    assert (report.models, report.generation, report.tag) == (9, 1, "g1")
    assert not any(path.startswith(("records", "listing", "bases")) for path in files)
    assert not (atlas.root / ".push").exists()


def test_the_card_makes_it_findable_and_its_paths_are_there(ann, atlas):
    ann.push(atlas)
    files = pushed_files(ann.hub)
    head = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    assert "vectors-in-the-wild" in head["tags"]
    assert "base_model:org/tiny-base" in head["tags"]
    for config in head["configs"]:
        pattern = config["data_files"]
        assert [path for path in files if path == pattern or path.startswith(pattern.split("*")[0])], pattern
    assert [config["config_name"] for config in head["configs"] if config.get("default")] == ["models"]
    assert head["atlas"]["models"] == 9


def test_other_readers_read_what_was_pushed(ann, atlas, tmp_path):
    """Counted by DuckDB and pandas from the pushed bytes, and compared with the atlas itself."""
    pandas = pytest.importorskip("pandas")
    ann.push(atlas)
    for path, content in pushed_files(ann.hub).items():
        if path.endswith(".parquet"):
            (tmp_path / "got" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "got" / path).write_bytes(content)
    data = tmp_path / "got" / "data"
    with duckdb.connect(str(atlas.database), read_only=True) as own, duckdb.connect() as plain:
        models = plain.execute(f"SELECT model, datasets FROM '{data}/models.parquet' ORDER BY model_id").fetchall()
        assert models == own.execute("SELECT model, datasets FROM models ORDER BY model_id").fetchall()
        near = plain.execute(f"SELECT count(*), round(sum(similarity), 4) FROM '{data}/neighbours.parquet'").fetchone()
        assert near == own.execute("SELECT count(*), round(sum(similarity), 4) FROM neighbours").fetchone()
        deltas = plain.execute(f"SELECT count(*), round(sum(norm), 4) FROM '{data}/deltas/*.parquet'").fetchone()
        assert deltas == own.execute("SELECT count(*), round(sum(norm), 4) FROM deltas").fetchone()
        vectors = f"{tmp_path}/got/vectors/org--tiny-base.input/*.parquet"
        row = plain.execute(
            f"SELECT a.model, b.model, list_cosine_similarity(a.vector, b.vector) AS c FROM '{vectors}' a, '{vectors}' b "
            "WHERE a.model = 'ann/glue-0' AND b.model <> a.model ORDER BY c DESC LIMIT 1"
        ).fetchone()
        assert row[1] == own.execute("SELECT neighbour FROM similar_models WHERE model = 'ann/glue-0' AND rank = 1"
                                      ).fetchone()[0]  # fmt: skip
        (length,) = own.execute("SELECT length FROM representations WHERE representation = 'input'").fetchone()
    frame = pandas.read_parquet(data / "models.parquet")
    assert len(frame) == 9
    assert frame["is_copy"].dtype == bool
    assert pandas.read_parquet(Path(vectors).parent)["vector"][0].shape == (length,)


def test_a_second_push_sends_what_changed(ann, atlas):
    ann.push(atlas)
    ann.hub.reset_log()
    again = ann.push(atlas)
    assert (again.sent_files, again.sent_bytes, again.commit) == (0, 0, head(ann.hub))
    assert not [one for one in ann.hub.requests if one.method == "PUT" or "/commit/" in one.path]
    with atlas.locked("test"):
        represent(atlas, "output")
    sent = {one["path"] for one in ann.push(atlas, dry_run=True).changes}
    assert any(path.startswith("vectors/org--tiny-base.output/") for path in sent)
    assert not any(path.startswith("vectors/org--tiny-base.input/") for path in sent)
    more = ann.push(atlas)
    assert more.tag == "g2"
    put = {one.path for one in ann.hub.requests if one.method == "PUT"}
    unchanged = next(path for path in atlas.root.glob("*.input.*.faiss"))
    assert not any(hashlib.sha256(unchanged.read_bytes()).hexdigest() in path for path in put)
    assert 0 < more.sent_files < more.files
    assert is_whole(ann.hub)
    assert "g1" in str(ann.hub.datasets.find(NAME).refs)


def test_a_dry_run_writes_nothing(ann, atlas):
    report = ann.push(atlas, dry_run=True)
    assert ann.hub.datasets.find(NAME) is None
    assert {one["path"] for one in report.changes} >= {"atlas.duckdb", "atlas.json", "README.md"}
    assert report.commit is None


@pytest.mark.slow
def test_a_newer_atlas_of_another_user_is_not_overwritten(ann, atlas, tmp_path):
    shutil.copytree(atlas.root, tmp_path / "newer")
    newer = AtlasFolder(tmp_path / "newer")
    with newer.locked("test"):
        represent(newer, "output")
    ann.use_token("theirs")
    ann.push(newer)
    theirs = head(ann.hub)
    ann.use_token("mine")
    with pytest.raises(AtlasError, match="holds a newer atlas: generation 2"):
        ann.push(atlas)
    assert head(ann.hub) == theirs
    ann.push(atlas, force=True)
    assert is_whole(ann.hub)
    assert json.loads(pushed_files(ann.hub)["atlas.json"])["generation"] == 1
    # What only the other atlas named is gone; what the owner put there is not.
    assert not any(".output." in path for path in pushed_files(ann.hub))


def test_a_repository_that_is_not_an_atlas_is_left_alone(ann, atlas):
    made = ann.hub.datasets.create(NAME)
    ann.hub.datasets.commit(made.id, None, "mine", {"train.csv": ann.hub.datasets.describe_regular(b"a,b\n")}, [])
    with pytest.raises(AtlasError, match="is not an atlas: it has 2 files"):
        ann.push(atlas)
    ann.push(atlas, force=True)
    assert pushed_files(ann.hub)["train.csv"] == b"a,b\n"


@pytest.mark.slow
def test_records_travel_in_packs_and_full_packs_stay(ann, atlas):
    ann.push(atlas)
    first = ann.push(atlas, with_records=True, pack_bytes=150_000)
    packs = {path for path in pushed_files(ann.hub) if path.endswith(".tar")}
    assert len(packs) > 2
    assert first.sent_files >= len(packs) + 2
    assert is_whole(ann.hub)
    ann.hub.reset_log()
    assert ann.push(atlas, with_records=True, pack_bytes=150_000).sent_files == 0
    record = sorted(atlas.records.glob("*/*.safetensors"))[0]
    record.unlink()
    ann.push(atlas, with_records=True, pack_bytes=150_000)
    kept = packs & set(pushed_files(ann.hub))
    assert len(packs) - 2 <= len(kept) < len(packs)
    assert is_whole(ann.hub)


@pytest.mark.slow
def test_a_record_that_changed_and_is_as_long_is_sent_again(ann, atlas):
    ann.push(atlas, with_records=True)
    (pack,) = [path for path in pushed_files(ann.hub) if path.endswith(".tar")]
    record = min(atlas.records.glob("*/*.safetensors"))
    record.write_bytes(record.read_bytes()[:-8] + b"of today")
    assert ann.push(atlas, with_records=True).sent_files == 2  # the pack and the manifest
    assert b"of today" in pushed_files(ann.hub)[pack]
    assert is_whole(ann.hub)


@pytest.mark.slow
def test_a_tag_that_names_something_else_is_refused_before_anything_is_sent(ann, atlas):
    ann.push(atlas, tag="v1")
    with atlas.locked("test"):
        represent(atlas, "output")
    before = head(ann.hub)
    with pytest.raises(AtlasError, match="already has a tag v1"):
        ann.push(atlas, tag="v1")
    assert head(ann.hub) == before


def test_models_of_this_machine_are_not_published_by_accident(ann, atlas):
    execute(atlas.database, "UPDATE fine_tunes SET author = 'local' WHERE model_id = 1")
    with pytest.raises(AtlasError, match=r"holds models that were added from local folders: \w+/\w+-\d\."):
        ann.push(atlas)
    assert ann.hub.datasets.find(NAME) is None
    assert ann.push(atlas, with_local=True).models == 9


def test_a_damaged_atlas_is_not_pushed(ann, atlas):
    vectors = next(atlas.root.glob("*.faiss"))
    vectors.write_bytes(vectors.read_bytes()[:-1] + b"x")
    with pytest.raises(AtlasError, match="is damaged"):
        ann.push(atlas)
    assert ann.hub.datasets.find(NAME) is None


@pytest.mark.parametrize(
    "change",
    [
        {"path": "../x"}, {"path": "/etc/x"}, {"path": ".ssh/x"}, {"path": "a//b"}, {"path": "a\x1b[2Jb"},
        {"sha256": "0" * 63}, {"bytes": -1}, {"bytes": True}, {"part": "elsewhere"}, {"bytes": 1 << 70},
    ],
)  # fmt: skip
def test_an_untrusted_manifest_is_read_with_care(change):
    file = {"path": "atlas.duckdb", "bytes": 1, "sha256": "0" * 64, "part": "atlas"}
    good = {
        "format": 1, "generation": 1, "schema": 1, "tool": "t", "published": "", "bases": [], "representations": [],
        "counts": {}, "files": [file],
    }  # fmt: skip
    assert parse(json.dumps(good).encode(), "x").files[0].path == "atlas.duckdb"
    with pytest.raises(AtlasError, match=r"is not a valid atlas\.json"):
        parse(json.dumps(good | {"files": [file | change]}).encode(), "x")
    with pytest.raises(AtlasError, match=r"is not a valid atlas\.json"):
        parse(json.dumps(good | {"files": [file, file | {"path": "ATLAS.duckdb"}]}).encode(), "x")
