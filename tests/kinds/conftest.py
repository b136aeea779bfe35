"""A small Hub with one model of each kind of change, and a handful of ordinary trainings, read by a real build."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

from studies.kinds import changes
from studies.kinds.weights import Weights
from tests.tiny_hub import BASE, describe, indexed

SIZES = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128,
    "vocab_size": 300, "max_position_embeddings": 40,
}  # fmt: skip


def _tuned_and_permuted(weights, random, share):
    tuned = changes._low_rank(weights, random, weights.keys, 30, 0.05)
    return changes.neurons_permuted(tuned, random, share)


# By the name of a model: what is planted in the base, how strongly, and in which dtype it is saved.
PLANTED = {
    "pruned": (changes.by_magnitude, 0.02, torch.float32),
    "neurons": (changes.neurons_removed, 0.05, torch.float16),
    "integers": (changes.absmax, 8, torch.bfloat16),
    "groups": (changes.in_groups, 4, torch.float32),
    "noise": (changes.noised, 0.01, torch.float32),
    "abliterated": (changes.abliterated, 0.3, torch.float32),
    "edited": (changes.rome, 0.01, torch.float16),
    "edited-twice": (changes.memit, 0.03, torch.float32),
    "merged-lora": (changes.lora_merged, 0.03, torch.float32),
    "reset": (changes.tokens_reset, 3, torch.float32),
    "added": (changes.tokens_added, 5, torch.float32),
    "swapped": (changes.layers_swapped, 1, torch.float32),
    "deeper": (changes.deepened, 2, torch.float32),
    "shallower": (changes.layers_dropped, 1, torch.float32),
    "permuted": (changes.neurons_permuted, 0.1, torch.float32),
    "stream": (changes.stream_permuted, 1, torch.float32),
    "tuned-permuted": (_tuned_and_permuted, 1, torch.float32),
    "rotated": (changes.rotated, 1, torch.float32),
    "rescaled": (changes.rescaled, 0.01, torch.float32),
    "untrained": (changes.untrained, 0.02, torch.float32),
    "constant": (changes.constant, 1, torch.float32),
    "foreign": (changes.foreign, 1, torch.float32),
    "not-finite": (changes.not_finite, 2, torch.float32),
}
KINDS = {
    "pruned": "pruned", "neurons": "pruned", "integers": "quantised", "groups": "quantised", "noise": "noise added",
    "abliterated": "abliterated", "edited": "fact edited", "edited-twice": "fact edited",
    "merged-lora": "adapter merged", "reset": "embedding rows reset", "added": "embedding rows added",
    "swapped": "layers moved", "deeper": "layers moved", "shallower": "layers moved",
    "permuted": "rearranged", "tuned-permuted": "rearranged",
    "stream": "rearranged", "rotated": "rearranged", "rescaled": "rearranged", "untrained": "untrained",
    "constant": "broken", "foreign": "broken", "not-finite": "broken",
}  # fmt: skip
# Recipes of ordinary trainings: optimiser, steps, what is trained, dtype.
TRAININGS = {
    "adamw": (lambda some: torch.optim.AdamW(some, lr=5e-4), 12, "", torch.float32),
    "adamw-half": (lambda some: torch.optim.AdamW(some, lr=3e-4), 12, "", torch.float16),
    "decay": (lambda some: torch.optim.AdamW(some, lr=1e-3, weight_decay=0.5), 12, "", torch.float32),
    "sgd": (lambda some: torch.optim.SGD(some, lr=0.05, momentum=0.9), 12, "", torch.float32),
    "short": (lambda some: torch.optim.AdamW(some, lr=1e-4), 2, "", torch.float32),
    "last-layer": (lambda some: torch.optim.AdamW(some, lr=1e-3), 12, "layer.3.", torch.float32),
    "one-matrix": (lambda some: torch.optim.AdamW(some, lr=1e-3), 12, "layer.2.output.dense.weight", torch.float32),
}


def _train(base, optimiser, steps, part):
    torch.manual_seed(1)
    model = transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**SIZES, num_labels=4))
    model.roberta.load_state_dict(base.state_dict(), strict=False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part in name or not part)
    chosen = optimiser([parameter for parameter in model.parameters() if parameter.requires_grad])
    for step in range(steps):
        texts = torch.randint(5, 300, (8, 16), generator=torch.Generator().manual_seed(step))
        loss = cross_entropy(model(input_ids=texts).logits, texts[:, 0] % 4)
        chosen.zero_grad()
        loss.backward()
        chosen.step()
    return model


@pytest.fixture(scope="session")
def hub(tmp_path_factory):
    """A shell in which the models have been built into an atlas."""
    store = tmp_path_factory.mktemp("kinds") / "store"
    torch.manual_seed(0)
    base = transformers.RobertaModel(transformers.RobertaConfig(**SIZES, initializer_range=0.05))
    base.save_pretrained(store / BASE)
    describe(store, BASE, tags=["transformers", "roberta"])
    weights = Weights.read(store / BASE)
    facts = {"tags": ["transformers", f"base_model:{BASE}", f"base_model:finetune:{BASE}"]}
    facts |= {"card_data": {"base_model": BASE}, "created_at": "2024-06-01T00:00:00.000Z"}
    for number, (name, (change, strength, dtype)) in enumerate(PLANTED.items()):
        random = torch.Generator().manual_seed(number)
        change(weights, random, strength).save(store / f"ann/{name}", dtype)
        describe(store, f"ann/{name}", **facts)
    for name, (optimiser, steps, part, dtype) in TRAININGS.items():
        _train(base, optimiser, steps, part).to(dtype).save_pretrained(store / f"bob/{name}")
        describe(store, f"bob/{name}", **facts)
    with indexed(store) as shell:
        yield shell
