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


def find_claim(row: Mapping[str, Any], ids: Collection[str]) -> tuple[Claim | None, str]:
    """Whether the model of ``row`` comes from the base that ``ids`` name, the canonical id first.

    Returns its claim, None for a model of another base, and the evidence in words. Reads up to three small files.
    Raises Failed where one of them could not be read, but may be readable later.
    """
    identifier, revision = str(row["id"]), str(row.get("sha") or "main")
    base, names, relation = next(iter(ids)), filenames_in(row), untyped_relation(row)
    is_unclear = False
    for filename, key, claimed_by in _NAMED_IN:
        if names and filename not in names:
            continue
        try:
            config = fetch_json(identifier, filename, revision)
        except ModelError as error:
            if isinstance(error, Failed) and error.reason not in ("not_found", "malformed_row", "refused"):
                raise
            config = None
        path = config.get(key) if isinstance(config, dict) else None
        is_text = isinstance(path, str) and len(path) <= _LONGEST_NAME
        verdict = path_verdict(path if is_text else None, identifier, ids)
        if verdict == YES:
            found = "adapter" if claimed_by == "adapter_config" else relation
            return Claim(found, claimed_by, base), f"{filename} names it"
        if verdict == NO:
            return None, f"{filename} names another model"
        is_unclear = is_unclear or verdict == UNSURE
    if not names or "README.md" in names:
        try:
            card = fetch_small(identifier, "README.md", revision, LARGEST_README)
        except ModelError as error:
            if isinstance(error, Failed) and error.reason not in ("not_found", "refused"):
                raise
            card = b""
        sentence = trainer_sentence(card.decode("utf-8", errors="replace"))
        if sentence is not None:
            is_ours = sentence[0].lower() in {name.lower() for name in ids}
            said = "names it" if is_ours else "names another model"
            return Claim(relation, "card", base) if is_ours else None, f"its card {said}"
    if is_unclear:
        return None, "its configuration names something else, or a folder"
    if is_named_after(identifier, ids):
        return Claim(relation, "name", base), "its name"
    return None, "nothing names the base"


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
