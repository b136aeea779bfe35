"""Vectorises one model in a process of its own, as a build does, and measures how far its memory rises.

``python -m scripts.bench.one_model MODEL BASE_FILE resident|"on disk" RELATION`` prints bytes as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from pathlib import Path

import torch

from indexer.builds.resources import AHEAD_BYTES
from indexer.deltas.base import BaseMatrices
from indexer.deltas.vectorise import vectorise
from indexer.names import ModelRef
from indexer.network.session import install_session
from indexer.records.identity import SVD_METHOD, Spec, Unit
from indexer.records.record import write_record
from scripts.child import peak_bytes


def main(model: str, base_file: str, held: str, relation: str) -> None:
    """Do it once, from idle: everything is loaded, nothing read."""
    torch.set_num_threads(1)
    install_session()
    torch.linalg.svd(torch.randn(64, 64))
    base = BaseMatrices(Path(base_file), resident=held == "resident")
    unit = Unit(ModelRef(model), "main", base.base, base.commit, relation, Spec(svd=SVD_METHOD))
    _ = base.layout, base.norms
    idle = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    record = vectorise(unit, base, ahead_bytes=AHEAD_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        write_record(record, Path(folder) / "record.safetensors")
    rise = peak_bytes() - idle
    factors = [array for delta in record.deltas for array in (delta.s, delta.u, delta.v) if array is not None]
    kept = sum(array.nbytes for array in factors)
    print(json.dumps({"rise": rise, "base": base.block_bytes, "kept": kept}))


if __name__ == "__main__":
    main(*sys.argv[1:])
