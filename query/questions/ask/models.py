"""The models that texts are compared with. An atlas may hold 100,000, so there is no Python object for each.

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
_FEWEST_MODELS = 3  # whose rows have a mean worth subtracting
_NOTHING_LEFT = 1e-10  # of a squared norm; less is rounding
# The size that each code stands for; nothing is known of an unsure or a missing row.
_SIZES = np.nan_to_num(sizes_of(np.arange(256, dtype=np.uint8))).astype(np.float32)


@dataclass(frozen=True)
class Candidates:
    """Distinct models of a base; entry i of every column is the same model.

    ``ids`` ascend. ``codes`` (n, rows): how far each row of the input embedding moved; zeros for a model that says
    nothing of that. ``is_share`` (n,): see ``RowChanges``. ``newcomer``: the vector of one more model, which comes last
    and has the id -1 if it is not indexed; it was read for this question, or is a duplicate. ``left_out``: the models
    of the base that are not among these.
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

    def only(self, places: NDArray[np.intp]) -> Candidates:
        """Some of the models, without a newcomer."""
        return replace(
            self, ids=self.ids[places], codes=self.codes[places], is_share=self.is_share[places], newcomer=None
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

        The vectors are read once for all groups. Groups are multiplied apart, so that one has the same digits whatever
        the others are.
        """
        found = [np.zeros((len(one.blocks), len(self))) for one in groups]
        masks, indexed = self.index.masks, len(self) - (self.newcomer is not None)
        divisors = [masks.divisors_by_kind(one.blocks) for one in groups]

        def compare(tile: tuple[NDArray[np.intp], NDArray[np.floating], NDArray[np.intp] | slice]) -> None:
            places, stored, rows = tile
            vectors, kinds = np.asarray(stored, dtype=np.float32).T, masks.kinds_of(self.ids[places])
            for one, cosines, divisor in zip(groups, found, divisors, strict=True):
                cosines[:, places] = (one.blocks @ vectors)[:, rows] / divisor[:, kinds]

        with one_blas_thread(), ThreadPoolExecutor(processors()) as pool:
            list(pool.map(compare, self._tiles(self.ids[:indexed])))
        if self.newcomer is not None:
            for one, cosines in zip(groups, found, strict=True):
                cosines[:, -1:] = similarities(one.blocks, self.newcomer[None, :], masks.blocks)
        return found

    def _tiles(
        self, ids: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.floating], NDArray[np.intp] | slice]]:
        """Places of some models, a tile of stored vectors, and the rows of it that are theirs."""
        step = max(1, _TILE_BYTES // (4 * self.index.length))
        found = self.index.opened.rows(ids)
        assert found.places is not None
        places = np.searchsorted(ids, found.ids)
        for start in range(0, len(found), step):
            tile = slice(start, start + step)
            rows = found.places[tile]
            first, last = int(rows[0]), int(rows[-1])
            # Neighbouring rows are converted without a copy before, which takes a third longer.
            if last - first < 2 * len(rows):
                yield places[tile], found.stored[first : last + 1], rows - first
            else:
                yield places[tile], found.stored[rows], slice(None)

    def by_vocabulary(self, groups: Sequence[Features], reference: NDArray[np.float32]) -> list[Floats]:
        """For each group (sets, n) the cosine of √rates minus √reference with the change of a model, minus their mean.

        A change is the sizes of the changes of the token rows, scaled to unit norm; the mean is that of all models. NaN
        for a model without: an adapter, a frozen embedding.
        """
        asked = [np.sqrt(one.rates) - np.sqrt(reference) for one in groups]
        for one in asked:
            one /= np.maximum(np.linalg.norm(one, axis=1, keepdims=True), 1e-30)
        found = [np.full((len(one), len(self)), np.nan) for one in asked]
        has_vocabulary = self.has_vocabulary
        for kind in (True, False):  # numbers of tied and of untied embeddings mean different things
            own = np.flatnonzero((self.is_share == kind) & has_vocabulary)
            if len(own) >= _FEWEST_MODELS:
                for cosines, those in zip(found, self._centred_cosines(asked, own), strict=True):
                    cosines[:, own] = those
        return found

    def _centred_cosines(self, asked: Sequence[NDArray[np.float32]], chosen: NDArray[np.intp]) -> list[Floats]:
        """For each group (a, n) the cosines with the unit vectors u of the chosen models minus their mean m.

        All follow from products with u and ‖u − m‖² = ‖u‖² − 2 u·m + ‖m‖².
        """
        step = max(1, _TILE_BYTES // (4 * max(1, self.codes.shape[1])))
        tiles = [slice(start, start + step) for start in range(0, len(chosen), step)]
        norms, products = np.zeros(len(chosen)), [np.zeros((len(one) + 1, len(chosen))) for one in asked]

        def sizes(tile: slice) -> NDArray[np.float32]:
            return np.take(_SIZES, self.codes[chosen[tile]])

        def summed(tile: slice) -> NDArray[np.float32]:
            some = sizes(tile)
            norms[tile] = np.maximum(np.sqrt(np.einsum("ij,ij->i", some, some)), _NOTHING_LEFT)
            return (1 / norms[tile]).astype(np.float32) @ some

        def multiply(tile: slice) -> None:
            moved = sizes(tile).T
            for one, product in zip(both, products, strict=True):
                product[:, tile] = one @ moved

        with one_blas_thread(), ThreadPoolExecutor(processors()) as pool:
            mean: Floats = np.stack(list(pool.map(summed, tiles))).sum(axis=0, dtype=np.float64) / len(chosen)
            both = [np.concatenate([one, mean.astype(np.float32)[None]]) for one in asked]
            list(pool.map(multiply, tiles))

        def cosines(one: NDArray[np.float32], product: Floats) -> Floats:
            product /= norms
            left = (norms > _NOTHING_LEFT) - 2 * product[-1] + mean @ mean
            centred = product[:-1] - (one @ mean)[:, None]
            return np.divide(centred, np.sqrt(left), out=np.zeros_like(centred), where=left > _NOTHING_LEFT)

        return [cosines(one, product) for one, product in zip(asked, products, strict=True)]

    @property
    def has_vocabulary(self) -> NDArray[np.bool_]:
        """(n,) whether some row is known to have moved."""
        return np.asarray(self.codes.any(axis=1))


def read_candidates(atlas: AtlasReader, base: str, rows: int) -> Candidates:
    """The models of a base that have a vector, without copies, unrelated models and repeats.

    The representative of a duplicate group is taken, or the lowest id if that one is left out. ``rows``: how many token
    rows are read of a model.
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
    kept = np.flatnonzero(~is_copy & ~is_unrelated & ~is_earlier)
    groups = np.asarray(table["duplicate_group"], dtype=np.int64)[kept]
    order = kept[np.lexsort((ids[kept], is_repeat[kept], groups))]
    first = np.unique(np.sort(groups), return_index=True)[1]
    chosen = np.sort(order[first])
    left_out = LeftOut(
        copies=int((is_copy & ~is_untrained).sum()),
        untrained=int(is_untrained.sum()),
        unrelated=int((is_unrelated & ~is_copy).sum()),
        duplicates=len(kept) - len(chosen),
        checkpoints=int((is_earlier & ~is_copy & ~is_unrelated).sum()),
    )
    codes, is_share = _token_codes(atlas, base, ids[chosen], rows)
    return Candidates(base, index, ids[chosen], codes, is_share, left_out=left_out)


def _token_codes(
    atlas: AtlasReader, base: str, ids: NDArray[np.int64], rows: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """(n, rows) the codes of the models, zeros for one without; and (n,) what they stand for."""
    codes, is_share = np.zeros((len(ids), rows), np.uint8), np.zeros(len(ids), bool)
    statement = (
        "SELECT model_id, is_share, codes FROM (SELECT model_id, coalesce(token_is_share, false) AS is_share, "
        "TRY(from_base64(token_codes)) AS codes FROM records JOIN fine_tunes USING (model_id) WHERE base = $1 "
        "AND token_class IN ('exact', 'statistical') AND isfinite(token_scale) AND token_scale > 0 "
        f"AND base_token_rows BETWEEN 1 AND {MOST_ROWS}) WHERE octet_length(codes) = $2"
    )
    for batch in atlas.connection.batches(statement, 1 << 14, [base, rows]):
        found = np.asarray(batch.column("model_id"), dtype=np.int64)
        if not len(found):
            continue
        column = batch.column("codes")
        start = int(np.frombuffer(column.buffers()[1], np.int32)[column.offset])
        held = np.frombuffer(column.buffers()[2], np.uint8)[start : start + rows * len(found)].reshape(-1, rows)
        places = np.searchsorted(ids, found).clip(max=max(len(ids) - 1, 0))
        mine = np.flatnonzero(ids[places] == found) if len(ids) else np.zeros(0, np.intp)
        codes[places[mine]] = held[mine]
        is_share[places[mine]] = np.asarray(batch.column("is_share"))[mine]
    return codes, is_share
