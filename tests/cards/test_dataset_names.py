"""Dataset names: what must become one name, what must stay two, what names none, and the table of aliases."""

from __future__ import annotations

import ast
import csv
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import indexer.sources.cards.datasets
from indexer.sources.cards.datasets import (
    AliasTable,
    CanonicalDataset,
    alias_table,
    canonical_dataset,
    canonical_datasets,
    is_placeholder,
)
from tests.conftest import ROOT

SHARED = ROOT.parent / "shared" / "data"
TABLE = Path(indexer.sources.cards.datasets.__file__).with_name("dataset_aliases.toml")


def name(raw, config=None):
    dataset = canonical_dataset(raw, config=config)
    return dataset.name if dataset else None


@pytest.mark.parametrize(
    ("expected", "spellings"),
    [
        (
            "glue",
            ["glue", "GLUE", "nyu-mll/glue", "NYU-MLL/GLUE", " glue ", "GLUE benchmark", "glue dataset"],
        ),
        (
            "squad",
            [
                "squad",
                "SQuAD",
                "rajpurkar/squad",
                "squad-v1",
                "squadv1",
                "SQuAD1.1",
                "SQuAD v1.1",
                "the SQuAD dataset",
            ],
        ),
        (
            "squad_v2",
            ["squad_v2", "squadv2", "SQuAD 2.0", "SQuAD2.0", "squad-v2", "squad 2", "rajpurkar/squad_v2"],
        ),
        ("conll2003", ["conll2003", "CoNLL-2003", "conll_2003", "CoNLL 2003", "eriktks/conll2003"]),
        (
            "imdb",
            ["imdb", "IMDB", "IMDb", "stanfordnlp/imdb", "imdb_dataset", "IMDB Dataset", "imdb-reviews"],
        ),
        ("ag_news", ["ag_news", "AG News", "agnews", "ag-news", "fancyzhx/ag_news"]),
        ("multi_nli", ["multi_nli", "MultiNLI", "multi-nli", "nyu-mll/multi_nli"]),
        (
            "cnn_dailymail",
            ["cnn_dailymail", "CNN/DailyMail", "cnn/daily mail", "abisee/cnn_dailymail", "CNN-DailyMail"],
        ),
        (
            "common_voice",
            ["common_voice", "Common Voice", "mozilla-foundation/common_voice_11_0", "Common Voice 7.0"],
        ),
        ("imagenet-1k", ["imagenet-1k", "ImageNet", "imagenet_1k", "ILSVRC/imagenet-1k", "ILSVRC2012"]),
        ("wikipedia", ["wikipedia", "Wikipedia", "wikimedia/wikipedia", "legacy-datasets/wikipedia"]),
        ("emotion", ["emotion", "dair-ai/emotion"]),
        ("xglue", ["x_glue", "xglue", "microsoft/xglue"]),
    ],
)
def test_one_dataset_under_many_spellings(expected, spellings):
    assert {spelling: name(spelling) for spelling in spellings} == dict.fromkeys(spellings, expected)


@pytest.mark.parametrize(
    ("expected", "spellings"),
    [
        (
            "mrpc",
            [
                "mrpc",
                "MRPC",
                "GLUE MRPC",
                "glue/mrpc",
                "glue-mrpc",
                "glue_mrpc",
                "nyu-mll/glue/mrpc",
                "MRPC (GLUE)",
            ],
        ),
        ("sst2", ["sst2", "sst-2", "SST2", "SST-2", "stanfordnlp/sst2", "GLUE SST-2"]),
        ("stsb", ["stsb", "sts-b", "STS-B", "sts_b", "STSBenchmark"]),
        ("mnli", ["mnli", "MNLI", "GLUE MNLI", "mnli_matched", "mnli-mm"]),
        ("cola", ["cola", "CoLA"]),
        ("qqp", ["qqp", "QQP"]),
        ("qnli", ["qnli"]),
        ("rte", ["rte", "RTE"]),
        ("wnli", ["wnli"]),
    ],
)
def test_glue_tasks_by_their_own_name(expected, spellings):
    wanted = CanonicalDataset(f"glue/{expected}", "glue")
    for spelling in spellings:
        assert canonical_dataset(spelling) == wanted, spelling


