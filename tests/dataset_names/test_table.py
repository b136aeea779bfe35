"""The table of aliases: it finds all of itself, contradicts itself nowhere, and knows what people write."""

from __future__ import annotations

import ast
import csv
import tomllib
from pathlib import Path

import pytest

import indexer.cards.datasets
from indexer.cards.datasets import AliasTable, CanonicalDataset, alias_table, canonical_dataset
from tests.conftest import ROOT
from tests.dataset_names.canonical import name

SHARED = ROOT.parent / "shared" / "data"
TABLE = Path(indexer.cards.datasets.__file__).with_name("dataset_aliases.toml")


def test_the_table_is_large_and_every_name_in_it_finds_itself():
    written = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    assert len(written["datasets"]) > 250
    for canonical, others in written["datasets"].items():
        assert isinstance(others, list), canonical
        for spelling in (canonical, *others):
            assert canonical_dataset(spelling) == CanonicalDataset(canonical), spelling
    for group, entry in written["groups"].items():
        assert set(entry.get("bare", [])) <= set(entry["tasks"]), group
        assert name(group) == group
        for task, others in entry["tasks"].items():
            wanted = CanonicalDataset(f"{group}/{task}", group)
            assert canonical_dataset(wanted.name) == wanted
            for spelling in (task, *others):
                if "/" in spelling:
                    assert canonical_dataset(spelling) == wanted
                else:
                    assert canonical_dataset(group, config=spelling) == wanted


def test_a_table_that_contradicts_itself_is_refused():
    table = AliasTable(placeholders={"none"})
    table.add(CanonicalDataset("squad"), "SQuAD 1")
    with pytest.raises(ValueError, match="more than one"):
        table.add(CanonicalDataset("squad_v2"), "squad_1")
    with pytest.raises(ValueError, match="more than one"):
        table.add(CanonicalDataset("x"), "None")
    assert alias_table() is alias_table()


def test_real_labels_of_2023():
    path = SHARED / "bert_2023_labels.csv"
    if not path.exists():
        pytest.skip(f"needs {path.name} in ../shared/data")
    with path.open(encoding="utf-8") as file:
        cells = [row["datasets"] for row in csv.DictReader(file) if row["datasets"]]
    raw = [part for cell in cells for part in ast.literal_eval(cell)]
    assert len(raw) > 350
    named = {spelling: name(spelling) for spelling in raw}
    refused = {spelling for spelling, canonical in named.items() if canonical is None}
    assert refused == {None, "generator", "custom"}
    assert named["x_glue"] == "xglue"
    assert named["adecorpusv2"] == "ade_corpus_v2"
    assert named["batterydata/battery-device-data-qa"] == "batterydata/battery-device-data-qa"
