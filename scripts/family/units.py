"""What a worker process does: make one repository of the family, whole, from files to description."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from scripts.family import cards, store
from scripts.family.finetune import WEIGHTS, make_run, task_of
from scripts.family.oddities import MAKERS, change_configuration
from scripts.family.plan import Oddity, Plan, Repository, Run
from scripts.family.pretrain import make_base
from scripts.family.tasks import tokenizer_files


def prepare_process() -> None:
    """One thread and no chatter; results must not depend on how many processes there are."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is for the process that waits for this one
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def make_base_repository(plan: Plan, root: Path, work: Path) -> None:
    """Pretrain and publish the base model."""
    folder = fresh_folder(work, plan.base)
    store.write_json(folder / store.RESULTS, make_base(plan, work, folder))
    copy_tokenizer(work, folder)
    front = {
        "language": "en",
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": plan.architecture.language_task,
    }
    body = "A small model of the language in which Python libraries are documented, to tune others from."
    base = Repository(model=plan.base, claim="none")
    description = {"old_ids": [plan.old_id], "downloads": 61803, "likes": 42}
    finish(plan, base, root, folder, front, f"# {base.name}\n\n{body}", 0, description)


def make_run_repository(plan: Plan, run: Run, root: Path, work: Path) -> None:
    """Train and publish one fine-tune or adapter."""
    folder = fresh_folder(work, run.model)
    start = store.repository_folder(root, run.parent or plan.base)
    measured = make_run(plan, run, work, start, folder)
    copy_tokenizer(work, folder)
    if run.claim == "configuration":
        change_configuration(folder, _name_or_path=plan.base)
    if plan.authors[run.author].style == "trainer":
        torch.save({"learning_rate": run.learning_rate, "seed": run.seed}, folder / "training_args.bin")
    front = cards.run_card(plan, run, task_of(plan, run), measured)
    body = cards.run_body(plan, run, measured)
    extra: dict[str, Any] = {}
    if run.converted:
        extra["revisions"] = store.publish_conversion(root, run.model, converted_copy(folder, work, run.model))
    finish(plan, run, root, folder, front, body, position_of(plan, run), extra)


def make_oddity_repository(plan: Plan, oddity: Oddity, root: Path, work: Path) -> None:
    """Make and publish one odd repository."""
    folder = fresh_folder(work, oddity.model)
    MAKERS[oddity.make](plan, oddity, root, folder)
    bases = cards.claimed(plan, oddity, "finetune").in_card
    front: dict[str, Any] = {
        "license": plan.authors[oddity.author].license,
        "base_model": bases[0] if bases else None,
        "datasets": [oddity.dataset] if oddity.dataset else None,
        "library_name": "transformers" if (folder / "config.json").exists() else None,
    }
    front = {key: value for key, value in front.items() if value} | json.loads(oddity.card)
    body = f"# {oddity.heading or oddity.name}\n\nMore information needed"
    finish(plan, oddity, root, folder, front, body, position_of(plan, oddity), {})


def finish(
    plan: Plan,
    repository: Repository,
    root: Path,
    folder: Path,
    front: Mapping[str, Any],
    body: str,
    position: int,
    description: Mapping[str, Any],
) -> None:
    """Write the card and publish the folder with what the Hub would say of it."""
    (folder / "README.md").write_text(cards.card_text(front, body), encoding="utf-8")
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    listing = {
        **store.circumstances(repository.model, position),
        "library_name": front.get("library_name"),
        "pipeline_tag": front.get("pipeline_tag"),
        "tags": cards.hub_tags(repository, plan, front, files),
        "card_data": dict(front),
        **description,
        **repository.listing,
    }
    store.publish(root, repository.model, folder, listing)


def position_of(plan: Plan, repository: Repository) -> int:
    """When a repository was uploaded: after the base and after what it was made from."""
    runs = sorted(plan.runs, key=lambda run: (run.parent is not None, store.draw(run.model, "position")))
    return 1 + [other.model for other in (*runs, *plan.oddities)].index(repository.model)


def fresh_folder(work: Path, model: str) -> Path:
    """An empty folder to fill."""
    folder = work / model.replace("/", "--")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def copy_tokenizer(work: Path, folder: Path) -> None:
    """Every upload carries its tokenizer."""
    for path in tokenizer_files(work):
        shutil.copy(path, folder)


def converted_copy(folder: Path, work: Path, model: str) -> Path:
    """The files of a ``.bin`` upload with its weights in safetensors besides, as the Hub's bot offers them."""
    beside = fresh_folder(work, f"{model}-converted")
    shutil.copytree(folder, beside, dirs_exist_ok=True)
    tensors = torch.load(beside / "pytorch_model.bin", weights_only=True)
    save_file(tensors, beside / WEIGHTS, metadata={"format": "pt"})
    return beside
