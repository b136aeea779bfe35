"""By which sides two models are compared, against plain loops over pairs and blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from indexer.publish.neighbours import nearest
from indexer.records.record import Record, StoredFile
from indexer.records.representations.registry import representation_named
from indexer.records.sketch import OUTPUT_POWER
from indexer.vectors.centre import ADAPTER, BY_OUTPUT, FULL
from indexer.vectors.masks import Masks, changed_blocks
from indexer.vectors.search import VectorIndex
from indexer.vectors.stored import OpenVectors, Vectors, write_vectors
from indexer.vectors.table import AdapterIds, VectorTable, by_output, group_codes
from query.shared.statistics.likeness import points
from query.shared.statistics.neighbours import neighbour_order
from tests.test_representation import random_matrices, record_of
from tests.vectors import loops

BLOCKS, LENGTH = 6, 12
GROUPS = [FULL, ADAPTER, BY_OUTPUT, ADAPTER, FULL, BY_OUTPUT, ADAPTER, BY_OUTPUT, FULL, ADAPTER, BY_OUTPUT, ADAPTER]
IDS = np.arange(3, 3 + 2 * len(GROUPS), 2)


def blocks_of(seed: int, count: int) -> np.ndarray:
    """Unit blocks with something in common; some models lack some of them."""
    rng = np.random.default_rng(seed)
    found = 0.6 * rng.normal(size=(1, BLOCKS, LENGTH)) + rng.normal(size=(count, BLOCKS, LENGTH))
    found /= np.linalg.norm(found, axis=2, keepdims=True)
    for model in range(0, count, 3):
        found[model, rng.permutation(BLOCKS)[: 1 + model % 4]] = 0
    return found


INPUTS, OUTPUTS = blocks_of(0, len(GROUPS)), blocks_of(1, len(GROUPS))
OUTPUTS[[place for place, group in enumerate(GROUPS) if group == FULL]] = 0


def similarity(one: int, other: int) -> float:
    """By output sides if both are adapters and one began at unknown random numbers."""
    is_by_output = FULL not in (GROUPS[one], GROUPS[other]) and BY_OUTPUT in (GROUPS[one], GROUPS[other])
    side = OUTPUTS if is_by_output else INPUTS
    return loops.similarity(side[one], side[other])


EXACT = np.array([[similarity(one, other) for other in range(len(GROUPS))] for one in range(len(GROUPS))])


def table() -> VectorTable:
    flat = [side.reshape(len(GROUPS), -1).astype(np.float32) for side in (INPUTS, OUTPUTS)]
    return VectorTable(flat[0], BLOCKS, flat[1], group_codes(GROUPS))


def adapter(matrices: dict[tuple[int, str], np.ndarray]) -> Record:
    file = StoredFile("adapter_model.safetensors", 10, "e" * 64, "adapter-safetensors")
    return replace(record_of(matrices), files=(file,))


def test_only_two_adapters_of_which_one_began_somewhere_unknown_are_compared_by_output():
    codes = group_codes([FULL, ADAPTER, BY_OUTPUT, None])
    found = by_output(codes[:, None], codes[None, :])
    assert np.argwhere(found).tolist() == [[1, 2], [2, 1], [2, 2]]


def test_similarities_of_a_table_are_those_of_plain_loops():
    mine = table()
    np.testing.assert_allclose(mine.similarities(mine), EXACT, atol=1e-6)
    rows, columns = (each.ravel() for each in np.indices(EXACT.shape))
    np.testing.assert_allclose(mine.pairs(rows, mine, columns), EXACT.ravel(), atol=1e-6)
    some, others = mine.take([2, 5, 0]), mine.take(slice(4, 9))
    np.testing.assert_allclose(some.similarities(others, np.float64), EXACT[[2, 5, 0], 4:9], atol=1e-6)
    np.testing.assert_allclose(others.with_last(some.take([1])).similarities(mine)[-1], EXACT[5], atol=1e-6)


@pytest.mark.parametrize("one", [0, 1, 2])
def test_parts_sum_to_the_similarity_and_cosines_are_those_of_the_side_that_is_compared(one):
    mine = table()
    asked = mine.take([one])
    is_output = [by_output(group_codes([GROUPS[one]]), group_codes([group]))[0] for group in GROUPS]
    np.testing.assert_allclose(np.clip(asked.parts(mine).sum(axis=1), -1, 1), EXACT[one], atol=1e-6)
    cosines, shared = asked.cosines(mine)
    for other, output in enumerate(is_output):
        side = OUTPUTS if output else INPUTS
        both = side[one].any(axis=1) & side[other].any(axis=1)
        assert shared[other].tolist() == both.tolist()
        assert asked.shared(mine)[other] == both.sum()
        expected = np.clip((side[one] * side[other]).sum(axis=1), -1, 1)
        np.testing.assert_allclose(cosines[other][both], expected[both], atol=1e-6)


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> VectorIndex:
    """Both sides; full fine-tunes have no output side."""
    root = tmp_path_factory.mktemp("pairs")

    def opened(name: str, side: np.ndarray, rows: list[int]) -> VectorIndex:
        flat = side.reshape(len(GROUPS), -1).astype(np.float32)
        kinds: dict[bytes, list[int]] = {}
        for row in rows:
            kinds.setdefault(changed_blocks(flat[[row]], BLOCKS)[0].astype(np.uint8).tobytes(), []).append(
                int(IDS[row])
            )
        masks = Masks.of(BLOCKS, kinds)
        return VectorIndex(OpenVectors(root, write_vectors(root, "b", name, Vectors(IDS[rows], flat[rows])), masks))

    found = opened("input", INPUTS, list(range(len(GROUPS))))
    adapters = [row for row, group in enumerate(GROUPS) if group != FULL]
    found.outputs = opened("adapter_output", OUTPUTS, adapters)
    found.adapters = AdapterIds.of([int(IDS[row]) for row in adapters], [GROUPS[row] for row in adapters])
    return found


@pytest.mark.parametrize("one", range(4))
@pytest.mark.parametrize("allowed", [None, IDS[[1, 2, 5, 8, 11]]])
def test_a_search_in_mixed_groups_finds_what_plain_loops_find(index, one, allowed):
    chosen = [row for row in range(len(GROUPS)) if row != one and (allowed is None or IDS[row] in allowed)]
    asked = index.table(IDS[[one]])
    found = index.search(asked, 5, IDS[chosen])
    expected = sorted(chosen, key=lambda row: -EXACT[one, row])[:5]
    assert [model_id for model_id, _ in found] == IDS[expected].tolist()
    np.testing.assert_allclose([value for _, value in found], EXACT[one, expected], atol=1e-6)
    exact = index.exact(asked, np.zeros(len(chosen), np.int64), IDS[chosen])
    np.testing.assert_allclose(exact, EXACT[one, chosen], atol=1e-6)
    shared = index.shared(asked, IDS[chosen])
    assert shared.tolist() == asked.shared(table().take(chosen)).tolist()


def test_lists_of_neighbours_and_orders_are_those_of_plain_loops(index):
    order = [[row for row in np.argsort(-EXACT[one], kind="stable") if row != one] for one in range(len(GROUPS))]
    lists, _ = nearest(index, [index.vectors()], 4)
    assert lists.neighbour.reshape(-1, 4).tolist() == [IDS[row[:4]].tolist() for row in order]
    np.testing.assert_allclose(
        lists.similarity.reshape(-1, 4), [EXACT[one, row[:4]] for one, row in enumerate(order)], atol=1e-6
    )
    whole = neighbour_order(table())
    assert [[place for place in row if place != one] for one, row in enumerate(whole.tolist())] == order


def test_points_have_the_similarities_of_pairs_as_nearly_as_points_can():
    placed = points(table())
    off = ~np.eye(len(GROUPS), dtype=bool)
    assert np.corrcoef((placed @ placed.T)[off], EXACT[off])[0, 1] > 0.9


def test_output_vectors_are_root_singular_values_of_left_singular_vectors():
    """Long sketches have the cosines of Σ √σ u uᵀ, and depend on nothing else of a change."""
    made = representation_named("adapter_output", 40_000)
    rng = np.random.default_rng(3)
    left, records = [], []
    for seed in range(2):
        matrices = random_matrices(seed, layers=1)
        for key in matrices:
            matrices[key] = matrices[key] + 1.5 * random_matrices(7, layers=1)[key]
        records.append(adapter(matrices))
        left.append(
            [(one.u.astype(float) * one.s.astype(float) ** OUTPUT_POWER) @ one.u.T for one in records[-1].deltas]
        )
        turned = {
            key: matrix @ np.linalg.qr(rng.normal(size=(matrix.shape[1],) * 2))[0] for key, matrix in matrices.items()
        }
        assert made.vector(adapter(turned)) == pytest.approx(made.vector(records[-1]), abs=2e-3)
    one, other = (made.vector(record).reshape(len(left[0]), -1) for record in records)
    for place, (first, second) in enumerate(zip(*left, strict=True)):
        exact = (first * second).sum() / np.linalg.norm(first) / np.linalg.norm(second)
        assert one[place] @ other[place] == pytest.approx(exact, abs=0.05)


@pytest.mark.slow
def test_a_start_that_two_adapters_share_makes_them_alike_by_input_but_not_by_the_rule():
    """The null of the rule: B of other data; with the rule it does not matter whether A is of one seed."""
    found = {(group, is_one): [] for group in (ADAPTER, BY_OUTPUT) for is_one in (False, True)}
    for draw in range(30):
        rng = np.random.default_rng(draw)
        for is_one in (False, True):
            starts = [rng.uniform(-1, 1, size=(4, 48)) for _ in range(2)]
            records = [
                adapter(
                    {(layer, "query"): rng.normal(size=(48, 4)) @ starts[0 if is_one else place] for layer in range(6)}
                )
                for place in range(2)
            ]
            sides = [
                np.stack([representation_named(name).vector(record) for record in records])
                for name in ("input", "adapter_output")
            ]
            for group in (ADAPTER, BY_OUTPUT):
                pair = VectorTable(sides[0], 6, sides[1], group_codes([group] * 2))
                found[group, is_one].append(pair.similarities(pair)[0, 1])
    means = {key: np.mean(values) for key, values in found.items()}
    assert means[ADAPTER, True] > means[ADAPTER, False] + 0.5
    assert means[BY_OUTPUT, True] == pytest.approx(means[BY_OUTPUT, False], abs=0.03)
