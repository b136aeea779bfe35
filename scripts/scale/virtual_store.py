"""The repositories of a virtual family, as a store that the loopback Hub serves: descriptions, cards and files."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

from scripts.loopback_hub.store import (
    MAIN,
    JoinedStore,
    Repository,
    Revision,
    Store,
    StoredFile,
    blob_id,
    hub_time,
    is_in_lfs,
    lfs_pointer,
)
from scripts.scale.population import FILES, LOG_DOWNLOADS, draw_card
from scripts.scale.virtual_weights import BASE, Family, Plan

_FIRST_DAY = datetime(2022, 3, 3, tzinfo=UTC)
_REVISIONS_KEPT = 512

# By family of architectures: model type, class of the base, class of a fine-tune, task.
_CLASSES = {
    "roberta": ("roberta", "RobertaForMaskedLM", "RobertaForSequenceClassification", "text-classification"),
    "gpt2": ("gpt2", "GPT2LMHeadModel", "GPT2ForSequenceClassification", "text-classification"),
    "llama": ("llama", "LlamaForCausalLM", "LlamaForCausalLM", "text-generation"),
}


def base_id(plan: Plan) -> str:
    """The base's id on the Hub."""
    return f"virtual/{plan.shape}"


def model_id(family: Family, model: int) -> str:
    """A model's id on the Hub; the base's for ``BASE``."""
    if model == BASE:
        return base_id(family.plan)
    return f"author-{family.authors[model]}/{family.plan.shape}-finetuned-d{family.datasets[model]}-{model}"


