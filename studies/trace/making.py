"""Bases, training runs and what is made of them, in the layout of the loopback Hub, each with its replay."""

from __future__ import annotations

import fnmatch
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tqdm import tqdm

from scripts.family.cards import card_text
from scripts.family.plan import Adapter, Architecture, Plan, load_plan
from scripts.family.store import circumstances, is_published, publish, write_json
from scripts.family.tasks import END, by_hash, save_tokenizer, tokenizer_files
from scripts.family.training import LANGUAGE_MODELS, WEIGHTS, add_adapter, make_base
from studies.lineage.merging import METHODS
from studies.trace.plan import BASES, OWNER, QWEN2, RUNS, VOCABULARY, Run
from studies.trace.texts import Texts, make_tokenizer, read_texts, with_ends
from studies.trace.training import Replay, Table, Text, train_replayed

HUB = "hub"
WORK = "work"


def base_id(base: str) -> str:
    """The repository of a base."""
    return f"{OWNER}/tiny-{base}"


class Maker:
    """Makes what does not exist yet below ``out``: ``hub/`` is a loopback Hub's root, ``work/`` holds the texts."""

    def __init__(self, out: Path) -> None:
        self.root, self.work = out / HUB, out / WORK
        self.root.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(2)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()

    def make(self, pattern: str = "*", runs: Sequence[Run] = RUNS) -> list[Run]:
        """Make the runs whose name fits the pattern, and what they are made of; returns the former."""
        by_name = {run.name: run for run in runs}
        wanted = [run for run in runs if fnmatch.fnmatchcase(run.name, pattern)]
        needed: dict[str, Run] = {}

        def need(run: Run) -> None:
            for name in (*run.of, *([run.parent] if run.parent else [])):
                need(by_name[name])
            needed.setdefault(run.name, run)

        for run in wanted:
            need(run)
        waiting = [run for run in needed.values() if not self.is_made(run)]
        for run in tqdm(waiting, desc="runs", disable=None):
            self.base(run.base)
            started = time.monotonic()
            with tempfile.TemporaryDirectory(dir=self.work) as temporary:
                filled = Path(temporary) / "filled"
                filled.mkdir()
                replay = MAKERS[run.make](self, run, filled)
                replay.facts = asdict(run) | {"seconds": round(time.monotonic() - started, 1)}
                (self.root / OWNER).mkdir(exist_ok=True)
                replay.save(self.replay_path(run))
                self.upload(run.model, base_id(run.base), run.dataset, filled)
        return wanted

    def is_made(self, run: Run) -> bool:
        """Whether the checkpoint and its replay are there, made by this very plan."""
        path = self.replay_path(run)
        arrays = path.with_name(path.name + ".npz")
        path = path.with_name(path.name + ".json")
        if not (is_published(self.root, run.model) and path.exists() and arrays.exists()):
            return False
        facts = json.loads(path.read_text(encoding="utf-8"))["facts"]
        facts.pop("seconds", None)
        return bool(facts == json.loads(json.dumps(asdict(run))))

    def replay_path(self, run: Run) -> Path:
        """Without the ends ``.json`` and ``.npz``."""
        return self.root / OWNER / f"{run.name}.replay"

    def folder(self, name: str) -> Path:
        """A run's checkpoint."""
        return self.root / OWNER / name

    def texts(self) -> dict[str, Texts]:
        """The data sets."""
        if not hasattr(self, "_texts"):
            self._texts = read_texts(self.work)
        return self._texts

    def plan(self, base: str) -> Plan:
        """The plan of a base's pretraining."""
        one = BASES[base]
        family = load_plan("small", "roberta" if one.architecture == "qwen2" else one.architecture)
        architecture = Architecture(**QWEN2) if one.architecture == "qwen2" else family.architecture
        return replace(
            family,
            base=base_id(base),
            architecture=replace(architecture, config={**architecture.config, **one.config}),
            text=replace(family.text, vocabulary=VOCABULARY),
            settings=replace(family.settings, pretraining_steps=one.steps),
        )

    def tokenizer(self, base: str) -> Tokenizer:
        """The base's tokenizer."""
        kind = BASES[base].tokenizer
        path = self.work / f"{kind}.json"
        if not path.exists():
            every = sorted({text for one in self.texts().values() for text, _ in one.rows}, key=by_hash)
            make_tokenizer(kind, every, self.plan(base)).save(str(path))
        tokenizer = Tokenizer.from_file(str(path))
        if BASES[base].architecture in ("gpt2", "qwen2"):
            from tokenizers.processors import ByteLevel

            tokenizer.post_processor = ByteLevel(trim_offsets=False)
        return tokenizer

    def base(self, base: str) -> None:
        """Pretrain a base, once."""
        model = base_id(base)
        if is_published(self.root, model):
            return
        plan = self.plan(base)
        every = sorted({text for one in self.texts().values() for text, _ in one.rows}, key=by_hash)
        corpus = [
            with_ends(base, "language", row.ids, 64)
            for row in self.tokenizer(base).encode_batch(every, add_special_tokens=False)
        ]
        with tempfile.TemporaryDirectory(dir=self.work) as temporary:
            (Path(temporary) / "corpus.json").write_text(json.dumps(corpus), encoding="utf-8")
            filled = Path(temporary) / "filled"
            filled.mkdir()
            make_base(plan, Path(temporary), filled)
            save_tokenizer(self.tokenizer(base), plan, filled)
            self.upload(model, None, None, filled)

    def upload(self, model: str, base: str | None, dataset: str | None, filled: Path) -> None:
        """Write card and description as ``scripts.family`` does, and move the folder to its place."""
        front: dict[str, Any] = {"library_name": "transformers"}
        if base:
            front |= {"base_model": base, "datasets": [dataset]}
        (filled / "README.md").write_text(card_text(front, f"# {model}"), encoding="utf-8")
        kind = json.loads((filled / "config.json").read_text(encoding="utf-8"))["model_type"]
        tags = ["transformers", "safetensors", kind]
        tags += [f"base_model:{base}", f"base_model:finetune:{base}", f"dataset:{dataset}"] if base else []
        description = {"library_name": "transformers", "tags": tags, "card_data": front, **circumstances(model, 0)}
        publish(self.root, model, filled, description)

    # How models are made: each fills a folder and returns the replay.

    def train(self, run: Run, folder: Path) -> Replay:
        """Tune the base or another run."""
        plan = self.plan(run.base)
        start = self.folder(run.parent) if run.parent else self.root / base_id(run.base)
        torch.manual_seed(run.seed)
        model = load_model(run, plan, start, self.texts()[run.dataset].labels)
        tokenizer = self.tokenizer(run.base)
        vocabulary = VOCABULARY
        if run.added:
            tokenizer.add_tokens([f"<extra_{number}>" for number in range(run.added)])
            vocabulary = max(vocabulary, tokenizer.get_vocab_size())  # the table may have had rows to spare
            model.resize_token_embeddings(vocabulary)
        texts = self.labelled(run, tokenizer)
        if run.trained == "bfloat16":
            model = model.to(torch.bfloat16)
        if run.frozen:
            model.get_input_embeddings().weight.requires_grad_(False)
        if run.lora:
            model = lora(run, plan, model)
        replay = train_replayed(model, run, texts, plan.architecture, vocabulary)
        if run.lora:
            model = model.merge_and_unload()
        if run.parent:
            before = Replay.load(self.replay_path(next(one for one in RUNS if one.name == run.parent)))
            replay = before.union(replay)
        model.to(getattr(torch, run.saved)).save_pretrained(folder)
        save_tokenizer(tokenizer, plan, folder)
        return replay

    def table(self, run: Run, folder: Path) -> Replay:
        """Tune the embedding alone; the other tensors are the base's."""
        source = self.root / base_id(run.base)
        state = load_file(source / WEIGHTS)
        name = embedding_name(state)
        torch.manual_seed(run.seed)
        table = Table(state[name])
        plan = self.plan(run.base)
        replay = train_replayed(table, run, self.labelled(run, self.tokenizer(run.base)), plan.architecture, VOCABULARY)
        state[name] = table.embedding.weight.detach().to(getattr(torch, run.saved))
        self._save_like(base_id(run.base).partition("/")[2], folder, state)
        return replay

    def labelled(self, run: Run, tokenizer: Tokenizer) -> list[Text]:
        """The texts that a run may use: a random share of its data set."""
        texts = self.texts()[run.dataset]
        chosen = random.Random(run.seed).sample(texts.rows, round(run.share * len(texts.rows)))
        if run.added:
            chosen = [(f"<extra_{number % run.added}> {text}", label) for number, (text, label) in enumerate(chosen)]
        encoded = tokenizer.encode_batch([text for text, _ in chosen], add_special_tokens=False)
        names = tokenizer.encode_batch(texts.labels, add_special_tokens=False)
        return [
            Text(
                text,
                with_ends(run.base, run.task, row.ids, run.longest),
                label,
                [*names[label].ids, END],
            )
            for (text, label), row in zip(chosen, encoded, strict=True)
        ]

    def merge(self, run: Run, folder: Path) -> Replay:
        """Merge tensors that all parts and the base have, by the methods of ``studies.lineage.merging``."""
        base = load_file(self.root / base_id(run.base) / WEIGHTS)
        states = [load_file(self.folder(name) / WEIGHTS) for name in run.of]
        merged = {}
        for name, first in states[0].items():
            parts = [state[name].float() for state in states if name in state and state[name].shape == first.shape]
            if name in base and len(parts) == len(states) and first.is_floating_point():
                first = METHODS[run.how["method"]](name, base[name].float(), parts, run.how, 0.0)
            merged[name] = first.to(getattr(torch, run.saved)).contiguous()
        self._save_like(run.of[0], folder, merged)
        replays = [Replay.load(self.folder(f"{name}.replay")) for name in run.of]
        replay = replays[0]
        for other in replays[1:]:
            replay = replay.union(other)
        replay.scale = None
        return replay

    def prune(self, run: Run, folder: Path) -> Replay:
        """Leave the rows of every eighth token out and renumber the others, as vocabulary pruning does."""
        return self._reorder(run, folder, np.flatnonzero(np.arange(VOCABULARY) % 8 != 7))

    def permute(self, run: Run, folder: Path) -> Replay:
        """Renumber all tokens at random, but for the special ones."""
        order = np.random.default_rng(run.seed).permutation(np.arange(5, VOCABULARY))
        return self._reorder(run, folder, np.concatenate([np.arange(5), order]))

    def _reorder(self, run: Run, folder: Path, order: np.ndarray) -> Replay:
        (of,) = run.of
        state = load_file(self.folder(of) / WEIGHTS)
        name = embedding_name(state)
        state[name] = state[name][torch.from_numpy(order)].contiguous()
        self._save_like(of, folder, state)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        write_json(folder / "config.json", config | {"vocab_size": len(order)})
        replay = Replay.load(self.folder(f"{of}.replay"))
        replay.scale = None
        return replay

    def _save_like(self, name: str, folder: Path, state: dict[str, torch.Tensor]) -> None:
        source = self.folder(name)
        for path in (source / "config.json", *tokenizer_files(source)):
            shutil.copy(path, folder)
        save_file(state, folder / WEIGHTS, metadata={"format": "pt"})


