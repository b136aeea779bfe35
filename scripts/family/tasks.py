"""Data sets out of excerpts: a vocabulary, token ids, labels, and a held-out part that training never sees."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from indexer.errors import AtlasError
from scripts.family.plan import DataSet, Plan
from scripts.family.text import Excerpt, collect, is_table

START, PADDING, END, UNKNOWN, MASK = range(5)
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
NO_LABEL = -100  # what torch's cross-entropy passes over
MOST_PER_LABEL, LEAST_PER_LABEL = 400, 8
HELD_OUT = 0.2

Label = int | list[int]


@dataclass(frozen=True)
class Example:
    """Token ids of one text; one label, or one per token."""

    ids: list[int]
    label: Label


@dataclass(frozen=True)
class LabelledTexts:
    """A data set as the network sees it."""

    name: str
    task: str
    labels: list[str]
    train: list[Example]
    held_out: list[Example]

    def save(self, folder: Path) -> None:
        """Write it as JSON, for the processes that train."""
        examples = {
            part: [(example.ids, example.label) for example in getattr(self, part)] for part in ("train", "held_out")
        }
        row = {"name": self.name, "task": self.task, "labels": self.labels, **examples}
        (folder / file_name(self.name)).write_text(json.dumps(row), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, name: str) -> LabelledTexts:
        """Read what ``save`` wrote."""
        row = json.loads((folder / file_name(name)).read_text(encoding="utf-8"))
        parts = {part: [Example(*example) for example in row[part]] for part in ("train", "held_out")}
        return cls(**row | parts)


def file_name(dataset: str) -> str:
    """The file that holds a data set."""
    return f"{dataset.replace('/', '--')}.json"


def prepare(plan: Plan, folder: Path, make_tokenizer: Callable[[Sequence[str], Plan], Tokenizer] | None = None) -> None:
    """Collect the text, train the vocabulary, write the corpus and every data set of the plan below ``folder``.

    If the base is pretrained on other packages, the vocabulary is of their text, too, and the data sets lose the texts
    that the base reads and those that several packages have. ``make_tokenizer`` replaces ``train_tokenizer``.

    Raises:
        AtlasError: a package is missing, or too old to hold enough text for a data set.
    """
    wanted = {(dataset.source, package) for dataset in plan.datasets.values() for package in dataset.packages}
    wanted |= {(dataset.source, "") for dataset in plan.datasets.values() if is_table(dataset.source)}
    pretraining = plan.pretraining
    others = set(itertools.product(pretraining.sources, pretraining.packages))
    found = collect(wanted | others, plan.settings.files)
    texts = sorted({excerpt.text for pair in others or wanted for excerpt in found[pair]}, key=by_hash)
    tokenizer = (make_tokenizer or train_tokenizer)(texts, plan)
    save_tokenizer(tokenizer, plan, folder)
    seen = plan.settings.pretraining_steps * pretraining.batch
    corpus = [encoding.ids for encoding in tokenizer.encode_batch(texts[:seen])]
    (folder / "corpus.json").write_text(json.dumps(corpus), encoding="utf-8")
    left_out: set[str] = set()
    if others:
        pairs = {(excerpt.text, package) for source, package in wanted for excerpt in found[source, package]}
        packages_with = Counter(text for text, _ in pairs)
        left_out = {*texts, *(text for text, count in packages_with.items() if count > 1)}
    for dataset in plan.datasets.values():
        packages = dataset.packages or ("",)
        excerpts = [excerpt for package in packages for excerpt in found[dataset.source, package]]
        excerpts = [excerpt for excerpt in without_conflicts(excerpts) if excerpt.text not in left_out]
        label_texts(dataset, excerpts, tokenizer).save(folder)


def without_conflicts(excerpts: Iterable[Excerpt]) -> list[Excerpt]:
    """Keep the first of equal texts, with the facts on which all of them agree.

    A text that stands in two packages is evidence for neither, so ``package`` is dropped from its facts.
    """
    agreed: dict[str, Excerpt] = {}
    for excerpt in excerpts:
        first = agreed.setdefault(excerpt.text, excerpt)
        if first.facts != excerpt.facts:
            facts = {name: value for name, value in first.facts.items() if excerpt.facts.get(name) == value}
            agreed[excerpt.text] = Excerpt(first.text, facts, first.pieces)
    return list(agreed.values())


def train_tokenizer(texts: Sequence[str], plan: Plan) -> Tokenizer:
    """A byte-level BPE vocabulary of these texts, with the special tokens that RoBERTa has."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=plan.text.vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.RobertaProcessing((SPECIAL_TOKENS[END], END), (SPECIAL_TOKENS[START], START))
    tokenizer.enable_truncation(plan.text.longest)
    tokenizer.encode_special_tokens = True  # a docstring that says "</s>" is text
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, plan: Plan, folder: Path) -> None:
    """Write the two files from which ``AutoTokenizer`` loads it; ``tokenizer_files`` names them."""
    roles = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": plan.text.longest,
        "cls_token": SPECIAL_TOKENS[START],
        "sep_token": SPECIAL_TOKENS[END],
        **dict(zip(roles, SPECIAL_TOKENS, strict=True)),
    }
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def tokenizer_files(folder: Path) -> list[Path]:
    """The tokenizer's files below a folder that ``prepare`` filled."""
    return [folder / "tokenizer.json", folder / "tokenizer_config.json"]


