"""What the whole Hub would cost, from figures that were measured and assumptions that are named.

Every row of the tables is one formula over ``Constants``; ``docs/scale.md`` prints both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from scripts.scale.facts import ADAPTERS, NAMES_DATASET
from scripts.scale.figures import UNITS, Value

SIZES = (100_000, 1_000_000, 2_000_000)
_HOUR = 3_600.0
_WINDOW = 300.0


@dataclass(frozen=True)
class Constants:
    """Per model where nothing else is said. Those without a value here come from a measurement."""

    database_bytes: float
    listing_bytes: float
    slim_record_bytes: float
    compressed_bytes: float
    publish_seconds: float
    publish_again_seconds: float
    purity_seconds_per_pair: float
    block_bytes: float = 340e6
    adapter_bytes: float = 1.2e6
    adapters: float = ADAPTERS
    svd_seconds: float = 0.45
    read_seconds: float = 0.1
    resolves: float = 2.0
    resolves_a_window: float = 5_000.0
    line_bytes_a_second: float = 1.25e9
    record_bytes: float = 2.6e6
    vector_bytes: float = 16_416.0
    deltas: float = 72.0
    neighbours: float = 50.0
    names_dataset: float = NAMES_DATASET
    large_factor: float = 76.0
    large_bytes: float = 13e9
    core_hour_price: float = 0.05
    machine_hour_price: float = 1.0
    stored_gigabyte_month_price: float = 0.02


MEANING = {
    "database_bytes": ("bytes", "measured: database ÷ models"),
    "listing_bytes": ("bytes", "measured: listing ÷ models"),
    "slim_record_bytes": ("bytes", "measured: a record without factors"),
    "compressed_bytes": ("bytes", "measured: compressed index ÷ vectors"),
    "publish_seconds": ("seconds", "measured: publish from nothing ÷ models"),
    "publish_again_seconds": ("seconds", "measured: publish with nothing new ÷ models"),
    "purity_seconds_per_pair": ("seconds", "measured: purity ÷ (models with a data set)²"),
    "block_bytes": ("bytes", "block matrices of roberta-base in float32, 68 % of its file"),
    "adapter_bytes": ("bytes", "LoRA factors of rank 8 on query and value"),
    "adapters": ("share", "of the models of roberta-base, 2022"),
    "svd_seconds": ("seconds", "one core, roberta-base, scripts.bench vectors"),
    "read_seconds": ("seconds", "one pass over the bytes, one core"),
    "resolves": ("count", "calls to /resolve: config and weights (167 in a build of 86 models on a loopback Hub)"),
    "resolves_a_window": ("count", "the Hub's quota for 5 minutes, free account (anonymous 3,000, PRO 12,000)"),
    "line_bytes_a_second": ("bytes", "assumed: 10 Gbit/s, all machines together"),
    "record_bytes": ("bytes", "a record with factors, rank 8, roberta-base"),
    "vector_bytes": ("bytes", "72 · 57 float32"),
    "deltas": ("count", "matrices of roberta-base"),
    "neighbours": ("count", "kept of each model"),
    "names_dataset": ("share", "of the models name a data set"),
    "large_factor": ("count", "a model of 7 billion parameters has so many times the block matrices"),
    "large_bytes": ("bytes", "its block matrices in bfloat16"),
    "core_hour_price": ("dollars", "assumed: a rented core for an hour"),
    "machine_hour_price": ("dollars", "assumed: a rented machine of 16 cores with 10 Gbit/s for an hour"),
    "stored_gigabyte_month_price": ("dollars", "assumed: a gigabyte of object storage for a month"),
}


@dataclass(frozen=True)
class Cost:
    """One row: ``formula`` names the constants, ``compute`` is the same in Python for n models."""

    what: str
    formula: str
    unit: str
    compute: Callable[[Constants, float], float]


def _fetched(c: Constants, n: float) -> float:
    return n * ((1 - c.adapters) * c.block_bytes + c.adapters * c.adapter_bytes)


def _core_hours(c: Constants, n: float) -> float:
    return n * (1 - c.adapters) * (c.svd_seconds + c.read_seconds) / _HOUR


def _line_hours(c: Constants, n: float) -> float:
    return _fetched(c, n) / c.line_bytes_a_second / _HOUR


def _quota_hours(c: Constants, n: float) -> float:
    return n * c.resolves / c.resolves_a_window * _WINDOW / _HOUR


COSTS = (
    Cost("bytes fetched", "n · ((1 − adapters) · block_bytes + adapters · adapter_bytes)", "bytes", _fetched),
    Cost("core hours", "n · (1 − adapters) · (svd_seconds + read_seconds) ÷ 3,600", "hours", _core_hours),
    Cost("hours on the line", "bytes fetched ÷ line_bytes_a_second ÷ 3,600", "hours", _line_hours),
    Cost("hours under the quota", "n · resolves ÷ resolves_a_window · 300 ÷ 3,600", "hours", _quota_hours),
    Cost(
        "wall, one account and one line", "the largest of the last two", "hours",
        lambda c, n: max(_line_hours(c, n), _quota_hours(c, n)),
    ),
    Cost(
        "money: machines", "wall · machine_hour_price", "dollars",
        lambda c, n: max(_line_hours(c, n), _quota_hours(c, n)) * c.machine_hour_price,
    ),
    Cost("money: cores alone", "core hours · core_hour_price", "dollars", lambda c, n: _core_hours(c, n) * c.core_hour_price),
    Cost("records with factors", "n · record_bytes", "bytes", lambda c, n: n * c.record_bytes),
    Cost(
        "money: keeping them for a year", "records · stored_gigabyte_month_price · 12", "dollars",
        lambda c, n: n * c.record_bytes / 1e9 * c.stored_gigabyte_month_price * 12,
    ),
    Cost("records without factors", "n · slim_record_bytes", "bytes", lambda c, n: n * c.slim_record_bytes),
    Cost("listing", "n · listing_bytes", "bytes", lambda c, n: n * c.listing_bytes),
    Cost("database", "n · database_bytes", "bytes", lambda c, n: n * c.database_bytes),
    Cost("rows of deltas", "n · deltas", "count", lambda c, n: n * c.deltas),
    Cost("rows of neighbours", "n · neighbours", "count", lambda c, n: n * c.neighbours),
    Cost("vectors", "n · vector_bytes", "bytes", lambda c, n: n * c.vector_bytes),
    Cost("compressed index, in memory", "n · compressed_bytes", "bytes", lambda c, n: n * c.compressed_bytes),
    Cost("publish from nothing", "n · publish_seconds", "hours", lambda c, n: n * c.publish_seconds / _HOUR),
    Cost("publish with nothing new", "n · publish_again_seconds", "seconds", lambda c, n: n * c.publish_again_seconds),
    Cost(
        "purity, its table", "2 m² bytes, 4 m² from m = 65,536 on; m = n · names_dataset", "bytes",
        lambda c, n: (2 if n * c.names_dataset < 2**16 else 4) * (n * c.names_dataset) ** 2,
    ),
    Cost(
        "purity, time", "m² · purity_seconds_per_pair", "hours",
        lambda c, n: (n * c.names_dataset) ** 2 * c.purity_seconds_per_pair / _HOUR,
    ),
)  # fmt: skip

# The same work for as many models of 7 billion parameters.
LARGE = (
    Cost("bytes fetched", "n · large_bytes", "bytes", lambda c, n: n * c.large_bytes),
    Cost("core hours", "n · large_factor · (svd_seconds + read_seconds) ÷ 3,600", "hours",
         lambda c, n: n * c.large_factor * (c.svd_seconds + c.read_seconds) / _HOUR),
    Cost("hours on the line", "bytes fetched ÷ line_bytes_a_second ÷ 3,600", "hours",
         lambda c, n: n * c.large_bytes / c.line_bytes_a_second / _HOUR),
)  # fmt: skip


@dataclass(frozen=True)
class Limit:
    """Something that stops being comfortable: ``models`` at which it does, and what to do then."""

    what: str
    models: float
    then: str


def limits(c: Constants) -> list[Limit]:
    """What breaks, soonest first."""
    day, minute, memory = 86_400.0, 60.0, 8e9
    found = [
        Limit(
            "purity's table outgrows 8 GB",
            min((memory / 2) ** 0.5, 2**16) / c.names_dataset,
            "a sample of the models, or neighbour lists of m_f instead of whole rows (query/trials/nearest.py)",
        ),
        Limit(
            "purity takes an hour",
            (_HOUR / c.purity_seconds_per_pair) ** 0.5 / c.names_dataset,
            "the same; its time is that of m² cosines",
        ),
        Limit(
            "one account's quota takes more than a day",
            day / _WINDOW * c.resolves_a_window / c.resolves,
            "PRO (2.4 times as much), several accounts by `index work --shard`, or days",
        ),
        Limit(
            "a line of 10 Gbit/s takes more than a day",
            day * c.line_bytes_a_second / _fetched(c, 1),
            "more machines with lines of their own (docs/clusters.md)",
        ),
        Limit(
            "a publish with nothing new takes a minute",
            minute / c.publish_again_seconds,
            "publish less often; one atlas for each base; read the listing from where the last publish stopped",
        ),
        Limit(
            "the compressed index outgrows 1 GiB of a reader's memory",
            2**30 / c.compressed_bytes,
            "a larger budget, shorter codes (--index), or one atlas for each base",
        ),
        Limit(
            "the database outgrows 100 GB, and every publish copies it",
            100e9 / c.database_bytes,
            "one atlas for each base; a file system that copies by reference (XFS, Btrfs)",
        ),
        Limit(
            "records with factors outgrow 1 TB",
            1e12 / c.record_bytes,
            "--no-keep-factors: other representations then need the weights again",
        ),
    ]
    return sorted(found, key=lambda limit: limit.models)


def constants_from(
    atlas: Mapping[str, Value], models: int, vectors: Mapping[str, Value] | None, count: int
) -> Constants:
    """From the figures of the largest atlas, and of the vectors alone where there are some.

    Raises KeyError naming a figure that was not measured.
    """
    indexed, at = (vectors, count) if vectors is not None and "compressed_bytes" in vectors else (atlas, models)
    return Constants(
        database_bytes=float(atlas["database_bytes"]) / models,
        listing_bytes=float(atlas["listing_bytes"]) / models,
        slim_record_bytes=float(atlas["record_bytes"]) / models,
        compressed_bytes=float(indexed["compressed_bytes"]) / at,
        publish_seconds=float(atlas["publish_seconds"]) / models,
        publish_again_seconds=float(atlas["nothing_seconds"]) / models,
        purity_seconds_per_pair=float(atlas["purity_seconds"]) / float(atlas["purity_models"]) ** 2,
    )


def constants_table(c: Constants) -> list[list[str]]:
    """Names, values, sources."""
    rows = [["constant", "value", "from"]]
    for one in fields(c):
        unit, source = MEANING[one.name]
        rows.append([f"`{one.name}`", shown(getattr(c, one.name), unit), source])
    return rows


def costs_table(c: Constants, rows: tuple[Cost, ...] = COSTS) -> list[list[str]]:
    """One row for each cost, one column for each size."""
    head = ["", "formula", *(f"{size:,}" for size in SIZES)]
    return [
        head,
        *([cost.what, cost.formula, *(shown(cost.compute(c, size), cost.unit) for size in SIZES)] for cost in rows),
    ]


def limits_table(c: Constants) -> list[list[str]]:
    """What breaks first."""
    rows = [[limit.what, f"{round(limit.models, -3):,.0f}", limit.then] for limit in limits(c)]
    return [["what", "at about … models", "what then"], *rows]


def shown(value: float, unit: str) -> str:
    """For people, dollars and hours included."""
    if unit == "dollars":
        return f"${value:,.2f}" if value < 10 else f"${value:,.0f}"
    if unit == "hours":
        return f"{value:,.1f} h" if value < 100 else f"{value:,.0f} h"
    if unit == "seconds" and value < 0.01:
        return f"{value:.1e} s"
    return UNITS[unit](value)
