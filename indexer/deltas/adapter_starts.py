"""The start of a checkpoint's adapter, and the change of its factors A by training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.adapter import AdapterPlan, adapter_plan
from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.checkpoints.checkpoint import Checkpoint
from indexer.deltas.base import BaseMatrices
from indexer.deltas.starts.search import Search, in_usual_seeds
from indexer.deltas.starts.start import Distribution, LoraModule, draws_of
from indexer.names import DeltaKey
from indexer.records.adapter_start import NORMAL, UNIFORM, AdapterStart

Floats = NDArray[np.float32]
# Up to this distance from the start, relative to it, A may only have been rounded to its dtype.
_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@dataclass(frozen=True)
class Learned:
    """The leading singular values ``s`` (k,) of A − A₀ of a module, and its right singular vectors ``v`` (in, k)."""

    s: Floats
    v: Floats


def adapter_start(
    checkpoint: Checkpoint,
    base: BaseMatrices,
    factors_a: Mapping[str, torch.Tensor],
    rank: int,
    search: Search = in_usual_seeds,
) -> tuple[AdapterStart | None, dict[DeltaKey, Learned]]:
    """The start of an adapter, None if it is not found; and A − A₀ of each matrix whose start is known.

    ``factors_a``: A (r, in) by module path. ``rank``: how many singular triplets of A − A₀ are kept. ``search`` finds
    the start.
    """
    if not factors_a:
        return None, {}
    plan = adapter_plan(checkpoint)
    if plan.start is not None:
        return AdapterStart(plan.start), {}
    if plan.is_mlx:  # it has another random number generator
        return None, {}
    located = load_architecture(str(base.config["model_type"])).locate_modules(plan.modules, base.layout)
    order = {matrix.key: number for number, matrix in enumerate(base.layout.matrices)}
    paths = sorted(factors_a, key=lambda path: min(order[matrix.key] for matrix in located[path]))
    modules = [_module(checkpoint, plan, path) for path in paths]

    def factor(path: str) -> Floats:
        return factors_a[path].float().numpy()

    for distribution in _distributions(plan):
        start = search(modules, factor, distribution)
        if start is not None:
            break
    else:
        return None, {}
    learned: dict[DeltaKey, Learned] = {}
    is_trained = start.distance > _ROUNDING[max(factors_a.values(), key=lambda factor: factor.element_size()).dtype]
    for module, initial in draws_of(start, modules) if is_trained else ():
        _, s, vt = np.linalg.svd((factor(module.path) - initial).astype(np.float64), full_matrices=False)
        singular = Learned(s[:rank].astype(np.float32), vt[:rank].T.astype(np.float32))
        learned |= {matrix.key: singular for matrix in located[module.path]}
    located_modules = [module for module in modules if module.path in start.offsets]
    first = min(located_modules, key=lambda module: start.offsets[module.path])
    return (
        AdapterStart(
            generator=start.scheme.distribution,
            seed=start.seed & 0xFFFFFFFF,
            offset=start.offset,
            prefix=start.offset - start.scheme.words_before(first),
            with_weights=start.scheme.weights > 0,
            found=len(start.offsets),
            modules=len(modules),
            distance=start.distance,
            has_learned=is_trained,
        ),
        learned,
    )


def _module(checkpoint: Checkpoint, plan: AdapterPlan, path: str) -> LoraModule:
    names = plan.modules[path]
    (rank, inputs), (outputs, _) = (checkpoint.tensors[names[part]].shape for part in ("lora_A", "lora_B"))
    return LoraModule(path, rank, inputs, outputs)


def _distributions(plan: AdapterPlan) -> tuple[Distribution, ...]:
    """The possible distributions of A₀. Files without a configuration come from diffusers (normal) or kohya."""
    stated = plan.config.get("init_lora_weights", True)
    if stated == "gaussian":
        return (NORMAL,)
    if isinstance(stated, str):  # "eva", "orthogonal", "mica": from data or by another algorithm
        return ()
    return (UNIFORM,) if plan.config else (UNIFORM, NORMAL)
