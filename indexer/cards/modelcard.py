"""Reads the facts about a model from a raw row of the Hub's listing.

A row is untrusted. A field that cannot be read becomes None or empty and is named in ``ModelFacts.oddities``; only a
row without the id of a model is refused. All strings are bounded, on one line, and without control characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from indexer.cards.datasets import MAX_NAME, CanonicalDataset, canonical_datasets, is_known, is_placeholder
from indexer.cards.evaluations import ReportedResult, read_evaluations
from indexer.cards.head import HeadFacts, head_facts
from indexer.cards.readme import card_facts, trainer_sentence
from indexer.errors import Failed
from indexer.names import RELATIONS, author_of, is_hub_id
from indexer.untrusted import COMMIT, Reader, hub_address, printable

__all__ = [
    "BaseClaim",
    "DatasetClaim",
    "HeadFacts",
    "MalformedRow",
    "ModelFacts",
    "ReportedResult",
    "card_facts",
    "head_facts",
    "read_row",
    "trainer_sentence",
]

MAX_TAGS = 1_000
MAX_SIBLINGS = 10_000
MAX_DATASETS = 200
MAX_BASES = 50
MAX_LANGUAGES = 200

_OUTSIDE = re.compile(r"^/|\\|(^|/)\.\.(/|$)")  # paths that lead out of the repository
_DATASET_KEYS = ("datasets", "dataset", "Datasets")
_NAME_KEYS = ("id", "name", "path", "type", "dataset")


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
    tags = _tags(row.get("tags"), reader)
    # The Hub moves it out of the card, old rows have it there, and the Trainer once spelled it with "_".
    index = _either(row, "model-index", "model_index") or _either(card, "model-index", "model_index")
    evaluations, evaluated = read_evaluations(index, reader)
    commit = row.get("sha")
    commit = commit.lower() if isinstance(commit, str) and COMMIT.fullmatch(commit.lower()) else None
    if commit is None and row.get("sha") is not None:
        reader.note("sha", "not 40 hex digits")
    licenses = reader.texts(card.get("license"), "license", 5)
    tagged = (reader.text(text, "license") for text in _after(tags, "license:"))
    return ModelFacts(
        id=model_id,
        author=author_of(model_id) or reader.text(row.get("author"), "author") or "",
        commit=commit,
        created=reader.moment(_either(row, "createdAt", "created_at"), "createdAt"),
        modified=reader.moment(_either(row, "lastModified", "last_modified"), "lastModified"),
        downloads=reader.count(row.get("downloads"), "downloads"),
        likes=reader.count(row.get("likes"), "likes"),
        gated=_gated(row.get("gated"), reader),
        private=reader.flag(row.get("private"), "private"),
        disabled=reader.flag(row.get("disabled"), "disabled"),
        license=", ".join(licenses) or next((text for text in tagged if text), None),
        languages=_languages(card, reader),
        pipeline_tag=reader.text(_either(row, "pipeline_tag") or card.get("pipeline_tag"), "pipeline_tag"),
        library=reader.text(_either(row, "library_name") or card.get("library_name"), "library_name"),
        model_type=reader.text(config.get("model_type"), "model_type"),
        architectures=reader.texts(config.get("architectures"), "architectures", 10),
        tags=tags,
        base_claims=_base_claims(tags, card, config, reader),
        datasets=_dataset_claims(tags, card, evaluated, reader),
        evaluations=evaluations,
        siblings=_siblings(row.get("siblings"), reader),
        oddities=reader.oddities,
    )


def _either(row: Mapping[str, Any], *keys: str) -> Any:
    return next((row[key] for key in keys if row.get(key) is not None), None)


def _tags(value: Any, reader: Reader) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        if value is not None:
            reader.note("tags", "not a list")
        return ()
    kept = [printable(tag) for tag in reader.items(value, "tags", MAX_TAGS) if isinstance(tag, str)]
    if len(kept) < min(len(value), MAX_TAGS):
        reader.note("tags", "an item is not a string")
    return tuple(dict.fromkeys(kept))


def _after(tags: Sequence[str], prefix: str) -> Iterator[str]:
    # Control characters of the raw tag have become U+FFFD, which is removed from values.
    return (tag[len(prefix) :].replace("\ufffd", " ") for tag in tags if tag.startswith(prefix))


def _gated(value: Any, reader: Reader) -> str | None:
    """Either "auto" or "manual"; True, as in old listings, counts as "manual"."""
    if value is None or value is False:
        return None
    found = "manual" if value is True else value.lower() if isinstance(value, str) else ""
    if found in ("auto", "manual"):
        return found
    reader.note("gated", "neither auto, manual nor false")
    return None


def _languages(card: Mapping[str, Any], reader: Reader) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for item in reader.items(_either(card, "language", "languages"), "language", MAX_LANGUAGES):
        # YAML reads the code of Norwegian, "no", as false.
        text = "no" if item is False else reader.text(item, "language")
        found |= {part.strip().lower(): None for part in (text or "").split(",")}
    found.pop("", None)
    return tuple(found)[:MAX_LANGUAGES]


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
            for raw in _names_in(item, reader):
                claim(raw, canonical_datasets(raw), "card")
    for raw, found in evaluated:
        claim(raw, found, "model-index")
    if len(claims) > MAX_DATASETS:
        reader.note("datasets", f"cut to {MAX_DATASETS} items")
    return tuple(claims)[:MAX_DATASETS]


def _names_in(item: Any, reader: Reader) -> list[str]:
    """The datasets in one item of ``datasets:``: a string, {"name": …}, or {"common_voice": "fi"}."""
    if not isinstance(item, Mapping):
        text = reader.text(item, "datasets")
        return [text] if text else []
    named = [item[key] for key in _NAME_KEYS if isinstance(item.get(key), str)][:1]
    named = named or [key for key in list(item)[:5] if isinstance(key, str) and is_known(key[:MAX_NAME])]
    if not named:
        reader.note("datasets", "an object that names none")
    return [text for text in (reader.text(name, "datasets") for name in named) if text]


def _siblings(value: Any, reader: Reader) -> tuple[str, ...]:
    """File names inside the repository; others are left out."""
    names: dict[str, None] = {}
    for item in reader.items(value, "siblings", MAX_SIBLINGS):
        name = item.get("rfilename") if isinstance(item, Mapping) else item
        if isinstance(name, str) and 0 < len(name) <= 1_000 and name.isprintable() and not _OUTSIDE.search(name):
            names[name] = None
        else:
            reader.note("siblings", "a name that cannot be a file of the repository")
    return tuple(names)
