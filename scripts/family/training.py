"""Training: the base model, and one fine-tune of it or of another model, measured on texts it has not seen."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from scripts.family.cards import claimed
from scripts.family.plan import Adapter, Architecture, Plan, Run
from scripts.family.store import RESULTS, write_json
from scripts.family.tasks import END, MASK, NO_LABEL, PADDING, SPECIAL_TOKENS, START, Example, LabelledTexts

BATCHES_OF_LIKE_LENGTH = 8  # sorted by length together, so that little of a batch is padding


@dataclass(frozen=True)
class Batch:
    """``ids`` and ``attention``: (texts, tokens) int64; ``labels``: (texts,) or (texts, tokens) int64."""

    ids: torch.Tensor
    attention: torch.Tensor
    labels: torch.Tensor


def endless(examples: Sequence[Example], size: int, longest: int, seed: int) -> Iterator[Batch]:
    """Batches without end; every pass over the examples has another order."""
    order = random.Random(seed)
    if len(examples) < size:
        examples = list(examples) * -(-size // len(examples))
    while True:
        shuffled = order.sample(examples, len(examples))
        pool = size * BATCHES_OF_LIKE_LENGTH
        groups: list[list[Example]] = []
        for start in range(0, len(shuffled), pool):
            alike = sorted(shuffled[start : start + pool], key=lambda example: len(example.ids))
            groups += [alike[first : first + size] for first in range(0, len(alike), size)]
        groups = [group for group in groups if len(group) == size]
        order.shuffle(groups)
        yield from (collate(group, longest) for group in groups)


def once(examples: Sequence[Example], size: int, longest: int) -> Iterator[Batch]:
    """Every example once, the short ones first."""
    by_length = sorted(examples, key=lambda example: len(example.ids))
    for start in range(0, len(by_length), size):
        yield collate(by_length[start : start + size], longest)


def collate(examples: Sequence[Example], longest: int) -> Batch:
    """Cut to ``longest`` tokens (the last is still </s>) and pad to the longest text of the batch."""
    width = min(longest, max(len(example.ids) for example in examples))
    ids = torch.tensor([fit(example.ids, width, END, PADDING) for example in examples])
    labels = [
        label if isinstance(label, int) else fit(label, width, NO_LABEL, NO_LABEL)
        for label in (example.label for example in examples)
    ]
    return Batch(ids, (ids != PADDING).long(), torch.tensor(labels))


def fit(row: list[int], width: int, last: int, padding: int) -> list[int]:
    """A row of exactly ``width`` numbers."""
    return [*row[: width - 1], last] if len(row) > width else row + [padding] * (width - len(row))


def unlabelled(texts: Sequence[list[int]]) -> list[Example]:
    """Texts as examples, for objectives that make their own labels."""
    return [Example(ids, 0) for ids in texts]


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


def masked_loss(
    model: transformers.PreTrainedModel, batch: Batch, architecture: Architecture, *, from_start: bool = True
) -> torch.Tensor:
    """Masked language modelling (Devlin et al., 2018), and prediction of one word of the text from its <s>.

    The second part (``from_start``) makes <s> a summary of the text, which heads that read <s> alone need: at this
    size it saves most of the fine-tuning. Scores are computed only where a token is predicted.
    """
    chosen = (torch.rand(batch.ids.shape) < MASKED_SHARE) & (batch.ids >= len(SPECIAL_TOKENS))
    targets = batch.ids.clone()
    if from_start:
        any_word = (torch.rand(batch.ids.shape) * (batch.ids >= len(SPECIAL_TOKENS))).argmax(dim=1)
        targets[:, 0] = batch.ids.gather(1, any_word[:, None])[:, 0]
    ids = torch.where(chosen, disguise(batch.ids, model.config.vocab_size), batch.ids)
    chosen[:, 0] |= from_start
    hidden = model.base_model(input_ids=ids, attention_mask=batch.attention).last_hidden_state
    scores = model.get_submodule(architecture.language_head)(hidden[chosen])
    return cross_entropy(scores, targets[chosen])


def disguise(ids: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """What replaces a token to be predicted: <mask> in 8 of 10 cases, any token in 1, the token itself in 1."""
    draw = torch.rand(ids.shape)
    anything = torch.randint(len(SPECIAL_TOKENS), vocabulary, ids.shape)
    return torch.where(draw < 0.8, MASK, torch.where(draw < 0.9, anything, ids))


def causal_loss(model: transformers.PreTrainedModel, batch: Batch, architecture: Architecture) -> torch.Tensor:
    """Prediction of every token from those before it."""
    labels = batch.ids.masked_fill(batch.attention == 0, NO_LABEL)
    return model(input_ids=batch.ids, attention_mask=batch.attention, labels=labels).loss


def denoising_loss(model: transformers.PreTrainedModel, batch: Batch, architecture: Architecture) -> torch.Tensor:
    """Prediction of the whole text from a copy with masked tokens (Lewis et al., 2019), for encoder-decoders."""
    chosen = (torch.rand(batch.ids.shape) < MASKED_SHARE) & (batch.ids >= len(SPECIAL_TOKENS))
    ids = torch.where(chosen, disguise(batch.ids, model.config.vocab_size), batch.ids)
    labels = batch.ids.masked_fill(batch.attention == 0, NO_LABEL)
    return model(input_ids=ids, attention_mask=batch.attention, labels=labels).loss


OBJECTIVES: Mapping[str, Callable[[transformers.PreTrainedModel, Batch, Architecture], torch.Tensor]] = {
    "masked": masked_loss,
    "masked words": partial(masked_loss, from_start=False),
    "causal": causal_loss,
    "denoising": denoising_loss,
}


WEIGHTS = "model.safetensors"
EVALUATION_BATCH = 64
CLASSIFIERS: Mapping[str, str] = {
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
}
PEFT_TASKS = {"text-classification": "SEQ_CLS", "token-classification": "TOKEN_CLS"}


def task_of(plan: Plan, run: Run) -> str:
    """The Hub's name for what the model does; ``language`` in the plan is the architecture's own language task."""
    task = run.task or plan.datasets[run.dataset].task
    return plan.architecture.language_task if task == "language" else task


def make_run(plan: Plan, run: Run, work: Path, start: Path, folder: Path) -> dict[str, float]:
    """Train one model and save it, with ``all_results.json``, in ``folder``.

    Args:
        plan: what the family is made of.
        run: which model.
        work: the folder that ``tasks.prepare`` filled.
        start: the checkpoint it is tuned from.
        folder: an empty folder.

    Returns:
        the loss at both ends of training and what was measured on the held-out texts.
    """
    torch.manual_seed(run.seed)
    texts = LabelledTexts.load(work, run.dataset)
    task = task_of(plan, run)
    model: Any = load_start(plan, run, task, texts.labels, start)
    freeze(model, plan.architecture, run.frozen)
    if run.adapter:
        model = add_adapter(model, run.adapter, task, plan)
    chosen = random.Random(run.seed).sample(texts.train, round(run.share * len(texts.train)))
    batches = endless(chosen, run.batch, run.tokens or plan.text.tokens, run.seed)
    steps = max(1, round(run.steps * plan.settings.steps))

    def loss() -> Any:
        batch = next(batches)
        if task == plan.architecture.language_task:
            return OBJECTIVES[plan.architecture.objective](model, batch, plan.architecture)
        return model(input_ids=batch.ids, attention_mask=batch.attention, labels=batch.labels).loss

    # A language model starts from something, and its training loss is too noisy to show what it learnt.
    before = evaluate(model, texts, task, plan, run.seed) if task == plan.architecture.language_task else {}
    losses = train(model, loss, steps, run.learning_rate)
    measured = {"steps": steps, **summary(losses), **{f"{name}_before": value for name, value in before.items()}}
    measured |= evaluate(model, texts, task, plan, run.seed)
    FORMATS[run.saved](model, folder)
    if run.adapter:
        name_base(folder, claimed(plan, run, "adapter").in_card[0])
    write_json(folder / RESULTS, measured)
    return measured


def load_start(plan: Plan, run: Run, task: str, labels: list[str], start: Path) -> transformers.PreTrainedModel:
    """The network before training, with a new head where the task needs one."""
    kind: Any = getattr(transformers, CLASSIFIERS.get(task) or LANGUAGE_MODELS[task])
    settings: dict[str, Any] = {}
    if task in CLASSIFIERS:
        settings["id2label"] = dict(enumerate(labels))
        settings["label2id"] = {label: number for number, label in enumerate(labels)}
    if run.scratch:
        configuration = new_configuration(plan.architecture, plan.text.vocabulary)
        configuration.update(settings)
        return kind.from_config(configuration, attn_implementation="eager")
    return kind.from_pretrained(
        start,
        attn_implementation="eager",
        ignore_mismatched_sizes=run.parent is not None,
        dtype=torch.float32,
        **settings,
    )


def freeze(model: transformers.PreTrainedModel, architecture: Architecture, lowest: int) -> None:
    """Keep the embeddings and the ``lowest`` layers of every stack as they are; 0 keeps nothing."""
    if not lowest:
        return
    for name, parameter in model.base_model.named_parameters():
        if architecture.is_in_layers(name, lowest) or not architecture.is_in_layers(name):
            parameter.requires_grad = False


def add_adapter(model: transformers.PreTrainedModel, adapter: Adapter, task: str, plan: Plan) -> nn.Module:
    """The network with LoRA factors added to the targeted matrices (Hu et al., 2021), by PEFT."""
    from peft import LoraConfig, get_peft_model  # needed by few runs, slow to import

    architecture = plan.architecture
    if adapter.start is not None:
        torch.manual_seed(adapter.start)
    settings = LoraConfig(
        task_type=PEFT_TASKS[task],
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        target_modules=[architecture.modules[family] for family in adapter.targets],
        use_rslora=adapter.rslora,
        use_dora=adapter.dora,
        rank_pattern=patterns(adapter.ranks, architecture),
        alpha_pattern=patterns(adapter.alphas, architecture),
        fan_in_fan_out=architecture.fan_in_fan_out,
    )
    return get_peft_model(model, settings)


def patterns(values: Mapping[str, Any], architecture: Architecture) -> dict[str, Any]:
    """PEFT's regular expressions for module names, with ``{layers}`` (of the first stack) and families filled in."""
    names = {"layers": architecture.layers[0], **architecture.modules}
    return {key.format(**names): value for key, value in values.items()}


