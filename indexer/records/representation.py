"""Representations: named, versioned, pure functions from a record to a vector of fixed length.

The default, ``input``, is Σ_i σ_i v_i v_iᵀ per delta: it has no sign to choose and no basis to fix. Outer
products are compressed by TensorSketch (Pham & Pagh, 2013, "Fast and scalable polynomial kernels via explicit
feature maps"): the sketch of a ⊗ b is the circular convolution of two CountSketches, and keeps inner products
in expectation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from indexer.records.record import DeltaRecord, Record

Vector = NDArray[np.float32]

SKETCH_LENGTH = 57


@dataclass(frozen=True)
class Representation:
    """One way to turn a record into a vector.

    ``per_delta`` says that the vector is a concatenation of equally long blocks, one per delta in the order of
    ``DeltaKey.sort_key``: only then can a similarity be explained by layer and family. ``compute`` returns a
    float32 vector, not normalised as a whole. ``of_profiles``: made of depth profiles instead, in units of their
    standard deviation over the atlas, so that no record alone can give it.
    """

    name: str
    version: int
    description: str
    per_delta: bool
    compute: Callable[[Record], Vector]
    of_profiles: bool = False

    @property
    def tag(self) -> str:
        """Name and version: vectors of different tags never meet."""
        return f"{self.name}.{self.version}"

    def is_held_by(self, record: Record) -> bool:
        """Whether ``record`` has the vector, or what it is computed from."""
        is_kept = self.tag in record.vectors
        if self.of_profiles:
            return False
        return is_kept or self.name == "spectrum" or all(delta.u is not None for delta in record.deltas)

    def vector(self, record: Record) -> Vector:
        """The vector of ``record``: the stored one where its tag fits, else computed from the factors.

        Raises AtlasError where the record has no factors to compute it from.
        """
        stored = record.vectors.get(self.tag)
        if stored is not None:
            return stored
        if self.of_profiles:
            return self.compute(record)
        if not self.is_held_by(record):
            raise AtlasError(
                f"The record of {record.identity.model} holds no factors, so {self.name!r} cannot be computed.",
                "Build again without --no-keep-factors.",
            )
        return self.compute(record)


def representation_named(name: str) -> Representation:
    """Look a representation up; raises AtlasError naming the ones there are."""
    try:
        return REPRESENTATIONS[name]
    except KeyError:
        known = ", ".join(REPRESENTATIONS)
        raise AtlasError(f"There is no representation {name!r}.", f"Choose one of: {known}.") from None


def _sketched(side: str) -> Callable[[Record], Vector]:
    """Per delta Σ σ_i a_i ⊗ b_i, sketched to SKETCH_LENGTH numbers, unit norm; zeros for a zero delta."""

    def compute(record: Record) -> Vector:
        blocks = [_sketched_block(delta, side) for delta in record.deltas]
        return np.concatenate(blocks).astype(np.float32)

    return compute


def _sketched_block(delta: DeltaRecord, side: str) -> NDArray[np.float64]:
    if delta.norm == 0.0 or delta.u is None or delta.v is None:
        return np.zeros(SKETCH_LENGTH)
    left, right = {"input": (delta.v, delta.v), "output": (delta.u, delta.u), "delta": (delta.u, delta.v)}[side]
    # Where a and b are the same vector the two hashes must still be independent.
    first = _count_sketch(left.astype(np.float64), f"{delta.key}|first")
    second = _count_sketch(right.astype(np.float64), f"{delta.key}|second")
    products = np.fft.rfft(first, axis=0) * np.fft.rfft(second, axis=0)
    weighted = products @ delta.s.astype(np.float64)
    block = np.fft.irfft(weighted, n=SKETCH_LENGTH)
    norm = np.linalg.norm(block)
    return block / norm if norm else block


def _count_sketch(columns: NDArray[np.float64], seed: str) -> NDArray[np.float64]:
    """CountSketch of each column of an (n, r) array: (SKETCH_LENGTH, r)."""
    packed = _hashes(seed, columns.shape[0])
    buckets = (packed >> 1).astype(np.intp)
    signed = columns * np.where(packed & 1, 1.0, -1.0)[:, None]
    return np.stack([np.bincount(buckets, weights=column, minlength=SKETCH_LENGTH) for column in signed.T], axis=1)


# Two for each matrix, a byte each coordinate: 14 KB a layer of roberta-base. Models deeper than 40 layers of six
# matrices have them made again, in microseconds.
@lru_cache(maxsize=512)
def _hashes(seed: str, length: int) -> NDArray[np.uint8]:
    """2 · bucket + (1 where the sign is +) of each coordinate, from SHAKE-256: the same in every library's version."""
    stream = hashlib.shake_256(f"tensor-sketch|{seed}".encode()).digest(4 * length)
    words = np.frombuffer(stream, dtype="<u4")
    return ((words >> 1) % SKETCH_LENGTH << 1 | words & 1).astype(np.uint8)


