"""What each tool answers, typed: the keys of the commands' JSON, so that a client knows them beforehand.

Pydantic, which the SDK makes schemas with, takes ``typing.TypedDict`` from Python 3.12 on only.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class SimilarModel(TypedDict):
    """One neighbour; ``because`` only where it was asked why."""

    rank: int
    model: str
    similarity: float
    author: str
    relation: str
    datasets: list[str]
    because: dict[str, dict[str, float]] | None


class Similar(TypedDict):
    """The models most like one, nearest first."""

    model: str
    representation: str
    neighbours: list[SimilarModel]
    notes: list[str]


class LikelyDataset(TypedDict):
    """A dataset that a model was perhaps tuned on; ``calibrated``: whether its probability can be taken as one."""

    dataset: str
    probability: float
    votes: float
    calibrated: bool


class Predicted(TypedDict):
    """The datasets a model was probably tuned on, and what to keep in mind."""

    model: str
    answers: list[LikelyDataset]
    notes: list[str]


class Shown(TypedDict):
    """Everything known of one model."""

    model: str
    facts: dict[str, Any]


class Compared(TypedDict):
    """Two models side by side."""

    a: str
    b: str
    facts: dict[str, Any]


class Parent(TypedDict):
    """One parent of a model, or its base; ``card``: confirmed, contradicted or not declared."""

    parent: str | None
    kind: str
    coefficient: float
    left: float
    card: str
    method: str | None
    direction: str
    because: str
    same: list[str]


class Ancestry(TypedDict):
    """Which models one was made from, by its weights; ``bytes_read`` of them for this answer."""

    model: str
    base: str
    parents: list[Parent]
    bytes_read: int
    notes: list[str]


class DatasetCount(TypedDict):
    """A dataset, and how many indexed models and authors name it."""

    base: str
    dataset: str
    models: int
    authors: int


class Datasets(TypedDict):
    """Datasets by number of models; ``truncated``: there are more."""

    datasets: list[DatasetCount]
    truncated: bool


class Rows(TypedDict):
    """What one SELECT found; ``truncated``: there were more rows than the limit."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool
