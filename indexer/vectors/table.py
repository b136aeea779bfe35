"""Vectors of models that are compared with each other, and the rule that says by which vectors.

Two models are compared by their input sides, but not two adapters of which one began at unknown random numbers: its
input side holds these numbers, and those of the other one may be the same. Such a pair is compared by output sides
(docs/evidence/vectors.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.centre import ADAPTER, BY_OUTPUT, FULL, GROUPS
from indexer.vectors.masks import changed_blocks, divisors, shared_blocks
from indexer.vectors.ties import pair_products

Reals = NDArray[np.floating[Any]]
Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]

_FULL, _UNKNOWN = GROUPS.index(FULL), GROUPS.index(BY_OUTPUT)


def group_codes(groups: Sequence[str | None]) -> Codes:
    """(n,) the places in GROUPS; a model of no known group counts as a full fine-tune."""
    codes = {name: number for number, name in enumerate(GROUPS)}
    return np.array([codes.get(group or FULL, _FULL) for group in groups], dtype=np.uint8)


def by_output(codes: Codes, other_codes: Codes) -> NDArray[np.bool_]:
    """Whether models of these groups, of any shapes that go together, are compared by their output sides."""
    are_adapters = (codes != _FULL) & (other_codes != _FULL)
    is_by_output: NDArray[np.bool_] = are_adapters & ((codes == _UNKNOWN) | (other_codes == _UNKNOWN))
    return is_by_output


@dataclass(frozen=True, eq=False)
class AdapterIds:
    """Ids of the adapters of a base, ascending, by whether their start is known."""

    known: NDArray[np.int64]
    unknown: NDArray[np.int64]

    @classmethod
    def none(cls) -> AdapterIds:
        """There are only full fine-tunes."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))

    @classmethod
    def of(cls, ids: Iterable[int], groups: Iterable[str]) -> AdapterIds:
        """From ids and the groups of their models."""
        by_group: dict[str, list[int]] = {}
        for model_id, group in zip(ids, groups, strict=True):
            by_group.setdefault(group, []).append(model_id)
        return cls(*(np.array(sorted(by_group.get(name, ())), np.int64) for name in (ADAPTER, BY_OUTPUT)))

    def codes(self, ids: NDArray[np.int64]) -> Codes:
        """(n,) codes of the groups of these models."""
        codes = np.full(len(ids), _FULL, np.uint8)
        for name, members in ((ADAPTER, self.known), (BY_OUTPUT, self.unknown)):
            codes[np.isin(ids, members)] = GROUPS.index(name)
        return codes


