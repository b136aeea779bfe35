"""Which base a model without a base_model tag comes from: the evidence, most trusted first.

1. ``adapter_config.json: base_model_name_or_path``
2. ``config.json: _name_or_path``
3. the Trainer's sentence in the card: "fine-tuned version of [X](…)"
4. the name, which is wrong for about 5 models in 100 and therefore only a reason to look at the weights.

The first that names a base decides, for or against. A local folder of the author does not name one, unless its last
part is the base's own name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from indexer.cards.readme import trainer_sentence
from indexer.errors import Failed, ModelError
from indexer.listing.claims import Claim, untyped_relation
from indexer.names import is_hub_id
from indexer.network.hub import fetch_json
from indexer.network.hub_requests import fetch_small
from indexer.network.rows import filenames_in

LARGEST_README = 1 << 20
_LONGEST_NAME = 500

# First parts of a path that are folders of training scripts, not owners on the Hub.
_FOLDERS = frozenset((
    "checkpoint", "checkpoints", "ckpt", "content", "data", "experiments", "home", "kaggle", "mnt", "model",
    "models", "output", "outputs", "result", "results", "root", "runs", "save", "saved", "saved_model",
    "saved_models", "scratch", "tmp", "trained_models", "users", "weights", "workspace",
))  # fmt: skip
# Words next to a base's name that make it the name of another base (xlm-roberta-base, roberta-base-bne).
_OTHER_BASES = frozenset((
    "albert", "bigbird", "biomed", "biomedical", "bne", "ca", "camembert", "chinese", "clip", "code", "deberta",
    "distil", "electra", "flan", "german", "indonesian", "japanese", "ke", "klue", "korean", "long", "m",
    "mdeberta", "mini", "mt", "multilingual", "norwegian", "small", "spanish", "tiny", "umt", "xlm",
))  # fmt: skip
_WORD = re.compile(r"[a-z0-9.]+")

# (file, key, what a claim made there is called)
_NAMED_IN = (
    ("adapter_config.json", "base_model_name_or_path", "adapter_config"),
    ("config.json", "_name_or_path", "config"),
)

YES, NO, UNSURE = "yes", "no", "unsure"


@dataclass(frozen=True)
class ClaimFound:
    """What was found. ``claim`` is None for a model of another base; ``why`` names the evidence."""

    claim: Claim | None
    why: str


def weigh(row: Mapping[str, Any], ids: Collection[str]) -> ClaimFound:
    """Whether the model of ``row`` comes from the base that ``ids`` name, the canonical id first.

    Reads up to three small files. Raises Failed where one of them could not be read, but may be readable later.
    """
    identifier, revision = str(row["id"]), str(row.get("sha") or "main")
    base, names, relation = next(iter(ids)), filenames_in(row), untyped_relation(row)
    is_unclear = False
    for filename, key, claimed_by in _NAMED_IN:
        if names and filename not in names:
            continue
        verdict = path_verdict(_value(identifier, filename, revision, key), identifier, ids)
        if verdict == YES:
            found = "adapter" if claimed_by == "adapter_config" else relation
            return ClaimFound(Claim(found, claimed_by, base), f"{filename} names it")
        if verdict == NO:
            return ClaimFound(None, f"{filename} names another model")
        is_unclear = is_unclear or verdict == UNSURE
    sentence = _sentence(identifier, revision) if not names or "README.md" in names else None
    if sentence is not None:
        is_ours = sentence.lower() in {name.lower() for name in ids}
        said = "names it" if is_ours else "names another model"
        return ClaimFound(Claim(relation, "card", base) if is_ours else None, f"its card {said}")
    if is_unclear:
        return ClaimFound(None, "its configuration names something else, or a folder")
    if is_named_after(identifier, ids):
        return ClaimFound(Claim(relation, "name", base), "its name")
    return ClaimFound(None, "nothing names the base")


def path_verdict(path: str | None, identifier: str, ids: Collection[str]) -> str | None:
    """What a ``…name_or_path`` names: the base, another model, something unclear, or nothing (None).

    ``identifier`` is the model's own id, which means nothing.
    """
    text = (path or "").strip().replace("\\", "/").rstrip("/").lower()
    names = {name.lower() for name in ids}
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


def _value(identifier: str, filename: str, revision: str, key: str) -> str | None:
    """A string from a JSON file; None where file or string are missing, or may not be read."""
    try:
        found = fetch_json(identifier, filename, revision)
    except ModelError as error:
        if isinstance(error, Failed) and error.reason not in ("not_found", "malformed_row", "refused"):
            raise
        return None
    value = found.get(key) if isinstance(found, dict) else None
    return value if isinstance(value, str) and len(value) <= _LONGEST_NAME else None


def _sentence(identifier: str, revision: str) -> str | None:
    """The model named by the sentence that the Trainer writes into cards."""
    try:
        body = fetch_small(identifier, "README.md", revision, LARGEST_README)
    except ModelError as error:
        if isinstance(error, Failed) and error.reason not in ("not_found", "refused"):
            raise
        return None
    found = trainer_sentence(body.decode("utf-8", errors="replace"))
    return found[0] if found else None
