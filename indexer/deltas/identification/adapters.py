"""Evidence of an adapter's base in its tensors: their shapes, the lengths of the base's rows in a DoRA, and its span.

Shapes alone only leave out bases. Two kinds of adapters keep more of the weights that they were trained on. A DoRA
begins with the norms of the base's rows (arXiv 2402.09353), and training moves these little. A PiSSA begins with its
leading singular vectors (arXiv 2404.02948), and one that was converted to a plain LoRA holds them too. Both are
compared with the same layers of the base, and with its other layers, which are the null of just this pair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.adapter import AdapterPlan, adapter_plan, read_modules
from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.checkpoints.architectures.layout import Matrix
from indexer.checkpoints.checkpoint import Checkpoint
from indexer.deltas.identification.bases import ComparedBase
from indexer.errors import ModelError, Skipped
from indexer.names import DeltaKey
from indexer.untrusted import shown

MOST_MODULES = 8
# Limits: bytes read of an adapter's tensors, and numbers read of a base's matrices.
_MOST_BYTES = 8 << 20
_MOST_NUMBERS = 1 << 26
_TINY = 1e-12
# From this effect on the span of an adapter's directions is said to be the base's; a smaller one says nothing.
LEAST_SPAN = 0.4
_LEAST_RANGE = 0.05


@dataclass(frozen=True)
class AdapterFit:
    """How an adapter fits a base.

    ``modules`` of its modules are matrices of the base; ``reaches_last``: whether one of them is in the last layer, as
    is usual. ``magnitudes`` and ``span``: effects between 0, as for other layers, and 1; None where they say nothing.
    ``starts_from_base``: whether its configuration says that it began with directions of the base.
    """

    modules: int
    reaches_last: bool
    magnitudes: float | None = None
    span: float | None = None
    starts_from_base: bool = False


@dataclass(frozen=True)
class _Likeness:
    """How alike an adapter and one matrix are, and the adapter and the matrices of ``others`` layers."""

    own: float
    others: float


@dataclass
class AdapterTensors:
    """An adapter, compared with one base after another."""

    checkpoint: Checkpoint
    _parts: dict[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)

    @property
    def plan(self) -> AdapterPlan:
        """See ``adapter_plan``. Raises Skipped."""
        return adapter_plan(self.checkpoint)

    def compare(self, base: ComparedBase) -> AdapterFit:
        """Compare with one base. Raises Skipped with the reason if its shapes do not fit."""
        architecture = load_architecture(str(base.config.get("model_type")))
        plan = self.plan
        located = architecture.locate_modules(plan.modules, base.layout)
        if not located:
            first_path = next(iter(plan.modules), "")
            raise Skipped("missing_matrices", f"no module is named like one of its matrices ({shown(first_path, 80)})")
        for path, matrices in located.items():
            self._check_shapes(path, matrices)
        stack = next(iter(located.values()))[0].key.stack
        layers = {matrix.key.layer for matrices in located.values() for matrix in matrices if matrix.key.stack == stack}
        reaches_last = max(layers, default=-1) == base.layout.depth.get(stack, 0) - 1
        fit = AdapterFit(len(located), reaches_last)
        if base.is_sampled:
            return fit
        modules = _spread({path: matrices for path, matrices in located.items() if len(matrices) == 1}, MOST_MODULES)
        magnitudes, span = self._effects(modules, base) if len(modules) > 1 else (None, None)
        return AdapterFit(len(located), reaches_last, magnitudes, span, plan.start is not None)

    def _check_shapes(self, path: str, matrices: Sequence[Matrix]) -> None:
        """Raise Skipped("shape_mismatch") unless the factors make a matrix of this size."""
        names = self.plan.modules[path]
        shapes = {part: self.checkpoint.tensors[name].shape for part, name in names.items() if part != "alpha"}
        if self.plan.is_mlx:
            shapes = {part: shape[::-1] for part, shape in shapes.items()}
        rows, columns = matrices[0].stored_rows, matrices[0].shape[1]
        shape: tuple[int | None, int | None] = (None, None)
        if "lora_A" in shapes and "lora_B" in shapes:
            shape = shapes["lora_B"][0], shapes["lora_A"][1]
        elif "hada_w1_a" in shapes:
            shape = shapes["hada_w1_a"][0], shapes["hada_w1_b"][1]
        elif "vera_lambda_b" in shapes:
            shape = math.prod(shapes["vera_lambda_b"]), None
        elif "boft_s" in shapes:
            shape = math.prod(shapes["boft_s"]), None
        elif "hra_u" in shapes:
            shape = None, shapes["hra_u"][0]
        elif "lokr_w1" in shapes or "lokr_w1_a" in shapes:
            sides = [
                (shapes.get(f"lokr_{side}") or (shapes[f"lokr_{side}_a"][0], shapes[f"lokr_{side}_b"][1]))
                for side in ("w1", "w2")
            ]
            shape = sides[0][0] * sides[1][0], sides[0][1] * sides[1][1]
        elif "ia3_l" in shapes and math.prod(shapes["ia3_l"]) not in (rows, columns):
            shape = math.prod(shapes["ia3_l"]), None
        if shape[0] not in (None, rows) or shape[1] not in (None, columns):
            sizes = " × ".join("?" if size is None else str(size) for size in shape)
            raise Skipped("shape_mismatch", f"its {shown(path, 80)} is for {sizes}, the base's is {rows} × {columns}")

    def _effects(
        self, located: Mapping[str, Sequence[Matrix]], base: ComparedBase
    ) -> tuple[float | None, float | None]:
        """The effects of the magnitudes and of the span over some modules. Matrices of other layers are their null."""
        modules = [
            (path, matrices[0], parts)
            for path, matrices in located.items()
            if (parts := self._read(located).get(path)) is not None
        ]
        if not modules or not {"lora_A", "lora_B"} <= set(modules[0][2]):
            return None, None
        magnitudes: list[_Likeness] = []
        spans: list[_Likeness] = []
        spanned: list[tuple[torch.Tensor, int]] = []  # the weights, and how many directions were compared with them
        weight_of: dict[DeltaKey, torch.Tensor] = {}
        numbers_left = _MOST_NUMBERS
        layers = sorted({matrix.key.layer for _, matrix, _ in modules})
        for _, matrix, parts in modules:
            layer = matrix.key.layer
            other_layers = (*layers[layers.index(layer) + 1 :], *layers[: layers.index(layer)])[:2]
            keys = [DeltaKey(matrix.key.stack, number, matrix.key.family) for number in (layer, *other_layers)]
            for key in keys:
                base_matrix = base.layout.by_key.get(key)
                if (
                    base_matrix is not None
                    and base_matrix.shape == matrix.shape
                    and key not in weight_of
                    and numbers_left > 0
                ):
                    numbers_left -= math.prod(base_matrix.shape)
                    weight_of[key] = base.matrix(key).float()
            weights = [weight_of[key] for key in keys if key in weight_of]
            if len(weights) < 2 or keys[0] not in weight_of:
                continue
            lengths = parts.get("lora_magnitude_vector")
            if lengths is not None and lengths.numel() == len(weights[0]):
                of_adapter = lengths.float().flatten().numpy()
                likenesses = [
                    _likeness(of_adapter, torch.linalg.vector_norm(weight, dim=1).numpy()) for weight in weights
                ]
                magnitudes.append(_Likeness(likenesses[0], float(np.median(likenesses[1:]))))
            directions = parts["lora_A"].float()
            if 0 < len(directions) < min(weights[0].shape) // 2:
                spans.append(_span(directions, weights))
                spanned.append((weights[0], len(directions)))
            # The most energy that directions can hold takes longest to find, and seldom matters: without it the effect
            # of the first modules is at most this.
            is_plain = not magnitudes and self.plan.start is None
            if is_plain and (_effect(spans, [0.0] * len(spans)) or LEAST_SPAN) < LEAST_SPAN:
                return None, None
        return _effect(magnitudes, [1.0] * len(magnitudes)), _effect(spans, [_most_energy(*pair) for pair in spanned])

    def _read(self, paths: Mapping[str, object]) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """The tensors of some modules, as far as they are small enough."""
        unread = [path for path in paths if path not in self._parts]
        if unread:
            bytes_left = _MOST_BYTES
            paths_to_read = []
            for path in unread:
                bytes_left -= sum(self.checkpoint.tensors[name].nbytes for name in self.plan.modules[path].values())
                if bytes_left >= 0:
                    paths_to_read.append(path)
            for module in read_modules(self.checkpoint, paths_to_read):
                self._parts[module.path] = {part: tensor.clone() for part, tensor in module.parts.items()}
        return self._parts


def adapter_fit(tensors: AdapterTensors, base: ComparedBase) -> AdapterFit | str:
    """How it fits, or why it does not."""
    try:
        return tensors.compare(base)
    except ModelError as problem:
        return problem.detail


def _spread(located: Mapping[str, Sequence[Matrix]], count: int) -> dict[str, Sequence[Matrix]]:
    """Modules of the two families that have most of them, spread over the layers."""
    by_family: dict[str, list[str]] = {}
    for path, matrices in located.items():
        by_family.setdefault(matrices[0].key.family_key, []).append(path)
    spread: dict[str, Sequence[Matrix]] = {}
    for family in sorted(by_family, key=lambda name: (-len(by_family[name]), name))[:2]:
        paths = sorted(by_family[family], key=lambda path: located[path][0].key.layer)
        positions = np.linspace(0, len(paths) - 1, min(count // 2, len(paths))).round().astype(int)
        spread |= {paths[position]: located[paths[position]] for position in dict.fromkeys(positions.tolist())}
    return spread


def _likeness(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """How well the deviations from the mean agree: 1 minus their squared distance over that of unrelated ones."""
    deviations, other_deviations = first - first.mean(), second - second.mean()
    size = float(deviations @ deviations + other_deviations @ other_deviations)
    return float(2 * (deviations @ other_deviations) / size) if size > _TINY else 0.0


def _span(directions: torch.Tensor, weights: Sequence[torch.Tensor]) -> _Likeness:
    """The energy of W within the span of A's rows, in the module's layer and in others."""
    basis = torch.linalg.qr(directions.T).Q
    energies = [_energy(weight, basis) for weight in weights]
    return _Likeness(energies[0], float(np.median(energies[1:])))


def _most_energy(weight: torch.Tensor, count: int) -> float:
    """The energy of W within the span of ``count`` directions, at most: by a power iteration."""
    leading = torch.randn((weight.shape[1], count), generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        leading = torch.linalg.qr(weight.T @ (weight @ leading)).Q
    return _energy(weight, leading)


def _energy(weight: torch.Tensor, basis: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(weight @ basis) ** 2 / torch.linalg.vector_norm(weight) ** 2)


def _effect(values: Sequence[_Likeness], most: Sequence[float]) -> float | None:
    """The mean on the scale from other layers (0) to the base itself (1), which is ``most`` alike."""
    if len(values) < 2:
        return None
    own, others, largest = (
        float(np.mean(column))
        for column in ([likeness.own for likeness in values], [likeness.others for likeness in values], most)
    )  # fmt: skip
    return min((own - others) / max(largest - others, _LEAST_RANGE), 1.0)
