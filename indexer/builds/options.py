"""The options of builds and profiles: as a caller writes them, with help and bounds, and as they are once checked.

The TypedDicts are the one list of options: calls from Python are typed and checked by them, and the command line makes
its options from them (``indexer.cli.options``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, Unpack, get_args, get_type_hints

from indexer.arguments import kinds_of, plain_value
from indexer.console.advice import option_of
from indexer.console.option import Option
from indexer.errors import BadArgument, Call, Text
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
from indexer.sources.registry import listed_reference
from indexer.untrusted import printable

Size = str | int | None
ProbeName = Literal["random", "text", "image"]
Recipe = Literal["default", "original"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]i?)?b?", re.IGNORECASE | re.ASCII)


# fmt: off
class RecordArguments(TypedDict, total=False):
    """How a model is read."""

    read: Annotated[str | None, Option(
        "sample: some rows of every matrix, a thirtieth of the bytes or less. full: all of them. Default: sample; "
        "full with --spectra.", choices=READS)]
    rank: Annotated[int, Option("Singular triplets kept of each matrix.", 8, 1, 256)]
    spectra: Annotated[bool, Option(
        "Also keep all singular values of δW and W, for `query rank`; models without them are read again.", False)]
    keep_factors: Annotated[bool, Option("Keep only vectors and norms, to save disk space.", True)]
    device: Annotated[str, Option("Device of the SVD: cpu, cuda, cuda:1 …", "cpu")]
    same_as: Annotated[str | Sequence[str], Option(
        "Another id under which the base's weights are on the Hub. May be given several times.", metavar="ID",
        is_repeated=True)]
    vector_length: Annotated[int | None, Option(
        "About how many numbers a vector has, divided among the matrices. Default: 8,208, fewer for small bases.",
        least=1, most=1 << 20, metavar="N")]


class SelectionArguments(TypedDict, total=False):
    """Which models are listed and read."""

    limit: Annotated[int | None, Option("Only the first N models of the listing.", least=1)]
    sort: Annotated[str, Option("Which models come first.", "downloads", choices=SORTS)]
    relation: Annotated[str, Option("Any of finetune, adapter, merge, quantized.", ",".join(DEFAULT_RELATIONS))]
    discover: Annotated[str, Option(
        "names: also find untagged fine-tunes by card, config and name. weights: also find them by comparing some rows "
        "of models of the base's type and size with the base's.", "tags", choices=DISCOVERIES)]
    max_candidates: Annotated[int | None, Option(
        "Untagged models to examine in one run. Default: 5,000 by name, 1,000 by weights.", least=1, metavar="N")]
    descendants: Annotated[bool, Option(
        "Also list models made from the base's fine-tunes and merges, or only those made from the base itself.", True,
        flag="--descendants/--no-descendants")]
    depth: Annotated[int, Option("Maximum number of steps from the base to a model.", MOST_STEPS, 1, 20)]
    questions: Annotated[int, Option(
        "Maximum number of models whose own fine-tunes are looked up, at one API call or more each.", MOST_QUESTIONS,
        1, 100_000)]
    since: Annotated[str | date | None, Option(
        "Only models created on or after this day (2024-01-31).", metavar="DATE")]
    author: Annotated[str | None, Option("Only this author's models.")]
    retry_failed: Annotated[bool, Option(
        "Try every failed model again now, however recent the failure.", False)]


class ResourceArguments(TypedDict, total=False):
    """What a build may use."""

    workers: Annotated[int | None, Option(
        "Number of processes. Default: one per processor, two to read samples.", least=1, most=256)]
    connections: Annotated[int | None, Option(
        "Number of connections to the Hub for all workers together.", CONNECTIONS, 1, 64)]
    memory: Annotated[Size, Option(
        "Memory limit for all workers together, e.g. 2G. Default: half of the free memory. "
        "Publishing needs more: 1.5 GB for 10,000 new models.", metavar="SIZE")]
    bandwidth: Annotated[Size, Option(
        "Limit in bytes per second for all workers together, e.g. 20M.", metavar="SIZE")]


class ExecutorArguments(TypedDict, total=False):
    """Where the workers of a build run."""

    executor: Annotated[str, Option(
        "Run on processes of this machine, or on a Dask cluster.", "local", choices=EXECUTORS)]
    scheduler: Annotated[str | None, Option(
        "Address of the Dask scheduler, e.g. tcp://10.0.0.1:8786.", metavar="ADDR")]


class SourceArguments(TypedDict, total=False):
    """Where models are looked for."""

    sources: Annotated[str | Path | Sequence[str | Path], Option(
        "Read models from a folder of folders, hf-cache, or an address (s3://…, gs://…, az://…, https://…, hf://…) in "
        "place of the Hub. May be given several times.", metavar="PLACE", flag="--from", is_repeated=True)]
    hub: Annotated[bool, Option("With --from: also crawl the Hub.", False)]
    paths: Annotated[bool, Option("Do not store where models of --from lie; only hashes of the paths.", True)]
    storage_options: Annotated[str | Sequence[str], Option(
        "An option of fsspec for the addresses of --from. May be given several times.", metavar="KEY=VALUE",
        flag="--storage-option", is_repeated=True)]


class BuildArguments(RecordArguments, SelectionArguments, ResourceArguments, ExecutorArguments, SourceArguments):
    """Every option of `index build`, as a caller writes it; see :func:`indexer.build`."""


class DeepenArguments(ResourceArguments, total=False):
    """How the rest of sampled models is read, as in ``build``."""

    spectra: Annotated[bool, Option("Also keep all singular values of δW and W, for `query rank`.", False)]
    device: Annotated[str, Option("Device of the SVD: cpu, cuda, cuda:1 …", "cpu")]


class StartsArguments(ResourceArguments, total=False):
    """How far the start of an adapter is looked for; see :func:`indexer.starts_of`."""

    seeds: Annotated[str | Path | Sequence[int] | None, Option(
        "Also look through these seeds: a file with one in a line.", metavar="FILE")]
    draws: Annotated[int | None, Option(
        "Random numbers of each seed to look through. Default: 134,217,728 of seed 42, or 4,194,304 of each seed of a "
        "file.", least=1, most=1 << 32, metavar="N")]
    device: Annotated[str | None, Option(
        "Also try all 4,294,967,296 seeds, on this GPU: cuda, cuda:1 … A quarter of an hour for 20 adapters.")]


class ProfileArguments(TypedDict, total=False):
    """Every option of `index profile`, as a caller writes it; see :func:`indexer.profile`."""

    limit: Annotated[int | None, Option("Only the first N of them, most downloads first.", least=1)]
    with_untrained: Annotated[bool, Option(
        "Also profile the base's architecture untrained, as a baseline.", False)]
    probe: Annotated[ProbeName | None, Option(
        "Input of the models. Default: random tokens, or images.", choices=get_args(ProbeName))]
    text: Annotated[str | Path | None, Option(
        "Use this text instead of the shipped sentences.", metavar="FILE")]
    images: Annotated[Sequence[str | Path], Option(
        "Use this image. May be given several times.", metavar="FILE", flag="--image", is_repeated=True)]
    recover: Annotated[bool, Option("Also recover the input from each layer by gradient descent.", False)]
    exact: Annotated[bool, Option(
        "Also recover it exactly by search: a certificate, not a measure of depth.", False)]
    layers: Annotated[str | Sequence[int] | None, Option(
        "Only these layers. Default: all, or 12 evenly spaced.", metavar="1,6,12")]
    recipe: Annotated[Recipe, Option(
        "original: also the original papers' gradient descent (stored as seed).", "default", choices=get_args(Recipe))]
    steps: Annotated[int | None, Option("Steps of the original method.", least=1)]
    rate: Annotated[float | None, Option("Initial learning rate of the original method.", least=0, most=1e6)]
    shift: Annotated[float | None, Option(
        "σ of the original papers' criterion. Default: .35 of the embeddings' own.", least=0, most=1e6)]
    seed: Annotated[int, Option("Random seed.", 0, 0, 2**31)]
    device: Annotated[str, Option("Device: cpu, cuda, cuda:1 …", "cpu")]
    workers: Annotated[int | None, Option(
        "Number of processes, of one thread each. Default: 1.", least=1, most=256)]
    memory: Annotated[Size, Option(
        "Memory limit for all workers together, e.g. 4G. Default: free memory.", metavar="SIZE")]
# fmt: on


def options_of(arguments: type) -> dict[str, tuple[Any, Option]]:
    """The type and the :class:`Option` of each key of a TypedDict of this module, in order."""
    hints = get_type_hints(arguments, include_extras=True)
    return {name: (hints[name].__origin__, hints[name].__metadata__[0]) for name in hints}


def check_options(arguments: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a caller wrote, as plain values: numbers and booleans of numpy become Python's.

    Checks types, bounds and choices. Raises BadArgument.
    """
    checked = dict(given)
    for name, (type_, option) in options_of(arguments).items():
        if given.get(name) is None:
            continue
        value = checked[name] = plain_value(name, given[name], kinds_of(type_))
        if option.choices and value not in option.choices:
            raise BadArgument(f"`{name}` {value!r} is not one of {', '.join(option.choices)}.", "")
        if option.least is not None and not option.least <= value <= (option.most or value):
            bounds = f"at least {option.least}" if option.most is None else f"from {option.least} to {option.most:,}"
            raise BadArgument(f"`{name}` is {value}; it must be {bounds}.", "")
    return checked


