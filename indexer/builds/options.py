"""The options of builds and profiles: each described once, as a caller writes it, and checked.

Command lines, signatures and docstrings are made from these classes (``indexer.console.options``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from indexer.console.advice import option_of
from indexer.console.option import Option
from indexer.console.options import Options
from indexer.errors import BadArgument, Call, Text, require
from indexer.names import (
    CONNECTIONS,
    DEFAULT_RELATIONS,
    DISCOVERIES,
    EXECUTORS,
    MOST_QUESTIONS,
    MOST_STEPS,
    READS,
    RELATIONS,
    SORTS,
)
from indexer.sources.registry import listed_reference, listing_source
from indexer.untrusted import printable

if TYPE_CHECKING:
    from indexer.profiles.measurement import ProfileRequest
    from indexer.profiles.probes import ProbeChoice
    from indexer.sources.source import Source

Size = str | int | None
ProbeName = Literal["random", "text", "image"]
Recipe = Literal["default", "original"]
Checkpoints = Literal["last", "all"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]i?)?b?", re.IGNORECASE | re.ASCII)

# fmt: off
SvdDevice = Annotated[str, Option("Device of the SVD: cpu, cuda, cuda:1 …")]
VectorLength = Annotated[int | None, Option(
    "About how many numbers a vector has, divided among the matrices. Default: 8,208, fewer for small bases.",
    least=1, most=1 << 20, metavar="N")]
Limit = Annotated[int | None, Option("Only the first N of them, most downloads first.", least=1)]


@dataclass(frozen=True, kw_only=True)
class RecordOptions(Options):
    """How a model is read. Once made, ``read`` is sample or full, and ``same_as`` a tuple of Hub ids."""

    read: Annotated[str | None, Option(
        "sample: some rows of every matrix, a thirtieth of the bytes or less. full: all of them. Default: sample; "
        "full with `spectra`.", choices=READS)] = None
    rank: Annotated[int, Option("Singular triplets kept of each matrix.", 1, 256)] = 8
    spectra: Annotated[bool, Option(
        "Also keep all singular values of δW and W, for `query rank`; models without them are read again.")] = False
    keep_factors: Annotated[bool, Option("Keep only vectors and norms, to save disk space.")] = True
    device: SvdDevice = "cpu"
    same_as: Annotated[str | Sequence[str], Option(
        "Another id under which the base's weights are on the Hub. May be given several times.", metavar="ID",
        is_repeated=True)] = ()
    vector_length: VectorLength = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.read == "sample" and self.spectra:
            raise BadArgument(
                Text("`spectra` needs all rows of every matrix, and ", Call(read="sample"), " reads some."), ""
            )
        ids = (self.same_as,) if isinstance(self.same_as, str) else self.same_as or ()
        mirrors = {name: listed_reference(name.strip()) for name in ids}
        if wrong := [name for name, reference in mirrors.items() if reference is None or reference.revision]:
            raise BadArgument(f"`same_as` {wrong[0][:100]!r} is not a Hub id.", "Give owner/name.")
        self._set(
            read=self.read or ("full" if self.spectra else "sample"),
            same_as=tuple(dict.fromkeys(reference.id for reference in mirrors.values() if reference)),
        )


@dataclass(frozen=True, kw_only=True)
class SelectionOptions(Options):
    """Which models are listed and read. Once made, ``since`` is a moment."""

    limit: Annotated[int | None, Option("Only the first N models of the listing.", least=1)] = None
    sort: Annotated[str, Option("Which models come first.", choices=SORTS)] = "downloads"
    relation: Annotated[str, Option(
        "Any of finetune, adapter, merge, quantized, separated by commas. Unless others than the default are named, "
        "quantized too of the models in folders and at addresses.")] = ",".join(DEFAULT_RELATIONS)
    discover: Annotated[str, Option(
        "names: also find untagged fine-tunes by card, config and name. weights: also find them by comparing some rows "
        "of models of the base's type and size with the base's.", choices=DISCOVERIES)] = "tags"
    max_candidates: Annotated[int | None, Option(
        "Untagged models to examine in one run. Default: 5,000 by name, 1,000 by weights.", least=1, metavar="N")
    ] = None
    descendants: Annotated[bool, Option(
        "Also list models made from the base's fine-tunes and merges, or only those made from the base itself.",
        flag="--descendants/--no-descendants")] = True
    depth: Annotated[int, Option("Maximum number of steps from the base to a model.", 1, 20)] = MOST_STEPS
    questions: Annotated[int, Option(
        "Maximum number of models whose own fine-tunes are looked up, at one API call or more each.", 1, 100_000)
    ] = MOST_QUESTIONS
    since: Annotated[str | date | None, Option(
        "Only models created on or after this day (2024-01-31).", metavar="DATE")] = None
    author: Annotated[str | None, Option("Only this author's models.")] = None
    where: Annotated[str | None, Option(
        "Only models that match this condition on the columns of fine_tunes that are known before reading (author, "
        "created, licence, languages, library …), datasets and tags.", metavar="SQL")] = None
    checkpoints: Annotated[Checkpoints, Option(
        "Of the checkpoints of one training run, in one folder: only the last, or all.")] = "last"
    retry_failed: Annotated[bool, Option(
        "Try every failed model again now, however recent the failure.")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        relations = dict.fromkeys(part.strip() for part in self.relation.split(","))
        if unknown := [relation for relation in relations if relation not in RELATIONS]:
            raise BadArgument(f"`relation` {unknown[0]!r} is not one of {', '.join(RELATIONS)}.", "")
        self._set(relation=",".join(relations), since=_moment(self.since))

    @property
    def relations(self) -> tuple[str, ...]:
        """The relations that ``relation`` names."""
        return tuple(self.relation.split(","))

    @property
    def relations_of_places(self) -> tuple[str, ...]:
        """The same for models of a place that a person named: all of them by default."""
        return RELATIONS if set(self.relations) == set(DEFAULT_RELATIONS) else self.relations

    @property
    def created_since(self) -> datetime | None:
        """``since`` as a moment with its time zone."""
        assert self.since is None or isinstance(self.since, datetime)
        return self.since


@dataclass(frozen=True, kw_only=True)
class ResourceOptions(Options):
    """What a build may use. Once made, ``memory`` and ``bandwidth`` are numbers of bytes."""

    workers: Annotated[int | None, Option(
        "Number of processes. Default: one per processor, two to read samples.", least=1, most=256)] = None
    connections: Annotated[int, Option(
        "Number of connections to the Hub for all workers together.", 1, 64)] = CONNECTIONS
    memory: Annotated[Size, Option(
        "Memory limit for all workers together, e.g. 2G. Default: half of the free memory. "
        "Publishing needs more: 1.5 GB for 10,000 new models.", metavar="SIZE")] = None
    bandwidth: Annotated[Size, Option(
        "Limit in bytes per second for all workers together, e.g. 20M.", metavar="SIZE")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(memory=bytes_of("memory", self.memory), bandwidth=bytes_of("bandwidth", self.bandwidth))

    @property
    def memory_bytes(self) -> int | None:
        """``memory`` in bytes."""
        return bytes_of("memory", self.memory)

    @property
    def bytes_per_second(self) -> int | None:
        """``bandwidth`` in bytes."""
        return bytes_of("bandwidth", self.bandwidth)


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions(Options):
    """Where the workers of a build run."""

    executor: Annotated[str, Option(
        "Run on processes of this machine, or on a Dask cluster.", choices=EXECUTORS)] = "local"
    scheduler: Annotated[str | None, Option(
        "Address of the Dask scheduler, e.g. tcp://10.0.0.1:8786.", metavar="ADDR")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.executor == "dask") != (self.scheduler is not None):
            raise BadArgument(
                Text(Call(executor="dask"), " and ", Call(scheduler="ADDR"), " must be given together."), ""
            )


@dataclass(frozen=True, kw_only=True)
class StorageOptions(Options):
    """How addresses are opened. Once made, ``storage_options`` is a tuple."""

    storage_options: Annotated[str | Sequence[str], Option(
        "An option of fsspec for the addresses. May be given several times.", metavar="KEY=VALUE",
        flag="--storage-option", is_repeated=True)] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        words = (self.storage_options,) if isinstance(self.storage_options, str) else self.storage_options or ()
        self._set(storage_options=tuple(words))
        _ = self.file_system_options  # raises

    @cached_property
    def file_system_options(self) -> dict[str, Any]:
        """``storage_options`` as arguments of a file system of fsspec; a value may be JSON. Raises BadArgument."""
        options: dict[str, Any] = {}
        for word in self.storage_options:
            name, equals, value = word.partition("=")
            if not equals or not name.isidentifier():
                raise BadArgument(
                    f"`storage_options`: {printable(name, 60)!r} is not of the form KEY=VALUE.",
                    "For example: endpoint_url=http://localhost:9000",
                )
            try:
                options[name] = json.loads(value)
            except ValueError:
                options[name] = value
        return options


@dataclass(frozen=True, kw_only=True)
class SourceOptions(StorageOptions):
    """Where models are looked for. Once made, ``sources`` is a tuple of addresses and paths."""

    sources: Annotated[str | Path | Sequence[str | Path], Option(
        "Read models from a folder of folders, hf-cache, modelscope-cache, an address (s3://…, gs://…, az://…, "
        "https://…, hf://…), MLflow (mlruns, mlflow.db, mlflow+https://…) or modelscope in place of the Hub. May be "
        "given several times.", metavar="PLACE", flag="--from", is_repeated=True)] = ()
    hub: Annotated[bool, Option("With `sources`: also crawl the Hub.")] = False
    paths: Annotated[bool, Option("Do not store where models of `sources` lie; only hashes of the paths.")] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        addresses = (self.sources,) if isinstance(self.sources, str | Path) else self.sources or ()
        self._set(sources=tuple(dict.fromkeys(map(str, addresses))))
        if "" in addresses:
            raise BadArgument("`sources` names an empty path.", "Give the folder to read from; the current one is `.`.")

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those of ``sources`` that are trees."""
        assert isinstance(self.sources, tuple)
        return tuple(address for address in self.sources if listing_source(str(address)) is None)

    @property
    def listing_sources(self) -> tuple[Source, ...]:
        """Those of ``sources`` that list what descends from a base, besides the Hub."""
        assert isinstance(self.sources, tuple)
        return tuple(source for address in self.sources if (source := listing_source(str(address))) is not None)


