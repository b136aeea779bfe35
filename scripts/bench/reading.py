"""Rows ``reading``, ``sample`` and ``memory``: bytes over HTTP and resident memory while checkpoints are read from a loopback Hub.

For ``memory``, size is separated from content by two checkpoints that differ only in the number of their layers, 17 and
176 of the same size. Their files are sparse: the first rows of every matrix hold numbers, the others are zeros that take
no space on disk. (Matrices of zeros alone fit a narrower dtype, and are held twice while that is tried.)
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.checkpoints import CODE, MODULES, Checkpoints, roberta_base
from scripts.bench.measure import NotMeasuredError, Repeats, Table, made_once, say
from scripts.child import call, peak_bytes
from scripts.loopback_hub import LoopbackHub

LAYERS, WIDTH, INNER = 12, 768, 3072
LORA_RANK, LORA_FAMILIES = 8, ("attention.self.query", "attention.self.value")

# Row ``reading``. What must be read: four square matrices and two oblong ones a layer; LoRA factors of two square ones.
ALLOWED_SHARE, ALLOWED_PER_FILE = 1.02, 64 << 10
BLOCK_NUMBERS = LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER)
FACTOR_NUMBERS = LAYERS * len(LORA_FAMILIES) * 2 * LORA_RANK * WIDTH

# Row ``sample``: seconds before an answer, bytes a second, and how often each way is measured.
LATENCY, BANDWIDTH, SAMPLE_REPEATS = 0.03, 20e6, 2

# Row ``memory``: 0.48 GB and 5 GB.
MIB = 1 << 20
ALLOWED_MIB, NOISE_MIB = 250, 16  # peaks of the same reading differ by this much from run to run
MEMORY_REPEATS = 3
SMALL_LAYERS, LARGE_LAYERS = 17, 176
ROWS = 24  # rows of each matrix that hold numbers: three times the rank
SHAPES = {
    module: {"feedforward1": (INNER, WIDTH), "feedforward2": (WIDTH, INNER)}.get(family, (WIDTH, WIDTH))
    for module, family in MODULES.items()
}
IN_MEMORY, ON_DISK = "base in memory", "base on disk"
LIKE, LARGE = "on disk, 17 layers", "on disk, 176 layers"


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


def read_model(
    model: str, base_file: Path, held: str, relation: str = "finetune", read: str = "full"
) -> dict[str, int]:
    """Vectorise a model in a process of its own: bytes of ``rise`` (peak over idle), ``base`` and ``kept`` factors.

    ``held``: "resident", or "on disk"; ``read``: sample, full, or original (see ``vectorised``). Raises NotMeasuredError
    if one of the bytes is not positive.
    """
    found: dict[str, int] = call(vectorised, model, base_file, held, relation, read).output
    nothing = [name for name, value in found.items() if value <= 0 and (name, read) != ("kept", "original")]
    if nothing:
        raise NotMeasuredError(f"a model cannot be read in {found[nothing[0]]} bytes ({nothing[0]})")
    return found


def vectorised(model: str, base_file: str, held: str, relation: str, read: str) -> dict[str, int]:
    """Vectorise one model, as a build does, in a process of its own: bytes and milliseconds from when all is loaded.

    ``read``: see ``read_model``. ``original``: what the original method does, that is, download the file, open it with
    transformers, and take ``torch.svd_lowrank(q=8)`` of every delta.
    """
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
            for _, change, _ in by_transformers(place, original):
                torch.svd_lowrank(change, q=8)
        else:
            record = vectorise(unit, base, ahead_bytes=AHEAD_BYTES, connections=CONNECTIONS)
            write_record(record, Path(folder) / "record.safetensors")
            factors = [array for delta in record.deltas for array in (delta.s, delta.u, delta.v) if array is not None]
            kept = sum(array.nbytes for array in factors)
    found = {"rise": peak_bytes() - idle, "base": base.block_bytes, "kept": kept}
    found["milliseconds"] = round(1000 * (time.perf_counter() - started))
    found["processor_milliseconds"] = round(1000 * (time.process_time() - used))
    return found


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
            read_model(model, made.matrices.path, "resident", "adapter" if form == "lora" else "finetune")
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
                    read_model(f"bench/{form}", made.matrices.path, "resident", read=read)
                    for _ in range(SAMPLE_REPEATS)
                ]
                sent = hub.body_bytes(f"bench/{form}") / SAMPLE_REPEATS
                gets = sum(request.role == "cdn" for request in hub.requests) / SAMPLE_REPEATS
                table.add(
                    name, form, sent / 1e6, round(sent / needed, 4), gets,
                    Repeats([one["milliseconds"] / 1000 for one in found]),
                    Repeats([one["processor_milliseconds"] / 1000 for one in found]),
                )  # fmt: skip
                if read == "sample" and form == "one-file":
                    table.promises["one-file: a sample is a thirtieth of the block matrices"] = sent <= needed / 30
                if read == "sample":
                    table.promises[f"{form}: up to two requests a matrix"] = gets <= 2 * LAYERS * 6
    return [table]


def measure_memory(work: Path) -> list[Table]:
    """Read 500 MB with the base in memory and on disk, ten times as much with it on disk, each in its own process."""
    made = roberta_base(work)
    holes = made_once(work / "holes", _make_sparse, [Path(__file__)])
    store = made_once(work / "memory-store", partial(_make_store, made, holes), [Path(__file__), *CODE])
    sparse = {
        layers: holes / f"{layers}-layers" / "base-matrices.safetensors" for layers in (SMALL_LAYERS, LARGE_LAYERS)
    }
    # Model, base, how the base is held, and how often it is read.
    readings = {
        IN_MEMORY: ("bench/small", made.matrices.path, "resident", MEMORY_REPEATS),
        ON_DISK: ("bench/small", made.matrices.path, "on disk", MEMORY_REPEATS),
        LIKE: (f"bench/{SMALL_LAYERS}-layers", sparse[SMALL_LAYERS], "on disk", MEMORY_REPEATS),
        LARGE: (f"bench/{LARGE_LAYERS}-layers", sparse[LARGE_LAYERS], "on disk", 1),
    }
    table = Table(
        "memory: peak resident size over idle while a checkpoint is read over HTTP, 64 MiB ahead; median (range)",
        ["reading", "file, GB", "sent, GB", "rise, MiB", "base held, MiB", "record, MiB", "rise − base, MiB"],
    )
    over: dict[str, tuple[Repeats, float]] = {}
    with served(store) as hub:
        for name, (model, base_file, held, repeats) in readings.items():
            say(f"memory: {name}")
            hub.reset_log()
            found = [read_model(model, base_file, held) for _ in range(repeats)]
            sent = hub.body_bytes(model, "model.safetensors") / repeats
            if sent < found[0]["base"]:
                raise NotMeasuredError(f"the Hub sent {sent:,.0f} bytes of {model}, fewer than its block matrices")
            base, record = found[0]["base"] / MIB if held == "resident" else 0.0, found[0]["kept"] / MIB
            rise = Repeats([one["rise"] / MIB for one in found])
            over[name] = Repeats([value - base for value in rise.values]), record
            size = (store / model / "model.safetensors").stat().st_size
            table.add(name, size / 1e9, sent / 1e9, rise, base, record, over[name][0])
    compare_memory(table, over)
    return [table]


def compare_memory(table: Table, over: Mapping[str, tuple[Repeats, float]]) -> None:
    """Promises: a bound for every reading, and no more for the larger of two files with the same content.

    ``over``: for each reading its peak over idle and the base that it holds, and the size of its record, in MiB.
    """
    for name, (rise, _) in over.items():
        table.promises[f"{name}: ≤ {ALLOWED_MIB} MiB + the base where it is held"] = max(rise.values) <= ALLOWED_MIB
    (like, like_record), (large, large_record) = over[LIKE], over[LARGE]
    records = large_record - like_record
    growth = large.median - like.median - records
    table.promises[f"5 GB: no larger than 500 MB of the same content, the record apart (within {NOISE_MIB} MiB)"] = (
        growth <= NOISE_MIB
    )
    table.notes.append(
        f"From {SMALL_LAYERS} to {LARGE_LAYERS} layers the rise grows by {growth + records:.1f} MiB: the record, which is "
        f"the result, by {records:.1f} MiB, all else by {growth:.1f} MiB."
    )


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


def _make_store(made: Checkpoints, holes: Path, folder: Path) -> None:
    shutil.copytree(made.fine_tunes["planted"], folder / "bench" / "small", copy_function=os.link)
    for name in (f"{SMALL_LAYERS}-layers", f"{LARGE_LAYERS}-layers"):
        shutil.copytree(holes / name / "fine-tune", folder / "bench" / name, copy_function=os.link)


def _make_sparse(folder: Path) -> None:
    for layers in (SMALL_LAYERS, LARGE_LAYERS):
        (folder / f"{layers}-layers").mkdir()
        make_layers(layers, folder / f"{layers}-layers")


def make_layers(layers: int, folder: Path) -> None:
    """A sparse fine-tune with config.json, and its base's block matrices as ``indexer.deltas.base`` stores them."""
    from transformers import RobertaConfig

    config = RobertaConfig(num_hidden_layers=layers).to_dict() | {"model_type": "roberta"}
    tuned = folder / "fine-tune"
    tuned.mkdir()
    (tuned / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shapes = {f"encoder.layer.{layer}.{one}.weight": shape for layer in range(layers) for one, shape in SHAPES.items()}
    rng = np.random.default_rng(0)
    numbers = {}
    for name, (_, columns) in shapes.items():  # random numbers on top of a few directions, as deltas have them
        low_rank = rng.normal(size=(ROWS, 16)) @ rng.normal(size=(16, columns))
        numbers[f"roberta.{name}"] = (0.01 * (rng.normal(size=(ROWS, columns)) / 8 + low_rank)).astype(np.float32)
    of_tuned = {f"roberta.{name}": shape for name, shape in shapes.items()}
    write_sparse(tuned / "model.safetensors", of_tuned, numbers, {"format": "pt"})
    keys = {f"{layer}.{family}": SHAPES[module] for layer in range(layers) for module, family in MODULES.items()}
    description = {
        "base": "bench/large-base",
        "commit": "0" * 40,
        "file_hashes": [None],
        "config": config,
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "norms": dict.fromkeys(keys, 0.0),
    }
    write_sparse(folder / "base-matrices.safetensors", keys, {}, {"base": json.dumps(description)})


def write_sparse(
    path: Path,
    shapes: Mapping[str, tuple[int, int]],
    numbers: Mapping[str, np.ndarray[Any, Any]],
    metadata: Mapping[str, str],
) -> None:
    """A safetensors file of float32 tensors that begin with the rows in ``numbers``; all else is zero."""
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, (rows, columns) in shapes.items():
        stop = offset + 4 * rows * columns
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = file.tell()
        for name, matrix in numbers.items():
            file.seek(start + header[name]["data_offsets"][0])
            file.write(matrix.tobytes())
        file.truncate(start + offset)
