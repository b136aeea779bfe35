"""Which models' LoRA factors started from the same random A: one tool and one seed, whatever their data are.

A model that is read joins the initialisation of the model that agrees with it best, among those read before. What a
model was given it keeps until it is read again, so that a publish never has to look at old vectors anew.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from indexer.publish.tables import Tables
from indexer.records.row_space import ALIKE, agreement, from_texts


def renew_initialisations(tables: Tables, base: str, matrices: int, fresh: Collection[int]) -> None:
    """Give the ``fresh`` models of a base their initialisation: the id of the first model that has it.

    None (null) for a model that agrees with no other.
    """
    rows = tables.rows(
        "SELECT model_id, initialisation, row_space FROM records JOIN fine_tunes USING (model_id) "
        "WHERE base = ? AND row_space IS NOT NULL ORDER BY model_id",
        [base],
    )
    coming = [place for place, row in enumerate(rows) if row[0] in fresh]
    if not coming:
        return
    ids = [row[0] for row in rows]
    given: list[int | None] = [row[1] for row in rows]
    is_known = np.array([model_id not in fresh for model_id in ids])
    sketches = from_texts([row[2] for row in rows], matrices)
    agreements = agreement(sketches[coming], sketches)
    changed = set()
    for place, found in zip(coming, agreements, strict=True):
        best = int(np.where(is_known, found, -1).argmax())
        is_known[place] = True
        if best == place or found[best] < ALIKE:
            continue
        group = given[best]
        if group is None:  # a number that others bear may be left of what this model was in before it was read again
            group = next((one for one in (ids[best], ids[place]) if one not in given), None)
        changed |= {one for one in (place, best) if given[one] != group}
        given[place] = given[best] = group
    tables.run("CREATE OR REPLACE TEMP TABLE initialised (model_id INTEGER, initialisation INTEGER)")
    tables.insert("initialised", [{"model_id": ids[one], "initialisation": given[one]} for one in sorted(changed)])
    tables.run(
        "UPDATE records SET initialisation = said.initialisation FROM initialised AS said "
        "WHERE said.model_id = records.model_id"
    )
    tables.run("DROP TABLE initialised")
