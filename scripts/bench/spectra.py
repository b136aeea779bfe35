"""The row ``spectra``: all singular values of every delta, compared with LAPACK and WeightWatcher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from indexer.deltas.svd import spectrum
from indexer.records.record import rank_at
from scripts.bench.checkpoints import roberta_base
from scripts.bench.measure import Repeats, Table, interleaved_over, one_thread, say
from scripts.bench.vectors import LAYERS, exact_values, held_deltas, read_deltas
from scripts.bench.weightwatcher import spectra_by_weightwatcher

REPEATS = 3
THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)
SUBSET_LAYERS = (0, 11)
TIMES_FASTER = 4
# Smaller σ are as good as nothing: they hold less than a ten-thousandth of σ_1's energy each.
NOTABLE = 0.01

Way = Callable[[torch.Tensor], torch.Tensor]
OURS, LAPACK, PEER = "this project", "torch.linalg.svdvals", "WeightWatcher (float64)"


def measure(work: Path) -> list[Table]:
    """Time every way on the deltas of two layers, interleaved; compare ranks with those of double precision."""
    checkpoints = roberta_base(work)
    peer = spectra_by_weightwatcher()
    tables = []
    with one_thread(), torch.no_grad():
        for name, folder in checkpoints.fine_tunes.items():
            deltas = held_deltas(read_deltas(folder, checkpoints.matrices), SUBSET_LAYERS)
            matrices = [delta.matrix for delta in deltas]
            say(f"spectra: exact singular values of {len(deltas)} {name} deltas")
            exact = [exact_values(matrix.double()) for matrix in matrices]
            tables.append(_compared(name, matrices, exact, peer))
    return tables


def _gram(matrix: torch.Tensor) -> torch.Tensor:
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    return torch.linalg.eigvalsh(tall.T @ tall).flip(0).clamp_min(0).sqrt()


def _compared(name: str, matrices: list[torch.Tensor], exact: list[torch.Tensor], peer: Way | None) -> Table:
    ways: dict[str, Way] = {
        OURS: spectrum,
        LAPACK: torch.linalg.svdvals,
        "torch.linalg.svdvals, tall side up": exact_values,
        "eigvalsh of the float32 Gram matrix": _gram,
    }
    if peer is not None:
        ways[PEER] = peer
    found = {title: [way(matrix) for matrix in matrices] for title, way in ways.items()}  # the warm-up, too
    times = interleaved_over(ways, matrices, REPEATS)
    whole = LAYERS / len(SUBSET_LAYERS)
    return _table(name, {title: seconds.times(whole) for title, seconds in times.items()}, found, exact)


def _table(
    name: str, times: dict[str, Repeats], found: dict[str, list[torch.Tensor]], exact: list[torch.Tensor]
) -> Table:
    table = Table(
        f"spectra: {name} deltas, {len(exact)} of {len(exact) * LAYERS // len(SUBSET_LAYERS)} "
        f"(seconds by proportion), one thread; {REPEATS} interleaved repeats, median (range)",
        ("method", "s per model", "÷ ours", "worst rank difference", "worst σ error", "worst σ difference from ours"),
    )
    for title, seconds in times.items():
        ratio = seconds.ratio_to(times[OURS])
        pairs = zip(found[title], exact, strict=True)
        off = max(abs(rank - its) for mine, true in pairs for rank, its in zip(_ranks(mine), _ranks(true), strict=True))
        errors = largest_difference(found[title], exact)
        apart = "" if title == OURS else f"{largest_difference(found[title], found[OURS]):.1e}"
        table.add(title, seconds, ratio, off, f"{errors:.1e}", apart)
        if title == OURS:
            table.promises["same ranks ±1 at 50/80/90/95/99 % of the energy"] = off <= 1
        if title == LAPACK:
            promise = f"at least {TIMES_FASTER} × faster than torch.linalg.svdvals"
            table.promises[promise] = ratio.median >= TIMES_FASTER
    table.notes.append(f"Errors and differences are relative, of σ ≥ {NOTABLE:g} σ_1; error: from double precision.")
    if PEER not in times:
        table.notes.append("WeightWatcher: not measured, because it is not installed (pip install '.[peers]').")
    return table


def _ranks(values: torch.Tensor) -> list[int]:
    """Singular values needed for each of THRESHOLDS, of all there are."""
    return [rank_at(values, threshold) or 0 for threshold in THRESHOLDS]


def largest_difference(values: list[torch.Tensor], true: list[torch.Tensor]) -> float:
    """The largest relative difference of notable singular values, over all matrices."""
    pairs = zip(values, true, strict=True)
    return max(float((mine.double() / its.double() - 1).abs()[its >= NOTABLE * its[0]].max()) for mine, its in pairs)
