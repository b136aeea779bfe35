"""One real fine-tune: loads what it is tuned from, trains, measures on texts it has not seen, saves."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from scripts.family.batches import endless, once
from scripts.family.cards import claimed
from scripts.family.plan import Adapter, Architecture, Plan, Run
from scripts.family.pretrain import LANGUAGE_MODELS, OBJECTIVES, new_configuration, summary, train
from scripts.family.store import RESULTS, write_json
from scripts.family.tasks import NO_LABEL, LabelledTexts

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
    batches = endless(chosen, run.batch, plan.text.tokens, run.seed)
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
    """The same network with LoRA factors beside the targeted matrices (Hu et al., 2021), by PEFT."""
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
    """As ``save_pretrained`` does it."""
    if hasattr(model, "peft_config"):
        model.save_pretrained(folder, save_embedding_layers=False)  # or PEFT asks the Hub about the base
    else:
        model.save_pretrained(folder)


def save_sharded(model: transformers.PreTrainedModel, folder: Path) -> None:
    """Cut into files of at most 2 MB, with an index."""
    model.save_pretrained(folder, max_shard_size="2MB")


def save_bin(model: transformers.PreTrainedModel, folder: Path, zipped: bool = True) -> None:
    """As ``pytorch_model.bin``, which is what the Hub was full of before safetensors."""
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