def label_texts(dataset: DataSet, excerpts: list[Excerpt], tokenizer: Tokenizer) -> LabelledTexts:
    """Balance the labels and hold a fifth of each out; the order is by a hash of the text, so it is fixed.

    Raises:
        AtlasError: a label has too few texts.
    """
    excerpts = sorted(excerpts, key=lambda excerpt: by_hash(excerpt.text))
    if dataset.task == "token-classification":
        chosen = [excerpt for excerpt in excerpts if excerpt.pieces][: 2 * MOST_PER_LABEL]
        words = [word_example(excerpt, dataset.labels, tokenizer) for excerpt in chosen]
        cut = int(HELD_OUT * len(words))
        return LabelledTexts(dataset.name, dataset.task, list(dataset.labels), words[cut:], words[:cut])
    counts = Counter(excerpt.facts.get(dataset.label, "") for excerpt in excerpts)
    rarest = min(dataset.labels, key=lambda label: counts[label])
    if counts[rarest] < LEAST_PER_LABEL:
        raise AtlasError(
            f"Only {counts[rarest]} texts for the label {rarest!r} of {dataset.name} were found.",
            "Install the versions named in constraints.txt, or change the labels in plan.toml.",
        )
    held_out_each = int(HELD_OUT * min(counts[rarest], MOST_PER_LABEL))
    taken: Counter[str] = Counter()
    train: list[Example] = []
    held_out: list[Example] = []
    for excerpt in excerpts:
        label = excerpt.facts.get(dataset.label, "")
        if label not in dataset.labels or taken[label] >= min(2 * counts[rarest], MOST_PER_LABEL):
            continue
        taken[label] += 1
        example = Example(tokenizer.encode(excerpt.text).ids, dataset.labels.index(label))
        (held_out if taken[label] <= held_out_each else train).append(example)
    return LabelledTexts(dataset.name, dataset.task, list(dataset.labels), train, held_out)


def by_hash(text: str) -> bytes:
    """Sorts texts into an order that has nothing to do with where they came from."""
    return hashlib.sha256(text.encode()).digest()


def word_example(excerpt: Excerpt, labels: Sequence[str], tokenizer: Tokenizer) -> Example:
    """A text cut into labelled words; only the first token of a word bears its label."""
    ids, wanted = [START], [NO_LABEL]
    for word, label in excerpt.pieces:
        tokens = tokenizer.encode(word, add_special_tokens=False).ids
        ids += tokens
        wanted += [labels.index(label)] + [NO_LABEL] * (len(tokens) - 1)
    return Example([*ids, END], [*wanted, NO_LABEL])
