"""Every model type of the installed transformers, built small and saved: the names of its matrices, as one JSON file.

Weights are allocated and never written, so widths may stay those of the default config: only the numbers of layers,
experts and tokens are made small, in all nested configs. Names in memory and in files differ in transformers 5, so
the names are taken where ``save_pretrained`` would write its file. Each type is built in a forked process of its own, with
limits of time and memory: a few die or never end.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import multiprocessing
import os
import re
import resource
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.errors import Skipped

LAYERS = 2
FEW = 4
# Keys of config.json for a number of layers, and of experts.
_LAYERS = re.compile(
    r"(\w+_)?(layers|n_layer|depth|num_blocks|layer_num|n_blocks)|(num_|n_)?(hidden_)?layers(_\w+)?|num_hidden_groups"
)
_NO_LAYERS = re.compile(r"\w*(conv|feat|first_k|cross|upsampl|postnet|prenet|per_|pyramid|resnet|skip|adapter)\w*")
_EXPERTS = re.compile(r"(moe_)?(num|n)_(local_|routed_|total_)?experts?|num_local_experts|moe_num_experts")
# Settings that lead to code of other packages, or to weights of other models.
_OFF = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
# Values that a config leaves out and its model needs.
_FILLED = {
    "vocab_size": 64, "prediction_length": 2, "context_length": 4, "pad_token_id": 0, "dropout_rate": 0.0,
    "dropout": 0.0, "layerdrop": 0.0,
}  # fmt: skip
_BY_TYPE: dict[str, dict[str, Any]] = {
    "reformer": {"is_decoder": True},
    "esm": {"position_embedding_type": "absolute"},
    "gemma3n_text": {"num_kv_shared_layers": 0},  # of few layers none is left to share from
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
}
# Models whose Swin cannot have fewer stages.
_WHOLE_BACKBONES = ("mask2former", "maskformer")
# Which mapping names the class that people upload, most specific first.
_HEADS = (
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT", "MODEL_FOR_MULTIMODAL_LM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ", "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_MASKED_LM", "MODEL_FOR_PRETRAINING",
    "MODEL_FOR_CTC", "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION", "MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION",
    "MODEL_FOR_IMAGE_CLASSIFICATION", "MODEL_FOR_OBJECT_DETECTION", "MODEL_FOR_UNIVERSAL_SEGMENTATION",
    "MODEL_FOR_SEMANTIC_SEGMENTATION", "MODEL_FOR_DEPTH_ESTIMATION", "MODEL_FOR_VIDEO_CLASSIFICATION",
    "MODEL_FOR_AUDIO_CLASSIFICATION", "MODEL_FOR_TEXT_TO_SPECTROGRAM", "MODEL_FOR_TEXT_TO_WAVEFORM",
    "MODEL_FOR_MASK_GENERATION", "MODEL_FOR_TIME_SERIES_PREDICTION", "MODEL",
)  # fmt: skip


class NoModelError(Exception):
    """There is no model to build; the message says why."""


def saved_model(
    model_type: str,
) -> tuple[str, dict[str, tuple[int, ...]], dict[str, tuple[int, ...]], dict[str, Any]]:
    """The class that was built, the shapes of its tensors as saved and in memory, by their names, and its config.json.

    Raises NoModelError, or whatever transformers raises.
    """
    config = small_config(model_type)
    maker = model_class(model_type, config)
    with torch.device("meta"):
        model = maker(config)
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    model.tie_weights()
    written: dict[str, tuple[int, ...]] = {}

    def keep(tensors: dict[str, torch.Tensor], *_: object, **__: object) -> None:
        written.update({name: tuple(tensor.shape) for name, tensor in tensors.items()})

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(transformers.modeling_utils, "safe_save_file", keep),
    ):
        model.save_pretrained(folder, max_shard_size="1TB")
    held = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return maker.__name__, written, held, model.config.to_dict()


def model_class(model_type: str, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class whose checkpoints people upload: one with a head if a mapping names one, else the bare one."""
    for mapping in _HEADS:
        name = getattr(modeling_auto, f"{mapping}_MAPPING_NAMES", {}).get(model_type)
        name = name[0] if isinstance(name, tuple | list) else name
        found = getattr(transformers, name, None) if name else None
        if inspect.isclass(found) and issubclass(found, PreTrainedModel):
            return found
    # Parts of other models have no mapping: the largest class for just this config.
    module_name = type(config).__module__.replace(".configuration_", ".modeling_")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise NoModelError("transformers has no PyTorch model of it") from error
    candidates = [
        each
        for each in vars(module).values()
        if inspect.isclass(each)
        and issubclass(each, PreTrainedModel)
        and each.__dict__.get("config_class", getattr(each, "config_class", None)) is type(config)
        and not each.__name__.endswith(("PreTrainedModel", "PretrainedModel"))
    ]
    if not candidates:
        raise NoModelError("it is the config of a part, and no model is saved with it")
    return max(
        candidates, key=lambda each: ("ForConditionalGeneration" in each.__name__, each.__name__.endswith("Model"))
    )


