"""An atlas of many synthetic models: real listing and records, made into an atlas by the project's own command.

The vectors are of length 8,208 as those of roberta-base, each near one of some hundred centres. Deltas have norms
and singular values, but no singular vectors, which are not used.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from indexer.atlas import AtlasFolder
from indexer.listing.claims import Claim
from indexer.listing.listing import Listing
from indexer.listing.questions import ClaimedRow, CrawlRequest, Page, Question
from indexer.names import DeltaKey
from indexer.records.identity import SVD_METHOD, Identity, Spec
from indexer.records.record import DeltaRecord, Record, write_record
from indexer.records.representation import REPRESENTATIONS
from scripts.bench.checkpoints import CODE, roberta_base
from scripts.bench.inputs import made_once
from scripts.bench.measure import NotMeasuredError
from scripts.terminal import PROJECT

BASE, COMMIT = "bench/base", "0" * 40
MODELS, GROUPS, AUTHORS = 10_000, 200, 700
FAMILIES = ("query", "key", "value", "output", "feedforward1", "feedforward2")
KEYS = [DeltaKey("", layer, family) for layer in range(12) for family in FAMILIES]
LENGTH = 114 * len(KEYS)
SHAPES = {"feedforward1": (3072, 768), "feedforward2": (768, 3072)}
# What decides how the published atlas turns out: its tables, its records, its vectors and their index.
ATLAS_CODE = (
    Path(__file__),
    *CODE,
    PROJECT / "schema.sql",
    *(PROJECT / "indexer" / name for name in ("publish", "vectors", "records")),
)
# A record is synced to the disk before it counts: meanwhile others are written.
WRITERS = 8


@dataclass(frozen=True)
class Model:
    """One synthetic model, by number."""

    number: int

    @property
    def author(self) -> str:
        """One of AUTHORS."""
        return f"user{self.number % AUTHORS}"

    @property
    def name(self) -> str:
        """As it is asked for."""
        return f"{self.author}/m{self.number}"

    @property
    def commit(self) -> str:
        """Its only one."""
        return f"{self.number:040x}"

    def listed(self) -> ClaimedRow:
        """As the Hub would list it."""
        row: dict[str, Any] = {
            "id": self.name,
            "author": self.author,
            "sha": self.commit,
            "downloads": self.number,
            "createdAt": "2026-01-01T00:00:00.000Z",
            "tags": [f"base_model:finetune:{BASE}", f"dataset:data-{self.number % GROUPS}"],
        }
        return ClaimedRow(row, Claim("finetune", "tag", BASE))

    def record(self, vector: np.ndarray[Any, Any]) -> Record:
        """As a build would keep it, without factors; norms tell the models apart."""
        norm = 1.0 + self.number / MODELS
        values = norm * np.array([0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.08, 0.06], dtype=np.float32)
        deltas = tuple(DeltaRecord(key, SHAPES.get(key.family, (768, 768)), norm, 100.0, 0.0, values) for key in KEYS)
        identity = Identity(self.name, self.commit, BASE, COMMIT, "finetune", Spec(svd=SVD_METHOD))
        return Record(identity, deltas, dtype="float32", vectors={REPRESENTATIONS["input"].tag: vector})


def ten_thousand(work: Path) -> Path:
    """The folder of the atlas, made if what is there was published by other code (minutes)."""
    return made_once(work / f"atlas-{MODELS}", partial(_make, work), ATLAS_CODE)


def vectors_of(count: int) -> np.ndarray[Any, Any]:
    """(count, LENGTH) unit vectors, float32, in groups."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((GROUPS, LENGTH), dtype=np.float32)
    matrix = centres[np.arange(count) % GROUPS] + rng.standard_normal((count, LENGTH), dtype=np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix


def _make(work: Path, folder: Path) -> None:
    atlas = AtlasFolder(folder)
    base_file = atlas.base(BASE, COMMIT)
    base_file.parent.mkdir()
    os.link(roberta_base(work).matrices.path, base_file)
    models = [Model(number) for number in range(MODELS)]
    _write_listing(atlas, models)
    _write_records(atlas, models)
    done = subprocess.run(
        [sys.executable, "-m", "indexer", "rebuild", "--atlas", str(folder)],
        cwd=PROJECT,
        env=os.environ | {"PYTHONPATH": str(PROJECT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotMeasuredError(f"no atlas could be made: {done.stderr.strip().rpartition(chr(10))[2]}")


def _write_listing(atlas: AtlasFolder, models: Sequence[Model]) -> None:
    listing = Listing(atlas.listing(BASE))
    atlas.listings.mkdir()
    listing.begin(CrawlRequest((BASE,)))
    rows = tuple(model.listed() for model in models)
    listing.append_page(Page(Question("tag", BASE, "finetune"), 1, rows, is_last=True))
    listing.finish(is_complete=True)


def _write_records(atlas: AtlasFolder, models: Sequence[Model]) -> None:
    def write(model: Model, vector: np.ndarray[Any, Any]) -> None:
        record = model.record(vector)
        write_record(record, atlas.record(record.identity.digest))

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, models, vectors_of(len(models))))
