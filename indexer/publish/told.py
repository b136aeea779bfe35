"""What questions told of the models of a base, and the atlas keeps: files beside the listing, and tables made of them.

Nothing in the database is the only copy. A file names models and records; a publish makes its table from those lines
whose records are still the ones that were asked, so a model that was read again since has none until it is asked after
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError
from indexer.publish.publication import Publication
from indexer.publish.publish import publish
from indexer.publish.told_lines import read_told, write_told


def store_lineage(folder: AtlasFolder, base: str, models: Iterable[str], lines: Sequence[Mapping[str, Any]]) -> None:
    """Keep the lineage of ``models`` of a base, in place of what was kept of these, and publish.

    ``lines``: one for each parent, with the keys of the table ``lineage`` but names for ids: model, record_key, parent,
    parent_key (its record; both null for the base), kind, method, coefficient, left, card, direction, evidence, same,
    bytes_read, answered_at (ISO 8601), probability. Waits for nobody: raises AtlasError where another process holds the
    writer's lock, or the atlas cannot be written to.
    """
    with folder.require().locked("query lineage --all"):
        _replace(folder.lineage(base), models, lines)
        _publish(folder, base)


def store_predictions(
    folder: AtlasFolder, base: str, models: Iterable[str], lines: Sequence[Mapping[str, Any]]
) -> None:
    """Keep what was predicted for ``models`` of a base, in place of what was kept of these, and publish.

    ``lines``: one per answer, with the keys of the table ``predictions`` but ``model`` for its id; ``answered_at``
    in ISO 8601. Waits for nobody: raises AtlasError as ``store_lineage`` does.
    """
    with folder.require().locked("query predict --store"):
        _replace(folder.predictions(base), models, lines)
        _publish(folder, base)


def _replace(path: Path, models: Iterable[str], lines: Sequence[Mapping[str, Any]]) -> None:
    """Write ``lines`` in place of those of ``models``; lines of other models stay."""
    asked = set(models)
    kept = [line for line in read_told(path)[0] if line.get("model") not in asked]
    write_told(path, [*kept, *lines])


def forget_in_lines(folder: AtlasFolder, base: str, model: str) -> None:
    """Take a model out of what is kept of a base: its own lines, and its name in those of others."""
    for path in (folder.lineage(base), folder.predictions(base)):
        before, _ = read_told(path)
        after = [_without(line, model) for line in before if model not in (line.get("model"), line.get("parent"))]
        if after != before:
            write_told(path, after)


def _without(line: Mapping[str, Any], model: str) -> dict[str, Any]:
    lists = {name: [one for one in line[name] if one != model] for name in ("same", "models") if name in line}
    return {**line, **lists}


def _publish(folder: AtlasFolder, base: str) -> None:
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
