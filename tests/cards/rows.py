"""Rows of the Hub's listing, and their facts."""

from __future__ import annotations

from indexer.sources.cards.modelcard import read_row

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def facts(**fields_of_row):
    return read_row({"id": "alice/model", **fields_of_row})


def index_of(dataset, **metric):
    """A model-index with one metric on ``dataset``."""
    metric = {"type": "accuracy", "value": 0.5, **metric}
    return [{"name": "m", "results": [{"task": {"type": "t"}, "dataset": dataset, "metrics": [metric]}]}]
