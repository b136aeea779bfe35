"""Adapters of strangers as repositories: which are taken, what they are said to be tuned on, and what is refused."""

from __future__ import annotations

import json

import pytest

from indexer.errors import AtlasError
from studies.wild.__main__ import main
from studies.wild.collection import datasets_of, full_id, read_collection, write


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("stanfordnlp/imdb", ("imdb",)),
        ("Salesforce/wikitext wikitext-2-raw-v1", ("wikitext",)),
        ("nyu-mll/glue sst2", ("glue/sst2",)),
        ("dair-ai/emotion, stanfordnlp/imdb", ("emotion", "imdb")),
        ("argilla/uber-reviews", ("argilla/uber-reviews",)),
        ("own: train.json (49,295 rows)", ()),
        ("own", ()),
        ("some reviews from the web", ()),
        ("", ()),
        (None, ()),
    ],
)
def test_a_cell_names_public_data_sets(cell, names):
    assert datasets_of(cell) == names


def collected(tmp_path, rows, head="id\tauthor\tdataset"):
    table = tmp_path / "wild.tsv"
    table.write_text("\n".join([head, *rows]), encoding="utf-8")
    (tmp_path / "wild").mkdir(exist_ok=True)
    return tmp_path / "wild", table


def adapter(folder, name, **config):
    (folder / name).mkdir(parents=True)
    (folder / name / "adapter_config.json").write_text(json.dumps(config))


def test_rows_that_have_a_folder_become_repositories(tmp_path):
    rows = ["r1\tann\tstanfordnlp/imdb", "r2\tbob\town: x", "r3\tbob\tstanfordnlp/imdb", "..\tann\t", "r1\t../eve\t"]
    folder, table = collected(tmp_path, rows)
    adapter(folder, "r1", base_model_name_or_path="roberta-base")
    adapter(folder, "r2", base_model_name_or_path="roberta-base")
    found = read_collection(folder, table)
    assert (found.base, found.absent) == ("FacebookAI/roberta-base", 3)
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    found = read_collection(folder, table, "me/base", base)
    write(found, tmp_path / "hub")
    assert sorted(path.name for path in (tmp_path / "hub").iterdir()) == ["ann", "bob", "me"]
    told = json.loads((tmp_path / "hub" / "ann" / "r1.repo.json").read_text())
    assert told["card_data"] == {"base_model": "me/base", "datasets": ["imdb"]}
    assert "base_model:adapter:me/base" in told["tags"]
    assert "datasets" not in json.loads((tmp_path / "hub" / "bob" / "r2.repo.json").read_text())["card_data"]
    assert json.loads((tmp_path / "hub" / "me" / "base.repo.json").read_text()) == {"old_ids": ["base"]}
    changed = read_collection(folder, table, "me/base").fingerprint
    assert changed != found.fingerprint


def test_what_cannot_be_read_is_named(tmp_path):
    folder, table = collected(tmp_path, ["r1\tann"], head="id\tauthor")
    with pytest.raises(AtlasError, match="no column 'dataset'"):
        read_collection(folder, table)
    folder, table = collected(tmp_path, ["r1\tann\t"])
    with pytest.raises(AtlasError, match="no folder of an adapter"):
        read_collection(folder, table)
    adapter(folder, "r1")
    with pytest.raises(AtlasError, match="names its base"):
        read_collection(folder, table)
    with pytest.raises(AtlasError, match=r"shape of me/unheard-of"):
        write(read_collection(folder, table, "me/unheard-of"), tmp_path / "hub")


def test_ids_of_bases():
    assert full_id("distilbert-base-uncased") == "distilbert/distilbert-base-uncased"
    assert full_id("somebody/roberta-base") == "somebody/roberta-base"


def test_where_the_adapters_are_absent_the_study_is_skipped(tmp_path, capsys):
    assert main(["--folder", str(tmp_path / "nowhere"), "--json"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"Skipped: {tmp_path / 'nowhere'} is absent.")
    (tmp_path / "nowhere").mkdir()
    assert main(["--folder", str(tmp_path / "nowhere")]) == 0
    assert "nowhere.tsv is absent" in capsys.readouterr().err
