"""What `query ask` costs at the shape of roberta-base: ``python -m scripts.ask.costs --out DIR [--models N …]``.

The base is random and of roberta-base's shape, with a tokenizer trained on the documentation of Python; it comes from a
loopback Hub. The atlases are written straight into their database: vectors of 8,208 random numbers, of which every
fifth model's lack some blocks, and token rows for three models of four. Costs depend on shapes alone; a random base is the
dearer case, as few directions of its inputs are negligible.

Every question is a process of its own: the first one about a base, the first one about another atlas of it, one with
other texts, and one with the same texts again, which needs no forward pass.
"""

from __future__ import annotations

import argparse
import os
import pydoc_data.topics
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from indexer.atlas import SCHEMA_VERSION, STORAGE_VERSION, AtlasFolder, schema_sql
from scripts.child import run_module
from scripts.loopback_hub import LoopbackHub

BASE = "atlas-scale/roberta-base-shape"
LAYERS, VOCABULARY = 12, 50_265
FAMILIES = ("query", "key", "value", "output", "feedforward1", "feedforward2")
LENGTH, CENTRE = 114, "random"
TEXTS, SHORTEST = 200, 160  # paragraphs of a file, and characters of one
WITHOUT_BLOCKS, WITHOUT_TOKENS = 5, 4  # every so many models
AT_ONCE = 2_048


def make_base(folder: Path) -> None:
    """A random RoBERTa of the shape of roberta-base, with a byte-level tokenizer."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaModel

    if (folder / "model.safetensors").is_file():
        return
    torch.manual_seed(0)
    model = RobertaModel(RobertaConfig(vocab_size=VOCABULARY, max_position_embeddings=514), add_pooling_layer=False)
    model.save_pretrained(folder)
    tokenizer = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(pydoc_data.topics.topics.values(), vocab_size=8192, special_tokens=special)
    tokenizer.save(str(folder / "tokenizer.json"))


def make_texts(folder: Path) -> list[Path]:
    """Two files of paragraphs, none in both."""
    paragraphs = [" ".join(one.split()) for text in pydoc_data.topics.topics.values() for one in text.split("\n\n")]
    paragraphs = sorted({one for one in paragraphs if len(one) >= SHORTEST})
    files = [folder / "one.txt", folder / "other.txt"]
    for place, file in enumerate(files):
        file.write_text("\n".join(paragraphs[place : 2 * TEXTS : 2]) + "\n", encoding="utf-8")
    return files


def vectors(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids and random vectors of unit blocks; adapters lack the blocks of other families than query and value."""
    random = np.random.default_rng(0)
    lacking = np.array([family not in ("query", "value") for family in FAMILIES] * LAYERS)
    for start in range(0, count, AT_ONCE):
        ids = np.arange(start, min(start + AT_ONCE, count))
        drawn = random.standard_normal((len(ids), len(lacking), LENGTH), dtype=np.float32)
        drawn /= np.linalg.norm(drawn, axis=2, keepdims=True)
        drawn[np.ix_(ids % WITHOUT_BLOCKS == 0, lacking)] = 0
        yield ids, drawn.reshape(len(ids), -1)


def make_atlas(root: Path, count: int, commit: str) -> None:
    """An atlas of ``count`` models, without neighbours and whatever else `ask` does not read."""
    import duckdb

    from indexer.publish.tables import Tables
    from indexer.publish.vectors import PublishedVectors, VectorWriter
    from indexer.records.representation import DEFAULT, representation_named
    from indexer.vectors.choice import IndexChange

    folder = AtlasFolder(root)
    if folder.database.is_file():
        return
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    unfinished = folder.database.with_suffix(".unfinished")
    deltas = [f"{layer}.{family}" for layer in range(LAYERS) for family in FAMILIES]
    representation = representation_named(DEFAULT)
    with duckdb.connect(str(unfinished), config={"storage_compatibility_version": STORAGE_VERSION}) as connection:
        connection.execute(schema_sql())
        tables = Tables(connection)
        tables.run("BEGIN")
        tables.run("INSERT INTO atlas_info VALUES (?, 1, NULL, 'costs', ?)", [SCHEMA_VERSION, count])
        tables.insert("bases", [{"base": BASE, "commit": commit, "aliases": [], "model_type": "roberta",
                                 "architecture": "bert", "deltas": deltas, "config": "{}"}])  # fmt: skip
        published = PublishedVectors(root, tables, BASE, representation, 8, lambda line: None, IndexChange("exact"))
        writer = VectorWriter(root, BASE, representation, CENTRE, len(deltas))
        for ids, drawn in vectors(count):
            writer.add_all(ids, drawn)
            add_models(tables, ids)
        published.change(writer, [])
        tables.run("COMMIT")
    unfinished.replace(folder.database)


