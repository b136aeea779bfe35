"""One training run, every batch of which is counted where the network looks its tokens up, and what was counted."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from scripts.family.plan import Architecture
from scripts.family.store import write_json
from scripts.family.tasks import END, NO_LABEL, PADDING, START
from scripts.family.training import OBJECTIVES, Batch, causal_loss
from studies.lineage.optimisers import Lion
from studies.trace.plan import Run

WARM_UP = 0.1  # of the steps


@dataclass
class Replay:
    """What one training run saw, by the ids of the base's vocabulary (and of added tokens behind them).

    ``counts``: (V,) int64, how often each token was an attended input. ``targets``: (V,) int64, how often it was to be
    predicted. ``gradients``: (V,) float64, the largest absolute entry that the row's gradient ever had. ``marked``: (V,)
    bool, whether the row, as it is saved, has another bit than it would have if its token had never been met.
    ``longest``: attended tokens of the longest input. ``given``: the texts as they were given to training. ``seen``: their
    ids after truncation, special tokens included. ``scale``: the product of 1 - rate · decay over the steps, None where
    the optimiser does not multiply by it.
    """

    counts: NDArray[np.int64]
    targets: NDArray[np.int64]
    gradients: NDArray[np.float64]
    marked: NDArray[np.bool_]
    longest: int = 0
    pairs: bool = False
    masked: bool = False
    scale: float | None = 1.0
    given: list[str] = field(default_factory=list)
    seen: list[list[int]] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    @classmethod
    def empty(cls, vocabulary: int) -> Replay:
        """Of a run before its first step."""
        zeros = np.zeros(vocabulary, dtype=np.int64)
        return cls(zeros, zeros.copy(), np.zeros(vocabulary), np.zeros(vocabulary, dtype=np.bool_))

    def see(
        self, ids: NDArray[np.int64], attention: NDArray[np.int64], targets: NDArray[np.int64] | None = None
    ) -> None:
        """Count one batch. ``ids``, ``attention``: (texts, tokens), as the network gets them; ``targets``: ids."""
        is_attended = attention != 0
        self.counts += np.bincount(ids[is_attended], minlength=len(self.counts))
        if targets is not None:
            self.targets += np.bincount(targets, minlength=len(self.targets))
        self.longest = max(self.longest, int(is_attended.sum(axis=1).max(initial=0)))

    def use(self, text: str, ids: Sequence[int]) -> None:
        """Note a text the first time that it is used."""
        if text not in self._known:
            self._known.add(text)
            self.given.append(text)
            self.seen.append(list(ids))

    def __post_init__(self) -> None:
        self._known = set(self.given)

    @property
    def met(self) -> NDArray[np.bool_]:
        """(V,) whether a token was an attended input at least once."""
        return self.counts > 0

    def union(self, other: Replay) -> Replay:
        """Of a model that has both trainings in it; ``other`` came later, or was merged with it."""
        size = max(len(self.counts), len(other.counts))
        mine, theirs = (
            {name: np.pad(getattr(one, name), (0, size - len(one.counts))) for name in ARRAYS} for one in (self, other)
        )
        new = [number for number, text in enumerate(other.given) if text not in self._known]
        return Replay(
            mine["counts"] + theirs["counts"],
            mine["targets"] + theirs["targets"],
            np.maximum(mine["gradients"], theirs["gradients"]),
            mine["marked"] | theirs["marked"],
            longest=max(self.longest, other.longest),
            pairs=self.pairs or other.pairs,
            masked=self.masked or other.masked,
            scale=None if self.scale is None or other.scale is None else self.scale * other.scale,
            given=self.given + [other.given[number] for number in new],
            seen=self.seen + [other.seen[number] for number in new],
            facts=self.facts | other.facts,
        )

    def save(self, path: Path) -> None:
        """Write ``path`` + ``.npz`` and then, by rename, ``path`` + ``.json``."""
        part = path.with_name(path.name + ".part.npz")
        flat = np.array([token for ids in self.seen for token in ids], dtype=np.int64)
        lengths = np.array([len(ids) for ids in self.seen], dtype=np.int64)
        np.savez_compressed(part, seen=flat, lengths=lengths, **{name: getattr(self, name) for name in ARRAYS})
        part.replace(path.with_name(path.name + ".npz"))
        write_json(path.with_name(path.name + ".json"), {name: getattr(self, name) for name in SCALARS})

    @classmethod
    def load(cls, path: Path) -> Replay:
        """Read what ``save`` wrote."""
        with np.load(path.with_name(path.name + ".npz"), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in ARRAYS}
            ends = np.cumsum(stored["lengths"])[:-1]
            seen = [part.tolist() for part in np.split(stored["seen"], ends)] if len(stored["lengths"]) else []
        scalars = json.loads(path.with_name(path.name + ".json").read_text(encoding="utf-8"))
        return cls(**arrays, **{name: scalars[name] for name in SCALARS}, seen=seen)


ARRAYS = ("counts", "targets", "gradients", "marked")
SCALARS = ("longest", "pairs", "masked", "scale", "given", "facts")


def lion(parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Sign of an interpolated momentum, decoupled decay (Chen et al., 2023)."""
    stepper = Lion(parameters, lr)
    for group in stepper.param_groups:
        group["decay"] = weight_decay
    return stepper


