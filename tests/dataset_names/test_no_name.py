"""Texts that name no dataset: placeholders, free text, and texts that are too long."""

from __future__ import annotations

import pytest

from indexer.cards.datasets import canonical_dataset, canonical_datasets, is_placeholder

PLACEHOLDERS = [
    None,
    "",
    " ",
    "None",
    "none",
    "NONE",
    "unknown",
    "Unknown",
    "unkown",
    "generator",
    "custom",
    "Custom",
    "null",
    "n/a",
    "N/A",
    "-",
    "--",
    "?",
    "???",
    "...",
    "tbd",
    "TBD",
    "private",
    "imagefolder",
    "audiofolder",
    "csv",
    "json",
    "text",
    "parquet",
    "array of dataset identifiers",
    "more_information_needed",
    "[More Information Needed]",
    "more information needed",
    "the None dataset",
    "an unknown dataset",
    "unknown dataset",
    "custom dataset",
    "Custom Dataset",
    "Kaggle Dataset",
    "my_dataset",
    "own",
    "text-classification",
    "nan",
    "dataset",
    "\x00",
    "\u200b",
]


@pytest.mark.parametrize("raw", PLACEHOLDERS)
def test_placeholders_are_no_dataset(raw):
    assert canonical_dataset(raw) is None
    assert canonical_datasets(raw) == ()
    assert is_placeholder(raw)


@pytest.mark.parametrize(
    "raw",
    [
        "Norwegian Nynorsk/Bokmål",
        "220M words (IndoWiki, IndoWC, News)]",
        "1.5B Arabic Corpus",
        "Arabic Poetry Dataset (6th - 21st century)",
        "The model saw data that we collected, cleaned and labelled",
        "x" * 101,
        "glue " * 100,
        "https://www.kaggle.com/oswinrh/bible",
        "https://example.org/datasets/glue",
        "https://evilhuggingface.co/datasets/glue",
        "https://huggingface.co.evil.example/datasets/glue",
        "data/train.csv",
        "./data",
        "../../etc/passwd",
        "/content/drive/MyDrive/imdb",
        "C:\\data\\imdb",
        "train.json",
        "alice/bob/carol",
        "a//b",
        "2021",
        "12345",
        "English, German",
        "look at https://huggingface.co/datasets/glue for an example",
        "alice/..",
        "中文维基",
        "<script>alert(1)</script>",
        "\x1b[31mglue\x1b[0m",
        "imdb;DROP TABLE",
        "imdb+",
        "glue\u202e",
        "https://huggingface.co/bert-base-uncased",
        "https://huggingface.co/datasets",
    ],
)
def test_free_text_has_no_canonical_name(raw):
    assert canonical_dataset(raw) is None
    assert canonical_datasets(raw) == ()
    assert not is_placeholder(raw)


@pytest.mark.parametrize(
    "raw",
    [
        "a" * 10_000_000,
        "," * 10_000_000,
        "a, " * 3_000_000,
        " " * 10_000_000,
        "/" * 10_000_000,
        "the " * 2_000_000,
        "https://huggingface.co/datasets/" * 300_000,
        "hf.co/" + "a/" * 3_000_000,
    ],
)
def test_hostile_lengths_take_no_time(raw):
    """Ten million characters: what is not linear does not end before the test is ended."""
    assert canonical_dataset(raw) is None
    canonical_datasets(raw)
    is_placeholder(raw)
