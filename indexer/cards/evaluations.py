"""``model-index``: the results in a model card, and the datasets they were measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from indexer.cards.datasets import CanonicalDataset, alias_table, canonical_datasets, is_placeholder
from indexer.untrusted import Reader

MAX_ENTRIES = 20
MAX_RESULTS = 1_000
MAX_METRICS = 100
MAX_EVALUATIONS = 2_000

Evaluated = tuple[str, tuple[CanonicalDataset, ...]]  # a dataset's raw name, and what it means


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


def read_evaluations(index: Any, reader: Reader) -> tuple[tuple[ReportedResult, ...], tuple[Evaluated, ...]]:
    """The evaluations in a card's ``model-index``, and the datasets that indicate what the model was tuned on.

    The Trainer writes its validation results here, so a dataset in model-index is a claim on the training data,
    except for benchmarks that are run on finished models (``[evaluations]`` in the alias table: MTEB, leaderboards).
    """
    evaluations: list[ReportedResult] = []
    datasets: dict[Evaluated, None] = {}
    entries = (reader.mapping(entry, "model-index") for entry in reader.items(index, "model-index", MAX_ENTRIES))
    found = (one for entry in entries for one in reader.items(entry.get("results"), "model-index", MAX_RESULTS))
    for result in (reader.mapping(one, "model-index") for one in found):
        dataset = _first_object(result.get("dataset"))
        configs = [dataset.get(key) for key in ("config", "args")]
        configs = [first_value(one, "config", "name", "task") if isinstance(one, Mapping) else one for one in configs]
        written = next((one for one in configs if isinstance(one, str) and one.strip()), None)
        config = reader.text(written, "model-index")
        evaluated = _dataset_of(dataset, config, reader)
        if evaluated:
            marks = alias_table().evaluations
            name, source = dataset.get("name"), _first_object(result.get("source"))
            said = " ".join(source[key][:200] for key in ("name", "url") if isinstance(source.get(key), str)).lower()
            is_benchmark = (
                evaluated[0].partition("/")[0].lower() in marks["owners"]
                or (isinstance(name, str) and name.startswith(marks["names"]))
                or any(mark in said for mark in marks["sources"])
            )
            if not is_benchmark:
                datasets[evaluated] = None
        if len(evaluations) >= MAX_EVALUATIONS:
            reader.note("model-index", f"cut to {MAX_EVALUATIONS} evaluations")
            break
        tasks = (reader.text(_first_object(result.get("task")).get(key), "model-index") for key in ("type", "name"))
        task = next(filter(None, tasks), None)
        split = reader.text(dataset.get("split"), "model-index")
        raw, means = evaluated or (None, ())
        # "metric" is the older spelling.
        for metric in reader.items(first_value(result, "metrics", "metric"), "model-index", MAX_METRICS):
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
                    verified=metric.get("verified") is True or result.get("verified") is True,
                )
            )
    return tuple(dict.fromkeys(evaluations[:MAX_EVALUATIONS])), tuple(datasets)


def first_value(item: Mapping[str, Any], *keys: str) -> Any:
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

    The name is used if the type is not a dataset, and for the task if the type is a collection ({"type": "glue",
    "name": "GLUE MRPC"}).
    """
    written = [reader.text(dataset.get(key), "model-index") for key in ("type", "name")]
    read = [(raw, canonical_datasets(raw, config=config)) for raw in written if raw and not is_placeholder(raw)]
    named = [(raw, found) for raw, found in read if found]
    if not named:
        return read[-1] if read else None
    raw, found = named[0]
    if len(named) == 2 and len(found) == 1 and not found[0].subtask:
        narrower = [other for other in named[1][1] if other.parent == found[0].name]
        return raw, tuple(narrower) or found
    return raw, found
