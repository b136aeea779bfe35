"""A small vision transformer and what it is trained on: scikit-learn's digits, changed and labelled in several ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from scripts.family.plan import Adapter, Architecture, DataSet, Plan, load_plan
from studies.lineage.optimisers import minimise

ARCHITECTURE = "vit"
SIDE, PATCH = 16, 4  # pixels
FOR_BASE = 800  # images that the base is trained on; the fine-tunes have the others
BATCH, RATE, STEPS = 32, 1e-3, 500  # of the base
WITH_LOOPS = (0, 4, 6, 8, 9)

Labelled = tuple[Tensor, Tensor]


def turned(images: Tensor, numbers: Tensor) -> Labelled:
    """A quarter of the images upright, the others turned by 90, 180 and 270 degrees."""
    labels = torch.arange(len(images)) % 4
    return torch.stack([image.rot90(int(times), (1, 2)) for image, times in zip(images, labels, strict=True)]), labels


def mirrored(images: Tensor, numbers: Tensor) -> Labelled:
    """Every second image mirrored."""
    labels = torch.arange(len(images)) % 2
    return torch.where(labels[:, None, None, None] == 1, images.flip(3), images), labels


def noisy(images: Tensor, numbers: Tensor) -> Labelled:
    """With noise as large as the ink."""
    return images + torch.randn(images.shape, generator=torch.Generator().manual_seed(0)), numbers


DATASETS: Mapping[str, Callable[[Tensor, Tensor], Labelled]] = {
    "digits/number": lambda images, numbers: (images, numbers),
    "digits/parity": lambda images, numbers: (images, numbers % 2),
    "digits/half": lambda images, numbers: (images, (numbers >= 5).long()),
    "digits/loops": lambda images, numbers: (images, torch.isin(numbers, torch.tensor(WITH_LOOPS)).long()),
    "digits/negative": lambda images, numbers: (-images, numbers),
    "digits/turned": turned,
    "digits/mirrored": mirrored,
    "digits/noisy": noisy,
}


def plan_of_images() -> Plan:
    """A plan like those of the family, for digits."""
    modules = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj", "feedforward1": "mlp.fc1",
               "feedforward2": "mlp.fc2"}  # fmt: skip
    config = {
        "image_size": SIDE, "patch_size": PATCH, "num_channels": 1, "hidden_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "intermediate_size": 256, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "initializer_range": 0.05,
    }  # fmt: skip
    task = "image-classification"
    network = Architecture("vit", "labels", task, "classifier", ("layers",), modules, config)
    datasets = {name: DataSet(name, "digits", "label", (), "Digits.", task=task) for name in DATASETS}
    plan = load_plan("small")
    return replace(
        plan, base="atlas-demo/tiny-vit", architecture_name=ARCHITECTURE, architecture=network, datasets=datasets
    )


def data_of(name: str, *, for_base: bool = False) -> Labelled:
    """Images (n, 1, SIDE, SIDE) with a mean near 0, and labels (n,)."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 0.6
    images = torch.nn.functional.interpolate(images, (SIDE, SIDE), mode="bilinear")
    chosen = slice(None, FOR_BASE) if for_base else slice(FOR_BASE, None)
    return DATASETS[name](images[chosen], torch.tensor(digits.target)[chosen])


def batches(images: Tensor, labels: Tensor, size: int, seed: int) -> Iterator[Labelled]:
    """Batches without end; every pass has another order."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(images), generator=draw)
        for start in range(0, len(images) - size + 1, size):
            rows = order[start : start + size]
            yield images[rows], labels[rows]


def image_loss(model: Any, name: str, size: int, seed: int, *, for_base: bool = False) -> Callable[[], Tensor]:
    """A function that draws the next batch of a data set and returns the loss of the model on it."""
    drawn = batches(*data_of(name, for_base=for_base), size, seed)

    def loss() -> Tensor:
        pixels, labels = next(drawn)
        return torch.nn.functional.cross_entropy(model(pixel_values=pixels).logits, labels)

    return loss


def make_image_base(plan: Plan, folder: Path) -> None:
    """Train the base to read digits, and save it in ``folder``."""
    torch.manual_seed(plan.pretraining.seed)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**plan.architecture.config, num_labels=10))
    minimise(model, image_loss(model, "digits/number", BATCH, 0, for_base=True), STEPS, RATE)
    model.save_pretrained(folder)


def load_image_start(start: Path, name: str) -> Any:
    """The network before training, with a head for the labels of a data set."""
    labels = int(data_of(name)[1].max()) + 1
    kind = transformers.ViTForImageClassification
    return kind.from_pretrained(start, num_labels=labels, ignore_mismatched_sizes=True, dtype=torch.float32)


def add_image_adapter(model: Any, adapter: Adapter, plan: Plan) -> Any:
    """The network with LoRA factors added to the targeted matrices; PEFT has no task of this kind."""
    from peft import LoraConfig, get_peft_model

    modules = [plan.architecture.modules[family] for family in adapter.targets]
    settings = LoraConfig(
        r=adapter.rank, lora_alpha=adapter.alpha, target_modules=modules, modules_to_save=["classifier"]
    )
    return get_peft_model(model, settings)
