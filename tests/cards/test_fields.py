"""One row of the Hub's listing, whole and field by field."""

from __future__ import annotations

import math
import pickle
from dataclasses import fields
from datetime import UTC, datetime, timedelta

import pytest

from indexer.errors import Failed
from indexer.sources.cards.modelcard import (
    DatasetClaim,
    Licence,
    MalformedRow,
    ReportedResult,
    read_row,
)
from tests.cards.rows import COMMIT, facts


def test_a_row_as_the_hub_sends_it():
    row = {
        "_id": "65f",
        "id": "alice/roberta-mrpc",
        "modelId": "alice/roberta-mrpc",
        "author": "alice",
        "sha": COMMIT,
        "createdAt": "2024-03-01T10:20:30.000Z",
        "lastModified": "2024-03-02T00:00:00.500Z",
        "downloads": 12,
        "likes": 0,
        "gated": False,
        "private": False,
        "disabled": False,
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "config": {"architectures": ["RobertaForSequenceClassification"], "model_type": "roberta"},
        "tags": [
            "transformers",
            "dataset:glue",
            "base_model:FacebookAI/roberta-base",
            "base_model:finetune:FacebookAI/roberta-base",
            "license:mit",
            "transformers",
        ],
        "cardData": {
            "license": "mit",
            "language": ["en"],
            "datasets": ["glue"],
            "base_model": "roberta-base",
        },
        "model-index": [
            {
                "name": "roberta-mrpc",
                "results": [
                    {
                        "task": {"type": "text-classification", "name": "Text Classification"},
                        "dataset": {
                            "name": "GLUE MRPC",
                            "type": "glue",
                            "config": "mrpc",
                            "split": "validation",
                        },
                        "metrics": [
                            {"type": "accuracy", "value": 0.87, "name": "Accuracy"},
                            {"type": "f1", "value": "0.9", "verified": True},
                        ],
                    }
                ],
            }
        ],
        "siblings": [{"rfilename": "config.json"}, {"rfilename": "model.safetensors"}],
    }
    read = read_row(row)
    assert read.id == "alice/roberta-mrpc"
    assert read.created == datetime(2024, 3, 1, 10, 20, 30, tzinfo=UTC)
    assert read.modified == datetime(2024, 3, 2, 0, 0, 0, 500_000, tzinfo=UTC)
    assert (read.downloads, read.likes, read.gated, read.private) == (12, 0, None, False)
    assert (read.licence.licence, read.languages) == ("mit", ("en",))
    assert (read.pipeline_tag, read.library) == ("text-classification", "transformers")
    assert read.tags == tuple(row["tags"][:5])
    assert read.bases == ("FacebookAI/roberta-base", "roberta-base")
    assert read.datasets == (
        DatasetClaim("glue", "glue", "tag"),
        DatasetClaim("glue", "glue", "card"),
        DatasetClaim("glue/mrpc", "glue", "model-index", "glue"),
    )
    assert read.dataset_names == ("glue", "glue/mrpc")
    common = ("text-classification", "glue/mrpc", "glue", "mrpc", "validation")
    assert read.evaluations == (
        ReportedResult(*common, "accuracy", 0.87, False),
        ReportedResult(*common, "f1", 0.9, True),
    )
    assert read.oddities == ()
    assert pickle.loads(pickle.dumps(read)) == read


def test_a_row_with_an_id_alone_has_nothing_odd_about_it():
    read = read_row({"modelId": "bert-base-uncased"})
    assert (read.id, read.oddities, read.dataset_names) == ("bert-base-uncased", (), ())
    empty = {getattr(read, field.name) for field in fields(read)} - {"bert-base-uncased"}
    assert empty == {None, ()}


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"id": None},
        {"id": ""},
        {"id": 5},
        {"id": ["alice/model"]},
        {"id": "../../etc/passwd"},
        {"id": "alice/model/../.."},
        {"id": "alice/\x1b[31mmodel"},
        {"id": "a" * 10_000_000},
        {"id": "/root"},
        {"id": "alice--x/y"},
        [],
        "alice/model",
        None,
        5,
    ],
)
def test_a_row_without_a_usable_id_is_refused(row):
    with pytest.raises(MalformedRow) as caught:
        read_row(row)
    assert caught.value.reason == "malformed_row"
    assert len(caught.value.detail) < 100
    assert isinstance(caught.value, Failed)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.detail) == (MalformedRow, caught.value.detail)