@dataclass(frozen=True, kw_only=True)
class WorkOptions(ExecutorOptions, ResourceOptions, RecordOptions, SelectionOptions, SourceOptions):
    """The options of `index work`, and of everything that a build does."""

    def as_words(self) -> list[str]:
        """The options of `index build` that decide what an atlas holds, as typed, except those at their default.

        How it was built (workers, memory, bandwidth, a scheduler, a device) is left out.
        """
        words, defaults = [], WorkOptions()
        for name in self.part(SelectionOptions) | self.part(RecordOptions):
            value = getattr(self, name)
            if name in _HOW or value == getattr(defaults, name):
                continue
            for item in value if isinstance(value, tuple) else [value]:
                words.append(option_of(name, item))
                if not isinstance(item, bool):
                    words.append(item.date().isoformat() if isinstance(item, datetime) else str(item))
        return words


# Options of selecting and reading that do not decide what an atlas holds.
_HOW = frozenset({"retry_failed", "device", "vector_length"})


@dataclass(frozen=True, kw_only=True)
class BuildOptions(WorkOptions):
    """The options of `index build`."""

    dry_run: Annotated[bool, Option(
        "Crawl, then only print how many models and bytes would be read, and how long that takes.")] = False


@dataclass(frozen=True, kw_only=True)
class AddOptions(RecordOptions):
    """The options of `index add`: how models are read, and what is said of those that are not public."""

    name: Annotated[str | None, Option(
        "Name of one folder in the atlas. Default: local:FOLDER.", metavar="OWNER/NAME")] = None
    author: Annotated[str | None, Option("Whose models they are, if they are not public.", metavar="NAME")] = None
    dataset: Annotated[str | Sequence[str], Option(
        "What they were tuned on. May be given several times.", metavar="NAME", is_repeated=True)] = ()
    licence: Annotated[str | None, Option("Their licence.", metavar="NAME")] = None
    labels: Annotated[str | Path | None, Option(
        "A table with the columns model, author, dataset and licence (TSV or CSV).", metavar="FILE")] = None


