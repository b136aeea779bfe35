"""model-index, in all the shapes that cards give it."""

from __future__ import annotations

import math

import pytest

from tests.cards.rows import facts, index_of
from tests.patience import lines_run


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        ({"type": "glue", "name": "glue", "args": "mrpc"}, ("glue", "glue/mrpc")),
        ({"type": "glue", "name": "GLUE MRPC"}, ("glue", "glue/mrpc")),
        ({"type": "glue", "name": "glue", "config": "cola", "args": "mrpc"}, ("glue", "glue/cola")),
        ({"type": "glue", "name": "glue", "args": {"name": "rte"}}, ("glue", "glue/rte")),
        ({"type": "glue", "name": "glue"}, ("glue",)),
        ({"type": "squad", "name": "SQuAD MRPC"}, ("squad",)),
        ({"type": "question-answering", "name": "TQuAD", "args": "tr"}, ("tquad",)),
        ({"type": "None", "name": "imdb"}, ("imdb",)),
        ({"type": "generator", "name": "generator"}, ()),
        ({"name": "imdb"}, ("imdb",)),
        ("imdb", ("imdb",)),
        ([{"type": "imdb"}], ("imdb",)),
        ({"type": "common_voice", "args": "fi"}, ("common_voice",)),
        ({"type": 5, "name": ["imdb"]}, ()),
        (None, ()),
        (5, ()),
    ],
)
def test_the_dataset_of_a_result(dataset, expected):
    assert facts(**{"model-index": index_of(dataset)}).dataset_names == expected
    old = facts(cardData={"model_index": index_of(dataset)})
    assert old.dataset_names == expected
    assert len(old.evaluations) == 1


@pytest.mark.parametrize(
    ("dataset", "source"),
    [
        (
            {"type": "mteb/amazon_counterfactual", "name": "MTEB AmazonCounterfactual (en)", "config": "en"},
            None,
        ),
        ({"type": "imdb", "name": "MTEB ImdbClassification"}, None),
        (
            {"type": "ai2_arc", "name": "AI2 Reasoning Challenge"},
            {"name": "Open LLM Leaderboard", "url": "https://x"},
        ),
    ],
)
def test_a_benchmark_run_on_the_finished_model_is_not_training_data(dataset, source):
    index = index_of(dataset)
    index[0]["results"][0]["source"] = source
    read = facts(**{"model-index": index})
    assert read.dataset_names == ()
    assert len(read.evaluations) == 1
    assert read.evaluations[0].dataset is not None


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (0.5, 0.5),
        (1, 1.0),
        ("0.86", 0.86),
        ("86.5%", 86.5),
        (" 86 % ", 86.0),
        (math.nan, None),
        (math.inf, None),
        ("nan", None),
        ("-inf", None),
        (10**400, None),
        ("9" * 500, None),
        (True, None),
        (None, None),
        ([0.5], None),
        ({"value": 0.5}, None),
        ("good", None),
        ("", None),
    ],
)
def test_values(written, expected):
    (evaluation,) = facts(**{"model-index": index_of({"type": "imdb"}, value=written)}).evaluations
    assert evaluation.value == expected


@pytest.mark.parametrize(
    ("index", "count"),
    [
        ({"name": "m", "results": {"dataset": {"type": "imdb"}, "metrics": {"type": "f1", "value": 1}}}, 1),
        ([{"results": [{"dataset": {"type": "imdb"}, "metric": {"type": "f1", "value": 1}}]}], 1),
        ([{"name": "m"}], 0),
        ([{"results": None}], 0),
        ([{"results": [None, 5, "x", []]}], 0),
        ([{"results": [{"metrics": ["accuracy", 5, None]}]}], 0),
        ([None], 0),
        ("x", 0),
        (5, 0),
        ({}, 0),
        ([[[[]]]], 0),
    ],
)
def test_shapes_of_model_index(index, count):
    assert len(facts(cardData={"model-index": index}).evaluations) == count


@pytest.mark.slow
def test_of_a_table_of_a_benchmark_no_more_is_read_than_is_kept():
    result = {"dataset": {"type": "mteb/x", "name": "MTEB X", "config": "en", "split": "test"}}
    metrics = [{"type": f"metric{number}", "value": number} for number in range(100)]

    def index(entries, **more):
        return {"model-index": [{"results": [{**result, **more}] * 1_000}] * entries}

    full = facts(**index(20, metrics=metrics))
    assert len(full.evaluations) == 100
    assert facts(**index(20)).evaluations == ()
    # Twenty entries of a thousand results: the first two thousand evaluations are all that is looked at.
    assert lines_run(lambda: facts(**index(20, metrics=metrics))) < 1.1 * lines_run(
        lambda: facts(**index(1, metrics=metrics))
    )
    # Where results hold nothing, all are looked at, a few lines each.
    assert lines_run(lambda: facts(**index(20))) < 22 * lines_run(lambda: facts(**index(1)))