@torch.no_grad()
def evaluate(model: Any, texts: LabelledTexts, task: str, plan: Plan, seed: int) -> dict[str, float]:
    """Held-out loss; for classifiers also the accuracy and the share of the commonest label."""
    model.eval()
    batches = once(texts.held_out, EVALUATION_BATCH, plan.text.tokens)
    if task == plan.architecture.language_task:
        torch.manual_seed(seed)
        objective = OBJECTIVES[plan.architecture.objective]
        losses = [objective(model, batch, plan.architecture).item() for batch in batches]
        return {"eval_loss": sum(losses) / len(losses)}
    loss, right, labels = 0.0, 0, Counter[int]()
    for batch in batches:
        scores = model(input_ids=batch.ids, attention_mask=batch.attention).logits
        counted = batch.labels != NO_LABEL
        loss += nn.functional.cross_entropy(scores[counted], batch.labels[counted], reduction="sum").item()
        right += int((scores.argmax(-1) == batch.labels)[counted].sum())
        labels.update(batch.labels[counted].tolist())
    total = labels.total()
    return {
        "eval_loss": loss / total,
        "eval_accuracy": right / total,
        "eval_majority": max(labels.values()) / total,
    }


def name_base(folder: Path, base: str) -> None:
    """Put an id of the Hub into PEFT's ``adapter_config.json`` in place of a path, and its sets into order."""
    path = folder / "adapter_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    ordered = {key: sorted(settings[key]) for key in ("target_modules", "modules_to_save") if settings[key]}
    write_json(path, settings | ordered | {"base_model_name_or_path": base})


