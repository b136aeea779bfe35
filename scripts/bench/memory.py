"""The row ``memory``: how far resident memory rises while a checkpoint is read, and that its size does not matter.

The checkpoint of 5 GB has ten times as many layers of the same size. Its file has holes: only some layers hold
numbers, the others are zeros that take no place on the disk. They travel over HTTP and are compared with the base
like any others.
"""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import RobertaConfig

from scripts.bench.checkpoints import Checkpoints, roberta_base
from scripts.bench.hub import read_model, served
from scripts.bench.inputs import made_once
from scripts.bench.measure import Repeats, Table, say

MIB = 1 << 20
ALLOWED = 250
REPEATS = 3
# Peaks of the same reading differ by so much from run to run.
NOISE = 16
LAYERS = 176
WITH_NUMBERS = (0, 1, 87, 88, 174, 175)
SHAPES = {
    "attention.self.query": (768, 768),
    "attention.self.key": (768, 768),
    "attention.self.value": (768, 768),
    "attention.output.dense": (768, 768),
    "intermediate.dense": (3072, 768),
    "output.dense": (768, 3072),
}
FAMILIES = dict(zip(SHAPES, ("query", "key", "value", "output", "feedforward1", "feedforward2"), strict=True))


def measure(work: Path) -> list[Table]:
    """Read 500 MB with the base in memory and on disk, 5 GB with the base on disk, each in processes of its own."""
    made = roberta_base(work)
    large = made_once(work / "five-gigabytes", _make_large)
    store = made_once(work / "memory-store", partial(_make_store, made, large))
    readings = {
        "base in memory": ("bench/small", made.matrices.path, True, REPEATS),
        "base on disk": ("bench/small", made.matrices.path, False, REPEATS),
        "base on disk, 5 GB": ("bench/large", large / "base-matrices.safetensors", False, 1),
    }
    table = Table(
        "memory: peak resident size over idle while a checkpoint is read over HTTP, 64 MiB ahead; median (range)",
        ["reading", "file, GB", "sent, GB", "rise, MiB", "base held, MiB", "record, MiB", "rise − base, MiB"],
    )
    over: dict[str, Repeats] = {}
    kept: dict[str, float] = {}
    with served(store) as hub:
        for name, (model, base_file, resident, repeats) in readings.items():
            say(f"memory: {name}")
            hub.reset_log()
            found = [read_model(model, base_file, resident=resident) for _ in range(repeats)]
            held = found[0].base / MIB if resident else 0.0
            rise = Repeats([told.rise / MIB for told in found])
            over[name] = Repeats([value - held for value in rise.values])
            kept[name] = found[0].kept / MIB
            size = (store / model / "model.safetensors").stat().st_size / 1e9
            sent = hub.body_bytes(model, "model.safetensors") / repeats / 1e9
            table.add(name, size, sent, rise, held, kept[name], over[name])
    for name, values in over.items():
        table.promises[f"{name}: ≤ {ALLOWED} MiB + the base where it is held"] = values.highest <= ALLOWED
    small, big = "base on disk", "base on disk, 5 GB"
    table.promises[f"5 GB: no larger than 500 MB, the record apart (within {NOISE} MiB)"] = (
        over[big].median - kept[big] <= over[small].highest - kept[small] + NOISE
    )
    return [table]


def _make_store(made: Checkpoints, large: Path, folder: Path) -> None:
    shutil.copytree(made.fine_tunes["planted"], folder / "bench" / "small", copy_function=os.link)
    shutil.copytree(large / "fine-tune", folder / "bench" / "large", copy_function=os.link)


def _make_large(folder: Path) -> None:
    """A fine-tune with config.json, and its base's block matrices as ``indexer.base`` keeps them."""
    config = RobertaConfig(num_hidden_layers=LAYERS).to_dict() | {"model_type": "roberta"}
    tuned = folder / "fine-tune"
    tuned.mkdir()
    (tuned / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = {
        f"roberta.encoder.layer.{layer}.{module}.weight": (layer, shape)
        for layer in range(LAYERS)
        for module, shape in SHAPES.items()
    }
    shapes = {name: shape for name, (_, shape) in names.items()}
    rng = np.random.default_rng(0)
    numbers = {name: _weight(rng, shape) for name, (layer, shape) in names.items() if layer in WITH_NUMBERS}
    _write_with_holes(tuned / "model.safetensors", shapes, numbers, {"format": "pt"})
    keys = {f"{layer}.{family}": SHAPES[module] for layer in range(LAYERS) for module, family in FAMILIES.items()}
    description = {
        "base": "bench/large-base",
        "commit": "0" * 40,
        "file_hashes": [None],
        "config": config,
        "shapes": {name.removeprefix("roberta."): list(shape) for name, shape in shapes.items()},
        "norms": dict.fromkeys(keys, 0.0),
    }
    _write_with_holes(folder / "base-matrices.safetensors", keys, {}, {"base": json.dumps(description)})


def _weight(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Random numbers on top of a few directions, as deltas have them."""
    low_rank = rng.normal(size=(shape[0], 16)) @ rng.normal(size=(16, shape[1]))
    return (0.01 * (rng.normal(size=shape) / 8 + low_rank)).astype(np.float32)


def _write_with_holes(
    path: Path,
    shapes: dict[str, tuple[int, int]],
    numbers: dict[str, np.ndarray[Any, Any]],
    metadata: dict[str, str],
) -> None:
    """A safetensors file of float32 tensors, zero where there are no ``numbers``."""
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
