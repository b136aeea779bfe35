"""The family that the parts share: a base that never read the data sets, fine-tuned at usual rates.

``plan.toml`` says what is trained; ``scripts.family`` trains it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from indexer.names import READS
from scripts.arena.pretrained import pretrained_plan
from scripts.child import PROJECT
from scripts.family.family import build
from scripts.family.plan import Adapter, DataSet, Plan, Run, load_plan
from scripts.loopback_hub import LoopbackHub
from scripts.terminal import CommandFailed, Terminal

PATH, PATH_OF_REAL = (Path(__file__).with_name(f"{name}.toml") for name in ("plan", "plan_minilm"))
LABELS = ("class", "function", "method")


@dataclass(frozen=True)
class ArenaFamily:
    """A trained family with its atlases.

    Attributes:
        plan: base, data sets and runs.
        domains: the domain of each data set.
        models: the folder that a loopback Hub serves.
        atlas: of samples of the models' rows, as `index build` reads them by default.
        full_atlas: of all rows.
    """

    plan: Plan
    domains: Mapping[str, str]
    models: Path
    atlas: Path
    full_atlas: Path

    @cached_property
    def datasets(self) -> dict[str, str]:
        """The data set of every model."""
        return {run.model: run.dataset for run in self.plan.runs}


def load_arena_plan() -> tuple[Plan, dict[str, str]]:
    """What is trained, and the domain of each data set."""
    text = PATH.read_text(encoding="utf-8")
    data = tomllib.loads(text)
    family = load_plan("full", data["architecture"])
    pretraining: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data["pretraining"].items()
    }
    steps = pretraining.pop("steps")
    domains = {_dataset(domain, package): domain for domain, found in data["domains"].items() for package in found}
    styles = list(family.authors.values())
    plan = replace(
        family,
        size="arena",
        settings=replace(family.settings, files=data["files"], pretraining_steps=steps, steps=1.0),
        architecture=replace(
            family.architecture, objective=data["objective"], config={**family.architecture.config, **data["config"]}
        ),
        pretraining=replace(family.pretraining, **pretraining),
        base=f"arena/tiny-{family.architecture_name}",
        old_id=f"arena-tiny-{family.architecture_name}",
        authors={name: styles[place % len(styles)] for place, name in enumerate(["arena", *data["accounts"]])},
        oddities=(),
        fingerprint=hashlib.sha256(f"{family.fingerprint} {text}".encode()).hexdigest(),
    )
    return _with_runs(plan, data), domains


def load_real_plan(source: Path) -> Plan:
    """The same for the real pretrained network in a folder, with fewer and shorter runs."""
    text = PATH_OF_REAL.read_text(encoding="utf-8")
    data = tomllib.loads(text)
    family = pretrained_plan(source)
    styles = list(family.authors.values())
    plan = replace(
        family,
        size="arena",
        settings=replace(family.settings, files=data["files"], steps=1.0),
        authors={
            **family.authors,
            **{name: styles[place % len(styles)] for place, name in enumerate(data["accounts"])},
        },
        oddities=(),
        fingerprint=hashlib.sha256(f"{family.fingerprint} {text}".encode()).hexdigest(),
    )
    return _with_runs(plan, data)


def _dataset(domain: str, package: str) -> str:
    return f"{domain}/{package.strip('_')}"


def _with_runs(plan: Plan, data: Mapping[str, Any]) -> Plan:
    """The plan with data sets of docstrings, full fine-tunes and adapters.

    Habits are dealt out in turn, so that none goes with a data set.
    """
    accounts, settings, adapters = data["accounts"], data["runs"], data["adapters"]
    datasets: dict[str, DataSet] = {}
    found = []

    def turn(values: list[Any], number: int) -> Any:
        return values[number % len(values)]

    packages = [(domain, package) for domain, packages in data["domains"].items() for package in packages]
    for place, (domain, package) in enumerate(packages):
        dataset = _dataset(domain, package)
        text = f"Docstrings of {package}, labelled with what they document."
        datasets[dataset] = DataSet(dataset, "docstrings", "kind", LABELS, text, (package,))
        kinds: list[Adapter | None] = [None] * settings["copies"]
        if package in adapters["datasets"]:
            kinds.append(Adapter(adapters["rank"], 2 * adapters["rank"], tuple(adapters["targets"])))
        for copy, adapter in enumerate(kinds):
            # The steps through the accounts differ, so that few accounts share more than one data set.
            account = turn(accounts, place + copy * (1 + place // len(accounts)))
            rates = adapters["rates"] if adapter else settings["rates"]
            name = f"{dataset.partition('/')[2].lower()}-{'lora' if adapter else copy + 1}"
            found.append(
                Run(
                    f"{account}/{plan.base.partition('/')[2]}-{name}",
                    dataset=dataset,
                    seed=1000 + 10 * place + copy,
                    learning_rate=turn(rates, place + copy + place // len(rates)),
                    steps=adapters["steps"] if adapter else turn(settings["steps"], place + copy + place // 3),
                    batch=turn(settings["batches"], place // 2 + copy),
                    share=turn(settings["shares"], place + 3 * copy),
                    tokens=turn(settings["tokens"], place // 4 + copy),
                    adapter=adapter,
                )
            )
    return replace(plan, datasets=datasets, runs=tuple(found))


def build_family(out: Path) -> ArenaFamily:
    """Train the family below ``out/family`` and build its two atlases, unless they are there.

    Raises:
        AtlasError: the folder holds something else, or a package whose text is needed is missing.
        CommandFailed: `index build` failed.
    """
    plan, domains = load_arena_plan()
    folder = out / "family"
    models = folder / "models"
    build(models, plan)
    atlases = read_twice(plan, models, folder)
    return ArenaFamily(plan, domains, models, atlases["sample"], atlases["full"])


def read_twice(plan: Plan, models: Path, folder: Path, reads: Sequence[str] = READS) -> dict[str, Path]:
    """The atlases of samples and of all rows, below ``folder``, built unless they are there. Raises CommandFailed."""
    atlases = {}
    with LoopbackHub(models) as hub:
        for read in reads:
            (folder / read).mkdir(parents=True, exist_ok=True)
            run = Terminal.of_hub(folder / read, hub.endpoint)
            atlases[read] = folder / read / "atlas"
            marker = folder / read / plan.fingerprint
            if not marker.exists():
                run(f"index build --base {plan.base} --discover names --read {read}")
                marker.touch()
    return atlases


def in_process(terminal: Terminal, kept: Path, module: str, *arguments: str) -> Any:
    """The JSON that ``python -m MODULE ARGUMENTS`` prints with the terminal's Hub and caches.

    It is kept in the file ``kept``, from where it is read if a part is run again; remove the file to ask again. Raises
    CommandFailed.
    """
    if not kept.exists():
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(
            command, cwd=PROJECT, env=terminal.environment, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            raise CommandFailed(f"python -m {module}", done.returncode)
        kept.write_text(done.stdout, encoding="utf-8")
    return json.loads(kept.read_text(encoding="utf-8"))
