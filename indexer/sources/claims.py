"""What a model says it comes from: in its row of the Hub's listing, or in a path in its configuration. Pure functions.

The Hub may answer a filter with rows that lack the tag asked for, so only what the row says itself counts: its
``base_model:…`` tags first, then ``baseModels`` (canonical ids), then ``base_model`` of its card.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from indexer.hub_ids import is_hub_id
from indexer.names import RELATIONS, with_dots
from indexer.network.rows import filenames_in

# Where a model has several relations to one base, the first of these counts: what its files are comes first.
_RELATION_ORDER = ("adapter", "finetune", "merge", "quantized")

# What a claim is based on, most trusted first; "alias" stands for "alias:<id>".
_TRUST = ("tag", "alias", "adapter_config", "config", "card", "user", "weights", "name")

# The claim of a model that a person added from a place that no atlas stores: a folder. Its name may be like one on the
# Hub.
BY_FOLDER = "folder"

_PREFIX = "base_model:"
# An owner and a name as folders spell them (unsloth--Llama-3.2-1B), which is never an id of the Hub; and the folder of
# a model in the cache of huggingface_hub.
_JOINED = re.compile(r"([\w.\-]+?)--([\w.\-]+)", re.ASCII)
_CACHED = re.compile(r"(?:.*/)?models--([\w.\-]+?)--([\w.\-]+?)(?:/snapshots(?:/[^/]*)?)?", re.ASCII)
_OF_MODELSCOPE = re.compile(r"(?:.*/)?modelscope/hub/(?:models/)?([\w.\-]+)/([\w.\-]+)", re.ASCII)
_CHECKPOINT = re.compile(r"checkpoint[-_]?\d+")
_MOST_TAGS = 10_000
_LONGEST_TAG = 300
_MOST_BASES = 100

# Words next to a base's name that make it the name of another base (xlm-roberta-base, roberta-base-bne).
_OTHER_BASES = frozenset((
    "albert", "bigbird", "biomed", "biomedical", "bne", "ca", "camembert", "chinese", "clip", "code", "deberta",
    "distil", "electra", "flan", "german", "indonesian", "japanese", "ke", "klue", "korean", "long", "m",
    "mdeberta", "mini", "mt", "multilingual", "norwegian", "small", "spanish", "tiny", "umt", "xlm",
))  # fmt: skip
# Why an untagged model is rejected whose config.json says less than it used to.
NO_PATH = "nothing names the base, and its config.json has no _name_or_path, as transformers 5 saves it"
_WORD = re.compile(r"[a-z0-9.]+")

# What a path in a configuration names; see classify_path.
YES, NO, UNSURE = "yes", "no", "unsure"
# First parts of a path that are folders of training scripts, not owners on the Hub.
_FOLDERS = frozenset((
    "checkpoint", "checkpoints", "ckpt", "content", "data", "experiments", "home", "kaggle", "mnt", "model",
    "models", "output", "outputs", "result", "results", "root", "runs", "save", "saved", "saved_model",
    "saved_models", "scratch", "tmp", "trained_models", "users", "weights", "workspace",
))  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """One statement that a model comes from a base. ``parent`` is the model it was directly tuned from."""

    relation: str
    claimed_by: str
    parent: str

    @property
    def parts(self) -> tuple[str, str, str]:
        """Its three values."""
        return self.relation, self.claimed_by, self.parent

    @property
    def is_known(self) -> bool:
        """Whether the relation, and what the claim is based on, are among those that a listing may hold."""
        return self.relation in RELATIONS and self.claimed_by.partition(":")[0] in _TRUST

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: the most trusted claim is the smallest."""
        kind = self.claimed_by.partition(":")[0]
        trust = _TRUST.index(kind) if kind in _TRUST else len(_TRUST)
        return (trust, _RELATION_ORDER.index(self.relation) if self.relation in _RELATION_ORDER else 9)


def stated_bases(row: Mapping[str, Any]) -> dict[str, set[str | None]]:
    """The bases that a row names, in lower case, with the relations to each; None for one without a relation.

    The relation of ``baseModels`` counts only if no tag gives one, and bases of the card only if the Hub names them
    nowhere.
    """
    tags = row.get("tags")
    found: dict[str, set[str | None]] = {}
    for tag in tags[:_MOST_TAGS] if isinstance(tags, list) else []:
        if not isinstance(tag, str) or not tag.startswith(_PREFIX) or len(tag) > _LONGEST_TAG:
            continue
        first, colon, rest = tag.removeprefix(_PREFIX).partition(":")
        if not colon and first:
            found.setdefault(hub_spelling(first).lower(), set()).add(None)
        elif first in RELATIONS and rest:
            found.setdefault(hub_spelling(rest).lower(), set()).add(first)
    stated = row.get("baseModels")
    if isinstance(stated, Mapping):
        relation, models = stated.get("relation"), stated.get("models")
        for one in models[:_MOST_BASES] if isinstance(models, list) else []:
            base = one.get("id") if isinstance(one, Mapping) else None
            if isinstance(base, str) and is_hub_id(base) and not found.get(base.lower(), set()) - {None}:
                is_known = isinstance(relation, str) and relation in RELATIONS
                found.setdefault(base.lower(), set()).add(relation if is_known else None)
    card = row.get("cardData")
    if isinstance(card, Mapping):
        named = card.get("base_model")
        relation = card.get("base_model_relation")
        for base in named[:_MOST_BASES] if isinstance(named, list) else [named]:
            name = hub_spelling(base.strip()).lower() if isinstance(base, str) and len(base) <= _LONGEST_TAG else ""
            if name and name not in found:
                known = relation if isinstance(relation, str) and relation in RELATIONS else None
                found[name] = {known}
    return found