@dataclass(frozen=True, kw_only=True)
class ScanOptions(StorageOptions):
    """The options of `index scan`. Once made, ``base`` is a tuple."""

    base: Annotated[str | Path | Sequence[str | Path], Option(
        "A base that models may be made from: an id, a folder or a file. Models of other bases count as unrelated. "
        "May be given several times. Default: the bases that models name, where they lie in the cache of the Hub's "
        "client.", metavar="ID|PATH", is_repeated=True)] = ()
    workers: Annotated[int | None, Option(
        "Number of processes. Default: one per processor.", least=1, most=256)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        bases = (self.base,) if isinstance(self.base, str | Path) else self.base or ()
        self._set(base=tuple(dict.fromkeys(map(str, bases))))

    @property
    def bases(self) -> tuple[str, ...]:
        """``base`` as a tuple."""
        assert isinstance(self.base, tuple)
        return self.base


@dataclass(frozen=True, kw_only=True)
class PublishOptions(Options):
    """The options of `index publish`."""

    rank: Annotated[int | None, Option(
        "Rank of the records. Default: the published rank, else that of the records.", least=1, most=256)] = None
    vector_length: VectorLength = None


@dataclass(frozen=True, kw_only=True)
class RepresentOptions(Options):
    """The options of `index represent`."""

    vector_length: VectorLength = None


@dataclass(frozen=True, kw_only=True)
class RebuildOptions(Options):
    """The options of `index rebuild`."""

    force: Annotated[bool, Option("Rebuild even if models would be lost.")] = False
    vector_length: VectorLength = None


@dataclass(frozen=True, kw_only=True)
class IndexedOptions(Options):
    """Which indexed models are read again."""

    where: Annotated[str | None, Option(
        "Only those that match this condition on the view models.", metavar="SQL")] = None
    limit: Limit = None


@dataclass(frozen=True, kw_only=True)
class DeepenOptions(ResourceOptions, IndexedOptions):
    """The options of `index deepen`: which of the sampled models, and how their rest is read."""

    spectra: Annotated[bool, Option("Also keep all singular values of δW and W, for `query rank`.")] = False
    device: SvdDevice = "cpu"
    dry_run: Annotated[bool, Option(
        "Only print how many models and bytes would be read, and how long that takes.")] = False


@dataclass(frozen=True, kw_only=True)
class StartsOptions(ResourceOptions, IndexedOptions):
    """The options of `index starts`: which adapters, and how far their start is looked for."""

    seeds: Annotated[str | Path | Sequence[int] | None, Option(
        "Also look through these seeds: a file with one in a line.", metavar="FILE")] = None
    draws: Annotated[int | None, Option(
        "Random numbers of each seed to look through. Default: 134,217,728 of seed 42, or 4,194,304 of each seed of a "
        "file.", least=1, most=1 << 32, metavar="N")] = None
    device: Annotated[str | None, Option(
        "Also try all 4,294,967,296 seeds, on this GPU: cuda, cuda:1 … A quarter of an hour for 20 adapters.")] = None
    dry_run: Annotated[bool, Option(
        "Only print how many adapters there are, and how long that takes.")] = False


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(Options):
    """The options of `index profile`. Once made, ``memory`` is a number of bytes."""

    limit: Limit = None
    with_untrained: Annotated[bool, Option(
        "Also profile the base's architecture untrained, as a baseline.")] = False
    probe: Annotated[ProbeName | None, Option(
        "Input of the models. Default: random tokens, or images.")] = None
    text: Annotated[str | Path | None, Option(
        "Use this text instead of the shipped sentences.", metavar="FILE")] = None
    images: Annotated[Sequence[str | Path], Option(
        "Use this image. May be given several times.", metavar="FILE", flag="--image", is_repeated=True)] = ()
    recover: Annotated[bool, Option("Also recover the input from each layer by gradient descent.")] = False
    exact: Annotated[bool, Option(
        "Also recover it exactly by search: a certificate, not a measure of depth.")] = False
    layers: Annotated[str | Sequence[int] | None, Option(
        "Only these layers. Default: all, or 12 evenly spaced.", metavar="1,6,12")] = None
    recipe: Annotated[Recipe, Option(
        "original: also the original papers' gradient descent (stored as seed).")] = "default"
    steps: Annotated[int | None, Option("Steps of the original method.", least=1)] = None
    rate: Annotated[float | None, Option("Initial learning rate of the original method.", least=0, most=1e6)] = None
    shift: Annotated[float | None, Option(
        "σ of the original papers' criterion. Default: .35 of the embeddings' own.", least=0, most=1e6)] = None
    seed: Annotated[int, Option("Random seed.", 0, 2**31)] = 0
    device: Annotated[str, Option("Device: cpu, cuda, cuda:1 …")] = "cpu"
    workers: Annotated[int, Option("Number of processes, of one thread each.", 1, 256)] = 1
    memory: Annotated[Size, Option(
        "Memory limit for all workers together, e.g. 4G. Default: free memory.", metavar="SIZE")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(memory=bytes_of("memory", self.memory))
        require("Profiling", "torch", "transformers")
        _ = self.request, self.choice  # they raise if options contradict each other

    @cached_property
    def request(self) -> ProfileRequest:
        """What is measured."""
        from indexer.profiles.measurement import ProfileRequest, parse_layers

        layers = self.layers
        return ProfileRequest(
            recover=self.recover,
            exact=self.exact,
            recipe=self.recipe,
            layers=parse_layers(layers if layers is None or isinstance(layers, str) else ",".join(map(str, layers))),
            seed=self.seed,
            shift=self.shift,
            steps=self.steps,
            rate=self.rate,
        )

    @cached_property
    def choice(self) -> ProbeChoice:
        """The input that it is measured with."""
        from indexer.profiles.probes import ProbeChoice

        text = None if self.text is None else Path(self.text)
        return ProbeChoice(self.probe, text, tuple(Path(path) for path in self.images or ()), self.seed)

    @property
    def memory_bytes(self) -> int | None:
        """``memory`` in bytes."""
        return bytes_of("memory", self.memory)
# fmt: on


def _moment(since: str | date | None) -> datetime | None:
    """A day as the moment when it begins; in UTC if no time zone is given. Raises BadArgument."""
    if since is None:
        return None
    try:
        day = datetime.fromisoformat(since) if isinstance(since, str) else since
    except ValueError:
        raise BadArgument(f"`since` {since!r} is not a date like 2024-01-31.", "") from None
    moment = day if isinstance(day, datetime) else datetime.combine(day, time())
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def bytes_of(name: str, size: Size) -> int | None:
    """The size given for option ``name`` in bytes. Raises BadArgument if it cannot be read."""
    try:
        return size if size is None or isinstance(size, int) else parse_size(size)
    except ValueError as error:
        raise BadArgument(f"`{name}`: {error}.", "") from None


def parse_size(text: str) -> int:
    """Bytes of "512M", "2G", "1.5 GiB". Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else 0
    if size <= 0:
        raise ValueError(f"{text!r} is not a size like 512M or 2G")
    return size
