"""The row ``spectra``: all singular values of every delta."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from indexer.delta import DenseDelta
from indexer.energy import rank_at
from indexer.svd import spectrum
from scripts.bench.checkpoints import roberta_base
from scripts.bench.measure import Stopwatch, Table, Timing, interleaved, one_thread, say
from scripts.bench.vectors import LAYERS, exact_values, read_deltas

REPEATS = 3
THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)
SUBSET_LAYERS = (0, 11)


def measure(work: Path) -> list[Table]:
    """Time every method on the deltas of two layers, interleaved; compare ranks with those of double precision."""
    checkpoints = roberta_base(work)
    tables = []
    with one_thread(), torch.no_grad():
        for name, folder in checkpoints.fine_tunes.items():
            deltas = [
                DenseDelta(d.key, d.matrix.clone(), d.norm, d.inner, d.transposed)
                for d in read_deltas(folder, checkpoints.matrices)
                if d.key.layer in SUBSET_LAYERS
            ]
            say(f"spectra: exact singular values of {len(deltas)} {name} deltas")
            exact = [exact_values(delta.matrix.double()) for delta in deltas]
            tables.append(_compare(name, [delta.matrix for delta in deltas], exact))
    return tables


def _gram(matrix: torch.Tensor) -> torch.Tensor:
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    return torch.linalg.eigvalsh(tall.T @ tall).flip(0).clamp_min(0).sqrt()


def _compare(name: str, matrices: list[torch.Tensor], exact: list[torch.Tensor]) -> Table:
    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "this project": spectrum,
        "torch.linalg.svdvals": torch.linalg.svdvals,
        "torch.linalg.svdvals, tall side up": exact_values,
        "eigvalsh of the float32 Gram matrix": _gram,
    }
    times = {title: Timing() for title in ways}
    found: dict[str, list[torch.Tensor]] = {}

    def run(title: str) -> None:
        watch = Stopwatch()
        with watch.running():
            found[title] = [ways[title](matrix) for matrix in matrices]
        times[title].seconds.append(watch.seconds * LAYERS / len(SUBSET_LAYERS))

    interleaved({title: partial(run, title) for title in ways}, REPEATS)
    table = Table(
        f"spectra: {name} deltas, {len(matrices)} of {len(matrices) * LAYERS // len(SUBSET_LAYERS)} "
        f"(seconds by proportion), one thread; medians of {REPEATS} interleaved repeats",
        ("method", "s per model", "range s", "/ ours", "worst rank difference", "worst σ error (σ ≥ σ_1/100)"),
    )
    for timing in times.values():
        del timing.seconds[0]
    for title, timing in times.items():
        off = max(
            abs(rank_at(mine, threshold) - rank_at(true, threshold))
            for mine, true in zip(found[title], exact, strict=True)
            for threshold in THRESHOLDS
        )
        errors = [
            float((mine / true - 1).abs()[true >= true[0] / 100].max())
            for mine, true in zip(found[title], exact, strict=True)
        ]
        ratio = timing.ratio_to(times["this project"])
        table.add(title, timing.median, timing.spread, ratio, off, f"{max(errors):.1e}")
        if title == "this project":
            table.promises["same ranks ±1 at 50/80/90/95/99 % of the energy"] = off <= 1
        if title == "torch.linalg.svdvals":
            table.promises["at least 4 × faster than torch.linalg.svdvals"] = ratio >= 4
    return table
