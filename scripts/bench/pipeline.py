"""How well reading and computing overlap: a build at a throttled Hub against each of the two alone.

The Hub serves one float16 fine-tune under several names. "Compute alone" is the same work on the same files from a
warm disk, "transfer alone" the same requests with nothing done to what comes; each runs in as many processes of its
own. The clock runs from the moment the first process begins its first model to the last result: what a process
takes to start is in none of the three. In each repeat the line is throttled so that the transfer takes as long as
computing just did, the hardest case: where one of them is the bottleneck by far, there is little to overlap.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from huggingface_hub import HfApi

from indexer.builds.executor import in_processes
from indexer.builds.resources import Resources
from indexer.builds.worker import RecordWorker
from indexer.deltas.delta import layout_against
from indexer.names import ModelRef
from indexer.records.identity import SPECTRA_FORM, SVD_METHOD, Spec, Unit
from indexer.weights.checkpoint import open_checkpoint
from scripts.bench.checkpoints import CODE, FEW, Checkpoints, few_layers
from scripts.bench.hub import served
from scripts.bench.inputs import made_once
from scripts.bench.measure import NotMeasuredError, Repeats, Table, say
from scripts.loopback_hub import LoopbackHub

WORKERS = 2
MODELS = 4
REPEATS = 3
PROMISE = 1.15
COMPUTE, TRANSFER, BOTH = "compute alone", "transfer alone", "both at once"

_TEMPLATE = Unit(
    model=ModelRef("bench/base"),
    commit="0" * 40,
    base="bench/base",
    base_commit="0" * 40,
    relation="finetune",
    spec=Spec(spectra=SPECTRA_FORM, svd=SVD_METHOD),
)


def measure(work: Path) -> list[Table]:
    """One table: compute alone (with spectra, which are the most work there is), transfer alone, both at once."""
    made = few_layers(work)
    store = made_once(work / f"pipeline-{MODELS}-of-{FEW}-layers", partial(_make_store, made), [Path(__file__), *CODE])
    here = _units_on_disk(store)
    names, size = _block_tensors(made, here[0])
    with served(store) as hub:
        there = _units_on_hub(store, hub)
        say(f"pipeline: {REPEATS} repeats")
        times = {name: Repeats() for name in (COMPUTE, TRANSFER, BOTH)}
        for number in range(REPEATS):
            alone = _run(here, made)
            times[COMPUTE].values.append(alone)
            # Anew each time: what slows the machine down must not make one of the two the bottleneck.
            hub.bandwidth = MODELS * size / alone
            ways = [(TRANSFER, lambda: _drain(there, names)), (BOTH, lambda: _run(there, made))]
            for name, way in ways if number % 2 else reversed(ways):
                times[name].values.append(way())
        return [_table(times, MODELS * size / 1e6)]


def _table(times: Mapping[str, Repeats], megabytes: float) -> Table:
    """Of the seconds of the three, and the megabytes that were transferred in them."""
    larger = times[COMPUTE].larger_of(times[TRANSFER])
    table = Table(
        f"pipeline: {MODELS} float16 fine-tunes of {FEW} layers ({megabytes:.0f} MB), with spectra, {WORKERS} workers; "
        f"{REPEATS} repeats, median (range); the start of the workers not counted",
        ("what", "s", "÷ the larger of the two alone"),
    )
    for name, taken in times.items():
        table.add(name, taken, taken.ratio_to(larger))
    ratio = times[BOTH].ratio_to(larger)
    table.promises[f"wall ≤ {PROMISE} × max({TRANSFER}, {COMPUTE})"] = ratio.median <= PROMISE
    return table


def _run(units: Sequence[Unit], made: Checkpoints) -> float:
    spans = []
    with tempfile.TemporaryDirectory() as atlas:
        worker = RecordWorker(Path(atlas), made.matrices.path, Resources(WORKERS))
        for result in in_processes(units, worker, WORKERS):
            if result.error is not None:
                raise NotMeasuredError(f"{result.unit.model}: {result.error}")
            spans.append((time.monotonic() - result.seconds, time.monotonic()))
    return _from_first_to_last(spans)


def _drain(units: Sequence[Unit], names: Sequence[str]) -> float:
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        return _from_first_to_last(list(pool.map(partial(_read_all, names), units)))


def _from_first_to_last(spans: Sequence[tuple[float, float]]) -> float:
    return max(stop for _, stop in spans) - min(start for start, _ in spans)


def _read_all(names: Sequence[str], unit: Unit) -> tuple[float, float]:
    """When it began and when it was over; all processes of a machine share this clock."""
    started = time.monotonic()
    checkpoint = open_checkpoint(unit.model, commit=unit.commit, filenames=unit.filenames)
    for _ in checkpoint.stream(names):
        pass
    checkpoint.close()
    return started, time.monotonic()


def _block_tensors(made: Checkpoints, unit: Unit) -> tuple[list[str], int]:
    """Names of the tensors that are read, and their bytes."""
    checkpoint = open_checkpoint(unit.model)
    try:
        names = list(layout_against(checkpoint, made.matrices).tensors)
        return names, sum(checkpoint.tensors[name].nbytes for name in names)
    finally:
        checkpoint.close()


def _units_on_disk(store: Path) -> list[Unit]:
    return [replace(_TEMPLATE, model=ModelRef.parse(str(folder))) for folder in _folders(store)]


def _units_on_hub(store: Path, hub: LoopbackHub) -> list[Unit]:
    """Each with the commit and the file names that a listing tells of it."""
    api = HfApi(endpoint=hub.endpoint)
    units = []
    for folder in _folders(store):
        found = api.model_info(f"bench/{folder.name}")
        names = tuple(path.name for path in folder.iterdir())
        units.append(replace(_TEMPLATE, model=ModelRef(found.id), commit=str(found.sha), filenames=names))
    return units


def _folders(store: Path) -> list[Path]:
    return sorted(folder for folder in (store / "bench").iterdir() if folder.is_dir())


def _make_store(made: Checkpoints, folder: Path) -> None:
    import torch
    from transformers import RobertaForSequenceClassification

    model = RobertaForSequenceClassification.from_pretrained(made.fine_tunes["planted"], dtype=torch.float16)
    first = folder / "bench" / "model-0"
    model.save_pretrained(first)
    for number in range(1, MODELS):
        shutil.copytree(first, folder / "bench" / f"model-{number}", copy_function=os.link)
