"""What the family is made of, as data: reads ``plan.toml`` and picks the part that a size asks for."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import platform
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

FOLDER = Path(__file__).parent
SIZES = ("mini", "small", "demo", "full")  # each holds the models of the one before it
PACKAGES_THAT_DECIDE = ("numpy", "peft", "safetensors", "scikit-learn", "scipy", "tokenizers", "torch", "transformers")
NAME = "NAME"  # stands for the architecture in ids
SEEDS_APART = 1000  # two trainings of one plan share no seed of a run

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Size:
    """How long everything is trained and how much text is read."""

    files: int  # of each package
    pretraining_steps: int
    steps: float  # share of a run's steps

    def scaled(self, share: float) -> Size:
        """The same with a share of the steps."""
        return replace(self, pretraining_steps=round(share * self.pretraining_steps), steps=share * self.steps)


@dataclass(frozen=True)
class Pretraining:
    """How the base model is trained, and on what: the texts of all data sets, or ``sources`` of other ``packages``."""

    batch: int
    learning_rate: float
    seed: int
    tokens: int
    sources: tuple[str, ...] = ()  # keys of text.READERS
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextSettings:
    """The vocabulary and how many tokens of a text are seen, <s> and </s> included."""

    vocabulary: int
    longest: int
    tokens: int


@dataclass(frozen=True)
class DataSet:
    """Texts of one source with one of their facts as the label."""

    name: str
    source: str  # a key of text.READERS or text.TABLES
    label: str
    labels: tuple[str, ...]
    about: str
    packages: tuple[str, ...] = ()
    task: str = "text-classification"


@dataclass(frozen=True)
class Author:
    """How an account writes its cards."""

    style: str  # a key of cards.BODIES
    license: str | None = None
    language: str | None = None


@dataclass(frozen=True)
class Expected:
    """What a build of the atlas with ``--discover names`` makes of a repository.

    ``found_by`` is the least that finds it (tags, names, descendants), where that is not obvious.
    """

    outcome: str = "indexed"  # indexed | skipped | failed | not listed
    reason: str | None = None
    flag: str | None = None  # copy | duplicate | unrelated
    why: str = ""
    found_by: str | None = None


@dataclass(frozen=True)
class Architecture:
    """A kind of network: its configuration and the names by which its parts are reached."""

    model_type: str
    objective: str  # a key of training.OBJECTIVES
    language_task: str  # the Hub's task name for its language model
    language_head: str  # module that turns hidden states into scores over the vocabulary
    layers: tuple[str, ...]  # of each stack, the path of its list of layers inside the parameter names
    modules: Mapping[str, str]  # family -> module name, as PEFT's target_modules wants it
    config: Mapping[str, Any]
    fan_in_fan_out: bool = False  # whether weights are stored (in, out)
    steps: float = 1.0  # share of all steps: a network that costs more learns from fewer
    expected: Mapping[str, Expected] = field(default_factory=dict)  # of full models for a task, where not indexed

    def is_in_layers(self, name: str, lowest: int | None = None) -> bool:
        """Whether a parameter belongs to a layer of a stack; to one of its ``lowest``, where that is given."""
        ends = [""] if lowest is None else [f"{number}." for number in range(lowest)]
        return any(f".{path}.{end}" in f".{name}" for path in self.layers for end in ends)


@dataclass(frozen=True)
class Adapter:
    """What PEFT's LoraConfig is given."""

    rank: int
    alpha: int
    targets: tuple[str, ...]  # families
    rslora: bool = False
    dora: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, int] = field(default_factory=dict)
    start: int | None = None  # seed set just before A is drawn, as many tools do; None: that of the run


@dataclass(frozen=True)
class Repository:
    """What every model of the family has."""

    model: str
    size: str = "demo"  # the smallest size that holds it
    claim: str = "card"  # how it says what it was tuned from: a key of cards.CLAIMS
    listing: Mapping[str, Any] = field(default_factory=dict)  # laid over repo.json
    card: str = "{}"  # JSON, laid over the card's front matter
    heading: str | None = None  # of the card, other than the name
    tags: tuple[str, ...] = ()  # besides those that follow from the card
    expected: Expected = field(default_factory=Expected)

    @property
    def author(self) -> str:
        """The account."""
        return self.model.partition("/")[0]

    @property
    def name(self) -> str:
        """The id without its account."""
        return self.model.partition("/")[2]


@dataclass(frozen=True)
class Run(Repository):
    """One real training run."""

    dataset: str = ""
    seed: int = 0
    learning_rate: float = 3e-4
    steps: int = 80
    batch: int = 16
    share: float = 0.8  # of the training texts
    tokens: int | None = None  # of a text, other than the plan's
    task: str | None = None  # other than the data set's own
    saved: str = "float32"  # a key of training.FORMATS
    parent: str | None = None  # tuned from this fine-tune instead of the base
    frozen: int = 0  # number of the lowest layers that, with the embeddings, are not trained
    scratch: bool = False
    says_dataset: bool = True
    converted: bool = False  # the Hub's bot offers its .bin as safetensors in a pull request
    adapter: Adapter | None = None


