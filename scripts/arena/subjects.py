"""The families that methods are compared on: how they are trained and indexed, and what is read of their models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import AtlasFolder
from indexer.records.record import Record
from indexer.records.store import RecordStore
from query import Atlas
from query.predict.evaluation import Evaluation
from query.predict.training_set import LabelledModelReader, LabelledModels
from scripts.arena.family import build_family
from scripts.family import make_family
from scripts.family.plan import Plan, load_plan
from scripts.loopback_hub import LoopbackHub
from scripts.terminal import Terminal

ARCHITECTURES = ("roberta", "bert", "gpt2", "t5")
SAMPLE, WHOLE = "sample", "whole"
# The shorter side of the matrices of all families, so that records hold every singular triplet.
EVERY = 128
OPTIONS = {SAMPLE: "", WHOLE: f" --read full --rank {EVERY}"}


@dataclass(frozen=True)
class Family:
    """A trained family: its repositories below ``models``, and its atlases by how much was read of a model."""

    name: str
    plan: Plan
    models: Path
    folder: Path

    def atlas(self, kind: str) -> Path:
        """The folder of an atlas, built now unless it is there: ``sample`` by default, ``whole`` with all triplets.

        Raises CommandFailed if `index build` fails.
        """
        here = self.folder / kind
        here.mkdir(parents=True, exist_ok=True)
        marker = here / self.plan.fingerprint
        if not marker.exists():
            with LoopbackHub(self.models) as hub:
                run = Terminal.of_hub(here, hub.endpoint)
                run.environment.pop("HF_HUB_OFFLINE", None)  # it was for training
                run(f"index build --base {self.plan.base} --discover names{OPTIONS[kind]}")
            marker.touch()
        return here / "atlas"


def families(out: Path) -> Iterator[Family]:
    """The demo's families of four architectures, then the arena's own; each is trained when its turn comes."""
    for architecture in ARCHITECTURES:
        models = make_family(out / f"demo-{architecture}", "demo", architecture)
        yield Family(architecture, load_plan("demo", architecture), models, out / "subjects" / architecture)
    arena = build_family(out)
    yield Family("arena", arena.plan, arena.models, out / "subjects" / "arena")


@dataclass(frozen=True)
class Subjects:
    """The labelled models of a family; entry i of every column is the same model.

    Attributes:
        family: where they are.
        labelled: their published vectors (`input` from a sample, and `vocabulary`), authors, data sets and heads.
        evaluation: `query predict --evaluate` on the atlas of samples.
        records: with every singular triplet.
        sampled: the records of the samples, for what they cost.
    """

    family: Family
    labelled: LabelledModels
    evaluation: Evaluation
    records: list[Record]
    sampled: list[Record]

    @cached_property
    def groups(self) -> list[str]:
        """Adapter or full fine-tune."""
        return [record.vector_group for record in self.records]

    @cached_property
    def folders(self) -> list[Path]:
        """The repositories."""
        return [self.family.models / model for model in self.labelled.models]

    @cached_property
    def changed(self) -> NDArray[np.bool_]:
        """(n, matrices): which matrices a model changed."""
        return np.array([[delta.norm > 0 for delta in record.deltas] for record in self.records])


def read_subjects(family: Family) -> Subjects:
    """Raises CommandFailed if an atlas cannot be built, AtlasError if a record is missing."""
    with Atlas(family.atlas(SAMPLE)) as atlas:
        labelled = LabelledModelReader(atlas).read(family.plan.base)
        sampled = _records(atlas, labelled.models)
        evaluation = atlas.evaluate_prediction(family.plan.base)
    with Atlas(family.atlas(WHOLE)) as atlas:
        records = _records(atlas, labelled.models)
    return Subjects(family, labelled, evaluation, records, sampled)


def _records(atlas: Atlas, models: Sequence[str]) -> list[Record]:
    rows = atlas.rows("SELECT model, record_key FROM records JOIN fine_tunes USING (model_id)")
    keys = {row["model"]: row["record_key"] for row in rows}
    store = RecordStore(AtlasFolder(atlas.folder.root))
    return [store.read(keys[model]) for model in models]


def cut(record: Record, rank: int) -> Record:
    """The record as one of this rank would be."""
    deltas = tuple(
        replace(
            delta,
            s=delta.s[:rank],
            u=None if delta.u is None else delta.u[:, :rank],
            v=None if delta.v is None else delta.v[:, :rank],
        )
        for delta in record.deltas
    )
    return replace(record, deltas=deltas, vectors={})
