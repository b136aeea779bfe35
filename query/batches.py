"""Many questions in one process: an error in one does not end the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from indexer.errors import AtlasError, ModelError
from indexer.untrusted import tidy

T = TypeVar("T")


@dataclass(frozen=True)
class Answered(Generic[T]):
    """The outcome of one question about ``asked``, as it was typed: either an ``answer`` or an ``error``."""

    asked: str
    answer: T | None = None
    error: str | None = None


def answered(asked: Iterable[str], ask: Callable[[str], T]) -> Iterator[Answered[T]]:
    """Ask one after another; any error is the outcome of its question."""
    for one in asked:
        try:
            answer = ask(one)
        except (AtlasError, ModelError) as error:
            text = str(error) if isinstance(error, AtlasError) else f"{error.detail.rstrip('.')}."
            yield Answered(one, error=text)
        except Exception as error:
            yield Answered(one, error=f"It could not be asked: {type(error).__name__}: {tidy(str(error), 200)}.")
        else:
            yield Answered(one, answer)
