"""Which models name their datasets only in a sentence of their README, which the Hub's listing does not show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from indexer.sources.cards.modelcard import MalformedRow, read_row
from indexer.sources.cards.readme import SENTENCE

# Tags of the tools whose cards have the Trainer's sentence. LLaMA-Factory writes the datasets nowhere else.
_TOOLS = frozenset((
    "alignment-handbook", "autotrain", "axolotl", "dpo", "generated_from_keras_callback", "generated_from_trainer",
    "grpo", "kto", "llama-factory", "llamafactory", "ms-swift", "open-r1", "orpo", "reward-trainer", "sft", "swift",
    "trl", "unsloth", "xtuner",
))  # fmt: skip


def lacks_sentence(row: Mapping[str, Any]) -> bool:
    """Whether a tool that writes such sentences made the model of this listing row, and the row names no dataset.

    False if its README has been read at this commit.
    """
    card, tags = row.get("cardData"), row.get("tags")
    of_card = card.get("tags") if isinstance(card, Mapping) else None
    stated = [tag for found in (tags, of_card) if isinstance(found, list) for tag in found if isinstance(tag, str)]
    if isinstance(row.get(SENTENCE), list) or _TOOLS.isdisjoint(tag.lower() for tag in stated):
        return False
    try:
        return not read_row(row).dataset_names
    except MalformedRow:
        return False
