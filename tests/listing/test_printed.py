"""`index listing`: what the Hub listed, for people and programs that read it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from indexer import listed_models
from indexer.atlas import AtlasFolder
from indexer.cli import main
from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.storage.checksummed_jsonl import write_lines
from tests.hubs import BASE


@pytest.fixture
def folder(tmp_path):
    folder = AtlasFolder(tmp_path / "atlas")
    listing = Listing(folder.listing(BASE))
    listing.note_base((BASE, "roberta-base"))
    listing.add({"id": "a/b", "downloads": 7}, "finetune", BASE)
    listing.add({"id": "a/c", "sha": "1" * 40}, "adapter", "a/b")
    other = Listing(folder.listing("org/base"))
    other.add({"id": "x/y"}, "finetune", "org/base")
    return folder


def printed(folder, *words) -> str:
    ran = CliRunner().invoke(main, ["listing", "--atlas", str(folder.root), *words])
    assert ran.exit_code == 0, ran.output
    return ran.stdout


@pytest.mark.parametrize("base", [BASE, "roberta-base", "Roberta-Base"])
def test_the_rows_of_one_base(folder, base):
    first, second = [json.loads(line) for line in printed(folder, "--base", base, "--format", "jsonl").splitlines()]
    assert first["row"] == {"id": "a/b", "downloads": 7}
    assert (second["base"], second["model"], second["relation"], second["parent"]) == (BASE, "a/c", "adapter", "a/b")
    assert second["path"] == [{"relation": "finetune", "model": "a/b"}, {"relation": "adapter", "model": "a/c"}]
    assert second["claims"] == {"user": {"relation": "adapter", "claimed_by": "user", "parent": "a/b"}}


def test_the_rows_of_all_bases(folder):
    assert [row["model"] for row in json.loads(printed(folder, "--format", "json"))] == ["a/b", "a/c", "x/y"]
    table = printed(folder, "--format", "csv").splitlines()
    assert table[0] == "base,model,relation,claimed_by,parent,first_seen,last_seen,deleted_at_hub"
    assert len(table) == 4


def test_a_listing_that_was_pulled(folder):
    before = list(listed_models(folder.root))
    for base in (BASE, "org/base"):
        write_lines(folder.exported("listing", base), Listing(folder.listing(base)).as_lines())
        folder.listing(base).unlink()
    assert list(listed_models(folder.root)) == before


def test_what_is_not_there_or_damaged_is_one_line(folder, tmp_path):
    for atlas, base, said in (
        (tmp_path / "nothing", None, "has no listing"),
        (folder.root, "org/other", f"has no listing of org/other. It has those of {BASE}, org/base"),
    ):
        with pytest.raises(AtlasError, match=said):
            list(listed_models(atlas, base))
    folder.listing(BASE).write_bytes(b"x" * 5000)
    with pytest.raises(AtlasError, match=r"is damaged.*index rebuild"):
        list(listed_models(folder.root, BASE))
