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
# Memory that a profile takes in addition to the weights: activations of a probe, and the sums of a regression.
WORKING_BYTES = 256 << 20
Normalisation = tuple[list[float], list[float]]
# Keys of a config that name code, or ask for another way to compute.
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
    """A model in memory. ``tokenizer`` is None if it has none.

    ``stack`` is "encoder" if it has two stacks (``layers`` are the encoder's), else empty.
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
        """From what ``load`` or ``load_untrained`` returned. Raises Skipped if it cannot be profiled."""
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
    """Read and load a model; ``base`` returns the weights that an adapter is merged into.

    ``tokenizer`` is used if the model has none of its own; ``memory``: bytes that the model may take.

    Raises Skipped if these files can never be profiled, Failed if another try may work.
    """
    opened = open_checkpoint(
        version.model, commit=version.commit, filenames=version.filenames, relation=version.relation
    )
    with closing(opened) as checkpoint:
        # The weights once as stored and once as float32.
        infos = checkpoint.tensors.values()
        needed = sum(info.nbytes + 4 * math.prod(info.shape) for info in infos) + WORKING_BYTES
        if checkpoint.kind == "full" and memory is not None and needed > memory:
            raise Failed("out_of_memory", f"it needs {needed >> 20} MiB of memory, and {memory >> 20} MiB are free")
        if checkpoint.kind != "adapter":
            weights = _full_weights(checkpoint)
        elif base is not None:
            weights = merged_weights(checkpoint, base())
        else:
            raise Skipped("adapter_unsupported", "it is an adapter, and its base is not known")
        own = tokenizer_of(checkpoint) or tokenizer
        normalisation = _normalisation(checkpoint)
    return Subject.of(
        load(weights.tensors, weights.config),
        version.model.id,
        weights.config,
        commit=checkpoint.commit,
        notes=weights.notes,
        tokenizer=own,
        normalisation=normalisation,
        device=device,
    )


def read_weights(version: ModelVersion) -> FullWeights:
    """All tensors of a full checkpoint. Raises Skipped and Failed as reading does."""
    opened = open_checkpoint(version.model, commit=version.commit, filenames=version.filenames)
    with closing(opened) as checkpoint:
        return _full_weights(checkpoint)


def download_base(version: ModelVersion) -> None:
    """Keep a base's weights on this machine (those on the Hub in its cache), where every later read finds them.

    Raises Skipped and Failed as reading does.
    """
    checkpoint = open_checkpoint(version.model, commit=version.commit, filenames=version.filenames)
    checkpoint.close()
    if not checkpoint.is_remote:
        return
    version.model.source.keep(version.model, checkpoint.commit, [file.name for file in checkpoint.files])


def _normalisation(checkpoint: Checkpoint) -> Normalisation | None:
    """Mean and standard deviation of pixels by channel, if the repository has valid ones."""
    try:
        content = checkpoint.read_small("preprocessor_config.json", _MOST_PREPROCESSOR)
        said: Any = json.loads(content or b"null")
    except (ModelError, ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    found: list[Any] = [said.get("image_mean"), said.get("image_std")]
    for values in found:
        are_numbers = isinstance(values, list) and all(
            type(one) in (int, float) and math.isfinite(one) for one in values
        )
        if not are_numbers or not 1 <= len(values) <= 64:
            return None
    if any(one <= 0 for one in found[1]):
        return None
    return [float(one) for one in found[0]], [float(one) for one in found[1]]


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
            what = f"it needs code of its own repository (auto_map), which is never run; {skip.detail}"
            raise Skipped("remote_code", what) from skip
        notes = (f"its repository contains code; the library's own {model_type} was used instead",)
    for name in _EXPERTS:
        if isinstance(config.get(name), int) and config[name] > 1:
            raise Skipped("mixture_of_experts", f"{name} is {config[name]}: such models are not profiled")
    kept = {name: value for name, value in config.items() if name not in _LEFT_OUT and not name.startswith("_")}
    return kept, notes


def _full_weights(checkpoint: Checkpoint) -> FullWeights:
    """The weights of a full checkpoint. Raises Skipped as the readers do, Failed if another try may work."""
    config, notes = _clean_config(checkpoint.config)
    names = [name for name, info in checkpoint.tensors.items() if info.dtype in READABLE]
    # The reader uses a tensor's memory again, so each is copied.
    return FullWeights({name: tensor.clone() for name, tensor in checkpoint.stream(names)}, config, notes)


def merged_weights(adapter: Checkpoint, base: FullWeights) -> FullWeights:
    """The base with an adapter merged: W + δW in float32. The base's own tensors are not changed.

    Raises Skipped if the adapter changes something that cannot be merged.
    """
    architecture = load_architecture(str(base.config.get("model_type")))
    layout = architecture.locate({name: tuple(one.shape) for name, one in base.tensors.items()}, base.config)
    plan = adapter_plan(adapter)
    located = architecture.locate_modules(plan.modules, layout)
    changed: dict[str, torch.Tensor] = {}

    def weight_of(key: DeltaKey) -> torch.Tensor:
        matrix = layout.by_key[key]
        return matrix.extract(base.tensors[matrix.tensor])

    for found in adapter_deltas(adapter, architecture, layout, weight_of):
        target = layout.by_key[found.key]
        if isinstance(found, LoraDelta):
            delta = found.scale * (found.b @ found.a)
        else:
            delta = found.change(weight_of(found.key).float())
        if not torch.isfinite(delta).all():
            raise Skipped("not_finite", f"the adapter's delta of {found.key} overflows")
        if target.tensor not in changed:
            changed[target.tensor] = base.tensors[target.tensor].float().clone()
        whole = changed[target.tensor]
        oriented = whole.mT if target.transposed else whole
        if target.rows is None:
            oriented += delta
        else:
            oriented[target.rows.take(torch.arange(target.stored_rows))] += delta
    left = [path for path in plan.modules if path not in located]
    left += [what.partition(":")[0] for what in plan.passed_over]
    if left:
        some = ", ".join(shown(path, 60) for path in left[:3])
        raise Skipped(
            "adapter_unsupported", f"it changes modules that are not block matrices and are not merged: {some}"
        )
    _replace_whole_tensors(adapter, base, changed)
    return FullWeights({**base.tensors, **changed}, base.config, base.notes)


def _replace_whole_tensors(adapter: Checkpoint, base: FullWeights, changed: dict[str, torch.Tensor]) -> None:
    """Tensors that an adapter saves whole replace the base's. Heads, which the base lacks, are ignored."""
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
