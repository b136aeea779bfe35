"""The name that a spelling is given."""

from __future__ import annotations

from indexer.cards.datasets import canonical_dataset


def name(raw, config=None):
    dataset = canonical_dataset(raw, config=config)
    return dataset.name if dataset else None