def small_config(model_type: str) -> PreTrainedConfig:
    """The default config of a model type with few layers, experts and tokens. Raises NoModelError."""
    maker = CONFIG_MAPPING[model_type]
    try:
        config = maker()
    except Exception as error:
        raise NoModelError(f"its config has no defaults ({type(error).__name__})") from error
    for key, value in _BY_TYPE.get(model_type, {}).items():
        setattr(config, key, value)
    for one in _configs(config, 0):
        _shrink(one)
        _fill(one)
    if model_type in _WHOLE_BACKBONES:
        config.backbone_config = maker().backbone_config
    return config


def _configs(config: PreTrainedConfig, depth: int) -> Iterator[PreTrainedConfig]:
    yield config
    if depth < 4:
        for value in list(vars(config).values()):
            if isinstance(value, PreTrainedConfig):
                yield from _configs(value, depth + 1)


def _fill(config: PreTrainedConfig) -> None:
    values = vars(config)
    heads, width = getattr(config, "num_attention_heads", None), getattr(config, "hidden_size", None)
    if type(heads) is int and type(width) is int:
        if values.get("num_key_value_heads", 0) is None:
            config.num_key_value_heads = heads
        if values.get("head_dim", 0) is None:
            config.head_dim = width // heads
    for key, value in _FILLED.items():
        if values.get(key, 0) is None or ("drop" in key and not hasattr(config, key)):
            setattr(config, key, value)


def _shrink(config: PreTrainedConfig) -> None:
    values = vars(config)
    for key, value in list(values.items()):
        if isinstance(value, transformers.TimmBackboneConfig):  # needs a package of its own; a ResNet has its place
            stages = [f"stage{number}" for number in range(1, 5)][-max(1, len(value.out_indices or ())) :]
            setattr(config, key, transformers.ResNetConfig(depths=[LAYERS] * 4, out_features=stages))
    counts = {
        key: value
        for key, value in values.items()
        if _LAYERS.fullmatch(key) and not _NO_LAYERS.fullmatch(key) and type(value) is int and value > LAYERS
    }
    # Where layers are of several kinds, there must be enough of them to meet each kind.
    kinds = next(
        (values[key] for key in ("layer_types", "layers_block_type") if isinstance(values.get(key), list)), None
    )
    least = LAYERS
    if kinds:
        least = max(LAYERS, next(n for n in range(1, len(kinds) + 1) if set(kinds[:n]) == set(kinds)))
    for key, value in list(values.items()):
        if key in counts:
            setattr(config, key, min(value, least))
        elif (
            isinstance(value, list) and len(value) > least and len(value) in counts.values() and key != "architectures"
        ):
            setattr(config, key, value[:least])
        elif _EXPERTS.fullmatch(key) and type(value) is int:
            setattr(config, key, min(value, FEW))
        elif key in ("num_experts_per_tok", "moe_topk", "top_k_experts") and type(value) is int:
            setattr(config, key, min(value, 2))
        elif key == "depths" and isinstance(value, list):
            setattr(config, key, [min(one, LAYERS) if type(one) is int else one for one in value])
        elif key in _OFF and value:
            setattr(config, key, _OFF[key])


SECONDS = 90
MEMORY = 96 << 30  # of addresses; most of them are never written
_NUMBER = re.compile(r"(?<![^.])(\d+)(?![^.])")
_FUSED_EXPERTS = re.compile(r"\.experts\.|\.mlp\.experts|\.block_sparse_moe\.(in|out)put_linear")
# Values of config.json that say how fused matrices divide.
_COUNTS = re.compile(
    r"(num_|n_)?(attention_|key_value_|kv_)?heads?(_kv)?|n_head|n_head_kv|multi_query|new_decoder_architecture"
)


