"""Reads a README.md: its YAML front matter, and the sentence that the Trainer and tools built on it write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from indexer.hub_ids import hub_address, is_hub_id
from indexer.sources.cards.bounded_yaml import load_yaml
from indexer.sources.cards.datasets import is_placeholder
from indexer.untrusted import tidy

_MAX_FRONT_MATTER = 2**20  # characters; benchmark results can make it long
MAX_README = 2**20
# The key of a listing row for the datasets that its README names in a sentence: a list, empty if there are none. It
# belongs to the row's commit, and is missing until the README has been read.
SENTENCE = "readmeDatasets"

_FENCE = re.compile(r"^---[ \t]*\r?$", re.MULTILINE)

_SENTENCE = re.compile(r"\bfine-?tuned (?:version of|from)\s{1,5}|\btrained from scratch(?=\s{1,5}on\s)", re.IGNORECASE)
# The path of a folder, which tools write like the id of a model, may hold blanks and brackets.
_LINK = re.compile(r"\[([^\[\]\n]{0,400})\]\(([^()\n]{0,400}(?:\([^()\n]{0,100}\)[^()\n]{0,400})?)\)")
# A model that is not linked: in back-quotes, or up to five words.
_NAMED = re.compile(r"`[^`\n]{1,200}`|(?:[^\s\[\]]{1,200}[ \t]){0,4}?[^\s\[\]]{1,200}(?=\s{1,5}on\s)")
_ON = re.compile(r"\s{1,5}on\s{1,5}(?:the\s|an?\s)?", re.IGNORECASE)
_DATASET_WORD = re.compile(r"\bdataset(s?)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?:]\s|\n\s*\n")
_AND_THE = re.compile(r"\s*(?:,|\band\b)\s*(?:and\s+)?(?:the\s+)?", re.IGNORECASE)
_MOST_SENTENCES = 50
_LONGEST_SENTENCE = 4_000
_QUOTES = "`*\"' "


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
    loaded = load_yaml(text[first.end() : last.start()])
    return loaded if isinstance(loaded, dict) else {}


def trainer_sentence(readme_text: str) -> tuple[str, str | None] | None:
    """(base, dataset) from "fine-tuned version of [BASE](…) on the DATASET dataset."; None without this sentence.

    The base is a Hub id. The dataset is as written, including "None" and "unknown"; several are joined by ", ". It is
    None if the sentence names none.
    """
    for base, datasets in _sentences(readme_text):
        if is_hub_id(base) and not is_placeholder(base):
            return base, ", ".join(datasets) or None
    return None


def sentence_bases(readme_text: str) -> list[str]:
    """What the sentences name as the model that was tuned: ids, and folders on the author's machine."""
    return [base for base, _ in _sentences(readme_text) if base and not is_placeholder(base)]


def sentence_datasets(readme_text: str) -> tuple[str, ...]:
    """The datasets in the first sentence that names any, as written, whatever model was tuned; () if there are none.

    Placeholders ("None", "unknown") are left out.
    """
    for _, datasets in _sentences(readme_text):
        if named := tuple(dict.fromkeys(name for name in datasets if not is_placeholder(name))):
            return named
    return ()


def _sentences(readme_text: str) -> Iterator[tuple[str, list[str]]]:
    """The tuned model ("" for one trained from scratch) and the datasets in each sentence of the Trainer's form.

    Time is linear in the text: only a bounded window after the first occurrences of the opening words is examined.
    """
    text = readme_text[:MAX_README]
    for _, opening in zip(range(_MOST_SENTENCES), _SENTENCE.finditer(text), strict=False):
        window = text[opening.end() : opening.end() + _LONGEST_SENTENCE]
        if not opening[0][-1].isspace():
            yield "", _datasets_after(window)
        elif link := _LINK.match(window):
            yield hub_address(link[2], "models") or link[1].strip(_QUOTES), _datasets_after(window[link.end() :])
        elif named := _NAMED.match(window):
            # Without a link nobody knows whether "BERT" is an id.
            yield "", _datasets_after(window[named.end() :])


def _datasets_after(rest: str) -> list[str]:
    """The names in " on the A, the B and the C datasets…"; [] if no such words follow."""
    on = _ON.match(rest)
    if not on:
        return []
    rest = rest[on.end() :]
    link = _LINK.match(rest)
    linked = hub_address(link[2], "datasets") if link else None
    rest = _LINK.sub(lambda link: hub_address(link[2], "datasets") or link[1], rest)
    end = _SENTENCE_END.search(rest)
    word = _DATASET_WORD.search(rest, 0, end.start() if end else len(rest))
    if not word:
        return [linked] if linked else []
    subject = tidy(rest[: word.start()], _LONGEST_SENTENCE)
    parts = [part.strip(_QUOTES) for part in (_AND_THE.split(subject) if word[1] else [subject])]
    # Scripts for speech write the name and the config: "COMMON_VOICE_8_0 - CA".
    named = [(part, part.partition(" - ")[0].strip()) for part in parts]
    return [name if is_hub_id(name) else part for part, name in named if part]
