"""Reads the facts about a model from a raw row of the Hub's listing, and its head from config.json.

Both are untrusted. A field that cannot be read becomes None or empty and is named in ``ModelFacts.oddities``; only a
row without the id of a model is refused. All strings are bounded, on one line, and without control characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from indexer.cards.datasets import MAX_NAME, CanonicalDataset, canonical_datasets, is_known, is_placeholder
from indexer.cards.evaluations import ReportedResult, first_value, read_evaluations
from indexer.errors import Failed
from indexer.names import RELATIONS, author_of, is_hub_id
from indexer.untrusted import COMMIT, Reader, hub_address, printable

MAX_TAGS = 1_000
MAX_SIBLINGS = 10_000
MAX_DATASETS = 200
MAX_BASES = 50
MAX_LANGUAGES = 200
MAX_LABELS = 2_048
MAX_LABEL = 100  # characters
MAX_LABEL_COUNT = 10_000_000  # far more than any model has

_OUTSIDE = re.compile(r"^/|\\|(^|/)\.\.(/|$)")  # paths that lead out of the repository
_DATASET_KEYS = ("datasets", "dataset", "Datasets")
_NAME_KEYS = ("id", "name", "path", "type", "dataset")
_PLACEHOLDER_LABEL = re.compile(r"LABEL_\d+", re.IGNORECASE | re.ASCII)


class MalformedRow(Failed):
    """A row without the id of a model."""

    def __init__(self, detail: str) -> None:
        super().__init__("malformed_row", detail)

    def __reduce__(self) -> Any:
        return type(self), (self.detail,)


@dataclass(frozen=True)
class BaseClaim:
    """A claimed base of the model. "config" is PEFT's entry in adapter_config.json."""

    base: str
    relation: str | None
    source: Literal["tag", "card", "config"]


@dataclass(frozen=True)
class DatasetClaim:
    """A dataset that the model claims to be tuned on; ``dataset`` is None if ``raw`` is free text."""

    dataset: str | None
    raw: str
    source: Literal["tag", "card", "model-index"]
    parent: str | None = None
    subtask: str | None = None


@dataclass(frozen=True)
class ModelFacts:
    """All facts in a row."""

    id: str
    author: str
    commit: str | None
    created: datetime | None
    modified: datetime | None
    downloads: int | None
    likes: int | None
    gated: str | None
    private: bool | None
    disabled: bool | None
    license: str | None
    languages: tuple[str, ...]
    pipeline_tag: str | None
    library: str | None
    model_type: str | None
    architectures: tuple[str, ...]
    tags: tuple[str, ...]
    base_claims: tuple[BaseClaim, ...]
    datasets: tuple[DatasetClaim, ...]
    evaluations: tuple[ReportedResult, ...]
    siblings: tuple[str, ...]
    oddities: tuple[str, ...]

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """The distinct canonical names, sorted, including collections: glue/mrpc adds glue."""
        names = {name for claim in self.datasets for name in (claim.dataset, claim.parent)}
        return tuple(sorted(name for name in names if name))


