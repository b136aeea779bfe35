"""Models of a base that have the same weights, or LoRA factors of the same random start.

Duplicates are models that were uploaded before, byte for byte or in another file format. After a change only pairs that
contain a changed model are compared.

LoRA factors that started from the same random A come from the same tool and seed, whatever their data are. A model that
is read joins the initialisation of the model that agrees with it best, among those read before. It keeps its
initialisation until it is read again, so that a publish does not have to recompute those of other models.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import numpy as np

from indexer.errors import AtlasError
from indexer.publish.tables import Tables
from indexer.records.difference import alike, difference_of, norms_fit, relative_difference, signatures_from
from indexer.records.row_space import ALIKE, agreement, from_texts
from indexer.records.store import RecordStore

# Two estimates of one norm from different rows may differ by at most this many standard errors.
_STANDARD_ERRORS = 4.0


@dataclass(frozen=True)
class Upload:
    """The facts by which duplicates are found and ordered: hashes of a model's files, and its date."""

    model_id: int
    created: datetime | None
    file_hashes: tuple[str, ...]


class UnionFind:
    """Union–find (Galler & Fischer, 1964), initialised with the models of equal file hashes.

    Importing scipy's DisjointSet instead would take 27 MB of every build's memory.
    """

    def __init__(self, uploads: Sequence[Upload]) -> None:
        self._leader = {upload.model_id: upload.model_id for upload in uploads}
        first_by_hashes: dict[tuple[str, ...], int] = {}
        for upload in uploads:
            if upload.file_hashes:
                self.join(upload.model_id, first_by_hashes.setdefault(upload.file_hashes, upload.model_id))

    def find(self, model_id: int) -> int:
        """The representative of the group of a model."""
        while self._leader[model_id] != model_id:
            self._leader[model_id] = self._leader[self._leader[model_id]]
            model_id = self._leader[model_id]
        return model_id

    def join(self, first: int, second: int) -> None:
        """Merge two groups."""
        self._leader[self.find(second)] = self.find(first)


def find_duplicates(
    uploads: Sequence[Upload], differences: Iterable[tuple[int, int, float]], within: float
) -> dict[int, int]:
    """Map each member of a group of duplicates to the model_id of the group's earliest upload.

    Two models are duplicates if their weight files have the same hashes, or if their deltas, compared matrix by
    matrix, differ by at most ``within``. Unique models are not in the result.
    """
    groups = UnionFind(uploads)
    ids = {upload.model_id for upload in uploads}
    for model_id, other_id, difference in differences:
        if difference <= within and model_id in ids and other_id in ids:
            groups.join(model_id, other_id)
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


def with_duplicates(tables: Tables, model_ids: Sequence[int]) -> set[int]:
    """These models and the current members of their groups, which a change may split."""
    if not model_ids:
        return set()
    with tables.listed(model_ids):
        rows = tables.rows(
            "SELECT model_id FROM records WHERE duplicate_group IN (SELECT duplicate_group FROM records "
            "WHERE model_id IN (SELECT model_id FROM listed))"
        )
    return {*model_ids, *(model_id for (model_id,) in rows)}


