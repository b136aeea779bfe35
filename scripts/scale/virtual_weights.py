"""Fine-tunes whose weights are a formula: any range of bytes of any file is computed by itself, from a seed.

Random numbers come from two tables (normal and uniform) that are read from a place which depends on what is drawn. Let T
be the normal table. An element e of a tensor of the base is mean + σ · T[place + e]. A matrix of a fine-tune is

    W = W_base + Σ_k c_k · l_k r_kᵀ + c · noise

where the right (input side) vectors r_k are drawn for all models (``COMMON``), for a data set (``DATASET``) and for the
model (``OWN``), the left ones l_k and the noise always for the model. A row of the embeddings is the base's times a decay,
plus a change where the data set holds the token often enough. All sums are element by element, so that the result does
not depend on the range that is asked for, nor on the version of BLAS.
"""

from __future__ import annotations

import bisect
import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.scale.population import COPIES, REPEATS, draw_labels
from scripts.scale.virtual_layout import (
    BYTES,
    EMBEDDING,
    HEAD,
    IDS,
    MASK,
    MATRIX,
    NORM,
    SHAPES,
    TRANSPOSED,
    Layout,
    Tensor,
    layouts,
)

Floats = NDArray[np.float32]
BASE = -1  # stands for the base where a model's number is expected

# Prime, so that rows of a large matrix, which wrap around, do not repeat.
_TABLE = 4_194_301
_PADDING = 1 << 17
# Elements computed at once: they stay in the processor's cache.
_AT_ONCE = 1 << 16
_BITS = (1 << 64) - 1

COMMON, DATASET, OWN = range(3)
# How many directions each part has, and where the k-th of them is read.
_DIRECTIONS = (3, 4, 5)
_STEP = 350_377
_SHARE_COMMON, _SHARE_NOISE = 0.2, 0.1
# Purposes of random numbers.
_BASE, _LEFT, _RIGHT, _NOISE, _TOPIC, _SEEN, _UNEVEN = range(7)


@dataclass(frozen=True)
class Plan:
    """What is drawn. Shares are of all models; what is left over is an ordinary fine-tune.

    ``half``, ``bfloat``: shares in F16 and BF16; a family whose base is in BF16 is in BF16 throughout.
    ``datasets``: that many data sets have equally many models each; None draws sizes as on the Hub. ``named``: the share of
    models whose card names the data set, None as on the Hub. ``norms``: smallest and largest ‖δW‖/‖W‖ of a model.
    """

    shape: str = "roberta-base"
    models: int = 100
    seed: int = 0
    half: float = 0.08
    bfloat: float = 0.07
    copies: float = COPIES
    duplicates: float = REPEATS
    unrelated: float = 0.01
    datasets: int | None = None
    named: float | None = None
    norms: tuple[float, float] = (0.01, 0.05)

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"unknown shape {self.shape!r}: one of {', '.join(SHAPES)}")
        shares = (self.half, self.bfloat, self.copies, self.duplicates, self.unrelated)
        if min(shares) < 0 or self.half + self.bfloat > 1 or self.copies + self.duplicates + self.unrelated > 0.9:
            raise ValueError("shares must not be negative, nor leave too few models that are ordinary fine-tunes")
        if self.models < 1 or (self.datasets is not None and self.datasets < 1):
            raise ValueError("at least one model and one data set are needed")