def read_row(row: Mapping[str, Any]) -> ModelFacts:
    """The facts in one row of ``/api/models``.

    Raises MalformedRow if the row names no model, and never anything else.
    """
    if not isinstance(row, Mapping):
        raise MalformedRow("The row is not an object.")
    named = (row.get(key) for key in ("id", "modelId"))
    model_id = next((value for value in named if isinstance(value, str) and is_hub_id(value)), None)
    if model_id is None:
        raise MalformedRow("The row has no id of the form owner/name.")
    reader = Reader()
    card = reader.mapping(row.get("cardData"), "cardData")
    config = reader.mapping(row.get("config"), "config")
    tags: tuple[str, ...] = ()
    if isinstance(listed := row.get("tags"), list | tuple):
        strings = [printable(tag) for tag in reader.items(listed, "tags", MAX_TAGS) if isinstance(tag, str)]
        if len(strings) < min(len(listed), MAX_TAGS):
            reader.note("tags", "an item is not a string")
        tags = tuple(dict.fromkeys(strings))
    elif listed is not None:
        reader.note("tags", "not a list")
    # The Hub moves it out of the card, old rows have it there, and the Trainer once spelled it with "_".
    index = first_value(row, "model-index", "model_index") or first_value(card, "model-index", "model_index")
    evaluations, evaluated = read_evaluations(index, reader)
    commit = row.get("sha")
    commit = commit.lower() if isinstance(commit, str) and COMMIT.fullmatch(commit.lower()) else None
    if commit is None and row.get("sha") is not None:
        reader.note("sha", "not 40 hex digits")
    stated = row.get("gated")  # true, as in old listings, counts as "manual"
    gated = "manual" if stated is True else stated.lower() if isinstance(stated, str) else None
    if gated not in ("auto", "manual"):
        if stated is not None and stated is not False:
            reader.note("gated", "neither auto, manual nor false")
        gated = None
    licenses = reader.texts(card.get("license"), "license", 5)
    tagged = (reader.text(text, "license") for text in _after(tags, "license:"))
    languages: dict[str, None] = {}
    for item in reader.items(first_value(card, "language", "languages"), "language", MAX_LANGUAGES):
        # YAML reads the code of Norwegian, "no", as false.
        text = "no" if item is False else reader.text(item, "language")
        languages |= {part.strip().lower(): None for part in (text or "").split(",")}
    languages.pop("", None)
    # File names inside the repository; others are left out.
    siblings: dict[str, None] = {}
    for item in reader.items(row.get("siblings"), "siblings", MAX_SIBLINGS):
        name = item.get("rfilename") if isinstance(item, Mapping) else item
        if isinstance(name, str) and 0 < len(name) <= 1_000 and name.isprintable() and not _OUTSIDE.search(name):
            siblings[name] = None
        else:
            reader.note("siblings", "a name that cannot be a file of the repository")
    return ModelFacts(
        id=model_id,
        author=author_of(model_id) or reader.text(row.get("author"), "author") or "",
        commit=commit,
        created=reader.moment(first_value(row, "createdAt", "created_at"), "createdAt"),
        modified=reader.moment(first_value(row, "lastModified", "last_modified"), "lastModified"),
        downloads=reader.count(row.get("downloads"), "downloads"),
        likes=reader.count(row.get("likes"), "likes"),
        gated=gated,
        private=reader.flag(row.get("private"), "private"),
        disabled=reader.flag(row.get("disabled"), "disabled"),
        license=", ".join(licenses) or next((text for text in tagged if text), None),
        languages=tuple(languages)[:MAX_LANGUAGES],
        pipeline_tag=reader.text(first_value(row, "pipeline_tag") or card.get("pipeline_tag"), "pipeline_tag"),
        library=reader.text(first_value(row, "library_name") or card.get("library_name"), "library_name"),
        model_type=reader.text(config.get("model_type"), "model_type"),
        architectures=reader.texts(config.get("architectures"), "architectures", 10),
        tags=tags,
        base_claims=_base_claims(tags, card, config, reader),
        datasets=_dataset_claims(tags, card, evaluated, reader),
        evaluations=evaluations,
        siblings=tuple(siblings),
        oddities=reader.oddities,
    )


def _after(tags: Sequence[str], prefix: str) -> Iterator[str]:
    # Control characters of the raw tag have become U+FFFD, which is removed from values.
    return (tag[len(prefix) :].replace("\ufffd", " ") for tag in tags if tag.startswith(prefix))


def _base_claims(
    tags: Sequence[str], card: Mapping[str, Any], config: Mapping[str, Any], reader: Reader
) -> tuple[BaseClaim, ...]:
    claims: dict[BaseClaim, None] = {}

    def claim(base: Any, relation: str | None, source: Literal["tag", "card", "config"]) -> None:
        if isinstance(base, Mapping):
            base = next((base[key] for key in _NAME_KEYS if isinstance(base.get(key), str)), None)
        text = reader.text(base, "base_model")
        identifier = text if text and is_hub_id(text) else hub_address(text or "", "models")
        if identifier and len(claims) < MAX_BASES:
            claims[BaseClaim(identifier, relation, source)] = None
        elif not identifier:
            reader.note("base_model", "not a Hub id")

    for text in _after(tags, "base_model:"):
        relation, colon, base = text.partition(":")
        if colon and relation not in ("http", "https"):
            claim(base, _relation(relation, reader), "tag")
        else:
            claim(text, None, "tag")
    stated = _relation(card.get("base_model_relation"), reader)
    for base in reader.items(card.get("base_model"), "base_model", MAX_BASES):
        claim(base, stated, "card")
    adapter = config.get("peft")
    if isinstance(adapter, Mapping) and adapter.get("base_model_name_or_path"):
        claim(adapter["base_model_name_or_path"], "adapter", "config")
    return tuple(claims)


