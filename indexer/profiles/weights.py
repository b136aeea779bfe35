"""All weights of a model, read by this project's own readers, with adapters merged.

Nothing is unpickled and no code of the repository is run. Everything that could name code is removed from the config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from indexer.architectures.architecture import load_architecture
from indexer.errors import Skipped
from indexer.untrusted import shown
from indexer.weights.adapter import lora_paths, read_lora, whole_weights
from indexer.weights.checkpoint import Checkpoint
from indexer.weights.stored_tensor import READABLE

# Keys of a config that name code, or ask for another way to compute.
_LEFT_OUT = frozenset(
    {
        "auto_map",
        "architectures",
        "quantization_config",
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


def clean_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
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


def full_weights(checkpoint: Checkpoint) -> FullWeights:
    """The weights of a full checkpoint. Raises Skipped as the readers do, Failed if another try may work."""
    config, notes = clean_config(checkpoint.config)
    names = [name for name, info in checkpoint.tensors.items() if info.dtype in READABLE]
    # The reader uses a tensor's memory again, so each is copied.
    return FullWeights({name: tensor.clone() for name, tensor in checkpoint.stream(names)}, config, notes)


def merged_weights(adapter: Checkpoint, base: FullWeights) -> FullWeights:
    """The base with a LoRA adapter merged: W + s·B·A in float32. The base's own tensors are not changed.

    Raises Skipped if the adapter changes something that cannot be merged.
    """
    architecture = load_architecture(str(base.config.get("model_type")))
    layout = architecture.locate({name: tuple(one.shape) for name, one in base.tensors.items()}, base.config)
    located = architecture.locate_modules(lora_paths(adapter), layout)
    stored = {matrix.key: matrix for matrix in layout.matrices}
    changed: dict[str, torch.Tensor] = {}
    left: list[str] = []
    for module in read_lora(adapter):
        if module.path not in located:
            left.append(module.path)
            continue
        for matrix in located[module.path]:
            a, b = matrix.extract_lora(module.a, module.b)
            target = stored[matrix.key]
            delta = module.scale * (b.float() @ a.float())
            if not torch.isfinite(delta).all():
                raise Skipped("not_finite", f"the adapter's delta of {matrix.key} overflows")
            if target.tensor not in changed:
                changed[target.tensor] = base.tensors[target.tensor].float().clone()
            whole = changed[target.tensor]
            oriented = whole.mT if target.transposed else whole
            if target.rows is None:
                oriented += delta
            else:
                oriented[target.rows.take(torch.arange(target.stored_rows))] += delta
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
    stored = {name.split("base_model.model.")[-1]: name for name in adapter.tensors}
    for name, tensor in adapter.stream([one for one in stored.values() if ".lora_" not in one]):
        plain = name.removeprefix("base_model.model.").replace(".modules_to_save", "").replace(".default", "")
        parts = plain.split(".")
        endings = (".".join(parts[start:]) for start in range(len(parts) - 1))
        target = next((by_ending[ending] for ending in endings if ending in by_ending), None)
        if target is not None and base.tensors[target].shape == tensor.shape:
            changed[target] = tensor.clone()
        elif target is not None:
            raise Skipped("shape_mismatch", f"the adapter's {shown(name)} is {tuple(tensor.shape)[:8]}, the base's is "
                          f"{tuple(base.tensors[target].shape)}")  # fmt: skip
