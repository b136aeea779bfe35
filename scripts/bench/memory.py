"""The row ``memory``: how far resident memory rises while a checkpoint is read, and that its size does not matter.

Size is separated from content by two checkpoints that differ in the number of their layers only, 17 and 176 of the same
size. Their files have holes: the first rows of every matrix hold numbers, the others are zeros that take no place on
the disk. They travel over HTTP, are compared with the base and decomposed like any others. Matrices of nothing but
zeros would not do: these fit a narrower dtype, and are held twice while that is tried.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from scripts.bench.checkpoints import CODE, Checkpoints, roberta_base
from scripts.bench.hub import read_model, served
from scripts.bench.inputs import made_once
from scripts.bench.measure import NotMeasuredError, Repeats, Table, say
from scripts.loopback_hub import LoopbackHub

MIB = 1 << 20
ALLOWED = 250
REPEATS = 3
# Peaks of the same reading differ by so much from run to run.
NOISE = 16
# 0.48 GB and 5 GB.
LAYERS, TIMES_LAYERS = 17, 176
# Rows of each matrix that hold numbers: as many directions, three times the rank.
ROWS = 24
SHAPES = {
    "attention.self.query": (768, 768),
    "attention.self.key": (768, 768),
    "attention.self.value": (768, 768),
    "attention.output.dense": (768, 768),
    "intermediate.dense": (3072, 768),
    "output.dense": (768, 3072),
}
FAMILIES = dict(zip(SHAPES, ("query", "key", "value", "output", "feedforward1", "feedforward2"), strict=True))


@dataclass(frozen=True)
class Reading:
    """One checkpoint of the store to be read against one base, as often as ``repeats`` says."""

    model: str
    base_file: Path
    resident: bool
    repeats: int


@dataclass(frozen=True)
class Taken:
    """Of one reading, MiB: the peak over idle in each repeat, of it the base that is held, and the record's factors."""

    rise: Repeats
    base: float
    record: float

    @property
    def over(self) -> Repeats:
        """The rise without the base."""
        return Repeats([value - self.base for value in self.rise.values])


IN_MEMORY, ON_DISK, LIKE, LARGE = "base in memory", "base on disk", "on disk, 17 layers", "on disk, 176 layers"


def measure(work: Path) -> list[Table]:
    """Read 500 MB with the base in memory and on disk, ten times as much with it on disk, each in its own process."""
    made = roberta_base(work)
    holes = made_once(work / "holes", _make_holes, [Path(__file__)])
    store = made_once(work / "memory-store", partial(_make_store, made, holes), [Path(__file__), *CODE])
    readings = {
        IN_MEMORY: Reading("bench/small", made.matrices.path, True, REPEATS),
        ON_DISK: Reading("bench/small", made.matrices.path, False, REPEATS),
        LIKE: Reading(f"bench/{LAYERS}-layers", _base_of(holes, LAYERS), False, REPEATS),
        LARGE: Reading(f"bench/{TIMES_LAYERS}-layers", _base_of(holes, TIMES_LAYERS), False, 1),
    }
    table = Table(
        "memory: peak resident size over idle while a checkpoint is read over HTTP, 64 MiB ahead; median (range)",
        ["reading", "file, GB", "sent, GB", "rise, MiB", "base held, MiB", "record, MiB", "rise − base, MiB"],
    )
    taken: dict[str, Taken] = {}
    with served(store) as hub:
        for name, reading in readings.items():
            say(f"memory: {name}")
            taken[name], sent = _read(reading, hub)
            size = (store / reading.model / "model.safetensors").stat().st_size / 1e9
            one = taken[name]
            table.add(name, size, sent, one.rise, one.base, one.record, one.over)
    _promise(table, taken)
    return [table]


def _read(reading: Reading, hub: LoopbackHub) -> tuple[Taken, float]:
    """What it took, and the GB that were sent each time. Raises NotMeasuredError where not all of it was sent."""
    hub.reset_log()
    found = [read_model(reading.model, reading.base_file, resident=reading.resident) for _ in range(reading.repeats)]
    sent = hub.body_bytes(reading.model, "model.safetensors") / reading.repeats
    if sent < found[0].base:
        raise NotMeasuredError(
            f"the Hub sent {sent:,.0f} bytes of {reading.model}, its block matrices are {found[0].base:,}"
        )
    held = found[0].base / MIB if reading.resident else 0.0
    return Taken(Repeats([one.rise / MIB for one in found]), held, found[0].kept / MIB), sent / 1e9


def _promise(table: Table, taken: Mapping[str, Taken]) -> None:
    """The bound holds for every size, and of two files with the same content the larger takes no more."""
    for name, one in taken.items():
        table.promises[f"{name}: ≤ {ALLOWED} MiB + the base where it is held"] = one.over.highest <= ALLOWED
    like, large = taken[LIKE], taken[LARGE]
    growth = (large.over.median - large.record) - (like.over.median - like.record)
    table.promises[f"5 GB: no larger than 500 MB of the same content, the record apart (within {NOISE} MiB)"] = (
        growth <= NOISE
    )
    table.notes.append(
        f"From {LAYERS} to {TIMES_LAYERS} layers the rise grows by {large.over.median - like.over.median:.1f} MiB: the "
        f"record, which is the result, by {large.record - like.record:.1f} MiB, all else by {growth:.1f} MiB."
    )


def _base_of(holes: Path, layers: int) -> Path:
    return holes / f"{layers}-layers" / "base-matrices.safetensors"


def _make_store(made: Checkpoints, holes: Path, folder: Path) -> None:
    shutil.copytree(made.fine_tunes["planted"], folder / "bench" / "small", copy_function=os.link)
    for layers in (LAYERS, TIMES_LAYERS):
        name = f"{layers}-layers"
        shutil.copytree(holes / name / "fine-tune", folder / "bench" / name, copy_function=os.link)


def _make_holes(folder: Path) -> None:
    for layers in (LAYERS, TIMES_LAYERS):
        (folder / f"{layers}-layers").mkdir()
        _make_layers(layers, folder / f"{layers}-layers")


def _make_layers(layers: int, folder: Path) -> None:
    """A fine-tune with config.json, and its base's block matrices as ``indexer.deltas.base`` keeps them."""
    config = transformers.RobertaConfig(num_hidden_layers=layers).to_dict() | {"model_type": "roberta"}
    tuned = folder / "fine-tune"
    tuned.mkdir()
    (tuned / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shapes = {
        f"roberta.encoder.layer.{layer}.{module}.weight": shape
        for layer in range(layers)
        for module, shape in SHAPES.items()
    }
    rng = np.random.default_rng(0)
    numbers = {name: _weight(rng, (ROWS, columns)) for name, (_, columns) in shapes.items()}
    _write_with_holes(tuned / "model.safetensors", shapes, numbers, {"format": "pt"})
    keys = {f"{layer}.{family}": SHAPES[module] for layer in range(layers) for module, family in FAMILIES.items()}
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
