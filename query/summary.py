"""What an atlas holds: its models, its datasets, and how it shows itself in a line and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.console.notebook import shown
from indexer.errors import AtlasError
from query.results import Rows
from query.wording import counted

if TYPE_CHECKING:
    from query.reader import AtlasReader


_MODELS = (
    "SELECT base, model, relation, datasets, downloads FROM models WHERE contains(lower(model), lower($1)) "
    "AND coalesce(base = $2, true) AND coalesce(list_contains(datasets, $3), true) "
    "ORDER BY downloads DESC NULLS LAST, model"
)
_DATASETS = (
    "SELECT base, dataset, models, authors FROM dataset_counts WHERE contains(lower(dataset), lower($1)) "
    "AND coalesce(base = $2, true) ORDER BY models DESC, dataset, base"
)


@dataclass(frozen=True, eq=False, repr=False)
class Inventory(Rows[dict[str, Any]]):
    """Models, or datasets, that an atlas holds: a list of mappings with the ``columns``."""

    OPTIONAL_COLUMNS = ("authors", "relation", "downloads", "datasets")

    kind: str
    columns: tuple[str, ...]
    items: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """How many there are."""
        return counted(len(self.items), self.kind)


def models_of(atlas: AtlasReader, search: str, dataset: str | None, base: str | None) -> Inventory:
    """The indexed models, the most downloaded first; see :meth:`query.Atlas.models`."""
    canonical = None if base is None else atlas.base_named(base)
    rows = tuple(atlas.rows(_MODELS, [search, canonical, dataset]))
    return Inventory("model", ("base", "model", "relation", "datasets", "downloads"), rows)


def datasets_of(atlas: AtlasReader, search: str, base: str | None) -> Inventory:
    """The datasets that indexed models name, those of most models first; see :meth:`query.Atlas.datasets`."""
    canonical = None if base is None else atlas.base_named(base)
    rows = tuple(atlas.rows(_DATASETS, [search, canonical]))
    return Inventory("dataset", ("base", "dataset", "models", "authors"), rows)


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
