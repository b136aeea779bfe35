"""The names of a model's base in its configuration, its card, and the metadata that training programs wrote.

A name is only a claim. Between full models the weights decide, and a name that they contradict is said to be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from indexer.checkpoints.adapter import stated_base
from indexer.checkpoints.checkpoint import Checkpoint
from indexer.errors import ModelError
from indexer.sources.cards.readme import card_facts, sentence_bases
from indexer.sources.claims import NO, UNSURE, YES, classify_base, classify_path
from indexer.sources.registry import ModelRef
from indexer.untrusted import printable

_LARGEST_README = 4 << 20
_LONGEST = 500
_MOST = 20
# Keys of a safetensors file's metadata: of kohya's scripts, of the Stability AI's model specification, of others.
_METADATA = ("ss_base_model_version", "ss_sd_model_name", "modelspec.architecture", "base_model", "sd_version")
# Names of image models there (letters and digits only), and a part of the ids of these models.
_IMAGE_MODELS = {
    "sdxlbase": "stablediffusionxl", "sdxl": "stablediffusionxl", "stablediffusionxl": "stablediffusionxl",
    "sdv1": "stablediffusionv1", "sd15": "stablediffusionv15", "stablediffusionv1": "stablediffusionv1",
    "sdv2": "stablediffusion2", "stablediffusionv2": "stablediffusion2", "sd3": "stablediffusion3",
    "stablediffusion3": "stablediffusion3", "flux1dev": "flux1dev", "flux1schnell": "flux1schnell", "flux1": "flux1",
    "flux": "flux1", "qwenimage": "qwenimage", "wan21": "wan21", "hunyuanvideo": "hunyuanvideo", "lumina": "lumina",
    "pixart": "pixart", "chroma": "chroma", "auraflow": "auraflow",
}  # fmt: skip


# How names of copies in few bits end.
_QUANTISED = re.compile(
    r"[-_.](?:unsloth-)?(?:bnb-?)?(?:nf4|fp4|[48]-?bits?|int[48]|gptq|awq|fp8|bnb)(?:[-_.][48]-?bits?)?$", re.IGNORECASE
)


@dataclass(frozen=True)
class StatedName:
    """One name of a base: ``where`` it is given, and the ``text``."""

    where: str
    text: str


def stated_names(checkpoint: Checkpoint) -> list[StatedName]:
    """The names of its base in the files of a model, most trusted first; each text once."""
    texts: list[tuple[str, Any]] = [("adapter_config.json", stated_base(checkpoint.adapter_config))]
    if checkpoint.kind == "full":
        texts.append(("config.json", checkpoint.config.get("_name_or_path")))
    with suppress(ModelError, UnicodeDecodeError):
        readme = (checkpoint.read_small("README.md", _LARGEST_README) or b"").decode(errors="replace")
        base_models = card_facts(readme).get("base_model")
        texts += [("its card", text) for text in (base_models if isinstance(base_models, list) else [base_models])]
        texts += [("its card", text) for text in sentence_bases(readme)]
    texts += [(f"{key} in its file", checkpoint.metadata.get(key)) for key in _METADATA]
    names: dict[str, StatedName] = {}
    for where, text in texts:
        if isinstance(text, str) and 0 < len(text.strip()) <= _LONGEST:
            names.setdefault(text.strip().lower(), StatedName(where, text.strip()))
    return list(names.values())[:_MOST]


def names_base(stated: StatedName, model: ModelRef, ids: Collection[str]) -> str | None:
    """Whether a name is one of a base's ``ids``: YES, NO, UNSURE, or None if it names nothing."""
    if stated.where.endswith(" in its file"):
        return _names_image_model(stated.text, ids)
    model_name = model.id if model.is_name else model.id.replace("\\", "/").rstrip("/").rpartition("/")[2]
    classify = classify_base if stated.where == "its card" else classify_path
    verdict = classify(stated.text, model_name, ids)
    if verdict in (NO, UNSURE) and (copied := _QUANTISED.sub("", stated.text.rstrip("/"))) != stated.text:
        # An adapter that was trained on a copy of the base in few bits.
        last = copied.replace("\\", "/").rpartition("/")[2].lower()
        return YES if last in {base_id.rpartition("/")[2].lower() for base_id in ids} else verdict
    return verdict


def _names_image_model(text: str, ids: Collection[str]) -> str | None:
    letters = _letters(re.sub(r"\.(safetensors|ckpt)$", "", text.partition("/lora")[0]))
    if any(letters in (_letters(base_id), _letters(base_id.rpartition("/")[2])) for base_id in ids):
        return YES
    part_of_id = next((part for name, part in _IMAGE_MODELS.items() if letters.startswith(name)), None)
    if part_of_id is None:
        return UNSURE
    return YES if any(part_of_id in _letters(base_id) for base_id in ids) else NO


def claims(names: list[StatedName], model: ModelRef, bases: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """For each of the ``bases`` (id → all its ids) where it is named, in words."""
    return {
        base: [
            f"named by {stated.where}: {printable(stated.text, 100)}"
            for stated in names
            if names_base(stated, model, ids) == YES
        ]
        for base, ids in bases.items()
    }


def names_other(names: list[StatedName], model: ModelRef, bases: Mapping[str, Collection[str]]) -> StatedName | None:
    """The first name that is certainly of a model that is none of the bases, where no name is one of them."""
    other = None
    for stated in names:
        verdicts = {names_base(stated, model, ids) for ids in bases.values()}
        if YES in verdicts:
            return None
        if verdicts == {NO} and other is None:
            other = stated
    return other


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))
