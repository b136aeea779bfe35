"""Makes a forest: a base and every model of the plan, trained or merged, in the layout of the loopback Hub."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from scripts.family import tasks
from scripts.family.plan import Adapter, Plan, Run, load_plan
from scripts.family.store import as_iso, commit_of, write_json
from scripts.family.training import WEIGHTS, add_adapter, endless, freeze, load_start, make_base
from studies.lineage import images
from studies.lineage.merging import int8, merged, nf4
from studies.lineage.optimisers import minimise
from studies.lineage.plan import SHAPES, Node, plan_forest

TRUTH = "truth.json"
HIDDEN = ".hidden"  # models that were made and never uploaded; no account's name starts with a dot
TEXTS = ".texts"
TASK = "text-classification"
# Narrower than the family's networks, so that two hundred are trained in minutes; the depth is that of the shape.
NARROW = {"hidden_size": 64, "n_embd": 64, "intermediate_size": 256}
DEPTH = {"small": 3}  # 4 of other shapes
PRETRAINING = {"small": 60}  # steps; 200 of other shapes
SMALL_DATASETS = ("code/line-kinds", "errors/raised-by", "unicode/character-names")
_LAYER = re.compile(r"\.(\d+)\.")


def make_forest(root: Path, architecture: str, shape: str = "full", seed: int = 1) -> Path:
    """Make the forest in the folder ``root``, or continue one that was interrupted.

    Args:
        root: a new or empty folder, or one with all or part of this forest.
        architecture: a table of ``scripts/family/plan.toml``, or "vit".
        shape: a key of ``SHAPES``.
        seed: of the plan.
    """
    wanted = fingerprint(architecture, shape, seed)
    if (root / TRUTH).exists():
        if read_truth(root).get("fingerprint") == wanted:
            return root
        shutil.rmtree(root)  # an older or different forest
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    plan = _plan(architecture, shape)
    texts = root / TEXTS
    texts.mkdir(parents=True, exist_ok=True)
    is_of_images = architecture == images.ARCHITECTURE
    if not is_of_images and not ((texts / "corpus.json").exists() and (texts / "ready").exists()):
        tasks.prepare(plan, texts)
        (texts / "ready").touch()
    base = root / plan.base
    if not (base / WEIGHTS).exists():
        base.mkdir(parents=True, exist_ok=True)
        if is_of_images:
            images.make_image_base(plan, base)
        else:
            make_base(plan, texts, base)
    describe(root, plan.base, base, {"created_at": "2023-06-01T00:00:00.000Z", "tags": ["transformers"]})
    nodes = plan_forest(SHAPES[shape], tuple(plan.datasets), seed)
    forest = _Forest(root, plan, texts, SHAPES[shape].batch)
    for node in nodes:
        forest.make(node)
    made = [asdict(node) | {"created": as_iso(node.created)} for node in nodes]
    write_json(root / TRUTH, {"fingerprint": wanted, "base": plan.base, "architecture": architecture, "nodes": made})
    return root


def fingerprint(architecture: str, shape: str, seed: int) -> str:
    """Changes with the code that makes forests, but not with its comments and docstrings."""
    digest = hashlib.sha256(f"{architecture} {shape} {seed}".encode())
    for name in ("plan.py", "merging.py", "optimisers.py", "images.py", "forest.py"):
        tree = ast.parse((Path(__file__).parent / name).read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                del node.body[0]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()


def _plan(architecture: str, shape: str) -> Plan:
    """The family's plan of texts and pretraining, for a narrower network; or that of images."""
    if architecture == images.ARCHITECTURE:
        return images.plan_of_images()
    plan = load_plan("small", architecture)
    every = load_plan("full", architecture).datasets
    datasets = {name: one for name, one in every.items() if one.task == TASK}
    if shape == "small":
        datasets = {name: datasets[name] for name in SMALL_DATASETS}
    config = dict(plan.architecture.config)
    config |= {name: value for name, value in NARROW.items() if name in config}
    config |= {name: DEPTH.get(shape, 4) for name in ("num_hidden_layers", "n_layer") if name in config}
    return replace(
        plan,
        datasets=datasets,
        settings=replace(plan.settings, files=40, pretraining_steps=PRETRAINING.get(shape, 200)),
        architecture=replace(plan.architecture, config=config),
    )


def describe(root: Path, model: str, folder: Path, facts: Mapping[str, Any]) -> None:
    """Write what the Hub says about a repository; this file is written last."""
    (folder / "README.md").write_text(f"# {model}\n", encoding="utf-8")
    write_json(root / f"{model}.repo.json", {"sha": commit_of(model, folder), **facts})


