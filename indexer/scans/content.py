"""What the weights of one model hold, without any base: hashes, numbers that are not finite, and tensors of zeros.

Small checkpoints are read whole. Of larger ones some rows of every matrix are read; whether two of them are equal is
decided by reading both whole, where these rows are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.adapter import AdapterPlan, read_modules, whole_weights
from indexer.checkpoints.checkpoint import Checkpoint
from indexer.checkpoints.stored_tensor import DTYPES, READABLE
from indexer.errors import Skipped
from indexer.names import CONNECTIONS
from indexer.sources.tree_rows import ends_digest
from indexer.untrusted import shown

# A checkpoint of so many bytes is read whole: of this machine (adapters and others), and over a network.
MOST_WHOLE_ADAPTER, MOST_WHOLE, MOST_WHOLE_REMOTE = 256 << 20, 64 << 20, 8 << 20
_MOST_REMOTE_MATRICES = 24
_ROWS = 2  # in each of three stripes of a matrix

# Sketches of changes: how many numbers, how many random directions of its inputs stand for each matrix, and of how many
# modules of an adapter. The distance of two sketches is that of the changes to within a twentieth.
SKETCH_LENGTH = 1024
_DIRECTIONS, _MOST_MODULES = 8, 24

# By peft_type: the parts of a module that make its change zero, each of them alone, while all of its numbers are zero.
_OUTPUT_SIDE = {
    "LORA": ("lora_B",),
    "ADALORA": ("lora_B", "lora_E"),
    "LOHA": ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"),
    "LOKR": ("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b"),
    "OFT": ("oft_R",),
    "VERA": ("vera_lambda_b",),
}


@dataclass(frozen=True)
class Content:
    """The weights of a checkpoint, as far as they were read.

    Attributes:
        tensors: a hash of the names, shapes, dtypes and numbers of all tensors, whatever files they lie in.
        files: a hash of the sizes and the ends of the files.
        rounded: a hash of the same rows of all matrices, rounded to bfloat16.
        dtype: that of most bytes.
        is_whole: whether all numbers were read.
        checksums: sha256 of the files, where that is known without reading them.
        zeros: the names of the tensors that hold nothing but zeros.
    """

    tensors: str
    files: str
    rounded: str
    dtype: str
    is_whole: bool
    checksums: tuple[str, ...] = ()
    zeros: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ChangeSketch:
    """A change of weights in few numbers: ``numbers`` (SKETCH_LENGTH,), and its ``norm``.

    Only changes of the same ``group`` can be compared.
    """

    group: str
    norm: float
    numbers: NDArray[np.float32]


def read_content(checkpoint: Checkpoint, is_remote: bool, *, whole: bool = False) -> Content:
    """Read the weights. ``whole``: all of them, however many they are.

    Raises Skipped("not_finite") for NaN and infinite numbers, and ModelError where they cannot be read.
    """
    size = sum(file.size for file in checkpoint.files)
    stored = checkpoint.stored
    is_known = bool(checkpoint.conversion) or all(info.dtype_name in DTYPES for info in stored.values())
    most = MOST_WHOLE_REMOTE if is_remote else MOST_WHOLE_ADAPTER if checkpoint.kind == "adapter" else MOST_WHOLE
    is_whole = is_known and (whole or size <= most)
    hashes: dict[str, bytes] = {}
    rounded: dict[str, bytes] = {}
    zeros: set[str] = set()
    if is_whole and checkpoint.conversion:  # what is stored does not show the numbers, nor whether they are finite
        for name, tensor in _sampled(checkpoint, is_remote):
            _refuse_not_finite(name, tensor)
            rounded[name] = _hash(tensor.to(torch.bfloat16))
    for name, tensor in checkpoint.stream_stored() if is_whole else _sampled(checkpoint, is_remote):
        is_zero = False
        if tensor.dtype in READABLE:
            total = _refuse_not_finite(name, tensor)
            is_zero = is_whole and not total and not tensor.any()
        if is_zero:
            zeros.add(name)
        hashes[name] = _hash(tensor)
        if tensor.dtype in READABLE and tensor.ndim == 2 and name not in rounded:
            rows = tensor[_rows_of(len(tensor))] if is_whole else tensor
            rounded[name] = _hash(rows.to(torch.bfloat16))
    digest = hashlib.sha256()
    for name, info in sorted(stored.items()):
        described = f"{name} {info.dtype_name} {info.shape} {info.nbytes}\n"
        digest.update(described.encode("utf-8", "surrogatepass") + hashes.get(name, b""))
    for name in sorted(hashes.keys() - stored.keys()):  # rows of matrices whose names are others in the file
        digest.update(name.encode("utf-8", "surrogatepass") + hashes[name])
    files = "\n".join(ends_digest(source) for source in checkpoint.sources)
    coarse = hashlib.sha256()
    for name, hashed in sorted(rounded.items()):
        described = f"{name} {(checkpoint.tensors.get(name) or stored[name]).shape}\n"
        coarse.update(described.encode("utf-8", "surrogatepass") + hashed)
    checksums = [file.sha256 for file in checkpoint.files]
    return Content(
        tensors=digest.hexdigest(),
        files=hashlib.sha256(files.encode()).hexdigest(),
        rounded=coarse.hexdigest() if rounded else "",
        dtype=checkpoint.dtype,
        is_whole=is_whole,
        checksums=tuple(sorted(checksum for checksum in checksums if checksum)) if None not in checksums else (),
        zeros=frozenset(zeros),
    )


def _refuse_not_finite(name: str, tensor: torch.Tensor) -> float:
    """The sum of a tensor. Raises Skipped("not_finite")."""
    # The sum is not finite if one of the numbers is not: one pass, where asking for each takes two.
    total = float(tensor.sum(dtype=torch.float64))
    if not math.isfinite(total) and not torch.isfinite(tensor).all():
        raise Skipped("not_finite", f"its tensor {shown(name)} holds NaN or infinite values")
    return total


def _hash(tensor: torch.Tensor) -> bytes:
    content = tensor.contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(content.data if content.size else b"").digest()


@lru_cache(maxsize=256)
def _rows_of(rows: int) -> list[int]:
    """Rows at the beginning, in the middle and at the end of a matrix."""
    starts = {0, max(0, rows // 2 - 1), max(0, rows - _ROWS)}
    return sorted({row for start in starts for row in range(start, min(rows, start + _ROWS))})


def _sampled(checkpoint: Checkpoint, is_remote: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """``_rows_of`` the matrices."""
    names = [name for name, info in checkpoint.tensors.items() if info.dtype in READABLE and len(info.shape) == 2]
    if is_remote and len(names) > _MOST_REMOTE_MATRICES:
        places = np.linspace(0, len(names) - 1, _MOST_REMOTE_MATRICES).round().astype(int)
        names = [names[place] for place in places.tolist()]
    stripes = {}
    for name in names:
        if numbers := _rows_of(checkpoint.tensors[name].shape[0]):
            stripes[name] = [range(row, row + 1) for row in numbers]
    yield from checkpoint.stripes(stripes, CONNECTIONS)


def changes_nothing(checkpoint: Checkpoint, plan: AdapterPlan, content: Content) -> bool:
    """Whether an adapter adds zero to all matrices, as before training: a factor of each of its products is zero.

    Vectors that multiply the base's rows (DoRA), and matrices that are saved whole, may have been trained all the same.
    """
    parts = _OUTPUT_SIDE.get(plan.peft_type, ())
    if not plan.modules or not parts or plan.passed_over or whole_weights(checkpoint):
        return False
    return all(
        "lora_magnitude_vector" not in names
        and any(names[part] in content.zeros for part in parts if part in names)
        for names in plan.modules.values()
    )  # fmt: skip


def adapter_sketch(checkpoint: Checkpoint, plan: AdapterPlan) -> ChangeSketch | None:
    """The change that a LoRA makes; None for other adapters, whose change depends on the base.

    Of an adapter with many modules some are compared, spread over the file.
    """
    if plan.peft_type != "LORA" or plan.kind not in ("LoRA", "rsLoRA") or not plan.modules:
        return None
    paths = list(plan.modules)
    if len(paths) > _MOST_MODULES:
        places = np.linspace(0, len(paths) - 1, _MOST_MODULES).round().astype(int)
        paths = [paths[place] for place in places.tolist()]
    pieces: dict[str, NDArray[np.float32]] = {}
    for module in read_modules(checkpoint, paths):
        left, right = module.parts["lora_B"].float(), module.parts["lora_A"].float()
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
            return None
        product = left @ (right @ _directions(right.shape[1])) * module.scale
        pieces[f"{module.path} {left.shape[0]} {right.shape[1]}"] = product.numpy().ravel()
    if not pieces:
        return None
    names = sorted(pieces)
    group = hashlib.sha256("\n".join(names).encode("utf-8", "surrogatepass")).hexdigest()
    return sketch_of(f"adapter {group}", np.concatenate([pieces[name] for name in names]))


def sketch_of(group: str, change: NDArray[np.float32]) -> ChangeSketch | None:
    """The sketch of a change (n,), by CountSketch (Charikar, Chen & Farach-Colton, 2002); None where it is zero."""
    norm = math.sqrt(float(np.square(change, dtype=np.float64).sum()))
    if not norm or not math.isfinite(norm):
        return None
    buckets, signs = _hashes(len(change))
    numbers = np.bincount(buckets, weights=change * signs, minlength=SKETCH_LENGTH).astype(np.float32)
    return ChangeSketch(f"{group} {len(change)}", norm, numbers)


@lru_cache(maxsize=64)
def _directions(width: int) -> torch.Tensor:
    """(width, k) random directions, whose products with a matrix keep its norm on average."""
    drawn = torch.randn((width, _DIRECTIONS), generator=torch.Generator().manual_seed(width))
    return drawn / math.sqrt(_DIRECTIONS)


@lru_cache(maxsize=8)
def _hashes(length: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """The bucket and the sign of each number."""
    draw = np.random.default_rng(length)
    buckets = draw.integers(0, SKETCH_LENGTH, length)
    return buckets.astype(np.intp), draw.choice(np.array([-1.0, 1.0], np.float32), length)
