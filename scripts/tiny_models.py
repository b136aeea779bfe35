"""Trains the small models, each once, on scikit-learn's digits and photographs, and on Python's own help texts."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

from indexer.profiles.layers import Layers
from indexer.profiles.patch_embedding import seeded_patch_embedding
from indexer.profiles.single import read_now
from indexer.records.identity import ModelVersion
from indexer.sources.registry import ModelRef

SIDE = 32
DIGITS = 10
CLASSES = DIGITS + 2  # and two photographs
CROPS = 180  # of each photograph, about the number of images of a digit
WIDTH, DEPTH, PATCH = 96, 4, 4
VIT_STEPS, GPT_STEPS, MIXER_STEPS = 320, 160, 240
HELD_OUT = 300


def make_vit(folder: Path, steps: int = VIT_STEPS) -> dict[str, Any]:
    """A ViT of four layers on digits and photographs; its training.json says how it was trained."""
    return _once(folder, lambda into: _train_vit(into, steps))


def make_gpt2(folder: Path, tokenizer: Path, steps: int = GPT_STEPS) -> dict[str, Any]:
    """A GPT-2 of four layers on Python's help texts, with the tokenizer of another model."""
    return _once(folder, lambda into: _train_gpt2(into, tokenizer, steps))


def make_mixer(folder: Path) -> dict[str, Any]:
    """An MLP mixer of the same sizes on the same images."""
    return _once(folder, _train_mixer)


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 3, SIDE, SIDE) from 0 to 1 and their classes, shuffled."""
    from sklearn.datasets import load_digits, load_sample_images

    found = load_digits()
    small = torch.tensor(found.images / 16, dtype=torch.float32)[:, None]
    digits = interpolate(small, SIDE, mode="bilinear", align_corners=False).expand(-1, 3, -1, -1)
    classes = [torch.tensor(found.target, dtype=torch.long)]
    parts = [digits]
    random = np.random.default_rng(0)
    for number, photograph in enumerate(load_sample_images().images):
        pixels = torch.tensor(np.asarray(photograph), dtype=torch.float32).permute(2, 0, 1) / 255
        crops = []
        for _ in range(CROPS):
            side = int(random.integers(64, 300))
            top, left = int(random.integers(pixels.shape[1] - side)), int(random.integers(pixels.shape[2] - side))
            cut = pixels[None, :, top : top + side, left : left + side]
            crops.append(interpolate(cut, SIDE, mode="bilinear", antialias=True, align_corners=False)[0])
        parts.append(torch.stack(crops))
        classes.append(torch.full((CROPS,), DIGITS + number))
    order = torch.randperm(sum(map(len, parts)), generator=torch.Generator().manual_seed(0))
    return torch.cat(parts)[order].contiguous(), torch.cat(classes)[order]


def token_ids(tokenizer: Path) -> torch.Tensor:
    """The first 300,000 token ids of Python's help texts (pydoc_data)."""
    from pydoc_data import topics

    from tokenizers import Tokenizer

    found = Tokenizer.from_file(str(tokenizer))
    found.no_truncation()
    texts = [text for _, text in sorted(topics.topics.items())]
    ids = [one for encoding in found.encode_batch(texts, add_special_tokens=False) for one in encoding.ids]
    return torch.tensor(ids[:300_000])


class Block(nn.Module):
    """A block of an MLP mixer (Tolstikhin et al., 2021, arXiv 2105.01601): across patches, then across numbers."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.across = _perceptron(patches, 2 * patches)
        self.within = _perceptron(width, 2 * width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(images, patches, width) → the same."""
        hidden = hidden + self.across(self.norms[0](hidden).transpose(1, 2)).transpose(1, 2)
        mixed: torch.Tensor = hidden + self.within(self.norms[1](hidden))
        return mixed