# --- single fields -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("2022-02-09T10:46:38.000Z", datetime(2022, 2, 9, 10, 46, 38, tzinfo=UTC)),
        ("2022-02-09T10:46:38Z", datetime(2022, 2, 9, 10, 46, 38, tzinfo=UTC)),
        ("2022-02-09T10:46:38+02:00", datetime(2022, 2, 9, 8, 46, 38, tzinfo=UTC)),
        ("2022-02-09 10:46:38", datetime(2022, 2, 9, 10, 46, 38, tzinfo=UTC)),
        ("2022-02-09", None),
        ("20220209", None),
        ("2022-13-09T10:46:38Z", None),
        ("9999-12-31T23:59:59-23:59", None),
        ("0001-01-01T00:00:00+23:59", None),
        ("yesterday", None),
        ("", None),
        (1644403598, None),
        (True, None),
        (["2022-02-09T10:46:38.000Z"], None),
        ("2" * 10_000_000, None),
        ("٢٠٢٢-02-09T10:46:38Z", None),
    ],
)
def test_dates(written, expected):
    read = facts(createdAt=written, lastModified=written)
    assert read.created == read.modified == expected
    assert bool(read.oddities) == (expected is None)
    if expected:
        assert read.created.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (0, 0),
        (7, 7),
        (2**63 - 1, 2**63 - 1),
        (2**63, None),
        (10**400, None),
        (-1, None),
        (True, None),
        (1.0, None),
        ("7", None),
        (None, None),
        ([7], None),
        (math.nan, None),
    ],
)
def test_counts(written, expected):
    read = facts(downloads=written, likes=written)
    assert (read.downloads, read.likes) == (expected, expected)
    assert type(read.downloads) is not bool
    assert bool(read.oddities) == (expected is None and written is not None)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (False, None),
        (None, None),
        ("auto", "auto"),
        ("manual", "manual"),
        ("Auto", "auto"),
        (True, "manual"),
        ("no", None),
        (0, None),
        ({}, None),
        ("x" * 10**6, None),
    ],
)
def test_gated(written, expected):
    assert facts(gated=written).gated == expected


@pytest.mark.parametrize(
    ("written", "expected"), [(True, True), (False, False), (None, None), ("yes", None), (1, None), (0, None)]
)
def test_private(written, expected):
    assert facts(private=written).private is expected


@pytest.mark.parametrize(
    ("card", "tags", "expected"),
    [
        ({"license": "mit"}, ["license:apache-2.0"], "mit"),
        ({}, ["license:apache-2.0"], "apache-2.0"),
        ({"license": ["mit"]}, [], "mit"),
        ({"license": ["mit", "gpl"]}, [], "mit, gpl"),
        ({"license": 5}, [], None),
        ({"license": None}, ["license:"], None),
    ],
)
def test_license(card, tags, expected):
    read = facts(cardData=card, tags=tags).licence
    assert (read and read.licence) == expected


def test_a_licence_with_a_name_of_its_own():
    card = {"license": "other", "license_name": ["qwen-research"], "license_link": "https://example.org/LICENSE"}
    assert facts(cardData=card).licence == Licence("other", "qwen-research", "https://example.org/LICENSE")
    assert facts(cardData={"license_name": "mine"}).licence is None
    assert facts(cardData={"license": "mit", "license_name": {}, "license_link": 3}).licence == Licence("mit")


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ({"language": "en"}, ("en",)),
        ({"language": ["en", "FR", "en"]}, ("en", "fr")),
        ({"language": False}, ("no",)),
        ({"language": ["da", False]}, ("da", "no")),
        ({"language": "hr, sr"}, ("hr", "sr")),
        ({"languages": ["sw"]}, ("sw",)),
        ({"language": {"a": 1}}, ()),
        ({"language": True}, ()),
        ({"language": [None, 5, [["en"]]]}, ()),
    ],
)
def test_languages(card, expected):
    assert facts(cardData=card).languages == expected


