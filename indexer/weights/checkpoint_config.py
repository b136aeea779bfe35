"""The JSON files beside the weights: config.json and adapter_config.json, as far as they decide what is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from indexer.errors import Skipped
from indexer.untrusted import shown
from indexer.weights.checkpoint_files import Choice
from indexer.weights.repository import Repository, read_json_object

MOST_CONFIG = 4 << 20

# How quantised weights name their parts, where config.json keeps silent.
_QUANTISED_PARTS = {
    ".qweight": "GPTQ or AWQ",
    ".SCB": "bitsandbytes (8 bits)",
    ".quant_map": "bitsandbytes (4 bits)",
    ".weight_packed": "compressed-tensors",
}


def read_config(repository: Repository, choice: Choice, stand_in: Mapping[str, Any] | None) -> dict[str, Any]:
    """config.json beside the weights, else of the root, else ``stand_in``. An adapter can do without.

    Raises Skipped: ``malformed`` where a full model has none that can be read, ``quantized`` where it says so.
    """
    for path in (f"{choice.folder}config.json", "config.json"):
        if path in repository.filenames:
            try:
                found = read_json_object(repository, path, MOST_CONFIG)
            except Skipped:
                if choice.kind == "full":
                    raise
                return {}
            if choice.kind == "full":
                _refuse_quantised(found)
            return found
    if stand_in is None and choice.kind == "full":
        raise Skipped("malformed", "there is no config.json to say which architecture this is")
    return dict(stand_in or {})


def read_adapter_config(repository: Repository, choice: Choice) -> dict[str, Any]:
    """adapter_config.json beside the factors. Raises Skipped("malformed") where there is none to read."""
    path = f"{choice.folder}adapter_config.json"
    if path not in repository.filenames:
        raise Skipped("malformed", f"there is {choice.name}, but no adapter_config.json to say how to apply it")
    return read_json_object(repository, path, MOST_CONFIG)


def refuse_quantised_tensors(names: Collection[str]) -> None:
    """Raise Skipped("quantized") where tensors have the names of quantised weights."""
    for name in names:
        for ending, method in _QUANTISED_PARTS.items():
            if name.endswith(ending):
                raise Skipped("quantized", f"the weights are quantised by {method}: there is {shown(name)}")


def _refuse_quantised(config: Mapping[str, Any]) -> None:
    for key in ("quantization_config", "compression_config"):
        found = config.get(key)
        if not found:
            continue
        settings = found if isinstance(found, dict) else {}
        method = settings.get("quant_method") or settings.get("method") or "a method it does not name"
        if method == "bitsandbytes" and not settings.get("load_in_4bit") and not settings.get("load_in_8bit"):
            continue  # written for a model that was loaded with quantisation switched off
        raise Skipped("quantized", f"the weights are quantised by {shown(method, 40)}")
