"""Makes a whole family: text, base model, then every repository in parallel; an interrupted run is resumed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from indexer.errors import AtlasError
from scripts.family import store, tasks
from scripts.family.plan import Expected, Oddity, Plan, Repository, Run

WORK = ".work"
TEXTS_ARE_READY = "ready"
MOST_PROCESSES = 8
MODELS_WORTH_A_PROCESS = 12  # a process imports for as long as it takes to make a few models


def build(root: Path, plan: Plan) -> None:
    """Make every missing repository of the plan below ``root``, then describe the family.

    Raises:
        AtlasError: ``root`` holds something else, or the text for the plan is not installed.
    """
    if store.is_finished(root, plan.fingerprint):
        return
    started = time.monotonic()
    claim_folder(root, plan)
    work = root / WORK
    work.mkdir(exist_ok=True)
    waiting = [entry for entry in plan.repositories if not store.is_published(root, entry.model)]
    with workers(len(waiting)) as pool:
        if not (work / TEXTS_ARE_READY).exists():
            tasks.prepare(plan, work)
            (work / TEXTS_ARE_READY).touch()
        if not store.is_published(root, plan.base):
            pool.submit(in_worker, "make_base_repository", plan, root, work).result()
        with tqdm(total=len(waiting), desc="models", unit="model", disable=None) as progress:
            for wave in waves(waiting):
                make_all(pool, wave, plan, root, work, progress)
    store.write_json(root / store.EXPECTED, expectations(plan))
    seconds = round(time.monotonic() - started, 1)
    store.write_json(root / store.RECORD, description(plan) | {"seconds": seconds, "measured": measured(root, plan)})
    (root / store.STARTED).unlink()
    shutil.rmtree(work)


def claim_folder(root: Path, plan: Plan) -> None:
    """Claim a folder that is empty or holds a part of this family; clear one that holds another family.

    Raises:
        AtlasError: the folder holds anything else.
    """
    root.mkdir(parents=True, exist_ok=True)
    known = store.read_json(root / store.STARTED) or store.read_json(root / store.RECORD)
    if not known and any(root.iterdir()):
        raise AtlasError(f"{root} is not empty and holds no family.", "Name an empty folder, or a new one.")
    if known and known.get("fingerprint") != plan.fingerprint:
        (root / store.RECORD).unlink(missing_ok=True)
        for owner in {Path(owner).name for owner in known.get("owners", [])} | {WORK, store.REVISIONS}:
            shutil.rmtree(root / owner, ignore_errors=True)
    store.write_json(root / store.STARTED, description(plan))


def description(plan: Plan) -> dict[str, Any]:
    """What distinguishes one family from another, and the folders it owns."""
    owners = {plan.base.partition("/")[0], *(entry.author for entry in plan.repositories)}
    return {
        "fingerprint": plan.fingerprint,
        "size": plan.size,
        "architecture": plan.architecture_name,
        "base": plan.base,
        "owners": sorted(owners),
    }


@contextmanager
def workers(models: int) -> Iterator[ProcessPoolExecutor]:
    """At most one process per core, started at once so that they import torch while the text is collected."""
    count = min(MOST_PROCESSES, os.cpu_count() or 1, 1 + models // MODELS_WORTH_A_PROCESS)
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
    try:
        for _ in range(count):
            pool.submit(in_worker, "prepare_process")
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def in_worker(unit: str, *arguments: Any) -> None:
    """Call a function of ``repositories``, which only worker processes import: importing it is slow."""
    from scripts.family import repositories

    repositories.prepare_process()
    getattr(repositories, unit)(*arguments)


def waves(entries: Iterable[Repository]) -> tuple[list[Repository], list[Repository]]:
    """Repositories made from the base model, then those made from another repository."""
    first: list[Repository] = []
    second: list[Repository] = []
    for entry in entries:
        origin = entry.parent if isinstance(entry, Run) else entry.of if isinstance(entry, Oddity) else None
        (second if origin else first).append(entry)
    return first, second


def make_all(
    pool: ProcessPoolExecutor, entries: list[Repository], plan: Plan, root: Path, work: Path, progress: tqdm[Any]
) -> None:
    """Make all of them. The first failure stops the others, and its error is raised."""
    units = {Run: "make_run_repository", Oddity: "make_oddity_repository"}
    longest_first = sorted(entries, key=lambda entry: -cost(entry))
    futures = [pool.submit(in_worker, units[type(entry)], plan, entry, root, work) for entry in longest_first]
    for future in as_completed(futures):
        future.result()
        progress.update()


def cost(entry: Repository) -> int:
    """The number of texts a run trains on, about proportional to its time."""
    return entry.steps * entry.batch if isinstance(entry, Run) else 0


def expectations(plan: Plan) -> dict[str, dict[str, str | None]]:
    """What a build of the atlas should make of every repository."""
    base = Repository(plan.base, expected=Expected("not listed", why="It is the base model itself."))
    return {entry.model: store.expected_entry(entry) for entry in (base, *plan.repositories)}


def measured(root: Path, plan: Plan) -> dict[str, dict[str, float]]:
    """Losses and held-out results of everything that was trained."""
    trained = [plan.base, *(run.model for run in plan.runs)]
    return {model: store.read_json(root / model / store.RESULTS) for model in trained}
