"""Builds the model of a ``model_type`` with few layers and reads the names and shapes that ``save_pretrained`` writes.

Weights are allocated and never written, so widths may stay those of the default config: only the numbers of layers,
experts and tokens are made small, in all nested configs. Names in memory and in files differ in transformers 5, so
the names are taken where ``save_pretrained`` would write its file.
"""

from __future__ import annotations

import importlib
import inspect
import re
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

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


def model_types() -> tuple[str, ...]:
    """Every ``model_type`` of the installed transformers, sorted."""
    return tuple(sorted(CONFIG_MAPPING_NAMES))


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
