"""What a worker makes of a model that goes wrong: an outcome with a reason, and what was read of it."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
import torch

from indexer.atlas import AtlasFolder
from indexer.builds import worker
from indexer.builds.worker import RecordWorker
from indexer.errors import AtlasError
from indexer.records.identity import Spec, Unit
from indexer.records.store import RecordStore
from indexer.sources.registry import ModelRef
from tests import checkpoints
from tests.spectra.recorded import KINDS, base_in


@pytest.fixture
def work(tmp_path):
    base, _ = base_in(tmp_path, KINDS["roberta"])
    base.close()
    return RecordWorker(tmp_path / "atlas", base.path)


def unit_of(folder):
    return Unit(ModelRef("ann/model", folder=folder), "c" * 40, "org/base", "b" * 40, "finetune", Spec())


def too_much_for_torch():
    torch.empty(1 << 60, dtype=torch.uint8)


def raising(error):
    def found():
        raise error

    return found


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (too_much_for_torch, "out_of_memory"),
        (raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")), "out_of_memory"),
        (raising(OSError(errno.ENOMEM, "Cannot allocate memory")), "out_of_memory"),
        (raising(MemoryError()), "out_of_memory"),
        (raising(np.linalg.LinAlgError("SVD did not converge")), "worker_error"),
        (raising(KeyError("layer\x1b[31m")), "worker_error"),
        (raising(RuntimeError("mat1 and mat2 shapes cannot be multiplied")), "worker_error"),
        (raising(TimeoutError()), "timeout"),
    ],
)
def test_no_single_model_ends_a_build(work, tmp_path, monkeypatch, trouble, reason):
    monkeypatch.setattr(worker, "vectorise", lambda *_, **__: trouble())
    unit = unit_of(tmp_path)
    result = work(unit)
    kept = RecordStore(AtlasFolder(work.atlas)).failure(unit.identity.digest)
    assert result.error.reason == kept.reason == reason
    assert kept.status == "failed"  # worth another try
    assert kept.detail.isprintable()
    if reason == "worker_error":
        assert "test_worker.py:" in kept.detail
        assert os.fspath(tmp_path.parent) not in kept.detail


@pytest.mark.parametrize("trouble", [OSError(errno.ENOSPC, "full"), AtlasError("the base is damaged")])
def test_trouble_of_the_place_does(work, tmp_path, monkeypatch, trouble):
    monkeypatch.setattr(worker, "vectorise", lambda *_, **__: raising(trouble)())
    with pytest.raises(type(trouble)):
        work(unit_of(tmp_path))


def test_what_was_read_of_a_model_counts_also_when_it_comes_to_nothing(work, tmp_path):
    kind = KINDS["roberta"]
    weights = kind.random(seed=2)
    good = work(unit_of(checkpoints.save(tmp_path / "good", kind, weights)))
    last = max(name for name in weights if weights[name].ndim == 2)
    weights[last] = np.full_like(weights[last], np.nan)
    bad = work(unit_of(checkpoints.save(tmp_path / "bad", kind, weights)))
    assert (good.error, bad.error.reason) == (None, "not_finite")
    assert bad.bytes_total == good.bytes_total > 0
    assert good.bytes_read / 2 < bad.bytes_read <= good.bytes_read
