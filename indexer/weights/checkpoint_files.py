"""Chooses the files of a repository that hold the weights, and reads the configuration next to them.

The first matching row wins, relative to the repository or the requested subfolder.

| row | files | for |
|---|---|---|
| 1 | adapter_model.safetensors | relation adapter |
| 2 | adapter_model.bin | relation adapter |
| 3 | model.safetensors | a full model |
| 4 | the shards of model.safetensors.index.json | a full model |
| 5 | a safetensors conversion of row 6 or 7, if the caller knows of one | a full model |
| 6 | pytorch_model.bin | a full model |
| 7 | the shards of pytorch_model.bin.index.json | a full model |
| 8 | the only other *.safetensors, or else the only model.<variant>.safetensors | a full model |
| 9 | rows 1 and 2 for any other relation, rows 3 to 8 for an adapter | either kind |
| 10 | rows 1 to 9 in ``0_Transformer/`` (sentence-transformers) | |
| 11 | rows 1 to 9 in the ``checkpoint-N/`` with the highest N that has weights | |
| 12 | rows 1 to 9 in the only other subfolder that has weights | |

``consolidated*.safetensors`` repeats the weights under other names and is never used. Neither are the states of
optimizers, schedulers and random generators.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from indexer.errors import Skipped
from indexer.untrusted import shown
from indexer.weights.repository import Repository

Kind = Literal["full", "adapter"]

_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
_CONVERTED = ("model.safetensors", "model.safetensors.index.json")
_FULL = (*_CONVERTED, "pytorch_model.bin", "pytorch_model.bin.index.json")
_VARIANT = re.compile(r"model\.[\w\-]+\.safetensors", re.ASCII)
_SHARD = re.compile(r"(model|pytorch_model)-\d+-of-\d+\.(safetensors|bin)", re.ASCII)
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})", re.ASCII)
_PLAIN = re.compile(r"[\w.\-+ ]{1,200}")
_MOST_FOLDERS = 1000
MOST_CONFIG = 4 << 20

# Name endings of quantised tensors, for models whose config.json does not mention quantisation.
_QUANTISED_PARTS = {
    ".qweight": "GPTQ or AWQ",
    ".SCB": "bitsandbytes (8 bits)",
    ".quant_map": "bitsandbytes (4 bits)",
    ".weight_packed": "compressed-tensors",
}

# Other formats of weights, named in the error if nothing can be read.
_OTHER_FORMATS = (
    (re.compile(r"\.gguf$|(^|/)ggml[\w.\-]*\.bin$"), "GGUF"),
    (re.compile(r"\.onnx(_data)?$"), "ONNX"),
    (re.compile(r"\.msgpack$"), "flax"),
    (re.compile(r"\.h5$|\.keras$|\.ckpt\.index$|(^|/)saved_model\.pb$"), "TensorFlow"),
    (re.compile(r"\.tflite$"), "TensorFlow Lite"),
    (re.compile(r"\.mlmodel$|\.mlpackage/"), "Core ML"),
    (re.compile(r"(^|/)openvino_model[\w.\-]*\.(xml|bin)$"), "OpenVINO"),
    (re.compile(r"\.ot$"), "rust-bert"),
    (re.compile(r"(^|/)consolidated[\w.\-]*\.(safetensors|pth)$"), "consolidated weights"),
    (re.compile(r"\.(pt|pth|ckpt)$"), "PyTorch files with names of their own"),
    (re.compile(r"\.(pkl|pickle|joblib)$"), "pickles"),
)
_NOT_WEIGHTS = re.compile(r"(^|/)(optimizer|scheduler|training_args|rng_state|random_states|scaler)[\w.\-]*$")


@dataclass(frozen=True)
class Choice:
    """The chosen file: ``folder`` is "" or ends in "/"; ``name`` is a weight file in it or an index of shards."""

    kind: Kind
    folder: str
    name: str

    @property
    def is_index(self) -> bool:
        """Whether ``name`` lists shards."""
        return self.name.endswith(".index.json")

    @property
    def is_pickle(self) -> bool:
        """Whether a safetensors conversion would be preferable."""
        return self.kind == "full" and ".bin" in self.name


def choose(filenames: Collection[str], relation: str) -> Choice:
    """The chosen files for ``relation``.

    Raises Skipped: ``unreadable_format`` with the formats found, or ``no_weights``.
    """
    # Plain file names of the root ("") and of its subfolders ("name/").
    by_folder: dict[str, set[str]] = {"": set()}
    for path in filenames:
        folder, slash, name = path.rpartition("/")
        if is_plain_name(name) and (not slash or is_plain_name(folder)) and len(by_folder) <= _MOST_FOLDERS:
            by_folder.setdefault(folder + slash, set()).add(name)
    chosen = {folder: _choose_in(folder, names, relation) for folder, names in by_folder.items()}
    holding = {folder: choice for folder, choice in chosen.items() if choice is not None}
    numbered = [(int(match[1]), folder) for folder in holding if (match := _CHECKPOINT.fullmatch(folder[:-1]))]
    for folder in ("", "0_Transformer/", *(folder for _, folder in sorted(numbered, reverse=True))):
        if folder in holding:
            return holding[folder]
    if len(holding) == 1:
        return next(iter(holding.values()))
    if holding:
        some = ", ".join(shown(folder) for folder in sorted(holding)[:5])
        raise Skipped("no_weights", f"there are weights in several subfolders ({some}), and none in the root")
    # Nothing can be read: say what there is instead.
    names = [name for name in filenames if not _NOT_WEIGHTS.search(name)]
    if any(_SHARD.fullmatch(name.rpartition("/")[2]) for name in names):
        raise Skipped("no_weights", "there are shards of a checkpoint, but no index that says what they hold")
    formats = [form for pattern, form in _OTHER_FORMATS if any(pattern.search(name) for name in names)]
    if formats:
        raise Skipped("unreadable_format", f"the weights are there only as {', '.join(formats)}")
    safetensors = [name for name in names if name.endswith(".safetensors")]
    if len(safetensors) > 1:
        raise Skipped(
            "no_weights",
            f"there are {len(safetensors)} safetensors files, none with the usual name of a model's weights",
        )
    raise Skipped("no_weights", "none of its files holds weights")


def _choose_in(folder: str, names: Collection[str], relation: str) -> Choice | None:
    adapter = next((Choice("adapter", folder, name) for name in _ADAPTERS if name in names), None)
    full = next((Choice("full", folder, name) for name in _FULL if name in names), None)
    if full is None:
        others = [
            name
            for name in sorted(names)
            if name.endswith(".safetensors")
            and name not in _ADAPTERS
            and not name.startswith("consolidated")
            and not _SHARD.fullmatch(name)
            and not _NOT_WEIGHTS.search(name)
        ]
        candidates = [name for name in others if not _VARIANT.fullmatch(name)] or others
        full = Choice("full", folder, candidates[0]) if len(candidates) == 1 else None
    return (adapter or full) if relation == "adapter" else (full or adapter)


def choose_conversion(filenames: Collection[str], folder: str) -> Choice | None:
    """The files of a revision that should hold a safetensors conversion; None if it does not."""
    for name in _CONVERTED:
        if folder + name in filenames:
            return Choice("full", folder, name)
    return None


def is_plain_name(name: object) -> bool:
    """Whether an untrusted file name is a plain name: not a path, no way out of its folder."""
    return isinstance(name, str) and _PLAIN.fullmatch(name) is not None and name.strip(". ") != ""


def read_config(repository: Repository, choice: Choice, stand_in: Mapping[str, Any] | None) -> dict[str, Any]:
    """config.json of the weights' folder, else of the root, else ``stand_in``. Adapters do not need one.

    Raises Skipped("malformed") if a full model has no readable one.
    """
    for path in (f"{choice.folder}config.json", "config.json"):
        if path in repository.filenames:
            try:
                return repository.read_json(path, MOST_CONFIG)
            except Skipped:
                if choice.kind == "full":
                    raise
                return {}
    if stand_in is None and choice.kind == "full":
        raise Skipped("malformed", "there is no config.json, so the architecture is unknown")
    return dict(stand_in or {})


def read_adapter_config(repository: Repository, choice: Choice) -> dict[str, Any]:
    """adapter_config.json in the factors' folder. Raises Skipped("malformed") if there is none."""
    path = f"{choice.folder}adapter_config.json"
    if path not in repository.filenames:
        raise Skipped(
            "malformed", f"there is {choice.name}, but no adapter_config.json, so it is unknown how to apply it"
        )
    return repository.read_json(path, MOST_CONFIG)


def quantisation(config: Mapping[str, Any], names: Collection[str]) -> str:
    """How config.json or names of tensors say that weights are quantised, perhaps not all of them; "" if neither does.

    The Hub's models whose experts are in mxfp4 or fp8 (gpt-oss, DeepSeek) keep other matrices in bfloat16.
    """
    for key in ("quantization_config", "compression_config"):
        if settings := config.get(key):
            settings = settings if isinstance(settings, dict) else {}
            method = settings.get("quant_method") or settings.get("method") or "an unnamed method"
            if method == "bitsandbytes" and not settings.get("load_in_4bit") and not settings.get("load_in_8bit"):
                continue  # written for a model that was loaded with quantisation turned off
            return f"the weights are quantised by {shown(method, 40)}"
    for name in names:
        for ending, method in _QUANTISED_PARTS.items():
            if name.endswith(ending):
                return f"the weights are quantised by {method}: there is {shown(name)}"
    return ""