@pytest.mark.parametrize(
    ("raw", "config", "expected", "parent"),
    [
        ("glue", "mrpc", "glue/mrpc", "glue"),
        ("nyu-mll/glue", "SST-2", "glue/sst2", "glue"),
        ("glue", "default", "glue", None),
        ("glue", None, "glue", None),
        ("super_glue", "boolq", "super_glue/boolq", "super_glue"),
        ("super_glue", "rte", "super_glue/rte", "super_glue"),
        ("super_glue", "wsc.fixed", "super_glue/wsc", "super_glue"),
        ("google/boolq", None, "super_glue/boolq", "super_glue"),
        ("tweet_eval", "emotion", "tweet_eval/emotion", "tweet_eval"),
        ("cardiffnlp/tweet_eval", "stance_climate", "tweet_eval/stance", "tweet_eval"),
        ("xtreme", "PAN-X.de", "xtreme/pan-x", "xtreme"),
        ("xtreme", "udpos.German", "xtreme/udpos", "xtreme"),
        # A language, a version or a size is not a task.
        ("common_voice", "fi", "common_voice", None),
        ("wikiann", "en", "wikiann", None),
        ("amazon_reviews_multi", "es", "amazon_reviews_multi", None),
        ("cnn_dailymail", "3.0.0", "cnn_dailymail", None),
        ("imdb", "plain_text", "imdb", None),
        ("mrpc", "mrpc", "glue/mrpc", "glue"),
        ("alice/glue", "mrpc", "alice/glue", None),
    ],
)
def test_a_config_is_a_dataset_only_where_it_is_a_task(raw, config, expected, parent):
    dataset = canonical_dataset(raw, config=config)
    assert (dataset.name, dataset.parent) == (expected, parent)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("squad", "squad_v2"),
        ("alice/reviews", "bob/reviews"),
        ("alice/imdb", "imdb"),
        ("alice/squad", "bob/squad"),
        ("wmt14", "wmt16"),
        ("imagenet-1k", "imagenet-21k"),
        ("cifar10", "cifar100"),
        ("conll2002", "conll2003"),
        ("squad_es", "squad"),
        ("snli", "xnli"),
        ("paws", "paws-x"),
        ("emotion", "tweet_eval/emotion"),
        ("sst2", "sst5"),
        ("yelp_polarity", "yelp_review_full"),
        ("masakhaner", "masakhaner2"),
        ("c4", "mc4"),
        ("trivia_qa", "tweet_qa"),
        ("super_glue/rte", "glue/rte"),
        ("alice/my-data", "alice/my_data"),
        ("imdb", "imdb+"),
        ("glue", "klue"),
    ],
)
def test_two_datasets_stay_two(one, other):
    assert name(one) != name(other)
    assert name(one) is not None


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("Alice/My-Reviews_v2.0", "alice/my-reviews_v2.0"),
        ("Commonlit-Readibility", "commonlit_readibility"),
        ("tamilmixsentiment", "tamilmixsentiment"),
        ("datasets/sentence-transformers/reddit-title-body", "sentence-transformers/reddit-title-body"),
        ("dataset:imdb", "imdb"),
        ("https://huggingface.co/datasets/nyu-mll/glue", "glue"),
        ("https://huggingface.co/datasets/glue/viewer/mrpc", "glue"),
        ("http://hf.co/datasets/Alice/Data?row=3#top", "alice/data"),
        ("MIMIC-III\xa0", "mimic_iii"),
    ],
)
def test_names_the_table_does_not_have(raw, expected):
    assert name(raw) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("common_voice, infore_25h", ["common_voice", "infore_25h"]),
        ("glue, squad and imdb", ["glue", "squad", "imdb"]),
        ("squad,squad_v2", ["squad", "squad_v2"]),
        ("alice/reviews; bob/reviews", ["alice/reviews", "bob/reviews"]),
        ("imdb, custom", ["imdb"]),
        ("SST-2, MRPC", ["glue/sst2", "glue/mrpc"]),
        ("wikipedia, bookcorpus, wikipedia", ["wikipedia", "bookcorpus"]),
        ("imdb", ["imdb"]),
        ("imdb, some of our own sentences", []),
    ],
)
def test_lists_in_one_string_are_split_where_every_part_is_a_name(raw, expected):
    assert [dataset.name for dataset in canonical_datasets(raw)] == expected


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=120),
        st.from_regex(r"[A-Za-z0-9_.\-]{1,20}(/[A-Za-z0-9_.\-]{1,20})?", fullmatch=True),
    ),
    st.one_of(st.none(), st.text(max_size=20)),
)
def test_a_canonical_name_is_its_own_canonical_name(raw, config):
    for dataset in canonical_datasets(raw, config=config):
        assert canonical_dataset(dataset.name) == dataset
        assert dataset.name.isascii()
        assert dataset.name.isprintable()


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["alice", "bob", "carol-x", "d4n"]),
    st.sampled_from(["alice", "bob", "carol-x", "d4n"]),
    st.from_regex(r"[a-z][a-z0-9_]{2,15}", fullmatch=True),
)
def test_owners_are_never_merged(one, other, repository):
    assert (name(f"{one}/{repository}") == name(f"{other}/{repository}")) == (one == other)


