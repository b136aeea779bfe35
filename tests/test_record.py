"""Records survive the disk exactly, no altered byte of one goes unnoticed, and ranks at a share of the energy are right."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.errors import AtlasError
from indexer.names import DeltaKey
from indexer.publish.rows import rows_of_record
from indexer.records.identity import RECORD_VERSION, Identity, Spec
from indexer.records.record import DeltaRecord, Record, StoredFile, ranks_at, read_record, write_record
from indexer.records.representations.registry import REPRESENTATIONS


def make_record(seed: int = 0, rank: int = 3, **changes: object) -> Record:
    rng = np.random.default_rng(seed)
    deltas = []
    for layer in range(2):
        for family, shape in (("query", (6, 6)), ("feedforward1", (10, 6))):
            u, s, vt = np.linalg.svd(rng.normal(size=shape), full_matrices=False)
            deltas.append(
                DeltaRecord(
                    key=DeltaKey("", layer, family),
                    shape=shape,
                    norm=float(np.linalg.norm(s)),
                    base_norm=4.0,
                    inner=0.25,
                    s=s[:rank].astype(np.float32),
                    u=u[:, :rank].astype(np.float16),
                    v=vt[:rank].T.astype(np.float16),
                )
            )
    plain = dict(
        identity=Identity("a/b", "c" * 40, "base/x", "d" * 40, "finetune", Spec(rank=rank)),
        deltas=tuple(deltas),
        files=(StoredFile("model.safetensors", 10, "e" * 64, "safetensors"),),
        head={"label_names": ["yes", "no"]},
        dtype="float32",
        vectors={REPRESENTATIONS["input"].tag: np.arange(4, dtype=np.float32)},
    )
    return Record(**(plain | changes))


def test_a_record_comes_back_as_it_was(tmp_path):
    record = make_record()
    write_record(record, tmp_path / "r.safetensors")
    back = read_record(tmp_path / "r.safetensors")
    assert back.identity == record.identity
    assert back.files == record.files
    assert back.head == record.head
    for one, other in zip(record.deltas, back.deltas, strict=True):
        assert (one.key, one.shape, one.norm, one.base_norm, one.inner) == (
            other.key,
            other.shape,
            other.norm,
            other.base_norm,
            other.inner,
        )
        for name in ("s", "u", "v"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
            assert getattr(one, name).dtype == getattr(other, name).dtype
    np.testing.assert_array_equal(
        back.vectors[REPRESENTATIONS["input"].tag], record.vectors[REPRESENTATIONS["input"].tag]
    )


def test_what_an_adapters_settings_leave_open_stays_with_it(tmp_path):
    record = make_record(adapter_kind="LoRA", passed_over=("factors: 1",), adapter_notes=("Its alpha was ignored.",))
    write_record(record, tmp_path / "r.safetensors")
    back = read_record(tmp_path / "r.safetensors")
    assert (back.passed_over, back.adapter_notes) == (record.passed_over, record.adapter_notes)
    row = rows_of_record(1, "k", back)["records"][0]
    assert row["passed_over"] == ["factors: 1", "Its alpha was ignored."]


def test_every_altered_byte_and_every_truncation_is_noticed(tmp_path):
    path = tmp_path / "r.safetensors"
    write_record(make_record(), path)
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    for position in [*range(0, 200, 7), *rng.integers(0, len(whole), 200).tolist(), len(whole) - 1]:
        altered = bytearray(whole)
        altered[position] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(bytes(altered))
        try:
            back = read_record(path)
        except AtlasError:
            continue
        # The safetensors header may hold blanks and key orders that mean the same; the content must not differ.
        original = make_record()
        assert back.identity == original.identity
        for one, other in zip(original.deltas, back.deltas, strict=True):
            np.testing.assert_array_equal(one.u, other.u)
            np.testing.assert_array_equal(one.s, other.s)
    for length in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(AtlasError):
            read_record(path)


def test_the_digest_depends_on_everything_that_changes_the_record():
    identity = make_record().identity
    digests = {identity.digest}
    for field in ("model", "commit", "base", "base_commit", "relation", "subfolder"):
        digests.add(dataclasses.replace(identity, **{field: "other"}).digest)
    for field, value in (("rank", 9), ("spectra", True), ("sample", True), ("version", RECORD_VERSION + 1)):
        digests.add(dataclasses.replace(identity, spec=dataclasses.replace(identity.spec, **{field: value})).digest)
    assert len(digests) == 11


def test_the_weights_cosine_with_the_base_is_that_of_the_weights():
    rng = np.random.default_rng(3)
    deltas, weights, bases = [], [], []
    for layer in range(3):
        base, delta = rng.normal(size=(5, 4)), rng.normal(size=(5, 4)) * (layer + 1)
        weights.append((base + delta).ravel())
        bases.append(base.ravel())
        deltas.append(
            DeltaRecord(
                DeltaKey("", layer, "query"),
                (5, 4),
                float(np.linalg.norm(delta)),
                float(np.linalg.norm(base)),
                float((base * delta).sum()),
                np.zeros(1, np.float32),
            )
        )
    weight, base = np.concatenate(weights), np.concatenate(bases)
    expected = weight @ base / np.linalg.norm(weight) / np.linalg.norm(base)
    assert make_record(deltas=tuple(deltas)).base_cosine == pytest.approx(expected, rel=1e-12)


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "r.safetensors"
    write_record(make_record(), path)
    before = path.read_bytes()

    def no_space(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        write_record(make_record(seed=5), path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["r.safetensors"]


THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)


@pytest.mark.parametrize(
    ("values", "threshold", "expected"),
    [
        ([2, 1, 1, 1, 1], 0.5, 1),
        ([2, 1, 1, 1, 1], 0.51, 2),
        ([1, 1, 1, 1], 0.5, 2),
        ([1, 1, 1, 1], 0.76, 4),
        ([1, 1, 1, 1], 1.0, 4),
        ([3, 0, 0], 1.0, 1),
        ([0, 0, 0], 0.5, 0),
        ([], 0.5, 0),
        ([1e30, 1e30], 0.9, 2),
        ([1e-30, 1e-30], 0.9, 2),
        ([5], 0.01, 1),
    ],
)
def test_by_hand(values: list[float], threshold: float, expected: int) -> None:
    assert ranks_at(np.array(values, dtype=np.float32), [threshold]) == [expected]


@pytest.mark.parametrize("threshold", [0, -0.1, 1.01, math.nan])
def test_no_such_share(threshold: float) -> None:
    with pytest.raises(ValueError, match="share of energy"):
        ranks_at(np.ones(3), [threshold])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.sampled_from(THRESHOLDS))
def test_against_counting(numbers: list[int], threshold: float) -> None:
    numbers.sort(reverse=True)
    total, held, expected = sum(n * n for n in numbers), 0, 0
    while total and held < threshold * total * (1 - 1e-12):
        held += numbers[expected] ** 2
        expected += 1
    assert ranks_at(np.array(numbers), [threshold]) == [expected]


@pytest.mark.parametrize(
    ("kept", "norm", "threshold", "expected"),
    [
        ([2, 1], 3.0, 0.4, 1),
        ([2, 1], 3.0, 0.5, 2),
        ([2, 1], 3.0, 0.6, None),
        ([0, 0], 0.0, 0.5, 0),
        ([], 1.0, 0.5, None),
        ([3], 3.0, 1.0, 1),
    ],
)
def test_where_only_the_largest_are_kept(kept, norm, threshold, expected):
    assert ranks_at(np.array(kept, dtype=np.float32), [threshold], norm) == [expected]
