"""Reads the facts about a model from a raw row of the Hub's listing, and its head from config.json.

Both are untrusted. A field that cannot be read becomes None or empty and is named in ``ModelFacts.oddities``; only a
row without the id of a model is refused. All strings are bounded, on one line, and without control characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal

from indexer.errors import Failed
from indexer.hub_ids import hub_address, is_hub_id
from indexer.sources.cards.datasets import (
    MAX_NAME,
    CanonicalDataset,
    alias_table,
    canonical_datasets,
    fold,
    is_known,
    is_placeholder,
)
from indexer.sources.cards.readme import SENTENCE
from indexer.untrusted import Reader, printable

_MAX_TAGS = 1_000
_MAX_DATASETS = 200
_MAX_BASES = 50
_MAX_LANGUAGES = 200
_MAX_TRIGGERS = 20
_MAX_ENTRIES = 20
_MAX_RESULTS = 1_000
_MAX_METRICS = 100
_MAX_EVALUATIONS = 2_000
_MAX_LABELS = 2_048
_MAX_SOURCE = 200  # characters
_MAX_LABEL = 100  # characters
_MAX_LABEL_COUNT = 10_000_000  # far more than any model has

_DATASET_KEYS = ("datasets", "dataset", "Datasets")
# The card's keys for what a prompt must hold: DreamBooth's of diffusers, and those of trainers on the Hub.
_TRIGGER_KEYS = ("instance_prompt", "trigger_words", "trigger_word", "trigger")
_NAME_KEYS = ("id", "name", "path", "type", "dataset")
# The number of examples in the prompt, as leaderboards write it behind a dataset: "HellaSwag (10-Shot)".
_SHOTS = re.compile(r"\b(?:\d{1,3}|zero|one|few)[ _-]?shots?\b")
_PLACEHOLDER_LABEL = re.compile(r"LABEL_\d+", re.IGNORECASE | re.ASCII)


# Where a dataset is named; "readme": in the sentence of the tool that tuned the model; "training": in the files that
# this tool wrote beside the weights, or in their header.
DatasetSource = Literal["tag", "card", "model-index", "readme", "training"]
Evaluated = tuple[str, tuple[CanonicalDataset, ...]]  # a dataset's raw name, and what it means


class MalformedRow(Failed):
    """A row without the id of a model."""

    def __init__(self, detail: str) -> None:
        super().__init__("malformed_row", detail)

    def __reduce__(self) -> Any:
        return type(self), (self.detail,)


@dataclass(frozen=True)
class Licence:
    """The licence that a card gives. The fields are columns of the database.

    ``licence``: identifiers of the Hub, joined by ", ". ``licence_name`` and ``licence_link``: of a licence for which
    the Hub has no identifier (``other``); a link is an address, or a file of the repository.
    """

    licence: str
    licence_name: str | None = None
    licence_link: str | None = None

    def __str__(self) -> str:
        return f"{self.licence} ({self.licence_name})" if self.licence_name else self.licence

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Licence | None:
        """From a row with these columns, or some of them; None without a licence. Raises ValueError for a number."""
        values = {name: row[name] for name in LICENCE_COLUMNS if row.get(name) is not None}
        if not all(isinstance(value, str) for value in values.values()):
            raise ValueError("a licence that is not text")
        return cls(**values) if values.get("licence") else None


LICENCE_COLUMNS = tuple(column.name for column in fields(Licence))


@dataclass(frozen=True)
class DatasetClaim:
    """A dataset that the model claims to be tuned on; ``dataset`` is None if ``raw`` is free text."""

    dataset: str | None
    raw: str
    source: DatasetSource
    parent: str | None = None


@dataclass(frozen=True)
class ReportedResult:
    """One metric on one dataset, as the card states it; ``verified`` if the Hub measured it itself."""

    task: str | None
    dataset: str | None
    dataset_raw: str | None
    config: str | None
    split: str | None
    metric: str | None
    value: float | None
    verified: bool


@dataclass(frozen=True)
class ModelFacts:
    """All facts in a row. ``bases``: ids of the models that it claims to come from.

    ``trigger_words``: what a prompt of an image or video model must hold, by the card.
    """

    id: str
    created: datetime | None
    modified: datetime | None
    downloads: int | None
    likes: int | None
    gated: str | None
    private: bool | None
    licence: Licence | None
    languages: tuple[str, ...]
    pipeline_tag: str | None
    library: str | None
    tags: tuple[str, ...]
    bases: tuple[str, ...]
    datasets: tuple[DatasetClaim, ...]
    evaluations: tuple[ReportedResult, ...]
    oddities: tuple[str, ...]
    trigger_words: tuple[str, ...] = ()

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
        strings = [printable(tag) for tag in reader.items(listed, "tags", _MAX_TAGS) if isinstance(tag, str)]
        if len(strings) < min(len(listed), _MAX_TAGS):
            reader.note("tags", "an item is not a string")
        tags = tuple(dict.fromkeys(strings))
    elif listed is not None:
        reader.note("tags", "not a list")
    # The Hub moves it out of the card, old rows have it there, and the Trainer once spelled it with "_".
    index = _first_value(row, "model-index", "model_index") or _first_value(card, "model-index", "model_index")
    evaluations, evaluated = _evaluations(index, reader)
    stated = row.get("gated")  # true, as in old listings, counts as "manual"
    gated = "manual" if stated is True else stated.lower() if isinstance(stated, str) else None
    if gated not in ("auto", "manual"):
        if stated is not None and stated is not False:
            reader.note("gated", "neither auto, manual nor false")
        gated = None
    languages: dict[str, None] = {}
    for item in reader.items(_first_value(card, "language", "languages"), "language", _MAX_LANGUAGES):
        # YAML reads the code of Norwegian, "no", as false.
        text = "no" if item is False else reader.text(item, "language")
        languages |= {part.strip().lower(): None for part in (text or "").split(",")}
    languages.pop("", None)
    stated_words = [text for key in _TRIGGER_KEYS for text in reader.texts(card.get(key), key, _MAX_TRIGGERS)]
    return ModelFacts(
        id=model_id,
        created=reader.moment(_first_value(row, "createdAt", "created_at"), "createdAt"),
        modified=reader.moment(_first_value(row, "lastModified", "last_modified"), "lastModified"),
        downloads=reader.count(row.get("downloads"), "downloads"),
        likes=reader.count(row.get("likes"), "likes"),
        gated=gated,
        private=reader.flag(row.get("private"), "private"),
        licence=_licence(tags, card, reader),
        languages=tuple(languages)[:_MAX_LANGUAGES],
        pipeline_tag=reader.text(_first_value(row, "pipeline_tag") or card.get("pipeline_tag"), "pipeline_tag"),
        library=reader.text(_first_value(row, "library_name") or card.get("library_name"), "library_name"),
        tags=tags,
        bases=_bases(tags, card, config, reader),
        datasets=_dataset_claims(tags, card, evaluated, row.get(SENTENCE), reader),
        evaluations=evaluations,
        oddities=reader.oddities,
        trigger_words=tuple(dict.fromkeys(text for text in stated_words if text))[:_MAX_TRIGGERS],
    )


def _licence(tags: Sequence[str], card: Mapping[str, Any], reader: Reader) -> Licence | None:
    names = reader.texts(card.get("license"), "license", 5)
    tagged = (reader.text(text, "license") for text in _after(tags, "license:"))
    if not (licence := ", ".join(names) or next((text for text in tagged if text), "")):
        return None
    texts = (reader.texts(card.get(key), key, 1) for key in ("license_name", "license_link"))
    name, link = (text[0] if text else None for text in texts)
    return Licence(licence, name, link)


def _after(tags: Sequence[str], prefix: str) -> Iterator[str]:
    # Control characters of the raw tag have become U+FFFD, which is removed from values.
    return (tag[len(prefix) :].replace("\ufffd", " ") for tag in tags if tag.startswith(prefix))


def _bases(tags: Sequence[str], card: Mapping[str, Any], config: Mapping[str, Any], reader: Reader) -> tuple[str, ...]:
    bases: dict[str, None] = {}
    stated: list[Any] = []
    for text in _after(tags, "base_model:"):
        kind, colon, rest = text.partition(":")  # a relation, or the scheme of an address
        stated.append(rest if colon and kind not in ("http", "https") else text)
    stated += reader.items(card.get("base_model"), "base_model", _MAX_BASES)
    adapter = config.get("peft")
    if isinstance(adapter, Mapping) and adapter.get("base_model_name_or_path"):
        stated.append(adapter["base_model_name_or_path"])
    for base in stated:
        if isinstance(base, Mapping):
            base = next((base[key] for key in _NAME_KEYS if isinstance(base.get(key), str)), None)
        written = reader.text(base, "base_model")
        identifier = written if written and is_hub_id(written) else hub_address(written or "", "models")
        if not identifier:
            reader.note("base_model", "not a Hub id")
        elif len(bases) < _MAX_BASES:
            bases[identifier] = None
    return tuple(bases)


def _dataset_claims(
    tags: Sequence[str],
    card: Mapping[str, Any],
    evaluated: Sequence[Evaluated],
    of_readme: Any,
    reader: Reader,
) -> tuple[DatasetClaim, ...]:
    claims: dict[DatasetClaim, None] = {}

    def claim(raw: str, datasets: tuple[CanonicalDataset, ...], source: DatasetSource) -> None:
        for dataset in datasets:
            claims[DatasetClaim(dataset.name, raw, source, dataset.parent)] = None
        if not datasets and not is_placeholder(raw):
            claims[DatasetClaim(None, raw, source)] = None

    for text in _after(tags, "dataset:"):
        raw = reader.text(text, "datasets")
        if raw:
            claim(raw, canonical_datasets(raw), "tag")
    for key in _DATASET_KEYS:
        for item in reader.items(card.get(key), "datasets", _MAX_DATASETS):
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
    for raw in reader.texts(of_readme, "readme", _MAX_DATASETS):
        claim(raw, canonical_datasets(raw), "readme")
    if len(claims) > _MAX_DATASETS:
        reader.note("datasets", f"cut to {_MAX_DATASETS} items")
    return tuple(claims)[:_MAX_DATASETS]


def claims_in_training(training: Mapping[str, Any]) -> tuple[DatasetClaim, ...]:
    """The datasets that the files beside the weights name: ``Training.to_dict``, which need not be ours.

    A file or folder of somebody's machine is a text, whatever it is called.
    """
    reader = Reader()
    files = set(reader.texts(training.get("data_files"), "training", _MAX_DATASETS))
    claims: dict[DatasetClaim, None] = {}
    for raw in reader.texts(training.get("datasets"), "training", _MAX_DATASETS):
        found = () if raw in files else canonical_datasets(raw)
        for dataset in found:
            claims[DatasetClaim(dataset.name, raw, "training", dataset.parent)] = None
        if not found:
            claims[DatasetClaim(None, raw, "training")] = None
    return tuple(claims)[:_MAX_DATASETS]


def _evaluations(index: Any, reader: Reader) -> tuple[tuple[ReportedResult, ...], tuple[Evaluated, ...]]:
    """The evaluations in a card's ``model-index``, and the datasets that indicate what the model was tuned on.

    The Trainer writes its validation results here, so a dataset in model-index is a claim on the training data, unless
    the result is that of a benchmark run on a finished model (``_is_benchmark``).
    """
    evaluations: list[ReportedResult] = []
    datasets: dict[Evaluated, None] = {}
    entries = (reader.mapping(entry, "model-index") for entry in reader.items(index, "model-index", _MAX_ENTRIES))
    found = (config for entry in entries for config in reader.items(entry.get("results"), "model-index", _MAX_RESULTS))
    for result in (reader.mapping(config, "model-index") for config in found):
        dataset = _first_object(result.get("dataset"))
        configs = [dataset.get(key) for key in ("config", "args")]
        configs = [
            _first_value(config, "config", "name", "task") if isinstance(config, Mapping) else config
            for config in configs
        ]
        written = next((config for config in configs if isinstance(config, str) and config.strip()), None)
        config = reader.text(written, "model-index")
        evaluated = _dataset_of(dataset, config, reader)
        # "metric" is the older spelling.
        metrics = reader.items(_first_value(result, "metrics", "metric"), "model-index", _MAX_METRICS)
        if evaluated and not _is_benchmark(result, dataset, evaluated, metrics):
            datasets[evaluated] = None
        if len(evaluations) >= _MAX_EVALUATIONS:
            reader.note("model-index", f"cut to {_MAX_EVALUATIONS} evaluations")
            break
        tasks = (reader.text(_first_object(result.get("task")).get(key), "model-index") for key in ("type", "name"))
        task = next(filter(None, tasks), None)
        split = reader.text(dataset.get("split"), "model-index")
        raw, means = evaluated or (None, ())
        is_verified = _is_verified(result)
        for metric in metrics:
            if not isinstance(metric, Mapping):
                reader.note("model-index", "a metric is not an object")
                continue
            names = (reader.text(metric.get(key), "model-index") for key in ("type", "name"))
            evaluations.append(
                ReportedResult(
                    task=task,
                    dataset=means[0].name if means else None,
                    dataset_raw=raw,
                    config=config,
                    split=split,
                    metric=next(filter(None, names), None),
                    value=reader.number(metric.get("value")),
                    verified=is_verified or _is_verified(metric),
                )
            )
    return tuple(dict.fromkeys(evaluations[:_MAX_EVALUATIONS])), tuple(datasets)


def _is_benchmark(
    result: Mapping[str, Any], dataset: Mapping[str, Any], evaluated: Evaluated, metrics: Sequence[Any]
) -> bool:
    """Whether a result says nothing of the training: it was measured on a finished model.

    So it is if the Hub's evaluator wrote all of its metrics, if its source is a leaderboard or a benchmark's program,
    if its task is one of the evaluators of sentence-transformers and its dataset the name of an evaluator, if its
    dataset was given with a number of shots, and if its dataset belongs to a benchmark or holds nothing to train on
    (``[evaluations]`` in the alias table).
    """
    marks = alias_table().evaluations
    objects = [metric for metric in metrics if isinstance(metric, Mapping)]
    if _is_verified(result) or (objects and all(_is_verified(metric) for metric in objects)):
        return True
    source = _first_object(result.get("source"))
    texts = [source[key][:_MAX_SOURCE] for key in ("name", "url", "type") if isinstance(source.get(key), str)]
    source_text = " ".join(texts).lower()
    if any(mark in source_text for mark in marks["sources"]):
        return True
    task = _first_object(result.get("task")).get("type")
    if isinstance(task, str) and task in marks["tasks"] and not is_known(evaluated[0]):
        return True
    args = dataset.get("args")
    if isinstance(args, Mapping) and not marks["arguments"].isdisjoint(key for key in args if isinstance(key, str)):
        return True
    for name in (dataset.get(key) for key in ("type", "name")):
        if not isinstance(name, str):
            continue
        folded = name[:MAX_NAME].lower()
        owner, slash, _ = folded.partition("/")
        if (slash and owner in marks["owners"]) or folded.startswith(tuple(marks["names"])) or _SHOTS.search(folded):
            return True
    return any(means.name in marks["datasets"] for means in evaluated[1])


def _is_verified(measured: Mapping[str, Any]) -> bool:
    """Whether the Hub's evaluator wrote this metric or result: it signs what it writes."""
    token = measured.get("verifyToken")
    return measured.get("verified") is True or (isinstance(token, str) and bool(token.strip()))


