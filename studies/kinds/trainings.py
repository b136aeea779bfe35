"""Ordinary trainings by many recipes, besides those of the families: what no test of a kind may take for its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from transformers.utils import logging

from indexer.names import DeltaKey
from scripts.tiny_models import token_ids
from studies.kinds.weights import Weights

_TOKENS, _BATCH, _MASKED = 32, 8, 0.15


@dataclass(frozen=True)
class Recipe:
    """One way to train.

    Attributes:
        optimizer: makes the optimiser of the parameters.
        steps: of so many texts as ``_BATCH``.
        trains: whether a block matrix is trained; other parameters are, if ``others``.
        lora: rank of a LoRA that is trained and merged; 0 for none.
        new_tokens: rows that are appended to the embedding before.
    """

    optimizer: Callable[[Any], torch.optim.Optimizer]
    steps: int
    trains: Callable[[DeltaKey, int], bool] = lambda key, depth: True
    others: bool = True
    lora: int = 0
    new_tokens: int = 0


def _adamw(rate: float, decay: float = 0.01) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)


def _sgd(rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9)


RECIPES: dict[str, Recipe] = {
    "3 steps": Recipe(_adamw(3e-5), 3),
    "30 steps": Recipe(_adamw(1e-4), 30),
    "30 steps at a high rate": Recipe(_adamw(2e-3), 30),
    "strong weight decay": Recipe(_adamw(5e-4, 0.5), 30),
    "a tiny rate": Recipe(_adamw(1e-6), 10),
    "SGD": Recipe(_sgd(0.02), 30),
    "Adafactor": Recipe(lambda parameters: torch.optim.Adafactor(parameters, lr=1e-3), 20),
    "only attention": Recipe(_adamw(3e-4), 20, lambda key, _: not key.family.startswith(("feedforward", "gate"))),
    "only the last layer": Recipe(_adamw(3e-4), 20, lambda key, depth: key.layer == depth - 1, others=False),
    "only second feed-forward matrices": Recipe(
        _adamw(3e-4), 20, lambda key, _: key.family.endswith("feedforward2"), others=False
    ),
    "only one second feed-forward matrix": Recipe(
        _adamw(3e-4), 20, lambda key, depth: key.family.endswith("feedforward2") and key.layer == depth // 2, others=False
    ),
    "tokens added": Recipe(_adamw(2e-4), 20, new_tokens=8),
}  # fmt: skip
LORAS: dict[str, Recipe] = {f"LoRA of rank {rank}": Recipe(_adamw(1e-3), 15, lora=rank) for rank in (1, 4, 8, 16)}


def trained(folder: Path, weights: Weights, recipe: Recipe, seed: int) -> Weights:
    """The weights of the model in ``folder`` after a training on Python's help texts."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.manual_seed(seed)
    is_causal = weights.config["model_type"] in ("gpt2", "llama")
    model: Any = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
    names = {name: name for name, _ in model.named_parameters()}
    ids = token_ids(folder / "tokenizer.json") % weights.config["vocab_size"]
    if recipe.new_tokens:
        model.resize_token_embeddings(weights.config["vocab_size"] + recipe.new_tokens)
    depth = 1 + max(key.layer for key in weights.keys)
    if recipe.lora:
        targets = sorted({_module(matrix.tensor) for matrix in weights.layout.matrices})
        model = get_peft_model(model, LoraConfig(r=recipe.lora, lora_alpha=2 * recipe.lora, target_modules=targets))
    else:
        chosen = {matrix.tensor for matrix in weights.layout.matrices if recipe.trains(matrix.key, depth)}
        blocks = {matrix.tensor for matrix in weights.layout.matrices}
        for name in names:
            full = next((tensor for tensor in blocks if tensor.endswith(name)), None)
            model.get_parameter(name).requires_grad_(recipe.others if full is None else full in chosen)
    model.train()
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = recipe.optimizer(learnt)
    random = torch.Generator().manual_seed(seed)
    for _ in range(recipe.steps):
        starts = torch.randint(len(ids) - _TOKENS, (_BATCH,), generator=random)
        batch = torch.stack([ids[start : start + _TOKENS] for start in starts])
        hidden = model(input_ids=_masked(batch, random) if not is_causal else batch).last_hidden_state
        embedding = model.get_input_embeddings().weight
        scores = hidden @ embedding.T
        predicted, wanted = (scores[:, :-1], batch[:, 1:]) if is_causal else (scores, batch)
        optimizer.zero_grad()
        cross_entropy(predicted.flatten(0, 1), wanted.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
    if recipe.lora:
        model = model.merge_and_unload()
    return _with_parameters(weights, model, recipe.new_tokens)


def _module(tensor: str) -> str:
    """The last names of a module, as PEFT matches them: without the number of its layer."""
    parts = tensor.removesuffix(".weight").split(".")
    number = max(place for place, part in enumerate(parts) if part.isdigit())
    return ".".join(parts[number + 1 :])


def _masked(batch: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Some tokens are replaced by others."""
    is_masked = torch.rand(batch.shape, generator=random) < _MASKED
    return torch.where(is_masked, torch.randint(int(batch.max()), batch.shape, generator=random), batch)


def _with_parameters(weights: Weights, model: Any, new_tokens: int) -> Weights:
    made = weights.copy()
    for name, parameter in model.state_dict().items():
        full = next((tensor for tensor in made.tensors if tensor.endswith(name)), None)
        if full is not None:
            made.tensors[full] = parameter.detach().float().clone()
    size = len(made.tensors[made.embedding])
    return replace(made, config={**made.config, "vocab_size": size}) if new_tokens else made


def all_trained(
    folder: Path, weights: Weights, recipes: dict[str, Recipe], seeds: Sequence[int]
) -> Iterator[tuple[str, Weights]]:
    """The weights after each recipe, with each seed."""
    for name, recipe in recipes.items():
        for seed in seeds:
            yield name, trained(folder, weights, recipe, seed)
