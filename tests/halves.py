"""What `make test` tries of a long list of parameters, and `make slow` the rest of; and what both begin with."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from typing import Any
from zlib import crc32

import pytest

# Files that take longest, in either half. They go first: one that is begun last is waited for by all other processes.
LONGEST = (
    "test_dask", "test_flips", "test_build", "lineage/test_stored", "browse/test_served", "family/test_trained",
    "profiles/test_interrupted", "share/test_faults", "architecture/test_read_back", "map/test_map",
    "vectors/test_initialisations", "test_skipped_models", "share/test_hostile", "share/test_pulled",
    "map/test_picture", "profiles/test_hostile", "sql/test_answers", "serve/test_answers", "test_renames",
    "lineage/test_forest", "test_publishing", "share/test_killed", "opening/test_changed", "test_limits",
    "browse/test_situations", "share/test_kept_back", "test_pool", "profiles/test_toy_layers", "face/test_signatures",
    "session/test_min_throughput", "predict/test_null", "family/test_folder", "opening/test_fuzz", "test_rebuild",
    "report/test_odd_atlases", "commands/test_batches", "test_atlas", "profiles/test_tokenizer", "serve/test_mcp",
)  # fmt: skip


def longest_first(items: list[pytest.Item]) -> None:
    """Put the tests of ``LONGEST`` first, all others as they are; where there is a limit, in another order each day.

    What comes last is what a limit leaves out: not the same files every time.
    """
    turn = {f"tests/{name}.py": place for place, name in enumerate(LONGEST)}
    limit = until()
    day = 0 if limit is None else int(limit // 86_400)  # the same in all processes of a run

    def place(item: pytest.Item) -> tuple[int, int]:
        file = item.nodeid.partition("::")[0]
        return turn.get(file, len(turn)), 0 if limit is None else crc32(f"{day} {file}".encode())

    items.sort(key=place)


def until() -> float | None:
    """When the last test may begin, in seconds since 1970; None where there is no limit."""
    answer = os.environ.get("ATLAS_TESTS_UNTIL")
    return float(answer) if answer else None


def leave_out_what_is_late() -> None:
    """Skip a test that would begin after ``until``."""
    limit = until()
    if limit is not None and time.time() > limit:
        pytest.skip("no time left for it in this run")


def a_few(values: Iterable[Any], chosen: int | Collection[Any]) -> list[Any]:
    """All of ``values``; but for the first ``chosen``, or for those chosen by value, the slow half has them."""
    every = list(values)
    quick = every[:chosen] if isinstance(chosen, int) else [one for one in every if one in chosen]
    assert quick, chosen
    if not isinstance(chosen, int):
        assert len(quick) == len(chosen), chosen
    return [one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in every]
