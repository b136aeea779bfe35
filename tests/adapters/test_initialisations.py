"""Which adapters started from one random A: against planted factors, and through real records."""

from __future__ import annotations

import dataclasses
import math

import duckdb
import numpy as np
import pytest
import torch

from indexer.database.catalog import empty_database
from indexer.names import DeltaKey
from indexer.publish.duplicates import renew_initialisations
from indexer.publish.tables import Tables
from indexer.records.record import DeltaRecord, StoredFile, read_record, write_record
from indexer.records.row_space import ALIKE, agreement, as_text, from_texts, row_space, row_space_of
from tests.test_record import make_record

KEYS = [DeltaKey("", layer, family) for layer in range(6) for family in ("query", "value", "feedforward1")]
WIDTH = 96


def started(seed: int, rank: int, ranks: dict[int, int] | None = None) -> list[torch.Tensor]:
    """The A of every matrix as PEFT draws them one after the other; ``ranks``: of some layers."""
    torch.manual_seed(seed)
    factors = []
    for key in KEYS:
        a = torch.empty((ranks or {}).get(key.layer, rank), WIDTH)
        torch.nn.init.kaiming_uniform_(a, a=math.sqrt(5))
        factors.append(a)
    return factors


def trained(starts: list[torch.Tensor], seed: int, moved: float = 0.6, common: float = 0.0) -> np.ndarray:
    """The sketch of an adapter whose A has moved by a share of its norm; ``common``: in directions that all learn."""
    rng = np.random.default_rng(seed)
    shared = np.random.default_rng(0).normal(size=(len(KEYS), WIDTH))
    spaces = {}
    for number, (key, start) in enumerate(zip(KEYS, starts, strict=True)):
        step = rng.normal(size=start.shape) + common * rng.normal(size=(len(start), 1)) * shared[number]
        a = start.numpy() + moved * np.linalg.norm(start) * step / np.linalg.norm(step)
        spaces[key] = np.linalg.qr(a.T)[0]
    return row_space(spaces, KEYS).astype(np.float32)


def test_one_start_is_recognised_whatever_was_learnt_and_others_are_not():
    sketches = np.stack(
        [trained(started(seed, rank), 10 * seed + run) for seed in (1, 2) for rank in (4, 8, 16) for run in (0, 1)]
    )
    is_alike = agreement(sketches, sketches) >= ALIKE
    # Drawn one after the other with one seed, factors of different ranks are different numbers but in the first matrix.
    expected = np.kron(np.eye(6, dtype=bool), np.ones((2, 2), dtype=bool))
    np.testing.assert_array_equal(is_alike, expected)


def test_a_start_that_ranks_share_is_recognised_across_ranks_and_rank_patterns():
    """A tool that seeds every matrix by itself, or starts at singular vectors of the base: small ranks are nested."""
    factors = started(3, 16)
    mixed = [a[: 4 + 4 * (number % 4)] for number, a in enumerate(factors)]
    sketches = np.stack(
        [trained([a[:4] for a in factors], 1), trained([a[:8] for a in factors], 2), trained(factors, 3)]
    )
    patterned = trained(mixed, 4)[None]
    assert (agreement(sketches, sketches) >= ALIKE).all()
    assert (agreement(patterned, sketches) >= ALIKE).all()
    # From the first matrix of another rank on, one seed draws other numbers: a pattern of the last layer alone.
    late = trained(started(5, 8, {5: 12}), 5)[None]
    assert agreement(late, trained(started(5, 8), 6)[None])[0, 0] >= ALIKE


def test_unrelated_adapters_are_never_taken_for_one_start():
    ranks = (2, 4, 8, 16, 32, 48)
    sketches = np.stack([trained(started(100 + number, ranks[number % 6]), number, common=3.0) for number in range(72)])
    agreements = agreement(sketches, sketches)
    pairs = agreements[np.triu_indices(72, 1)]
    assert len(pairs) == 2556
    assert (pairs >= ALIKE).sum() == 0


def test_two_that_share_too_few_matrices_say_nothing():
    starts = started(1, 8)
    sketch = trained(starts, 1)[None]
    few = sketch.copy()
    few[:, 3:] = 0
    assert agreement(few, sketch)[0, 0] == 0
    assert not agreement(from_texts(["", "AAAA", as_text(np.full((2, 3), np.nan, np.float16))], 18), sketch).any()


