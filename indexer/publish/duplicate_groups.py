"""Duplicate groups in the database: after a change only pairs that it touches are compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from indexer.errors import AtlasError
from indexer.publish.duplicates import UnionFind, Upload, find_duplicates
from indexer.publish.tables import Tables
from indexer.records.difference import difference_of, norms_fit, relative_difference
from indexer.records.signature import alike, signatures_from
from indexer.records.store import RecordStore


class DuplicateGroups:
    """The duplicate groups of one base. ``within``: how far two models may differ and still be one."""

    def __init__(self, tables: Tables, store: RecordStore, base: str, within: float) -> None:
        self.tables = tables
        self.base = base
        self.within = within
        self.read = lru_cache(maxsize=64)(store.read)

    def members_with(self, model_ids: Sequence[int]) -> set[int]:
        """These models and all that share a group with one of them now: what a change of these may set apart."""
        if not model_ids:
            return set()
        with self.tables.listed(model_ids):
            rows = self.tables.rows(
                "SELECT model_id FROM records WHERE duplicate_group IN (SELECT duplicate_group FROM records "
                "WHERE model_id IN (SELECT model_id FROM listed))"
            )
        return {*model_ids, *(model_id for (model_id,) in rows)}

    def renew(self, touched: Iterable[int]) -> None:
        """Compare the near pairs of the ``touched`` models, and say anew who is whose duplicate."""
        uploads = [
            Upload(model_id, created, tuple(sorted(hashes)) if hashes and all(hashes) else ())
            for model_id, created, hashes in self.tables.rows(
                "SELECT model_id, created, list_transform(weight_files, lambda f: f.sha256) FROM records "
                "JOIN fine_tunes USING (model_id) WHERE base = ? AND NOT is_copy ORDER BY model_id",
                [self.base],
            )
        ]
        model_ids = sorted(touched)
        self._forget(model_ids)
        self._compare(model_ids, UnionFind(uploads))
        compared = self.tables.rows("SELECT model_id, other_id, difference FROM internal.compared_deltas ORDER BY ALL")
        self._write(find_duplicates(uploads, compared, self.within))

    def _forget(self, model_ids: Sequence[int]) -> None:
        with self.tables.listed(model_ids):
            self.tables.run(
                "DELETE FROM internal.compared_deltas WHERE model_id IN (SELECT model_id FROM listed) "
                "OR other_id IN (SELECT model_id FROM listed)"
            )

    def _compare(self, model_ids: Sequence[int], groups: UnionFind) -> None:
        """Note how far near pairs differ, but for pairs that are in one group already: reading records takes long."""
        found = []
        for one, other, first_key, second_key in self._near_pairs(model_ids):
            if groups.are_together(one, other):
                continue
            try:
                difference = difference_of(self.read(first_key), self.read(second_key))
            except AtlasError:  # a damaged record is no reason to publish nothing: `index verify` names it
                continue
            found.append({"model_id": one, "other_id": other, "difference": difference})
            if difference <= self.within:
                groups.join(one, other)
        self.tables.insert("internal.compared_deltas", found)

    def _near_pairs(self, model_ids: Sequence[int]) -> list[tuple[int, int, str, str]]:
        """(model id, other id, their records) of like signatures and norms, each pair once, the smaller id first."""
        rows = self.tables.rows(
            "SELECT model_id, fine_tunes.record_key, signature, delta_norm, "
            "coalesce(delta_norm / nullif(relative_norm, 0), 0) FROM records JOIN fine_tunes USING (model_id) "
            "WHERE base = ? AND NOT is_copy AND signature IS NOT NULL ORDER BY model_id",
            [self.base],
        )
        if not rows:
            return []
        touched = np.flatnonzero(np.isin([row[0] for row in rows], model_ids))
        found = set()
        for mine, others in alike(signatures_from([row[2] for row in rows]), touched):
            for one, other in zip(mine.tolist(), others.tolist(), strict=True):
                first, second = rows[min(one, other)], rows[max(one, other)]
                is_near = relative_difference(first[3], second[3]) <= self.within
                if is_near or norms_fit(first[3], second[3], first[4]):
                    found.add((first[0], second[0], first[1], second[1]))
        return sorted(found)

    def _write(self, groups: dict[int, int]) -> None:
        """Only rows that say something else than before are written."""
        self.tables.connection.register("groups", _table(groups))
        self.tables.run(
            "UPDATE records SET duplicate_group = said.first, "
            "duplicate_of = CASE WHEN said.first <> records.model_id THEN said.first END "
            "FROM (SELECT model_id, first FROM fine_tunes LEFT JOIN groups USING (model_id) WHERE base = ?) AS said "
            "WHERE records.model_id = said.model_id AND records.duplicate_group IS DISTINCT FROM said.first",
            [self.base],
        )
        self.tables.connection.unregister("groups")


def _table(groups: dict[int, int]) -> object:
    import pyarrow

    return pyarrow.table(
        {
            "model_id": pyarrow.array(list(groups), pyarrow.int32()),
            "first": pyarrow.array(list(groups.values()), pyarrow.int32()),
        }
    )
