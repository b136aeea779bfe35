"""Which models' LoRA factors started from the same random A: the same tool and seed, whatever their data are.

A model that is read joins the initialisation of the model that agrees with it best, among those read before. It keeps
its initialisation until it is read again, so that a publish does not have to recompute those of other models.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from indexer.publish.tables import Tables
from indexer.records.row_space import ALIKE, agreement, from_texts


def renew_initialisations(tables: Tables, base: str, matrices: int, fresh: Collection[int]) -> None:
    """Set the initialisation of the ``fresh`` models of a base: the id of the first model that has it.

    It is null for a model that agrees with no other.
    """
    rows = tables.rows(
        "SELECT model_id, initialisation, row_space FROM records JOIN fine_tunes USING (model_id) "
        "WHERE base = ? AND row_space IS NOT NULL ORDER BY model_id",
        [base],
    )
    new = [place for place, row in enumerate(rows) if row[0] in fresh]
    if not new:
        return
    ids = [row[0] for row in rows]
    groups: list[int | None] = [row[1] for row in rows]
    is_known = np.array([model_id not in fresh for model_id in ids])
    sketches = from_texts([row[2] for row in rows], matrices)
    changed = set()
    for place, agreements in zip(new, agreement(sketches[new], sketches), strict=True):
        best = int(np.where(is_known, agreements, -1).argmax())
        is_known[place] = True
        if best == place or agreements[best] < ALIKE:
            continue
        group = groups[best]
        if group is None:  # either id may still name the former group of a model that was read again
            group = next((one for one in (ids[best], ids[place]) if one not in groups), None)
        changed |= {one for one in (place, best) if groups[one] != group}
        groups[place] = groups[best] = group
    rows_changed = [{"model_id": ids[one], "initialisation": groups[one]} for one in sorted(changed)]
    tables.update("records", {"initialisation": "INTEGER"}, rows_changed)