class Family:
    """A base and its fine-tunes, numbered from 0. Reading is thread-safe; nothing is kept of what was computed.

    ``kinds``: "finetune", "copy" (of the base), "duplicate" (of the model ``original``) or "unrelated" (another base).
    ``labels``: of the classifier; None where there is none.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.shape = SHAPES[plan.shape]
        count = plan.models
        rng = np.random.default_rng([plan.seed, 11])
        drawn = draw_labels(max(count, 2), plan.seed)
        self.authors = drawn.author[:count]
        self.datasets = drawn.dataset[:count].astype(np.int64)
        self.named = drawn.named[:count]
        if plan.datasets is not None:
            self.datasets = np.arange(count) % plan.datasets
        if plan.named is not None:
            self.named = rng.random(count) < plan.named
        # Which models are no ordinary fine-tunes.
        order = rng.permutation(count)
        kinds = np.full(count, "finetune", dtype="<U9")
        place = 0
        for kind, share in (("copy", plan.copies), ("duplicate", plan.duplicates), ("unrelated", plan.unrelated)):
            some = order[place : place + round(share * count)]
            kinds[some] = kind
            place += len(some)
        self.kinds: list[str] = kinds.tolist()
        self.original = np.arange(count)
        self.original[kinds == "copy"] = BASE
        ordinary = order[place:]
        repeats = np.flatnonzero(kinds == "duplicate")
        self.original[repeats] = ordinary[rng.integers(0, len(ordinary), len(repeats))]
        self.datasets[repeats] = self.datasets[self.original[repeats]]
        self.named[repeats] = self.named[self.original[repeats]]
        # What training did.
        self._dtypes = np.where(
            (chance := rng.random(count)) < plan.half, "F16", np.where(chance < plan.half + plan.bfloat, "BF16", "F32")
        )
        low, high = np.log(plan.norms)
        self.norms = np.exp(rng.uniform(low, high, count))
        self._alike = rng.uniform(0.3, 0.5, count)
        # Half of all models are trained without decay.
        decay = 10 ** rng.uniform(-6, -4, count) * (rng.random(count) < 0.5)
        self.decays = (1 - decay).astype(np.float32)
        self._tokens = 10 ** rng.uniform(3.5, 5.5, count) * self.shape.vocabulary / 50_265

    def dtype(self, model: int) -> str:
        """The dtype of a model's files."""
        source = self._source(model)
        if source == BASE or self.shape.dtype != "F32":
            return self.shape.dtype
        return str(self._dtypes[source])

    def labels(self, model: int) -> int | None:
        """How many classes the head tells apart."""
        source = self._source(model)
        return None if source == BASE or self.shape.family == "llama" else 2 + int(self.datasets[source]) % 20

    def files(self, model: int) -> tuple[Layout, ...]:
        """The files that hold a model's weights."""
        return layouts(self.shape, self.labels(model), self.dtype(model))

    def digest(self, model: int, path: str) -> str:
        """A stand-in for the sha256 of a file: equal where the bytes are, and not their true hash."""
        text = f"{self.plan.shape}|{self.plan.seed}|{self._source(model)}|{path}"
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, model: int, layout: Layout, start: int, stop: int) -> bytes:
        """Bytes ``start`` to ``stop`` of a file."""
        parts = [layout.header[start:stop]] if start < len(layout.header) else []
        at = max(start, len(layout.header))
        number = bisect.bisect_right(layout.starts, at) - 1
        while at < stop:
            tensor, dtype = layout.tensors[number], layout.dtypes[number]
            length, begin = BYTES[dtype], layout.starts[number]
            end = min(stop, begin + tensor.numbers * length)
            while at < end:
                first = (at - begin) // length
                last = min(-(-(end - begin) // length), first + _AT_ONCE)
                data = _stored(self.values(model, tensor, first, last), dtype)
                till = min(end, begin + last * length)
                skipped = at - begin - first * length
                parts.append(memoryview(data)[skipped : skipped + till - at])  # type: ignore[arg-type]
                at = till
            number += 1
        return b"".join(parts)

    def values(self, model: int, tensor: Tensor, first: int, last: int) -> NDArray[Any]:
        """Numbers ``first`` to ``last`` of a tensor, not yet rounded to the dtype of the file."""
        source = self._source(model)
        if tensor.role == IDS:
            return np.arange(first, last)
        if tensor.role == MASK:
            place = np.arange(first, last) % (tensor.shape[-1] ** 2)
            return (place % tensor.shape[-1] <= place // tensor.shape[-1]).astype(np.float32)
        if source == BASE:
            return self._base(tensor, BASE, first, last)
        if tensor.role == HEAD or self.kinds[source] == "unrelated":
            return self._base(tensor, source, first, last)
        base = self._base(tensor, BASE, first, last)
        if tensor.role in (MATRIX, TRANSPOSED):
            return base + self._change(source, tensor, first, last)
        if tensor.role == EMBEDDING:
            return self._embeddings(source, tensor, base, first, last)
        size = np.float32(self.norms[source] * _scale(tensor))
        return base + size * self._normal(first, last - first, _NOISE, source, tensor.key)

    def tensor(self, model: int, name: str) -> Tensor:
        """The tensor of that name in a model's files; KeyError where there is none."""
        found = [each for layout in self.files(model) for each in layout.tensors if each.name == name]
        if not found:
            raise KeyError(name)
        return found[0]

    def factors(self, model: int, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(rows, k) and (k, columns) whose product is the planted change of a matrix as stored, but for its noise."""
        source, tensor = self._source(model), self.tensor(model, name)
        if source == BASE or self.kinds[source] == "unrelated" or tensor.role not in (MATRIX, TRANSPOSED):
            raise ValueError(f"{name} of model {model} has no planted change")
        rows, columns = tensor.shape
        parts = self._directions(source, tensor)
        left = [c * self._table(at, rows).astype(np.float64) for at, _, c in parts]
        right = [self._table(at, columns).astype(np.float64) for _, at, _ in parts]
        return np.stack(left, axis=1), np.stack(right)

    def delta(self, model: int, name: str, rows: slice = slice(None)) -> NDArray[np.float64]:
        """The planted change of those rows of a matrix as stored: exact, where the bytes are rounded to their dtype."""
        source, tensor = self._source(model), self.tensor(model, name)
        chosen = range(*rows.indices(tensor.shape[0]))
        if source == BASE:
            return np.zeros((len(chosen), tensor.shape[1]))
        left, right = self.factors(model, name)
        noise = [self._normal(row * tensor.shape[1], tensor.shape[1], _NOISE, source, tensor.key) for row in chosen]
        size = self._size(source, tensor) * np.sqrt(_SHARE_NOISE)
        return left[rows] @ right + size * np.array(noise, dtype=np.float64).reshape(len(chosen), -1)

    def touched(self, model: int) -> NDArray[np.bool_]:
        """Which rows of the embeddings were changed by more than the decay."""
        source = self._source(model)
        if source == BASE or self.kinds[source] == "unrelated":
            raise ValueError(f"the embeddings of model {model} have no planted change")
        return np.asarray(self._touch(source, 0, self.shape.vocabulary) > 0)

    def _source(self, model: int) -> int:
        return BASE if model == BASE else int(self.original[model])

    def _base(self, tensor: Tensor, owner: int, first: int, last: int) -> Floats:
        result = self._normal(first, last - first, _BASE, owner, tensor.key) * np.float32(_scale(tensor))
        if tensor.role == NORM:
            result += np.float32(1)
        return _widened(result, self.shape.dtype)

    def _size(self, source: int, tensor: Tensor) -> float:
        """The root mean square of a matrix's change."""
        uneven = float(self._normal(0, 1, _UNEVEN, source, tensor.key)[0])
        return float(self.norms[source] * _scale(tensor) * np.exp(0.2 * uneven))

    def _directions(self, source: int, tensor: Tensor) -> list[tuple[int, int, float]]:
        """Of each direction: where the vectors along the rows' and the columns' side lie in the table, and c_k."""
        alike = float(self._alike[source])
        shares = (_SHARE_COMMON, alike, 1 - _SHARE_COMMON - _SHARE_NOISE - alike)
        owners = (0, int(self.datasets[source]), source)
        size = self._size(source, tensor)
        left = self._place(_LEFT, source, tensor.key)
        result: list[tuple[int, int, float]] = []
        for part, (share, owner, count) in enumerate(zip(shares, owners, _DIRECTIONS, strict=True)):
            right = self._place(_RIGHT, part, owner, tensor.key)
            for number in range(count):
                energy = 2.0**-number / (2 - 2.0 ** (1 - count))
                sides = ((left + _STEP * len(result)) % _TABLE, (right + _STEP * number) % _TABLE)
                rows, columns = sides if tensor.role == MATRIX else sides[::-1]
                result.append((rows, columns, size * np.sqrt(share * energy)))
        return result

    def _change(self, source: int, tensor: Tensor, first: int, last: int) -> Floats:
        width = tensor.shape[1]
        top, bottom = first // width, -(-last // width)
        low_rank = np.zeros((bottom - top, width), dtype=np.float32)
        product = np.empty_like(low_rank)
        for at_rows, at_columns, c in self._directions(source, tensor):
            rows = self._table(at_rows + top, bottom - top) * np.float32(c)
            np.multiply(rows[:, None], self._table(at_columns, width), out=product)
            low_rank += product
        size = np.float32(self._size(source, tensor) * np.sqrt(_SHARE_NOISE))
        change = size * self._normal(first, last - first, _NOISE, source, tensor.key)
        change += low_rank.ravel()[first - top * width : last - top * width]
        return change

    def _touch(self, source: int, first: int, last: int) -> Floats:
        """How far rows of the embeddings move, relative to the model's norm; 0 for tokens that were not met."""
        dataset = int(self.datasets[source])
        topic = self._normal(first, last - first, _TOPIC, dataset).astype(np.float64)
        often = np.exp(1.5 * topic - 1.125) / (np.arange(first, last) + 10) / np.log(self.shape.vocabulary / 10 + 1)
        met = self._tokens[source] * often
        place = (self._place(_SEEN, dataset) + first) % _TABLE
        is_touched = self._uniforms[place : place + last - first] < -np.expm1(-met)
        return np.asarray(np.where(is_touched, 0.1 - 0.9 * np.expm1(-met / 8), 0), dtype=np.float32)

    def _embeddings(self, source: int, tensor: Tensor, base: Floats, first: int, last: int) -> Floats:
        width = tensor.shape[1]
        top, bottom = first // width, -(-last // width)
        result = base * self.decays[source]
        moves = self._touch(source, top, bottom) * np.float32(self.norms[source] * _scale(tensor))
        if not moves.any():
            return result
        direction = self._table(self._place(_RIGHT, DATASET, int(self.datasets[source]), tensor.key), width)
        changed = np.repeat(moves, width)[first - top * width : last - top * width]
        along = np.tile(direction, bottom - top)[first - top * width : last - top * width]
        result += changed * (along + self._normal(first, last - first, _NOISE, source, tensor.key))
        return result

    @cached_property
    def _normals(self) -> Floats:
        numbers = np.random.default_rng([self.plan.seed, 12]).standard_normal(_TABLE, dtype=np.float32)
        return np.concatenate([numbers, numbers[:_PADDING]])

    @cached_property
    def _uniforms(self) -> Floats:
        numbers = np.random.default_rng([self.plan.seed, 13]).random(_TABLE, dtype=np.float32)
        return np.concatenate([numbers, numbers[:_PADDING]])

    def _place(self, *purpose: int) -> int:
        """Where the random numbers for a purpose begin (splitmix64 of all its parts)."""
        state = self.plan.seed
        for part in purpose:
            state = (state * 0x9E3779B97F4A7C15 + part + 1) & _BITS
            state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
            state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _BITS
            state ^= state >> 31
        return state % _TABLE

    def _table(self, place: int, count: int) -> Floats:
        place %= _TABLE
        return self._normals[place : place + count]

    def _normal(self, first: int, count: int, *purpose: int) -> Floats:
        return self._table(self._place(*purpose) + first, count)


def _scale(tensor: Tensor) -> float:
    """σ of the base: .02 to .05, a little different for every tensor."""
    return 0.02 + 0.03 * (tensor.key % 1009) / 1009


def _stored(values: NDArray[Any], dtype: str) -> bytes:
    """The bytes of a file's numbers."""
    if dtype == "BF16":
        return _to_bfloat16(values).astype("<u2", copy=False).tobytes()
    return values.astype({"F32": "<f4", "F16": "<f2", "I64": "<i8"}[dtype], copy=False).tobytes()


def _widened(values: Floats, dtype: str) -> Floats:
    """Rounded to what a dtype can hold."""
    if dtype == "F32":
        return values
    if dtype == "F16":
        return values.astype(np.float16).astype(np.float32)
    return (_to_bfloat16(values).astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(values: Floats) -> NDArray[np.uint16]:
    """To nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