def _seed(scaled: bool) -> Callable[[Record], Vector]:
    """The seed's own: U_r (``scaled``: U_r Σ_r) of each matrix as its checkpoint stores it, layers averaged.

    Families and stacks are concatenated. Signs by Bro, Acar & Kolda (2008), "Resolving the sign ambiguity in
    the singular value decomposition".
    """

    def compute(record: Record) -> Vector:
        groups: dict[str, list[NDArray[np.float64]]] = {}
        for delta in record.deltas:
            factor = delta.v if delta.transposed else delta.u
            assert factor is not None
            weights = _bro_signs(delta) * (delta.s.astype(np.float64) if scaled else 1.0)
            groups.setdefault(delta.key.family_key, []).append(factor.astype(np.float64) * weights)
        for family, members in groups.items():
            if len({member.shape for member in members}) > 1:
                raise AtlasError(
                    f"'seed' averages layers, and the {family} matrices of {record.identity.base} differ in shape.",
                    "Use another representation.",
                )
        averaged = [np.mean(members, axis=0).ravel(order="F") for members in groups.values()]
        return np.concatenate(averaged).astype(np.float32)

    return compute


def _bro_signs(delta: DeltaRecord) -> NDArray[np.float64]:
    """One sign per triplet: the side on which the data agree more strongly decides.

    For the truncated SVD itself u_iᵀ δW = σ_i v_iᵀ, so the sum over the columns of δW of
    sign(u_iᵀ a_j)(u_iᵀ a_j)² is σ_i² Σ_j sign(v_ij) v_ij², and likewise for the rows.
    """
    assert delta.u is not None
    assert delta.v is not None
    u, v = delta.u.astype(np.float64), delta.v.astype(np.float64)
    left = (np.sign(v) * v**2).sum(axis=0)
    right = (np.sign(u) * u**2).sum(axis=0)
    deciding = np.where(np.abs(left) >= np.abs(right), left, right)
    return np.where(deciding < 0, -1.0, 1.0)


def _spectrum_vector(record: Record) -> Vector:
    """The top singular values of every delta."""
    return np.concatenate([delta.s for delta in record.deltas]).astype(np.float32)


def _no_record(record: Record) -> Vector:
    raise AtlasError(
        f"{record.identity.model} has no depth profile in this atlas, so 'depth' cannot be computed.",
        f"Make one: index profile {record.identity.model}",
    )


REPRESENTATIONS: dict[str, Representation] = {
    made.name: made
    for made in (
        Representation("input", 1, "input side: Σ σ v vᵀ per delta, sketched", True, _sketched("input")),
        Representation("output", 1, "output side: Σ σ u uᵀ per delta, sketched", True, _sketched("output")),
        Representation("delta", 1, "the delta: Σ σ u vᵀ per delta, sketched", True, _sketched("delta")),
        Representation("seed", 1, "U_r with fixed signs, layers averaged (the original method)", False, _seed(False)),
        Representation("seed_scaled", 1, "U_r Σ_r with fixed signs, layers averaged", False, _seed(True)),
        Representation("spectrum", 1, "top singular values of every delta", True, _spectrum_vector),
        Representation(
            "depth", 1, "what layers keep, against the base; only of profiled models", False, _no_record, True
        ),
    )
}

DEFAULT = "input"
