"""Memory does not grow with a checkpoint's size."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from scripts.loopback_hub import LoopbackHub
from tests.conftest import run_python
from tests.patience import PATIENCE
from tests.weights.folders import FORMS, write_config

MEASURE = """
import resource, sys, threading
from pathlib import Path
import torch
torch.set_num_threads(1)
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.sources.registry import ModelRef

def resident():
    fields = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0])

reference = ModelRef(sys.argv[1]) if sys.argv[2:] else ModelRef(sys.argv[1], folder=Path(sys.argv[1]))
warm = open_checkpoint(reference)
next(warm.stream([next(iter(warm.tensors))]))
warm.close()
idle, peak, total = resident(), 0, 0.0
checkpoint = open_checkpoint(reference)
for name, tensor in checkpoint.stream(list(checkpoint.tensors)):
    total += float(tensor[0, 0])
    peak = max(peak, resident())
print(peak - idle, len(checkpoint.tensors), total)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("form", ["safetensors", "torch-zip", "torch-legacy"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, form: str) -> None:
    """200 MB in layers of 2 MB: a few layers above idle at the most."""
    write_config(tmp_path)
    state = {f"{i:03}": torch.full((1024, 512), float(i)) for i in range(100)}
    FORMS[form](tmp_path, state)
    expected = sum(range(100))
    del state
    gc.collect()
    growth, count, total = run_python("-c", MEASURE, tmp_path, timeout=PATIENCE).out.split()
    assert (int(count), float(total)) == (100, expected)
    assert int(growth) < 12_000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_over_http(tmp_path: Path) -> None:
    folder = tmp_path / "me" / "big"
    write_config(folder)
    save_file({f"{i:03}": torch.full((1024, 512), float(i)) for i in range(50)}, folder / "model.safetensors")
    with LoopbackHub(tmp_path) as hub:
        process = run_python("-c", MEASURE, "me/big", "hub", env={"HF_ENDPOINT": hub.endpoint}, timeout=PATIENCE)
        growth, count, total = process.out.split()
    assert (int(count), float(total)) == (50, sum(range(50)))
    assert int(growth) < 12_000
