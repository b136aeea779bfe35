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
    "test_dask", "sampling/test_interrupted", "sampling/test_traffic", "test_limits", "browse/test_served",
    "test_flips", "predict/test_null", "opening/test_fuzz", "map/test_map", "sampling/test_atlas", "test_build",
    "face/test_signatures", "sampling/test_command", "session/test_min_throughput", "report/test_odd_atlases",
    "test_renames", "deltas/test_rounded_uploads", "family/test_trained", "lineage/test_stored", "lineage/test_forest",
    "ask/test_ask", "lineage/test_bad_input", "test_family_end_to_end", "test_mixed_layers",
    "architecture/test_read_back", "share/test_killed", "serve/test_answers", "test_coverage", "sql/test_answers",
    "test_package", "profiles/test_toy_layers", "test_publishing", "opening/test_changed", "profiles/test_interrupted",
    "test_rebuild", "share/test_merged", "test_atomic_files", "vectors/test_killed", "predict/test_classifier",
    "ranks/test_study", "opening/test_strict", "serve/test_mcp", "test_atlas", "trace/test_replayed_runs",
    "profiles/test_hostile", "profiles/test_questions", "share/test_kept_back", "reproduce/test_study",
    "sampling/test_queries", "test_skipped_models", "image_models/test_in_atlas", "predict/test_predict",
    "test_neighbours", "share/test_pushed", "test_projection", "family/test_folder", "share/test_hostile",
    "adapters/test_adapter_bases", "ranks/test_counted", "share/test_pulled",
    "test_new_commits", "clusters/test_believed", "share/test_faults", "face/test_commands", "commands/test_batches",
    "svd/test_truncated", "vocabulary/test_atlas", "commands/test_upkeep", "adapters/test_kinds",
    "ranks/test_against_numpy", "test_index_types",
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