def sweep(chosen: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
    """Model type → the class built and its ``matrices``, or the ``reason`` why there is none."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    found = {}
    for model_type in chosen or sorted(CONFIG_MAPPING_NAMES):
        found[model_type] = in_own_process(describe, model_type)
        print(f"{model_type:40} {found[model_type].get('reason', '')[:90]}", file=sys.stderr)
    return found


def describe(model_type: str) -> dict[str, Any]:
    """One entry of the file: what ``saved_model`` saves, numbered matrices only."""
    try:
        name, shapes, held, config = saved_model(model_type)
    except NoModelError as error:
        return {"reason": str(error)}
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return {"reason": f"{type(error).__name__}: {lines[0][:200] if lines else 'no message'}"}
    numbered = {each: shape for each, shape in shapes.items() if is_layer_matrix(each, shape)}
    counts = _counts(model_type, config)
    live = {each: shape for each, shape in held.items() if is_layer_matrix(each, shape)}
    entry: dict[str, Any] = {"class": name, "matrices": folded(numbered)}
    if live.keys() != numbered.keys():
        entry["modules"] = folded(live)
    return entry | ({"config": counts} if counts else {})


def _counts(model_type: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Those values of a config.json that data files use: numbers of heads, and what the type's own file names."""
    named: set[str] = set()
    with contextlib.suppress(Skipped):
        architecture = load_architecture(model_type)
        named.update(*architecture.counts.values(), architecture.switches)
        for stack in architecture.stacks:
            named.update((stack.depth,), stack.types, (variant.last for part in stack.parts for variant in part))
    found = {
        key: value
        for key, value in config.items()
        if (isinstance(value, int | bool) if _COUNTS.fullmatch(key) else key in named and value is not None)
    }
    text = config.get("text_config")
    is_nested = any(not _COUNTS.fullmatch(key) for key in named if key) or (any(named) and not found)
    if is_nested and isinstance(text, dict):
        found["text_config"] = _counts(model_type, text)
    return found


def is_layer_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is a matrix in a numbered layer; fused experts, matrices in one tensor, count as well."""
    if not _NUMBER.search(name) or name.endswith((".bias", "_bias")):
        return False
    return len(shape) == 2 or (len(shape) == 3 and _FUSED_EXPERTS.search(name) is not None)


def folded(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """The names and shapes in a short form, which :func:`unfolded` inverts.

    ``layers.0.q.weight`` and ``layers.1.q.weight`` of 4 × 8 are ``{"layers.{0-1}": "q 4x8"}``; a name that does not end
    in ".weight" has a "!" behind it.
    """
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        groups.setdefault((_NUMBER.sub("{}", name), shape), []).append(tuple(map(int, _NUMBER.findall(name))))
    table: dict[str, list[str]] = {}
    for (pattern, shape), numbers in groups.items():
        axes = [sorted(set(axis)) for axis in zip(*numbers, strict=True)]
        is_grid = sorted(numbers) == list(product(*axes)) and all(axis[-1] - axis[0] == len(axis) - 1 for axis in axes)
        ranges = [f"{{{axis[0]}-{axis[-1]}}}" if len(axis) > 1 else f"{axis[0]}" for axis in axes]
        for each in [ranges] if is_grid else [[str(number) for number in one] for one in numbers]:
            head, _, rest = pattern.partition("{}")
            rest = rest.removeprefix(".").format(*each[1:])
            rest = rest.removesuffix(".weight") if rest.endswith(".weight") else f"{rest}!"
            table.setdefault(head + each[0], []).append(f"{rest} {'x'.join(map(str, shape))}")
    return {head: " ".join(sorted(rests)) for head, rests in sorted(table.items())}


def unfolded(table: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """The inverse of :func:`folded`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head, rests in table.items():
        words = rests.split(" ")
        for rest, sizes in zip(words[::2], words[1::2], strict=True):
            ending = rest[:-1] if rest.endswith("!") else f"{rest}.weight"
            name = f"{head}.{ending}" if ending else head
            pieces = re.split(r"\{(\d+)-(\d+)\}", name)
            axes = [range(int(low), int(high) + 1) for low, high in zip(pieces[1::3], pieces[2::3], strict=True)]
            for numbers in product(*axes):
                between = [piece for pair in zip(map(str, numbers), pieces[3::3], strict=True) for piece in pair]
                shapes["".join([pieces[0], *between])] = tuple(int(size) for size in sizes.split("x"))
    return shapes


def in_own_process(work: Callable[[str], dict[str, Any]], argument: str) -> dict[str, Any]:
    """``work(argument)`` in a forked process with limits; what went wrong there is the ``reason``."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(work, argument, sender), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(SECONDS):
            return {"reason": f"building it takes more than {SECONDS} seconds"}
        return dict(json.loads(receiver.recv()))
    except EOFError:
        process.join(5)
        return {"reason": f"the process that builds it ends with {process.exitcode}"}
    finally:
        process.kill()
        process.join()
        receiver.close()


def _run(work: Callable[[str], dict[str, Any]], argument: str, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    sender.send(json.dumps(work(argument)))
