"""What the whole Hub would cost, from figures that were measured and assumptions that are named.

Every row of the tables is one formula over ``Constants``; ``docs/scale.md`` prints both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil

from scripts.scale.constants import Constants, shown

SIZES = (100_000, 1_000_000, 2_000_000)
_HOUR = 3_600.0
_DAY, _WEEK = 24.0, 168.0
_WINDOW = 300.0

# From constants to a number: of one model.
Each = Callable[[Constants], float]


@dataclass(frozen=True)
class Cost:
    """One row: ``formula`` names the constants, ``compute`` is the same in Python for n models; None: not measured."""

    what: str
    formula: str
    unit: str
    compute: Callable[[Constants, float], float | None]


@dataclass(frozen=True)
class Work:
    """What reading one model takes: each a formula and the same in Python."""

    fetched: tuple[str, Each]
    core_seconds: tuple[str, Each]
    resolves: tuple[str, Each]
    record: tuple[str, Each]

    def line_hours(self, c: Constants, n: float) -> float:
        """On the line of one large machine."""
        return n * self.fetched[1](c) / c.line_bytes_a_second / _HOUR

    def core_hours(self, c: Constants, n: float) -> float:
        """Of one core."""
        return n * self.core_seconds[1](c) / _HOUR

    def quota_hours(self, c: Constants, n: float) -> float:
        """Of one account."""
        return n * self.resolves[1](c) / c.resolves_a_window * _WINDOW / _HOUR

    def machine_hours(self, c: Constants, n: float) -> float:
        """Of large machines: their lines or their cores, whichever takes longer."""
        return max(self.line_hours(c, n), self.core_hours(c, n) / c.cores)

    def small_machine_hours(self, c: Constants, n: float) -> float:
        """The same of small machines."""
        line = n * self.fetched[1](c) / c.small_line_bytes_a_second / _HOUR
        return max(line, self.core_hours(c, n) / c.small_cores)


SMALL = Work(
    ("((1 − adapters) · block_bytes + adapters · adapter_bytes)",
     lambda c: (1 - c.adapters) * c.block_bytes + c.adapters * c.adapter_bytes),
    ("(1 − adapters) · (svd_seconds + read_seconds)", lambda c: (1 - c.adapters) * (c.svd_seconds + c.read_seconds)),
    ("resolves", lambda c: c.resolves),
    ("record_bytes", lambda c: c.record_bytes),
)  # fmt: skip

# A model of 7 billion parameters, all of them full fine-tunes.
BIG = Work(
    ("large_bytes", lambda c: c.large_bytes),
    ("large_factor · (svd_seconds + read_seconds)", lambda c: c.large_factor * (c.svd_seconds + c.read_seconds)),
    ("large_resolves", lambda c: c.large_resolves),
    ("large_record_bytes", lambda c: c.large_record_bytes),
)


def _reading(work: Work) -> tuple[Cost, ...]:
    """Bytes, hours, machines and money of reading n models and keeping their records."""
    fetched, record = work.fetched[1], work.record[1]
    return (
        Cost("bytes fetched", f"n · {work.fetched[0]}", "bytes", lambda c, n: n * fetched(c)),
        Cost("core hours", f"n · {work.core_seconds[0]} ÷ 3,600", "hours", work.core_hours),
        Cost("hours on the line", "bytes fetched ÷ line_bytes_a_second ÷ 3,600", "hours", work.line_hours),
        Cost(
            "hours under the quota", f"n · {work.resolves[0]} ÷ resolves_a_window · 300 ÷ 3,600", "hours",
            work.quota_hours,
        ),
        Cost(
            "wall, one account and one line", "the largest of the last two", "hours",
            lambda c, n: max(work.line_hours(c, n), work.quota_hours(c, n)),
        ),
        Cost(
            "hours of large machines", "the larger of hours on the line and core hours ÷ cores", "hours",
            work.machine_hours,
        ),
        *_machines("large machines", work.machine_hours),
        Cost(
            "money: large machines", "their hours · machine_hour_price", "dollars",
            lambda c, n: work.machine_hours(c, n) * c.machine_hour_price,
        ),
        Cost(
            "hours of small machines", "the same with small_line_bytes_a_second and small_cores", "hours",
            work.small_machine_hours,
        ),
        *_machines("small machines", work.small_machine_hours),
        Cost(
            "money: small machines instead", "their hours · small_machine_hour_price", "dollars",
            lambda c, n: work.small_machine_hours(c, n) * c.small_machine_hour_price,
        ),
        *_machines("accounts", work.quota_hours, "hours under the quota"),
        Cost(
            "money: cores alone", "core hours · core_hour_price", "dollars",
            lambda c, n: work.core_hours(c, n) * c.core_hour_price,
        ),
        Cost("records with factors", f"n · {work.record[0]}", "bytes", lambda c, n: n * record(c)),
        Cost(
            "money: keeping them for a year", "records · stored_gigabyte_month_price · 12", "dollars",
            lambda c, n: n * record(c) / 1e9 * c.stored_gigabyte_month_price * 12,
        ),
    )  # fmt: skip


def _machines(kind: str, hours: Callable[[Constants, float], float], told: str = "their hours") -> tuple[Cost, ...]:
    """How many of a kind are done in a day, and in a week."""
    return tuple(
        Cost(f"{kind}, to be done in a {name}", f"⌈{told} ÷ {span:.0f}⌉", "count",
             partial(_how_many, hours, span))
        for name, span in (("day", _DAY), ("week", _WEEK))
    )  # fmt: skip


def _how_many(hours: Callable[[Constants, float], float], span: float, c: Constants, n: float) -> float:
    return ceil(hours(c, n) / span)


def _publish_hours(c: Constants, n: float) -> float | None:
    if c.publish_seconds_per_pair is None:
        return None
    return (n * c.publish_seconds + n**2 * c.publish_seconds_per_pair) / _HOUR


def _publish_memory(c: Constants, n: float) -> float | None:
    if c.publish_memory_start is None or c.publish_memory is None:
        return None
    return c.publish_memory_start + n * c.publish_memory


def _purity_hours(c: Constants, n: float) -> float:
    return (c.purity_start + (n * c.names_dataset) ** 2 * c.purity_seconds_per_pair) / _HOUR


COSTS = (
    *_reading(SMALL),
    Cost("records without factors", "n · slim_record_bytes", "bytes", lambda c, n: n * c.slim_record_bytes),
    Cost("listing", "n · listing_bytes", "bytes", lambda c, n: n * c.listing_bytes),
    Cost("database", "n · database_bytes", "bytes", lambda c, n: n * c.database_bytes),
    Cost("rows of deltas", "n · deltas", "count", lambda c, n: n * c.deltas),
    Cost("rows of neighbours", "n · neighbours", "count", lambda c, n: n * c.neighbours),
    Cost("vectors", "n · vector_bytes", "bytes", lambda c, n: n * c.vector_bytes),
    Cost(
        "compressed index, in memory", "n · compressed_bytes", "bytes",
        lambda c, n: None if c.compressed_bytes is None else n * c.compressed_bytes,
    ),
    Cost("publish from nothing", "n · publish_seconds + n² · publish_seconds_per_pair", "hours", _publish_hours),
    Cost("publish from nothing, memory", "publish_memory_start + n · publish_memory", "bytes", _publish_memory),
    Cost(
        "publish with nothing new", "publish_again_start + n · publish_again_seconds", "seconds",
        lambda c, n: c.publish_again_start + n * c.publish_again_seconds,
    ),
    Cost(
        "purity, its table", "2 m² bytes, 4 m² from m = 65,536 on; m = n · names_dataset", "bytes",
        lambda c, n: (2 if n * c.names_dataset < 2**16 else 4) * (n * c.names_dataset) ** 2,
    ),
    Cost("purity, time", "purity_start + m² · purity_seconds_per_pair", "hours", _purity_hours),
)  # fmt: skip

# The same reading for as many models of 7 billion parameters.
LARGE = _reading(BIG)


def costs_table(c: Constants, rows: tuple[Cost, ...] = COSTS) -> list[list[str]]:
    """One row for each cost, one column for each size."""
    head = ["", "formula", *(f"{size:,}" for size in SIZES)]
    return [
        head,
        *([cost.what, cost.formula, *(shown(cost.compute(c, size), cost.unit) for size in SIZES)] for cost in rows),
    ]
