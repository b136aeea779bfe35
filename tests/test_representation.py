"""Representations against direct computation: no sign, no order, no basis may matter where none should."""

from __future__ import annotations

import dataclasses
import hashlib
import tracemalloc

import numpy as np
import pytest

from indexer.errors import AtlasError
from indexer.names import DeltaKey
from indexer.records.identity import Identity, Spec
from indexer.records.record import DeltaRecord, Record
from indexer.records.representations.registry import REPRESENTATIONS, representation_named
from indexer.records.representations.triplets import OfTriplets
from indexer.records.sketch import FIXED_LENGTH as SKETCH_LENGTH
from indexer.records.sketch import USUAL_BUDGET, _count_sketch, _hashes

RANK = 4
SHAPES = {"query": (48, 48), "feedforward1": (96, 48), "feedforward2": (48, 96)}


def record_of(matrices: dict[tuple[int, str], np.ndarray], transposed: bool = False, flip: int | None = None) -> Record:
    rng = np.random.default_rng(flip)
    deltas = []
    for (layer, family), matrix in sorted(matrices.items(), key=lambda item: DeltaKey("", *item[0]).sort_key):
        u, s, vt = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
        signs = rng.choice([-1.0, 1.0], RANK) if flip is not None else np.ones(RANK)
        u, v = u[:, :RANK] * signs, vt[:RANK].T * signs
        if not s[0]:
            u, v = np.zeros_like(u), np.zeros_like(v)
        deltas.append(
            DeltaRecord(
                DeltaKey("", layer, family),
                matrix.shape,
                float(np.linalg.norm(s)),
                1.0,
                0.0,
                s[:RANK].astype(np.float32),
                u.astype(np.float16),
                v.astype(np.float16),
                transposed=transposed,
            )
        )
    return Record(Identity("a/b", "c", "base", "d", "finetune", Spec(rank=RANK)), tuple(deltas))


def random_matrices(seed: int, layers: int = 3) -> dict[tuple[int, str], np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        (layer, family): rng.normal(size=(shape[0], 6)) @ rng.normal(size=(6, shape[1]))
        for layer in range(layers)
        for family, shape in SHAPES.items()
    }


def exact_similarity(one: Record, other: Record, side: str) -> float:
    """Mean over matrices of the cosine of Σ σ a bᵀ, by forming the outer products."""
    total = 0.0
    for first, second in zip(one.deltas, other.deltas, strict=True):
        formed = []
        for delta in (first, second):
            a = {"input": delta.v, "output": delta.u, "delta": delta.u}[side].astype(np.float64)
            b = {"input": delta.v, "output": delta.u, "delta": delta.v}[side].astype(np.float64)
            formed.append((a * delta.s) @ b.T)
        total += (formed[0] * formed[1]).sum() / np.linalg.norm(formed[0]) / np.linalg.norm(formed[1])
    return total / len(one.deltas)


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("name", ["input", "input_v1", "output", "delta"])
def test_sketched_vectors_keep_the_similarity_of_the_outer_products(name):
    """Over many pairs the sketched cosine is unbiased; its spread is about 1/√(numbers of the vector)."""
    chosen = representation_named(name)
    shared = random_matrices(0)
    errors = []
    for seed in range(1, 25):
        noise = random_matrices(seed)
        mixed = {key: shared[key] * (seed % 5) / 4 + noise[key] for key in shared}
        one, other = record_of(shared), record_of(mixed)
        errors.append(cosine(chosen.of(one), chosen.of(other)) - exact_similarity(one, other, name.removesuffix("_v1")))
    spread = 1 / np.sqrt(len(chosen.of(one)))
    assert abs(np.mean(errors)) < 3 * spread / np.sqrt(len(errors)) + 0.01
    assert np.max(np.abs(errors)) < 4.5 * spread


@pytest.mark.parametrize("name", sorted(name for name, one in REPRESENTATIONS.items() if isinstance(one, OfTriplets)))
def test_signs_of_singular_vectors_do_not_matter(name):
    chosen = representation_named(name)
    matrices = random_matrices(7)
    plain = chosen.of(record_of(matrices))
    for flip in range(4):
        np.testing.assert_allclose(chosen.of(record_of(matrices, flip=flip)), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["input", "input_v1", "output", "delta"])
def test_a_zero_delta_is_a_block_of_zeros_and_others_have_unit_norm(name):
    matrices = random_matrices(2)
    matrices[1, "query"] = np.zeros(SHAPES["query"])
    record = record_of(matrices)
    blocks = representation_named(name).of(record).reshape(len(record.deltas), -1)
    norms = np.linalg.norm(blocks, axis=1)
    for delta, norm in zip(record.deltas, norms, strict=True):
        expected = 0.0 if (delta.key.layer, delta.key.family) == (1, "query") else 1.0
        assert norm == pytest.approx(expected, abs=1e-6)


def test_the_scale_of_a_delta_does_not_matter_to_the_default():
    matrices = random_matrices(3)
    scaled = {key: matrix * 10.0 ** (key[0] - 2) for key, matrix in matrices.items()}
    one, other = (representation_named("input").of(record_of(found)) for found in (matrices, scaled))
    np.testing.assert_allclose(one, other, atol=2e-3)