def _relation(value: Any, reader: Reader) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and value.strip().lower() in RELATIONS:
        return value.strip().lower()
    reader.note("base_model_relation", "not a known relation")
    return None


def _dataset_claims(
    tags: Sequence[str],
    card: Mapping[str, Any],
    evaluated: Sequence[tuple[str, tuple[CanonicalDataset, ...]]],
    reader: Reader,
) -> tuple[DatasetClaim, ...]:
    claims: dict[DatasetClaim, None] = {}

    def claim(raw: str, found: tuple[CanonicalDataset, ...], source: Literal["tag", "card", "model-index"]) -> None:
        for dataset in found:
            claims[DatasetClaim(dataset.name, raw, source, dataset.parent, dataset.subtask)] = None
        if not found and not is_placeholder(raw):
            claims[DatasetClaim(None, raw, source)] = None

    for text in _after(tags, "dataset:"):
        raw = reader.text(text, "datasets")
        if raw:
            claim(raw, canonical_datasets(raw), "tag")
    for key in _DATASET_KEYS:
        for item in reader.items(card.get(key), "datasets", MAX_DATASETS):
            named: list[Any] = [item]
            if isinstance(item, Mapping):  # {"name": …}, or {"common_voice": "fi"}
                keys = [name for name in list(item)[:5] if isinstance(name, str)]
                named = [item[name] for name in _NAME_KEYS if isinstance(item.get(name), str)][:1]
                named = named or [name for name in keys if is_known(name[:MAX_NAME])]
                if not named:
                    reader.note("datasets", "an object that names none")
            for raw in (reader.text(name, "datasets") for name in named):
                if raw:
                    claim(raw, canonical_datasets(raw), "card")
    for raw, found in evaluated:
        claim(raw, found, "model-index")
    if len(claims) > MAX_DATASETS:
        reader.note("datasets", f"cut to {MAX_DATASETS} items")
    return tuple(claims)[:MAX_DATASETS]


@dataclass(frozen=True)
class HeadFacts:
    """The head of a model. ``label_names`` is None if there are only LABEL_0, LABEL_1 and so on."""

    architecture_class: str | None
    label_count: int | None
    label_names: tuple[str, ...] | None
    problem_type: str | None
    model_type: str | None


def head_facts(config: Mapping[str, Any]) -> HeadFacts:
    """The head that an untrusted config.json describes; its label names may reveal the dataset.

    Labels are in the order of their indices; more than ``MAX_LABELS`` are counted, but not kept.
    """
    reader = Reader()
    config = reader.mapping(config, "config")
    architectures = reader.texts(config.get("architectures"), "architectures", 10)
    # Index → label, from id2label or else from the inverted label2id.
    pairs = list(reader.mapping(config.get("id2label"), "id2label").items())
    labels = {index: label for key, label in pairs if (index := _label_index(key)) is not None}
    if not labels:
        pairs = list(reader.mapping(config.get("label2id"), "label2id").items())
        labels = {index: label for label, key in pairs if (index := _label_index(key)) is not None}
    counts = (bounded_count(config.get(key)) for key in ("num_labels", "_num_labels"))
    names: list[str] = []
    for _, label in sorted(labels.items()) if len(labels) <= MAX_LABELS else ():
        if not isinstance(label, str | bool | float) and not (isinstance(label, int) and abs(label) < 2**63):
            names = []
            break
        names.append(reader.text(label if isinstance(label, str) else str(label), "id2label", MAX_LABEL) or "")
    is_named = any(name and not _PLACEHOLDER_LABEL.fullmatch(name) for name in names)
    return HeadFacts(
        architecture_class=architectures[0] if architectures else None,
        label_count=len(labels) if labels else next((count for count in counts if count is not None), None),
        label_names=tuple(names) if is_named else None,
        problem_type=reader.text(config.get("problem_type"), "problem_type"),
        model_type=reader.text(config.get("model_type"), "model_type"),
    )


def bounded_count(value: Any) -> int | None:
    """A plausible number of labels, or None."""
    return value if type(value) is int and 0 <= value <= MAX_LABEL_COUNT else None


def _label_index(value: Any) -> int | None:
    if isinstance(value, str) and len(value) <= 9 and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
