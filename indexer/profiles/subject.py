"""One model to be profiled, read from a folder or the Hub, with its adapter merged.

Weights are read by this project's own readers: nothing is unpickled, and no code of the repository is run. Everything
that could name code is removed from the config.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

from indexer.checkpoints.adapter import adapter_plan, whole_weights
from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.checkpoints.checkpoint import Checkpoint, open_checkpoint
from indexer.checkpoints.stored_tensor import READABLE
from indexer.deltas.adapter_deltas import adapter_deltas
from indexer.deltas.delta import LoraDelta
from indexer.errors import Failed, ModelError, Skipped
from indexer.names import DeltaKey
from indexer.profiles.layers import HookedLayers
from indexer.profiles.loading import layers_of, load, load_untrained
from indexer.profiles.tokenizer import IsolatedTokenizer, tokenizer_of
from indexer.records.identity import ModelVersion
from indexer.untrusted import shown

_MOST_PREPROCESSOR = 1 << 20
# Memory of a profile in addition to the weights: activations of a probe, and the sums of a regression.
WORKING_BYTES = 256 << 20
Normalisation = tuple[list[float], list[float]]
# Keys of a config that name code, or choose another implementation.
_LEFT_OUT = frozenset(
    {
        "auto_map",
        "architectures",
        "quantization_config",
        "quantised",
        "compression_config",
        "torch_dtype",
        "dtype",
        "attn_implementation",
        "experts_implementation",
        "custom_pipelines",
        "use_kernels",
        "torchscript",
        "output_hidden_states",
        "output_attentions",
        "return_dict",
        "use_return_dict",
        "trust_remote_code",
        # Heads are not profiled, and transformers makes lists and dicts of this many labels.
        "num_labels",
        "id2label",
        "label2id",
        "problem_type",
        "task_specific_params",
        "pruned_heads",
        "per_layer_config",
    }
)
# If one of these is above 1, the model is a mixture of experts.
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok")


@dataclass(frozen=True)
class FullWeights:
    """All tensors of a model by their names in the checkpoint, and its config without anything that names code."""

    tensors: dict[str, torch.Tensor]
    config: dict[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """A model in memory.

    ``tokenizer``: None if it has none. ``stack``: "encoder" if it has two stacks (``layers`` are the encoder's), else
    "".
    """

    name: str
    commit: str | None
    model: Any
    layers: HookedLayers
    config: Mapping[str, Any]
    stack: str = ""
    notes: tuple[str, ...] = ()
    tokenizer: IsolatedTokenizer | None = None
    normalisation: Normalisation | None = None

    @classmethod
    def of(
        cls,
        loaded: tuple[Any, str],
        name: str,
        config: Mapping[str, Any],
        *,
        commit: str | None = None,
        notes: tuple[str, ...] = (),
        tokenizer: IsolatedTokenizer | None = None,
        normalisation: Normalisation | None = None,
        device: str = "cpu",
    ) -> Subject:
        """From the result of ``load`` or ``load_untrained``. Raises Skipped if it cannot be profiled."""
        model, stack = loaded
        model = model.to(device).eval().requires_grad_(False)
        special_ids = tokenizer.special_ids if tokenizer else ()
        layers = layers_of(model, config, stack, special_ids=special_ids, normalisation=normalisation)
        if stack:
            notes = (*notes, "the layers of its encoder; those of the decoder also depend on a second input")
        return cls(name, commit, model, layers, config, stack, notes, tokenizer, normalisation)

    def twin(self, seed: int, device: str) -> Subject:
        """The same architecture with fresh weights."""
        return Subject.of(
            load_untrained(self.config, seed),
            f"{self.name} (untrained)",
            self.config,
            commit=self.commit,
            tokenizer=self.tokenizer,
            normalisation=self.normalisation,
            device=device,
        )


def read_subject(
    version: ModelVersion,
    base: Callable[[], FullWeights] | None = None,
    *,
    device: str = "cpu",
    tokenizer: IsolatedTokenizer | None = None,
    memory: int | None = None,
) -> Subject:
    """Read and load a model.

    ``base`` returns the weights into which an adapter is merged. ``tokenizer`` is used if the model has none of its
    own. ``memory``: bytes that the model may take.

    Raises Skipped if these files can never be profiled, Failed if another try may work.
    """
    opened = open_checkpoint(
        version.model, commit=version.commit, filenames=version.filenames, relation=version.relation
    )
    with closing(opened) as checkpoint:
        # The memory holds the weights as stored, and as float32.
        infos = checkpoint.tensors.values()
        bytes_needed = sum(info.nbytes + 4 * math.prod(info.shape) for info in infos) + WORKING_BYTES
        if checkpoint.kind == "full" and memory is not None and bytes_needed > memory:
            raise Failed(
                "out_of_memory", f"it needs {bytes_needed >> 20} MiB of memory, and {memory >> 20} MiB are free"
            )
        if checkpoint.kind != "adapter":
            weights = _full_weights(checkpoint)
        elif base is not None:
            weights = merged_weights(checkpoint, base())
        else:
            raise Skipped("adapter_unsupported", "it is an adapter, and its base is not known")
        own_tokenizer = tokenizer_of(checkpoint) or tokenizer
        normalisation = _normalisation(checkpoint)
    return Subject.of(
        load(weights.tensors, weights.config),
        version.model.id,
        weights.config,
        commit=checkpoint.commit,
        notes=weights.notes,
        tokenizer=own_tokenizer,
        normalisation=normalisation,
        device=device,
    )


def read_weights(version: ModelVersion) -> FullWeights:
    """All tensors of a full checkpoint. Raises Skipped and Failed as ``open_checkpoint``."""
    opened = open_checkpoint(version.model, commit=version.commit, filenames=version.filenames)
    with closing(opened) as checkpoint:
        return _full_weights(checkpoint)


def download_base(version: ModelVersion) -> None:
    """Keep a base's weights on this machine for later reads; those on the Hub are kept in its cache.

    Raises Skipped and Failed as ``open_checkpoint``.
    """
    checkpoint = open_checkpoint(version.model, commit=version.commit, filenames=version.filenames)
    checkpoint.close()
    if not checkpoint.is_remote:
        return
    version.model.source.keep(version.model, checkpoint.commit, [file.name for file in checkpoint.files])


def _normalisation(checkpoint: Checkpoint) -> Normalisation | None:
    """Mean and standard deviation of pixels by channel, if the repository has valid values."""
    try:
        content = checkpoint.read_small("preprocessor_config.json", _MOST_PREPROCESSOR)
        preprocessor: Any = json.loads(content or b"null")
    except (ModelError, ValueError, RecursionError):
        return None
    if not isinstance(preprocessor, dict):
        return None
    mean_and_deviation: list[Any] = [preprocessor.get("image_mean"), preprocessor.get("image_std")]
    for values in mean_and_deviation:
        are_numbers = isinstance(values, list) and all(
            type(value) in (int, float) and math.isfinite(value) for value in values
        )
        if not are_numbers or not 1 <= len(values) <= 64:
            return None
    mean, deviation = ([float(value) for value in values] for values in mean_and_deviation)
    return None if any(value <= 0 for value in deviation) else (mean, deviation)


# ---- weights


def _clean_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The config without keys that name code, and a note if it had some.

    Raises Skipped: ``remote_code`` if the model needs code of its repository, ``mixture_of_experts``.
    """
    model_type = config.get("model_type")
    notes: tuple[str, ...] = ()
    if config.get("auto_map"):
        try:
            load_architecture(str(model_type))
        except Skipped as skip:
            problem = f"it needs code of its own repository (auto_map), which is never run; {skip.detail}"
            raise Skipped("remote_code", problem) from skip
        notes = (f"its repository contains code; the library's own {model_type} was used instead",)
    for name in _EXPERTS:
        if isinstance(config.get(name), int) and config[name] > 1:
            raise Skipped("mixture_of_experts", f"{name} is {config[name]}: such models are not profiled")
    clean = {name: value for name, value in config.items() if name not in _LEFT_OUT and not name.startswith("_")}
    return clean, notes


def _full_weights(checkpoint: Checkpoint) -> FullWeights:
    """The weights of a full checkpoint. Raises Skipped, and Failed if another try may work."""
    config, notes = _clean_config(checkpoint.config)
    names = [name for name, info in checkpoint.tensors.items() if info.dtype in READABLE]
    # The reader reuses the memory of a tensor, so each is copied.
    return FullWeights({name: tensor.clone() for name, tensor in checkpoint.stream(names)}, config, notes)


def merged_weights(adapter: Checkpoint, base: FullWeights) -> FullWeights:
    """The base with an adapter merged: W + δW in float32. The base's own tensors are not changed.

    Raises Skipped if the adapter changes something that cannot be merged.
    """
    architecture = load_architecture(str(base.config.get("model_type")))
    layout = architecture.locate({name: tuple(tensor.shape) for name, tensor in base.tensors.items()}, base.config)
    plan = adapter_plan(adapter)
    located = architecture.locate_modules(plan.modules, layout)
    changed: dict[str, torch.Tensor] = {}

    def weight_of(key: DeltaKey) -> torch.Tensor:
        matrix = layout.by_key[key]
        return matrix.extract(base.tensors[matrix.tensor])

    for change in adapter_deltas(adapter, architecture, layout, weight_of):
        target = layout.by_key[change.key]
        if isinstance(change, LoraDelta):
            delta = change.scale * (change.b @ change.a)
        else:
            delta = change.change(weight_of(change.key).float())
        if not torch.isfinite(delta).all():
            raise Skipped("not_finite", f"the adapter's delta of {change.key} overflows")
        if target.tensor not in changed:
            changed[target.tensor] = base.tensors[target.tensor].float().clone()
        weight = changed[target.tensor]
        oriented = weight.mT if target.transposed else weight
        if target.rows is None:
            oriented += delta
        else:
            oriented[target.rows.take(torch.arange(target.stored_rows))] += delta
    not_merged = [path for path in plan.modules if path not in located]
    not_merged += [description.partition(":")[0] for description in plan.passed_over]
    if not_merged:
        examples = ", ".join(shown(path, 60) for path in not_merged[:3])
        raise Skipped(
            "adapter_unsupported", f"it changes modules that are not block matrices and are not merged: {examples}"
        )
    _replace_whole_tensors(adapter, base, changed)
    return FullWeights({**base.tensors, **changed}, base.config, base.notes)


def _replace_whole_tensors(adapter: Checkpoint, base: FullWeights, changed: dict[str, torch.Tensor]) -> None:
    """Replace the base's tensors by those that an adapter saves whole. Heads, which the base lacks, are ignored."""
    if not whole_weights(adapter):
        return
    by_ending: dict[str, str] = {}
    for name in base.tensors:
        parts = name.split(".")
        for start in range(len(parts) - 1):
            by_ending.setdefault(".".join(parts[start:]), name)
    plain = {stored: name for name, stored in whole_weights(adapter).items()}
    for name, tensor in adapter.stream(plain):
        parts = plain[name].split(".")
        endings = (".".join(parts[start:]) for start in range(len(parts) - 1))
        target = next((by_ending[ending] for ending in endings if ending in by_ending), None)
        if target is not None and base.tensors[target].shape == tensor.shape:
            changed[target] = tensor.clone()
        elif target is not None:
            raise Skipped("shape_mismatch", f"the adapter's {shown(name)} is {tuple(tensor.shape)[:8]}, the base's is "
                          f"{tuple(base.tensors[target].shape)}")  # fmt: skip
