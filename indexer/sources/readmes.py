"""Fetches the README of a model whose listing row does not say enough."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from indexer.errors import Failed, ModelError
from indexer.network.rows import commit_of, listed_filenames
from indexer.sources.cards.readme import MAX_README, SENTENCE, sentence_datasets
from indexer.sources.cards.sentence import lacks_sentence
from indexer.sources.registry import ModelRef
from indexer.sources.rows import as_of_hub


def readme_of(identifier: str, revision: str) -> str:
    """The README.md of a model; "" if it has none, if it is too long, or if this account may not read it.

    Raises Failed if it cannot be read now, but may be readable later.
    """
    try:
        reference = ModelRef.of_atlas(identifier)
        content = reference.source.read_small(reference, "README.md", revision, MAX_README)
    except ModelError as error:
        if isinstance(error, Failed) and error.reason not in ("not_found", "refused"):
            raise
        return ""
    return content.decode("utf-8", errors="replace")


def needs_readme(row: Mapping[str, Any]) -> bool:
    """Whether the README of the model of this row is worth a request."""
    files = listed_filenames(row)
    return (files is None or "README.md" in files) and lacks_sentence(as_of_hub(row))


def datasets_of(row: Mapping[str, Any]) -> list[str]:
    """The datasets that the README of the model of this row names in a sentence. Raises Failed."""
    return list(sentence_datasets(readme_of(str(row["id"]), commit_of(row) or "main")))


def completed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the datasets of its README if it lacks them and the README can be read now."""
    with suppress(Failed):
        return {**row, SENTENCE: datasets_of(row)} if needs_readme(row) else dict(row)
    return dict(row)
