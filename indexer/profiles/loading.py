"""Load a real model as layers: its weights in transformers' own class, never in code of its repository.

transformers loads a folder that is written here, from tensors that this project read. Missing tensors and shapes that
do not fit are refused before anything is measured.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.errors import Skipped
from indexer.profiles.layers import HookedLayers
from indexer.shared_state import SharedChange, ignored_warnings
from indexer.untrusted import shown

# Memory that a model may take besides its own weights (positions, masks). A config that needs more is wrong.
_SPARE_BYTES = 256 << 20
_SPARE_NUMBERS = 4 << 20  # of a table of positions that is not stored
# A number in a config above this, and above every dimension of the weights, cannot be a size of the model.
LARGEST_SIZE = 1 << 20
# Inputs are padded to a multiple of these, however short they are.
_LARGEST_PADDING = 4096
# Modules per tensor; activations and containers have no tensors. A config with more modules is wrong.
MODULES_BY_TENSOR, FEWEST_MODULES = 20, 2000
_LARGEST_SIDE = 1024  # pixels of an image; a probe holds 16
# Numbers in a config that are not sizes; positions that become a table are counted by `_allocated_bytes`.
_NO_SIZE = re.compile("token_id|position|n_ctx|max_seq|theta|rope|rotary|seed|sliding_window|distance")
_PADDING = re.compile("attention_window|block_size|block_length|radius|num_blocks|segment_means|landmarks")
# Parts that do not change the output of any layer.
_NEEDLESS = ("pooler", "head", "classifier", "lm_head", "cls", "score", "qa_outputs", "pre_classifier", "final_logits")
_PROFILED = ("", "encoder", "decoder")  # stacks
_REFUSED = {"input_values": "it takes sound", "input_features": "it takes sound"}


def load(weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> tuple[Any, str]:
    """Load a model; also returns "encoder" if it has two stacks, else "".

    Raises Skipped: ``missing_tensors`` with their names, ``shape_mismatch``, ``unknown_architecture``,
    ``layer_mismatch``, ``malformed`` for an impossible config.
    """
    from safetensors.torch import save_file
    from transformers import AutoModel

    configuration = _configuration(weights, config)
    depths = _checked_depth(weights, config, configuration)
    with tempfile.TemporaryDirectory(prefix="profile-") as folder, _quietly():
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
        save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        try:
            model, information = AutoModel.from_pretrained(
                folder,
                config=configuration,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
            )
        except (RuntimeError, ValueError, OSError, KeyError, TypeError, AttributeError) as error:
            text = shown(" ".join(str(error).split()), 200)
            reason = "shape_mismatch" if "size mismatch" in str(error) or "mismatched" in str(error) else "malformed"
            raise Skipped(reason, f"its weights cannot be loaded: {text}") from error
    missing = sorted(name for name in information["missing_keys"] if not set(name.split(".")) & set(_NEEDLESS))
    if missing:
        examples = ", ".join(shown(name, 80) for name in missing[:3])
        raise Skipped("missing_tensors", f"it lacks {len(missing)} tensors, for example {examples}")
    if information.get("mismatched_keys"):
        raise Skipped(
            "shape_mismatch", f"{len(information['mismatched_keys'])} tensors have other shapes than its config says"
        )
    return model, "encoder" if "encoder" in depths else ""


_SEEDED = threading.Lock()  # modules draw their weights from the one global generator of torch


def load_untrained(config: Mapping[str, Any], seed: int) -> tuple[Any, str]:
    """``load`` with new random weights, as a baseline for a trained model of this config."""
    from transformers import AutoModel

    configuration = _configuration({}, config)
    with _SEEDED, torch.random.fork_rng(devices=[]), _quietly():
        torch.manual_seed(seed)
        model = AutoModel.from_config(configuration, attn_implementation="eager", trust_remote_code=False)
    return model.float(), "encoder" if getattr(configuration, "is_encoder_decoder", False) else ""


def _configuration(weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> Any:
    """The config as transformers' own class.

    Numbers that no model of these weights can have are refused, before a class of transformers makes lists of them.
    Other names than the class's own parameters only become attributes, so their values are not checked.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    model_type = str(config.get("model_type"))
    architecture = load_architecture(model_type)
    if architecture.name == "clip" or any(stack.name not in _PROFILED for stack in architecture.stacks):
        raise Skipped("unsupported_input", f"it is a {model_type}: towers and stages side by side are not profiled")
    values = {name: value for name, value in config.items() if name != "model_type"}
    names: set[str] = set()
    if model_type in CONFIG_MAPPING:  # else transformers refuses it
        config_class = CONFIG_MAPPING[model_type]
        names = {*inspect.signature(config_class.__init__).parameters, *config_class.attribute_map}
    largest = max(LARGEST_SIZE, *(dimension for tensor in weights.values() for dimension in tensor.shape), 0)
    for name, value in values.items():
        if name not in names or _NO_SIZE.search(name):
            continue
        most = _LARGEST_PADDING if _PADDING.search(name) else largest
        inner = [value]
        while inner:
            item = inner.pop()
            if isinstance(item, dict | list):
                inner += item.values() if isinstance(item, dict) else item
            elif isinstance(item, int | float) and not -most <= item <= most:
                reason = "layer_mismatch" if "layer" in name else "shape_mismatch"
                raise Skipped(reason, f"its config.json says {name} is {shown(item, 20)}; up to {most} is profiled")
    try:
        with _quietly():
            return AutoConfig.for_model(model_type, **values)
    except Exception as error:
        text = shown(" ".join(str(error).split()), 160)
        raise Skipped("malformed", f"its config.json does not fit a {model_type}: {text}") from error


