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
    "test_dask", "test_flips", "test_build", "test_skipped_models", "test_publishing", "map/test_map", "map/test_picture", "profiles/test_questions",
    "profiles/test_toy_layers", "test_atlas", "purity/test_against_loops", "browse/test_page", "test_compressed",
    "test_rebuild", "test_pool", "test_limits", "opening/test_fuzz", "lineage/test_forest", "family/test_trained",
    "share/test_killed", "profiles/test_interrupted", "vectors/test_left_out", "test_shards", "test_index_types",
    "predict/test_calibration", "test_nothing_left", "test_renames", "report/test_odd_atlases",
    "deltas/test_rounded_uploads", "report/test_page", "ranks/test_against_numpy", "clusters/test_believed",
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
