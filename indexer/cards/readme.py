"""Reads a README.md: its YAML front matter, and the sentence that the Trainer writes."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

import yaml

from indexer.cards.datasets import is_placeholder
from indexer.names import is_hub_id
from indexer.untrusted import hub_address, tidy

_MAX_FRONT_MATTER = 2**20  # characters; benchmark results can make it long
_MAX_EVENTS = 200_000
_MAX_DEPTH = 40
MAX_README = 2**20

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FENCE = re.compile(r"^---[ \t]*\r?$", re.MULTILINE)

_SENTENCE = re.compile(r"\bfine-?tuned (?:version of|from)\s{1,5}", re.IGNORECASE)
_LINK = re.compile(r"\[([^\[\]\n]{0,200})\]\(([^()\s]{0,300})\)")
_ON = re.compile(r"\s{1,5}on\s{1,5}(?:the\s|an?\s)?", re.IGNORECASE)
_DATASET_WORD = re.compile(r"\bdataset(s?)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?:]\s|\n\s*\n")
_AND_THE = re.compile(r"\s*(?:,|\band\b)\s*(?:and\s+)?(?:the\s+)?", re.IGNORECASE)


def card_facts(readme_text: str) -> dict[str, Any]:
    """The front matter of a README as plain JSON values, usable as a row's ``cardData``.

    Returns {} if there is no front matter, or if it cannot be read: not YAML, not an object, with aliases, too long or
    too deep.
    """
    text = readme_text[: _MAX_FRONT_MATTER + 10].lstrip("\ufeff \t\r\n")
    fences = _FENCE.finditer(text)
    first, last = next(fences, None), next(fences, None)
    if first is None or first.start() != 0 or last is None:
        return {}
    front, depth = text[first.end() : last.start()], 0
    try:
        # A few lines of aliases expand to gigabytes, and the parser is recursive: look at the events first.
        for number, event in enumerate(yaml.parse(front, Loader=_LOADER)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > _MAX_DEPTH or number > _MAX_EVENTS:
                return {}
        loaded = _plain(yaml.load(front, Loader=_LOADER))
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def trainer_sentence(readme_text: str) -> tuple[str, str | None] | None:
    """(base, dataset) from "fine-tuned version of [BASE](…) on the DATASET dataset."; None without this sentence.

    The base is a Hub id. The dataset is as written, including "None" and "unknown"; several are joined by ", ". It is
    None if the sentence names none. Time is linear in the text: only a bounded window after each occurrence of the
    opening words is examined.
    """
    text = readme_text[:MAX_README]
    for opening in _SENTENCE.finditer(text):
        window = text[opening.end() : opening.end() + 1_500]
        link = _LINK.match(window)
        if link:
            base = hub_address(link[2], "models") or link[1].strip().strip("`")
            if is_hub_id(base) and not is_placeholder(base):
                return base, _dataset_after(window[link.end() :])
    return None


def _dataset_after(rest: str) -> str | None:
    """The DATASET of " on the DATASET dataset…"; None if no such words follow."""
    on = _ON.match(rest)
    if not on:
        return None
    rest = rest[on.end() :]
    link = _LINK.match(rest)
    linked = hub_address(link[2], "datasets") if link else None
    rest = _LINK.sub(lambda link: hub_address(link[2], "datasets") or link[1], rest)
    end = _SENTENCE_END.search(rest)
    word = _DATASET_WORD.search(rest, 0, end.start() if end else len(rest))
    if not word:
        return linked
    subject = tidy(rest[: word.start()], 300)
    if word[1]:
        subject = ", ".join(part for part in _AND_THE.split(subject) if part)
    return subject or None


def _plain(value: Any) -> Any:
    """A YAML value reduced to JSON: dates and keys as text, no bytes, no sets."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set):
        return [_plain(item) for item in sorted(value, key=str)]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value if isinstance(value, str | bool | int | float) else None
