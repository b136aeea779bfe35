"""The base of a model that names none."""

from __future__ import annotations

from collections.abc import Collection

from indexer.sources.registry import ModelRef


def identify_base(model: ModelRef, bases: Collection[str]) -> str | None:
    """Which of ``bases`` (canonical ids) a model comes from; None if that cannot be told."""
    return None