def hub_spelling(name: str) -> str:
    """``owner/name`` for ``owner--name``; any other text as it is."""
    joined = _JOINED.fullmatch(name) if "--" in name and "/" not in name else None
    return f"{joined[1]}/{joined[2]}" if joined else name


def out_of_caches(path: str) -> str:
    """``owner/name`` for the path of a model in the cache of the Hub's client or of ModelScope's; else as it is."""
    text = path.strip().replace("\\", "/").rstrip("/")
    cached = _CACHED.fullmatch(text) if "models--" in text else _OF_MODELSCOPE.fullmatch(text)
    return with_dots(f"{cached[1]}/{cached[2]}") if cached else path


def hub_id_in(path: str, identifier: str = "") -> str | None:
    """The id on the Hub that a ``…name_or_path`` stands for; None for a folder of the author's, and for ``identifier``.

    It need not exist.
    """
    text = hub_spelling(with_dots(out_of_caches(path)))
    is_id = is_hub_id(text) and not is_folder_name(text.lower())
    return text if is_id and classify_path(text, identifier, ()) is not None else None


def relation_to(row: Mapping[str, Any], ids: Collection[str], wanted: Collection[str]) -> str | None:
    """The relation that the row states to any of ``ids``, if it is one of ``wanted``; None otherwise.

    A row that names the base without a relation is an adapter if it has an adapter_config.json, else a fine-tune.
    """
    names = {hub_spelling(name).lower() for name in ids}
    stated = stated_bases(row)
    relations = {relation for base, found in stated.items() if base in names for relation in found}
    typed = relations - {None}
    if relations and not typed:
        typed = {untyped_relation(row)}
    return next((relation for relation in _RELATION_ORDER if relation in typed and relation in wanted), None)


# How the names of a full model's weights begin.
_USUAL = ("model", "pytorch_model", "diffusion_pytorch_model", "consolidated")


def untyped_relation(row: Mapping[str, Any]) -> str:
    """The relation by the files, and by the tag that LoRAs of image models carry: "adapter" or "finetune".

    Weights with an unusual name and without any config.json can only be such a LoRA: a full model needs one.
    """
    files, tags = filenames_in(row), row.get("tags")
    is_adapter = not {"adapter_config.json", "pytorch_lora_weights.safetensors"}.isdisjoint(files)
    is_adapter = is_adapter or row.get("library_name") == "peft"
    names = [file.rpartition("/")[2] for file in files]
    if "config.json" not in names and "model_index.json" not in names:
        own = [name for name in names if name.endswith(".safetensors") and not name.startswith(_USUAL)]
        is_tagged = row.get("library_name") == "diffusers" and isinstance(tags, list) and "lora" in tags
        is_adapter = is_adapter or is_tagged or bool(own)
    return "adapter" if is_adapter else "finetune"


def stated_models(row: Mapping[str, Any]) -> set[str]:
    """The bases that a row names and that can be models on the Hub, in lower case.

    Tools write the folder on the author's machine where an id belongs; that says nothing of the base.
    """
    return {name for name in stated_bases(row) if is_hub_id(name) and not is_folder_name(name)}


def is_folder_name(text: str) -> bool:
    """Whether a name or path is certainly a place on the author's machine."""
    owner, _, last = text.rpartition("/")
    is_path = text.startswith((".", "~", "/")) or ":" in text or "/" in owner
    return is_path or (owner or last) in _FOLDERS or bool(_CHECKPOINT.fullmatch(last))


def classify_base(name: str, identifier: str, ids: Collection[str]) -> str | None:
    """What a card means by the name of a base; see ``classify_path``.

    A name without an owner is an old id of the Hub (``roberta-large``), unless it is that of a folder (``outputs``).
    """
    verdict = classify_path(name, identifier, ids)
    is_id = is_hub_id(name) and not is_folder_name(name.lower())
    return NO if verdict == UNSURE and is_id else verdict


def classify_path(path: str | None, identifier: str, ids: Collection[str]) -> str | None:
    """What a ``…name_or_path`` names: the base, another model, something unclear, or nothing (None).

    ``identifier`` is the model's own id, which names no base.
    """
    text = (path or "").strip().replace("\\", "/").rstrip("/").lower()
    cached = _CACHED.fullmatch(text) if "models--" in text else None
    text = f"{cached[1]}/{cached[2]}" if cached else hub_spelling(text)
    names = {name.lower() for name in ids}
    text = text if text in names else with_dots(text)
    if not text or text in (identifier.lower(), identifier.lower().rpartition("/")[2]):
        return None
    if text in names:
        return YES
    owner, _, last = text.rpartition("/")
    is_local = not owner or text.startswith((".", "~")) or ":" in text or "/" in owner or owner in _FOLDERS
    if is_local:
        return YES if last in {name.rpartition("/")[2] for name in names} else UNSURE
    return NO if is_hub_id(text) else UNSURE


def is_named_after(identifier: str, ids: Collection[str]) -> bool:
    """Whether the model's name contains the base's, word by word, and not as part of another base's name."""
    words = _WORD.findall(identifier.lower().rpartition("/")[2])
    for name in ids:
        wanted = _WORD.findall(name.lower().rpartition("/")[2])
        for start in range(len(words) - len(wanted) + 1):
            if wanted and words[start : start + len(wanted)] == wanted:
                around = words[max(start - 1, 0) : start] + words[start + len(wanted) :][:1]
                return not _OTHER_BASES.intersection(around)
    return False
