"""What an atlas holds, in a line and as a table: how it shows itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.console.notebook import shown
from indexer.errors import AtlasError
from query.wording import counted

if TYPE_CHECKING:
    from query.reader import AtlasReader


def place(atlas: AtlasReader) -> str:
    """Its folder, from where one is; a notebook is to show nobody's home."""
    root, here = atlas.folder.root, Path.cwd()
    return str(root.relative_to(here) if root.is_relative_to(here) else root)


def in_a_line(atlas: AtlasReader) -> str:
    """How many models of which bases, and since when; of one that is closed, that it is."""
    try:
        bases = contents(atlas)
        (published,) = (row["published"] for row in atlas.rows("SELECT published FROM atlas_info"))
    except AtlasError as error:
        return error.message
    models = counted(sum(row["indexed"] for row in bases), "model")
    when = f", published {published:%Y-%m-%d %H:%M} UTC" if published else ""
    return f"{models} of {', '.join(row['base'] for row in bases) or 'no base'}{when}"


def in_a_notebook(atlas: AtlasReader) -> str:
    """The same over a table with a row for each base, in HTML."""
    try:
        rows = contents(atlas)
    except AtlasError:  # it is closed
        rows = []
    return shown(f"Atlas {place(atlas)}: {in_a_line(atlas)}", rows, atlas.notes)


def contents(atlas: AtlasReader) -> list[dict[str, Any]]:
    """A row for each base: its models, authors and published representations."""
    return atlas.rows(
        "SELECT bases.base, count(models.model_id) AS indexed, count(DISTINCT author) AS authors, "
        "(SELECT list(representation ORDER BY representation) FROM representations AS r WHERE r.base = bases.base) "
        "AS representations FROM bases LEFT JOIN models ON models.base = bases.base "
        "GROUP BY bases.base ORDER BY bases.base"
    )
