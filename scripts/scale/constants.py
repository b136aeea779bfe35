"""The constants of the cost model: those that a run measured, and assumptions that are named.

What grows in two ways is told apart by two sizes: what a process takes to start from what each model takes, and the
cosines of all pairs from the rest of a publish. A run of one size cannot tell: then a start counts as growth, and what
a publish from nothing would take at other sizes is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from scripts.scale.facts import ADAPTERS, NAMES_DATASET
from scripts.scale.figures import UNITS, Figures


@dataclass(frozen=True)
class Constants:
    """Per model where nothing else is said. Those without a value here come from a measurement; None: not measured."""

    database_bytes: float
    listing_bytes: float
    slim_record_bytes: float
    compressed_bytes: float | None
    publish_seconds: float
    publish_seconds_per_pair: float | None
    publish_memory_start: float | None
    publish_memory: float | None
    publish_again_start: float
    publish_again_seconds: float
    purity_start: float
    purity_seconds_per_pair: float
    block_bytes: float = 340e6
    adapter_bytes: float = 1.2e6
    adapters: float = ADAPTERS
    svd_seconds: float = 0.45
    read_seconds: float = 0.1
    resolves: float = 2.0
    resolves_a_window: float = 5_000.0
    record_bytes: float = 2.6e6
    vector_bytes: float = 16_416.0
    deltas: float = 72.0
    neighbours: float = 50.0
    names_dataset: float = NAMES_DATASET
    large_factor: float = 76.0
    large_bytes: float = 13e9
    large_resolves: float = 5.0
    large_record_bytes: float = 40e6
    core_hour_price: float = 0.05
    cores: float = 16.0
    line_bytes_a_second: float = 1.25e9
    machine_hour_price: float = 1.0
    small_cores: float = 2.0
    small_line_bytes_a_second: float = 0.125e9
    small_machine_hour_price: float = 0.1
    stored_gigabyte_month_price: float = 0.02


MEANING = {
    "database_bytes": ("bytes", "measured: database ÷ models"),
    "listing_bytes": ("bytes", "measured: listing ÷ models"),
    "slim_record_bytes": ("bytes", "measured: a record without factors"),
    "compressed_bytes": ("bytes", "measured: compressed index ÷ vectors"),
    "publish_seconds": ("seconds", "measured: publish from nothing, what grows with n"),
    "publish_seconds_per_pair": ("seconds", "measured: … what grows with n² (each model's neighbours; two sizes)"),
    "publish_memory_start": ("bytes", "measured: … its peak memory, what does not grow (two sizes)"),
    "publish_memory": ("bytes", "measured: … what grows with n (two sizes)"),
    "publish_again_start": ("seconds", "measured: publish with nothing new, what does not grow (two sizes; 0 of one)"),
    "publish_again_seconds": ("seconds", "measured: … what grows with n"),
    "purity_start": ("seconds", "measured: purity, what does not grow (two sizes; 0 of one)"),
    "purity_seconds_per_pair": ("seconds", "measured: … what grows with m², m = n · names_dataset"),
    "block_bytes": ("bytes", "block matrices of roberta-base in float32, 68 % of its file"),
    "adapter_bytes": ("bytes", "LoRA factors of rank 8 on query and value"),
    "adapters": ("share", "of the models of roberta-base, 2022"),
    "svd_seconds": ("seconds", "one core, roberta-base, scripts.bench vectors"),
    "read_seconds": ("seconds", "one pass over the bytes, one core"),
    "resolves": ("count", "calls to /resolve: config and weights (167 in a build of 86 models on a loopback Hub)"),
    "resolves_a_window": ("count", "the Hub's quota for 5 minutes, free account (anonymous 3,000, PRO 12,000)"),
    "record_bytes": ("bytes", "a record with factors, rank 8, roberta-base"),
    "vector_bytes": ("bytes", "72 · 114 numbers of 16 bits"),
    "deltas": ("count", "matrices of roberta-base"),
    "neighbours": ("count", "kept of each model"),
    "names_dataset": ("share", "of the models name a data set"),
    "large_factor": ("count", "a model of 7 billion parameters has so many times the block matrices"),
    "large_bytes": ("bytes", "its block matrices in bfloat16"),
    "large_resolves": ("count", "its calls to /resolve: config, the list of shards, three shards of at most 5 GB"),
    "large_record_bytes": ("bytes", "its record with factors, rank 8: 32 layers, 4,096 wide, 11,008 inside"),
    "core_hour_price": ("dollars", "assumed: a rented core for an hour"),
    "cores": ("count", "assumed: of a large machine"),
    "line_bytes_a_second": ("bytes", "assumed: its line, 10 Gbit/s"),
    "machine_hour_price": ("dollars", "assumed: its rent for an hour"),
    "small_cores": ("count", "assumed: of a small machine"),
    "small_line_bytes_a_second": ("bytes", "assumed: its line, 1 Gbit/s"),
    "small_machine_hour_price": ("dollars", "assumed: its rent for an hour"),
    "stored_gigabyte_month_price": ("dollars", "assumed: a gigabyte of object storage for a month"),
}


def constants_from(atlases: Mapping[int, Figures], vectors: Mapping[int, Figures]) -> Constants:
    """From the two largest atlases, and from the vectors alone where these were compressed.

    Both are figures by number (of models, of vectors). Raises KeyError naming a figure that was not measured.
    """
    models = max(atlases)
    largest = atlases[models].values
    publish, pairs = with_pairs(_by_size(atlases, "publish_seconds"))
    memory = _by_size(atlases, "publish_peak")
    memory_start, memory_each = with_start(memory) if len(memory) > 1 else (None, None)
    again_start, again = with_start(_by_size(atlases, "nothing_seconds"))
    purity_start, purity = with_start(
        {(count * NAMES_DATASET) ** 2: seconds for count, seconds in _by_size(atlases, "purity_seconds").items()}
    )
    return Constants(
        database_bytes=float(largest["database_bytes"]) / models,
        listing_bytes=float(largest["listing_bytes"]) / models,
        slim_record_bytes=float(largest["record_bytes"]) / models,
        compressed_bytes=_compressed(vectors) or _compressed(atlases),
        publish_seconds=publish,
        publish_seconds_per_pair=pairs,
        publish_memory_start=memory_start,
        publish_memory=memory_each,
        publish_again_start=again_start,
        publish_again_seconds=again,
        purity_start=purity_start,
        purity_seconds_per_pair=purity,
    )


def with_start(measured: Mapping[float, float]) -> tuple[float, float]:
    """(start, each) of ``start + each · x``, from values by x.

    From the two largest x. All is growth where there is one x only, or where the line through two has no start or
    falls, which is noise or growth of another form.
    """
    *_, x = sorted(measured)
    if len(measured) > 1:
        before = sorted(measured)[-2]
        each = (measured[x] - measured[before]) / (x - before)
        start = measured[x] - each * x
        if start >= 0 and each > 0:
            return start, each
    return 0.0, measured[x] / x


def with_pairs(measured: Mapping[float, float]) -> tuple[float, float | None]:
    """(each, pair) of ``each · n + pair · n²``, from values by n: the two largest; of one, no pair is known.

    Where the larger takes less for each model there is no pair either; where it takes more than n² allows, all is
    pairs.
    """
    *_, n = sorted(measured)
    if len(measured) == 1:
        return measured[n] / n, None
    before = sorted(measured)[-2]
    pair = (measured[n] / n - measured[before] / before) / (n - before)
    if pair <= 0:
        return measured[n] / n, 0.0
    each = measured[n] / n - pair * n
    return (each, pair) if each >= 0 else (0.0, measured[n] / n**2)


def _by_size(atlases: Mapping[int, Figures], name: str) -> dict[float, float]:
    """One figure of every atlas that has it. Raises KeyError where the largest has not."""
    found = {float(count): float(one.values[name]) for count, one in atlases.items() if name in one.values}
    if max(atlases) not in found:
        raise KeyError(name)
    return found


def _compressed(columns: Mapping[int, Figures]) -> float | None:
    """Bytes of a compressed index a vector, of the largest that has one (an index that was refused has none)."""
    sizes = {count: float(one.values.get("compressed_bytes", 0)) for count, one in columns.items()}
    return next((size / count for count, size in sorted(sizes.items(), reverse=True) if size), None)


def constants_table(c: Constants) -> list[list[str]]:
    """Names, values, sources."""
    rows = [["constant", "value", "from"]]
    for one in fields(c):
        unit, source = MEANING[one.name]
        rows.append([f"`{one.name}`", shown(getattr(c, one.name), unit), source])
    return rows


def shown(value: float | None, unit: str) -> str:
    """For people, dollars and hours included."""
    if value is None:
        return "not measured"
    if unit == "dollars":
        return f"${value:,.2f}" if value < 10 else f"${value:,.0f}"
    if unit == "hours":
        return f"{value:,.1f} h" if value < 100 else f"{value:,.0f} h"
    if unit == "seconds" and 0 < value < 0.1:
        return f"{value:.2g} s"
    return UNITS[unit](value)
