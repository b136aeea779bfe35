"""What a row of the Hub's listing claims to descend from, read from the row itself. Pure functions.

A filter of the Hub may answer with rows that do not carry the tag that was asked for, so nothing is believed
that the row does not say: its ``base_model:…`` tags first, then ``base_model`` of its card.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from indexer.names import RELATIONS
from indexer.network.rows import filenames_in

# Of several relations to one base: what the files are comes before what was done to get them.
RELATION_ORDER = ("adapter", "finetune", "merge", "quantized")

# By what a claim is made, in falling order of trust; "alias" stands for "alias:<id>".
TRUST = ("tag", "alias", "adapter_config", "config", "card", "user", "name")

# Of a model of this machine, which `index add` took from a folder: nothing on the Hub claims it.
BY_FOLDER = "folder"

_PREFIX = "base_model:"
_MOST_TAGS = 10_000
_LONGEST_TAG = 300


@dataclass(frozen=True)
class Claim:
    """One way in which a model is said to come from a base. ``parent`` is what it was directly tuned from."""

    relation: str
    claimed_by: str
    parent: str

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller is to be believed before larger."""
        kind = self.claimed_by.partition(":")[0]
        trust = TRUST.index(kind) if kind in TRUST else len(TRUST)
        return (trust, RELATION_ORDER.index(self.relation) if self.relation in RELATION_ORDER else 9)


def tagged_bases(row: Mapping[str, Any]) -> dict[str, set[str | None]]:
    """The bases that the tags name, in lower case, with the relations to each; None is an untyped tag."""
    tags = row.get("tags")
    found: dict[str, set[str | None]] = {}
    for tag in tags[:_MOST_TAGS] if isinstance(tags, list) else []:
        if not isinstance(tag, str) or not tag.startswith(_PREFIX) or len(tag) > _LONGEST_TAG:
            continue
        first, colon, rest = tag.removeprefix(_PREFIX).partition(":")
        if not colon and first:
            found.setdefault(first.lower(), set()).add(None)
        elif first in RELATIONS and rest:
            found.setdefault(rest.lower(), set()).add(first)
    return found


def stated_bases(row: Mapping[str, Any]) -> dict[str, set[str | None]]:
    """As ``tagged_bases``, with what the card names where the Hub made no tag of it."""
    found = tagged_bases(row)
    card = row.get("cardData")
    if isinstance(card, Mapping):
        named = card.get("base_model")
        relation = card.get("base_model_relation")
        for base in named[:100] if isinstance(named, list) else [named]:
            if isinstance(base, str) and base.strip() and base.strip().lower() not in found:
                known = relation if isinstance(relation, str) and relation in RELATIONS else None
                found[base.strip().lower()] = {known}
    return found


def relation_to(row: Mapping[str, Any], ids: Collection[str], wanted: Collection[str]) -> str | None:
    """The relation that the row states to any of ``ids``, if it is one of ``wanted``; None otherwise.

    A row that names the base without a relation is an adapter if it has an adapter_config.json, else a
    fine-tune.
    """
    names = {name.lower() for name in ids}
    stated = stated_bases(row)
    relations = {relation for base, found in stated.items() if base in names for relation in found}
    typed = relations - {None}
    if relations and not typed:
        typed = {untyped_relation(row)}
    return next((relation for relation in RELATION_ORDER if relation in typed and relation in wanted), None)


def names_any(row: Mapping[str, Any], ids: Collection[str]) -> bool:
    """Whether the row states any relation to any of ``ids``."""
    names = {name.lower() for name in ids}
    return any(base in names for base in stated_bases(row))


def untyped_relation(row: Mapping[str, Any]) -> str:
    """What the files say: "adapter" or "finetune"."""
    is_adapter = "adapter_config.json" in filenames_in(row) or row.get("library_name") == "peft"
    return "adapter" if is_adapter else "finetune"
