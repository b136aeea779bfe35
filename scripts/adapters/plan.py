"""The adapters to train, from ``plan.toml``, as a family that ``scripts.family`` can make."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scripts.family.plan import Adapter, Plan, Run, load_plan

PATH = Path(__file__).with_name("plan.toml")


@dataclass(frozen=True, order=True)
class Row:
    """What the adapters of one row of the table have in common; they differ in data set and seed."""

    rank: int
    targets: str
    rate: float


@dataclass(frozen=True)
class Study:
    """``plan``: the family. ``shared``: the row of each adapter with a shared seed. ``own``: those with another."""

    plan: Plan
    shared: Mapping[str, Row]
    own: frozenset[str]

    @property
    def runs(self) -> dict[str, Run]:
        """Every run by its id."""
        return {run.model: run for run in self.plan.runs}


def load_study(architecture: str) -> Study:
    """The study of one architecture. Raises ValueError where the plan has nothing for it."""
    text = PATH.read_text(encoding="utf-8")
    data = tomllib.loads(text)
    family = load_plan("full", architecture)
    shared = [(run, row) for kind in _of(data, "shared", architecture) for run, row in _adapters(data, kind, family)]
    own = [run for kind in _of(data, "own", architecture) for run, _ in _adapters(data, kind, family)]
    full = [run for kind in _of(data, "full", architecture) for run in _full(data, kind, family)]
    if not shared:
        raise ValueError(f"{PATH.name} has no rows for {architecture!r}")
    fingerprint = hashlib.sha256(f"{family.fingerprint} {text}".encode()).hexdigest()
    plan = replace(
        family,
        size="adapters",
        text=replace(family.text, tokens=data["tokens"]),
        runs=(*(run for run, _ in shared), *own, *full),
        oddities=(),
        fingerprint=fingerprint,
    )
    return Study(plan, {run.model: row for run, row in shared}, frozenset(run.model for run in own))


def _of(data: Mapping[str, Any], kind: str, architecture: str) -> list[dict[str, Any]]:
    return [row for row in data[kind] if architecture in row["architectures"]]


def _adapters(data: Mapping[str, Any], kind: Mapping[str, Any], family: Plan) -> Iterator[tuple[Run, Row]]:
    """One adapter for each rate, data set and seed; with ``first_seed``, one seed for each data set."""
    for rate in kind["rates"]:
        row = Row(kind["rank"], kind["targets"], rate)
        for place, dataset in enumerate(data["datasets"]):
            for seed in data["seeds"] if "first_seed" not in kind else [kind["first_seed"] + place]:
                adapter = Adapter(row.rank, 2 * row.rank, tuple(data["targets"][row.targets]), start=seed)
                name = f"{_short(dataset)}-r{row.rank}-{row.targets}-{rate:g}-s{seed}"
                yield _run(data, family, name, dataset, seed, rate, adapter), row


def _full(data: Mapping[str, Any], kind: Mapping[str, Any], family: Plan) -> Iterator[Run]:
    for rate in kind["rates"]:
        for dataset in data["datasets"]:
            name = f"{_short(dataset)}-full-{rate:g}-s{kind['seed']}"
            yield _run(data, family, name, dataset, kind["seed"], rate, None)


def _run(
    data: Mapping[str, Any], family: Plan, name: str, dataset: str, seed: int, rate: float, adapter: Adapter | None
) -> Run:
    """A run by an account that the name decides, so that no account has one seed or one data set."""
    accounts = sorted(set(family.authors) - {family.base.partition("/")[0]})
    account = accounts[hashlib.sha256(name.encode()).digest()[0] % len(accounts)]
    return Run(
        f"{account}/tiny-{family.architecture_name}-{name}",
        dataset=dataset,
        seed=seed,
        learning_rate=rate,
        steps=data["steps"],
        batch=data["batch"],
        share=data["share"],
        adapter=adapter,
    )


def _short(dataset: str) -> str:
    return dataset.partition("/")[2]
