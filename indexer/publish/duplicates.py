"""Duplicates: models that were uploaded before, byte for byte or in another file format.

After a change only pairs that contain a changed model are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import numpy as np

from indexer.errors import AtlasError
from indexer.publish.tables import Tables
from indexer.records.difference import alike, difference_of, norms_fit, relative_difference, signatures_from
from indexer.records.store import RecordStore


@dataclass(frozen=True)
class Upload:
    """What decides whether two models are duplicates, and which of them came first."""

    model_id: int
    created: datetime | None
    file_hashes: tuple[str, ...]


class UnionFind:
    """Union–find (Galler & Fischer, 1964), initialised with the models of equal file hashes."""

    def __init__(self, uploads: Sequence[Upload]) -> None:
        self._leader = {upload.model_id: upload.model_id for upload in uploads}
        seen: dict[tuple[str, ...], int] = {}
        for upload in uploads:
            if upload.file_hashes:
                self.join(upload.model_id, seen.setdefault(upload.file_hashes, upload.model_id))

    def find(self, model_id: int) -> int:
        """The representative of the group of a model."""
        while self._leader[model_id] != model_id:
            self._leader[model_id] = self._leader[self._leader[model_id]]
            model_id = self._leader[model_id]
        return model_id

    def join(self, one: int, other: int) -> None:
        """Merge two groups."""
        self._leader[self.find(other)] = self.find(one)


def find_duplicates(
    uploads: Sequence[Upload], differences: Iterable[tuple[int, int, float]], within: float
) -> dict[int, int]:
    """Map each member of a group of duplicates to the model_id of the group's earliest upload.

    Two models are duplicates if their weight files have the same hashes, or if their deltas, compared matrix by
    matrix, differ by at most ``within``. Unique models are not in the result.
    """
    groups = UnionFind(uploads)
    known = {upload.model_id for upload in uploads}
    for one, other, difference in differences:
        if difference <= within and one in known and other in known:
            groups.join(one, other)
    members: dict[int, list[Upload]] = {}
    for upload in uploads:
        members.setdefault(groups.find(upload.model_id), []).append(upload)

    def age(upload: Upload) -> tuple[bool, float, int]:
        created = upload.created
        return (created is None, created.timestamp() if created else 0.0, upload.model_id)

    return {
        upload.model_id: min(group, key=age).model_id
        for group in members.values()
        if len(group) > 1
        for upload in group
    }


class DuplicateGroups:
    """The duplicate groups of one base. ``within``: the largest difference between duplicates."""

    def __init__(self, tables: Tables, store: RecordStore, base: str, within: float) -> None:
        self.tables = tables
        self.base = base
        self.within = within
        self.read = lru_cache(maxsize=64)(store.read)

    def members_with(self, model_ids: Sequence[int]) -> set[int]:
        """These models and the current members of their groups, which a change may split."""
        if not model_ids:
            return set()
        with self.tables.listed(model_ids):
            rows = self.tables.rows(
                "SELECT model_id FROM records WHERE duplicate_group IN (SELECT duplicate_group FROM records "
                "WHERE model_id IN (SELECT model_id FROM listed))"
            )
        return {*model_ids, *(model_id for (model_id,) in rows)}

    def renew(self, touched: Iterable[int]) -> None:
        """Compare the ``touched`` models with similar ones, and rewrite the groups."""
        uploads = [
            Upload(model_id, created, tuple(sorted(hashes)) if hashes and all(hashes) else ())
            for model_id, created, hashes in self.tables.rows(
                "SELECT model_id, created, list_transform(weight_files, lambda f: f.sha256) FROM records "
                "JOIN fine_tunes USING (model_id) WHERE base = ? AND NOT is_copy ORDER BY model_id",
                [self.base],
            )
        ]
        model_ids = sorted(touched)
        with self.tables.listed(model_ids):
            self.tables.run(
                "DELETE FROM internal.compared_deltas WHERE model_id IN (SELECT model_id FROM listed) "
                "OR other_id IN (SELECT model_id FROM listed)"
            )
        # Compare similar pairs, except within a group: reading records is slow.
        groups, found = UnionFind(uploads), []
        for one, other, first_key, second_key in self._near_pairs(model_ids):
            if groups.find(one) == groups.find(other):
                continue
            try:
                difference = difference_of(self.read(first_key), self.read(second_key))
            except AtlasError:  # `index verify` reports a damaged record; it must not stop the publish
                continue
            found.append({"model_id": one, "other_id": other, "difference": difference})
            if difference <= self.within:
                groups.join(one, other)
        self.tables.insert("internal.compared_deltas", found)
        compared = self.tables.rows("SELECT model_id, other_id, difference FROM internal.compared_deltas ORDER BY ALL")
        first_of = find_duplicates(uploads, compared, self.within)
        rows = []
        for model_id in (one.model_id for one in uploads):
            first = first_of.get(model_id)
            repeated = None if first == model_id else first
            rows.append({"model_id": model_id, "duplicate_group": first, "duplicate_of": repeated})
        self.tables.update("records", {"duplicate_group": "INTEGER", "duplicate_of": "INTEGER"}, rows)

    def _near_pairs(self, model_ids: Sequence[int]) -> list[tuple[int, int, str, str]]:
        """(model id, other id, their records) with similar signatures and norms; each pair once, smaller id first."""
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
