"""The change of each block matrix by an adapter: factors where it has low rank, else a function of the weights.

The formulas are those by which PEFT 0.21 (tuners/*/layer.py) and mlx-lm merge; docs/guide/adapters.md lists them with
their papers. In every formula W is (out, in): adapters do not depend on how a checkpoint stores its matrices. A change
that depends on W is computed from the weights that the adapter was trained on: the base's, or those of its parent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from indexer.checkpoints.adapter import AdapterModule, AdapterPlan, adapter_plan, read_modules, whole_weights
from indexer.checkpoints.architectures.architecture import Architecture, load_architecture
from indexer.checkpoints.architectures.layout import Layout, Matrix
from indexer.checkpoints.checkpoint import Checkpoint
from indexer.deltas.base import BaseMatrices
from indexer.deltas.delta import DenseDelta, LoraDelta
from indexer.deltas.rotations import boft, hra, oft_blocks, rotated
from indexer.deltas.rounding import RoundingChoice
from indexer.errors import Skipped
from indexer.names import DeltaKey
from indexer.untrusted import shown

# A product of factors is kept as factors up to this share of the rank that the matrix can have.
_FACTORS_UP_TO = 0.5
# PEFT's defaults (tuners/fourierft/config.py, tuners/vera/config.py).
_FOURIER_SEED, _FOURIER_SCALE = 777, 150.0
_VERA_KEY = 0
# The largest number of cells of VeRA's matrices that are drawn again if a file does not hold them.
_MOST_DRAWN = 1 << 28
_ON_BASE_ONLY = "what it subtracted depends on the weights it was trained on, and those are not the base's"


@dataclass(frozen=True)
class WeightDelta:
    """δW as a function: ``change`` takes W (out, in) float32, which it does not write to, and returns δW float32.

    ``rows``: the A (r, in) of a LoRA inside, if there is one.
    """

    key: DeltaKey
    change: Callable[[torch.Tensor], torch.Tensor]
    rows: torch.Tensor | None = None


def adapter_deltas(
    checkpoint: Checkpoint,
    architecture: Architecture,
    layout: Layout,
    weight_of: Callable[[DeltaKey], torch.Tensor],
    *,
    on_base: bool = True,
    factors_a: dict[str, torch.Tensor] | None = None,
    only: Container[DeltaKey] | None = None,
) -> Iterator[LoraDelta | WeightDelta]:
    """Stream the changes that an adapter makes. Matrices that it does not change do not appear.

    - ``layout`` and ``weight_of``: the base's matrices, and their weights (out, in).
    - ``on_base``: whether the adapter was trained on these weights.
    - ``factors_a`` receives A (rank, in), as stored, of every module of a LoRA, by path.
    - ``only``: read only the modules that change one of these matrices, with all matrices of each module.

    Raises Skipped for factors whose shapes do not match the base, for values that are not finite, and for changes that
    cannot be computed without the weights of the model that the adapter was trained on.
    """
    plan = adapter_plan(checkpoint)
    located = architecture.locate_modules(plan.modules, layout)
    if plan.start is not None and not on_base and located:
        raise Skipped("adapter_unsupported", f"{_ON_BASE_ONLY}: init_lora_weights {plan.start}")
    redrawn: dict[str, torch.Tensor] = {}
    if plan.peft_type == "VERA" and located and set(plan.shared) != {"vera_A", "vera_B"}:
        redrawn = _redrawn_matrices(checkpoint, plan, located)
    paths = {path for path, matrices in located.items() if _is_in(only, matrices)}
    for module in read_modules(checkpoint, paths):
        for name, tensor in module.parts.items():
            if not torch.isfinite(tensor).all():
                raise Skipped("not_finite", f"the adapter's {shown(module.path)} holds NaN or infinite values ({name})")
        if factors_a is not None and plan.peft_type == "LORA":
            factors_a[module.path] = module.parts["lora_A"].clone()
        matrices = located[module.path]
        parts = {name: tensor.to(torch.float32) for name, tensor in module.parts.items()} | redrawn
        factors = _factors(plan, module, parts, matrices, weight_of)
        magnitudes = parts.get("lora_magnitude_vector")
        for matrix in matrices:
            lengths = None if magnitudes is None else _rows(magnitudes.reshape(-1, 1), matrix, module.path)
            if factors is not None:
                a, b = matrix.extract_lora(*factors)
                if lengths is None:
                    yield LoraDelta(matrix.key, a, b, module.scale)
                else:
                    change = _dora(partial(_plus_product, a, b * module.scale), lengths)
                    yield WeightDelta(matrix.key, change, rows=parts.get("lora_A"))
            else:
                change = _function(plan, module, parts, matrix)
                if lengths is not None:
                    change = _dora(partial(_plus_change, change), lengths)
                yield WeightDelta(matrix.key, change)
    yield from _saved_matrices(checkpoint, architecture, layout, weight_of, only)


def deltas_on(
    checkpoint: Checkpoint,
    base: BaseMatrices,
    *,
    on_base: bool = True,
    factors_a: dict[str, torch.Tensor] | None = None,
    only: Container[DeltaKey] | None = None,
) -> Iterator[LoraDelta | WeightDelta]:
    """``adapter_deltas`` with a stored base."""
    architecture = load_architecture(str(base.config["model_type"]))
    yield from adapter_deltas(
        checkpoint, architecture, base.layout, base.matrix, on_base=on_base, factors_a=factors_a, only=only
    )


def dense(
    delta: WeightDelta, base: torch.Tensor, below: torch.Tensor | None = None, *, with_weights: bool = False
) -> DenseDelta:
    """The change of a matrix whose weights are ``base`` (out, in), added to the change ``below`` if there is one.

    Raises Skipped("not_finite") if it overflows.
    """
    reference = base.to(torch.float32)
    change = delta.change(reference if below is None else reference + below)
    if below is not None:
        change = change + below
    norm = float(torch.linalg.vector_norm(change))
    inner = float(torch.dot(change.flatten(), reference.flatten()))
    if not (math.isfinite(norm) and math.isfinite(inner)):
        raise Skipped("not_finite", f"the adapter's delta of {delta.key} overflows")
    weight = reference + change if with_weights else None
    return DenseDelta(delta.key, change, norm, inner, torch.empty(0), 0, weight)


def _factors(
    plan: AdapterPlan,
    module: AdapterModule,
    parts: Mapping[str, torch.Tensor],
    matrices: tuple[Matrix, ...],
    weight_of: Callable[[DeltaKey], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A (k, in) and B (out of the module, k) without the scale; None if the change is not a product of factors."""
    kind = plan.peft_type
    if kind == "LORA":
        a, b = parts["lora_A"], parts["lora_B"]
        if plan.start is None:
            return a, b
        if module.scale == 0:
            raise Skipped("malformed", f"{shown(module.path)} starts from the base's weights and is applied with 0")
        first_a, first_b = _initial_product(
            plan.start, _module_weight(matrices, weight_of), len(a), matrices[0].transposed
        )
        # The initial product times the scale was subtracted from the base: PiSSA divides by the scale, OLoRA does not.
        initial_scale = 1 / module.scale if plan.start == "pissa" else 1.0
        if (first_b.shape[0], first_a.shape[1]) != (b.shape[0], a.shape[1]):
            raise Skipped("shape_mismatch", f"the factors of {shown(module.path)} do not have the shape of the base's")
        return torch.cat((a, first_a)), torch.cat((b, -initial_scale * first_b), dim=1)
    if kind == "ADALORA":
        return parts["lora_A"] * parts["lora_E"], parts["lora_B"]
    if kind == "VERA":
        width, rank = matrices[0].shape[1], parts["vera_lambda_d"].numel()
        shared_a, shared_b = parts["vera_A"], parts["vera_B"]
        rows = parts["vera_lambda_b"].numel()
        fits = shared_a.ndim == shared_b.ndim == 2 and len(shared_a) == shared_b.shape[1] == rank
        if not fits or shared_a.shape[1] < width or len(shared_b) < rows:
            raise Skipped("malformed", f"the shared matrices do not fit the vectors of {shown(module.path)}")
        a = parts["vera_lambda_d"].reshape(-1, 1) * shared_a[:, :width]
        return a, parts["vera_lambda_b"].reshape(-1, 1) * shared_b[:rows]
    if kind in ("LOHA", "LOKR"):
        (b1, a1), (b2, a2) = _products(kind, parts)
        shape = (len(b1), a1.shape[1]) if kind == "LOHA" else (len(b1) * len(b2), a1.shape[1] * a2.shape[1])
        if kind == "LOHA" and shape != (len(b2), a2.shape[1]):
            raise Skipped("malformed", f"the two products of {shown(module.path)} have different shapes")
        expected = (matrices[0].stored_rows, matrices[0].shape[1])
        if shape != expected:
            message = f"the adapter's {shown(module.path)} makes {shape}, the base's matrix is {expected}"
            raise Skipped("shape_mismatch", message)
        if len(a1) * len(a2) > _FACTORS_UP_TO * min(shape):
            return None
        if kind == "LOHA":
            # (B1 A1) ∘ (B2 A2): every product of a column of B1 with one of B2, and the same of the rows of A.
            return (a1[:, None] * a2[None]).flatten(0, 1), (b1[:, :, None] * b2[:, None]).flatten(1, 2)
        # (B1 A1) ⊗ (B2 A2) = (B1 ⊗ B2)(A1 ⊗ A2)
        return torch.kron(a1, a2), torch.kron(b1, b2)
    return None


