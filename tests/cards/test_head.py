"""config.json → the head: labels in order, placeholders known, nothing trusted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.sources.cards.modelcard import HeadFacts, head_facts

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12))
KEYS = ["id2label", "label2id", "num_labels", "architectures", "model_type", "problem_type", "0", "1", "-1"]
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("config", "count", "names"),
    [
        ({"id2label": {"0": "neg", "1": "pos"}}, 2, ("neg", "pos")),
        ({"id2label": {0: "neg", 1: "pos"}}, 2, ("neg", "pos")),
        ({"id2label": {"10": "k", "9": "j", "2": "c"}}, 3, ("c", "j", "k")),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, 2, None),
        ({"id2label": {"0": "LABEL_0", "1": "pos"}}, 2, ("LABEL_0", "pos")),
        ({"id2label": {"0": 0, "1": 1}}, 2, ("0", "1")),
        ({"label2id": {"pos": 1, "neg": 0}}, 2, ("neg", "pos")),
        ({"num_labels": 3}, 3, None),
        ({"_num_labels": 4}, 4, None),
        ({"num_labels": True}, None, None),
        ({"num_labels": "3"}, None, None),
        ({"id2label": {"0": "a\x1b[31m", "1": "b\nc"}}, 2, ("a[31m", "b c")),
        ({"id2label": {"0": ["a"], "1": "b"}}, 2, None),
        ({"id2label": {"x": "a", "-1": "b", "1e5": "c"}, "num_labels": 2}, 2, None),
        ({"id2label": {"0": "x" * 10_000}}, 1, ("x" * 100,)),
        ({"id2label": {str(number): f"class {number}" for number in range(21_843)}}, 21_843, None),
        ({"id2label": ["a", "b"]}, None, None),
        ({}, None, None),
    ],
)
def test_labels(config, count, names):
    head = head_facts(config)
    assert (head.label_count, head.label_names) == (count, names)


def test_head_of_a_real_config():
    from transformers import BertConfig

    config = BertConfig(
        architectures=["BertForSequenceClassification"],
        id2label={0: "entailment", 1: "neutral", 2: "contradiction"},
        label2id={"entailment": 0, "neutral": 1, "contradiction": 2},
        problem_type="single_label_classification",
    )
    assert head_facts(json.loads(config.to_json_string())) == HeadFacts(
        "BertForSequenceClassification",
        3,
        ("entailment", "neutral", "contradiction"),
        "single_label_classification",
        "bert",
    )
    plain = json.loads(BertConfig(num_labels=5).to_json_string())
    assert (head_facts(plain).label_count, head_facts(plain).label_names) == (5, None)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_any_json_is_a_config(config):
    head = head_facts(config)
    assert head.label_names is None or len(head.label_names) == head.label_count
