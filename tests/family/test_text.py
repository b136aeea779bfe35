"""The family's texts: found on every installation, labelled by what they are."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from indexer.errors import AtlasError
from scripts.family import tasks, text
from scripts.family.plan import DataSet, load_plan
from tests.conftest import ROOT


def module(source: str) -> text.Module:
    return text.Module("somewhere", source, __import__("ast").parse(source))


def test_reading_imports_nothing():
    program = (
        "import sys; from scripts.family import text; before = set(sys.modules);"
        "found = text.collect({('docstrings', 'sklearn'), ('messages', 'torch')}, 20);"
        "assert all(found.values()); assert not {'sklearn', 'torch'} & (set(sys.modules) - before)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_paths_are_sorted_capped_and_without_tests():
    paths = text.module_paths("numpy", 20)
    assert len(paths) == 20
    assert paths == sorted(paths)
    assert not any("tests" in path.parts for path in paths)
    with pytest.raises(AtlasError, match="no_such_package"):
        text.module_paths("no_such_package", 5)


def test_comments_are_distinguished_from_code_and_from_strings():
    source = '''
value = function_of(argument, another_argument)
# a comment that is long enough to be kept
text = """
# inside a string and therefore no comment
"""
if value == another_value_of_this_kind:
    # an indented comment that is long enough too
    return_nothing_at_all(from_this_function)
'''
    found = {excerpt.text: excerpt.facts["kind"] for excerpt in text.read_lines(module(source))}
    assert found["a comment that is long enough to be kept"] == "comment"
    assert found["an indented comment that is long enough too"] == "comment"
    assert found["value = function_of(argument, another_argument)"] == "assignment"
    assert found["if value == another_value_of_this_kind:"] == "condition"
    assert found["return_nothing_at_all(from_this_function)"] == "call"
    assert "inside a string and therefore no comment" not in found


def test_messages_are_labelled_with_their_exception():
    source = """
def check(x):
    try:
        if x:
            raise ValueError(f"x must be {x!r} and nothing else")
    except KeyError:
        raise TypeError("said in a handler")
    raise module.Other("not a plain name")
"""
    found = [(excerpt.text, excerpt.facts["exception"]) for excerpt in text.read_messages(module(source))]
    assert sorted(found) == [
        ("said in a handler", "TypeError"),
        ("x must be {} and nothing else", "ValueError"),
    ]


def test_sections_lose_their_title():
    source = '''
def mean(a):
    """Average.

    Parameters
    ----------
    a : array_like
        Numbers.

    Returns
    -------
    m : float
        Their average.
    """
'''
    found = {excerpt.facts["section"]: excerpt.text for excerpt in text.read_sections(module(source))}
    assert found == {"Parameters": "a : array_like Numbers.", "Returns": "m : float Their average."}


def test_every_word_of_code_has_its_kind():
    (found,) = text.read_code_words(module("total = f'{count} of' + 'them all' if count > 12 else None"))
    assert dict(found.pieces)["if"] == "keyword"
    assert dict(found.pieces)["None"] == "keyword"
    assert dict(found.pieces)["12"] == "number"
    assert dict(found.pieces)["'them all'"] == "string"
    assert dict(found.pieces)["total"] == "name"
    assert dict(found.pieces)[">"] == "operator"


def test_a_text_that_stands_in_two_places_is_evidence_for_neither():
    twice = [text.Excerpt("same", {"package": name, "kind": "function"}) for name in ("numpy", "scipy")]
    (kept,) = tasks.without_conflicts(twice)
    assert kept.facts == {"kind": "function"}


def test_labels_are_balanced_and_what_is_held_out_is_not_trained_on(tmp_path):
    plan = load_plan("mini")
    excerpts = [text.Excerpt(f"text number {i} of kind {i % 3}", {"kind": "abc"[i % 3]}) for i in range(300)]
    excerpts += [text.Excerpt(f"one more text {i} of kind a", {"kind": "a"}) for i in range(300)]
    tokenizer = tasks.train_tokenizer([excerpt.text for excerpt in excerpts], plan)
    dataset = DataSet("x/y", "", "kind", ("a", "b", "c"), "")
    made = tasks.label_texts(dataset, excerpts, tokenizer)
    assert Counter(example.label for example in made.held_out) == {0: 20, 1: 20, 2: 20}
    counts = Counter(example.label for example in made.train)
    assert counts == {0: 180, 1: 80, 2: 80}
    assert not {tuple(e.ids) for e in made.train} & {tuple(e.ids) for e in made.held_out}
    made.save(tmp_path)
    assert tasks.LabelledTexts.load(tmp_path, "x/y") == made
    with pytest.raises(AtlasError, match="Only 0 texts for the label 'd'"):
        tasks.label_texts(DataSet("x/y", "", "kind", ("a", "d"), ""), excerpts, tokenizer)


def test_special_tokens_in_a_text_are_text():
    plan = load_plan("mini")
    tokenizer = tasks.train_tokenizer(["ends with </s> or <pad> and <mask>"] * 3, plan)
    ids = tokenizer.encode("ends with </s> or <pad> and <mask>").ids
    assert (ids[0], ids[-1]) == (tasks.START, tasks.END)
    assert not {tasks.START, tasks.PADDING, tasks.END, tasks.MASK} & set(ids[1:-1])
