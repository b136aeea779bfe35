"""Chooses the files of a repository that hold the weights, and reads the configuration next to them.

The first matching row wins, relative to the repository or the requested subfolder.

| row | files | for |
|---|---|---|
| 1 | adapter_model.safetensors | relation adapter |
| 2 | adapter_model.bin, else adapters.safetensors (mlx-lm) | relation adapter |
| 3 | model.safetensors | a full model |
| 4 | the shards of model.safetensors.index.json | a full model |
| 5 | a safetensors conversion of row 6 or 7, if the caller has one | a full model |
| 6 | pytorch_model.bin | a full model |
| 7 | the shards of pytorch_model.bin.index.json, else pytorch_model_fsdp.bin (accelerate) | a full model |
| 8 | the only other *.safetensors, or else the only model.<variant>.safetensors | a full model |
| 9 | rows 1 and 2 for any other relation, rows 3 to 8 for an adapter | either kind |
| 10 | a LoRA without adapter_config.json (``_loose_adapter``), where row 9 finds nothing | either kind |
| 11 | rows 1 to 10 in ``0_Transformer/`` (sentence-transformers) | |
| 12 | rows 1 to 10 in the only ``final/``, ``final_model/`` or ``last/`` | |
| 13 | rows 1 to 10 in the ``checkpoint-N/`` of the highest N, else in global_step_N, step-N, iter_N or epoch_N | |
| 14 | rows 1 to 10 in the only other subfolder that has weights | |
| 15 | row 13 two folders down (``run/checkpoint-N/``, ``step-N/hf/``), if all belong to one run; then row 14 there | |
| 16 | the GGUF file with the most bits by its name, else the ONNX file with the usual name, of the root, else of the \
only folder that has some | a conversion |

``consolidated*.safetensors`` repeats the weights under other names and is never used. Neither are the states of
optimizers, schedulers and random generators.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from indexer.checkpoints.repository import Repository
from indexer.errors import Skipped
from indexer.formats import (
    GGUF_FILE,
    GGUF_SHARD,
    NO_GGUF,
    NOT_WEIGHTS,
    ONNX_FILE,
    SAVE_AGAIN,
    onnx_export,
    other_formats,
)
from indexer.sources.runs import FINALS, NUMBERED
from indexer.untrusted import shown

Kind = Literal["full", "adapter"]

_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors")
_CONVERTED = ("model.safetensors", "model.safetensors.index.json")
# diffusers' names for the weights of a component, and of a LoRA (loaders/lora_base.py).
_DIFFUSERS = ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.safetensors.index.json")
_LORA_FILE = "pytorch_lora_weights.safetensors"
_FULL = (
    *_CONVERTED, *_DIFFUSERS, "pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model_fsdp.bin",
)  # fmt: skip
_VARIANT = re.compile(r"(diffusion_pytorch_)?model\.[\w\-]+\.safetensors", re.ASCII)
_STEP = re.compile(r"(?P<stem>.+?)[-_](?:step-?|epoch-?|e|s)?(?P<step>\d{2,15})", re.ASCII)
_SHARD = re.compile(r"(model|pytorch_model|diffusion_pytorch_model)-\d+-of-\d+\.(safetensors|bin)", re.ASCII)
# Files that mlx-lm saves during training.
_UNFINISHED = re.compile(r"\d+_adapters\.safetensors", re.ASCII)
_SERIES = ("checkpoint", "ckpt", "globalstep", "step", "iter", "epoch")  # in this order, if there are several
# Formats to which models are converted, and how the names of their files end.
GGUF, ONNX = "GGUF", "ONNX"
_CONVERSIONS = {GGUF: GGUF_FILE, ONNX: ONNX_FILE}
# How many bits the name of a type in GGUF says.
_GGUF_TYPE = re.compile(
    r"(?:^|[-_.])(?:b?f(?P<float>16|32)|i?q(?P<bits>\d)(?:_\w+)?)(?=[-_.])", re.IGNORECASE | re.ASCII
)
_MOST_GGUF_SHARDS = 1000
_DEPTH = 2  # of folders
_PLAIN = re.compile(r"[\w.\-+ ]{1,200}")
_MOST_FOLDERS = 1000
_MOST_CONFIG = 4 << 20


@dataclass(frozen=True)
class Choice:
    """The chosen file: ``folder`` is "" or ends in "/"; ``name`` is a weight file in it or an index of shards."""

    kind: Kind
    folder: str
    name: str

    @property
    def format(self) -> str:
        """GGUF or ONNX; "" for a file of PyTorch or safetensors."""
        return next((name for name, ending in _CONVERSIONS.items() if self.name.endswith(ending)), "")

    @property
    def is_index(self) -> bool:
        """Whether ``name`` lists shards."""
        return self.name.endswith(".index.json")

    @property
    def is_pickle(self) -> bool:
        """Whether a safetensors conversion would be preferable."""
        return self.kind == "full" and ".bin" in self.name and not self.format


def choose(filenames: Collection[str], relation: str) -> Choice:
    """The chosen files for ``relation``.

    Raises Skipped: ``unreadable_format`` with the formats found, or ``no_weights``.
    """
    # Plain file names of the root ("") and of its subfolders ("name/", "name/name/").
    by_folder: dict[str, set[str]] = {"": set()}
    for path in filenames:
        folder, slash, name = path.rpartition("/")
        parts = folder.split("/") if slash else []
        if len(parts) <= _DEPTH and all(map(is_plain_name, (*parts, name))) and len(by_folder) <= _MOST_FOLDERS:
            by_folder.setdefault(folder + slash, set()).add(name)
    chosen = {folder: _choose_in(folder, names, relation) for folder, names in by_folder.items()}
    holding = {folder: choice for folder, choice in chosen.items() if choice is not None}
    for candidate in ("", "0_Transformer/", _likeliest(holding)):
        if candidate in holding:
            return holding[candidate]
    if holding:
        some = ", ".join(shown(folder) for folder in sorted(holding)[:5])
        raise Skipped("no_weights", f"there are weights in several subfolders ({some}), and none in the root")
    conversions = {folder: choice for folder, names in by_folder.items() if (choice := _conversion_in(folder, names))}
    if "" in conversions or len(conversions) == 1:
        return conversions.get("") or next(iter(conversions.values()))
    # No file can be read: the message names the files that exist.
    names = [name for name in filenames if not NOT_WEIGHTS.search(name)]
    if any(_SHARD.fullmatch(name.rpartition("/")[2]) for name in names):
        raise Skipped("no_weights", "there are shards of a checkpoint, but no index that says what they hold")
    if formats := other_formats(names):
        raise Skipped(
            "unreadable_format", f"the weights are there only as {formats}, a format that is not read{SAVE_AGAIN}"
        )
    safetensors = [name for name in names if name.endswith(".safetensors")]
    if len(safetensors) > 1:
        raise Skipped(
            "no_weights",
            f"there are {len(safetensors)} safetensors files, none with the usual name of a model's weights",
        )
    raise Skipped("no_weights", "none of its files holds weights")


def _likeliest(folders: Collection[str]) -> str | None:
    """The folder of the finished model or of the last checkpoint, or the only folder; None if none is clear."""
    finals = [folder for folder in folders if folder[:-1].lower() in FINALS]
    if len(finals) == 1:
        return finals[0]
    for depth in range(1, _DEPTH + 1):
        # By the path without its numbers: (the numbers, the folder).
        series: dict[tuple[str, ...], list[tuple[tuple[int, ...], str]]] = {}
        for folder in folders:
            parts = folder[:-1].split("/")
            matches = [NUMBERED.fullmatch(part) for part in parts]
            if len(parts) == depth and any(matches):
                path = tuple(
                    re.sub(r"[_\-]", "", match[1].lower()) if match else part
                    for match, part in zip(matches, parts, strict=True)
                )
                series.setdefault(path, []).append((tuple(int(match[3]) for match in matches if match), folder))
        if depth == 1:
            series = dict(sorted(series.items(), key=lambda item: _SERIES.index(item[0][0]))[:1])
        if len(series) == 1:
            return max(next(iter(series.values())))[1]
        alone = [folder for folder in folders if folder.count("/") == depth]
        if len(alone) == 1:
            return alone[0]
    return None


def _choose_in(folder: str, names: Collection[str], relation: str) -> Choice | None:
    adapter = next((Choice("adapter", folder, name) for name in _ADAPTERS if name in names), None)
    full = next((Choice("full", folder, name) for name in _FULL if name in names), None)
    if full is None:
        other_names = [
            name
            for name in sorted(names)
            if name.endswith(".safetensors")
            and name not in _ADAPTERS
            and not name.startswith("consolidated")
            and not _SHARD.fullmatch(name)
            and not _UNFINISHED.fullmatch(name)
            and not NOT_WEIGHTS.search(name)
        ]
        candidates = [name for name in other_names if not _VARIANT.fullmatch(name)] or other_names
        full = Choice("full", folder, candidates[0]) if len(candidates) == 1 else None
    if adapter is None and (_LORA_FILE in names or (relation == "adapter" and "config.json" not in names)):
        adapter = _loose_adapter(folder, names)
        full = None if adapter is not None and full is not None and full.name == adapter.name else full
    return (adapter or full) if relation == "adapter" else (full or adapter)


def _loose_adapter(folder: str, names: Collection[str]) -> Choice | None:
    """A LoRA of an image model: the file that diffusers writes, else the only name apart from numbers of steps.

    The file without a number is the last one, else the file with the highest number (sd-scripts: "name-000004",
    ai-toolkit: "name_000001250").
    """
    if _LORA_FILE in names:
        return Choice("adapter", folder, _LORA_FILE)
    files_by_stem: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        is_other = name not in _FULL and not any(pattern.fullmatch(name) for pattern in (_VARIANT, _SHARD, _UNFINISHED))
        if name.endswith(".safetensors") and is_other and not name.startswith("consolidated"):
            stem = name.removesuffix(".safetensors")
            match = _STEP.fullmatch(stem)
            number_and_name = (int(match["step"]), name) if match else (1 << 62, name)
            files_by_stem.setdefault(match["stem"] if match else stem, []).append(number_and_name)
    (numbers,) = files_by_stem.values() if len(files_by_stem) == 1 else ([],)
    return Choice("adapter", folder, max(numbers)[1]) if numbers else None


def _conversion_in(folder: str, names: Collection[str]) -> Choice | None:
    """Row 16 of the table."""
    files = [name for name in names if name.endswith(GGUF_FILE) and not NO_GGUF.search(name)]
    # Of the shards of one file the first that is there: those that are missing are named when they are read.
    first: dict[str, str] = {}
    for name in sorted(files):
        shard = GGUF_SHARD.fullmatch(name)
        first.setdefault(name if shard is None else f"{shard['stem']}-of-{shard['count']}", name)
    files = list(first.values())
    if files:
        return Choice("full", folder, min(files, key=lambda name: (-_bits_in(name), name)))
    exported = onnx_export(names)
    return None if exported is None else Choice("full", folder, exported)


def _bits_in(name: str) -> int:
    """How many bits the type in the name of a GGUF file has; 0 if it names none."""
    types = list(_GGUF_TYPE.finditer(name))
    return int(types[-1]["float"] or types[-1]["bits"]) if types else 0


def gguf_shards(filenames: Collection[str], choice: Choice) -> list[str]:
    """The files that belong to a GGUF file, the first one first. Raises Skipped("corrupt_file") if some are missing."""
    shard = GGUF_SHARD.fullmatch(choice.name)
    if shard is None:
        return [choice.folder + choice.name]
    count = int(shard["count"])
    if not 0 < count <= _MOST_GGUF_SHARDS:
        raise Skipped("malformed", f"{shown(choice.name)} has {count} shards; up to {_MOST_GGUF_SHARDS} are read")
    paths = [f"{choice.folder}{shard['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    if missing := [path for path in paths if path not in filenames]:
        raise Skipped("corrupt_file", f"{len(missing)} of {count} shards are missing, {shown(missing[0])} first")
    return paths


def choose_conversion(filenames: Collection[str], folder: str) -> Choice | None:
    """The files of a safetensors conversion in a revision; None if it has none."""
    return next((Choice("full", folder, name) for name in _CONVERTED if folder + name in filenames), None)


def is_plain_name(name: object) -> bool:
    """Whether an untrusted file name is a plain name: not a path, so it cannot lead out of its folder."""
    return isinstance(name, str) and _PLAIN.fullmatch(name) is not None and name.strip(". ") != ""


def read_config(repository: Repository, choice: Choice, *, is_needed: bool = True) -> dict[str, Any]:
    """config.json of the weights' folder, else of the root; {} for an adapter without one.

    Raises Skipped("malformed") if a full model has no readable config.json, or has none and it ``is_needed``.
    """
    for path in (f"{choice.folder}config.json", "config.json"):
        if path in repository.filenames:
            try:
                config = repository.read_json(path, _MOST_CONFIG)
            except Skipped as problem:
                if choice.kind == "full" or problem.reason == "corrupt_file":
                    raise
                return {}
            if "model_type" not in config and isinstance(config.get("_class_name"), str):
                config["model_type"] = config["_class_name"]  # a component of diffusers
            if "model_type" not in config and isinstance(config.get("type"), str) and "input_features" in config:
                config["model_type"] = config["type"]  # a policy of LeRobot
            return config
    if choice.kind == "full" and is_needed:
        raise Skipped("malformed", "there is no config.json, so the architecture is unknown")
    return {}


def read_adapter_config(repository: Repository, choice: Choice, *, is_needed: bool = True) -> dict[str, Any] | None:
    """adapter_config.json in the factors' folder; None for a LoRA of an image model, which does not need it.

    Raises Skipped("malformed") if any other adapter lacks it, and that ``is_needed``.
    """
    path = f"{choice.folder}adapter_config.json"
    if path not in repository.filenames:
        if choice.name not in _ADAPTERS or not is_needed:
            return None
        raise Skipped(
            "malformed", f"there is {choice.name}, but no adapter_config.json, so it is unknown how to apply it"
        )
    return repository.read_json(path, _MOST_CONFIG)