# Texts that name no dataset

PLACEHOLDERS = [
    None, "", " ", "None", "none", "NONE", "unknown", "Unknown", "unkown", "generator", "custom", "Custom", "null",
    "n/a", "N/A", "-", "--", "?", "???", "...", "tbd", "TBD", "private", "imagefolder", "audiofolder", "csv",
    "json", "text", "parquet", "array of dataset identifiers", "more_information_needed",
    "[More Information Needed]", "more information needed", "the None dataset", "an unknown dataset",
    "unknown dataset", "custom dataset", "Custom Dataset", "Kaggle Dataset", "my_dataset", "own",
    "text-classification", "nan", "dataset", "\x00", "\u200b",
]  # fmt: skip


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


# The table


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


@pytest.mark.parametrize(
    "raw",
    ["updated", "original", "grouped_dataset", "groupd_dataset", "preference-data", "dataset1", "your-dataset-name"],
)
def test_words_that_trainers_and_templates_write_are_no_datasets(raw):
    assert is_placeholder(raw)
    assert name(raw) is None


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("['tasksource/mmlu', 'virology']", "mmlu"),
        (" ['glue', 'cola']", "glue/cola"),
        ('["alice/reviews"]', "alice/reviews"),
        ("['a sentence with words', 'es']", None),
        ("['imdb', 'x', 'y']", None),
        ("gsm8k-dataset", "gsm8k"),
        ("ehartford/dolphin", "dolphin"),
        ("mozilla-foundation/common_voice_17", "common_voice"),
        ("lighteval/MATH", "competition_math"),
        ("math", "math"),  # several datasets are called so
        ("guanaco", "guanaco"),
    ],
)
def test_spellings_of_2025(raw, expected):
    assert name(raw) == expected


def test_real_tags_of_2025():
    """Most uses end at a name of the table or at an id; the others are names that no owner makes clear."""
    path = SHARED / "dataset_tags_2025.csv"
    if not path.exists():
        pytest.skip(f"needs {path.name} in ../shared/data")
    with path.open(encoding="utf-8") as file:
        uses = {row["name"].removeprefix("dataset:"): int(row["models"]) for row in csv.DictReader(file)}
    table = alias_table()
    known = {dataset.name for dataset in (*table.ids.values(), *table.spellings.values())}
    named = {raw: count for raw, count in uses.items() if not is_placeholder(raw)}
    canonical = sum(
        count
        for raw, count in named.items()
        if (found := canonical_datasets(raw)) and all(one.name in known or "/" in one.name for one in found)
    )
    assert sum(uses.values()) == 229_630
    assert sum(uses.values()) - sum(named.values()) > 11_000
    assert canonical / sum(named.values()) > 0.96
