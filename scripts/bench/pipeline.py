"""Row ``pipeline``: how well reading and computing overlap in a build, compared with each of the two alone.

A throttled Hub serves one float16 fine-tune under several names. "Compute alone" is the same work on the same files from
a warm disk, "transfer alone" the same requests with nothing done to the answers; each runs in the same number of
processes. The clock runs from the moment the first process begins its first model to the last result: the start of
processes is in none of the three. In each repeat the bandwidth is set so that the transfer takes as long as computing
just did, the hardest case: if one of them is the bottleneck by far, there is little to overlap.
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
from scripts.bench.measure import NotMeasuredError, Repeats, Table, made_once, say
from scripts.bench.reading import served

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
    """One table: compute alone (with spectra, the most work there is), transfer alone, both at once."""
    made = few_layers(work)
    store = made_once(work / f"pipeline-{MODELS}-of-{FEW}-layers", partial(_make_store, made), [Path(__file__), *CODE])
    folders = sorted(folder for folder in (store / "bench").iterdir() if folder.is_dir())
    here = [replace(_TEMPLATE, model=ModelRef.parse(str(folder))) for folder in folders]
    checkpoint = open_checkpoint(here[0].model)
    names = list(layout_against(checkpoint, made.matrices).tensors)
    size = MODELS * sum(checkpoint.tensors[name].nbytes for name in names)
    checkpoint.close()
    found: dict[str, list[float]] = {COMPUTE: [], TRANSFER: [], BOTH: []}
    with served(store) as hub:
        there = []  # with the commit and the file names of a listing
        for folder in folders:
            info = HfApi(endpoint=hub.endpoint).model_info(f"bench/{folder.name}")
            files = tuple(path.name for path in folder.iterdir())
            there.append(replace(_TEMPLATE, model=ModelRef(info.id), commit=str(info.sha), filenames=files))
        say(f"pipeline: {REPEATS} repeats")
        for number in range(REPEATS):
            found[COMPUTE].append(_run(here, made))
            # Set in each repeat: what slows the machine down must not make one of the two the bottleneck.
            hub.bandwidth = size / found[COMPUTE][-1]
            ways = [(TRANSFER, lambda: _drain(there, names)), (BOTH, lambda: _run(there, made))]
            for name, way in ways if number % 2 else reversed(ways):
                found[name].append(way())
    return [pipeline_table({name: Repeats(seconds) for name, seconds in found.items()}, size / 1e6)]


def pipeline_table(times: Mapping[str, Repeats], megabytes: float) -> Table:
    """The seconds of the three, and their ratio to the larger of the two alone in each repeat."""
    larger = Repeats(list(map(max, times[COMPUTE].values, times[TRANSFER].values)))
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
    """Seconds of a build, from the first start to the last result."""
    spans = []
    with tempfile.TemporaryDirectory() as atlas:
        worker = RecordWorker(Path(atlas), made.matrices.path, Resources(WORKERS))
        for result in in_processes(units, worker, WORKERS):
            if result.error is not None:
                raise NotMeasuredError(f"{result.unit.model}: {result.error}")
            spans.append((time.monotonic() - result.seconds, time.monotonic()))
    return max(stop for _, stop in spans) - min(start for start, _ in spans)


def _drain(units: Sequence[Unit], names: Sequence[str]) -> float:
    """Seconds of the same requests, from the first start to the last byte."""
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        spans = list(pool.map(partial(_read_all, names), units))
    return max(stop for _, stop in spans) - min(start for start, _ in spans)


def _read_all(names: Sequence[str], unit: Unit) -> tuple[float, float]:
    """When it began and ended, by the clock that all processes of a machine share."""
    started = time.monotonic()
    checkpoint = open_checkpoint(unit.model, commit=unit.commit, filenames=unit.filenames)
    for _ in checkpoint.stream(names):
        pass
    checkpoint.close()
    return started, time.monotonic()


def _make_store(made: Checkpoints, folder: Path) -> None:
    import torch
    from transformers import RobertaForSequenceClassification

    model = RobertaForSequenceClassification.from_pretrained(made.fine_tunes["planted"], dtype=torch.float16)
    first = folder / "bench" / "model-0"
    model.save_pretrained(first)
    for number in range(1, MODELS):
        shutil.copytree(first, folder / "bench" / f"model-{number}", copy_function=os.link)
