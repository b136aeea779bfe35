"""The texts, kept as text, and each base's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from scripts.family import tasks
from scripts.family.plan import Plan, load_plan
from scripts.family.store import write_json
from scripts.family.text import collect, is_table
from studies.trace.plan import BASES

FILE = "texts.json"
FILES_READ = 60  # of each package
MOST_TEXTS = 800  # of a data set


@dataclass(frozen=True)
class Texts:
    """A data set: (text, number of its label) in an order that says nothing."""

    labels: list[str]
    rows: list[tuple[str, int]]


def read_texts(work: Path) -> dict[str, Texts]:
    """The data sets by name, collected at the first call and then kept in ``work``."""
    path = work / FILE
    if not path.exists():
        write_json(path, _collect(load_plan("full")))
    stored = json.loads(path.read_text(encoding="utf-8"))
    return {name: Texts(one["labels"], [(text, label) for text, label in one["rows"]]) for name, one in stored.items()}


def _collect(plan: Plan) -> dict[str, Any]:
    datasets = {name: one for name, one in plan.datasets.items() if one.task == "text-classification"}
    wanted = {(one.source, package) for one in datasets.values() for package in one.packages}
    wanted |= {(one.source, "") for one in datasets.values() if is_table(one.source)}
    found = collect(wanted, FILES_READ)
    kept = {}
    for name, one in datasets.items():
        excerpts = [excerpt for package in one.packages or ("",) for excerpt in found[one.source, package]]
        rows = [
            (excerpt.text, one.labels.index(excerpt.facts[one.label]))
            for excerpt in sorted(tasks.without_conflicts(excerpts), key=lambda excerpt: tasks.by_hash(excerpt.text))
            if excerpt.facts.get(one.label) in one.labels
        ]
        kept[name] = {"labels": list(one.labels), "rows": rows[:MOST_TEXTS]}
    return kept


def make_tokenizer(kind: str, texts: Sequence[str], plan: Plan) -> Tokenizer:
    """A tokenizer of one of three kinds, whose special tokens are those of ``scripts.family``, in that order.

    It has as many tokens as the plan says.
    """
    size = plan.text.vocabulary
    special = list(tasks.SPECIAL_TOKENS)
    start, end, unknown = (special[number] for number in (tasks.START, tasks.END, tasks.UNKNOWN))
    if kind == "BPE":
        tokenizer = tasks.train_tokenizer(texts, plan)
        tokenizer.no_truncation()
        return tokenizer
    if kind == "WordPiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
        template = f"{start} $A {end}", f"{start} $A {end} $B:1 {end}:1"
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=size, special_tokens=special, unk_token=unknown, show_progress=False
        )
        template = f"$A {end}", f"$A {end} $B {end}"
    tokenizer.train_from_iterator(texts, trainer)
    numbers = [(token, tokenizer.token_to_id(token)) for token in (start, end)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template[0], pair=template[1], special_tokens=numbers
    )
    tokenizer.encode_special_tokens = True
    return tokenizer


class LocalTokenizer:
    """Answers like the product's tokenizer, without a process of its own."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.special_ids = tuple(one for one, token in tokenizer.get_added_tokens_decoder().items() if token.special)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, nothing added."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def words(self, ids: Sequence[int]) -> list[str]:
        """The piece of text that each id stands for."""
        return [self._tokenizer.decode([one]) for one in ids]


def with_ends(base: str, task: str, ids: list[int], longest: int) -> list[int]:
    """The ids of a text as the network gets them: cut, with the special tokens of the architecture."""
    architecture = BASES[base].architecture
    if architecture in ("bert", "roberta"):
        return [tasks.START, *ids[: longest - 2], tasks.END]
    if architecture == "t5":
        return [*ids[: longest - 1], tasks.END]
    return [*ids, tasks.END][:longest] if task == "language" else ids[:longest]