def config_of(family: Family, model: int) -> dict[str, Any]:
    """config.json, with the labels of a classifier."""
    shape, labels = family.shape, family.labels(model)
    kind, of_base, of_tuned, _ = _CLASSES[shape.family]
    is_base = model == BASE or family.kinds[model] == "copy"
    dtype = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[family.dtype(model)]
    result: dict[str, Any] = {
        "architectures": [of_base if is_base else of_tuned],
        "model_type": kind,
        "torch_dtype": dtype,
        "vocab_size": shape.vocabulary,
    }
    if shape.family == "gpt2":
        result |= {"n_embd": shape.width, "n_head": shape.heads, "n_inner": shape.inner, "n_layer": shape.layers}
        result |= {"n_positions": shape.positions, "n_ctx": shape.positions}
    else:
        result |= {"hidden_size": shape.width, "num_hidden_layers": shape.layers, "intermediate_size": shape.inner}
        result |= {"num_attention_heads": shape.heads, "max_position_embeddings": shape.positions}
    if shape.family == "llama":
        heads = shape.heads * shape.key_value // shape.width
        result |= {"num_key_value_heads": heads, "tie_word_embeddings": False, "rms_norm_eps": 1e-5}
    if shape.family == "roberta":
        result |= {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
    if labels is not None:
        result["id2label"] = {str(number): f"LABEL_{number}" for number in range(labels)}
        result["label2id"] = {f"LABEL_{number}": number for number in range(labels)}
        result["problem_type"] = "single_label_classification"
    return result


def settings_of(family: Family, model: int) -> dict[str, Any]:
    """What the Hub says of a repository, as ``.repo.json`` would."""
    plan = family.plan
    kind, _, _, task = _CLASSES[family.shape.family]
    sha = hashlib.sha1(f"{plan}|{model}".encode(), usedforsecurity=False).hexdigest()
    draw = random.Random(f"{plan.seed}|{model}")
    tags: list[str] = ["transformers", "safetensors", kind]
    if model == BASE:
        return {
            "sha": sha, "created_at": hub_time(_FIRST_DAY), "last_modified": hub_time(_FIRST_DAY), "downloads": 10_000_000,
            "likes": 500, "tags": tags, "card_data": {"license": "mit"}, "library_name": "transformers",
            "pipeline_tag": task if family.shape.family == "llama" else "fill-mask",
        }  # fmt: skip
    base = base_id(plan)
    card: dict[str, Any] = {"tags": ["generated_from_trainer"], "base_model": base, "library_name": "transformers"}
    tags += ["generated_from_trainer", task, f"base_model:{base}", f"base_model:finetune:{base}"]
    dataset = int(family.datasets[model]) if family.named[model] else None
    draw_card(draw, dataset, card, tags)
    created = _FIRST_DAY + timedelta(minutes=draw.randrange(4 * 365 * 24 * 60))
    return {
        "sha": sha,
        "created_at": hub_time(created),
        "last_modified": hub_time(created + timedelta(minutes=draw.randrange(1, 50_000))),
        "downloads": max(0, round(math.exp(draw.gauss(*LOG_DOWNLOADS)) - 1)),
        "likes": int(draw.paretovariate(1.2)) - 1,
        "tags": tags,
        "card_data": card,
        "library_name": "transformers",
        "pipeline_tag": task,
    }


@dataclass(frozen=True)
class _Made:
    """Stands for the path of a stored file: ``make(start, stop)`` are its bytes."""

    size: int
    make: Callable[[int, int], bytes]

    def open(self, mode: str = "rb") -> BinaryIO:
        return cast(BinaryIO, _Stream(self))

    def read_bytes(self) -> bytes:
        return self.make(0, self.size)


class _Stream:
    """As much of a file object as the server uses."""

    def __init__(self, made: _Made) -> None:
        self._made = made
        self._at = 0

    def seek(self, at: int) -> int:
        self._at = at
        return at

    def read(self, count: int = -1) -> bytes:
        stop = self._made.size if count < 0 else min(self._made.size, self._at + count)
        data = self._made.make(self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data

    def __enter__(self) -> _Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@dataclass(frozen=True)
class VirtualRepository(Repository):
    """A repository by its model's number."""

    model: int = BASE

    def revision(self, name: str = MAIN) -> Revision | None:
        """There is only ``main``."""
        if name not in (MAIN, "refs/heads/main", self.settings["sha"]):
            return None
        return cast(VirtualStore, self.store).main(self)


class VirtualStore(JoinedStore):
    """The repositories of a family: their descriptions are made once, their files when they are asked for."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.stores = []
        numbers = sorted(range(BASE, family.plan.models), key=lambda model: model_id(family, model).split("/"))
        here = cast(Store, self)
        self._repositories = {
            (name := model_id(family, model)): VirtualRepository(
                name, settings_of(family, model), Path(name), here, model
            )
            for model in numbers
        }
        self._revisions: OrderedDict[int, Revision] = OrderedDict()
        self._lock = threading.Lock()

    def repository(self, repo_id: str) -> Repository | None:
        """The repository with exactly this id, or None."""
        return self._repositories.get(repo_id)

    def renamed(self, old_id: str) -> Repository | None:
        """None: no repository was renamed."""
        return None

    def repositories(self) -> Iterator[Repository]:
        """Every repository, by id."""
        return iter(self._repositories.values())

    def main(self, repository: VirtualRepository) -> Revision:
        """Its files; those of the last repositories are remembered."""
        with self._lock:
            known = self._revisions.get(repository.model)
            if known is not None:
                self._revisions.move_to_end(repository.model)
                return known
        files = sorted(self._files(repository), key=lambda file: os.fsencode(file.path))
        result = Revision(MAIN, repository.settings["sha"], {file.path: file for file in files})
        with self._lock:
            self._revisions[repository.model] = result
            while len(self._revisions) > _REVISIONS_KEPT:
                self._revisions.popitem(last=False)
        return result

    def _files(self, repository: VirtualRepository) -> Iterator[StoredFile]:
        family, model = self.family, repository.model
        layouts = family.files(model)
        small = dict.fromkeys(FILES, b"{}\n")
        small["config.json"] = json.dumps(config_of(family, model), indent=2).encode() + b"\n"
        # JSON is YAML.
        front = json.dumps(repository.settings["card_data"])
        small["README.md"] = f"---\n{front}\n---\n\n# {repository.id}\n".encode()
        if len(layouts) > 1:
            index = {
                "metadata": {"total_size": sum(layout.size - len(layout.header) for layout in layouts)},
                "weight_map": {tensor.name: layout.path for layout in layouts for tensor in layout.tensors},
            }
            small["model.safetensors.index.json"] = json.dumps(index, indent=2).encode()
        for path, data in small.items():
            made = _Made(len(data), partial(_part, data))
            digest = hashlib.sha256(data).hexdigest() if is_in_lfs(path) else None
            yield _described(path, made, digest, data)
        for layout in layouts:
            made = _Made(layout.size, partial(family.read, model, layout))
            yield _described(layout.path, made, family.digest(model, layout.path))


def _part(data: bytes, start: int, stop: int) -> bytes:
    return data[start:stop]


def _described(path: str, made: _Made, digest: str | None, data: bytes = b"") -> StoredFile:
    content = data if digest is None else lfs_pointer(digest, made.size)
    pointer_size = 0 if digest is None else len(content)
    return StoredFile(path, cast(Path, made), made.size, 0, blob_id(content), digest, pointer_size)
