"""Vectorises one model in a process of its own, as a build does, and measures how far its memory rises.

``python -m scripts.bench.one_model MODEL BASE_FILE resident|"on disk" RELATION [sample|full|original]`` prints bytes and
seconds as JSON. ``original``: what the original method does, that is, download the file, open it with transformers, and
take ``torch.svd_lowrank(q=8)`` of every delta.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
from huggingface_hub import hf_hub_download
from transformers import AutoModel

from indexer.builds.resources import AHEAD_BYTES
from indexer.deltas.base import BaseMatrices
from indexer.deltas.vectorise import vectorise
from indexer.names import CONNECTIONS, ModelRef
from indexer.network.session import install_session
from indexer.records.identity import SVD_METHOD, Spec, Unit
from indexer.records.record import write_record
from indexer.records.row_plan import ROW_PLAN, lines_of, lines_to_read
from scripts.child import peak_bytes


def main(model: str, base_file: str, held: str, relation: str, read: str = "full") -> None:
    """Do it once, from idle: everything is loaded, nothing read."""
    torch.set_num_threads(1)
    install_session()
    torch.linalg.svd(torch.randn(64, 64))
    base = BaseMatrices(Path(base_file), resident=held == "resident")
    spec = Spec(svd=SVD_METHOD, sample=ROW_PLAN if read == "sample" else "")
    unit = Unit(ModelRef(model), "main", base.base, base.commit, relation, spec)
    _ = base.layout, base.norms
    idle = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    if read == "sample":  # as in a build, where the base's rows are there after the first model
        for matrix in base.layout.matrices:
            count = lines_to_read(matrix.shape, matrix.transposed, base.item_bytes)
            base.lines(matrix.key, lines_of(matrix.lines, count))
    if read == "original":
        original = AutoModel.from_pretrained(Path(base_file).parent / "base", add_pooling_layer=False)
    started, used = time.perf_counter(), time.process_time()
    kept = 0
    with tempfile.TemporaryDirectory() as folder:
        if read == "original":
            from scripts.bench.vectors import by_transformers

            place = Path(hf_hub_download(model, "model.safetensors", cache_dir=folder)).parent
            hf_hub_download(model, "config.json", cache_dir=folder)
            for _, matrix, _ in by_transformers(place, original):
                torch.svd_lowrank(matrix, q=8)
        else:
            record = vectorise(unit, base, ahead_bytes=AHEAD_BYTES, connections=CONNECTIONS)
            write_record(record, Path(folder) / "record.safetensors")
            factors = [array for delta in record.deltas for array in (delta.s, delta.u, delta.v) if array is not None]
            kept = sum(array.nbytes for array in factors)
    found = {"rise": peak_bytes() - idle, "base": base.block_bytes, "kept": kept}
    found["milliseconds"] = round(1000 * (time.perf_counter() - started))
    found["processor_milliseconds"] = round(1000 * (time.process_time() - used))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
