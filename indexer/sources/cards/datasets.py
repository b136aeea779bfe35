"""Canonical names for dataset names as people write them.

``dataset_aliases.toml`` lists ids and spellings of the same examples, collections whose configs are tasks, and words
that people write if there is no dataset. There are few rules here, and if in doubt they keep two names apart:

- A name without an owner is looked up ignoring case, blanks, ``-``, ``_``, ``.``, brackets, and a final "dataset". If
  the table does not have it and it looks like an id, it keeps its spelling, lower-cased, with ``_`` for ``-``
  (``Commonlit-Readibility`` → ``commonlit_readibility``).
- A name with an owner is either in the table or keeps its owner: ``alice/reviews`` is never ``bob/reviews``.
- A config is a dataset of its own only if the table says that the collection's configs are tasks (``glue`` + ``mrpc`` →
  ``glue/mrpc`` with the parent ``glue``). Languages, versions and sizes are not.
- Free text has no canonical name.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

from indexer.hub_ids import hub_address, is_hub_id

MAX_NAME = 100
_MAX_ADDRESS = 300
_MAX_PARTS = 30

_TABLE = Path(__file__).with_name("dataset_aliases.toml")
_SEPARATORS = str.maketrans("", "", " \t\r\n\xa0-_.()[]{}'\"`:")
_BETWEEN = re.compile(r"[,;&]|\s+and\s+|\n", re.IGNORECASE)
_DATASET_WORD = re.compile(r"datasets?$")
_ARTICLE = re.compile(r"^(?:the|an?)\s+", re.IGNORECASE)
# What the arguments of load_dataset look like once they are written as a tag: ['tasksource/mmlu', 'virology'].
_ID_AND_CONFIG = re.compile(r"\[\s*['\"]([^'\"]*)['\"](?:\s*,\s*['\"]([^'\"]*)['\"])?\s*\]")
_LOOKS_LIKE_AN_ID = re.compile(r"[0-9_\-/]")


@dataclass(frozen=True)
class CanonicalDataset:
    """One dataset; for a task of a collection, ``parent`` is the collection."""

    name: str
    parent: str | None = None


@dataclass
class AliasTable:
    """``dataset_aliases.toml``, inverted so that every spelling leads to its dataset."""

    ids: dict[str, CanonicalDataset] = field(default_factory=dict)
    spellings: dict[str, CanonicalDataset] = field(default_factory=dict)
    tasks: dict[str, dict[str, CanonicalDataset]] = field(default_factory=dict)
    placeholders: set[str] = field(default_factory=set)
    path_roots: set[str] = field(default_factory=set)
    path_endings: tuple[str, ...] = ()
    evaluations: dict[str, frozenset[str]] = field(default_factory=dict)

    def add(self, dataset: CanonicalDataset, written: str) -> None:
        """Let ``written`` mean ``dataset``. Raises ValueError if it already means another."""
        names, key = (self.ids, written.casefold()) if "/" in written else (self.spellings, fold(written))
        if names.setdefault(key, dataset) != dataset or key in self.placeholders:
            raise ValueError(f"{_TABLE.name}: {written!r} has more than one meaning")


def fold(text: str) -> str:
    """The common form of all spellings of a name: ``CoNLL-2003`` and ``conll_2003`` → ``conll2003``."""
    return unicodedata.normalize("NFKC", text).casefold().translate(_SEPARATORS)


def _without_article(text: str) -> str:
    return _ARTICLE.sub("", text.strip())


@cache
def alias_table() -> AliasTable:
    """The table, read once. Raises ValueError if it contradicts itself."""
    written = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    table = AliasTable(
        placeholders={fold(word) for words in written["placeholders"].values() for word in words},
        path_roots=set(written["paths"]["roots"]),
        path_endings=tuple(written["paths"]["endings"]),
        evaluations={key: frozenset(value) for key, value in written["evaluations"].items()},
    )
    # Collections, their tasks as collection/task, and the tasks that "bare" lists under their own names too.
    for name, group in written["groups"].items():
        for spelling in (name, *group["ids"]):
            table.add(CanonicalDataset(name), spelling)
        tasks = table.tasks[name] = {}
        for task, others in group["tasks"].items():
            dataset = CanonicalDataset(f"{name}/{task}", name)
            for spelling in (task, *others):
                if "/" in spelling:
                    table.add(dataset, spelling)
                    continue
                tasks[fold(spelling)] = dataset
                table.add(dataset, f"{name} {spelling}")
                table.add(dataset, f"{spelling} {name}")
                if task in group.get("bare", ()):
                    table.add(dataset, spelling)
    for name, others in written["datasets"].items():
        for spelling in (name, *others):
            table.add(CanonicalDataset(name), spelling)
    return table


def is_placeholder(raw: str | None) -> bool:
    """Whether ``raw`` is a placeholder and not a dataset: "None", "unknown", "imagefolder", "-"."""
    if raw is None:
        return True
    if not any(character.isalnum() for character in raw[:_MAX_ADDRESS]):
        return True
    key = fold(_without_article(raw[:_MAX_ADDRESS]))
    placeholders = alias_table().placeholders
    return key in placeholders or _DATASET_WORD.sub("", key) in placeholders


def canonical_dataset(raw: str | None, *, config: str | None = None) -> CanonicalDataset | None:
    """The one dataset that ``raw`` names, or None: a placeholder, free text, or a list of several.

    ``config`` is the dataset's config in the card ("mrpc", "plain_text", "es").
    """
    if not isinstance(raw, str) or len(raw) > _MAX_ADDRESS:
        return None
    return _canonical(raw, config if isinstance(config, str) and len(config) <= MAX_NAME else None)


def canonical_datasets(raw: str | None, *, config: str | None = None) -> tuple[CanonicalDataset, ...]:
    """All datasets that ``raw`` names: "common_voice, infore_25h" names two.

    A list is only split if every part is a known name, a placeholder, or an id, and at least one part is known or has
    characters other than letters. A sentence with commas names nothing.
    """
    whole = canonical_dataset(raw, config=config)
    if whole or not isinstance(raw, str) or len(raw) > MAX_NAME * _MAX_PARTS:
        return (whole,) if whole else ()
    parts = [_without_article(part) for part in _BETWEEN.split(raw)]
    parts = [part for part in parts if not is_placeholder(part)]
    if len(parts) > _MAX_PARTS:
        return ()
    datasets = [canonical_dataset(part) for part in parts]
    named = [dataset for dataset in datasets if dataset]
    if len(named) < len(parts) or not any(_LOOKS_LIKE_AN_ID.search(part) or is_known(part) for part in parts):
        return ()
    return tuple(dict.fromkeys(named))


def is_known(raw: str) -> bool:
    """Whether the table has ``raw`` in any spelling."""
    return _known(raw.strip()) is not None


@lru_cache(maxsize=16384)
def _canonical(raw: str, config: str | None) -> CanonicalDataset | None:
    text = raw.strip()
    if listed := _ID_AND_CONFIG.fullmatch(text):
        text, config = listed[1].strip(), config or listed[2]
    if "huggingface.co/" in text.lower() or "hf.co/" in text.lower():
        address = hub_address(text, "datasets")
        # An address in a sentence need not be what the model was tuned on.
        text = address if address and " " not in text else ""
    text = text.removeprefix("dataset:").removeprefix("datasets/").strip()
    if not text or len(text) > MAX_NAME or is_placeholder(text):
        return None
    dataset = _known(text)
    if dataset is None:
        # A dataset that is not in the table is called by its id, lower-cased; a path or a file name is not an id.
        name, table = text.lower(), alias_table()
        owner, slash, _ = name.partition("/")
        is_path = name.endswith(table.path_endings) or (slash and owner in table.path_roots)
        if not is_hub_id(text) or is_path or not any(character.isalpha() for character in name):
            return None
        dataset = CanonicalDataset(name if slash else name.replace("-", "_"))
    if config and dataset.name in alias_table().tasks:
        return _task(dataset.name, config) or dataset
    return dataset


def _known(text: str) -> CanonicalDataset | None:
    """Look up an id, a spelling, a spelling with "dataset", or a collection with a task."""
    table = alias_table()
    if "/" not in text:
        key = fold(_without_article(text))
        return table.spellings.get(key) or table.spellings.get(_DATASET_WORD.sub("", key))
    names = table.ids.get(text.casefold())
    if names:
        return names
    head, _, task = text.rpartition("/")
    collection = table.ids.get(head.casefold()) if "/" in head else table.spellings.get(fold(head))
    return _task(collection.name, task) if collection and collection.name in table.tasks else None


def _task(collection: str, config: str) -> CanonicalDataset | None:
    """The task that a config names; "PAN-X.de" is the task "pan-x" in one language."""
    tasks = alias_table().tasks[collection]
    return tasks.get(fold(config)) or tasks.get(fold(config.partition(".")[0]))
