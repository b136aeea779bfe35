"""Model types without a data file whose config.json holds that of a known language model.

Models for images, sound and text that bring their own code are built around a language model that others publish, and
their config.json holds its config: DeepSeek-VL2 that of a DeepSeek-V2 under ``language_config``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from indexer.checkpoints.architectures.architecture import known_model_types, load_architecture
from indexer.errors import Skipped

# Configs of parts that are not read if there is a language model.
_TOWERS = re.compile(r"vision|visual|vit|image|audio|speech|video|talker|code2wav|vocoder|projector", re.IGNORECASE)
_DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_DEEPEST, _MOST = 3, 20


def by_nested_config(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The config by which the block matrices are located: ``config``, or a copy with the type of a nested config.

    The copy is returned if the model type of ``config`` is unknown, and exactly one nested config has a known type
    under which every layer that it counts is complete among the ``shapes`` of the tensors. That nested config becomes
    the ``text_config``. Both arguments are untrusted.
    """
    known_types = frozenset(known_model_types())
    if not isinstance(config.get("model_type"), str) or config["model_type"] in known_types:
        return dict(config)
    candidates: dict[frozenset[str], dict[str, Any]] = {}
    for nested in _nested(config, known_types):
        candidate = {**config, "model_type": nested["model_type"], "text_config": nested}
        try:
            layout = load_architecture(nested["model_type"]).locate(shapes, candidate)
        except Skipped:
            continue
        depths = {nested[key] for key in _DEPTHS if type(nested.get(key)) is int}
        if not depths or sum(layout.depth.values()) in depths:
            candidates.setdefault(frozenset(layout.tensors), candidate)
    (chosen,) = candidates.values() if len(candidates) == 1 else (config,)
    return dict(chosen)


def _nested(config: Mapping[str, Any], known_types: frozenset[str]) -> Iterator[dict[str, Any]]:
    """The configs of known types in a config, the outer ones first, without those of towers."""
    level: list[Mapping[str, Any]] = [config]
    remaining = _MOST
    for _ in range(_DEEPEST):
        below: list[Mapping[str, Any]] = []
        for outer in level:
            for name, inner in outer.items():
                if isinstance(inner, dict) and remaining > 0 and not (isinstance(name, str) and _TOWERS.search(name)):
                    remaining -= 1
                    below.append(inner)
                    if isinstance(inner.get("model_type"), str) and inner["model_type"] in known_types:
                        yield inner
        level = below
