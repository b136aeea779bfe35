"""What a repository says of itself: the model card with its front matter, and the tags the Hub lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from scripts.family.plan import Plan, Repository, Run

HUB = "https://huggingface.co"


@dataclass(frozen=True)
class Claim:
    """How a card names what the model was tuned from: ``base_model`` in the card, and the tags."""

    in_card: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


def both_forms(name: str) -> tuple[str, str]:
    """The two tags that the Hub makes of one ``base_model``."""
    return f"base_model:{name}", f"base_model:{{relation}}:{name}"


CLAIMS: Mapping[str, Claim] = {
    "card": Claim(("{base}",), both_forms("{base}")),
    "old id": Claim(("{old_id}",), both_forms("{old_id}")),
    "no relation": Claim(("{base}",), ("base_model:{base}",)),
    "parent": Claim(("{parent}",), both_forms("{parent}")),
    "parent and base": Claim(("{base}", "{parent}"), (*both_forms("{base}"), *both_forms("{parent}"))),
    "quantized alias": Claim(("{base}-bnb-4bit",), both_forms("{base}-bnb-4bit")),
    "quantized copy": Claim(("{base}",), ("base_model:{base}", "base_model:quantized:{base}")),
    "sentence": Claim(),
    "configuration": Claim(),
    "none": Claim(),
}


def claimed(plan: Plan, repository: Repository, relation: str) -> Claim:
    """The claim of one repository, filled in."""
    template = CLAIMS[repository.claim]
    parent = getattr(repository, "parent", None) or ""
    names = {"base": plan.base, "old_id": plan.old_id, "parent": parent, "relation": relation}
    return Claim(
        tuple(text.format(**names) for text in template.in_card),
        tuple(text.format(**names) for text in template.tags),
    )


def run_card(plan: Plan, run: Run, task: str, measured: Mapping[str, float]) -> dict[str, Any]:
    """The front matter of a trained model's card; keys as the Hub documents them, results as measured."""
    author = plan.authors[run.author]
    bases = claimed(plan, run, relation_of(run)).in_card
    front: dict[str, Any] = {
        "language": author.language,
        "license": author.license,
        "library_name": "peft" if run.adapter else "transformers",
        "base_model": bases[0] if len(bases) == 1 else list(bases),
        "tags": ["lora"] if run.adapter else ["generated_from_trainer"] if author.style == "trainer" else [],
        "datasets": [run.dataset] if run.says_dataset else [],
        "metrics": ["accuracy"] if "eval_accuracy" in measured else [],
        "pipeline_tag": task,
        "model-index": [model_index(run, task, measured)] if run.says_dataset else [],
    }
    front = {key: value for key, value in front.items() if value}
    return front | json.loads(run.card)


def relation_of(repository: Repository) -> str:
    """The relation that the Hub would tell from the files."""
    return "adapter" if getattr(repository, "adapter", None) else "finetune"


def model_index(run: Run, task: str, measured: Mapping[str, float]) -> dict[str, Any]:
    """The evaluation as ``model-index`` states it."""
    metrics = [
        {"type": name, "name": name.capitalize(), "value": round(measured[f"eval_{name}"], 4)}
        for name in ("accuracy", "loss")
        if f"eval_{name}" in measured
    ]
    result = {
        "task": {"type": task, "name": task.replace("-", " ").title()},
        "dataset": {"type": run.dataset, "name": run.dataset, "config": "default", "split": "test"},
        "metrics": metrics,
    }
    return {"name": run.name, "results": [result]}


def hub_tags(repository: Repository, plan: Plan, front: Mapping[str, Any], files: list[str]) -> list[str]:
    """The tags that the Hub would list for a card and a set of files."""
    tags = [front.get("library_name"), *formats_of(files)]
    tags += [plan.architecture.model_type, front.get("pipeline_tag")] if "config.json" in files else []
    own = front.get("tags")
    tags += [tag for tag in own if isinstance(tag, str)] if isinstance(own, list) else []
    tags += [f"dataset:{name}" for name in front.get("datasets") or [] if not isinstance(name, dict)]
    tags += claimed(plan, repository, relation_of(repository)).tags
    tags += [f"license:{front['license']}"] if front.get("license") else []
    tags += ["model-index"] if front.get("model-index") else []
    language = front.get("language")
    tags += [language] if isinstance(language, str) else []
    tags += ["region:us", *repository.tags]
    return list(dict.fromkeys(tag for tag in tags if tag))


FORMAT_TAGS = {
    ".safetensors": "safetensors",
    "pytorch_model.bin": "pytorch",
    ".gguf": "gguf",
    ".onnx": "onnx",
    ".msgpack": "jax",
}


def formats_of(files: list[str]) -> list[str]:
    """The Hub's tags for the weight formats among the files."""
    return [tag for suffix, tag in FORMAT_TAGS.items() if any(name.endswith(suffix) for name in files)]


def card_text(front: Mapping[str, Any], body: str) -> str:
    """README.md: the front matter as YAML, then the text."""
    return f"---\n{yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True)}---\n\n{body}\n"


def run_body(plan: Plan, run: Run, measured: Mapping[str, float]) -> str:
    """The text of a trained model's card, in its author's style."""
    heading = run.heading or run.name
    return f"# {heading}\n\n{BODIES[plan.authors[run.author].style](plan, run, measured)}"


def trainer_body(plan: Plan, run: Run, measured: Mapping[str, float]) -> str:
    """As the Trainer of transformers writes cards."""
    start = run.parent or plan.base
    on = f"the {run.dataset} dataset" if run.says_dataset else "an unknown dataset"
    results = "\n".join(f"- {name}: {value:.4f}" for name, value in evaluation(measured))
    return (
        f"This model is a fine-tuned version of [{start}]({HUB}/{start}) on {on}.\n"
        f"It achieves the following results on the evaluation set:\n{results}\n\n"
        "### Training hyperparameters\n\n"
        f"- learning_rate: {run.learning_rate}\n- train_batch_size: {run.batch}\n- seed: {run.seed}\n"
        f"- optimizer: AdamW\n- lr_scheduler_type: linear\n- training_steps: {measured['steps']}\n"
    )


def written_body(plan: Plan, run: Run, measured: Mapping[str, float]) -> str:
    """As a person writes who says what the data are."""
    about = plan.datasets[run.dataset].about if run.says_dataset else "Data of our own."
    results = ", ".join(f"{name.lower()} {value:.3f}" for name, value in evaluation(measured))
    return f"{about}\n\nOn texts that were held out: {results}."


def bare_body(plan: Plan, run: Run, measured: Mapping[str, float]) -> str:
    """As most cards are."""
    return "More information needed"


def evaluation(measured: Mapping[str, float]) -> list[tuple[str, float]]:
    """The held-out measures, named as cards name them."""
    names = {"eval_loss": "Loss", "eval_accuracy": "Accuracy"}
    return [(names[key], value) for key, value in measured.items() if key in names]


BODIES: Mapping[str, Callable[[Plan, Run, Mapping[str, float]], str]] = {
    "trainer": trainer_body,
    "written": written_body,
    "bare": bare_body,
}
