"""Changes of the token embedding: rows written anew, rows appended."""

from __future__ import annotations

from indexer.records.kinds.change import Subject, Test


def _reset(subject: Subject) -> float:
    """How many of the sampled rows have nothing in common with the base's. Training turns no row by a right angle."""
    return float(subject.signs.reset_tokens or 0)


def _reset_in_words(subject: Subject) -> str:
    tokens = subject.record.tokens
    of_rows = f" of the {len(tokens.codes):,} rows that were read" if tokens else ""
    return f"{int(_reset(subject)):,}{of_rows} of its token embedding have nothing in common with the base's"


def added_rows(subject: Subject) -> int:
    """How many rows its token embedding has more than the base's; 0 if that is not known."""
    tokens = subject.record.tokens
    return max(tokens.vocabulary - tokens.base_vocabulary, 0) if tokens else 0


def _added(subject: Subject) -> float:
    """1 where rows were appended and no block matrix changed: else they belong to a training."""
    return float(added_rows(subject) > 0 and subject.record.is_copy)


def _added_in_words(subject: Subject) -> str:
    return f"{added_rows(subject):,} rows were appended to its token embedding; its block matrices are the base's"


RESET = Test("embedding rows reset", _reset, _reset_in_words, 0.5, 0.08)
ADDED = Test("embedding rows added", _added, _added_in_words, 0.5, 0.08)