def save(model: Any, folder: Path) -> None:
    """As ``save_pretrained`` saves it."""
    if hasattr(model, "peft_config"):
        model.save_pretrained(folder, save_embedding_layers=False)  # or PEFT asks the Hub about the base
    else:
        model.save_pretrained(folder)


def save_sharded(model: transformers.PreTrainedModel, folder: Path) -> None:
    """In files of at most 2 MB, with an index."""
    model.save_pretrained(folder, max_shard_size="2MB")


def save_bin(model: transformers.PreTrainedModel, folder: Path, zipped: bool = True) -> None:
    """As ``pytorch_model.bin``, the usual format before safetensors."""
    model.save_pretrained(folder)
    as_bin(folder, zipped)


def as_bin(folder: Path, zipped: bool = True) -> None:
    """Replace ``model.safetensors`` in a folder by ``pytorch_model.bin``."""
    tensors = load_file(folder / WEIGHTS)
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    (folder / WEIGHTS).unlink()


FORMATS: Mapping[str, Callable[[transformers.PreTrainedModel, Path], None]] = {
    "float32": save,
    "float16": lambda model, folder: save(model.half(), folder),
    "bfloat16": lambda model, folder: save(model.bfloat16(), folder),
    "sharded": save_sharded,
    "bin": save_bin,
    "legacy bin": lambda model, folder: save_bin(model, folder, zipped=False),
}
