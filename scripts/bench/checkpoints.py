"""A base model of roberta-base's size and fine-tunes of it on disk, made once; nothing is downloaded.

The base is drawn at random. One fine-tune has deltas with the spectra of real ones. The other is trained for a few steps
of AdamW, whose first deltas are nearly sign matrices and have the flattest spectra that fine-tuning makes.
"""

from __future__ import annotations

import inspect
import pydoc
import statistics
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import BaseMatrices, store_base
from indexer.sources.registry import ModelRef
from scripts.bench.measure import made_once
from scripts.child import PROJECT

# The block matrices of a layer: module and family.
MODULES = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "output",
    "intermediate.dense": "feedforward1",
    "output.dense": "feedforward2",
}
# Share of the energy held by the top 1, 2, 4, 8, 16 singular values of real deltas.
ENERGY = {
    "attention.self.query": (0.35, 0.47, 0.57, 0.66, 0.75),
    "attention.self.key": (0.26, 0.38, 0.49, 0.61, 0.72),
    "attention.self.value": (0.44, 0.60, 0.70, 0.77, 0.83),
    "attention.output.dense": (0.51, 0.67, 0.75, 0.81, 0.86),
    "intermediate.dense": (0.33, 0.47, 0.57, 0.64, 0.71),
    "output.dense": (0.51, 0.66, 0.75, 0.81, 0.86),
}
# ‖δW‖ / ‖W‖ of real fine-tunes is half a percent to one percent.
RELATIVE_NORM = 0.008
STEPS = 6
# What decides how these checkpoints and the base's block matrices turn out.
CODE = (
    Path(__file__),
    *(
        PROJECT / "indexer" / name
        for name in (
            "deltas/base.py",
            "checkpoints/architectures/layout.py",
            "checkpoints/architectures/architecture.py",
        )
    ),
)


@dataclass(frozen=True)
class Checkpoints:
    """Folders that transformers can load, and the base's block matrices, resident."""

    base: Path
    fine_tunes: dict[str, Path]
    matrices: BaseMatrices


def roberta_base(work: Path) -> Checkpoints:
    """A base and two fine-tunes of roberta-base's size below ``work`` (1.8 GB, made in under a minute)."""
    made = made_once(work / "roberta-base-sized", _make, CODE)
    for path in made.rglob("*.safetensors"):
        with path.open("rb") as file:  # read once, so that it is in the page cache
            while file.read(1 << 24):
                pass
    fine_tunes = {name: made / name for name in ("planted", "trained")}
    return Checkpoints(made / "base", fine_tunes, BaseMatrices(made / "base-matrices.safetensors"))


def _make(folder: Path) -> None:
    torch.manual_seed(0)
    config = transformers.RobertaConfig()
    # A classifier without a pooler, so that a fine-tune holds exactly the base's blocks and a head.
    base = transformers.RobertaModel(config, add_pooling_layer=False)
    base.save_pretrained(folder / "base")
    checkpoint = open_checkpoint(ModelRef.parse(str(folder / "base")))
    store_base(checkpoint, "bench/base", "0" * 40, folder / "base-matrices.safetensors").close()
    checkpoint.close()
    for name, change in {"planted": _plant, "trained": _train}.items():
        model = transformers.RobertaForSequenceClassification(
            transformers.RobertaConfig.from_dict(config.to_dict() | {"num_labels": 3})
        )
        model.roberta.load_state_dict(base.state_dict())
        change(model)
        model.save_pretrained(folder / name)


@torch.no_grad()
def _plant(model: transformers.RobertaForSequenceClassification) -> None:
    for number, (name, weight) in enumerate(model.named_parameters()):
        module = next((one for one in ENERGY if name.endswith(f"{one}.weight")), None)
        if module is None:
            continue
        generator = torch.Generator().manual_seed(number)
        rows, columns = weight.shape
        count = min(rows, columns)
        left = torch.linalg.qr(torch.randn(rows, count, generator=generator)).Q
        right = torch.linalg.qr(torch.randn(columns, count, generator=generator)).Q
        values = torch.from_numpy(_spectrum(ENERGY[module], count)).float()
        norm = RELATIVE_NORM * torch.linalg.vector_norm(weight)
        weight.add_(norm * (left * values) @ right.T)


def _spectrum(shares: tuple[float, ...], count: int) -> np.ndarray:
    """``count`` singular values whose squares add up to ``shares`` at 1, 2, 4, 8, 16, and to 1 at the end."""
    at = np.log2(1 + np.array([0, 1, 2, 4, 8, 16, count]))
    energy = np.interp(np.log2(1 + np.arange(count + 1)), at, [0, *shares, 1])
    return np.sqrt(np.sort(np.diff(energy))[::-1])


def _train(model: transformers.RobertaForSequenceClassification) -> None:
    """A few steps on the source of the standard library's own documentation tools."""
    words = [word for module in (pydoc, inspect, statistics) for word in inspect.getsource(module).split()]
    tokens = torch.tensor([5 + zlib.crc32(word.encode()) % 50_000 for word in words])
    batches = tokens[: STEPS * 4 * 32].view(STEPS, 4, 32)
    model.roberta.embeddings.requires_grad_(False)
    optimizer = torch.optim.AdamW((weight for weight in model.parameters() if weight.requires_grad), lr=5e-5)
    for batch in batches:
        model(input_ids=batch, labels=torch.arange(4) % 3).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