class _Forest:
    def __init__(self, root: Path, plan: Plan, texts: Path, batch: int) -> None:
        self.root, self.plan, self.texts, self.batch = root, plan, texts, batch
        self.base = load_file(root / plan.base / WEIGHTS)

    def folder(self, name: str) -> Path:
        uploaded = self.root / name
        return uploaded if uploaded.exists() else self.root / HIDDEN / name

    def make(self, node: Node) -> None:
        done = self.root / f"{node.name}.repo.json"
        hidden = self.root / HIDDEN / node.name
        if done.exists() or (hidden / WEIGHTS).exists():
            return
        folder = hidden if node.hidden else self.root / node.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        MAKERS[node.kind](self, node, folder)
        if node.hidden:
            return
        bases = [*node.declared, self.plan.base]
        tags = ["transformers", "safetensors", f"base_model:{self.plan.base}", f"base_model:finetune:{self.plan.base}"]
        tags += [f"base_model:{name}" for name in node.declared]
        card: dict[str, Any] = {"base_model": bases if node.declared else self.plan.base, "license": "apache-2.0"}
        if node.dataset and node.kind != "copy":
            tags.append(f"dataset:{node.dataset}")
            card["datasets"] = [node.dataset]
        facts = {"created_at": as_iso(node.created), "last_modified": as_iso(node.created), "tags": tags}
        describe(self.root, node.name, folder, {**facts, "card_data": card, "library_name": "transformers"})

    def trained(self, node: Node, folder: Path) -> None:
        self._trained(node, folder, None)

    def lora(self, node: Node, folder: Path) -> None:
        how = node.how
        self._trained(node, folder, Adapter(how["rank"], 2 * how["rank"], tuple(how["families"])))

    def _trained(self, node: Node, folder: Path, adapter: Adapter | None) -> None:
        how = node.how
        start = self.folder(node.parents[0]) if node.parents else self.root / self.plan.base
        run = Run(
            model=node.name,
            dataset=node.dataset,
            seed=node.seed,
            parent=node.parents[0] if node.parents else None,
            frozen=how.get("frozen", 0),
        )
        torch.manual_seed(node.seed)
        is_of_images = self.plan.architecture_name == images.ARCHITECTURE
        model, loss = (self._of_images if is_of_images else self._of_texts)(run, start, adapter)
        minimise(model, loss, how["steps"], how["learning_rate"], how.get("optimiser", "adamw"))
        if adapter is not None:
            model = model.merge_and_unload()
        model.to(getattr(torch, how.get("stored", "float32"))).save_pretrained(folder)

    def _of_texts(self, run: Run, start: Path, adapter: Adapter | None) -> tuple[Any, Callable[[], Tensor]]:
        """The network before training, and a function that draws a batch and returns the loss on it."""
        texts = tasks.LabelledTexts.load(self.texts, run.dataset)
        model: Any = load_start(self.plan, run, TASK, texts.labels, start)
        freeze(model, self.plan.architecture, run.frozen)
        if adapter is not None:
            model = add_adapter(model, adapter, TASK, self.plan)
        batches = endless(texts.train, self.batch, self.plan.text.tokens, run.seed)

        def loss() -> Tensor:
            batch = next(batches)
            found: Tensor = model(input_ids=batch.ids, attention_mask=batch.attention, labels=batch.labels).loss
            return found

        return model, loss

    def _of_images(self, run: Run, start: Path, adapter: Adapter | None) -> tuple[Any, Callable[[], Tensor]]:
        """The same for images."""
        model = images.load_image_start(start, run.dataset)
        freeze(model, self.plan.architecture, run.frozen)
        if adapter is not None:
            model = images.add_image_adapter(model, adapter, self.plan)
        return model, images.image_loss(model, run.dataset, self.batch, run.seed)

    def merge(self, node: Node, folder: Path) -> None:
        """Merge the tensors that all parents have; a head that the base does not have is the first parent's."""
        states = [load_file(self.folder(name) / WEIGHTS) for name in node.parents]
        dtype = getattr(torch, node.how["stored"])
        tensors: dict[str, Tensor] = {}
        layers = max((int(found[1]) for name in states[0] if (found := _LAYER.search(name))), default=0)
        for name, first in states[0].items():
            base = self._of_base(name)
            parts = [state[name].float() for state in states if name in state and state[name].shape == first.shape]
            if base is not None and len(parts) == len(states) and first.is_floating_point():
                found = _LAYER.search(name)
                depth = int(found[1]) / layers if found and layers else 0.0
                tensors[name] = merged(name, base.float(), parts, node.how, depth).to(dtype).contiguous()
            else:
                tensors[name] = first.to(dtype) if first.is_floating_point() else first
        self._save(node.parents[0], folder, tensors)

    def copy(self, node: Node, folder: Path) -> None:
        form = node.how["form"]
        source = self.folder(node.parents[0])
        if form == "plain":
            shutil.copytree(source, folder, dirs_exist_ok=True)
            (folder / "notes.txt").write_text("A copy.\n", encoding="utf-8")
            return
        state = load_file(source / WEIGHTS)
        if form in ("bfloat16", "float16"):
            dtype = getattr(torch, form)
            tensors = {name: one.to(dtype) if one.is_floating_point() else one for name, one in state.items()}
        else:
            coarse = int8 if form == "int8" else nf4
            # Like the quantisers, only matrices of layers; saved dense again, in half or full precision.
            dtype = torch.float16 if node.created.day % 2 else torch.float32
            tensors = {
                name: (coarse(one.float()) if _LAYER.search(name) and one.ndim == 2 else one).to(dtype)
                for name, one in state.items()
            }
        self._save(node.parents[0], folder, tensors)

    def _of_base(self, name: str) -> Tensor | None:
        """The base's tensor of this name, with or without the prefix of a head."""
        if name in self.base:
            return self.base[name]
        tail = name.partition(".")[2]
        return self.base.get(tail)

    def _save(self, like: str, folder: Path, tensors: dict[str, Tensor]) -> None:
        for extra in self.folder(like).glob("*.json"):
            shutil.copy(extra, folder)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


MAKERS: Mapping[str, Callable[[_Forest, Node, Path], None]] = {
    "tuned": _Forest.trained,
    "continued": _Forest.trained,
    "lora": _Forest.lora,
    "merge": _Forest.merge,
    "copy": _Forest.copy,
}


def read_truth(root: Path) -> dict[str, Any]:
    """What ``make_forest`` wrote."""
    found: dict[str, Any] = json.loads((root / TRUTH).read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    folder, architecture, shape, seed = sys.argv[1:]
    make_forest(Path(folder), architecture, shape, int(seed))