def _checked_depth(
    weights: Mapping[str, torch.Tensor], config: Mapping[str, Any], configuration: Any
) -> dict[str, int]:
    """The number of layers of each stack, by the tensors. Raises Skipped if the config contradicts them.

    The check comes before any memory is allocated.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    depth = load_architecture(str(config["model_type"])).locate(shapes, config).depth
    layers = depth.get("encoder", depth.get("", 0))
    stated = getattr(configuration, "num_hidden_layers", layers)
    if stated != layers and isinstance(getattr(configuration, "num_hidden_groups", None), int):
        raise Skipped("shared_layers", f"its {int(stated)} layers share the weights of {layers}: not profiled")
    if stated != layers:
        raise Skipped("layer_mismatch", f"its weights have {layers} layers, its config.json says {shown(stated, 20)}")
    decoder = getattr(configuration, "num_decoder_layers", None) or getattr(configuration, "decoder_layers", None)
    if "decoder" in depth and isinstance(decoder, int) and decoder > depth["decoder"]:
        raise Skipped("layer_mismatch", f"its decoder has {depth['decoder']} layers, its config.json says {decoder}")
    positions = getattr(configuration, "max_position_embeddings", None)
    width = getattr(configuration, "hidden_size", None)
    numbers = sum(tensor.numel() for tensor in weights.values())
    # Some classes compute a table of sines in Python, number by number. Rotary positions have no table.
    if isinstance(positions, int) and isinstance(width, int) and not hasattr(configuration, "rope_parameters"):
        if positions * width > numbers + _SPARE_NUMBERS:
            table = f"a table of positions has {positions} × {width} numbers, its weights have {numbers}"
            raise Skipped("shape_mismatch", f"by its config.json {table}")
    size = _allocated_bytes(configuration, FEWEST_MODULES + MODULES_BY_TENSOR * len(weights))
    # Half-precision weights are loaded as float32.
    stored = sum(tensor.nbytes for tensor in weights.values())
    if size > 4 * stored + _SPARE_BYTES:
        raise Skipped(
            "shape_mismatch", f"by its config.json the model takes {size >> 20} MiB, its weights are {stored >> 20} MiB"
        )
    return depth


def _allocated_bytes(configuration: Any, most: int) -> int:
    """The bytes of a model of this config, without allocating them.

    Raises Skipped if no model can be made, or it has more than ``most`` modules, which take memory even when empty.
    """
    from torch.nn.modules.module import register_module_module_registration_hook
    from transformers import AutoModel

    counted, thread = itertools.count(1), threading.get_ident()

    def count(*_: Any) -> None:
        if threading.get_ident() == thread and next(counted) > most:
            raise ValueError(f"it has more than {most} parts, and too few tensors for them")

    hook = register_module_module_registration_hook(count)
    try:
        with torch.device("meta"), _quietly():
            model = AutoModel.from_config(configuration, attn_implementation="eager", trust_remote_code=False)
    except Exception as error:
        text = shown(" ".join(str(error).split()), 160)
        raise Skipped("malformed", f"no model can be made from its config.json: {text}") from error
    finally:
        hook.remove()
    tensors = [*model.parameters(), *model.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def layers_of(
    model: Any,
    config: Mapping[str, Any],
    stack: str,
    *,
    special_ids: tuple[int, ...] = (),
    normalisation: tuple[list[float], list[float]] | None = None,
) -> HookedLayers:
    """The layers of a loaded model; if it has two stacks, of its encoder.

    ``special_ids`` are added to those of the config. ``normalisation``: mean and standard deviation of each channel.
    Raises Skipped: ``unsupported_input``, ``unknown_architecture``.
    """
    kind = getattr(model, "main_input_name", "input_ids")
    if kind in _REFUSED or hasattr(model.config, "num_frames"):
        raise Skipped(
            "unsupported_input", f"{_REFUSED.get(kind, 'it takes video')}; only text and image models are profiled"
        )
    blocks = _blocks(model, config, stack)
    part = model.get_encoder() if stack else model
    if kind == "pixel_values":
        return _image_layers(part, blocks, model.config, normalisation)
    parameters = inspect.signature(part.forward).parameters
    if "inputs_embeds" not in parameters:
        raise Skipped("unsupported_input", f"a {config.get('model_type')} does not take embeddings")
    options = {"use_cache": False} if "use_cache" in parameters else {}
    embedding = model.get_input_embeddings()
    vocabulary = embedding.weight
    if type(embedding) is not nn.Embedding:  # BART scales its embeddings
        with torch.no_grad():
            vocabulary = embedding(torch.arange(len(vocabulary), device=vocabulary.device))
    special = set(special_ids)  # and those of the config: padding, start, end, mask
    for name, value in config.items():
        if name.endswith("_token_id"):
            special |= {token for token in (value if isinstance(value, list) else [value]) if type(token) is int}
    return HookedLayers(
        lambda inputs: part(inputs_embeds=inputs, **options), blocks, vocabulary=vocabulary, special_ids=special
    )


def _blocks(model: Any, config: Mapping[str, Any], stack: str) -> list[nn.Module]:
    """The block modules of one stack, found by the architecture file that names their matrices.

    Raises Skipped if the architecture does not describe them, or one module serves as several layers.
    """
    architecture = load_architecture(str(config.get("model_type")))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    names: dict[int, list[str]] = {}
    for matrix in architecture.locate(shapes, config).matrices:
        if matrix.key.stack == stack:
            names.setdefault(matrix.key.layer, []).append(matrix.tensor)
    stated = getattr(model.config, "num_hidden_layers", len(names))
    if stated != len(names):
        raise Skipped("unknown_architecture", f"{stated} layers share the weights of {len(names)}: not profiled")
    blocks = []
    for layer in sorted(names):
        # The common prefix of its tensors, up to the block's number.
        parts = zip(*(name.split(".")[:-1] for name in names[layer]), strict=False)
        prefix = [column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, parts)]
        while prefix and not prefix[-1].isdigit():
            prefix.pop()  # T5 has a list of sublayers inside the block
        blocks.append(model.get_submodule(".".join(prefix)))
    return blocks


def _image_layers(
    model: Any, blocks: list[nn.Module], config: Any, normalisation: tuple[list[float], list[float]] | None
) -> HookedLayers:
    side = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
    size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
    if max(side, size) > _LARGEST_SIDE:
        raise Skipped("unsupported_input", f"its images are {size} pixels wide; up to {_LARGEST_SIDE} are profiled")
    channels = int(getattr(config, "num_channels", 3))
    mean, deviation = normalisation or ([0.5] * channels, [0.5] * channels)
    device = next(model.parameters()).device
    shape = (1, channels, 1, 1)
    middle = torch.tensor(mean[:channels], device=device).reshape(shape)
    unit = torch.tensor(deviation[:channels], device=device).reshape(shape)
    return HookedLayers(
        lambda pixels: model(pixel_values=(pixels - middle) / unit),
        blocks,
        patch=side,
        image_shape=(channels, size // side * side, size // side * side),
    )


@contextmanager
def _silent() -> Iterator[None]:
    """Silence the warnings and progress bars of transformers."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    shows_bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with ignored_warnings():
            yield
    finally:
        logging.set_verbosity(before)
        if shows_bars:
            logging.enable_progress_bar()


_quietly = SharedChange(_silent)
