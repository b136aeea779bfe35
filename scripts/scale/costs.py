"""What the whole Hub would cost: formulas over constants, some measured by a run, others assumed and named.

A formula is text that is both shown in docs/scale.md and evaluated: ``n`` is a number of models, ``m`` the number of
those that name a data set, other names are constants or rows above it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import ceil

from scripts.scale.population import ADAPTERS, NAMES_DATASET

SIZES = (100_000, 1_000_000, 2_000_000)
Constants = Mapping[str, float | None]

# Name: unit, value (None: from a measurement), source.
CONSTANTS: dict[str, tuple[str, float | None, str]] = {
    "database_bytes": ("bytes", None, "measured: database ÷ models"),
    "listing_bytes": ("bytes", None, "measured: listing ÷ models"),
    "slim_record_bytes": ("bytes", None, "measured: a record without factors"),
    "compressed_bytes": ("bytes", None, "measured: compressed index ÷ vectors"),
    "publish_seconds": ("seconds", None, "measured: publish from nothing, what grows with n"),
    "publish_seconds_per_pair": (
        "seconds",
        None,
        "measured: … what grows with n² (each model's neighbours; two sizes)",
    ),
    "publish_memory_start": ("bytes", None, "measured: … its peak memory, what does not grow (two sizes)"),
    "publish_memory": ("bytes", None, "measured: … what grows with n (two sizes)"),
    "publish_again_start": (
        "seconds",
        None,
        "measured: publish with nothing new, what does not grow (two sizes; 0 of one)",
    ),
    "publish_again_seconds": ("seconds", None, "measured: … what grows with n"),
    "purity_start": ("seconds", None, "measured: purity, what does not grow (two sizes; 0 of one)"),
    "purity_seconds_per_pair": ("seconds", None, "measured: … what grows with m², m = n · names_dataset"),
    "block_bytes": ("bytes", 340e6, "block matrices of roberta-base in float32, 68 % of its file"),
    "adapter_bytes": ("bytes", 1.2e6, "LoRA factors of rank 8 on query and value"),
    "adapters": ("share", ADAPTERS, "of the models of roberta-base, 2022"),
    "svd_seconds": ("seconds", 0.45, "one core, roberta-base, scripts.bench vectors"),
    "read_seconds": ("seconds", 0.1, "one pass over the bytes, one core"),
    "resolves": ("count", 2.0, "calls to /resolve: config and weights (167 in a build of 86 models on a loopback Hub)"),
    "resolves_a_window": (
        "count",
        5_000.0,
        "the Hub's quota for 5 minutes, free account (anonymous 3,000, PRO 12,000)",
    ),
    "record_bytes": ("bytes", 2.6e6, "a record with factors, rank 8, roberta-base"),
    "vector_bytes": ("bytes", 16_416.0, "72 · 114 numbers of 16 bits"),
    "deltas": ("count", 72.0, "matrices of roberta-base"),
    "neighbours": ("count", 50.0, "stored for each model"),
    "names_dataset": ("share", NAMES_DATASET, "of the models name a data set"),
    "large_factor": ("count", 76.0, "block matrices of a model of 7 billion parameters ÷ those of roberta-base"),
    "large_bytes": ("bytes", 13e9, "its block matrices in bfloat16"),
    "large_resolves": ("count", 5.0, "its calls to /resolve: config, the list of shards, three shards of at most 5 GB"),
    "large_record_bytes": ("bytes", 40e6, "its record with factors, rank 8: 32 layers, 4,096 wide, 11,008 inside"),
    "core_hour_price": ("dollars", 0.05, "assumed: a rented core for an hour"),
    "cores": ("count", 16.0, "assumed: of a large machine"),
    "line_bytes_a_second": ("bytes", 1.25e9, "assumed: its line, 10 Gbit/s"),
    "machine_hour_price": ("dollars", 1.0, "assumed: its rent for an hour"),
    "small_cores": ("count", 2.0, "assumed: of a small machine"),
    "small_line_bytes_a_second": ("bytes", 0.125e9, "assumed: its line, 1 Gbit/s"),
    "small_machine_hour_price": ("dollars", 0.1, "assumed: its rent for an hour"),
    "stored_gigabyte_month_price": ("dollars", 0.02, "assumed: a gigabyte of object storage for a month"),
}


def _reading(fetched: str, core_seconds: str, resolves: str, record: str) -> tuple[tuple[str, str, str], ...]:
    """(what, formula, unit) of reading n models and storing their records, from formulas for one model."""
    return (
        ("bytes fetched", f"n · {fetched}", "bytes"),
        ("core hours", f"n · {core_seconds} ÷ 3,600", "hours"),
        ("hours on the line", "bytes_fetched ÷ line_bytes_a_second ÷ 3,600", "hours"),
        ("hours under the quota", f"n · {resolves} ÷ resolves_a_window · 300 ÷ 3,600", "hours"),
        ("wall, one account and one line", "max(hours_on_the_line, hours_under_the_quota)", "hours"),
        ("hours of large machines", "max(hours_on_the_line, core_hours ÷ cores)", "hours"),
        ("large machines, to be done in a day", "⌈hours_of_large_machines ÷ 24⌉", "count"),
        ("large machines, to be done in a week", "⌈hours_of_large_machines ÷ 168⌉", "count"),
        ("money: large machines", "hours_of_large_machines · machine_hour_price", "dollars"),
        ("hours of small machines",
         "max(bytes_fetched ÷ small_line_bytes_a_second ÷ 3,600, core_hours ÷ small_cores)", "hours"),
        ("small machines, to be done in a day", "⌈hours_of_small_machines ÷ 24⌉", "count"),
        ("small machines, to be done in a week", "⌈hours_of_small_machines ÷ 168⌉", "count"),
        ("money: small machines instead", "hours_of_small_machines · small_machine_hour_price", "dollars"),
        ("accounts, to be done in a day", "⌈hours_under_the_quota ÷ 24⌉", "count"),
        ("accounts, to be done in a week", "⌈hours_under_the_quota ÷ 168⌉", "count"),
        ("money: cores alone", "core_hours · core_hour_price", "dollars"),
        ("records with factors", f"n · {record}", "bytes"),
        ("money: keeping them for a year", "records_with_factors ÷ 10⁹ · stored_gigabyte_month_price · 12", "dollars"),
    )  # fmt: skip


COSTS = (
    *_reading(
        "((1 − adapters) · block_bytes + adapters · adapter_bytes)",
        "(1 − adapters) · (svd_seconds + read_seconds)",
        "resolves",
        "record_bytes",
    ),
    ("records without factors", "n · slim_record_bytes", "bytes"),
    ("listing", "n · listing_bytes", "bytes"),
    ("database", "n · database_bytes", "bytes"),
    ("rows of deltas", "n · deltas", "count"),
    ("rows of neighbours", "n · neighbours", "count"),
    ("vectors", "n · vector_bytes", "bytes"),
    ("compressed index, in memory", "n · compressed_bytes", "bytes"),
    ("publish from nothing", "(n · publish_seconds + n² · publish_seconds_per_pair) ÷ 3,600", "hours"),
    ("publish from nothing, memory", "publish_memory_start + n · publish_memory", "bytes"),
    ("publish with nothing new", "publish_again_start + n · publish_again_seconds", "seconds"),
    ("purity, its table", "(2 if m < 65,536 else 4) · m²", "bytes"),
    ("purity, time", "(purity_start + m² · purity_seconds_per_pair) ÷ 3,600", "hours"),
)

# Reading models of 7 billion parameters, all of them full fine-tunes.
LARGE = _reading("large_bytes", "large_factor · (svd_seconds + read_seconds)", "large_resolves", "large_record_bytes")

_MACHINES = "more machines with lines of their own (docs/clusters.md)"
_ACCOUNTS = "PRO (2.4 times as much), several accounts by `index work --shard`, or days"
_SLIM = "--no-keep-factors: other representations then need the weights again"
# What becomes uncomfortable, the cost, its bound, and what to do then.
_LIMITS = (
    ("one account's quota takes more than a day", COSTS, "hours under the quota", 24, _ACCOUNTS),
    ("a line of 10 Gbit/s takes more than a day", COSTS, "hours on the line", 24, _MACHINES),
    ("records with factors outgrow 1 TB", COSTS, "records with factors", 1e12, _SLIM),
    ("7 billion parameters: the quota takes more than a day", LARGE, "hours under the quota", 24, _ACCOUNTS),
    ("7 billion parameters: the line takes more than a day", LARGE, "hours on the line", 24, _MACHINES),
    ("7 billion parameters: records with factors outgrow 1 TB", LARGE, "records with factors", 1e12, _SLIM),
    ("the database outgrows 100 GB, and every publish copies it", COSTS, "database", 100e9,
     "one atlas for each base; a file system that copies by reference (XFS, Btrfs)"),
    ("a publish from nothing takes a day", COSTS, "publish from nothing", 24,
     "one atlas for each base; neighbours from the compressed index instead of from all vectors"),
    ("a publish with nothing new takes a minute", COSTS, "publish with nothing new", 60,
     "publish less often; one atlas for each base; read the listing from where the last publish stopped"),
    ("a publish from nothing takes more than 8 GB of memory", COSTS, "publish from nothing, memory", 8e9,
     "a machine with more; one atlas for each base"),
    ("purity's table outgrows 8 GB", COSTS, "purity, its table", 8e9,
     "a sample of the models, or neighbour lists of m_f instead of whole rows (query/statistics/neighbours.py)"),
    ("purity takes an hour", COSTS, "purity, time", 1, "the same; its time is that of m² cosines"),
    ("the compressed index outgrows 1 GiB of a reader's memory", COSTS, "compressed index, in memory", 2**30,
     "a larger budget, or one atlas for each base"),
)  # fmt: skip


def amounts(rows: Sequence[tuple[str, str, str]], constants: Constants, n: float) -> dict[str, float | None]:
    """The value of every row for n models; None if one of its constants was not measured."""
    share = constants["names_dataset"]
    names = {**constants, "n": n, "m": n * (share or 0), "max": max, "ceil": ceil}
    found: dict[str, float | None] = {}
    for what, formula, _ in rows:
        python = re.sub(r"(?<=\d),(?=\d)", "", formula)
        for sign, operator in (
            ("·", "*"),
            ("÷", "/"),
            ("−", "-"),
            ("²", "**2"),
            ("10⁹", "1e9"),
            ("⌈", "ceil("),
            ("⌉", ")"),
        ):
            python = python.replace(sign, operator)
        try:
            found[what] = eval(python, {"__builtins__": {}}, names)  # a formula of this file
        except TypeError:
            found[what] = None
        names[re.sub(r"\W+", "_", what)] = found[what]
    return found


def limits(constants: Constants) -> list[tuple[str, float, str]]:
    """(what, number of models at which its bound is reached, advice), in that order of numbers.

    What was not measured, or is beyond the bound with any number of models, is left out.
    """
    found = []
    for what, rows, cost, bound, advice in _LIMITS:
        low, high = 1.0, 1e12
        first = amounts(rows, constants, low)[cost]
        if first is None or first >= bound:
            continue
        while high / low > 1 + 1e-9:
            middle = (low * high) ** 0.5
            value = amounts(rows, constants, middle)[cost]
            low, high = (middle, high) if value is not None and value < bound else (low, middle)
        found.append((what, low, advice))
    return sorted(found, key=lambda limit: limit[1])


def constants_of(atlases: Mapping[str, Mapping[str, float]], vectors: Mapping[str, Mapping[str, float]]) -> Constants:
    """The constants with what was measured: figures by number of models, and of vectors.

    Two sizes separate what grows from what does not (the start of a process), and n² from n. Raises KeyError naming a
    figure that the largest atlas lacks, ValueError if there is no atlas.
    """
    if not atlases:
        raise ValueError("the run measured no atlas")
    models = max(map(int, atlases))
    largest = atlases[str(models)]

    def by_size(name: str) -> dict[float, float]:
        return {float(size): one[name] for size, one in atlases.items() if name in one or int(size) == models}

    def compressed(columns: Mapping[str, Mapping[str, float]]) -> float | None:
        sizes = {int(count): one.get("compressed_bytes", 0) for count, one in columns.items()}
        return next((sizes[count] / count for count in sorted(sizes, reverse=True) if sizes[count]), None)

    publish, pairs = with_pairs(by_size("publish_seconds"))
    memory = by_size("publish_peak")
    memory_start, memory_each = with_start(memory) if len(memory) > 1 else (None, None)
    again_start, again = with_start(by_size("nothing_seconds"))
    purity_start, purity = with_start(
        {(count * NAMES_DATASET) ** 2: seconds for count, seconds in by_size("purity_seconds").items()}
    )
    return {name: value for name, (_, value, _) in CONSTANTS.items()} | {
        "database_bytes": largest["database_bytes"] / models,
        "listing_bytes": largest["listing_bytes"] / models,
        "slim_record_bytes": largest["record_bytes"] / models,
        "compressed_bytes": compressed(vectors) or compressed(atlases),
        "publish_seconds": publish,
        "publish_seconds_per_pair": pairs,
        "publish_memory_start": memory_start,
        "publish_memory": memory_each,
        "publish_again_start": again_start,
        "publish_again_seconds": again,
        "purity_start": purity_start,
        "purity_seconds_per_pair": purity,
    }


def with_start(measured: Mapping[float, float]) -> tuple[float, float]:
    """(start, each) of ``start + each · x`` through the values at the two largest x.

    All is growth if there is one x only, or if the line through two has no start or falls: noise, or another form.
    """
    *others, x = sorted(measured)
    if others:
        each = (measured[x] - measured[others[-1]]) / (x - others[-1])
        start = measured[x] - each * x
        if start >= 0 and each > 0:
            return start, each
    return 0.0, measured[x] / x


def with_pairs(measured: Mapping[float, float]) -> tuple[float, float | None]:
    """(each, pair) of ``each · n + pair · n²`` through the values at the two largest n; pair is None for one n.

    pair is 0 if the larger takes less for each model; each is 0 if it takes more than n² allows.
    """
    *others, n = sorted(measured)
    if not others:
        return measured[n] / n, None
    pair = (measured[n] / n - measured[others[-1]] / others[-1]) / (n - others[-1])
    if pair <= 0:
        return measured[n] / n, 0.0
    each = measured[n] / n - pair * n
    return (each, pair) if each >= 0 else (0.0, measured[n] / n**2)


def constants_table(constants: Constants) -> list[list[str]]:
    """Names, values, sources."""
    body = [[f"`{name}`", shown(constants[name], unit), source] for name, (unit, _, source) in CONSTANTS.items()]
    return [["constant", "value", "from"], *body]


def shown(value: float | str | None, unit: str) -> str:
    """A value with its unit, for people."""
    if value is None:
        return "not measured"
    if isinstance(value, str):
        return value
    if unit == "dollars":
        return f"${value:,.2f}" if value < 10 else f"${value:,.0f}"
    if unit == "hours":
        return f"{value:,.1f} h" if value < 100 else f"{value:,.0f} h"
    if unit == "seconds":
        return f"{value:.2g} s" if 0 < value < 0.1 else f"{value:.2f} s" if value < 10 else f"{value:,.0f} s"
    if unit == "milliseconds":
        return f"{value:.3g} ms" if value < 999.5 else f"{value:,.0f} ms"
    if unit == "count":
        return f"{round(value):,}"
    if unit == "share":
        return f"{value:.3f}"
    for prefix in ("B", "KB", "MB", "GB", "TB", "PB"):
        if abs(value) < 999.5 or prefix == "PB":  # three digits of what is more would be 1,000
            break
        value /= 1000
    return f"{value:,.0f} {prefix}" if abs(value) >= 999.5 else f"{value:.3g} {prefix}"