# --- claims of a base and of datasets ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("base_model:roberta-base", "roberta-base"),
        ("base_model:FacebookAI/roberta-base", "FacebookAI/roberta-base"),
        ("base_model:adapter:roberta-base", "roberta-base"),
        ("base_model:quantized:a/b", "a/b"),
        ("base_model:merge:a/b", "a/b"),
        ("base_model:distilled:a/b", "a/b"),
        ("base_model:https://huggingface.co/a/b", "a/b"),
        ("base_model:adapter:", None),
        ("base_model:", None),
        ("base_model:adapter:/content/drive/MyDrive/model", None),
        ("base_model:adapter:../../x", None),
        ("base_model:finetune:a/b/c", None),
        ("base_models:a/b", None),
    ],
)
def test_base_tags(tag, expected):
    assert facts(tags=[tag]).bases == ((expected,) if expected else ())


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ({"base_model": "a/b"}, ["a/b"]),
        ({"base_model": ["a/b", "c/d", "a/b", None, 5]}, ["a/b", "c/d"]),
        ({"base_model": {"name": "a/b"}}, ["a/b"]),
        ({"base_model": {"a": "b"}}, []),
        ({"base_model": None}, []),
        ({"base_model": ""}, []),
        ({"base_model": "https://huggingface.co/bert-base-uncased/tree/main"}, ["bert-base-uncased"]),
        ({"base_model": "https://huggingface.co/datasets/glue"}, []),
        ({"base_model": "https://evil.example/bert-base-uncased"}, []),
    ],
)
def test_base_in_the_card(card, expected):
    assert facts(cardData=card).bases == tuple(expected)


def test_base_in_an_adapter_config():
    read = facts(config={"peft": {"base_model_name_or_path": "roberta-base", "task_type": "SEQ_CLS"}})
    assert read.bases == ("roberta-base",)
    assert facts(config={"peft": {"base_model_name_or_path": "/tmp/x"}}).bases == ()
    for config in (None, 5, [], "x", {"peft": "x"}, {"peft": {"base_model_name_or_path": 5}}):
        assert facts(config=config).bases == ()


@pytest.mark.parametrize(
    ("tags", "card", "expected"),
    [
        (["dataset:GLUE"], {"datasets": ["nyu-mll/glue"]}, ("glue",)),
        (["dataset:mrpc"], {}, ("glue", "glue/mrpc")),
        ([], {"datasets": "SQuAD"}, ("squad",)),
        ([], {"datasets": [None, "imdb", 5, [], {"x": 1}]}, ("imdb",)),
        ([], {"datasets": [{"name": "sst2"}]}, ("glue", "glue/sst2")),
        ([], {"datasets": [{"common_voice": "fi"}]}, ("common_voice",)),
        ([], {"dataset": "imdb", "Datasets": ["squad"]}, ("imdb", "squad")),
        ([], {"datasets": ["common_voice, infore_25h"]}, ("common_voice", "infore_25h")),
        ([], {"datasets": ["alice/reviews", "bob/reviews"]}, ("alice/reviews", "bob/reviews")),
        (["dataset:None", "dataset:unknown", "dataset:"], {"datasets": ["custom", "generator"]}, ()),
        ([], {"datasets": None}, ()),
        ([], {"datasets": {}}, ()),
    ],
)
def test_dataset_names(tags, card, expected):
    assert facts(tags=tags, cardData=card).dataset_names == expected


def test_free_text_is_kept_as_written_and_placeholders_are_not():
    read = facts(tags=["dataset:Norwegian Nynorsk/Bokmål", "dataset:None"])
    assert read.datasets == (DatasetClaim(None, "Norwegian Nynorsk/Bokmål", "tag"),)
    assert read.dataset_names == ()
