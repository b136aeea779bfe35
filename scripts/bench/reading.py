"""The row ``reading``: the bytes that a checkpoint of roberta-base's size costs over HTTP, counted by the Hub."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

from scripts.bench.checkpoints import CODE, Checkpoints, roberta_base
from scripts.bench.hub import read_model, served
from scripts.bench.inputs import made_once
from scripts.bench.measure import NotMeasuredError, Table

ALLOWED_SHARE, ALLOWED_PER_FILE = 1.02, 64 << 10
EXCEPTED = ("legacy-bin",)
WEIGHTS = (".safetensors", ".bin")
LAYERS, WIDTH, INNER = 12, 768, 3072
LORA_RANK, LORA_FAMILIES = 8, ("attention.self.query", "attention.self.value")
# Numbers in what must be read: four square matrices and two oblong ones a layer; the factors of two square ones.
BLOCK_NUMBERS = LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER)
FACTOR_NUMBERS = LAYERS * len(LORA_FAMILIES) * 2 * LORA_RANK * WIDTH


def measure(work: Path) -> list[Table]:
    """Serve one fine-tune in several forms, vectorise each over HTTP, count what the Hub sent of its weight files."""
    made = roberta_base(work)
    store = made_once(work / "reading-store", partial(_make_store, made), [Path(__file__), *CODE])
    table = Table(
        "reading: response bodies for a checkpoint of roberta-base's size, counted by the Hub (exact: one reading each)",
        ["form", "files", "file, MB", "needed, MB", "sent, MB", "sent ÷ needed", "sent ÷ whole file", "requests"],
    )
    with served(store) as hub:
        for folder in sorted(path for path in (store / "bench").iterdir() if path.is_dir()):
            hub.reset_log()
            model, relation = f"bench/{folder.name}", "adapter" if folder.name == "lora" else "finetune"
            read_model(model, made.matrices.path, resident=True, relation=relation)
            files = [path for path in folder.iterdir() if path.suffix in WEIGHTS]
            size = sum(path.stat().st_size for path in files)
            sent = sum(hub.body_bytes(model, path.name) for path in files)
            needed = _needed(folder.name)
            _check(folder.name, sent, needed)
            gets = sum(request.role == "cdn" for request in hub.requests)
            table.add(
                folder.name, len(files), size / 1e6, needed / 1e6, sent / 1e6,
                round(sent / needed, 4), round(sent / size, 4), gets,
            )  # fmt: skip
            if folder.name not in EXCEPTED:
                promise = f"{folder.name}: bodies ≤ {ALLOWED_SHARE} × what is needed + 64 KiB a file"
                table.promises[promise] = sent <= ALLOWED_SHARE * needed + ALLOWED_PER_FILE * len(files)
    table.notes.append(
        "Needed: the block matrices, of LoRA the factors. A download reads whole files. No promise is made for legacy .bin."
    )
    return [table]


def _check(form: str, sent: int, needed: int) -> None:
    """Raises NotMeasuredError where fewer bytes were counted than the model is made of: then the count is wrong."""
    if sent < needed:
        raise NotMeasuredError(f"{form}: the Hub counted {sent:,} bytes, the model takes at least {needed:,}")


def _needed(form: str) -> int:
    """Bytes of the block matrices, of LoRA the factors, in the dtype they are stored in."""
    if form == "lora":
        return 4 * FACTOR_NUMBERS
    return (2 if form == "float16" else 4) * BLOCK_NUMBERS


def _make_store(made: Checkpoints, folder: Path) -> None:
    """The planted fine-tune as one file, in shards, in float16, as zip and legacy pickles; and a LoRA."""
    import torch
    from transformers import RobertaForSequenceClassification

    source = made.fine_tunes["planted"]
    shutil.copytree(source, folder / "bench" / "one-file")
    model = RobertaForSequenceClassification.from_pretrained(source)
    model.save_pretrained(folder / "bench" / "shards", max_shard_size="120MB")
    for name, is_zip in (("zip-bin", True), ("legacy-bin", False)):
        target = folder / "bench" / name
        target.mkdir()
        shutil.copy(source / "config.json", target)
        torch.save(model.state_dict(), target / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    model.half().save_pretrained(folder / "bench" / "float16")
    _make_lora(folder / "bench" / "lora")


def _make_lora(folder: Path) -> None:
    """Factors for queries and values as PEFT saves them, and a classifier, which is not read."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    settings = {
        "peft_type": "LORA",
        "base_model_name_or_path": "bench/base",
        "r": LORA_RANK,
        "lora_alpha": 2 * LORA_RANK,
        "target_modules": [name.rpartition(".")[2] for name in LORA_FAMILIES],
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    tensors = {"base_model.model.classifier.modules_to_save.weight": torch.randn(WIDTH, WIDTH, generator=generator)}
    for layer in range(LAYERS):
        for name in LORA_FAMILIES:
            path = f"base_model.model.roberta.encoder.layer.{layer}.{name}"
            tensors[f"{path}.lora_A.weight"] = torch.randn(LORA_RANK, WIDTH, generator=generator) / 100
            tensors[f"{path}.lora_B.weight"] = torch.randn(WIDTH, LORA_RANK, generator=generator) / 100
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
