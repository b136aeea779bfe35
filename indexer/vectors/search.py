"""Search: the nearest of all vectors. A search compares all of them.

FAISS compares whole vectors. If vectors consist of blocks, an inner product is divided by the number of blocks that
both models changed (``indexer.vectors.masks``). The order of FAISS is right only among models with the same divisor, so
each such class of models is searched separately, and the nearest of all are among the nearest of the classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.machine import processors
from indexer.vectors.masks import changed_blocks, shared_blocks
from indexer.vectors.stored import (
    OpenVectors,
    Vectors,
    ascending,
    id_selector,
    one_thread,
    rows_of_block,
)
from indexer.vectors.table import AdapterIds, VectorTable, by_output
from indexer.vectors.ties import NEAR, TIE_STEPS, nearest_first, pair_products

# Fetch this many extra results, so that ties at rank k are resolved; fetch more if they all tie.
TIES = 64

# Bytes of vectors from which a second thread is worth its start, and that are compared as one piece.
_BYTES_OF_THREAD, _BYTES_OF_PART = 32 << 20, 128 << 20

# With more pairs than this for each model, equal vectors are found before pairs are compared.
_CROWDED = 8

Found = list[tuple[int, float]]

# Ids and their similarities.
_Compared = tuple[NDArray[np.int64], NDArray[np.float32]]


class VectorIndex:
    """All vectors of one base and representation.

    ``masks``: which blocks each model changed. ``outputs``: the vectors of output sides, by which pairs of ``adapters``
    are compared if the start of one is not known (``indexer.vectors.table``); None if there is no such pair.
    """

    def __init__(
        self, opened: OpenVectors, outputs: VectorIndex | None = None, adapters: AdapterIds | None = None
    ) -> None:
        self.opened = opened
        self.length, self.masks = opened.file.length, opened.masks
        self.outputs = outputs
        self.adapters = adapters or AdapterIds.none()

    def __len__(self) -> int:
        return len(self.opened)

    @property
    def ids(self) -> NDArray[np.int64]:
        """Ids of all models that have a vector, ascending."""
        return self.opened.ids

    def vectors(self) -> Vectors:
        """A copy of all vectors."""
        return self._copied(self.opened.vectors)

    def rows(self, ids: Sequence[int] | NDArray[np.int64]) -> Vectors:
        """A copy of the vectors of those of ``ids`` that have one."""
        return self._copied(self.opened.rows(ascending(ids)))

    @staticmethod
    def _copied(vectors: Vectors) -> Vectors:
        return Vectors(vectors.ids, vectors.copied(slice(None)), vectors.blocks)

    def table(self, ids: NDArray[np.int64]) -> VectorTable:
        """The vectors of these models (ascending), all of which have one of the input side."""
        inputs = self._matrix(ids)
        if self.outputs is None:
            return VectorTable(inputs, self.masks.blocks)
        outputs = np.zeros((len(ids), self.outputs.length), np.float32)
        vectors = self.outputs.rows(ids)
        outputs[np.searchsorted(ids, vectors.ids)] = vectors.matrix
        return VectorTable(inputs, self.masks.blocks, outputs, self.adapters.codes(ids))

    def shared(self, queries: VectorTable, ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64] | None:
        """(n,) how many blocks one model shares with each of these; None if vectors have no blocks."""
        if not self.masks.blocks:
            return None
        model_ids = np.asarray(ids, dtype=np.int64)
        query_blocks = changed_blocks(queries.inputs, self.masks.blocks)
        shared = shared_blocks(query_blocks, self.masks.rows(model_ids))[0].astype(np.int64)
        if (has_output := self._by_output(queries, model_ids)[0]).any():
            assert self.outputs is not None
            assert queries.outputs is not None
            of_outputs = changed_blocks(queries.outputs, self.outputs.masks.blocks)
            shared[has_output] = shared_blocks(of_outputs, self.outputs.masks.rows(model_ids[has_output]))[0]
        return shared

    def _by_output(self, queries: VectorTable, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(a, n): which pairs are compared by their output sides."""
        if self.outputs is None or queries.groups is None:
            return np.zeros((len(queries), len(ids)), bool)
        return by_output(queries.groups[:, None], self.adapters.codes(ids)[None, :])

    def search(self, query: VectorTable, k: int, allowed: Sequence[int] | NDArray[np.int64] | None = None) -> Found:
        """The k nearest (id, similarity) of one model, ties by id; ``allowed`` restricts the search to these ids.

        There are k results if there are k vectors.
        """
        candidate_ids = (
            self.ids if allowed is None else np.intersect1d(ascending(allowed), self.ids, assume_unique=True)
        )
        by_side = self._by_output(query, candidate_ids)[0]
        if not by_side.any():
            return self._search_side(query.inputs[0], k, None if allowed is None else candidate_ids)
        assert self.outputs is not None
        assert query.outputs is not None
        results = self._search_side(query.inputs[0], k, candidate_ids[~by_side])
        ids_with_outputs = np.intersect1d(candidate_ids[by_side], self.outputs.ids, assume_unique=True)
        results += self.outputs._search_side(query.outputs[0], k, ids_with_outputs)
        return sorted(results, key=lambda result: (-round(result[1] * TIE_STEPS), result[0]))[: max(k, 0)]

    def _search_side(self, query: NDArray[np.float32], k: int, candidate_ids: NDArray[np.int64] | None) -> Found:
        """``search`` by the vectors of one side, among ``candidate_ids`` (ascending)."""
        if k < 1 or not len(self) or (candidate_ids is not None and not len(candidate_ids)):
            return []
        parts = self._compared(query, k, candidate_ids)
        ids, similarities = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        nearest_pairs, _, similarities = nearest_first(
            np.zeros(len(ids), np.int64),
            ids,
            similarities,
            k,
            lambda rows, near: self._exact_side(query[None], rows, near),
        )
        return list(zip(ids[nearest_pairs].tolist(), similarities.tolist(), strict=True))

    def exact(self, queries: VectorTable, rows: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) similarities of the models at ``rows`` of ``queries`` with models ``ids`` that all have a vector.

        They are sums in double precision, the same for a pair whatever else is computed.
        """
        similarities = self._exact_side(queries.inputs, rows, ids)
        if self.outputs is None or queries.groups is None or queries.outputs is None:
            return similarities
        by_outputs = np.flatnonzero(by_output(queries.groups[rows], self.adapters.codes(ids)))
        similarities[by_outputs] = self.outputs._exact_side(queries.outputs, rows[by_outputs], ids[by_outputs])
        return similarities

    def _exact_side(
        self, queries: NDArray[np.float32], rows: NDArray[np.int64], ids: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        near, column = np.unique(ids, return_inverse=True)
        step = rows_of_block(self.length)
        if len(ids) > _CROWDED * (len(queries) + len(near)):
            # Most of many ties are between equal vectors, so one vector represents all that equal it.
            parts = (self._matrix(near[start : start + step]) for start in range(0, len(near), step))
            first_queries, first_near = _first_equal([queries])[rows], _first_equal(parts)[column]
            pairs, inverse = np.unique(first_queries * len(near) + first_near, return_inverse=True)
            if len(pairs) < len(ids):
                return self._exact_side(queries, pairs // len(near), near[pairs % len(near)])[inverse]
        by_column = np.argsort(column, kind="stable")
        products = np.empty(len(ids))
        # A stored vector is widened from 16 bits only once for all of its pairs.
        for start in range(0, len(near), step):
            pairs_of_tile = by_column[slice(*np.searchsorted(column[by_column], [start, start + step]))]
            stored = self._matrix(near[start : start + step])
            products[pairs_of_tile] = pair_products(queries, rows[pairs_of_tile], stored, column[pairs_of_tile] - start)
        return products / self.masks.divisors_by_kind(queries)[rows, self.masks.kinds_of(ids)]

    def _matrix(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """A copy of the vectors of ``ids`` (ascending), all of which have one."""
        return self.opened.rows(ids).matrix

    def _compared(self, query: NDArray[np.float32], k: int, candidate_ids: NDArray[np.int64] | None) -> list[_Compared]:
        """The k nearest of each part and all that nearly tie with the last of them."""
        # Kinds of models by their divisor; None stands for all models.
        classes: list[tuple[float, NDArray[np.bool_] | None]] = [(1.0, None)]
        if self.masks.blocks:
            divisors = self.masks.divisors_by_kind(query[None, :])[0]
            different = np.unique(divisors)
            classes = [(float(value), None if len(different) == 1 else divisors == value) for value in different]
        opened = self.opened
        parts = [(divisor, kinds, part) for divisor, kinds in classes for part in _parts(opened)]

        def nearest(divisor: float, kinds: NDArray[np.bool_] | None, part: _Part | None) -> _Compared:
            count = k + TIES
            while True:
                ids, products = _search(opened, query, min(count, len(opened)), candidate_ids, kinds, part)
                similarities = np.clip(products / divisor, -1.0, 1.0)
                # A tie with the last result may be missing only if the last is as near as the k-th.
                if len(ids) < count or similarities[k - 1] - similarities[-1] > NEAR:
                    return ids, similarities
                count *= 4

        threads = opened.file.bytes_of_vectors // _BYTES_OF_THREAD
        if threads < 2 or (threads := min(threads, processors())) < 2:
            return [nearest(*part) for part in parts]
        with ThreadPoolExecutor(threads) as pool:  # FAISS releases Python's lock
            return list(pool.map(lambda part: nearest(*part), parts))


def _first_equal(parts: Iterable[NDArray[np.float32]]) -> NDArray[np.int64]:
    """For every vector of all parts, numbered in order, the first that is equal to it."""
    first_of_digests: dict[bytes, int] = {}
    digests = (blake2b(vector, digest_size=16).digest() for part in parts for vector in part)
    return np.array(
        [first_of_digests.setdefault(digest, number) for number, digest in enumerate(digests)], dtype=np.int64
    )


# Ids from the first up to the second, without it.
_Part = tuple[int, int]


def _parts(opened: OpenVectors) -> list[_Part | None]:
    """Ranges of ids that threads compare one by one; None for all of them."""
    count = max(1, opened.file.bytes_of_vectors // _BYTES_OF_PART)
    if count == 1:
        return [None]
    ids = opened.ids
    bounds = [int(ids[len(ids) * number // count]) for number in range(count)]
    return list(zip(bounds, [*bounds[1:], int(ids[-1]) + 1], strict=True))


def _search(
    opened: OpenVectors,
    query: NDArray[np.float32],
    count: int,
    candidate_ids: NDArray[np.int64] | None,
    kinds: NDArray[np.bool_] | None,
    part: _Part | None,
) -> _Compared:
    """At most ``count`` of the candidates, of a ``part`` and some ``kinds`` of masks, with inner products."""
    import faiss

    selector: Any = None
    if candidate_ids is not None or kinds is not None:
        ids = opened.ids if candidate_ids is None else candidate_ids
        if kinds is not None:
            ids = ids[kinds[opened.masks.kinds_of(ids)]]
        count = min(count, len(ids))
        selector = id_selector(ids) if len(ids) else None
    if count < 1:
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    if part is not None:
        within = faiss.IDSelectorRange(*part)
        selector = within if selector is None else faiss.IDSelectorAnd(selector, within)
    parameters = faiss.SearchParameters(sel=selector) if selector is not None else None  # type: ignore[call-arg]
    with one_thread():
        (similarities,), (ids,) = opened.index.search(query[None, :], count, params=parameters)
    return ids[ids >= 0], similarities[ids >= 0]  # −1 if there are fewer