@dataclass(frozen=True)
class BuildOptions:
    """The options of a build, checked. ``memory`` and ``bandwidth`` are in bytes (a second)."""

    read: str
    rank: int
    spectra: bool
    keep_factors: bool
    device: str
    same_as: tuple[str, ...]
    limit: int | None
    sort: str
    relations: tuple[str, ...]
    discover: str
    max_candidates: int | None
    descendants: bool
    depth: int
    questions: int
    since: datetime | None
    author: str | None
    retry_failed: bool
    workers: int | None
    connections: int
    memory: int | None
    bandwidth: float | None
    scheduler: str | None
    vector_length: int | None
    sources: tuple[str, ...]
    hub: bool
    paths: bool
    storage_options: tuple[tuple[str, Any], ...]

    @classmethod
    def parse(cls, **arguments: Unpack[BuildArguments]) -> BuildOptions:
        """Check what a caller wrote. Raises BadArgument."""
        checked = check_options(BuildArguments, arguments)
        given: dict[str, Any] = {name: option.default for name, (_, option) in options_of(BuildArguments).items()}
        given |= {name: value for name, value in checked.items() if value is not None}
        if given["read"] is None:
            given["read"] = "full" if given["spectra"] else "sample"
        elif given["read"] == "sample" and given["spectra"]:
            raise BadArgument(
                Text("`spectra` needs all rows of every matrix, and ", Call(read="sample"), " reads some."), ""
            )
        if (given.pop("executor") == "dask") != (given["scheduler"] is not None):
            raise BadArgument(
                Text(Call(executor="dask"), " and ", Call(scheduler="ADDR"), " must be given together."), ""
            )
        mirrors = given["same_as"] or ()
        mirrors = {one: listed_reference(one.strip()) for one in ([mirrors] if isinstance(mirrors, str) else mirrors)}
        if wrong := [one for one, reference in mirrors.items() if reference is None or reference.revision]:
            raise BadArgument(f"`same_as` {wrong[0][:100]!r} is not a Hub id.", "Give owner/name.")
        given["same_as"] = tuple(dict.fromkeys(reference.id for reference in mirrors.values() if reference))
        given["relations"] = tuple(dict.fromkeys(part.strip() for part in given.pop("relation").split(",")))
        if unknown := [relation for relation in given["relations"] if relation not in RELATIONS]:
            raise BadArgument(f"`relation` {unknown[0]!r} is not one of {', '.join(RELATIONS)}.", "")
        since = given["since"]
        if since is not None:
            try:
                found = datetime.fromisoformat(since) if isinstance(since, str) else since
            except ValueError:
                raise BadArgument(f"`since` {since!r} is not a date like 2024-01-31.", "") from None
            moment = found if isinstance(found, datetime) else datetime.combine(found, time())
            given["since"] = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        given["connections"] = given["connections"] or CONNECTIONS
        for name in ("memory", "bandwidth"):
            given[name] = bytes_of(name, given[name])
        places = given["sources"] or ()
        places = [places] if isinstance(places, str | Path) else places
        given["sources"] = tuple(dict.fromkeys(str(one) for one in places))
        if "" in given["sources"]:
            raise BadArgument("`sources` names an empty path.", "Give the folder to read from; the current one is `.`.")
        try:
            given["storage_options"] = _storage_options(given["storage_options"] or ())
        except ValueError as error:
            raise BadArgument(
                f"`storage_options`: {error}.", "For example: endpoint_url=http://localhost:9000"
            ) from None
        return cls(**given)

    def as_words(self) -> list[str]:
        """The options of `index build` that decide what an atlas holds, as typed, except those at their default.

        How it was built (workers, memory, bandwidth, a scheduler, a device) is left out.
        """
        words, defaults = [], BuildOptions.parse()
        for name in _DECIDING:
            value = getattr(self, name)
            if value == getattr(defaults, name):
                continue
            if name == "relations":
                name, value = "relation", ",".join(self.relations)
            elif name == "since":
                value = value.date().isoformat()
            for one in value if isinstance(value, tuple) else [value]:
                words.append(option_of(name, one))
                if not isinstance(one, bool):
                    words.append(str(one))
        return words


_DECIDING = (
    "read", "limit", "sort", "rank", "relations", "discover", "max_candidates", "descendants", "depth", "questions",
    "same_as", "since", "author", "spectra", "keep_factors",
)  # fmt: skip


def bytes_of(name: str, size: Size) -> int | None:
    """The size given for option ``name`` in bytes. Raises BadArgument if it cannot be read."""
    try:
        return size if size is None or isinstance(size, int) else parse_size(size)
    except ValueError as error:
        raise BadArgument(f"`{name}`: {error}.", "") from None


def _storage_options(words: str | Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """``KEY=VALUE`` as arguments of a file system of fsspec; a value may be JSON. Raises ValueError."""
    found: dict[str, Any] = {}
    for word in [words] if isinstance(words, str) else words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"{printable(name, 60)!r} is not of the form KEY=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return tuple(found.items())


def parse_size(text: str) -> int:
    """Bytes of "512M", "2G", "1.5 GiB". Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * _UNITS[(found[2] or "").lower()]) if found else 0
    if size <= 0:
        raise ValueError(f"{text!r} is not a size like 512M or 2G")
    return size
