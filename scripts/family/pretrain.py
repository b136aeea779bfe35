"""The base model: a small network that learns the language of the corpus before anything is tuned from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from scripts.family.batches import Batch, endless, unlabelled
from scripts.family.plan import Architecture, Plan
from scripts.family.tasks import END, MASK, NO_LABEL, PADDING, SPECIAL_TOKENS, START

MASKED_SHARE = 0.2
THREADS = 2  # fixed: two thread counts differ in the last bits
WARM_UP_STEPS = 50
# By name: the library loads a class when it is asked for.
LANGUAGE_MODELS: Mapping[str, str] = {
    "fill-mask": "AutoModelForMaskedLM",
    "text-generation": "AutoModelForCausalLM",
    "text2text-generation": "AutoModelForSeq2SeqLM",
}


def new_configuration(architecture: Architecture, vocabulary: int) -> transformers.PretrainedConfig:
    """The configuration of an architecture, with the special tokens of this family's vocabulary."""
    tokens = {"bos_token_id": START, "pad_token_id": PADDING, "eos_token_id": END}
    if architecture.language_task == "text2text-generation":
        tokens["decoder_start_token_id"] = PADDING
    values = {"vocab_size": vocabulary, **tokens, **architecture.config}
    return transformers.AutoConfig.for_model(architecture.model_type, **values)


def make_base(plan: Plan, work: Path, folder: Path) -> dict[str, float]:
    """Pretrain the base model and save it in ``folder``; ``work`` holds what ``tasks.prepare`` wrote.

    Returns:
        the mean loss over the first and the last tenth of the steps, in nats a predicted token.
    """
    torch.set_num_threads(THREADS)
    torch.manual_seed(plan.pretraining.seed)
    architecture = plan.architecture
    configuration = new_configuration(architecture, plan.text.vocabulary)
    kind: Any = getattr(transformers, LANGUAGE_MODELS[architecture.language_task])
    model = kind.from_config(configuration, attn_implementation="eager")
    texts = json.loads((work / "corpus.json").read_text(encoding="utf-8"))
    batches = endless(unlabelled(texts), plan.pretraining.batch, plan.pretraining.tokens, plan.pretraining.seed)
    objective = OBJECTIVES[architecture.objective]
    losses = train(
        model,
        lambda: objective(model, next(batches), architecture),
        plan.settings.pretraining_steps,
        plan.pretraining.learning_rate,
        shown_as=f"pretraining {plan.base}",
    )
    model.save_pretrained(folder)
    torch.set_num_threads(1)
    return summary(losses)


def train(
    model: nn.Module, loss: Callable[[], torch.Tensor], steps: int, learning_rate: float, shown_as: str = ""
) -> list[float]:
    """Minimise ``loss`` by AdamW with warm-up, linear decay and clipped gradients; returns every step's loss.

    ``shown_as`` names the progress bar; none is shown without it.
    """
    model.train()
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=learning_rate, weight_decay=0.01, fused=True)
    warm_up = max(1, min(WARM_UP_STEPS, steps // 12))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, (steps - step) / steps)
    )
    losses = []
    for _ in tqdm(range(steps), desc=shown_as, disable=None if shown_as else True):
        value = loss()
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(value.item())
    return losses


def summary(losses: list[float]) -> dict[str, float]:
    """The mean of the first and of the last tenth of the losses."""
    tenth = max(1, len(losses) // 10)
    return {
        "train_loss_first": sum(losses[:tenth]) / tenth,
        "train_loss_last": sum(losses[-tenth:]) / tenth,
    }


def masked_loss(model: transformers.PreTrainedModel, batch: Batch, architecture: Architecture) -> torch.Tensor:
    """Masked language modelling (Devlin et al., 2018), and one word of the text to be told from its <s>.

    The second part makes <s> a summary of the text, which heads that read <s> alone need: at this size it
    saves most of the fine-tuning. Scores are computed where a token is to be told, not everywhere.
    """
    chosen = (torch.rand(batch.ids.shape) < MASKED_SHARE) & (batch.ids >= len(SPECIAL_TOKENS))
    targets = batch.ids.clone()
    any_word = (torch.rand(batch.ids.shape) * (batch.ids >= len(SPECIAL_TOKENS))).argmax(dim=1)
    targets[:, 0] = batch.ids.gather(1, any_word[:, None])[:, 0]
    ids = torch.where(chosen, disguise(batch.ids, model.config.vocab_size), batch.ids)
    chosen[:, 0] = True
    hidden = model.base_model(input_ids=ids, attention_mask=batch.attention).last_hidden_state
    scores = model.get_submodule(architecture.language_head)(hidden[chosen])
    return cross_entropy(scores, targets[chosen])


def disguise(ids: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """What stands in place of a token to be told: <mask> in 8 of 10, any token in 1, itself in 1."""
    draw = torch.rand(ids.shape)
    anything = torch.randint(len(SPECIAL_TOKENS), vocabulary, ids.shape)
    return torch.where(draw < 0.8, MASK, torch.where(draw < 0.9, anything, ids))


def causal_loss(model: transformers.PreTrainedModel, batch: Batch, architecture: Architecture) -> torch.Tensor:
    """Every token from those before it."""
    labels = batch.ids.masked_fill(batch.attention == 0, NO_LABEL)
    return model(input_ids=batch.ids, attention_mask=batch.attention, labels=labels).loss


def denoising_loss(model: transformers.PreTrainedModel, batch: Batch, architecture: Architecture) -> torch.Tensor:
    """The whole text from a copy with masked tokens (Lewis et al., 2019), for encoder-decoders."""
    chosen = (torch.rand(batch.ids.shape) < MASKED_SHARE) & (batch.ids >= len(SPECIAL_TOKENS))
    ids = torch.where(chosen, disguise(batch.ids, model.config.vocab_size), batch.ids)
    labels = batch.ids.masked_fill(batch.attention == 0, NO_LABEL)
    return model(input_ids=ids, attention_mask=batch.attention, labels=labels).loss


OBJECTIVES: Mapping[str, Callable[[transformers.PreTrainedModel, Batch, Architecture], torch.Tensor]] = {
    "masked": masked_loss,
    "causal": causal_loss,
    "denoising": denoising_loss,
}
