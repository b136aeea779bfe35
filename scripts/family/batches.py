"""Batches of padded texts, in an order that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from scripts.family.tasks import END, NO_LABEL, PADDING, Example

BATCHES_OF_LIKE_LENGTH = 8  # sorted by length together, so that little of a batch is padding


@dataclass(frozen=True)
class Batch:
    """``ids`` and ``attention``: (texts, tokens) int64; ``labels``: (texts,) or (texts, tokens) int64."""

    ids: torch.Tensor
    attention: torch.Tensor
    labels: torch.Tensor


def endless(examples: Sequence[Example], size: int, longest: int, seed: int) -> Iterator[Batch]:
    """Batches without end; every pass over the examples has another order."""
    order = random.Random(seed)
    if len(examples) < size:
        examples = list(examples) * -(-size // len(examples))
    while True:
        shuffled = order.sample(examples, len(examples))
        pool = size * BATCHES_OF_LIKE_LENGTH
        groups: list[list[Example]] = []
        for start in range(0, len(shuffled), pool):
            alike = sorted(shuffled[start : start + pool], key=lambda example: len(example.ids))
            groups += [alike[first : first + size] for first in range(0, len(alike), size)]
        groups = [group for group in groups if len(group) == size]
        order.shuffle(groups)
        yield from (collate(group, longest) for group in groups)


def once(examples: Sequence[Example], size: int, longest: int) -> Iterator[Batch]:
    """Every example once, the short ones first."""
    by_length = sorted(examples, key=lambda example: len(example.ids))
    for start in range(0, len(by_length), size):
        yield collate(by_length[start : start + size], longest)


def collate(examples: Sequence[Example], longest: int) -> Batch:
    """Cut to ``longest`` tokens (the last is still </s>) and pad to the longest text of the batch."""
    width = min(longest, max(len(example.ids) for example in examples))
    ids = torch.tensor([fit(example.ids, width, END, PADDING) for example in examples])
    labels = [
        label if isinstance(label, int) else fit(label, width, NO_LABEL, NO_LABEL)
        for label in (example.label for example in examples)
    ]
    return Batch(ids, (ids != PADDING).long(), torch.tensor(labels))


def fit(row: list[int], width: int, last: int, padding: int) -> list[int]:
    """A row of exactly ``width`` numbers."""
    return [*row[: width - 1], last] if len(row) > width else row + [padding] * (width - len(row))


def unlabelled(texts: Sequence[list[int]]) -> list[Example]:
    """Texts as examples, for objectives that make their own labels."""
    return [Example(ids, 0) for ids in texts]