def _first_value(item: Mapping[str, Any], *keys: str) -> Any:
    """The first of ``keys`` that is there and not null; None without one."""
    return next((item[key] for key in keys if item.get(key) is not None), None)


def _first_object(value: Any) -> Mapping[str, Any]:
    """An object; a list of one and a bare name are accepted as well."""
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, str):
        return {"type": value}
    return value if isinstance(value, Mapping) else {}


def _dataset_of(dataset: Mapping[str, Any], config: str | None, reader: Reader) -> Evaluated | None:
    """The dataset of a result. ``type`` is the Hub id and ``name`` the pretty name; either may be a task or "None".

    The name is used if the type is not a dataset or the name alone is an id with an owner, and for the task if the type
    is a collection ({"type": "glue", "name": "GLUE MRPC"}).
    """
    written = [reader.text(dataset.get(key), "model-index") for key in ("type", "name")]
    read = [(raw, canonical_datasets(raw, config=config)) for raw in written if raw and not is_placeholder(raw)]
    named = [(raw, datasets) for raw, datasets in read if datasets]
    if not named:
        return read[-1] if read else None
    if len(named) == 2 and _has_owner(named[1][0]) and not _has_owner(named[0][0]):
        # Not where the name is a part of the type: {"type": "wikitext", "name": "wikitext/103"}.
        is_part = fold(named[1][0].partition("/")[0]) == fold(named[0][0])
        if not is_part:
            named.reverse()
    raw, datasets = named[0]
    if len(named) == 2 and len(datasets) == 1 and not datasets[0].parent:
        narrower = [other for other in named[1][1] if other.parent == datasets[0].name]
        return raw, tuple(narrower) or datasets
    return raw, datasets


def _has_owner(raw: str) -> bool:
    return "/" in raw and is_hub_id(raw)


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

    Labels are in the order of their indices; more than ``_MAX_LABELS`` are counted, but not kept.
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
    for _, label in sorted(labels.items()) if len(labels) <= _MAX_LABELS else ():
        if not isinstance(label, str | bool | float) and not (isinstance(label, int) and abs(label) < 2**63):
            names = []
            break
        names.append(reader.text(label if isinstance(label, str) else str(label), "id2label", _MAX_LABEL) or "")
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
    return value if type(value) is int and 0 <= value <= _MAX_LABEL_COUNT else None


def _label_index(value: Any) -> int | None:
    if isinstance(value, str) and len(value) <= 9 and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
