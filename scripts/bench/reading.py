"""Rows ``reading`` and ``sample``: bytes over HTTP and seconds while checkpoints are read from a loopback Hub."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from scripts.bench.checkpoints import CODE, Checkpoints, roberta_base
from scripts.bench.measure import NotMeasuredError, Repeats, Table, made_once, say
from scripts.child import call
from scripts.loopback_hub import LoopbackHub

LAYERS, WIDTH, INNER = 12, 768, 3072
LORA_RANK, LORA_FAMILIES = 8, ("attention.self.query", "attention.self.value")

# Row ``reading``. What must be read: four square matrices and two oblong ones a layer; LoRA factors of two square ones.
ALLOWED_SHARE, ALLOWED_PER_FILE = 1.02, 64 << 10
BLOCK_NUMBERS = LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER)
FACTOR_NUMBERS = LAYERS * len(LORA_FAMILIES) * 2 * LORA_RANK * WIDTH

# Row ``sample``: seconds before an answer, bytes a second, and how often each way is measured.
LATENCY, BANDWIDTH, SAMPLE_REPEATS = 0.03, 20e6, 2


@contextmanager
def served(store: Path) -> Iterator[LoopbackHub]:
    """A Hub that serves ``store`` to the processes started meanwhile."""
    before = os.environ.copy()
    with LoopbackHub(store) as hub:
        hub.prepare()
        os.environ["HF_ENDPOINT"] = hub.endpoint
        try:
            yield hub
        finally:
            os.environ.clear()
            os.environ.update(before)


def vectorised(model: str, base_file: str, relation: str, read: str) -> dict[str, float]:
    """Vectorise one model, as a build does, in a process of its own: seconds of wall and of processor once all is loaded.

    ``read``: sample or full; ``original``: what the original method does, that is, download the file, open it with
    transformers, and take ``torch.svd_lowrank(q=8)`` of every delta.
    """
    import torch
    from huggingface_hub import hf_hub_download
    from transformers import AutoModel

    from indexer.builds.resources import AHEAD_BYTES
    from indexer.deltas.base import BaseMatrices
    from indexer.deltas.vectorise import vectorise
    from indexer.names import CONNECTIONS
    from indexer.network.session import install_session
    from indexer.records.identity import Spec, Unit
    from indexer.records.record import write_record
    from indexer.records.row_plan import lines_of, lines_to_read
    from indexer.sources.registry import ModelRef
    from scripts.bench.vectors import by_transformers

    torch.set_num_threads(1)
    install_session()
    torch.linalg.svd(torch.randn(64, 64))
    base = BaseMatrices(Path(base_file), resident=True)
    spec = Spec(sample=read == "sample")
    unit = Unit(ModelRef(model), "main", base.base, base.commit, relation, spec)
    _ = base.layout, base.norms
    if read == "sample":  # as in a build, where the base's rows are there after the first model
        for matrix in base.layout.matrices:
            count = lines_to_read(matrix.shape, matrix.transposed, base.item_bytes)
            base.lines(matrix.key, lines_of(matrix.lines, count))
    if read == "original":
        original = AutoModel.from_pretrained(Path(base_file).parent / "base", add_pooling_layer=False)
    started, used = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        if read == "original":
            place = Path(hf_hub_download(model, "model.safetensors", cache_dir=folder)).parent
            hf_hub_download(model, "config.json", cache_dir=folder)
            for _, change, _ in by_transformers(place, original):
                torch.svd_lowrank(change, q=8)
        else:
            record = vectorise(unit, base, ahead_bytes=AHEAD_BYTES, connections=CONNECTIONS)
            write_record(record, Path(folder) / "record.safetensors")
    return {"seconds": time.perf_counter() - started, "processor": time.process_time() - used}


def measure_bytes(work: Path) -> list[Table]:
    """Serve one fine-tune in several forms, vectorise each over HTTP, count what the Hub sent of its weight files."""
    made = roberta_base(work)
    store = made_once(work / "reading-store", partial(_make_forms, made), [Path(__file__), *CODE])
    table = Table(
        "reading: response bodies for a checkpoint of roberta-base's size, counted by the Hub (exact: one reading each)",
        ["form", "files", "file, MB", "needed, MB", "sent, MB", "sent ÷ needed", "sent ÷ whole file", "requests"],
    )
    with served(store) as hub:
        for folder in sorted(path for path in (store / "bench").iterdir() if path.is_dir()):
            form, model = folder.name, f"bench/{folder.name}"
            hub.reset_log()
            call(vectorised, model, made.matrices.path, "adapter" if form == "lora" else "finetune", "full")
            files = [path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin")]
            size = sum(path.stat().st_size for path in files)
            sent = sum(hub.body_bytes(model, path.name) for path in files)
            needed = 4 * FACTOR_NUMBERS if form == "lora" else (2 if form == "float16" else 4) * BLOCK_NUMBERS
            if sent < needed:
                raise NotMeasuredError(f"{form}: the Hub counted {sent:,} bytes, the model takes at least {needed:,}")
            gets = sum(request.role == "cdn" for request in hub.requests)
            table.add(
                form, len(files), size / 1e6, needed / 1e6, sent / 1e6,
                round(sent / needed, 4), round(sent / size, 4), gets,
            )  # fmt: skip
            if form != "legacy-bin":
                promise = f"{form}: bodies ≤ {ALLOWED_SHARE} × what is needed + 64 KiB a file"
                table.promises[promise] = sent <= ALLOWED_SHARE * needed + ALLOWED_PER_FILE * len(files)
    table.notes.append(
        "Needed: the block matrices, of LoRA the factors. A download reads whole files. No promise is made for legacy .bin."
    )
    return [table]


def measure_sample(work: Path) -> list[Table]:
    """Read one fine-tune as a sample, in full, and as the original method does, over a usual connection."""
    made = roberta_base(work)
    store = made_once(work / "reading-store", partial(_make_forms, made), [Path(__file__), *CODE])
    table = Table(
        f"sample: one fine-tune of roberta-base's size over {LATENCY * 1000:.0f} ms and {BANDWIDTH / 1e6:.0f} MB/s; "
        "median (range) of seconds",
        ["what is read", "file", "MB", "÷ block matrices", "requests", "seconds", "seconds of processor"],
    )
    ways = {"a sample of rows": "sample", "all block matrices": "full", "the file, then svd_lowrank(q=8)": "original"}
    with served(store) as hub:
        hub.latency, hub.bandwidth = LATENCY, BANDWIDTH
        for form in ("one-file", "float16", "zip-bin"):
            needed = (2 if form == "float16" else 4) * BLOCK_NUMBERS
            for name, read in ways.items():
                if read == "original" and form != "one-file":
                    continue
                say(f"sample: {form}, {name}")
                hub.reset_log()
                found = [
                    call(vectorised, f"bench/{form}", made.matrices.path, "finetune", read).output
                    for _ in range(SAMPLE_REPEATS)
                ]
                sent = hub.body_bytes(f"bench/{form}") / SAMPLE_REPEATS
                gets = sum(request.role == "cdn" for request in hub.requests) / SAMPLE_REPEATS
                table.add(
                    name, form, sent / 1e6, round(sent / needed, 4), gets,
                    Repeats([one["seconds"] for one in found]),
                    Repeats([one["processor"] for one in found]),
                )  # fmt: skip
                if read == "sample" and form == "one-file":
                    table.promises["one-file: a sample is a thirtieth of the block matrices"] = sent <= needed / 30
                if read == "sample":
                    table.promises[f"{form}: up to two requests a matrix"] = gets <= 2 * LAYERS * 6
    return [table]


def _make_forms(made: Checkpoints, folder: Path) -> None:
    """The planted fine-tune as one file, in shards, in float16, as zip and legacy pickles; and a LoRA."""
    import torch
    from safetensors.torch import save_file
    from transformers import RobertaForSequenceClassification

    source, bench = made.fine_tunes["planted"], folder / "bench"
    shutil.copytree(source, bench / "one-file")
    model = RobertaForSequenceClassification.from_pretrained(source)
    model.save_pretrained(bench / "shards", max_shard_size="120MB")
    for name, is_zip in (("zip-bin", True), ("legacy-bin", False)):
        (bench / name).mkdir()
        shutil.copy(source / "config.json", bench / name)
        torch.save(model.state_dict(), bench / name / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    model.half().save_pretrained(bench / "float16")
    # Factors for queries and values as PEFT saves them, and a classifier, which is not read.
    settings = {
        "peft_type": "LORA",
        "base_model_name_or_path": "bench/base",
        "r": LORA_RANK,
        "lora_alpha": 2 * LORA_RANK,
        "target_modules": [name.rpartition(".")[2] for name in LORA_FAMILIES],
    }
    (bench / "lora").mkdir()
    (bench / "lora" / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    tensors = {"base_model.model.classifier.modules_to_save.weight": torch.randn(WIDTH, WIDTH, generator=generator)}
    for layer in range(LAYERS):
        for name in LORA_FAMILIES:
            path = f"base_model.model.roberta.encoder.layer.{layer}.{name}"
            tensors[f"{path}.lora_A.weight"] = torch.randn(LORA_RANK, WIDTH, generator=generator) / 100
            tensors[f"{path}.lora_B.weight"] = torch.randn(WIDTH, LORA_RANK, generator=generator) / 100
    save_file(tensors, bench / "lora" / "adapter_model.safetensors", metadata={"format": "pt"})