@pytest.mark.parametrize(
    ("name", "version", "draw", "numbers"), [("input", 4, "0|", 192), ("input_v1", 1, "", SKETCH_LENGTH)]
)
def test_hashes_are_those_of_every_build(name, version, draw, numbers):
    """Vectors of different builds must compare, so these numbers may only change with the version."""
    record = record_of({(0, "query"): np.outer(np.arange(48.0) - 20, np.ones(48))})
    vector = representation_named(name).of(record)
    assert (REPRESENTATIONS[name].tag, REPRESENTATIONS[name].version) == (f"{name}.{version}", version)
    assert vector.shape == (numbers,)

    # From a separate implementation of the sketch, in plain Python.
    def hashes(seed: str) -> list[tuple[int, int]]:
        stream = hashlib.shake_256(f"tensor-sketch|{draw}0.query|{seed}".encode()).digest(4 * 48)
        words = [int.from_bytes(stream[4 * i : 4 * i + 4], "little") for i in range(48)]
        return [((word >> 1) % numbers, 1 if word & 1 else -1) for word in words]

    first, second = hashes("first"), hashes("second")
    expected = [0.0] * numbers
    for i in range(48):
        for j in range(48):
            expected[(first[i][0] + second[j][0]) % numbers] += first[i][1] * second[j][1]
    norm = sum(value * value for value in expected) ** 0.5
    # v is constant here: 1/√48 each, so Σ v vᵀ is the all-ones matrix over 48.
    np.testing.assert_allclose(vector, np.array(expected) / norm, atol=1e-4)


@pytest.mark.parametrize("count", [3, 128])  # few are counted, many are multiplied
@pytest.mark.parametrize("length", [1, 768, 11_008])
def test_count_sketches_are_to_the_bit_those_of_whole_numbers_and_signs(length, count):
    columns = np.random.default_rng(length).normal(size=(length, count))
    words = np.frombuffer(hashlib.shake_256(b"tensor-sketch|0.key|first").digest(4 * length), dtype="<u4")
    signed = columns * np.where(words & 1, 1.0, -1.0)[:, None]
    expected = np.zeros((SKETCH_LENGTH, count))
    np.add.at(expected, (words >> 1) % SKETCH_LENGTH, signed)
    assert np.array_equal(_count_sketch(columns, "0.key|first"), expected)


def test_hashes_that_are_kept_do_not_grow_with_the_layers():
    """They stay for the life of a process, which reads models of any depth."""
    columns = np.ones((3_072, 1))
    _hashes.cache_clear()
    tracemalloc.start()
    try:
        for layer in range(1_000):
            _count_sketch(columns, f"{layer}.output|first")
        assert tracemalloc.get_traced_memory()[0] < 2 << 20
    finally:
        tracemalloc.stop()
        _hashes.cache_clear()


def test_seed_stacks_left_vectors_as_stored_with_layers_averaged():
    matrices = random_matrices(11)
    record = record_of(matrices)
    parts = []
    for family in SHAPES:
        layers = []
        for layer in range(3):
            u, s, vt = np.linalg.svd(matrices[layer, family], full_matrices=False)
            u, v = u[:, :RANK].copy(), vt[:RANK].T.copy()
            # Bro, Acar & Kolda on the truncated matrix itself, column by column and row by row.
            kept = (u * s[:RANK]) @ v.T
            for i in range(RANK):
                onto_left = u[:, i] @ kept
                onto_right = kept @ v[:, i]
                left = (np.sign(onto_left) * onto_left**2).sum()
                right = (np.sign(onto_right) * onto_right**2).sum()
                deciding = left if abs(left) >= abs(right) else right
                u[:, i] *= -1 if deciding < 0 else 1
            layers.append(u)
        parts.append(np.mean(layers, axis=0).ravel(order="F"))
    np.testing.assert_allclose(representation_named("seed").of(record), np.concatenate(parts), atol=2e-3)


def test_seed_takes_the_side_that_the_checkpoint_stores_as_rows():
    matrices = random_matrices(5)
    stored = record_of({key: matrix.T for key, matrix in matrices.items()})
    seen = record_of(matrices, transposed=True)
    np.testing.assert_allclose(
        representation_named("seed").of(seen), representation_named("seed").of(stored), atol=2e-3
    )


def test_a_record_without_factors_has_only_the_vectors_it_kept():
    record = record_of(random_matrices(1))
    vector = representation_named("input").of(record)
    bare = dataclasses.replace(
        record,
        deltas=tuple(dataclasses.replace(delta, u=None, v=None) for delta in record.deltas),
        vectors={REPRESENTATIONS["input"].tag: vector},
    )
    np.testing.assert_array_equal(representation_named("input").vector(bare), vector)
    with pytest.raises(AtlasError, match="no factors"):
        representation_named("output").vector(bare)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(AtlasError, match="input, adapter_output, output, delta"):
        representation_named("inputt")


def test_the_length_of_a_vector_is_a_budget_divided_among_the_matrices():
    record = record_of(random_matrices(1, layers=8))
    chosen = representation_named("input")
    narrowest = 48 * RANK  # a block is never longer than what it is made of
    assert len(chosen.of(record)) == 24 * narrowest < USUAL_BUDGET
    shorter = chosen.of_length(24 * 57 + 5)
    assert len(shorter.of(record)) == 24 * 57 == shorter.expected_length(record)
    assert shorter.tag != chosen.tag == chosen.of_length(USUAL_BUDGET).tag
    bare = dataclasses.replace(
        record,
        deltas=tuple(dataclasses.replace(delta, u=None, v=None) for delta in record.deltas),
        vectors={shorter.tag: shorter.of(record)},
    )
    assert shorter.is_held_by(bare)
    assert not chosen.is_held_by(bare)
    assert representation_named("input_v1", 999) is REPRESENTATIONS["input_v1"]
