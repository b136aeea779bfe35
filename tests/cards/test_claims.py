"""What a row claims of its base and its datasets."""

from __future__ import annotations

import pytest

from indexer.cards.modelcard import DatasetClaim
from tests.cards.rows import facts


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
    assert facts(config={"peft": "x"}).bases == ()


# --- datasets ----------------------------------------------------------------------------------------------


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
