"""A tiny Hub of real transformers checkpoints with known deltas, made in seconds.

Every data set has its own input subspace; a model of it changes each block matrix by random rows times that
subspace, plus a little noise. So neighbours, purity and flags are known beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from scripts.loopback_hub import LoopbackHub
from tests.conftest import Shell

BASE = "org/tiny-base"
OLD_ID = "tiny-base"
DATASETS = ("glue", "imdb", "squad")
AUTHORS = ("ann", "bob", "cyd", "dan")
SIZES: dict[str, int] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 64,
    "max_position_embeddings": 16,
}


def make_store(root: Path, per_dataset: int = 4) -> Path:
    """Write the base and ``per_dataset`` fine-tunes of every data set as a repository store."""
    import torch
    from transformers import RobertaConfig, RobertaForSequenceClassification, RobertaModel

    torch.manual_seed(0)
    config = RobertaConfig(**SIZES)
    base = RobertaModel(config)
    base.save_pretrained(root / BASE)
    describe(root, BASE, tags=["transformers", "roberta"], old_ids=[OLD_ID])
    model = RobertaForSequenceClassification(config)
    for number, dataset in enumerate(DATASETS):
        for member in range(per_dataset):
            author = AUTHORS[member % len(AUTHORS)]
            model.roberta.load_state_dict(base.state_dict(), strict=False)
            shift_weights(model.roberta, number, seed=100 * number + member)
            add_model(
                root, f"{author}/{dataset}-{member}", model, dataset=dataset, base=BASE,
                downloads=100 * number + member, created=f"2024-0{number + 1}-0{member + 1}T00:00:00.000Z",
            )  # fmt: skip
    return root


def shift_weights(body: Any, dataset: int, seed: int, size: float = 1e-2, noise: float = 0.05) -> None:
    """Change every block matrix along the data set's subspace."""
    import torch

    shared, own = np.random.default_rng(dataset), np.random.default_rng(10_000 + seed)
    with torch.no_grad():
        for _, parameter in sorted(body.encoder.named_parameters()):
            if parameter.ndim == 2:
                rows, columns = parameter.shape
                delta = own.normal(size=(rows, 4)) @ shared.normal(size=(4, columns)) / 2
                delta += noise * own.normal(size=(rows, columns))
                parameter += torch.tensor(delta * size, dtype=parameter.dtype)


def add_model(
    root: Path, identifier: str, model: Any, *, dataset: str | None, base: str = BASE, relation: str = "finetune",
    **facts: Any,
) -> None:  # fmt: skip
    """Save ``model`` as a repository that claims ``base``."""
    model.save_pretrained(root / identifier)
    tags = ["transformers", "safetensors", f"base_model:{base}", f"base_model:{relation}:{base}"]
    card: dict[str, Any] = {"base_model": base}
    if dataset is not None:
        tags.append(f"dataset:{dataset}")
        card["datasets"] = [dataset]
    facts.setdefault("created_at", facts.pop("created", "2024-06-01T00:00:00.000Z"))
    describe(root, identifier, tags=tags, card_data=card, **facts)


def describe(root: Path, identifier: str, **facts: Any) -> None:
    """Write what the Hub says of a repository."""
    (root / identifier).mkdir(parents=True, exist_ok=True)
    (root / f"{identifier}.repo.json").write_text(json.dumps(facts))


@contextmanager
def served_shell(store: Path, folder: Path | None = None, **environment: str) -> Iterator[Shell]:
    """A shell in ``folder`` (by default the one that holds the store) for a Hub of ``store``, with its own caches."""
    folder = folder or store.parent
    with LoopbackHub(store) as hub:
        own = {"HF_HOME": str(folder / "hf"), **environment}
        yield Shell(hub.endpoint, folder, own, hub, store)


@contextmanager
def indexed(store: Path, folder: Path | None = None) -> Iterator[Shell]:
    """A shell where `index build` has run once."""
    with served_shell(store, folder) as shell:
        ran = shell("index", "build", "--base", BASE)
        assert ran.code == 0, ran.err
        yield shell
