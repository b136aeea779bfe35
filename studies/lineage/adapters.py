"""A forest of adapters, trained and merged by PEFT itself, in the layout of the loopback Hub.

Strangers share their seeds, and some of them also their data: such adapters begin at the same numbers and are no
relatives. ``python -m studies.lineage --shape adapters`` makes it and asks for the lineage of every adapter.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from scripts.family import tasks
from scripts.family.plan import Plan, Run
from scripts.family.store import as_iso, write_json
from scripts.family.training import WEIGHTS, endless, load_start, make_base
from studies.lineage import forest
from studies.lineage.forest import HIDDEN, TASK, TEXTS, TRUTH, describe
from studies.lineage.plan import AUTHORS, FIRST_UPLOAD, Node

FACTORS = "adapter_model.safetensors"
SEEDS = (42, 3407)  # the Trainer's default, and that of popular templates
TARGETS = {"qv": ("query", "value"), "all": ("query", "key", "value", "output", "feedforward1", "feedforward2")}
# How PEFT merges, its settings, and the number of such merges.
MERGES: tuple[tuple[str, Mapping[str, Any], int], ...] = (
    ("linear", {}, 5),
    ("cat", {}, 2),
    ("svd", {}, 4),
    ("ties", {"density": 0.5}, 4),
    ("dare_linear", {"density": 0.6}, 4),
    ("dare_ties", {"density": 0.6}, 3),
    ("magnitude_prune", {"density": 0.5}, 2),
    ("ties_svd", {"density": 0.5}, 2),
    ("dare_linear_svd", {"density": 0.6}, 2),
)


def plan_adapters(datasets: tuple[str, ...], seed: int) -> list[Node]:
    """The forest: about a hundred adapters and a few full fine-tunes; ``group`` names the kind of each.

    Groups: "fresh" (from the base; every seed on every data set, by strangers), "stranger" (the seed and the data of
    another, with another rate, length or order), "own start", "checkpoint", "continued", "grandchild", "orphan"
    (continued from an adapter that was never uploaded), the methods of MERGES, "copy", "cast", "full", "on full".
    """
    draw = random.Random(seed)
    nodes: list[Node] = []
    clock = FIRST_UPLOAD

    def later(hours: tuple[float, float] = (30, 90)) -> Any:
        nonlocal clock
        clock += timedelta(hours=draw.uniform(*hours))
        return clock.replace(microsecond=0)

    def add(group: str, kind: str, **more: Any) -> Node:
        more.setdefault("created", later())
        author = more.pop("author", None) or draw.choice(AUTHORS)
        node = Node(
            f"{author}/lora-{group.replace(' ', '-').replace('_', '-')}-{len(nodes)}", kind, group=group, **more
        )
        nodes.append(node)
        return node

    def training(low: float = 1e-3, high: float = 5e-3, steps: tuple[int, int] = (40, 110)) -> dict[str, Any]:
        return {"learning_rate": low * (high / low) ** draw.random(), "steps": draw.randint(*steps)}

    def fresh(group: str, dataset: str, start: int, **more: Any) -> Node:
        how = {"rank": 8, "targets": "qv", "order": start, **training(), **more.pop("how", {})}
        return add(group, "tuned", dataset=dataset, seed=start, how=how, **more)

    def continued(group: str, parent: Node, **more: Any) -> Node:
        dataset = more.pop("dataset", None) or draw.choice(datasets)
        start = draw.choice((42, draw.randint(100, 10_000)))
        how = {**training(5e-4, 4e-3, (20, 100)), "order": start, **more.pop("how", {})}
        shape = {name: parent.how[name] for name in ("rank", "targets")}
        return add(group, "continued", parents=(parent.name,), dataset=dataset, seed=start, how=shape | how, **more)

    first = [fresh("fresh", dataset, start) for start in SEEDS for dataset in datasets]
    first += [
        fresh("fresh", dataset, 42, how={"rank": rank, "targets": targets})
        for rank, targets in ((4, "qv"), (16, "all"))
        for dataset in datasets[:3]
    ]
    for node in first[::2]:  # the seed, the data and the order of another, or an order of its own
        order = node.how["order"] if draw.random() < 0.5 else draw.randint(100, 10_000)
        fresh(
            "stranger",
            node.dataset,
            node.seed,
            how={"order": order, "rank": node.how["rank"], "targets": node.how["targets"]},
        )
    own = [fresh("own start", draw.choice(datasets), draw.randint(100, 10_000)) for _ in range(6)]
    for number in range(4):
        author, dataset, start = (
            draw.choice(AUTHORS),
            draw.choice(datasets),
            draw.choice((42, 3407, draw.randint(100, 10_000))),
        )
        when, above = later(), None
        for part in (0.35, 0.7, 1.0):
            node = add(
                "checkpoint", "checkpoint", parents=() if above is None else (above.name,), dataset=dataset, seed=start,
                author=author, created=when + timedelta(minutes=round(10 * part)),
                how={"rank": 8, "targets": "qv", "order": start, "run": number, "part": part, "rate_seed": 7 + number},
            )  # fmt: skip
            above = node
    for parent in draw.sample(first, 5):
        for same in (True, False):  # two children of each
            continued("continued", parent, dataset=parent.dataset if same else None)
    for parent in draw.sample(own, 3):
        continued("continued", parent)
    children = [node for node in nodes if node.group == "continued"]
    for parent in draw.sample(children, 6):
        continued("grandchild", parent, dataset=parent.dataset if draw.random() < 0.5 else None)
    for dataset in datasets[:2]:
        unseen = fresh("hidden", dataset, draw.choice((42, 77)), hidden=True)
        for _ in range(2):
            continued("orphan", unseen)
    alike = [node for node in (*first, *own) if node.how["rank"] == 8 and node.how["targets"] == "qv"]
    for method, settings, count in MERGES:
        for _ in range(count):
            parents = draw.sample(alike, draw.choice((2, 2, 3)))
            weights = [round(draw.uniform(0.3, 1.0), 2) for _ in parents]
            add(method, "merge", parents=tuple(one.name for one in parents), how={"method": method, "weights": weights,
                "settings": dict(settings), "rank": 8, "targets": "qv"})  # fmt: skip
    merge = next(node for node in nodes if node.group == "linear")
    continued("continued", merge)
    for node in draw.sample(first + children, 3):
        add("copy", "copy", parents=(node.name,), how={**node.how, "form": "plain"})
    for node, dtype in zip(draw.sample(first + children, 3), ("bfloat16", "float16", "bfloat16"), strict=True):
        add("cast", "copy", parents=(node.name,), how=node.how | {"stored": dtype, "form": dtype})
    full = [add("full", "full", dataset=dataset, seed=5, how=training(2e-4, 6e-4)) for dataset in datasets[:2]]
    for parent in full:
        for start in (42, 3407):
            add("on full", "tuned", parents=(parent.name,), dataset=draw.choice(datasets), seed=start,
                how={"rank": 8, "targets": "qv", "order": start, **training()})  # fmt: skip
    return nodes


def make_adapters(root: Path, seed: int) -> Path:
    """Make the forest in the folder ``root``, or continue one that was interrupted."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    plan = forest._plan("bert", "small")
    texts, base = root / TEXTS, root / plan.base
    texts.mkdir(parents=True, exist_ok=True)
    if not (texts / "ready").exists():
        tasks.prepare(plan, texts)
        (texts / "ready").touch()
    if not (base / WEIGHTS).exists():
        base.mkdir(parents=True, exist_ok=True)
        make_base(plan, texts, base)
    describe(root, plan.base, base, {"created_at": "2023-06-01T00:00:00.000Z", "tags": ["transformers"]})
    nodes = plan_adapters(tuple(plan.datasets), seed)
    maker = _AdapterForest(root, plan, texts, {node.name: node for node in nodes})
    for node in nodes:
        maker.make(node)
    made = [asdict(node) | {"created": as_iso(node.created)} for node in nodes]
    write_json(root / TRUTH, {"base": plan.base, "nodes": made})
    return root