def add_models(tables: Any, ids: np.ndarray) -> None:
    """Their rows in fine_tunes and records."""
    import base64

    from indexer.records.tokens import token_rows

    rows = len(token_rows(VOCABULARY))
    random = np.random.default_rng(int(ids[0]))
    met = random.random((len(ids), rows)) < 1 / (1 + np.arange(rows) / 200)
    codes = np.where(met, random.integers(60, 140, met.shape), 0).astype(np.uint8)
    has_tokens = ids % WITHOUT_TOKENS > 0
    encoded = [base64.b64encode(one).decode() if has else None for one, has in zip(codes, has_tokens, strict=True)]
    names = [f"author-{one % 977}/model-{one}" for one in ids.tolist()]
    own = {"model_id": ids.astype(np.int32), "model": names, "author": [name.partition("/")[0] for name in names]}
    same = {"base": BASE, "status": "indexed", "relation": "finetune", "commit": "0" * 40}
    tables.insert_columns("fine_tunes", own | {name: [value] * len(ids) for name, value in same.items()})
    tables.insert_columns(
        "records",
        {
            "model_id": ids.astype(np.int32),
            "record_key": [f"{one:064x}" for one in ids.tolist()],
            "token_class": ["exact" if has else None for has in has_tokens],
            "token_codes": encoded,
            "token_is_share": [False] * len(ids),
            "token_scale": [1.0] * len(ids),
            "token_rows": [VOCABULARY] * len(ids),
            "base_token_rows": [VOCABULARY] * len(ids),
        },
    )


def ask(atlas: Path, file: Path) -> tuple[float, float, float]:
    """Seconds of wall and of processor, and megabytes, of one question in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = run_module("query", "ask", str(file), "--base", BASE, "--atlas", str(atlas), "--json")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ran.seconds, processor, ran.peak_bytes / 1e6


def main() -> None:
    """Make what is not there yet, ask, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m scripts.ask.costs", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where everything is made once and kept")
    parser.add_argument("--models", type=int, nargs="+", default=[100, 100_000])
    options = parser.parse_args()
    out = options.out.resolve()
    make_base(out / "hub" / BASE)
    one, other = make_texts(out)
    with LoopbackHub(out / "hub") as hub:
        cache = out / "huggingface"
        os.environ |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(cache), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        from huggingface_hub import HfApi

        commit = str(HfApi(endpoint=hub.endpoint).model_info(BASE).sha)
        atlases = {count: out / f"atlas-{count}-{commit[:8]}" for count in options.models}
        for count, atlas in atlases.items():
            make_atlas(atlas, count, commit)
        shutil.rmtree(cache, ignore_errors=True)  # what earlier questions kept, and the base
        print(f"{'models':>8}  {'question':<40}{'s':>8}{'processor':>11}{'MB':>8}")
        for number, (count, atlas) in enumerate(atlases.items()):
            questions = [
                ("the first one about the base" if not number else "the first one about this atlas", one),
                ("other texts", other),
                ("the same texts again", other),
            ]
            for what, file in questions:
                seconds, processor, megabytes = ask(atlas, file)
                print(f"{count:>8,}  {what:<40}{seconds:>8.1f}{processor:>11.1f}{megabytes:>8,.0f}", flush=True)


if __name__ == "__main__":
    main()