def _function(
    plan: AdapterPlan, module: AdapterModule, parts: Mapping[str, torch.Tensor], matrix: Matrix
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The change of one matrix as a function of its weights."""
    kind, path, (out, width) = plan.peft_type, module.path, (matrix.stored_rows, matrix.shape[1])

    def wrong_shape(parts_in_words: str) -> Skipped:
        return Skipped(
            "shape_mismatch", f"{parts_in_words} of the adapter's {shown(path)} do not fit the base's {out} × {width}"
        )

    if kind in ("LOHA", "LOKR"):
        (b1, a1), (b2, a2) = _products(kind, parts)

        def product(weight: torch.Tensor) -> torch.Tensor:
            first, second = b1 @ a1, b2 @ a2
            return module.scale * _rows(first * second if kind == "LOHA" else torch.kron(first, second), matrix, path)

        return product
    if kind == "IA3":
        scales = parts["ia3_l"].flatten()
        # PEFT stores (out, 1), or (1, in) for modules whose input is scaled (feedforward_modules).
        is_input = tuple(parts["ia3_l"].shape) == (1, width) and not (width == 1 and out == 1)
        if not is_input and tuple(parts["ia3_l"].shape) != (out, 1):
            raise wrong_shape("the scales")
        scaling = scales[None] if is_input else _rows(scales[:, None], matrix, path)
        return lambda weight: weight * (scaling - 1)
    if kind == "OFT":
        blocks = oft_blocks(plan.config, parts["oft_R"], width, path)
        return lambda weight: rotated(weight, blocks) - weight
    if kind == "BOFT":
        return boft(parts["boft_R"], _rows(parts["boft_s"].reshape(-1, 1), matrix, path), width, wrong_shape)
    if kind == "HRA":
        directions = parts["hra_u"]
        if directions.ndim != 2 or len(directions) != width or directions.shape[1] > width:
            raise wrong_shape("the reflections")
        return hra(directions, is_orthonormal=plan.config.get("apply_GS") is True)
    if kind == "FOURIERFT":
        spectrum = parts["fourierft_spectrum"].flatten()
        seed, scale = plan.config.get("random_loc_seed", _FOURIER_SEED), plan.config.get("scaling", _FOURIER_SCALE)
        if type(seed) is not int or type(scale) not in (int, float) or not abs(scale) < 1e30 or not 0 <= seed < 1 << 63:
            raise Skipped("malformed", "random_loc_seed or scaling in adapter_config.json is not a number")
        if len(spectrum) > out * width:
            raise wrong_shape("the frequencies")

        def fourier(weight: torch.Tensor) -> torch.Tensor:
            positions = torch.randperm(out * width, generator=torch.Generator().manual_seed(seed))[: len(spectrum)]
            values = torch.zeros(out * width).index_put_((positions,), spectrum).reshape(out, width)
            return _rows(torch.fft.ifft2(values).real * scale, matrix, path)

        return fourier
    raise AssertionError(kind)


def _saved_matrices(
    checkpoint: Checkpoint,
    architecture: Architecture,
    layout: Layout,
    weight_of: Callable[[DeltaKey], torch.Tensor],
    only: Container[DeltaKey] | None,
) -> Iterator[WeightDelta]:
    """The changes of block matrices that the adapter saves whole (``modules_to_save``, or mlx-lm's ``full``)."""
    stored_names = {name.removesuffix(".weight"): stored for name, stored in whole_weights(checkpoint).items()
             if name.endswith(".weight")}  # fmt: skip
    located = architecture.locate_modules(list(stored_names), layout)
    paths_to_read = [path for path, matrices in located.items() if _is_in(only, matrices)]
    paths = {stored_names[path]: path for path in paths_to_read}
    roundings = RoundingChoice()
    for name, tensor in checkpoint.stream(paths):
        for matrix in located[paths[name]]:
            saved = matrix.extract(tensor).clone()
            reference = roundings.reference(saved, weight_of(matrix.key))
            difference = saved.float() - reference
            if not torch.isfinite(difference).all():
                raise Skipped("not_finite", f"the tensor {shown(name)} holds NaN or infinite values")
            if not difference.any():
                continue  # some trainers save frozen weights together with the factors
            yield WeightDelta(matrix.key, _replacing(difference, weight_of(matrix.key)))


def _is_in(only: Container[DeltaKey] | None, matrices: tuple[Matrix, ...]) -> bool:
    return only is None or any(matrix.key in only for matrix in matrices)


def _replacing(difference: torch.Tensor, base: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The change from any weights to a saved matrix, which differs from ``base`` by ``difference``."""
    return lambda weight: difference - (weight - base.to(torch.float32))


def _rows(of_module: torch.Tensor, matrix: Matrix, path: str) -> torch.Tensor:
    """The rows of its module that belong to a matrix. Raises Skipped("shape_mismatch")."""
    if of_module.shape[0] != matrix.stored_rows:
        raise Skipped(
            "shape_mismatch",
            f"the adapter's {shown(path)} has {of_module.shape[0]} rows, the base {matrix.stored_rows}",
        )
    return matrix.rows.take(of_module) if matrix.rows else of_module


def _module_weight(matrices: tuple[Matrix, ...], weight_of: Callable[[DeltaKey], torch.Tensor]) -> torch.Tensor:
    """The weight of a module (out, in) float32, put together from its matrices."""
    if matrices[0].rows is None:
        return weight_of(matrices[0].key).to(torch.float32)
    weight = torch.zeros(matrices[0].stored_rows, matrices[0].shape[1])
    for matrix in matrices:
        assert matrix.rows is not None
        weight[matrix.rows.take(torch.arange(len(weight)))] = weight_of(matrix.key).to(torch.float32)
    return weight


def _initial_product(
    start: str, weight: torch.Tensor, rank: int, transposed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The factors A and B that were subtracted from W: its leading triplets (PiSSA), or Q_r R_r of W = Q R (OLoRA)."""
    if start == "pissa":
        u, s, vh = torch.linalg.svd(weight, full_matrices=False)
        return s[:rank, None] * vh[:rank], u[:, :rank]
    # PEFT decomposes the matrix in its orientation in memory.
    q, r = torch.linalg.qr(weight.mT if transposed else weight)
    return (q[:, :rank].mT, r[:rank].mT) if transposed else (r[:rank], q[:, :rank])


Product = tuple[torch.Tensor, torch.Tensor]  # B and A


def _products(kind: str, parts: Mapping[str, torch.Tensor]) -> tuple[Product, Product]:
    """The two products B @ A that LoHa multiplies element by element and LoKr by Kronecker's product.

    If LoKr stores a matrix itself instead of its factors, the other factor is an identity.
    """
    if kind == "LOHA":
        return (parts["hada_w1_a"], parts["hada_w1_b"]), (parts["hada_w2_a"], parts["hada_w2_b"])

    def product(number: int) -> Product:
        matrix = parts.get(f"lokr_w{number}")
        if matrix is None:
            return parts[f"lokr_w{number}_a"], parts[f"lokr_w{number}_b"]
        if matrix.ndim != 2:
            raise Skipped("malformed", f"lokr_w{number} of the adapter is not a matrix")
        rows, columns = matrix.shape
        return (torch.eye(rows), matrix) if rows <= columns else (matrix, torch.eye(columns))

    return product(1), product(2)


def _plus_product(a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.addmm(weight, b, a)


def _plus_change(change: Callable[[torch.Tensor], torch.Tensor], weight: torch.Tensor) -> torch.Tensor:
    return weight + change(weight)


def _dora(
    turn: Callable[[torch.Tensor], torch.Tensor], magnitudes: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The change from W to ``turn`` (W) with rows of the lengths ``magnitudes`` (out, 1)."""

    def change(weight: torch.Tensor) -> torch.Tensor:
        turned = turn(weight)
        lengths = torch.linalg.vector_norm(turned, dim=1, keepdim=True)
        return turned * (magnitudes / lengths) - weight

    return change


def _redrawn_matrices(
    checkpoint: Checkpoint, plan: AdapterPlan, located: Mapping[str, tuple[Matrix, ...]]
) -> dict[str, torch.Tensor]:
    """VeRA's shared random matrices from their seed, where a file does not hold them (tuners/vera/model.py).

    They have the size of the largest module, so all modules must be known. Raises Skipped.
    """
    lengths = [math.prod(checkpoint.tensors[names["vera_lambda_b"]].shape) for names in plan.modules.values()]
    ranks = [math.prod(checkpoint.tensors[names["vera_lambda_d"]].shape) for names in plan.modules.values()]
    widths = [matrix.shape[1] for matrices in located.values() for matrix in matrices]
    seed = plan.config.get("projection_prng_key", _VERA_KEY)
    size = max(ranks) * (max(widths, default=0) + max(lengths))
    if type(seed) is not int or not 0 <= seed < 1 << 63 or set(located) != set(plan.modules) or size > _MOST_DRAWN:
        why = "its shared random matrices are not in the file (save_projection), and cannot be drawn again"
        raise Skipped("adapter_unsupported", why)
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for part, shape in (("vera_A", (max(ranks), max(widths))), ("vera_B", (max(lengths), max(ranks)))):
        bound = math.sqrt(6 / shape[1])
        drawn[part] = torch.empty(shape).uniform_(-bound, bound, generator=generator)
    return drawn