class _AdapterForest:
    def __init__(self, root: Path, plan: Plan, texts: Path, nodes: Mapping[str, Node]) -> None:
        self.root, self.plan, self.texts, self.nodes = root, plan, texts, nodes

    def folder(self, name: str) -> Path:
        return self.root / HIDDEN / name if self.nodes[name].hidden else self.root / name

    def make(self, node: Node) -> None:
        folder = self.folder(node.name)
        if (self.root / f"{node.name}.repo.json").exists() or (node.hidden and (folder / FACTORS).exists()):
            return
        if not (folder / FACTORS).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            MAKERS[node.kind](self, node, folder)
        if node.hidden:
            return
        above = node.parents[0] if node.group == "on full" else self.plan.base
        kind = "finetune" if node.group == "full" else "adapter"
        tags = ["safetensors", f"base_model:{above}", f"base_model:{kind}:{above}"]
        card: dict[str, Any] = {"base_model": above}
        if node.dataset and node.kind not in ("copy", "merge"):
            tags.append(f"dataset:{node.dataset}")
            card["datasets"] = [node.dataset]
        facts = {"created_at": as_iso(node.created), "last_modified": as_iso(node.created), "tags": tags}
        library = "transformers" if node.group == "full" else "peft"
        describe(self.root, node.name, folder, {**facts, "card_data": card, "library_name": library})

    def _start(self, node: Node) -> tuple[Any, Callable[[], torch.Tensor]]:
        """The network before training, with its adapter, and a function that draws a batch and returns the loss."""
        from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
        from peft.tuners.lora import LoraLayer

        how = node.how
        texts = tasks.LabelledTexts.load(self.texts, node.dataset)
        on_full = node.group == "on full"
        start = self.folder(node.parents[0]) if on_full else self.root / self.plan.base
        run = Run(node.name, dataset=node.dataset, seed=node.seed, parent=node.parents[0] if on_full else None)
        torch.manual_seed(node.seed)
        model: Any = load_start(self.plan, run, TASK, texts.labels, start)
        if node.kind != "full":
            torch.manual_seed(node.seed)
            modules = [self.plan.architecture.modules[family] for family in TARGETS[how["targets"]]]
            settings = LoraConfig(r=how["rank"], lora_alpha=2 * how["rank"], target_modules=modules, lora_dropout=0.05)
            model = get_peft_model(model, settings)
            if node.kind == "continued":
                set_peft_model_state_dict(model, load_file(self.folder(node.parents[0]) / FACTORS))
                merged = json.loads((self.folder(node.parents[0]) / "adapter_config.json").read_text())
                for part in model.modules():  # a merge has another scale
                    if isinstance(part, LoraLayer):
                        part.scaling["default"] = merged["lora_alpha"] / merged["r"]
                model.peft_config["default"].lora_alpha = merged["lora_alpha"]
            for name, parameter in model.named_parameters():
                if "classifier" in name:
                    parameter.requires_grad = True
        batches = endless(texts.train, 16, self.plan.text.tokens, how.get("order", node.seed))

        def loss() -> torch.Tensor:
            batch = next(batches)
            found: torch.Tensor = model(input_ids=batch.ids, attention_mask=batch.attention, labels=batch.labels).loss
            return found

        return model, loss

    def _save(self, model: Any, folder: Path, base: str, **more: Any) -> None:
        model.save_pretrained(folder, save_embedding_layers=False, **more)
        path = folder / "adapter_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["target_modules"] = sorted(settings["target_modules"])
        write_json(path, settings | {"base_model_name_or_path": base})

    def trained(self, node: Node, folder: Path) -> None:
        model, loss = self._start(node)
        minimise_to(model, loss, node.how["steps"], node.how["learning_rate"])
        if node.kind == "full":
            model.save_pretrained(folder)
        else:
            self._save(model, folder, node.parents[0] if node.group == "on full" else self.plan.base)

    def checkpoint(self, node: Node, folder: Path) -> None:
        """All checkpoints of a run are made with its first."""
        run = [one for one in self.nodes.values() if one.kind == "checkpoint" and one.how["run"] == node.how["run"]]
        draw = random.Random(node.how["rate_seed"])
        steps, rate = draw.randint(60, 130), 1e-3 * 5 ** draw.random()
        model, loss = self._start(node)
        places = {round(one.how["part"] * steps): self.folder(one.name) for one in run}

        def save(step: int) -> None:
            if (place := places.get(step)) is not None:
                place.mkdir(parents=True, exist_ok=True)
                self._save(model, place, self.plan.base)

        minimise_to(model, loss, steps, rate, save)

    def merge(self, node: Node, folder: Path) -> None:
        from peft import PeftModel

        torch.manual_seed(len(node.name))
        run = Run(node.name, dataset=next(iter(self.plan.datasets)), seed=0)
        model: Any = load_start(self.plan, run, TASK, ["a", "b"], self.root / self.plan.base)
        names = [f"part{number}" for number in range(len(node.parents))]
        model = PeftModel.from_pretrained(model, self.folder(node.parents[0]), adapter_name=names[0])
        for name, parent in zip(names[1:], node.parents[1:], strict=True):
            model.load_adapter(self.folder(parent), adapter_name=name)
        how = node.how
        more = dict(how["settings"]) | ({"svd_rank": how["rank"]} if "svd" in how["method"] else {})
        model.add_weighted_adapter(names, how["weights"], "merged", combination_type=how["method"], **more)
        model.save_pretrained(folder, selected_adapters=["merged"], save_embedding_layers=False)
        for path in (folder / "merged").iterdir():
            shutil.move(path, folder / path.name)
        (folder / "merged").rmdir()
        path = folder / "adapter_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["target_modules"] = sorted(settings["target_modules"])
        write_json(path, settings | {"base_model_name_or_path": self.plan.base})

    def copy(self, node: Node, folder: Path) -> None:
        source = self.folder(node.parents[0])
        shutil.copytree(source, folder, dirs_exist_ok=True)
        dtype = getattr(torch, node.how.get("stored", "float32"))
        tensors = {name: one.to(dtype) for name, one in load_file(source / FACTORS).items()}
        save_file(tensors, folder / FACTORS, metadata={"format": "pt", "saved": "again"})


def minimise_to(
    model: nn.Module,
    loss: Callable[[], torch.Tensor],
    steps: int,
    rate: float,
    after: Callable[[int], None] | None = None,
) -> None:
    """Minimise by AdamW with warm-up and linear decay; ``after`` is called with the number of each finished step."""
    model.train()
    learnt = [one for one in model.parameters() if one.requires_grad]
    optimiser = torch.optim.AdamW(learnt, rate, weight_decay=0.01)
    warm_up = max(1, steps // 12)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm_up, (steps - step) / steps)
    )
    for step in range(steps):
        value = loss()
        optimiser.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        optimiser.step()
        schedule.step()
        if after is not None:
            after(step + 1)


MAKERS: Mapping[str, Callable[[_AdapterForest, Node, Path], None]] = {
    "tuned": _AdapterForest.trained,
    "continued": _AdapterForest.trained,
    "full": _AdapterForest.trained,
    "checkpoint": _AdapterForest.checkpoint,
    "merge": _AdapterForest.merge,
    "copy": _AdapterForest.copy,
}


if __name__ == "__main__":
    make_adapters(Path(sys.argv[1]), int(sys.argv[2]))