def adafactor(parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """As the Trainer of transformers sets it."""
    from transformers.optimization import Adafactor

    return Adafactor(parameters, lr=lr, weight_decay=weight_decay, scale_parameter=False, relative_step=False)


class Table(nn.Module):
    """An embedding alone, with a loss of random directions, for as many steps as real fine-tunes have."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(weight.clone(), freeze=False)

    def get_input_embeddings(self) -> nn.Embedding:
        """As networks of transformers answer."""
        return self.embedding

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
        """``loss``: the squares of projections of the attended rows on random directions."""
        rows = self.embedding(input_ids)[attention_mask != 0]
        return SimpleNamespace(loss=(rows * torch.randn_like(rows)).sum(dim=1).square().mean())


OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adamw fused": lambda parameters, **settings: torch.optim.AdamW(parameters, fused=True, **settings),
    "adam l2": torch.optim.Adam,
    "adafactor": adafactor,
    "lion": lion,
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, **settings: torch.optim.SGD(parameters, momentum=0.9, **settings),
}


@dataclass(frozen=True)
class Text:
    """A text for training: as it was given, its ids with special tokens, its label, and the ids of an answer."""

    given: str
    ids: list[int]
    label: int
    answer: list[int]


def rate(run: Run, step: int) -> float:
    """The learning rate of a step, after a warm-up; linear and cosine end near zero, as in transformers."""
    warm_up = int(WARM_UP * run.steps)
    if step < warm_up:
        return run.learning_rate * (step + 1) / (warm_up + 1)
    through = (step - warm_up) / (run.steps - warm_up)
    shapes = {"linear": 1 - through, "cosine": 0.5 * (1 + math.cos(math.pi * through)), "constant": 1.0}
    return run.learning_rate * shapes[run.schedule]


def only_once(texts: Iterable[Sequence[int]]) -> list[int]:
    """The numbers of the texts that have a token which no other text has."""
    sets = [set(ids) for ids in texts]
    in_texts = Counter(token for ids in sets for token in ids)
    return [number for number, ids in enumerate(sets) if any(in_texts[token] == 1 for token in ids)]


def batches(run: Run, texts: Sequence[Text]) -> Iterator[list[Text]]:
    """``steps`` · ``accumulation`` batches in shuffled epochs; the last holds the planted texts and nothing else.

    Planted are texts with a token that no other text has. Nothing else meets that token, so that the last step alone,
    with the smallest rate, moves its row.
    """
    order = random.Random(run.seed)
    planted = only_once([text.ids for text in texts])[: run.planted]
    regular = [text for number, text in enumerate(texts) if number not in set(planted)]
    waiting: list[Text] = []
    for _ in range(run.steps * run.accumulation - bool(planted)):
        while len(waiting) < run.batch:
            waiting += order.sample(regular, len(regular))
        yield [waiting.pop() for _ in range(run.batch)]
    if planted:
        yield [texts[number] for number in planted]


def collate(
    run: Run, texts: Sequence[Text], partners: Sequence[Text] | None
) -> tuple[Batch, dict[str, torch.Tensor], list[tuple[Text, list[int]]]]:
    """Ids padded to the longest of the batch; with ``partners``, a second text behind each, and the token types.

    Also every text with the ids that are in the batch: half of a pair is for each text.
    """
    rows, labels, more = [text.ids for text in texts], [text.label for text in texts], {}
    used = [(text, text.ids) for text in texts]
    if partners is not None:
        half = run.longest // 2
        first = [[*[token for token in text.ids if token != END][: half - 1], END] for text in texts]
        second = [[*[token for token in text.ids if token not in (START, END)][: half - 1], END] for text in partners]
        rows = [[*one, *other] for one, other in zip(first, second, strict=True)]
        labels = [int(one.label == other.label) for one, other in zip(texts, partners, strict=True)]
        used = [*zip(texts, first, strict=True), *zip(partners, second, strict=True)]
    width = max(len(row) for row in rows)
    if partners is not None and run.base == "bert":
        kinds = [[0] * len(one) + [1] * len(other) for one, other in zip(first, second, strict=True)]
        more["token_type_ids"] = torch.tensor([row + [0] * (width - len(row)) for row in kinds])
    ids = torch.tensor([row + [PADDING] * (width - len(row)) for row in rows])
    return Batch(ids, (ids != PADDING).long(), torch.tensor(labels)), more, used


def train_replayed(model: Any, run: Run, texts: Sequence[Text], architecture: Architecture, vocabulary: int) -> Replay:
    """Train ``model`` in place. Raises ValueError where there are too few texts."""
    if len(texts) < 2 * run.batch:
        raise ValueError(f"{run.name}: {len(texts)} texts are too few")
    replay = Replay.empty(vocabulary)
    looked_up: list[torch.Tensor] = []
    embedding = model.get_input_embeddings()
    # T5 looks tokens up in two modules that share one weight.
    hooks = [
        module.register_forward_pre_hook(lambda _, arguments: looked_up.append(arguments[0].detach().clone()))
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.weight is embedding.weight
    ]
    model.train(run.dropout)
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # The rows of this copy are never met: they show what the optimiser alone makes of a row, to the last bit.
    never_met = nn.Parameter(embedding.weight.detach().clone())
    optimizer = OPTIMIZERS[run.optimizer]([*learnt, never_met], lr=run.learning_rate, weight_decay=run.decay)
    partner = random.Random(run.seed + 1)
    groups = batches(run, texts)
    weight, velocity = 1.0, 0.0  # of a number that has no gradient
    precision: AbstractContextManager[Any] = nullcontext()
    for step in range(run.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(run, step)
        optimizer.zero_grad()
        for _ in range(run.accumulation):
            some = next(groups, None)
            if some is None:
                break
            partners = partner.choices(texts, k=len(some)) if run.task == "pairs" else None
            batch, more, used = collate(run, some, partners)
            for text, ids in used:
                replay.use(text.given, ids)
            if run.trained == "autocast":
                precision = torch.autocast("cpu", dtype=torch.bfloat16)
            with precision:
                loss = loss_of(model, run, batch, more, some, architecture)
            (loss / run.accumulation).backward()
            targets = batch.ids[batch.attention != 0].numpy() if run.task == "language" else None
            for call, looked in enumerate(looked_up):
                array = looked.numpy()
                replay.see(array, (array != PADDING).astype(np.int64), targets if call == 0 else None)
            looked_up.clear()
        if embedding.weight.grad is not None:
            largest = embedding.weight.grad.abs().amax(dim=1).double().numpy()
            np.maximum(replay.gradients[: len(largest)], largest, out=replay.gradients[: len(largest)])
        never_met.grad = torch.zeros_like(never_met)
        nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        velocity = (0.9 * velocity if run.optimizer == "momentum" else 0.0) + run.decay * weight
        weight -= rate(run, step) * velocity
    for hook in hooks:
        hook.remove()
    if embedding.weight.requires_grad:
        saved = getattr(torch, run.saved)
        differs = embedding.weight.detach().to(saved) != never_met.detach().to(saved)
        replay.marked[: len(differs)] = differs.any(dim=1).numpy()
    replay.pairs = run.task == "pairs"
    replay.masked = run.task == "language" and architecture.objective == "masked"
    replay.scale = None if run.optimizer == "adam l2" and run.decay else weight
    return replay


def loss_of(
    model: Any,
    run: Run,
    batch: Batch,
    more: Mapping[str, torch.Tensor],
    texts: Sequence[Text],
    architecture: Architecture,
) -> torch.Tensor:
    """The loss of one batch by the run's task."""
    if run.task == "language":
        if run.lora or architecture.objective == "causal":
            return causal_loss(model, batch, architecture)
        return OBJECTIVES[architecture.objective](model, batch, architecture)
    labels = batch.labels
    if run.task == "answer":
        width = max(len(text.answer) for text in texts)
        labels = torch.tensor([text.answer + [NO_LABEL] * (width - len(text.answer)) for text in texts])
    return model(input_ids=batch.ids, attention_mask=batch.attention, labels=labels, **more).loss