@dataclass(frozen=True)
class Oddity(Repository):
    """A repository that is made without training, mostly from another one."""

    make: str = ""  # a key of oddities.MAKERS
    of: str | None = None  # another repository; the base, where none is named
    dataset: str | None = None  # that the card names
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """One size of the family with one architecture."""

    size: str
    architecture_name: str
    settings: Size
    architecture: Architecture
    text: TextSettings
    pretraining: Pretraining
    base: str
    old_id: str
    datasets: Mapping[str, DataSet]
    authors: Mapping[str, Author]
    runs: tuple[Run, ...]
    oddities: tuple[Oddity, ...]
    fingerprint: str

    @property
    def repositories(self) -> tuple[Repository, ...]:
        """Runs and oddities in the order in which they were uploaded."""
        return (*self.runs, *self.oddities)


def load_plan(size: str, architecture: str = "roberta", training_seed: int = 0) -> Plan:
    """The plan of one size.

    ``training_seed``: 0 is the plan as written; another number moves every seed in it, so that the same models are
    trained a second time. Runs that share a seed still do.

    Raises:
        ValueError: an unknown size, architecture or key; the message names it.
    """
    path = FOLDER / "plan.toml"
    text = path.read_text(encoding="utf-8").replace(NAME, architecture)
    data = tomllib.loads(text)
    if size not in SIZES:
        raise ValueError(f"no size {size!r}; there are {', '.join(SIZES)}")
    if architecture not in data["architectures"]:
        raise ValueError(f"no architecture {architecture!r}; there are {', '.join(data['architectures'])}")
    wanted = SIZES[: SIZES.index(size) + 1]
    network = read_architecture(data["architectures"][architecture])
    settings = read_entry(Size, data["sizes"][size]).scaled(network.steps)
    datasets = {row["name"]: read_entry(DataSet, row) for row in data["datasets"]}
    read = (read_run(row, network, datasets) for row in data["runs"])
    runs = tuple(trained_again(run, training_seed) for run in read if run.size in wanted)
    pretraining = read_entry(Pretraining, data["pretraining"])
    used = {run.dataset for run in runs}
    return Plan(
        size=size,
        architecture_name=architecture,
        settings=settings,
        architecture=network,
        text=read_entry(TextSettings, data["text"]),
        pretraining=replace(pretraining, seed=pretraining.seed + SEEDS_APART * training_seed),
        base=data["base"],
        old_id=data["old_id"],
        datasets={name: dataset for name, dataset in datasets.items() if name in used},
        authors={name: read_entry(Author, row) for name, row in data["authors"].items()},
        runs=runs,
        oddities=tuple(oddity for oddity in (read_oddity(row) for row in data["oddities"]) if oddity.size in wanted),
        fingerprint=fingerprint(size, architecture, data, training_seed),
    )


def trained_again(run: Run, training_seed: int) -> Run:
    """A run with the seeds of another training; see ``load_plan``."""
    moved = SEEDS_APART * training_seed
    adapter = run.adapter
    if adapter is not None and adapter.start is not None:
        adapter = replace(adapter, start=adapter.start + moved)
    return replace(run, seed=run.seed + moved, adapter=adapter)


def read_architecture(row: dict[str, Any]) -> Architecture:
    """One table of ``architectures``."""
    expected = {task: read_entry(Expected, entry) for task, entry in row.get("expected", {}).items()}
    return read_entry(Architecture, row | {"expected": expected})


def read_run(row: dict[str, Any], architecture: Architecture, datasets: Mapping[str, DataSet]) -> Run:
    """One row of ``runs``; what is expected of it is in the same row, unless the architecture decides it."""
    row, expected = split_expected(row)
    if "adapter" in row:
        row["adapter"] = read_entry(Adapter, row["adapter"])
    run = read_entry(Run, row | {"expected": expected})
    decided = architecture.expected.get(run.task or datasets[run.dataset].task)
    if run.adapter or decided is None:
        return run
    return replace(run, expected=replace(decided, found_by=expected.found_by))


def read_oddity(row: dict[str, Any]) -> Oddity:
    """One row of ``oddities``."""
    row, expected = split_expected(row)
    return read_entry(Oddity, row | {"expected": expected})


def split_expected(row: dict[str, Any]) -> tuple[dict[str, Any], Expected]:
    """Separate ``outcome``, ``reason``, ``flag`` and ``why`` from the rest."""
    names = {entry.name for entry in fields(Expected)}
    expected = read_entry(Expected, {key: value for key, value in row.items() if key in names})
    return {key: value for key, value in row.items() if key not in names}, expected


def read_entry(kind: type[Entry], row: Mapping[str, Any]) -> Entry:
    """A dataclass from a table; lists become tuples. Raises ValueError on a key it does not have."""
    unknown = set(row) - {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    if unknown:
        raise ValueError(f"plan.toml: {kind.__name__} has no {', '.join(sorted(unknown))}")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()})


def fingerprint(size: str, architecture: str, data: Mapping[str, Any], training_seed: int = 0) -> str:
    """Changes with what this package and the plan say, comments apart, and with the versions it depends on.

    Of the plan's sizes and architectures only the one that is asked for counts.
    """
    digest = hashlib.sha256(f"{size} {architecture} {platform.python_version()} {training_seed}".encode())
    for path in sorted(FOLDER.glob("*.py")):
        digest.update(ast.dump(ast.parse(path.read_bytes())).encode())
    chosen = {"sizes": data["sizes"][size], "architectures": data["architectures"][architecture]}
    digest.update(json.dumps({**data, **chosen}).encode())
    versions = {package: version_of(package) for package in PACKAGES_THAT_DECIDE}
    digest.update(json.dumps(versions, sort_keys=True).encode())
    return digest.hexdigest()


def version_of(package: str) -> str:
    """The installed version, "" where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
