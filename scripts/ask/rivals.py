"""What else could find the models of a text: running every model over it, and searching the cards.

*Loss gap*: the base's loss of its own language task on the texts, minus the loss of the fine-tune's body with the base's
head. Every fine-tune is loaded and run. *Cards*: tf-idf of the models' cards (Salton & Buckley, 1988).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from tokenizers import Tokenizer

from scripts.family.plan import Plan
from scripts.family.tasks import Example
from scripts.family.training import LANGUAGE_MODELS, OBJECTIVES, collate

Floats = NDArray[np.float64]
BATCH = 64
TEXTS_EACH = 60  # of a set: the loss gap runs every model over all sets


def loss_gaps(root: Path, plan: Plan, work: Path, models: Sequence[str], sets: Sequence[Sequence[str]]) -> Floats:
    """(sets, models) the loss of the base minus the loss of a model, with the same masks."""
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    batches = []
    for texts in sets:
        some = (
            [texts[place * len(texts) // TEXTS_EACH] for place in range(TEXTS_EACH)]
            if len(texts) > TEXTS_EACH
            else texts
        )
        examples = [Example(one.ids, 0) for one in tokenizer.encode_batch(list(some)) if len(one.ids) > 2]
        batches.append(
            [collate(examples[start : start + BATCH], plan.text.tokens) for start in range(0, len(examples), BATCH)]
        )
    base = _losses(language_model(root / plan.base, plan), batches, plan)
    started, found = time.monotonic(), np.full((len(sets), len(models)), np.nan)
    for place, model in enumerate(models):
        found[:, place] = base - _losses(tuned_body(root, model, plan), batches, plan)
    print(f"loss gap: {(time.monotonic() - started) / len(models):.2f} s a model")
    return found


def by_cards(root: Path, models: Sequence[str], sets: Sequence[Sequence[str]]) -> Floats:
    """(sets, models) cosines of tf-idf vectors of the texts and of the models' cards."""
    cards = []
    for model in models:
        card = root / model / "README.md"
        cards.append(card.read_text(encoding="utf-8", errors="replace") if card.is_file() else "")
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"[A-Za-z]{2,}")
    mine = vectorizer.fit_transform(cards)
    found: Floats = (vectorizer.transform([" ".join(texts) for texts in sets]) @ mine.T).toarray()
    return found


def language_model(folder: Path, plan: Plan) -> Any:
    """A checkpoint of the family with the head of its own language task."""
    kind = getattr(transformers, LANGUAGE_MODELS[plan.architecture.language_task])
    return kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32, ignore_mismatched_sizes=True)


def tuned_body(root: Path, model: str, plan: Plan) -> Any:
    """The body of a fine-tune with the base's head.

    Raises ValueError if the base has no place for a weight of an adapter.
    """
    folder, base = root / model, language_model(root / plan.base, plan)
    if (folder / "adapter_config.json").is_file():
        from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
        from safetensors.torch import load_file

        settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        settings |= {"task_type": None, "modules_to_save": None, "inference_mode": True}
        adapted = get_peft_model(base, LoraConfig(**{name: settings[name] for name in settings if name in _FIELDS}))
        # T5's classifiers hold its stacks in a module of this name, its language model holds them itself.
        inner = "" if hasattr(base, base.base_model_prefix) else f"{base.base_model_prefix}."
        weights = {
            name.replace(f"base_model.model.{inner}", "base_model.model.", 1): one
            for name, one in load_file(folder / "adapter_model.safetensors").items()
            if ".lora_" in name
        }
        loaded: Any = set_peft_model_state_dict(adapted, weights)
        if unknown := loaded.unexpected_keys:
            raise ValueError(f"{model} has adapter weights that the base has no place for, such as {unknown[0]}")
        return adapted.merge_and_unload()
    tuned = language_model(folder, plan)
    # What is tied to the embedding stays the fine-tune's.
    head, embedding = plan.architecture.language_head, base.get_input_embeddings().weight
    own = {name: one for name, one in base.get_submodule(head).named_parameters() if one is not embedding}
    tuned.get_submodule(head).load_state_dict(own, strict=False)
    return tuned


_FIELDS = ("r", "lora_alpha", "target_modules", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "task_type", "modules_to_save",
           "inference_mode", "layers_to_transform", "layers_pattern", "fan_in_fan_out")  # fmt: skip


def _losses(model: Any, batches: Sequence[Sequence[Any]], plan: Plan) -> Floats:
    """(sets,) mean losses, with masks that depend on nothing but the set."""
    found = []
    for number, group in enumerate(batches):
        torch.manual_seed(number)
        with torch.no_grad():
            losses = [
                float(OBJECTIVES[plan.architecture.objective](model.eval(), one, plan.architecture)) for one in group
            ]
        found.append(np.average(losses, weights=[len(one.ids) for one in group]) if losses else np.nan)
    return np.array(found)
