"""How well reading and computing overlap: a build at a throttled Hub against each of the two alone.

The Hub serves one roberta-base-sized fine-tune (float16) under several names. "Compute alone" is the same work on
the same files from a warm disk, "transfer alone" the same requests with nothing done to what comes; each runs in the
same pool of processes. The rate of the line is set so that both take about as long, the hardest case; then once
more to a rate at which the line is the bottleneck by far, as it mostly is.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from huggingface_hub import HfApi

from indexer.delta import layout_against
from indexer.executor import ProcessExecutor
from indexer.record import Spec
from indexer.running.resources import Resources
from indexer.running.worker import Place
from indexer.svd import SVD_METHOD
from indexer.unit import Unit
from indexer.weights import open_checkpoint
from indexer.words import ModelRef
from scripts.bench.checkpoints import Checkpoints, roberta_base
from scripts.bench.measure import NotMeasuredError, Table, Timing, interleaved, say
from scripts.loopback_hub import LoopbackHub

MODELS = 6
WORKERS = 2
REPEATS = 2
SLOW_BYTES_PER_SECOND = 60e6


def measure(work: Path) -> list[Table]:
    """Rows for a balanced line (with spectra, which are the most work there is) and for a slow one."""
    made = roberta_base(work)
    store = _store(work, made)
    with LoopbackHub(store) as hub:
        hub.prepare()
        os.environ["HF_ENDPOINT"] = hub.endpoint  # the processes of the pools inherit it
        here = _units(store, None, spectra=True)
        _, size = _block_tensors(made, here[0])
        say("pipeline: how long computing alone takes")
        balanced = MODELS * size / _run(here, made)
        return [
            _row("both take about as long", hub, made, store, balanced, spectra=True),
            _row("the line is the bottleneck", hub, made, store, SLOW_BYTES_PER_SECOND, spectra=False),
        ]


def _row(title: str, hub: LoopbackHub, made: Checkpoints, store: Path, rate: float, spectra: bool) -> Table:
    here, remote = _units(store, None, spectra), _units(store, hub, spectra)
    names, _ = _block_tensors(made, here[0])
    times = {name: Timing() for name in ("compute alone", "transfer alone", "both at once")}
    ways: dict[str, Callable[[], float]] = {
        "compute alone": lambda: _run(here, made),
        "transfer alone": lambda: _drain(remote, names),
        "both at once": lambda: _run(remote, made),
    }

    def timed(name: str) -> None:
        hub.bandwidth = rate
        times[name].seconds.append(ways[name]())

    say(f"pipeline: {title}")
    interleaved({name: partial(timed, name) for name in ways}, REPEATS)
    for timing in times.values():
        del timing.seconds[0]
    table = Table(
        f"pipeline: {MODELS} float16 roberta-base-sized fine-tunes at {rate / 1e6:.0f} MB/s, {WORKERS} workers, "
        f"{title}; medians of {REPEATS} interleaved repeats, the start of the workers included",
        ("what", "s", "range s"),
    )
    for name, timing in times.items():
        table.add(name, timing.median, timing.spread)
    larger = [max(pair) for pair in zip(times["compute alone"].seconds, times["transfer alone"].seconds, strict=True)]
    ratio = times["both at once"].ratio_to(Timing(larger))
    table.add("both ÷ the larger", ratio, "")
    table.promises["wall ≤ 1.15 × max(transfer alone, compute alone)"] = ratio <= 1.15
    return table


def _run(units: Sequence[Unit], made: Checkpoints) -> float:
    with tempfile.TemporaryDirectory() as atlas:
        place = Place(Path(atlas), made.matrices.path, Resources(WORKERS))
        started = time.perf_counter()
        for result in ProcessExecutor(WORKERS).run(units, place):
            if result.error is not None:
                raise NotMeasuredError(f"{result.unit.model}: {result.error}")
        return time.perf_counter() - started


def _drain(units: Sequence[Unit], names: Sequence[str]) -> float:
    started = time.perf_counter()
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(_read_all, names), units))
    return time.perf_counter() - started


def _read_all(names: Sequence[str], unit: Unit) -> None:
    checkpoint = open_checkpoint(unit.model, commit=unit.commit, filenames=unit.filenames)
    for _ in checkpoint.stream(names):
        pass
    checkpoint.close()


def _block_tensors(made: Checkpoints, unit: Unit) -> tuple[list[str], int]:
    """Names of the tensors that are read, and their bytes."""
    checkpoint = open_checkpoint(unit.model)
    try:
        names = list(layout_against(checkpoint, made.matrices).tensors)
        return names, sum(checkpoint.tensors[name].nbytes for name in names)
    finally:
        checkpoint.close()


def _units(store: Path, hub: LoopbackHub | None, spectra: bool) -> list[Unit]:
    """The models as folders, or as the Hub serves them."""
    template = Unit(
        model=ModelRef("bench/base"),
        commit="0" * 40,
        base="bench/base",
        base_commit="0" * 40,
        relation="finetune",
        spec=Spec(spectra=spectra, svd=SVD_METHOD),
    )
    if hub is None:
        return [replace(template, model=ModelRef.parse(str(folder))) for folder in _folders(store)]
    api = HfApi(endpoint=hub.endpoint)
    units = []
    for folder in _folders(store):
        found = api.model_info(f"bench/{folder.name}")
        names = tuple(path.name for path in folder.iterdir())
        units.append(replace(template, model=ModelRef(found.id), commit=str(found.sha), filenames=names))
    return units


def _folders(store: Path) -> list[Path]:
    return sorted(folder for folder in (store / "bench").iterdir() if folder.is_dir())


def _store(work: Path, made: Checkpoints) -> Path:
    store = work / "pipeline-store"
    if store.is_dir():
        return store
    import torch
    from transformers import RobertaForSequenceClassification

    unfinished = work / "unfinished-pipeline-store"
    shutil.rmtree(unfinished, ignore_errors=True)
    model = RobertaForSequenceClassification.from_pretrained(made.fine_tunes["trained"], dtype=torch.float16)
    model.save_pretrained(unfinished / "bench" / "model-0")
    for number in range(1, MODELS):
        shutil.copytree(
            unfinished / "bench" / "model-0", unfinished / "bench" / f"model-{number}", copy_function=os.link
        )
    unfinished.rename(store)
    return store
