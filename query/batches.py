"""Many questions in one process: one that cannot be answered does not end the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from indexer.errors import AtlasError, ModelError

T = TypeVar("T")


@dataclass(frozen=True)
class Answered(Generic[T]):
    """What came of one question. ``asked``: the model as it was named; just one of ``answer`` and ``error`` is None."""

    asked: str
    answer: T | None = None
    error: str | None = None


def answered(asked: Iterable[str], ask: Callable[[str], T]) -> Iterator[Answered[T]]:
    """Ask one after another; what is wrong with one question is its answer."""
    for one in asked:
        try:
            yield Answered(one, ask(one))
        except (AtlasError, ModelError) as error:
            yield Answered(one, error=str(error) if isinstance(error, AtlasError) else f"{error.detail.rstrip('.')}.")
