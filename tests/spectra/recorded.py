"""Tiny bases, fine-tunes of them, and their records with whole spectra."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import BaseMatrices, store_base
from indexer.deltas.vectorise import vectorise
from indexer.records.identity import Spec, Unit
from indexer.records.record import Record
from indexer.sources.registry import ModelRef
from tests import checkpoints
from tests.checkpoints import Kind

KINDS: dict[str, Kind] = {
    "roberta": checkpoints.roberta(2, 24, 60),
    "gpt2": checkpoints.gpt2(2, 24),
    "t5": checkpoints.t5(2, 3, 20, 50),
    "phi3": checkpoints.phi3(2, heads=4, kv_heads=2, head=6, inner=40),
}


def base_in(folder: Path, kind: Kind) -> tuple[BaseMatrices, dict]:
    weights = kind.random(seed=1)
    checkpoint = open_checkpoint(ModelRef("base", folder=checkpoints.save(folder / "base", kind, weights)))
    return store_base(checkpoint, "org/base", "b" * 40, folder / "base.safetensors"), weights


def record_of(folder: Path, base: BaseMatrices, relation: str = "finetune", spectra: bool = True) -> Record:
    unit = Unit(
        model=ModelRef(str(folder), folder=folder), commit="c" * 40, base="org/base", base_commit="b" * 40,
        relation=relation, spec=Spec(spectra=spectra), representations=(),
    )  # fmt: skip
    return vectorise(unit, base)


def noise(scale: float = 1e-3) -> Callable:
    def delta(name, shape):
        rng = np.random.default_rng([ord(name[2][0]), name[1], *shape])
        return scale * rng.normal(size=shape) + checkpoints.low_rank(rng, shape, [30 * scale, 20 * scale])

    return delta


def check_values(values: np.ndarray, matrix: np.ndarray) -> None:
    exact = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, exact, rtol=1e-5, atol=3e-6 * exact[0])
