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
        # A name with an owner says more than a type without one.
        ({"type": "glue", "name": "someone/sentences", "config": "mrpc"}, ("someone/sentences",)),
        ({"type": "squad", "name": "nyu-mll/glue", "args": "mrpc"}, ("glue", "glue/mrpc")),
        ({"type": "glue", "name": "glue/mrpc"}, ("glue", "glue/mrpc")),
        ({"type": "wikitext", "name": "wikitext/103"}, ("wikitext",)),
        ({"type": "someone/sentences", "name": "glue"}, ("someone/sentences",)),
        ({"type": "someone/sentences", "name": "other/sentences"}, ("someone/sentences",)),
        ({"type": "imdb", "name": "data/train"}, ("imdb",)),
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
        ({"type": "ai2_arc", "name": "AI2 Reasoning Challenge (25-Shot)", "config": "ARC-Challenge"}, None),
        ({"type": "ai2_arc", "name": "AI2 Reasoning Challenge"}, None),
        ({"type": "hellaswag", "name": "HellaSwag (10-Shot)"}, None),
        ({"type": "gsm8k", "name": "gsm8k", "args": {"num_few_shot": 5}}, None),
        ({"type": "winogrande", "name": "Winogrande zero-shot"}, None),
        ({"type": "cais/mmlu", "name": "MMLU"}, None),
        ({"type": "openai_humaneval", "name": "HumanEval"}, None),
        ({"type": "C-MTEB/AFQMC", "name": "AFQMC"}, None),
        ({"type": "imdb", "name": "imdb"}, {"name": "lm-evaluation-harness"}),
        ({"type": "imdb", "name": "imdb"}, "https://huggingface.co/spaces/autoevaluate/model-evaluator"),
    ],
)
def test_a_benchmark_run_on_the_finished_model_is_not_training_data(dataset, source):
    index = index_of(dataset)
    index[0]["results"][0]["source"] = source
    read = facts(**{"model-index": index})
    assert read.dataset_names == ()
    assert len(read.evaluations) == 1
    assert read.evaluations[0].dataset is not None


def test_what_the_hubs_evaluator_measured_is_not_training_data():
    signed = {"verified": True, "verifyToken": "eyJhbGciOi"}
    wikitext = {"type": "wikitext", "name": "WikiText-103", "config": "wikitext-103-v1", "split": "test"}
    for mark in (signed, {"verified": True}, {"verifyToken": "eyJhbGciOi"}):
        read = facts(**{"model-index": index_of(wikitext, **mark)})
        assert read.dataset_names == ()
        assert [(one.dataset, one.verified) for one in read.evaluations] == [("wikitext", True)]
    of_result = index_of(wikitext)
    of_result[0]["results"][0]["verified"] = True
    assert facts(**{"model-index": of_result}).dataset_names == ()
    # The author's own results beside it still count, and so does what the card names.
    (trained,), (measured,) = index_of("imdb"), index_of(wikitext, **signed)
    both = [{"results": [*trained["results"], *measured["results"]]}]
    assert facts(**{"model-index": both}).dataset_names == ("imdb",)
    assert facts(cardData={"datasets": ["wikitext"]}, **{"model-index": [measured]}).dataset_names == ("wikitext",)
    mixed = index_of("imdb")
    mixed[0]["results"][0]["metrics"].append({"type": "f1", "value": 0.4, **signed})
    assert facts(**{"model-index": mixed}).dataset_names == ("imdb",)
    for mark in ({"verified": False}, {"verified": "no"}, {"verifyToken": ""}, {"verifyToken": None}):
        assert facts(**{"model-index": index_of("imdb", **mark)}).dataset_names == ("imdb",)


def test_the_name_of_an_evaluator_of_sentence_transformers_is_not_training_data():
    index = index_of({"type": "dim_768", "name": "dim 768"})
    assert facts(**{"model-index": index}).dataset_names == ("dim_768",)
    index[0]["results"][0]["task"] = {"type": "information-retrieval", "name": "Information Retrieval"}
    assert facts(**{"model-index": index}).dataset_names == ()
    index[0]["results"][0]["dataset"] = {"type": "ms_marco", "name": "MS MARCO"}
    assert facts(**{"model-index": index}).dataset_names == ("ms_marco",)


def test_other_fields_of_a_card_name_no_training_data():
    card = {
        "eval_results": [{"dataset": "imdb"}], "widget": [{"text": "imdb", "dataset": "imdb"}], "metrics": ["glue"],
        "evaluation": {"datasets": ["squad"]}, "train-eval-index": [{"config": "imdb"}],
    }  # fmt: skip
    read = facts(cardData=card, evalResults=[{"dataset": {"id": "imdb"}}], tags=["eval-results", "widget:imdb"])
    assert (read.dataset_names, read.evaluations) == ((), ())


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
