"""Rows ``vectors`` and ``spectra``: from a checkpoint on disk to singular triplets, and to whole spectra."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import transformers

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import BaseMatrices
from indexer.deltas.delta import DenseDelta, dense_deltas, layout_against
from indexer.deltas.svd import spectrum, truncated_svd
from indexer.names import DeltaKey
from indexer.records.record import ranks_at
from indexer.sources.registry import ModelRef
from scripts.bench.checkpoints import MODULES, roberta_base
from scripts.bench.measure import NotMeasuredError, Repeats, Table, interleaved, one_thread, say

LAYERS = 12
OURS = "this project"

# Row ``vectors``.
RANK = 8
REPEATS = 5
TOLERANCE = 0.01
LOWRANK, ORIGINAL = "torch.svd_lowrank(q=24, niter=3)", "original method: transformers + svd_lowrank(q=8)"

# Row ``spectra``.
SPECTRA_REPEATS = 3
SPECTRA_LAYERS = (0, 11)
THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)
TIMES_FASTER = 4
LAPACK, PEER = "torch.linalg.svdvals", "WeightWatcher (float64)"
# Smaller σ are left out of relative errors: each holds less than a ten-thousandth of the energy of σ_1.
NOTABLE = 0.01


def read_deltas(fine_tune: Path, base: BaseMatrices, layers: Collection[int] | None = None) -> Iterator[DenseDelta]:
    """Stream the deltas like a build; with ``layers`` only these, copied, because a stream reuses its memory."""
    checkpoint = open_checkpoint(ModelRef.parse(str(fine_tune)))
    try:
        for delta in dense_deltas(checkpoint, layout_against(checkpoint, base), base):
            if layers is None:
                yield delta
            elif delta.key.layer in layers:
                yield replace(delta, matrix=delta.matrix.clone())
    finally:
        checkpoint.close()


def exact_values(matrix: torch.Tensor) -> torch.Tensor:
    """All singular values by LAPACK, of the tall side (wide matrices take four times as long)."""
    return torch.linalg.svdvals(matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T)


def measure_vectors(work: Path) -> list[Table]:
    """Time every method on every fine-tune, interleaved; compare all values with exact ones."""
    checkpoints = roberta_base(work)
    tables = []
    with one_thread(), torch.no_grad():
        base_model = transformers.AutoModel.from_pretrained(checkpoints.base, add_pooling_layer=False)
        for name, folder in checkpoints.fine_tunes.items():
            say(f"vectors: exact singular values of the {name} deltas")
            exact = {delta.key: exact_values(delta.matrix) for delta in read_deltas(folder, checkpoints.matrices)}
            tables.append(_vectors_table(name, folder, checkpoints.matrices, base_model, exact))
    return tables


def _vectors_table(
    name: str,
    folder: Path,
    matrices: BaseMatrices,
    base_model: transformers.RobertaModel,
    exact: dict[DeltaKey, torch.Tensor],
) -> Table:
    decompose: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
        OURS: lambda matrix, norm: truncated_svd(matrix, RANK, 0, norm).s,
        LOWRANK: lambda matrix, norm: torch.svd_lowrank(matrix, q=24, niter=3)[1][:RANK],
        ORIGINAL: lambda matrix, norm: torch.svd_lowrank(matrix, q=RANK)[1],
    }
    found: dict[str, dict[DeltaKey, torch.Tensor]] = {}
    in_svd: dict[str, list[float]] = {method: [] for method in decompose}

    def run(method: str) -> float:
        """Do it once, and note the seconds within the SVD; returns all the seconds it took."""
        started, seconds = time.perf_counter(), 0.0
        if method == ORIGINAL:
            deltas = by_transformers(folder, base_model)
        else:
            deltas = ((delta.key, delta.matrix, delta.norm) for delta in read_deltas(folder, matrices))
        found[method] = {}
        for key, matrix, norm in deltas:
            begun = time.perf_counter()
            found[method][key] = decompose[method](matrix, norm)
            seconds += time.perf_counter() - begun
        in_svd[method].append(seconds)
        return time.perf_counter() - started

    say(f"vectors: {REPEATS} repeats of {len(decompose)} methods")
    totals = interleaved({method: partial(run, method) for method in decompose}, REPEATS)
    svd = {method: Repeats(values[1:]) for method, values in in_svd.items()}  # without the warm-up
    table = Table(
        f"vectors: roberta-base-sized, {name} deltas, rank {RANK}, one thread, base resident; "
        f"{REPEATS} interleaved repeats, median (range)",
        ("method", "read + SVD, s", "SVD, s", "read + SVD ÷ ours", "SVD ÷ ours", "worst σ error", "mean"),
    )
    for method in decompose:
        values = found[method]
        if len(values) != len(exact):
            raise NotMeasuredError(f"{method} gave {len(values)} of {len(exact)} deltas")
        errors = torch.stack([(mine / exact[key][:RANK] - 1).abs().max() for key, mine in values.items()])
        table.add(
            method,
            totals[method],
            svd[method],
            totals[method].ratio_to(totals[OURS]),
            svd[method].ratio_to(svd[OURS]),
            f"{float(errors.max()):.2%}",
            f"{float(errors.mean()):.2%}",
        )
        if method == OURS:
            table.promises[f"every σ_1…σ_8 within {TOLERANCE:.0%} of exact"] = float(errors.max()) < TOLERANCE
    for rival, promise in ((LOWRANK, f"no slower than {LOWRANK}"), (ORIGINAL, "faster than the original method")):
        table.promises[promise] = totals[rival].ratio_to(totals[OURS]).median >= 1
    table.notes.append(
        "Reading: this project's way (ranged reads, difference, norm, check), the original's: from_pretrained.\n"
        "Errors: worst of a delta's eight σ; worst and mean over deltas."
    )
    return table


def by_transformers(folder: Path, base: transformers.RobertaModel) -> Iterator[tuple[DeltaKey, torch.Tensor, float]]:
    """The original method: load the fine-tune with transformers and subtract the base held in memory."""
    tuned = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False)
    for number, (before, after) in enumerate(zip(base.encoder.layer, tuned.encoder.layer, strict=True)):
        for module, family in MODULES.items():
            change = after.get_submodule(module).weight - before.get_submodule(module).weight
            yield DeltaKey("", number, family), change, 0.0


def measure_spectra(work: Path) -> list[Table]:
    """Time every way on the deltas of two layers, interleaved; compare ranks with those of double precision."""
    checkpoints = roberta_base(work)
    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        OURS: spectrum,
        LAPACK: torch.linalg.svdvals,
    }
    if find_spec("weightwatcher") is not None:
        ways[PEER] = by_weightwatcher
    tables = []
    with one_thread(), torch.no_grad():
        for name, folder in checkpoints.fine_tunes.items():
            matrices = [delta.matrix for delta in read_deltas(folder, checkpoints.matrices, SPECTRA_LAYERS)]
            say(f"spectra: {len(matrices)} {name} deltas")
            exact = [exact_values(matrix.double()) for matrix in matrices]
            found = {title: [way(matrix) for matrix in matrices] for title, way in ways.items()}  # warms up, too
            times: dict[str, list[float]] = {title: [0.0] * SPECTRA_REPEATS for title in ways}
            for matrix in matrices:  # short turns, so that other work on the machine affects all ways alike
                turns = {title: lambda way=way, matrix=matrix: _seconds(way, matrix) for title, way in ways.items()}
                for title, repeats in interleaved(turns, SPECTRA_REPEATS, warm_up=False).items():
                    times[title] = [sum(pair) for pair in zip(times[title], repeats.values, strict=True)]
            tables.append(spectra_table(name, times, found, exact))
    return tables


def _seconds(way: Callable[[torch.Tensor], torch.Tensor], matrix: torch.Tensor) -> float:
    started = time.perf_counter()
    way(matrix)
    return time.perf_counter() - started


def by_weightwatcher(matrix: torch.Tensor) -> torch.Tensor:
    """Singular values as WeightWatcher (Martin & Mahoney) computes them for a layer whose weight is ``matrix``.

    Its "empirical spectral density" is their squares.
    """
    logging.getLogger("weightwatcher").setLevel(logging.ERROR)
    layer = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
    layer.weight.data = matrix
    watcher = import_module("weightwatcher").WeightWatcher(model=torch.nn.Sequential(layer))
    squares = watcher.get_ESD(layer=int(watcher.describe().layer_id.iloc[0]))
    return torch.from_numpy(np.sqrt(np.sort(squares)[::-1]))


def spectra_table(
    name: str, times: dict[str, list[float]], found: dict[str, list[torch.Tensor]], exact: list[torch.Tensor]
) -> Table:
    """``times``: seconds for all ``exact`` matrices in each repeat; ``found``: singular values by method."""
    whole = LAYERS / len(SPECTRA_LAYERS)
    repeats = {title: Repeats(seconds).times(whole) for title, seconds in times.items()}
    table = Table(
        f"spectra: {name} deltas, {len(exact)} of {round(len(exact) * whole)} (seconds multiplied), one thread; "
        f"{SPECTRA_REPEATS} interleaved repeats, median (range)",
        ("method", "s per model", "÷ ours", "worst rank difference", "worst σ error", "worst σ difference from ours"),
    )
    for title, seconds in repeats.items():
        ratio = seconds.ratio_to(repeats[OURS])
        off = max(
            abs((ranks_at(mine, [threshold])[0] or 0) - (ranks_at(true, [threshold])[0] or 0))
            for mine, true in zip(found[title], exact, strict=True)
            for threshold in THRESHOLDS
        )
        error = largest_difference(found[title], exact)
        apart = "" if title == OURS else f"{largest_difference(found[title], found[OURS]):.1e}"
        table.add(title, seconds, ratio, off, f"{error:.1e}", apart)
        if title == OURS:
            table.promises["same ranks ±1 at 50/80/90/95/99 % of the energy"] = off <= 1
        if title == LAPACK:
            table.promises[f"at least {TIMES_FASTER} × faster than {LAPACK}"] = ratio.median >= TIMES_FASTER
    table.notes.append(f"Errors and differences are relative, of σ ≥ {NOTABLE:g} σ_1; error: from double precision.")
    if PEER not in times:
        table.notes.append("WeightWatcher: not measured, because it is not installed (pip install '.[peers]').")
    return table


def largest_difference(values: list[torch.Tensor], true: list[torch.Tensor]) -> float:
    """The largest relative difference of notable singular values, over all matrices."""
    pairs = zip(values, true, strict=True)
    return max(float((mine.double() / its.double() - 1).abs()[its >= NOTABLE * its[0]].max()) for mine, its in pairs)
