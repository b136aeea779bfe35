"""What was planted, and what became of it."""

from __future__ import annotations

import pytest

from scripts.reproduce import planted
from scripts.reproduce.planted import Outcome


def told(outcome="indexed", reason=None, flag=None):
    return {"outcome": outcome, "reason": reason, "flag": flag, "why": f"{outcome} for a reason."}


@pytest.mark.parametrize(
    ("expected", "outcome", "is_right"),
    [
        (told(), Outcome("indexed"), True),
        (told(), Outcome("indexed", flags=frozenset(["copy"])), False),
        (told(), Outcome("failed", "timeout"), False),
        (told(flag="copy"), Outcome("indexed", flags=frozenset(["copy", "duplicate"])), True),
        (told(flag="duplicate"), Outcome("indexed"), False),
        (told("skipped", "gated"), Outcome("skipped", "gated"), True),
        (told("skipped", "gated"), Outcome("skipped", "disabled"), False),
        (told("not listed"), Outcome("not listed"), True),
        (told("not listed"), Outcome("indexed"), False),
    ],
)
def test_an_outcome_is_as_expected_or_not(expected, outcome, is_right):
    found = {"a/b": outcome} if outcome.status != "not listed" else {}
    made = planted.check({"a/b": expected}, found, is_partial=False)
    assert [(kind.models, kind.as_expected) for kind in made.kinds] == [(1, int(is_right))]
    assert [mismatch.model for mismatch in made.mismatches] == ([] if is_right else ["a/b"])


def test_beyond_a_limit_nothing_is_judged_but_what_was_tried():
    expected = {"a/1": told(), "a/2": told(), "a/3": told("skipped", "gated"), "a/4": told("not listed")}
    found = {"a/1": Outcome("indexed"), "a/2": Outcome("listed"), "a/4": Outcome("indexed")}
    made = planted.check(expected, found, is_partial=True)
    assert made.not_tried == 2
    assert [mismatch.model for mismatch in made.mismatches] == ["a/4"]
    assert {kind.kind: kind.models for kind in made.kinds} == {"ordinary": 1, "not listed": 1}
    whole = planted.check(expected, found, is_partial=False)
    assert [mismatch.model for mismatch in whole.mismatches] == ["a/2", "a/3", "a/4"]