MAKERS: Mapping[str, Callable[[Maker, Run, Path], Replay]] = {
    "train": Maker.train,
    "table": Maker.table,
    "merge": Maker.merge,
    "prune": Maker.prune,
    "permute": Maker.permute,
}


def embedding_name(state: Mapping[str, torch.Tensor]) -> str:
    """The input embedding among the tensors of a checkpoint of one of the bases."""
    ends = ("word_embeddings.weight", "wte.weight", "embed_tokens.weight", "shared.weight")
    return next(name for end in ends for name in sorted(state) if name.endswith(end))


def load_model(run: Run, plan: Plan, start: Path, labels: list[str]) -> Any:
    """The network with the head of the run's task, in float32."""
    if run.task in ("language", "answer"):
        kind, settings = LANGUAGE_MODELS[plan.architecture.language_task], {}
    else:
        kind, settings = "AutoModelForSequenceClassification", {"num_labels": 2 if run.task == "pairs" else len(labels)}
    return getattr(transformers, kind).from_pretrained(
        start,
        attn_implementation="eager",
        ignore_mismatched_sizes=run.parent is not None,
        dtype=torch.float32,
        **settings,
    )


def lora(run: Run, plan: Plan, model: Any) -> Any:
    """Factors of the query and value matrices."""
    if run.task == "classify":
        return add_adapter(model, Adapter(8, 16, ("query", "value")), "text-classification", plan)
    from peft import LoraConfig, get_peft_model

    targets = [plan.architecture.modules[name] for name in ("query", "value")]
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules=targets))
