"""Adapters in files: which kind they are, which tensors belong to which module, and how strongly they are applied.

The readable adapters are those of PEFT (``adapter_model.safetensors``) that change weights, those of mlx-lm
(``adapters.safetensors``), and those of image and video models, which diffusers, kohya's sd-scripts or LyCORIS saved
and only their names identify. ``indexer.weights.adapter_plans`` tells them apart;
``indexer.deltas.adapter_deltas`` computes δW from what is read here. docs/adapters.md has the formulas and their
sources. Adapters that change no weights, or whose change cannot be computed from their files and the base, are skipped
with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from indexer.untrusted import shown
from indexer.weights.adapter_forms import FORMS, MARKER, SAVED_WHOLE, checked_number, rank_of
from indexer.weights.adapter_plans import MLX, AdapterPlan, is_mlx, loose_plan, mlx_plan, peft_plan
from indexer.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class AdapterModule:
    """The tensors of one module, by the names that PEFT has for them, as stored.

    ``path`` is the module's name in the base model, ``scale`` the factor of its change.
    """

    path: str
    parts: Mapping[str, torch.Tensor]
    scale: float


def stated_base(config: Mapping[str, Any] | None) -> object:
    """The base that adapter_config.json names, as written there: PEFT's key, or mlx-lm's."""
    config = config or {}
    found = config.get("base_model_name_or_path")
    return config.get("model") if found is None and "fine_tune_type" in config else found


def read_modules(checkpoint: Checkpoint, only: Collection[str] | None = None) -> Iterator[AdapterModule]:
    """Stream the modules of an adapter in file order, or ``only`` those with these paths.

    Everything is checked before the first tensor is read. A tensor is held until the others of its module arrive; in
    files written by PEFT they are neighbours.

    Raises Skipped: ``adapter_unsupported``, ``malformed``, ``unreadable_dtype``, ``corrupt_file``; or Failed.
    """
    plan = adapter_plan(checkpoint)
    form = FORMS[plan.peft_type]
    shared = dict.fromkeys(plan.shared, torch.empty(0))
    kinds = {name: part for part, name in plan.shared.items()}
    for name, tensor in checkpoint.stream(kinds):
        shared[kinds[name]] = tensor.clone()
    wanted = {path: names for path, names in plan.modules.items() if only is None or path in only}
    place_of = {name: (path, part) for path, names in wanted.items() for part, name in names.items()}
    waiting: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in checkpoint.stream(place_of):
        path, part = place_of[name]
        found = waiting.setdefault(path, {})
        found[part] = tensor.mT if plan.is_mlx and tensor.ndim == 2 else tensor
        if len(found) == len(wanted[path]):
            del waiting[path]
            scale = plan.scales[path]
            if (alpha := found.pop("alpha", None)) is not None and (rank := rank_of(form, found)):
                scale = checked_number(float(alpha), f"alpha of {shown(path)}") / rank
            yield AdapterModule(path, {**found, **shared}, scale)


def whole_weights(checkpoint: Checkpoint) -> dict[str, str]:
    """Tensors of an adapter that replace one of the base's (``modules_to_save``, resized embeddings, biases).

    Returns their names in the file, by their names in the base model. ``read_modules`` does not yield them.
    """
    found: dict[str, str] = {}
    if checkpoint.adapter_config is None:
        return found
    of_mlx = is_mlx(checkpoint.adapter_config)
    for name in checkpoint.tensors:
        is_factor = MLX.fullmatch(name) if of_mlx else MARKER.search(name)
        if not is_factor:
            found[SAVED_WHOLE.sub("", name.removeprefix("base_model.model.").replace(".original_module", ""))] = name
    return found


# A plan is needed several times, and an untrusted header may make it slow to compute.
_plan_of: WeakKeyDictionary[Checkpoint, AdapterPlan] = WeakKeyDictionary()


def adapter_plan(checkpoint: Checkpoint) -> AdapterPlan:
    """The plan of an adapter, computed once. Raises Skipped."""
    if checkpoint not in _plan_of:
        config = checkpoint.adapter_config
        if config is None:
            _plan_of[checkpoint] = loose_plan(checkpoint)
        else:
            _plan_of[checkpoint] = mlx_plan(checkpoint, config) if is_mlx(config) else peft_plan(checkpoint, config)
    return _plan_of[checkpoint]
