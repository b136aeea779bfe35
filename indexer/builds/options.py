"""The options of a build: as a caller writes them, and as they are once checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any, TypedDict, Unpack

from indexer.console.advice import option_of
from indexer.errors import BadArgument
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
    is_hub_id,
    without_address,
)
from indexer.records.identity import Thresholds
from indexer.vectors.choice import INDEXES, KNOWN_INDEXES, IndexChange

Size = str | int | None

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]i?)?b?", re.IGNORECASE | re.ASCII)


class RecordArguments(TypedDict, total=False):
    """How a model is read. ``rank``: singular triplets kept of each δW; ``spectra``: also all its singular values.

    ``read``: some rows of every matrix (sample, the default unless ``spectra`` are wanted), or all (full).
    ``same_as``: other ids under which the base's weights are on the Hub.
    """

    read: str | None
    rank: int
    spectra: bool
    keep_factors: bool
    device: str
    vector_length: int | None
    same_as: str | Sequence[str]


class IndexArguments(TypedDict, total=False):
    """How vectors are searched. ``index``: auto, exact, RaBitQ or RaBitQ2."""

    index: str | None
    index_memory: Size
    recall: float | None


class BuildArguments(RecordArguments, IndexArguments, total=False):
    """Every option of `index build`, as a caller writes it; see :func:`indexer.build`."""

    limit: int | None
    sort: str
    relation: str
    discover: str
    max_candidates: int | None
    descendants: bool
    depth: int
    questions: int
    since: str | date | None
    author: str | None
    retry_failed: bool
    workers: int | None
    connections: int | None
    memory: Size
    bandwidth: Size
    executor: str
    scheduler: str | None


@dataclass(frozen=True)
class BuildOptions:
    """The options of a build, checked. ``memory`` and ``bandwidth`` are in bytes (a second)."""

    read: str = "sample"
    limit: int | None = None
    sort: str = "downloads"
    rank: int = 8
    relations: tuple[str, ...] = DEFAULT_RELATIONS
    discover: str = "tags"
    max_candidates: int | None = None
    descendants: bool = True
    depth: int = MOST_STEPS
    questions: int = MOST_QUESTIONS
    same_as: tuple[str, ...] = ()
    since: datetime | None = None
    author: str | None = None
    spectra: bool = False
    keep_factors: bool = True
    workers: int | None = None
    connections: int = CONNECTIONS
    memory: int | None = None
    bandwidth: float | None = None
    scheduler: str | None = None
    device: str = "cpu"
    retry_failed: bool = False
    index: IndexChange | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)

    @classmethod
    def parse(cls, **arguments: Unpack[BuildArguments]) -> BuildOptions:
        """Check what a caller wrote. Raises BadArgument."""
        given: dict[str, Any] = dict(arguments)
        if given.get("read") is None:
            given["read"] = "full" if given.get("spectra") else "sample"
        elif given["read"] == "sample" and given.get("spectra"):
            raise BadArgument("`spectra` needs all rows of every matrix, and `read='sample'` reads some.", "")
        choices_of = {"read": READS, "sort": SORTS, "discover": DISCOVERIES, "executor": EXECUTORS}
        for name, choices in choices_of.items():
            if name in given and given[name] not in choices:
                raise BadArgument(f"`{name}` {given[name]!r} is not one of {', '.join(choices)}.", "")
        if (given.pop("executor", "local") == "dask") != (given.get("scheduler") is not None):
            raise BadArgument("`executor='dask'` and `scheduler='ADDR'` must be given together.", "")
        for name, largest in (("limit", None), ("max_candidates", None), ("depth", 20), ("questions", 100_000)):
            value = given.get(name)
            if value is not None and not 1 <= value <= (largest or value):
                bounds = f"from 1 to {largest:,}" if largest else "at least 1"
                raise BadArgument(f"`{name}` is {value}; it must be {bounds}.", "")
        mirrors = given.get("same_as") or ()
        mirrors = [without_address(one).strip() for one in ([mirrors] if isinstance(mirrors, str) else mirrors)]
        if wrong := [one for one in mirrors if not is_hub_id(one)]:
            raise BadArgument(f"`same_as` {wrong[0][:100]!r} is not a Hub id.", "Give owner/name.")
        given["same_as"] = tuple(dict.fromkeys(mirrors))
        if "relation" in given:
            relations = tuple(dict.fromkeys(part.strip() for part in given.pop("relation").split(",")))
            if unknown := [relation for relation in relations if relation not in RELATIONS]:
                raise BadArgument(f"`relation` {unknown[0]!r} is not one of {', '.join(RELATIONS)}.", "")
            given["relations"] = relations
        since = given.get("since")
        if since is not None:
            try:
                found = datetime.fromisoformat(since) if isinstance(since, str) else since
            except ValueError:
                raise BadArgument(f"`since` {since!r} is not a date like 2024-01-31.", "") from None
            moment = found if isinstance(found, datetime) else datetime.combine(found, time())
            given["since"] = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        given["connections"] = given.get("connections") or CONNECTIONS
        for name in ("memory", "bandwidth"):
            given[name] = bytes_of(name, given.get(name))
        searched = {name: given.pop(name, None) for name in ("index", "index_memory", "recall", "vector_length")}
        return cls(**given, index=index_change(**searched))

    def as_words(self) -> list[str]:
        """The options of `index build` that decide what an atlas holds, as typed, except those at their default.

        How it was built (workers, memory, bandwidth, a scheduler, a device) is left out.
        """
        words = []
        for name in _DECIDING:
            value = getattr(self, name)
            if value == getattr(_DEFAULTS, name):
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
_DEFAULTS = BuildOptions()


def index_change(
    *,
    index: str | None = None,
    index_memory: Size = None,
    recall: float | None = None,
    vector_length: int | None = None,
) -> IndexChange | None:
    """The index asked for, or None if no option names one. Raises BadArgument for an unknown index."""
    if index is None and index_memory is None and recall is None and vector_length is None:
        return None
    if index is not None and index not in INDEXES:
        raise BadArgument(f"Unknown `index` {index[:60]!r}.", KNOWN_INDEXES)
    return IndexChange(index, bytes_of("index_memory", index_memory), recall, vector_length)


def bytes_of(name: str, size: Size) -> int | None:
    """The size given for option ``name`` in bytes. Raises BadArgument if it cannot be read."""
    try:
        return size if size is None or isinstance(size, int) else parse_size(size)
    except ValueError as error:
        raise BadArgument(f"`{name}`: {error}.", "") from None


def parse_size(text: str) -> int:
    """Bytes of "512M", "2G", "1.5 GiB". Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * _UNITS[(found[2] or "").lower()]) if found else 0
    if size <= 0:
        raise ValueError(f"{text!r} is not a size like 512M or 2G")
    return size
