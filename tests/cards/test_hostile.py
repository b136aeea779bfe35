"""Rows that mean ill, any JSON at all, and the real rows of 2022."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.sources.cards.modelcard import (
    MalformedRow,
    read_row,
)
from tests.cards.rows import COMMIT, facts, index_of
from tests.conftest import ROOT
from tests.patience import lines_run

SHARED = ROOT.parent / "shared" / "data"


def rows_of_2022():
    path = SHARED / "hub_listing_2022.jsonl"
    if not path.exists():
        pytest.skip(f"needs {path.name} in ../shared/data")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- hostile strings ---------------------------------------------------------------------------------------

HOSTILE = [
    "\x1b[31m", "\x00", "\x07", "\x9b2J", "\u202e", "\u2066", "\u2028", "\ud800", "\r\n", "\u200f", "\U000e0041",
]  # fmt: skip
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]")


def strings_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from strings_in(item)
    elif hasattr(value, "__dataclass_fields__"):
        for field in fields(value):
            yield from strings_in(getattr(value, field.name))


@pytest.mark.parametrize("bad", HOSTILE)
def test_no_control_character_gets_out(bad):
    text = f"x{bad}y"
    read = read_row(
        {
            "id": "alice/model",
            "tags": [text, f"license:{text}", f"dataset:{text}", f"base_model:{text}"],
            "pipeline_tag": text,
            "library_name": text,
            "gated": text,
            "sha": text,
            "config": {"peft": {"base_model_name_or_path": text}},
            "cardData": {
                "license": text,
                "language": [text],
                "datasets": [text, f"two words {text}"],
                "base_model": text,
                "model-index": index_of({"type": text, "name": text, "config": text, "split": text}, type=text),
            },
        }
    )
    strings = list(strings_in(read))
    assert len(strings) > 12
    for string in strings:
        assert not FORBIDDEN.search(string), ascii(string)
        string.encode("utf-8")
    assert read.tags[0].startswith("x\ufffd")
    assert read.tags[0].endswith("y")


def test_a_raw_tag_keeps_its_content():
    tags = ["Über-Größe", "日本語", "a b\xa0c", "👍🏽", "<b>&\"'", "=cmd()"]
    assert facts(tags=tags).tags == tuple(tags)
    assert facts(tags=["red\x1b[31m!"]).tags == ("red\ufffd[31m!",)


def test_a_hostile_card_is_cut_to_size():
    huge = "x" * 10_000_000
    many = [f"tag{number}" for number in range(300_000)]
    row = {
        "id": "alice/model",
        "tags": [huge, *many],
        "config": {"peft": {"base_model_name_or_path": huge}},
        "cardData": {
            "datasets": [huge, *many],
            "language": many,
            "license": many,
            "base_model": many,
            "model-index": [{"results": [{"metrics": [{"type": huge, "value": huge}] * 1000}] * 1000}] * 1000,
        },
    }
    read = read_row(row)
    assert lines_run(lambda: read_row(row)) < 3_000_000  # ten for each of the entries, at the most
    sizes = [len(string) for string in strings_in(read)]
    assert max(sizes) <= 1_000
    assert sum(sizes) < 2_000_000
    assert len(read.tags) <= 1_000
    assert len(read.oddities) >= 5


# --- any JSON at all ---------------------------------------------------------------------------------------

WORDS = [
    "id", "modelId", "sha", "tags", "cardData", "config", "datasets", "dataset", "model-index", "model_index",
    "results", "metrics", "metric", "value", "type", "name", "args", "task", "base_model", "language", "license",
    "peft", "base_model_name_or_path", "gated", "createdAt", "downloads", "source", "verified", "split",
    "id2label",
]  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["dataset:glue", "base_model:finetune:a/b", "glue", "mrpc", "license:mit", "a/b", "None", COMMIT]),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(WORDS), TEXTS), inner, max_size=6),
    ),
    max_leaves=20,
)


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(st.sampled_from(WORDS), JSON, max_size=12), st.booleans())
def test_any_json_is_read_or_refused(row, named):
    if named:
        row["id"] = "alice/model"
    try:
        read = read_row(row)
    except MalformedRow:
        assert not named
        return
    assert read.created is None or read.created.tzinfo is not None
    for string in strings_in(read):
        assert not FORBIDDEN.search(string)
    for evaluation in read.evaluations:
        assert evaluation.value is None or math.isfinite(evaluation.value)
    hash(read)


# --- the real rows of 2022 ---------------------------------------------------------------------------------


def test_real_rows():
    rows = rows_of_2022()
    read = {}
    refused = []
    for row in rows:
        try:
            read[row["modelId"]] = read_row(row)
        except MalformedRow:
            refused.append(row["modelId"])
    # A name of 103 characters, which the Hub's own client refuses as well.
    assert [len(name.split("/")[1]) for name in refused] == [103]
    simple = re.compile(r"dataset:[A-Za-z0-9_.-]+")
    for row in rows:
        found = read.get(row["modelId"])
        if found is None:
            continue
        assert found.tags == tuple(dict.fromkeys(row["tags"]))
        assert found.modified.isoformat(timespec="milliseconds").replace("+00:00", "Z") == row["lastModified"]
        assert (found.downloads, found.likes) == (row["downloads"], row["likes"])
        named = {claim.raw for claim in found.datasets if claim.dataset and claim.source == "tag"}
        assert named >= {tag[8:] for tag in row["tags"] if simple.fullmatch(tag)}
        for bare in ("glue", "squad", "imdb", "conll2003", "swag"):
            assert (f"dataset:{bare}" in row["tags"]) <= (bare in found.dataset_names)
    assert sum(bool(facts.dataset_names) for facts in read.values()) >= 380
    mrpc = [facts.id for facts in read.values() if "glue/mrpc" in facts.dataset_names]
    expected = [
        row["modelId"]
        for row in rows
        if '"args": "mrpc"' in json.dumps(row["cardData"]) or "dataset:mrpc" in row["tags"]
    ]
    assert sorted(mrpc) == sorted(expected)
    assert len(mrpc) == 9


def test_real_rows_take_few_steps():
    rows = [row for row in rows_of_2022() if len(row["modelId"]) < 90]
    assert lines_run(lambda: [read_row(row) for row in rows]) / len(rows) < 1_000
