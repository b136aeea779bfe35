"""Makes a whole family: text, base model, then every repository in parallel, resumed where it was left."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from indexer.errors import AtlasError
from scripts.family import tasks
from scripts.family.finished import RECORD, STARTED, is_finished, read_record
from scripts.family.plan import Plan, Repository, Run
from scripts.family.store import REVISIONS, expected_entry, is_published, write_json

WORK = ".work"
EXPECTED = "expected.json"
MOST_PROCESSES = 8


def build(root: Path, plan: Plan) -> None:
    """Make every repository of the plan below ``root`` that is not there yet, then describe the whole.

    Raises:
        AtlasError: ``root`` holds something else, or the text for the plan is not installed.
    """
    if is_finished(root, plan.fingerprint):
        return
    started = time.monotonic()
    claim_folder(root, plan)
    work = root / WORK
    work.mkdir(exist_ok=True)
    with workers() as pool:
        if not (work / "ready").exists():
            tasks.prepare(plan, work)
            (work / "ready").touch()
        measured = read_record(root, STARTED).get("measured", {})
        for wave in waves(plan, root):
            for model, result in make_all(pool, wave, plan, root, work):
                measured[model] = result
                write_json(root / STARTED, {"fingerprint": plan.fingerprint, "measured": measured})
    write_json(root / EXPECTED, expectations(plan))
    record = {
        "fingerprint": plan.fingerprint,
        "size": plan.size,
        "architecture": plan.architecture_name,
        "base": plan.base,
        "seconds": round(time.monotonic() - started, 1),
        "measured": dict(sorted(measured.items())),
    }
    write_json(root / RECORD, record)
    (root / STARTED).unlink(missing_ok=True)
    shutil.rmtree(work)


def claim_folder(root: Path, plan: Plan) -> None:
    """Take an empty folder, or one that holds this family in part; clear one that holds another family.

    Raises:
        AtlasError: the folder holds anything else.
    """
    root.mkdir(parents=True, exist_ok=True)
    known = read_record(root, STARTED) or read_record(root, RECORD)
    if any(root.iterdir()) and not known:
        raise AtlasError(f"{root} is not empty and holds no family.", "Name an empty folder, or a new one.")
    if known.get("fingerprint") != plan.fingerprint:
        for name in (*known.get("owners", []), WORK, REVISIONS):
            shutil.rmtree(root / name, ignore_errors=True)
        for name in (RECORD, STARTED, EXPECTED):
            (root / name).unlink(missing_ok=True)
