"""Whom each model was made from, as `query lineage --all` told: a file beside the listing, and the table made from it.

Nothing in the database is the only copy. The file names models and records; a publish makes the table from those lines
whose records are still the ones that were asked, so a model that was read again since has no lineage until it is asked
after again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError
from indexer.publish.publish import Publication, publish
from indexer.storage.whole_files import write_atomically


def store_lineage(folder: AtlasFolder, base: str, lines: Sequence[Mapping[str, Any]]) -> None:
    """Keep the lineage of a base's models, in place of what was kept of it, and publish.

    ``lines``: one for each parent, with the keys of the table ``lineage`` but names for ids: model, record_key, parent,
    parent_key (its record; both null for the base), kind, method, coefficient, left, card, direction, because, same,
    bytes_read, told (ISO 8601). Waits for nobody: raises AtlasError where another process holds the writer's lock, or
    the atlas cannot be written to.
    """
    with folder.require().locked("query lineage --all"):
        text = "".join(json.dumps(dict(line), sort_keys=True, allow_nan=False) + "\n" for line in lines)
        path = folder.lineage(base)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, text.encode())
        with Reading(folder.database) as connection:
            rows = connection.rows(
                'SELECT "commit", rank FROM bases JOIN representations USING (base) '
                "WHERE base = ? AND representation = 'input'",
                (base,),
            )
        if not rows:
            raise AtlasError(f"Nothing is published for {base}.", f"Run: index build --base {base}")
        stored = StoredBase(folder.base(base, rows[0]["commit"]))
        publish(folder, [Publication(stored, (), (), rows[0]["rank"])])
