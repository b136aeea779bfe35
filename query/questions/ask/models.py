"""The models that texts are compared with. An atlas may contain 100,000, so there is no Python object for each.

Vectors are read in tiles from the mapped files, and token rows as one byte each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexer.machine import processors
from indexer.records.tokens import FROZEN, sizes_of
from indexer.shared_state import one_blas_thread
from query.models.population import LeftOut
from query.questions.trace.evidence import MOST_ROWS, TokenEvidence
from query.shared.statistics.likeness import similarities

if TYPE_CHECKING:
    from indexer.vectors.search import VectorIndex
    from query.models.reader import AtlasReader
    from query.questions.ask.evidence import Features

Floats = NDArray[np.float64]

_TILE_BYTES = 4 << 20
_FEWEST_MODELS = 3  # with fewer models, the mean of their rows is not subtracted
_NOTHING_LEFT = 1e-10  # of a squared norm; less is rounding
# The size of each code; 0 for an unsure or a missing row.
_SIZES = np.nan_to_num(sizes_of(np.arange(256, dtype=np.uint8))).astype(np.float32)


@dataclass(frozen=True)
class Candidates:
    """Distinct models of a base; entry i of every column is the same model.

    Attributes:
        base: the base.
        index: the vectors of the base.
        ids: (n,) ascending.
        codes: (n, rows) how far each row of the input embedding moved; zeros if that is not known of a model.
        is_share: (n,) see ``RowChanges``.
        newcomer: the vector of one more model, which comes last and has the id -1 if it is not indexed. It was read for
            this question, or is a duplicate.
        left_out: counts of the other models of the base.
    """

    base: str
    index: VectorIndex
    ids: NDArray[np.int64]
    codes: NDArray[np.uint8]
    is_share: NDArray[np.bool_]
    newcomer: NDArray[np.float32] | None = None
    left_out: LeftOut = field(default_factory=LeftOut)

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, indices: NDArray[np.intp]) -> Candidates:
        """Some of the models, without a newcomer."""
        return replace(
            self, ids=self.ids[indices], codes=self.codes[indices], is_share=self.is_share[indices], newcomer=None
        )

    def with_newcomer(self, vector: NDArray[np.float32], model_id: int, evidence: TokenEvidence | None) -> Candidates:
        """The same and one more model."""
        codes, is_share = np.zeros(self.codes.shape[1], np.uint8), False
        if evidence is not None and evidence.kind != FROZEN and evidence.codes.shape == codes.shape:
            codes, is_share = evidence.codes, evidence.is_share
        return replace(
            self, ids=np.append(self.ids, model_id), codes=np.concatenate([self.codes, codes[None]]),
            is_share=np.append(self.is_share, is_share), newcomer=vector,
        )  # fmt: skip

    def by_vectors(self, groups: Sequence[Features]) -> list[Floats]:
        """For each group (sets, n) the mean cosine of the blocks that a set of texts and a model both have.

        The vectors are read once for all groups. Each group is multiplied separately, so that its digits do not depend
        on the others.
        """
        cosines_of_groups = [np.zeros((len(features.blocks), len(self))) for features in groups]
        masks, indexed = self.index.masks, len(self) - (self.newcomer is not None)
        divisors = [masks.divisors_by_kind(features.blocks) for features in groups]

        def compare(tile: tuple[NDArray[np.intp], NDArray[np.floating], NDArray[np.intp] | slice]) -> None:
            indices, stored_vectors, rows = tile
            vectors, kinds = np.asarray(stored_vectors, dtype=np.float32).T, masks.kinds_of(self.ids[indices])
            for features, cosines, divisor in zip(groups, cosines_of_groups, divisors, strict=True):
                cosines[:, indices] = (features.blocks @ vectors)[:, rows] / divisor[:, kinds]

        with one_blas_thread(), ThreadPoolExecutor(processors()) as pool:
            list(pool.map(compare, self._tiles(self.ids[:indexed])))
        if self.newcomer is not None:
            for features, cosines in zip(groups, cosines_of_groups, strict=True):
                cosines[:, -1:] = similarities(features.blocks, self.newcomer[None, :], masks.blocks)
        return cosines_of_groups

    def _tiles(
        self, ids: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.floating], NDArray[np.intp] | slice]]:
        """Indices of some models, a tile of stored vectors, and the rows of the tile with their vectors."""
        step = max(1, _TILE_BYTES // (4 * self.index.length))
        table = self.index.opened.rows(ids)
        assert table.places is not None
        indices = np.searchsorted(ids, table.ids)
        for start in range(0, len(table), step):
            tile = slice(start, start + step)
            rows = table.places[tile]
            first, last = int(rows[0]), int(rows[-1])
            # Neighbouring rows are converted without a copy before, which takes a third longer.
            if last - first < 2 * len(rows):
                yield indices[tile], table.stored[first : last + 1], rows - first
            else:
                yield indices[tile], table.stored[rows], slice(None)

    def by_vocabulary(self, groups: Sequence[Features], reference: NDArray[np.float32]) -> list[Floats]:
        """For each group (sets, n) the cosine of √rates minus √reference with the change of a model, minus their mean.

        A change is the sizes of the changes of the token rows, scaled to unit norm; the mean is over all models. NaN
        for a model without such changes: an adapter, or a frozen embedding.
        """
        deviations = [np.sqrt(features.rates) - np.sqrt(reference) for features in groups]
        for deviation in deviations:
            deviation /= np.maximum(np.linalg.norm(deviation, axis=1, keepdims=True), 1e-30)
        cosines_of_groups = [np.full((len(deviation), len(self)), np.nan) for deviation in deviations]
        has_vocabulary = self.has_vocabulary
        for kind in (True, False):  # numbers of tied and of untied embeddings mean different things
            members = np.flatnonzero((self.is_share == kind) & has_vocabulary)
            if len(members) >= _FEWEST_MODELS:
                for cosines, centred in zip(cosines_of_groups, self._centred_cosines(deviations, members), strict=True):
                    cosines[:, members] = centred
        return cosines_of_groups

    def _centred_cosines(self, deviations: Sequence[NDArray[np.float32]], model_rows: NDArray[np.intp]) -> list[Floats]:
        """For each group (a, n) the cosines with the unit vectors u of the chosen models minus their mean m.

        All follow from products with u and ‖u − m‖² = ‖u‖² − 2 u·m + ‖m‖².
        """
        step = max(1, _TILE_BYTES // (4 * max(1, self.codes.shape[1])))
        tiles = [slice(start, start + step) for start in range(0, len(model_rows), step)]
        norms, products = (
            np.zeros(len(model_rows)),
            [np.zeros((len(deviation) + 1, len(model_rows))) for deviation in deviations],
        )

        def sizes(tile: slice) -> NDArray[np.float32]:
            return np.take(_SIZES, self.codes[model_rows[tile]])

        def summed(tile: slice) -> NDArray[np.float32]:
            block = sizes(tile)
            norms[tile] = np.maximum(np.sqrt(np.einsum("ij,ij->i", block, block)), _NOTHING_LEFT)
            return (1 / norms[tile]).astype(np.float32) @ block

        def multiply(tile: slice) -> None:
            moved = sizes(tile).T
            for factors, product in zip(with_mean, products, strict=True):
                product[:, tile] = factors @ moved

        with one_blas_thread(), ThreadPoolExecutor(processors()) as pool:
            mean: Floats = np.stack(list(pool.map(summed, tiles))).sum(axis=0, dtype=np.float64) / len(model_rows)
            with_mean = [np.concatenate([deviation, mean.astype(np.float32)[None]]) for deviation in deviations]
            list(pool.map(multiply, tiles))

        def cosines(deviation: NDArray[np.float32], product: Floats) -> Floats:
            product /= norms
            square = (norms > _NOTHING_LEFT) - 2 * product[-1] + mean @ mean
            centred = product[:-1] - (deviation @ mean)[:, None]
            return np.divide(centred, np.sqrt(square), out=np.zeros_like(centred), where=square > _NOTHING_LEFT)

        return [cosines(deviation, product) for deviation, product in zip(deviations, products, strict=True)]

    @property
    def has_vocabulary(self) -> NDArray[np.bool_]:
        """(n,) whether some row is known to have moved."""
        return np.asarray(self.codes.any(axis=1))


def read_candidates(atlas: AtlasReader, base: str, rows: int) -> Candidates:
    """The models of a base that have a vector, without copies, unrelated models and repeats.

    One model of a duplicate group is used: its representative, or the lowest id if that is left out. ``rows``: how many
    token rows are read of a model.
    """
    index = atlas.index(base)
    table = atlas.connection.execute(
        "SELECT model_id, is_copy, coalesce(copy_evidence, '') IN ('untrained', 'unmeasurable') AS is_untrained, "
        "is_unrelated, coalesce(duplicate_group, -1 - model_id) AS duplicate_group, "
        "duplicate_of IS NOT NULL AS is_repeat, is_earlier_checkpoint FROM fine_tunes JOIN records USING (model_id) "
        "WHERE base = $1 AND status = 'indexed' ORDER BY model_id", [base],
    ).fetchnumpy()  # fmt: skip
    ids = np.asarray(table["model_id"], dtype=np.int64)
    is_copy, is_untrained, is_unrelated, is_repeat, is_earlier = (
        np.ma.filled(table[name], False).astype(bool)
        for name in ("is_copy", "is_untrained", "is_unrelated", "is_repeat", "is_earlier_checkpoint")
    )
    is_copy |= ~np.isin(ids, index.ids)  # the vectors of copies are zero, and zero vectors are not published
    eligible = np.flatnonzero(~is_copy & ~is_unrelated & ~is_earlier)
    groups = np.asarray(table["duplicate_group"], dtype=np.int64)[eligible]
    order = eligible[np.lexsort((ids[eligible], is_repeat[eligible], groups))]
    first = np.unique(np.sort(groups), return_index=True)[1]
    leaders = np.sort(order[first])
    left_out = LeftOut(
        copies=int((is_copy & ~is_untrained).sum()),
        untrained=int(is_untrained.sum()),
        unrelated=int((is_unrelated & ~is_copy).sum()),
        duplicates=len(eligible) - len(leaders),
        checkpoints=int((is_earlier & ~is_copy & ~is_unrelated).sum()),
    )
    codes, is_share = _token_codes(atlas, base, ids[leaders], rows)
    return Candidates(base, index, ids[leaders], codes, is_share, left_out=left_out)


def _token_codes(
    atlas: AtlasReader, base: str, ids: NDArray[np.int64], rows: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """(n, rows) the codes of the models, zeros for a model without; and (n,) whether they are shares."""
    codes, is_share = np.zeros((len(ids), rows), np.uint8), np.zeros(len(ids), bool)
    statement = (
        "SELECT model_id, is_share, codes FROM (SELECT model_id, coalesce(token_is_share, false) AS is_share, "
        "TRY(from_base64(token_codes)) AS codes FROM records JOIN fine_tunes USING (model_id) WHERE base = $1 "
        "AND token_class IN ('exact', 'statistical') AND isfinite(token_scale) AND token_scale > 0 "
        f"AND base_token_rows BETWEEN 1 AND {MOST_ROWS}) WHERE octet_length(codes) = $2"
    )
    for batch in atlas.connection.batches(statement, 1 << 14, [base, rows]):
        batch_ids = np.asarray(batch.column("model_id"), dtype=np.int64)
        if not len(batch_ids):
            continue
        column = batch.column("codes")
        start = int(np.frombuffer(column.buffers()[1], np.int32)[column.offset])
        batch_codes = np.frombuffer(column.buffers()[2], np.uint8)[start : start + rows * len(batch_ids)].reshape(
            -1, rows
        )
        indices = np.searchsorted(ids, batch_ids).clip(max=max(len(ids) - 1, 0))
        matches = np.flatnonzero(ids[indices] == batch_ids) if len(ids) else np.zeros(0, np.intp)
        codes[indices[matches]] = batch_codes[matches]
        is_share[indices[matches]] = np.asarray(batch.column("is_share"))[matches]
    return codes, is_share