def renew_duplicates(tables: Tables, store: RecordStore, base: str, within: float, touched: Iterable[int]) -> None:
    """Compare the ``touched`` models of a base with similar ones, and rewrite the groups.

    ``within``: the largest difference between duplicates.
    """
    uploads = [
        Upload(model_id, created, tuple(sorted(hashes)) if hashes and all(hashes) else ())
        for model_id, created, hashes in tables.rows(
            "SELECT model_id, created, list_transform(weight_files, lambda f: f.sha256) FROM records "
            "JOIN fine_tunes USING (model_id) WHERE base = ? AND NOT is_copy ORDER BY model_id",
            [base],
        )
    ]
    model_ids = sorted(touched)
    with tables.listed(model_ids):
        tables.run(
            "DELETE FROM internal.compared_deltas WHERE model_id IN (SELECT model_id FROM listed) "
            "OR other_id IN (SELECT model_id FROM listed)"
        )
    # Pairs (model id, other id, their records) with similar signatures and norms; each once, the smaller id first.
    rows = tables.rows(
        "SELECT model_id, fine_tunes.record_key, signature, delta_norm, "
        'coalesce(delta_norm / nullif(relative_norm, 0), 0), "read", dtype, delta_norm_error FROM records '
        "JOIN fine_tunes USING (model_id) WHERE base = ? AND NOT is_copy AND signature IS NOT NULL ORDER BY model_id",
        [base],
    )
    near_pairs = set()
    touched_rows = np.flatnonzero(np.isin([row[0] for row in rows], model_ids))
    for row_numbers, other_numbers in alike(signatures_from([row[2] for row in rows]), touched_rows) if rows else ():
        for number, other_number in zip(row_numbers.tolist(), other_numbers.tolist(), strict=True):
            first, second = rows[min(number, other_number)], rows[max(number, other_number)]
            # An estimated and an exact norm differ, whatever the models are, and so do estimates from other rows.
            if first[3] is None or second[3] is None:  # an adapter whose strength is not known
                near_pairs.add((first[0], second[0], first[1], second[1]))
                continue
            is_near = first[5] != second[5] or relative_difference(first[3], second[3]) <= within
            if first[6] != second[6]:
                is_near |= abs(first[3] - second[3]) <= _STANDARD_ERRORS * math.hypot(first[7], second[7])
            if is_near or norms_fit(first[3], second[3], first[4]):
                near_pairs.add((first[0], second[0], first[1], second[1]))
    # They are compared matrix by matrix, except within a group: reading records is slow.
    groups, differences = UnionFind(uploads), []
    read_record = lru_cache(maxsize=64)(store.read)
    for model_id, other_id, first_key, second_key in sorted(near_pairs):
        if groups.find(model_id) == groups.find(other_id):
            continue
        try:
            difference = difference_of(read_record(first_key), read_record(second_key))
        except AtlasError:  # `index verify` reports a damaged record; it must not stop the publish
            continue
        differences.append({"model_id": model_id, "other_id": other_id, "difference": difference})
        if difference <= within:
            groups.join(model_id, other_id)
    tables.insert("internal.compared_deltas", differences)
    compared = tables.rows("SELECT model_id, other_id, difference FROM internal.compared_deltas ORDER BY ALL")
    first_of = find_duplicates(uploads, compared, within)
    changes = []
    for model_id in (upload.model_id for upload in uploads):
        first_id = first_of.get(model_id)
        repeated = None if first_id == model_id else first_id
        changes.append({"model_id": model_id, "duplicate_group": first_id, "duplicate_of": repeated})
    tables.update("records", {"duplicate_group": "INTEGER", "duplicate_of": "INTEGER"}, changes)


def renew_initialisations(tables: Tables, base: str, matrices: int, fresh: Collection[int]) -> None:
    """Set the initialisation of the ``fresh`` models of a base: the id of the first model that has it.

    It is null for a model that agrees with no other.
    """
    rows = tables.rows(
        "SELECT model_id, initialisation, row_space FROM records JOIN fine_tunes USING (model_id) "
        "WHERE base = ? AND row_space IS NOT NULL ORDER BY model_id",
        [base],
    )
    new_rows = [index for index, row in enumerate(rows) if row[0] in fresh]
    if not new_rows:
        return
    ids = [row[0] for row in rows]
    groups: list[int | None] = [row[1] for row in rows]
    is_known = np.array([model_id not in fresh for model_id in ids])
    sketches = from_texts([row[2] for row in rows], matrices)
    changed = set()
    for index, agreements in zip(new_rows, agreement(sketches[new_rows], sketches), strict=True):
        best = int(np.where(is_known, agreements, -1).argmax())
        is_known[index] = True
        if best == index or agreements[best] < ALIKE:
            continue
        group = groups[best]
        if group is None:  # either id may still name the former group of a model that was read again
            group = next((number for number in (ids[best], ids[index]) if number not in groups), None)
        changed |= {number for number in (index, best) if groups[number] != group}
        groups[index] = groups[best] = group
    rows_changed = [{"model_id": ids[number], "initialisation": groups[number]} for number in sorted(changed)]
    tables.update("records", {"initialisation": "INTEGER"}, rows_changed)
