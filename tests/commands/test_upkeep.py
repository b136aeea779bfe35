"""`index status` and `index verify`; `index remove` leaves nothing behind, and builds skip the removed model."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from indexer.builds.add import add
from indexer.cli import main
from indexer.listing.listing import Listing
from indexer.upkeep.maintenance import rebuild
from indexer.upkeep.verification import verify
from query import Atlas
from tests.tiny_hub import BASE


def ran(*words: str):
    return CliRunner().invoke(main, list(words))


def test_status_has_a_row_for_each_base(made):
    whole = json.loads(ran("status", "--atlas", str(made), "--json").stdout)
    (row,) = csv.DictReader(io.StringIO(ran("status", "--atlas", str(made), "--format", "csv").stdout))
    assert whole["bases"] == [json.loads(ran("status", "--atlas", str(made), "--format", "jsonl").stdout)]
    assert (row["base"], int(row["indexed"])) == (whole["bases"][0]["base"], whole["bases"][0]["indexed"])


def test_verify_has_a_row_for_each_disagreement(made, tmp_path):
    assert ran("verify", "--atlas", str(made), "--format", "csv").stdout == "kind,what,problem\n"
    assert ran("verify", "--atlas", str(made), "--format", "jsonl").stdout == ""
    assert ran("verify", "--atlas", str(made)).stdout.split() == ["ok", "yes", "disagreements", "none"]
    atlas = tmp_path / "atlas"
    shutil.copytree(made, atlas)
    for file in atlas.glob("*.faiss"):
        file.write_bytes(file.read_bytes()[:-1])
    result = ran("verify", "--atlas", str(atlas), "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert result.exit_code == 1
    assert rows == json.loads(ran("verify", "--atlas", str(atlas), "--json").stdout)["disagreements"]
    assert {row["what"] for row in rows} >= {file.name for file in atlas.glob("*.faiss")}


def bytes_naming(root, name):
    return [path for path in root.rglob("*") if path.is_file() and name.encode() in path.read_bytes()]


@pytest.mark.slow
def test_nothing_of_a_removed_model_is_left(atlas, run):
    with Atlas(atlas.root) as opened:
        opened.predict_many(["bob/glue-1"], store=True)
        key = opened.rows("SELECT record_key FROM models WHERE model = 'ann/glue-0'")[0]["record_key"]
        near = [one.model for one in opened.similar("bob/glue-1")]
    assert "ann/glue-0" in near
    code, _, err = run("index", "remove", "glue-0", "--atlas", atlas.root)
    assert code == 0, err
    assert not atlas.record(key).exists()
    with Atlas(atlas.root) as opened:
        assert opened.rows("SELECT 1 FROM fine_tunes WHERE model = 'ann/glue-0'") == []
        assert [one.model for one in opened.similar("bob/glue-1")] == [one for one in near if one != "ann/glue-0"]
        (row,) = opened.rows("SELECT vectors, faiss_file FROM representations")
        assert row["vectors"] == 8
    assert verify(atlas) == []
    # The tombstone alone names it.
    assert [path.name for path in bytes_naming(atlas.root, "ann/glue-0") if path.suffix != ".duckdb"] == [
        atlas.listing(BASE).name
    ]
    rebuild(atlas)
    with Atlas(atlas.root) as opened:
        assert len(opened.rows("SELECT 1 FROM models")) == 8
    assert [one.id for one in Listing(atlas.listing(BASE)).models()].count("ann/glue-0") == 0


@pytest.mark.slow
def test_a_crawl_brings_no_removed_model_back_but_adding_it_does(atlas, run):
    listing = Listing(atlas.listing(BASE))
    (listed,) = [one for one in listing.models() if one.id == "ann/glue-0"]
    run("index", "remove", "ann/glue-0", "--atlas", atlas.root, "--keep-record")
    assert verify(atlas) == []
    rebuild(atlas)
    with Atlas(atlas.root) as opened:
        assert opened.rows("SELECT 1 FROM fine_tunes WHERE model = 'ann/glue-0'") == []
    line = {"kind": "model", "id": "ann/glue-0", "row": listed.row, "crawl": "x", "seen": "2026-01-01T00:00:00+00:00",
            "claims": {"tag:finetune:x": {"relation": "finetune", "claimed_by": "tag", "parent": BASE}}}  # fmt: skip
    assert listing.write([*listing.as_lines(), line]) == []
    assert "ann/glue-0" not in [one.id for one in Listing(listing.path).models()]
    listing.add(listed.row, "finetune", BASE)
    assert "ann/glue-0" in [one.id for one in Listing(listing.path).models()]
    rebuild(atlas)  # its record was kept
    with Atlas(atlas.root) as opened:
        assert opened.rows("SELECT status FROM fine_tunes WHERE model = 'ann/glue-0'") == [{"status": "indexed"}]


def test_what_is_not_there_cannot_be_removed(atlas, run):
    code, out, err = run("index", "remove", "ann/glue-9", "--atlas", atlas.root)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "ann/glue-9 is not in this atlas. Did you mean ann/glue-0" in err


@pytest.fixture
def offline(monkeypatch):
    """The atlas knows the base, so the Hub is not asked."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.slow
def test_a_folder_is_known_by_its_name_and_its_path_is_nowhere(atlas, made, tmp_path, offline):
    source = made.parent / "store" / "ann" / "glue-0"
    folders = [tmp_path / "secret-place" / "mine", tmp_path / "elsewhere" / "mine"]
    for folder in folders:
        shutil.copytree(source, folder)
    for folder in [*folders, folders[0]]:
        report = add(folder, BASE, atlas.root)
        assert report.indexed + report.unchanged == 1
    add(folders[0], BASE, atlas.root, name="me/mine")
    with Atlas(atlas.root) as opened:
        rows = opened.rows("SELECT model, author FROM models WHERE claimed_by = 'folder' ORDER BY model_id")
        assert rows == [
            {"model": "local:mine", "author": "local"},
            {"model": "local:mine-2", "author": "local"},
            {"model": "me/mine", "author": "me"},
        ]
        assert opened.show("local:mine")["duplicate_of"] == "ann/glue-0"
        assert opened.show(str(folders[1]))["model"].startswith("local:mine")
    assert bytes_naming(atlas.root, str(tmp_path / "secret-place")) == []
    assert bytes_naming(atlas.root, Path(tmp_path).name) == []
