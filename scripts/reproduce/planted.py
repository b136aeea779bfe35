"""Whether an atlas made of a family what the family's ``expected.json`` says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FLAGS = ("copy", "duplicate", "unrelated")
ORDINARY = "Tuned from the base, whatever its card and its files look like."
TRIED = ("indexed", "skipped", "failed")


@dataclass(frozen=True)
class Outcome:
    """What became of one model: its status, why, and which of ``FLAGS`` it carries."""

    status: str
    reason: str | None = None
    flags: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return " ".join([self.status, *([f"({self.reason})"] if self.reason else []), *sorted(self.flags)])


@dataclass(frozen=True)
class Kind:
    """A kind of repository in the family: how many there are, and how many ended as they should."""

    kind: str
    models: int
    as_expected: int
    example: str
    why: str


@dataclass(frozen=True)
class Mismatch:
    """A model that ended otherwise than it should have."""

    model: str
    expected: str
    found: str
    why: str


@dataclass(frozen=True)
class Check:
    """All kinds, the commonest first; ``not_tried`` models lie beyond --limit and are not judged."""

    kinds: tuple[Kind, ...]
    mismatches: tuple[Mismatch, ...]
    not_tried: int = 0


def check(expected: Mapping[str, Mapping[str, Any]], found: Mapping[str, Outcome], *, is_partial: bool) -> Check:
    """Compare every repository of a family with what the atlas says of it.

    Args:
        expected: ``expected.json``: model → outcome, reason, flag, why.
        found: what the atlas says of each model that it lists.
        is_partial: not everything was asked for, so a model that was not tried is not a mismatch.
    """
    judged: dict[str, list[tuple[str, bool]]] = {}
    mismatches = []
    not_tried = 0
    for model, row in sorted(expected.items()):
        outcome = found.get(model, Outcome("not listed"))
        if is_partial and row["outcome"] in TRIED and outcome.status not in TRIED:
            not_tried += 1
            continue
        is_right = is_as_expected(row, outcome)
        judged.setdefault(kind_of(row), []).append((model, is_right))
        if not is_right:
            wanted = Outcome(row["outcome"], row["reason"], frozenset(filter(None, [row["flag"]])))
            mismatches.append(Mismatch(model, str(wanted), str(outcome), row["why"]))
    sizes = Counter({kind: len(models) for kind, models in judged.items()})
    kinds = [_kind(name, judged[name], expected) for name, _ in sorted(sizes.items(), key=lambda it: (-it[1], it[0]))]
    return Check(tuple(kinds), tuple(mismatches), not_tried)


def is_as_expected(row: Mapping[str, Any], outcome: Outcome) -> bool:
    """Whether status, reason and flag are the expected ones; an ordinary model must carry no flag."""
    if outcome.status != row["outcome"] or row["reason"] not in (None, outcome.reason):
        return False
    return row["flag"] in outcome.flags if row["flag"] else not outcome.flags


def kind_of(row: Mapping[str, Any]) -> str:
    """The name of a kind: ordinary, a flag, or why it is skipped or not listed."""
    if row["outcome"] == "indexed":
        return row["flag"] or "ordinary"
    return row["reason"] or row["outcome"]


def _kind(name: str, models: list[tuple[str, bool]], expected: Mapping[str, Mapping[str, Any]]) -> Kind:
    example = models[0][0]
    why = expected[example]["why"] if name != "ordinary" else ORDINARY
    return Kind(name, len(models), sum(is_right for _, is_right in models), example, why)
