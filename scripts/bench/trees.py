"""Rows ``tree``, ``unchanged`` and ``scan``: a folder of LoRAs, indexed, indexed again, and scanned without an atlas.

The base is of roberta-base's size and lies in a cache of the Hub's client, so no network is used. Factors are drawn at
random: where they began is searched for in vain, as far as a build searches.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from indexer.records.record import DeltaRecord
from scripts.bench.checkpoints import roberta_base
from scripts.bench.measure import NotMeasuredError, Table, made_once, say
from scripts.child import PROJECT, run_module

BASE, COMMIT = "bench/base", "0" * 40
LORAS, RANK, LAYERS, WIDTH = 1_000, 16, 12, 768
UNCHANGED = 10_000
MOST_SECONDS = {"tree": 180.0, "unchanged": 10.0, "scan": 35.0}
CODE = (
    Path(__file__),
    PROJECT / "schema.sql",
    *(
        PROJECT / "indexer" / name
        for name in ("builds", "deltas", "listing", "publish", "records", "sources", "vectors")
    ),
)


def write_lora(folder: Path, seed: int, rank: int, layers: int, width: int = WIDTH) -> None:
    """A folder as PEFT writes it: factors of queries and values."""
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(layers):
        for module in ("query", "value"):
            name = f"base_model.model.roberta.encoder.layer.{layer}.attention.self.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(rank, width, generator=draw) / 30
            tensors[f"{name}.lora_B.weight"] = torch.randn(width, rank, generator=draw) / 1000
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "base_model_name_or_path": BASE}
    (folder / "adapter_config.json").write_text(json.dumps(config | {"target_modules": ["query", "value"]}))


@contextmanager
def base_in_cache(work: Path, base: Path) -> Iterator[None]:
    """The folder of the base is known offline within the block."""
    cache = work / "trees-cache"
    shutil.rmtree(cache, ignore_errors=True)
    snapshot = cache / "models--bench--base" / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(base)
    (cache / "models--bench--base/refs").mkdir()
    (cache / "models--bench--base/refs/main").write_text(COMMIT)
    before = {name: os.environ.get(name) for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE")}
    os.environ |= {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def build(tree: Path, atlas: Path, *more: str) -> tuple[float, dict[str, int]]:
    """Seconds of `index build` from the shell, and its report."""
    ran = run_module("indexer", "build", "--base", BASE, "--from", str(tree), "--atlas", str(atlas), "--json", *more)
    return ran.seconds, ran.output


def _loras(work: Path, count: int) -> Path:
    """A folder of LoRAs of 2 MB."""

    def make(folder: Path) -> None:
        for number in range(count):
            write_lora(folder / f"run{number:04}", number, RANK, LAYERS)

    return made_once(work / f"loras-{count}", make, (Path(__file__),))


def measure_scan(work: Path, count: int = LORAS) -> list[Table]:
    """A scan of a folder of LoRAs of 2 MB."""
    tree = _loras(work, count)
    with base_in_cache(work, roberta_base(work).base):
        ran = run_module("indexer", "scan", str(tree), "--json")
    fitting = sum(row["by_names"] for row in ran.output["bases"])
    if fitting != count:
        raise NotMeasuredError(f"the base of {fitting} of {count} LoRAs was recognised")
    table = Table(f"`index scan` of {count:,} LoRAs", ["models", "s", "models a second"])
    table.add(count, ran.seconds, count / ran.seconds)
    most = MOST_SECONDS["scan"] * count / LORAS
    table.promises |= {f"within {most:.0f} s": ran.seconds <= most}
    return [table]


def measure_tree(work: Path, count: int = LORAS) -> list[Table]:
    """The first indexing of a folder of LoRAs of 2 MB."""
    tree = _loras(work, count)
    atlas = work / "trees-atlas"
    shutil.rmtree(atlas, ignore_errors=True)
    table = Table(f"`index build --from` of {count:,} LoRAs", ["models", "MB each", "s", "models a second"])
    with base_in_cache(work, roberta_base(work).base):
        seconds, report = build(tree, atlas)
    shutil.rmtree(atlas, ignore_errors=True)
    if report["indexed"] != count:
        raise NotMeasuredError(f"{report['indexed']} of {count} LoRAs were indexed")
    size = (tree / "run0000" / "adapter_model.safetensors").stat().st_size / 1e6
    table.add(count, size, seconds, count / seconds)
    most = MOST_SECONDS["tree"] * count / LORAS
    table.promises |= {f"within {most:.0f} s": seconds <= most}
    return [table]


def _with_other_vectors(delta: DeltaRecord, draw: np.random.Generator) -> DeltaRecord:
    """A delta with the same singular values and random singular vectors, or those of nothing."""
    if delta.u is None or not delta.norm:
        return delta
    u, v = (np.linalg.qr(draw.normal(size=one.shape))[0].astype(np.float16) for one in (delta.u, delta.v))
    return replace(delta, u=u, v=v)


def measure_unchanged(work: Path, count: int = UNCHANGED) -> list[Table]:
    """The same again where nothing has changed: the folder is listed, and nothing is opened."""

    def make(folder: Path) -> None:
        from indexer.atlas import AtlasFolder
        from indexer.builds.build import Build
        from indexer.builds.build_base import facts_of_stored
        from indexer.builds.options import BuildOptions
        from indexer.builds.report import Watcher
        from indexer.builds.trees import Trees
        from indexer.deltas.stored_base import stored_bases
        from indexer.listing.listing import Listing
        from indexer.records.store import RecordStore

        tree, atlas = folder / "tree", AtlasFolder(folder / "atlas")
        for number in range(count):
            write_lora(tree / f"{number % 100:02}" / f"run{number:05}", number, 1, 1, 48)
        build(tree, atlas.root, "--limit", "1")
        # The others get records like its own with other vectors, which is quicker than reading them.
        options, store = BuildOptions(sources=str(tree)), RecordStore(atlas)
        with atlas.locked("bench"):
            trees = Trees(atlas, options, Watcher())
            (stored,) = stored_bases(atlas)
            facts = facts_of_stored(stored, Listing(atlas.listing(BASE)))
            _, models = trees.sorted_models([facts])
            places = models.places(facts.id)
            planned = Build(atlas, facts, options, places=places, with_hub=False).plan()
            record = next(store.read(entry.record_key) for entry in planned if entry.record_key)
            draw = np.random.default_rng(0)
            for number, entry in enumerate(planned):
                if entry.unit is not None:
                    deltas = tuple(_with_other_vectors(delta, draw) for delta in record.deltas)
                    store.write(replace(record, identity=entry.unit.identity, deltas=deltas))
                if number % 1000 == 999:
                    say(f"{number + 1} records")
        build(tree, atlas.root)

    # The folder gets another name when it is complete: its models are known by their content, and looked at again once.
    config = transformers.RobertaConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96
    )
    base = made_once(
        work / "tiny-base", lambda folder: transformers.RobertaModel(config).save_pretrained(folder), (Path(__file__),)
    )
    with base_in_cache(work, base):
        made = made_once(work / f"unchanged-{count}", make, CODE)
        build(made / "tree", made / "atlas")
        seconds, report = build(made / "tree", made / "atlas")
    if (report["unchanged"], report["indexed"]) != (count, 0):
        raise NotMeasuredError(f"{report['unchanged']} of {count} adapters were unchanged")
    table = Table("`index build --from` where nothing has changed", ["models", "s"])
    table.add(count, seconds)
    table.promises |= {f"within {MOST_SECONDS['unchanged']:.0f} s": seconds <= MOST_SECONDS["unchanged"]}
    return [table]
