"""The head of a model in config.json; its label names may reveal the dataset."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from indexer.untrusted import Reader

MAX_LABELS = 2_048
MAX_LABEL = 100
MAX_LABEL_COUNT = 10_000_000  # far above any model

_PLACEHOLDER_LABEL = re.compile(r"LABEL_\d+", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class HeadFacts:
    """The head of a model. ``label_names`` is None if there are only LABEL_0, LABEL_1 and so on."""

    architecture_class: str | None
    label_count: int | None
    label_names: tuple[str, ...] | None
    problem_type: str | None
    model_type: str | None


def head_facts(config: Mapping[str, Any]) -> HeadFacts:
    """The head that an untrusted config.json describes.

    Labels are in the order of their indices; more than ``MAX_LABELS`` are counted, but not kept.
    """
    reader = Reader()
    config = reader.mapping(config, "config")
    architectures = reader.texts(config.get("architectures"), "architectures", 10)
    labels = _labels(config, reader)
    counts = (bounded_count(config.get(key)) for key in ("num_labels", "_num_labels"))
    return HeadFacts(
        architecture_class=architectures[0] if architectures else None,
        label_count=len(labels) if labels else next((count for count in counts if count is not None), None),
        label_names=_label_names(labels, reader),
        problem_type=reader.text(config.get("problem_type"), "problem_type"),
        model_type=reader.text(config.get("model_type"), "model_type"),
    )


def bounded_count(value: Any) -> int | None:
    """A plausible number of labels, or None."""
    return value if type(value) is int and 0 <= value <= MAX_LABEL_COUNT else None


def _labels(config: Mapping[str, Any], reader: Reader) -> dict[int, Any]:
    """Index → label, from ``id2label`` or else from the inverted ``label2id``."""
    labels = {}
    for key, value in reader.mapping(config.get("id2label"), "id2label").items():
        index = _index(key)
        if index is not None:
            labels[index] = value
    if not labels:
        for key, value in reader.mapping(config.get("label2id"), "label2id").items():
            index = _index(value)
            if index is not None:
                labels[index] = key
    return labels


def _index(value: Any) -> int | None:
    if isinstance(value, str) and len(value) <= 9 and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _label_names(labels: Mapping[int, Any], reader: Reader) -> tuple[str, ...] | None:
    if not labels or len(labels) > MAX_LABELS:
        return None
    names = []
    for index in sorted(labels):
        label = labels[index]
        if not isinstance(label, str | bool | float) and not (isinstance(label, int) and abs(label) < 2**63):
            return None
        names.append(reader.text(label if isinstance(label, str) else str(label), "id2label", MAX_LABEL) or "")
    is_placeholder = all(not name or _PLACEHOLDER_LABEL.fullmatch(name) for name in names)
    return None if is_placeholder else tuple(names)