def _perceptron(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class Mixer(nn.Module):
    """A patch convolution, DEPTH blocks, and a head on the mean over patches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.blocks = nn.ModuleList([Block((SIDE // PATCH) ** 2, WIDTH) for _ in range(DEPTH)])
        self.head = nn.Linear(WIDTH, CLASSES)

    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels from 0 to 1 as patches (images, patches, width)."""
        found: torch.Tensor = self.stem(2 * pixels - 1).flatten(2).transpose(1, 2)
        return found

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Scores (images, classes)."""
        hidden = self.embed(pixels)
        for block in self.blocks:
            hidden = block(hidden)
        scores: torch.Tensor = self.head(hidden.mean(dim=1))
        return scores


def load_mixer(folder: Path | None) -> Mixer:
    """The trained mixer, or an untrained one."""
    from safetensors.torch import load_file

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = Mixer()
    if folder is not None:
        made.load_state_dict(load_file(folder / "mixer.safetensors"))
    return made.eval().requires_grad_(False)


def _once(folder: Path, train: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    note = folder / "training.json"
    if note.is_file():
        found: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
        return found
    from transformers.utils import logging

    logging.disable_progress_bar()
    into = folder.with_name(f".{folder.name}.{os.getpid()}")
    into.mkdir(parents=True)
    started = time.process_time()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        result = train(into) | {"cpu_seconds": round(time.process_time() - started, 1)}
    (into / "training.json").write_text(json.dumps(result), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    into.replace(folder)
    return result


def _train_vit(folder: Path, steps: int) -> dict[str, Any]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=4, intermediate_size=2 * WIDTH, image_size=SIDE,
        patch_size=PATCH, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        initializer_range=0.08,  # at .02 the first hundred steps teach it nothing
    )  # fmt: skip
    model = ViTForImageClassification(config)
    result = _classify(model, lambda pixels: model(pixel_values=2 * pixels - 1).logits, steps)
    model.save_pretrained(folder)
    return result


def _train_mixer(folder: Path) -> dict[str, Any]:
    from safetensors.torch import save_file

    model = Mixer()
    result = _classify(model, model, MIXER_STEPS)
    save_file(model.state_dict(), folder / "mixer.safetensors")
    return result


def _classify(model: nn.Module, scores: Callable[[torch.Tensor], torch.Tensor], steps: int) -> dict[str, Any]:
    pixels, classes = images()
    learnt, held = pixels[HELD_OUT:], pixels[:HELD_OUT]
    targets = classes[HELD_OUT:]
    random = torch.Generator().manual_seed(1)

    def loss() -> torch.Tensor:
        chosen = torch.randint(len(learnt), (32,), generator=random)
        return cross_entropy(scores(learnt[chosen]), targets[chosen])

    losses = _minimise(model, loss, steps, 2e-3)
    model.eval()
    with torch.no_grad():
        right = float((scores(held).argmax(dim=1) == classes[:HELD_OUT]).float().mean())
    return {"steps": steps, "right": round(right, 3), "loss": round(sum(losses[-10:]) / 10, 3)}


def _train_gpt2(folder: Path, tokenizer: Path, steps: int) -> dict[str, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=4096, n_embd=128, n_layer=DEPTH, n_head=4, n_positions=128, bos_token_id=0, eos_token_id=2,
        pad_token_id=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    ids = token_ids(tokenizer)
    random = torch.Generator().manual_seed(1)

    def loss() -> torch.Tensor:
        starts = torch.randint(len(ids) - 40, (24,), generator=random)
        batch = torch.stack([ids[start : start + 40] for start in starts])
        scores = model(input_ids=batch).logits[:, :-1]
        return cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())

    losses = _minimise(model, loss, steps, 2e-3)
    model.save_pretrained(folder)
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    return {"steps": steps, "loss": round(sum(losses[-10:]) / 10, 3), "loss_first": round(losses[0], 3)}


def _minimise(model: nn.Module, loss: Callable[[], torch.Tensor], steps: int, rate: float) -> list[float]:
    """AdamW with one cycle of the rate."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    losses = []
    for _ in range(steps):
        value = loss()
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(value.item())
    return losses


class Models:
    """The small models and their untrained twins, loaded once."""

    def __init__(self, folder: Path) -> None:
        self.gpt2 = read_now(ModelVersion(ModelRef.parse(str(folder / "tiny-gpt2"))))
        self.vit = read_now(ModelVersion(ModelRef.parse(str(folder / "tiny-vit"))))
        self.gpt2_twin, self.vit_twin = self.gpt2.twin(0, "cpu"), self.vit.twin(0, "cpu")
        # Any torch module: the library needs a patch embedding and blocks.
        self.own = {
            name: Layers(model.embed, list(model.blocks), patch=PATCH, image_shape=(3, SIDE, SIDE))
            for name, where in (("mixer", folder / "tiny-mixer"), ("mixer, untrained", None))
            for model in [load_mixer(where)]
        }

    @property
    def seeing(self) -> dict[str, Layers]:
        """All that take images, GPT-2 with a patch embedding."""
        return {
            "ViT": self.vit.layers,
            "ViT, untrained": self.vit_twin.layers,
            "GPT-2 behind a stem": seeded_patch_embedding(self.gpt2.layers),
            "GPT-2 untrained, behind a stem": seeded_patch_embedding(self.gpt2_twin.layers),
            **self.own,
        }