def record_of(a: np.ndarray, b: np.ndarray, *, is_adapter: bool, name: str = "a/b", noise: float = 0.0):
    """A record of four matrices that B·A changed."""
    deltas = []
    for layer in range(4):
        change = b[layer] @ a[layer] + noise * np.random.default_rng(layer).normal(size=(WIDTH, WIDTH))
        u, s, vt = np.linalg.svd(change)
        deltas.append(
            DeltaRecord(
                DeltaKey("", layer, "query"), (WIDTH, WIDTH), float(np.linalg.norm(change)), 10.0, 0.0,
                s[:8].astype(np.float32), u[:, :8].astype(np.float16), vt[:8].T.astype(np.float16),
            )
        )  # fmt: skip
    files = (StoredFile("w", 1, None, "adapter-safetensors" if is_adapter else "safetensors"),)
    return dataclasses.replace(make_record(1), deltas=tuple(deltas), fused_matrices=(), vectors={}, files=files)


def test_merged_loras_and_records_of_earlier_versions_have_it_by_their_singular_vectors(tmp_path):
    rng = np.random.default_rng(0)
    a, other = (rng.normal(size=(4, 4, WIDTH)) for _ in range(2))
    first, second, third = (rng.normal(size=(4, WIDTH, 4)) for _ in range(3))
    adapter = record_of(a, first, is_adapter=True)
    exact = row_space(
        {delta.key: np.linalg.qr(factor.T)[0] for delta, factor in zip(adapter.deltas, a, strict=True)},
        [delta.key for delta in adapter.deltas],
    )
    merged = record_of(a, second, is_adapter=False, noise=1e-3)
    unrelated = record_of(other, third, is_adapter=False)
    full = record_of(a, second, is_adapter=False, noise=3.0)
    sketches = np.stack([exact, *(row_space_of(record) for record in (adapter, merged, unrelated))]).astype(np.float32)
    agreements = agreement(sketches, sketches)
    assert agreements[:3, :3].min() > 0.9
    assert agreements[3, :3].max() < ALIKE
    assert row_space_of(full) is None
    # Of a sample of hardly more rows than singular vectors, any change seems to have low rank.
    for lines, is_told in ((len(merged.deltas[0].s), False), (2 * len(merged.deltas[0].s), True)):
        sampled = [dataclasses.replace(delta, lines=lines) for delta in merged.deltas]
        assert (row_space_of(dataclasses.replace(merged, deltas=tuple(sampled))) is not None) == is_told
    with_row_space = dataclasses.replace(adapter, row_space=exact)
    write_record(with_row_space, tmp_path / "r.safetensors")
    np.testing.assert_array_equal(row_space_of(read_record(tmp_path / "r.safetensors")), exact)
    with pytest.raises(ValueError, match="row spaces"):
        row_space_of(dataclasses.replace(adapter, row_space=exact[:2]))


def test_a_model_joins_the_one_it_agrees_with_best_and_stays_there(tmp_path):
    (tmp_path / "atlas.duckdb").write_bytes(empty_database())
    starts = {seed: started(seed, 8) for seed in (1, 2, 3)}
    seeds = (1, 2, 1, 3, 2, 1)
    with duckdb.connect(str(tmp_path / "atlas.duckdb")) as connection:
        for number, seed in enumerate(seeds, 1):
            insert(connection, number, as_text(trained(starts[seed], number).astype(np.float16)))
        insert(connection, 7, None)
        tables = Tables(connection)
        renew_initialisations(tables, "org/base", len(KEYS), set(range(1, 8)))
        assert initialisations(tables) == [1, 2, 1, None, 2, 1, None]
        insert(connection, 8, as_text(trained(starts[3], 8).astype(np.float16)))
        renew_initialisations(tables, "org/base", len(KEYS), {8})
        assert initialisations(tables) == [1, 2, 1, 4, 2, 1, None, 4]
        # The first of group 1 is read again and started elsewhere: it leaves, and its number stays with the others.
        connection.execute("DELETE FROM records WHERE model_id = 1")
        insert(connection, 1, as_text(trained(started(9, 8), 1).astype(np.float16)), is_listed=True)
        renew_initialisations(tables, "org/base", len(KEYS), {1})
        insert(connection, 9, as_text(trained(started(9, 8), 9).astype(np.float16)))
        renew_initialisations(tables, "org/base", len(KEYS), {9})
        assert initialisations(tables) == [9, 2, 1, 4, 2, 1, None, 4, 9]


def insert(connection, number: int, text: str | None, is_listed: bool = False) -> None:
    if not is_listed:
        connection.execute(
            "INSERT INTO fine_tunes (model_id, model, base, author, status, relation, record_key) "
            "VALUES (?, ?, 'org/base', 'a', 'indexed', 'adapter', 'k')",
            [number, f"a/{number}"],
        )
    connection.execute("INSERT INTO records (model_id, record_key, row_space) VALUES (?, 'k', ?)", [number, text])


def initialisations(tables: Tables) -> list[int | None]:
    return [number for (number,) in tables.rows("SELECT initialisation FROM records ORDER BY model_id")]
