"""The adapters to train, from ``plan.toml``, as a family that ``scripts.family`` can make."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from scripts.family.plan import Adapter, Plan, Run, load_plan

PATH = Path(__file__).with_name("plan.toml")


class Row(NamedTuple):
    """What the adapters of one row of the table have in common; they differ in data set and seed."""

    rank: int
    targets: str
    rate: float


@dataclass(frozen=True)
class Study:
    """``plan``: the family. ``shared``: the row of each adapter whose seed others have, too."""

    plan: Plan
    shared: Mapping[str, Row]

    @property
    def runs(self) -> dict[str, Run]:
        """Every run by its id."""
        return {run.model: run for run in self.plan.runs}


def load_study(architecture: str) -> Study:
    """The study of one architecture. Raises ValueError if the plan has nothing for it."""
    text = PATH.read_text(encoding="utf-8")
    data = tomllib.loads(text)
    family = load_plan("full", architecture)
    accounts = sorted(set(family.authors) - {family.base.partition("/")[0]})

    def run(dataset: str, seed: int, rate: float, label: str, adapter: Adapter | None) -> Run:
        """By an account that the name decides, so that no account has only one seed or data set."""
        name = f"{dataset.partition('/')[2]}-{label}-{rate:g}-s{seed}"
        account = accounts[hashlib.sha256(name.encode()).digest()[0] % len(accounts)]
        return Run(
            f"{account}/tiny-{family.architecture_name}-{name}", dataset=dataset, seed=seed, learning_rate=rate,
            steps=data["steps"], batch=data["batch"], share=data["share"], adapter=adapter,
        )  # fmt: skip

    # For each rate and data set: adapters with all shared seeds, adapters with a seed of their own, full fine-tunes.
    runs: list[Run] = []
    shared: dict[str, Row] = {}
    for kind in ("shared", "own"):
        for row in data[kind]:
            if architecture not in row["architectures"]:
                continue
            for rate in row["rates"]:
                for place, dataset in enumerate(data["datasets"]):
                    for seed in data["seeds"] if kind == "shared" else [row["first_seed"] + place]:
                        targets = tuple(data["targets"][row["targets"]])
                        adapter = Adapter(row["rank"], 2 * row["rank"], targets, start=seed)
                        one = run(dataset, seed, rate, f"r{row['rank']}-{row['targets']}", adapter)
                        runs.append(one)
                        if kind == "shared":
                            shared[one.model] = Row(row["rank"], row["targets"], rate)
    runs += [
        run(dataset, row["seed"], rate, "full", None)
        for row in data["full"]
        if architecture in row["architectures"]
        for rate in row["rates"]
        for dataset in data["datasets"]
    ]
    if not shared:
        raise ValueError(f"{PATH.name} has no rows for {architecture!r}")
    plan = replace(
        family,
        size="adapters",
        text=replace(family.text, tokens=data["tokens"]),
        runs=tuple(runs),
        oddities=(),
        fingerprint=hashlib.sha256(f"{family.fingerprint} {text}".encode()).hexdigest(),
    )
    return Study(plan, shared)
