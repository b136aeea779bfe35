"""What a build is asked to do, from what a person writes: sizes like "2G", dates, relations in a row."""

from __future__ import annotations

from datetime import UTC, date, datetime, time

from indexer.builds.report import BuildOptions
from indexer.builds.resources import parse_size
from indexer.errors import AtlasError
from indexer.names import DISCOVERIES, EXECUTORS, RELATIONS, SORTS
from indexer.processors import processors
from indexer.vectors.choice import AUTO, EXACT, IndexChange

Size = str | int | None


def build_options(
    *,
    limit: int | None = None,
    sort: str = "downloads",
    rank: int = 8,
    relation: str = "finetune,adapter",
    discover: str = "tags",
    descendants: bool = False,
    since: str | date | None = None,
    author: str | None = None,
    spectra: bool = False,
    keep_factors: bool = True,
    workers: int | None = None,
    memory: Size = None,
    bandwidth: Size = None,
    executor: str = "local",
    scheduler: str | None = None,
    device: str = "cpu",
    retry_failed: bool = False,
    index: str | None = None,
    index_memory: Size = None,
    recall: float | None = None,
    vector_length: int | None = None,
) -> BuildOptions:
    """The options of `index build`, under the same names; see :func:`indexer.build`. Raises AtlasError."""
    for name, value, choices in (
        ("sort", sort, SORTS),
        ("discover", discover, DISCOVERIES),
        ("executor", executor, EXECUTORS),
    ):
        if value not in choices:
            raise AtlasError(f"`{name}` {value!r} is none of {', '.join(choices)}.", "")
    if (executor == "dask") != (scheduler is not None):
        raise AtlasError("`executor='dask'` and `scheduler='ADDR'` go together.", "")
    if limit is not None and limit < 1:
        raise AtlasError(f"`limit` is {limit}; it must be at least 1.", "")
    return BuildOptions(
        limit=limit,
        sort=sort,
        rank=rank,
        relations=_relations(relation),
        discover=discover,
        descendants=descendants,
        since=_day(since),
        author=author,
        spectra=spectra,
        keep_factors=keep_factors,
        workers=workers or processors(),
        memory=bytes_of("memory", memory),
        bandwidth=bytes_of("bandwidth", bandwidth),
        scheduler=scheduler,
        device=device,
        retry_failed=retry_failed,
        index=index_change(index, index_memory, recall, vector_length),
    )


def index_change(
    index: str | None, index_memory: Size, recall: float | None, vector_length: int | None = None
) -> IndexChange | None:
    """The index asked for, None where nothing is said of it. Raises AtlasError where it cannot be built."""
    if index is None and index_memory is None and recall is None and vector_length is None:
        return None
    from indexer.vectors.factories import UNDERSTOOD, is_understood

    if index not in (None, AUTO, EXACT) and not is_understood(index):
        raise AtlasError(f"`index` {index[:60]!r} is not an index that can be built.", UNDERSTOOD)
    return IndexChange(index, bytes_of("index_memory", index_memory), recall, vector_length)


def _relations(text: str) -> tuple[str, ...]:
    relations = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [relation for relation in relations if relation not in RELATIONS]
    if unknown:
        raise AtlasError(f"`relation` {unknown[0]!r} is none of {', '.join(RELATIONS)}.", "")
    return relations


def bytes_of(name: str, size: Size) -> int | None:
    """A size as a number of bytes; raises AtlasError naming the option where it cannot be read."""
    try:
        return size if size is None or isinstance(size, int) else parse_size(size)
    except ValueError as error:
        raise AtlasError(f"`{name}`: {error}.", "") from None


def _day(since: str | date | None) -> datetime | None:
    if since is None:
        return None
    try:
        found = datetime.fromisoformat(since) if isinstance(since, str) else since
    except ValueError:
        raise AtlasError(f"`since` {since!r} is not a date like 2024-01-31.", "") from None
    moment = found if isinstance(found, datetime) else datetime.combine(found, time())
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