@dataclass(frozen=True, eq=False)
class VectorTable:
    """Vectors of models; row i of every array is the same model.

    ``inputs``: (n, d) float32 of unit norm or, with ``blocks``, of blocks of unit norm that are compared one by one;
    zero if a model has none. ``outputs``: (n, e), the same of output sides with as many blocks; None if all pairs are
    compared by input sides. ``groups``: (n,) codes of groups, only with ``outputs``.
    """

    inputs: Floats
    blocks: int = 0
    outputs: Floats | None = None
    groups: Codes | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows: Any) -> VectorTable:
        """The models at these rows."""
        return VectorTable(
            self.inputs[rows],
            self.blocks,
            None if self.outputs is None else self.outputs[rows],
            None if self.groups is None else self.groups[rows],
        )

    def with_last(self, other: VectorTable) -> VectorTable:
        """These models and those of another table of the same vectors behind them."""
        inputs = np.concatenate([self.inputs.reshape(-1, other.inputs.shape[1]), other.inputs])
        if self.outputs is None or other.outputs is None or self.groups is None or other.groups is None:
            return VectorTable(inputs, other.blocks)
        return VectorTable(
            inputs,
            other.blocks,
            np.concatenate([self.outputs, other.outputs]),
            np.concatenate([self.groups, other.groups]),
        )

    def like(self, inputs: Floats) -> VectorTable:
        """The same models with other vectors in place of the input sides."""
        return replace(self, inputs=inputs)

    @property
    def has_vector(self) -> NDArray[np.bool_]:
        """(n,) whether a model has a vector."""
        return np.asarray(self.inputs.any(axis=1))

    @property
    def is_plain(self) -> bool:
        """Whether all models have all blocks and are compared by input sides: then whole vectors give similarities."""
        return not self.blocks or (self.outputs is None and bool(changed_blocks(self.inputs, self.blocks).all()))

    def similarities(self, other: VectorTable, dtype: Any = np.float32) -> Reals:
        """(n, m) with the models of another table, or of this one."""
        similarities = block_similarities(self.inputs.astype(dtype), other.inputs.astype(dtype), self.blocks)
        for is_by_output, rows, columns in self._output_pairs(other):
            assert self.outputs is not None
            assert other.outputs is not None
            sides = (self.outputs[rows].astype(dtype), other.outputs[columns].astype(dtype))
            similarities[np.ix_(rows, columns)] = np.where(
                is_by_output, block_similarities(*sides, self.blocks), similarities[np.ix_(rows, columns)]
            )
        return similarities

    def pairs(self, rows: NDArray[np.int64], other: VectorTable, columns: NDArray[np.int64]) -> NDArray[np.float64]:
        """(p,) similarities in double precision of models at ``rows`` with those of another table at ``columns``."""
        similarities = _pairs(self.inputs, rows, other.inputs, columns, self.blocks)
        if self.outputs is None or other.outputs is None or self.groups is None or other.groups is None:
            return similarities
        by_outputs = np.flatnonzero(by_output(self.groups[rows], other.groups[columns]))
        similarities[by_outputs] = _pairs(
            self.outputs, rows[by_outputs], other.outputs, columns[by_outputs], self.blocks
        )
        return similarities

    def shared(self, other: VectorTable) -> NDArray[np.int64]:
        """(m,) how many blocks the only model of this table shares with each of another one."""
        return np.asarray(self._products(other)[0].sum(axis=1), dtype=np.int64)

    def parts(self, other: VectorTable) -> NDArray[np.float64]:
        """(m, blocks): what each block adds to the similarity of the only model of this table with each of another."""
        shared, products = self._products(other)
        return products / divisors(shared.sum(axis=1, dtype=np.float32), self.blocks)[:, None]

    def cosines(self, other: VectorTable) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """(m, blocks): the similarities of blocks with those of each of another table, and whether both have it."""
        shared, products = self._products(other)
        return np.clip(products, -1.0, 1.0), shared

    def products(self, other: VectorTable) -> NDArray[np.float64]:
        """(m, blocks): the products of the blocks of the only model of this table with those of each of another."""
        return self._products(other)[1]

    def _products(self, other: VectorTable) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """For one model and (m,) others: the blocks that both have, and their products."""
        query = self.inputs.astype(np.float64).reshape(1, self.blocks, -1)
        blocks = other.inputs.astype(np.float64).reshape(len(other), self.blocks, query.shape[2])
        shared, products = np.asarray(query.any(axis=2) & blocks.any(axis=2)), (query * blocks).sum(axis=2)
        for is_by_output, _, positions in self._output_pairs(other):
            assert self.outputs is not None
            assert other.outputs is not None
            rows = positions[is_by_output[0]]
            query = self.outputs.astype(np.float64).reshape(1, self.blocks, -1)
            blocks = other.outputs[rows].astype(np.float64).reshape(len(rows), self.blocks, -1)
            shared[rows], products[rows] = query.any(axis=2) & blocks.any(axis=2), (query * blocks).sum(axis=2)
        return shared, products

    def _output_pairs(self, other: VectorTable) -> list[tuple[NDArray[np.bool_], NDArray[np.intp], NDArray[np.intp]]]:
        """The adapters of both tables, and which pairs of them are compared by output sides; none if there is none."""
        if self.outputs is None or other.outputs is None or self.groups is None or other.groups is None:
            return []
        rows, columns = np.flatnonzero(self.groups != _FULL), np.flatnonzero(other.groups != _FULL)
        is_by_output = by_output(self.groups[rows][:, None], other.groups[columns][None, :])
        return [(is_by_output, rows, columns)] if is_by_output.any() else []


def block_similarities(vectors: Reals, other_vectors: Reals, blocks: int = 0) -> Reals:
    """(a, b) from (a, d) and (b, d) vectors of ``blocks`` of unit norm, or of unit norm as a whole (0)."""
    products: Reals = vectors @ other_vectors.T
    if not blocks:
        return products
    shared = shared_blocks(changed_blocks(vectors, blocks), changed_blocks(other_vectors, blocks))
    return products / divisors(shared, blocks)


def _pairs(
    vectors: Floats, rows: NDArray[np.int64], other_vectors: Floats, columns: NDArray[np.int64], blocks: int
) -> NDArray[np.float64]:
    products = pair_products(vectors, rows, other_vectors, columns)
    if not blocks:
        return products
    shared = changed_blocks(vectors, blocks)[rows] & changed_blocks(other_vectors, blocks)[columns]
    return products / divisors(shared.sum(axis=1, dtype=np.float32), blocks)


__all__ = ["ADAPTER", "BY_OUTPUT", "FULL", "VectorTable", "block_similarities", "by_output", "group_codes"]
