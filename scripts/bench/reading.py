"""Rows ``reading`` and ``memory``: what a roberta-base-sized checkpoint costs over HTTP, in bytes and in memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.bench.checkpoints import Checkpoints, roberta_base
from scripts.bench.measure import Table
from scripts.loopback_hub import LoopbackHub

PROJECT = Path(__file__).resolve().parents[2]
BASE = "bench/base"
MIB = 1 << 20

# Vectorises one model in a process of its own, and says how far its memory rose over what it was when idle.
_WORK = """
import json, resource, sys
from pathlib import Path
import torch
from indexer.base import BaseMatrices
from indexer.identity import Spec
from indexer.network.session import install_session
from indexer.svd import SVD_METHOD
from indexer.unit import Unit, vectorise
from indexer.words import ModelRef

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()

model, base_file, is_resident = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "resident"
torch.set_num_threads(1)
install_session()
torch.linalg.svd(torch.randn(64, 64))
base = BaseMatrices(base_file, resident=is_resident)
unit = Unit(ModelRef(model), "main", base.base, base.commit, "finetune", Spec(svd=SVD_METHOD))
base.layout
idle = resident()
Path("/proc/self/clear_refs").write_text("5")
record = vectorise(unit, base)
status = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
print(json.dumps({"rise": peak - idle, "base": base.block_bytes, "blocks": record.block_bytes}))
"""


def measure(work: Path) -> list[Table]:
    """Serve one fine-tune in four forms, vectorise each over HTTP, count bytes on the server."""
    made = roberta_base(work)
    store = _store(work, made)
    bytes_table = Table(
        "reading: response bodies for a checkpoint, counted by the Hub",
        ["form", "file, MB", "block matrices, MB", "sent, MB", "sent ÷ blocks", "requests"],
    )
    memory_table = Table(
        "memory: peak resident size over idle while a checkpoint is read over HTTP",
        ["form", "file, MB", "base held", "rise, MiB", "rise − base, MiB"],
    )
    with LoopbackHub(store) as hub:
        hub.prepare()
        for model in sorted(path.name for path in (store / "bench").iterdir() if path.is_dir()):
            for held in ("resident", "on disk"):
                hub.reset_log()
                told = _vectorise(f"bench/{model}", made.matrices.path, held, hub.endpoint)
                files = [path for path in (store / "bench" / model).iterdir() if path.suffix in (".safetensors", ".bin")]
                size = sum(path.stat().st_size for path in files)
                if held == "resident":
                    sent = sum(hub.body_bytes(f"bench/{model}", path.name) for path in files)
                    gets = sum(request.role == "cdn" for request in hub.requests)
                    ratio = sent / told["blocks"]
                    bytes_table.add(model, size / 1e6, told["blocks"] / 1e6, sent / 1e6, round(ratio, 4), gets)
                    bytes_table.promises[f"{model}: bodies ≤ 1.02 × block matrices + 64 KiB a file"] = (
                        sent <= 1.02 * told["blocks"] + 65536 * len(files)
                    )
                base = told["base"] if held == "resident" else 0
                over = (told["rise"] - base) / MIB
                memory_table.add(model, size / 1e6, held, told["rise"] / MIB, over)
                memory_table.promises[f"{model}, base {held}: ≤ 250 MiB + base where held"] = over <= 250
    return [bytes_table, memory_table]


def _vectorise(model: str, base_file: Path, held: str, endpoint: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", _WORK, model, str(base_file), held],
        env={**os.environ, "HF_ENDPOINT": endpoint, "PYTHONPATH": str(PROJECT), "HF_HUB_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def _store(work: Path, made: Checkpoints) -> Path:
    """The planted fine-tune as one file, in shards, and as zip and legacy pickles."""
    import torch
    from transformers import RobertaForSequenceClassification

    store = work / "reading-store"
    if store.is_dir():
        return store
    unfinished = work / "unfinished-store"
    shutil.rmtree(unfinished, ignore_errors=True)
    source = made.fine_tunes["planted"]
    shutil.copytree(source, unfinished / "bench" / "one-file")
    model = RobertaForSequenceClassification.from_pretrained(source)
    model.save_pretrained(unfinished / "bench" / "shards", max_shard_size="120MB")
    for name, is_zip in (("zip-bin", True), ("legacy-bin", False)):
        folder = unfinished / "bench" / name
        folder.mkdir()
        shutil.copy(source / "config.json", folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    unfinished.rename(store)
    return store
