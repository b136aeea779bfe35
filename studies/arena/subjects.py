"""The families that methods are compared on: how they are trained and indexed, and what is read of their models."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.atlas import AtlasFolder
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.adapter_deltas import deltas_on, dense
from indexer.deltas.base import store_base
from indexer.deltas.delta import LoraDelta, dense_deltas, layout_against
from indexer.deltas.single import describe, read_model
from indexer.deltas.svd import lora_svd
from indexer.names import DeltaKey
from indexer.records.record import DeltaRecord, Record
from indexer.records.representations.registry import representation_named
from indexer.records.store import RecordStore
from indexer.sources.registry import ModelRef
from indexer.vectors.published import PublishedBase
from query import Atlas
from query.questions.predict.evaluation import Evaluation
from query.questions.predict.training_set import LabelledModelReader, LabelledModels
from scripts.family import make_family
from scripts.family.plan import load_plan
from studies.arena.family import Family, build_family

TIMED = 8
RANK = 8  # of records by default
ARCHITECTURES = ("roberta", "bert", "gpt2", "t5")


def families(out: Path) -> Iterator[Family]:
    """The demo's families of four architectures, then the arena's own; each is trained when its turn comes."""
    for architecture in ARCHITECTURES:
        models = make_family(out / f"demo-{architecture}", "demo", architecture)
        yield Family(architecture, load_plan("demo", architecture), models, out / "subjects" / architecture)
    yield build_family(out)


@dataclass(frozen=True)
class Subjects:
    """The labelled models of a family; entry i of every column is the same model.

    Attributes:
        family: where they are.
        labelled: their published vectors (`input` from a sample, and `vocabulary`), authors, data sets and heads.
        evaluation: `query predict --evaluate` on the atlas of samples.
        records: with every singular triplet.
        sampled: the records of the samples, for what they cost.
        sample_seconds: processor seconds to read a sample of a model and make its vector.
        seconds: to read and decompose a whole model.
    """

    family: Family
    labelled: LabelledModels
    evaluation: Evaluation
    records: list[Record]
    sampled: list[Record]
    sample_seconds: float
    seconds: float

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
    """Raises CommandFailed if the atlas cannot be built, AtlasError if a record is missing."""
    with Atlas(family.atlas()) as atlas:
        labelled = LabelledModelReader(atlas).read(family.plan.base)
        rows = atlas.rows("SELECT model, records.record_key FROM records JOIN fine_tunes USING (model_id)")
        keys = {row["model"]: row["record_key"] for row in rows}
        store = RecordStore(AtlasFolder(atlas.folder.root))
        sampled = [store.read(keys[model]) for model in labelled.models]
        evaluation = atlas.evaluate_prediction(family.plan.base)
        of_sample = sample_seconds(family, sampled, atlas.published_base(family.plan.base))
    started = time.process_time()
    records = list(whole_records(family.models, family.plan.base, sampled))
    seconds = (time.process_time() - started) / len(records)
    return Subjects(family, labelled, evaluation, records, sampled, of_sample, seconds)


def sample_seconds(family: Family, sampled: Sequence[Record], base: PublishedBase) -> float:
    """Mean processor seconds from the files of a full fine-tune to its vector, of TIMED models after a first one."""
    found = []
    for record in [record for record in sampled if not record.is_adapter][: 1 + TIMED]:
        model = record.identity.model
        started = time.process_time()
        made = read_model(describe(ModelRef(model, folder=family.models / model)), base)
        representation_named("input").of(made)
        found.append(time.process_time() - started)
    return float(np.mean(found[1:]))


def whole_records(models: Path, base_id: str, records: Sequence[Record]) -> Iterator[Record]:
    """The records with every singular triplet of every whole δW, in float32, from the repositories below ``models``.

    Raises ModelError if a checkpoint cannot be read.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        source = open_checkpoint(ModelRef(base_id, folder=models / base_id))
        base = store_base(source, base_id, "0" * 40, Path(folder) / "base.safetensors")
        source.close()
        for record in records:
            model = record.identity.model
            relation = "adapter" if record.is_adapter else "finetune"
            checkpoint = open_checkpoint(ModelRef(model, folder=models / model), relation=relation)
            found: dict[DeltaKey, torch.Tensor | LoraDelta] = {}
            if record.is_adapter:
                for delta in deltas_on(checkpoint, base):
                    if isinstance(delta, LoraDelta):
                        found[delta.key] = delta
                    else:
                        found[delta.key] = dense(delta, base.matrix(delta.key)).matrix
            else:
                for one in dense_deltas(checkpoint, layout_against(checkpoint, base), base):
                    found[one.key] = one.matrix
            deltas = tuple(_decomposed(delta, found.get(delta.key)) for delta in record.deltas)
            checkpoint.close()
            yield replace(record, deltas=deltas, vectors={})
        base.close()


def _decomposed(delta: DeltaRecord, change: torch.Tensor | LoraDelta | None) -> DeltaRecord:
    """``change``: of a LoRA its factors, whose triplets are all that there are; None if nothing is changed."""
    u: Any  # float32, as v is, where a stored record has float16
    v: Any
    if isinstance(change, LoraDelta):
        factors = lora_svd(change.a, change.b, change.scale, max(RANK, len(change.a)))
        u, s, v = (part.float().numpy() for part in (factors.u, factors.s, factors.v))
    elif change is None or not change.any():
        count = min(RANK, *delta.shape)
        u, v = (np.zeros((side, count), np.float32) for side in delta.shape)
        s = np.zeros(count, np.float32)
    else:
        u, s, v = (part.contiguous().numpy() for part in torch.linalg.svd(change, full_matrices=False))
        v = v.T
    norm = float(np.linalg.norm(s))
    return replace(delta, u=u, s=s, v=v, norm=norm, lines=None, norm_error=0.0, u_rows=None)


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
