"""What `make test` tries of a long list of parameters, and `make slow` the rest of; and what both begin with."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from typing import Any
from zlib import crc32

import pytest

# Files that take longest, in either half. They go first: all other processes would wait for one that begins last. Those
# that need trained models come later.
LONGEST = (
    "sampling/test_traffic", "browse/test_served", "architecture/test_read_back", "test_dask", "test_build",
    "test_pool", "test_flips", "trace/test_replayed_runs", "opening/test_fuzz", "sampling/test_atlas",
    "predict/test_null", "vectors/test_killed", "test_package", "profiles/test_interrupted", "test_renames",
    "share/test_hostile", "weights/test_memory", "sampling/test_command", "family/test_folder", "share/test_faults",
    "test_rebuild", "test_limits", "test_publishing", "test_skipped_models", "report/test_odd_atlases",
    "lineage/test_stored", "deltas/test_rounded_uploads", "lineage/test_forest", "share/test_killed",
    "sql/test_answers", "test_compressed", "svd/test_truncated", "ranks/test_study", "test_nothing_left",
    "share/test_kept_back", "ask/test_ask", "share/test_pushed", "serve/test_answers", "profiles/test_hostile",
    "map/test_map", "vocabulary/test_atlas", "opening/test_changed", "test_neighbours", "share/test_merged",
    "predict/test_classifier", "session/test_min_throughput", "profiles/test_toy_layers", "sampling/test_interrupted",
    "reproduce/test_study", "test_atlas", "test_family_end_to_end", "family/test_trained", "ranks/test_counted",
    "commands/test_batches", "byteranges/test_faults", "share/test_pulled", "sampling/test_queries",
    "profiles/test_questions", "ranks/test_against_numpy", "serve/test_mcp",
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
