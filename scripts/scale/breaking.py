"""Where it breaks first: how many models something stops being comfortable at, and what to do then."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from scripts.scale.constants import Constants
from scripts.scale.costs import BIG, SMALL

_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0
# What a machine can spare.
_MEMORY = 8e9


@dataclass(frozen=True)
class Limit:
    """Something that stops being comfortable: ``models`` at which it does, and what to do then."""

    what: str
    models: float
    then: str


def limits(c: Constants) -> list[Limit]:
    """What breaks, soonest first; what was not measured is left out."""
    return sorted([*_reading(c), *_publishing(c), *_asking(c)], key=lambda limit: limit.models)


def limits_table(c: Constants) -> list[list[str]]:
    """The same as text."""
    rows = [[limit.what, f"{round(limit.models, -3):,.0f}", limit.then] for limit in limits(c)]
    return [["what", "at about … models", "what then"], *rows]


def _reading(c: Constants) -> list[Limit]:
    day = _DAY / _HOUR
    machines = "more machines with lines of their own (docs/clusters.md)"
    accounts = "PRO (2.4 times as much), several accounts by `index work --shard`, or days"
    slim = "--no-keep-factors: other representations then need the weights again"
    return [
        Limit("one account's quota takes more than a day", day / SMALL.quota_hours(c, 1), accounts),
        Limit("a line of 10 Gbit/s takes more than a day", day / SMALL.line_hours(c, 1), machines),
        Limit("records with factors outgrow 1 TB", 1e12 / c.record_bytes, slim),
        Limit("7 billion parameters: the quota takes more than a day", day / BIG.quota_hours(c, 1), accounts),
        Limit("7 billion parameters: the line takes more than a day", day / BIG.line_hours(c, 1), machines),
        Limit("7 billion parameters: records with factors outgrow 1 TB", 1e12 / c.large_record_bytes, slim),
    ]


def _publishing(c: Constants) -> list[Limit]:
    found = [
        Limit(
            "the database outgrows 100 GB, and every publish copies it",
            100e9 / c.database_bytes,
            "one atlas for each base; a file system that copies by reference (XFS, Btrfs)",
        ),
    ]
    if c.publish_seconds_per_pair is not None:
        found.append(
            Limit(
                "a publish from nothing takes a day",
                _publishable(c.publish_seconds, c.publish_seconds_per_pair, _DAY),
                "one atlas for each base; neighbours from the compressed index instead of from all vectors",
            )
        )
    if c.publish_again_start < _MINUTE:
        found.append(
            Limit(
                "a publish with nothing new takes a minute",
                (_MINUTE - c.publish_again_start) / c.publish_again_seconds,
                "publish less often; one atlas for each base; read the listing from where the last publish stopped",
            )
        )
    if c.publish_memory_start is not None and c.publish_memory and c.publish_memory_start < _MEMORY:
        found.append(
            Limit(
                "a publish from nothing takes more than 8 GB of memory",
                (_MEMORY - c.publish_memory_start) / c.publish_memory,
                "a machine with more; one atlas for each base",
            )
        )
    return found


def _publishable(each: float, pair: float, seconds: float) -> float:
    """Models n of ``each · n + pair · n² = seconds``, in the form that holds where a pair takes no time."""
    return 2 * seconds / (each + sqrt(each**2 + 4 * pair * seconds))


def _asking(c: Constants) -> list[Limit]:
    found = [
        Limit(
            "purity's table outgrows 8 GB",
            min((_MEMORY / 2) ** 0.5, 2**16) / c.names_dataset,
            "a sample of the models, or neighbour lists of m_f instead of whole rows (query/statistics/neighbours.py)",
        ),
        Limit(
            "purity takes an hour",
            (max(0.0, _HOUR - c.purity_start) / c.purity_seconds_per_pair) ** 0.5 / c.names_dataset,
            "the same; its time is that of m² cosines",
        ),
    ]
    if c.compressed_bytes is not None:
        found.append(
            Limit(
                "the compressed index outgrows 1 GiB of a reader's memory",
                2**30 / c.compressed_bytes,
                "a larger budget, shorter codes (--index), or one atlas for each base",
            )
        )
    return found
